"""Odd ends of workers, payloads and claims: what handlers, streams and executors may also do."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from taquba import Delivery, Done, Effects, JobState, Queue, QueueConfig, TransientError
from taquba.errors import Fenced, InvalidType, StoreUnavailable
from taquba.queue import Result, new_job
from taquba.testing import FaultyStore
from tests.queue.harness import NO_BACKOFF, World, cancelled, counts, read, started, take

pytestmark = pytest.mark.anyio

LARGE = bytes(range(256))


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("payload", [b"small", LARGE])
async def test_effects_that_are_staged_and_returned_are_committed_once(
    world: World, payload: bytes, wrapped: bool
) -> None:
    async def handler(delivery: Delivery) -> Effects | Done:
        effects = delivery.effects.enqueue("mail", payload).put("key", b"1")
        return Done(effects) if wrapped else effects

    queue = await world.open(offload_payloads_above=64)
    await queue.enqueue("q", b"")
    async with queue.worker("q", handler):
        pass
    assert await queue.stats("mail") == counts(pending=1)
    claim = await take(queue, "mail")
    assert claim.job.payload == payload
    await queue.ack(claim)


async def test_an_object_belongs_to_one_job(world: World) -> None:
    """A job that is enqueued twice, of which one is removed: the other one keeps its payload."""
    queue = await world.open(offload_payloads_above=64)
    job = new_job("q", LARGE)
    async with queue.committing(job) as tx:
        first, second = tx.enqueue(job), tx.enqueue(job)
    await queue.cancel(first.job_id)
    await world.clock.advance(1)
    claim = await queue.claim_by_id(second.job_id)
    assert claim.job.payload == LARGE


async def test_a_claim_by_id_that_is_given_back_is_scheduled_as_before(world: World) -> None:
    queue = await world.open()
    job_id = (await queue.enqueue("q", b"x", delay=timedelta(days=1))).job_id
    before = await read(queue, job_id)
    world.wire.hold()
    await cancelled(world, await started(world, queue.claim_by_id(job_id)))
    world.wire.release()
    job = await read(queue, job_id)
    assert (job.state, job.run_at, job.attempts) == (JobState.SCHEDULED, before.run_at, 0)
    assert await queue.stats("q") == counts(scheduled=1)
    await world.clock.advance(timedelta(days=1))
    assert (await take(queue)).job.id == job_id


async def test_a_claim_by_id_that_is_given_back_late_is_pending(world: World) -> None:
    queue = await world.open()
    job_id = (await queue.enqueue("q", b"x", delay=1)).job_id
    world.wire.hold()
    claiming = await started(world, queue.claim_by_id(job_id))
    await world.clock.advance(2)
    await cancelled(world, claiming)
    world.wire.release()
    job = await read(queue, job_id)
    assert (job.state, job.run_at) == (JobState.PENDING, None)


async def test_a_claim_by_id_that_is_not_delivered_does_not_come_before_its_time(
    world: World,
) -> None:
    store = FaultyStore(world.store)
    async with Queue.open(store, clock=world.clock, offload_payloads_above=64) as queue:
        job_id = (await queue.enqueue("q", LARGE, delay=timedelta(days=1))).job_id
        before = await read(queue, job_id)
        store.fail("get", "payloads/")
        with pytest.raises(StoreUnavailable):
            await queue.claim_by_id(job_id)
        job = await read(queue, job_id)
        assert (job.state, job.run_at, job.attempts) == (JobState.SCHEDULED, before.run_at, 0)


class InProcess(Executor):
    """Stands for an executor of processes, without any."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


@pytest.mark.parametrize("factory", [False, True])
async def test_a_job_that_cannot_go_to_another_process_ends_no_worker(
    world: World, factory: bool
) -> None:
    """A payload that is only streamed: its job fails, and the others are done."""

    async def film() -> Any:
        for _ in range(17):
            yield bytes(1024 * 1024)

    def handler(view: Any) -> None:
        pass

    queue = await world.open(config=NO_BACKOFF)
    too_large = (await queue.enqueue("q", film(), max_attempts=1)).job_id
    await queue.enqueue("q", b"x")
    executor = (lambda: InProcess()) if factory else InProcess()
    async with queue.worker("q", handler, executor=executor, concurrency=1):
        await world.clock.advance(1)
    assert await queue.stats("q") == counts(done=1, dead=1)
    assert "stream_payload" in ((await read(queue, too_large)).last_error or "")


@pytest.mark.parametrize("where", ["loop", "threads", "own threads"])
async def test_an_executor_that_the_handler_uses_is_not_the_worker_s(
    world: World, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            error = BrokenExecutor("a pool of the handler's own")
            if delivery.payload == b"wrapped":
                raise TransientError("try again") from error
            raise error

    async def fails_on_loop(delivery: Delivery) -> None:
        fails(delivery)

    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue_many("q", [b"wrapped", b"plain"])
    with ThreadPoolExecutor(2) as threads:
        worker = queue.worker(
            "q",
            fails_on_loop if where == "loop" else fails,
            executor=threads if where == "own threads" else None,
        )
        async with worker:
            await asyncio.wait_for(until_done(queue, 2), 20)
    assert not any("executor of a worker broke" in text for text in caplog.messages)


async def until_done(queue: Queue, number: int) -> None:
    while (await queue.stats("q")).done < number:
        await asyncio.sleep(0)


class Abandon(BaseException):
    """Of an exception that is none of Exception's, as some frameworks have them."""


@pytest.mark.parametrize("grouped", [False, True])
async def test_whatever_a_handler_raises_is_a_failed_attempt(world: World, grouped: bool) -> None:
    """P2: else the job would end one worker after the other, and no attempt would count."""

    async def handler(delivery: Delivery) -> None:
        if delivery.payload == b"bad":
            raise BaseExceptionGroup("two", [Abandon(), ValueError()]) if grouped else Abandon()

    queue = await world.open(config=NO_BACKOFF)
    bad = (await queue.enqueue("q", b"bad")).job_id
    await queue.enqueue("q", b"good")
    async with queue.worker("q", handler, concurrency=1):
        await world.clock.advance(1)
    assert await queue.stats("q") == counts(done=1, dead=1)
    assert (await read(queue, bad)).attempts == 3


async def test_a_task_that_once_ignored_a_cancellation_can_run_a_worker(world: World) -> None:
    async def handler(delivery: Delivery) -> Result:
        if delivery.payload == b"bad":
            raise asyncio.CancelledError
        return None

    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue_many("q", [b"bad", b"good"], max_attempts=1)
    worker = queue.worker("q", handler, concurrency=1)

    async def host() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        await worker.run()

    task = await started(world, host())
    task.cancel()
    await world.clock.advance(1)
    assert await queue.stats("q") == counts(done=1, dead=1)
    await cancelled(world, task)


async def test_a_read_that_gives_nothing_is_no_end(world: World, queue: Queue) -> None:
    """A file that does not block gives None when there is nothing yet: not to be cut off there."""

    class NotBlocking:
        def __init__(self) -> None:
            self.pieces = [b"a piece", None, b"the rest", b""]

        def read(self, size: int) -> Any:
            return self.pieces.pop(0)

    with pytest.raises(InvalidType, match="NoneType"):
        await queue.enqueue("q", NotBlocking())
    assert await queue.stats("q") == counts()


async def test_a_wait_abandoned_before_its_end_is_lost_is_no_error(world: World) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    queue = await world.open(config=QueueConfig(keep_done=60.0))
    job_id = (await queue.enqueue("q", b"x")).job_id
    claim = await take(queue)
    wait = await started(world, queue.wait_for_completion(job_id))
    world.wire.hold()
    ack = await started(world, queue.ack(claim))
    await cancelled(world, wait)
    del wait
    await world.open()
    await world.bury()
    with pytest.raises(Fenced):
        await ack
    gc.collect()
    await world.clock.advance(0)
    assert told == []
