"""Workers that interrupt the handlers of cancelled jobs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from taquba import (
    Delivery,
    Effects,
    JobState,
    Queue,
    QueueConfig,
    TransientError,
)
from taquba.errors import InvalidArgument
from taquba.queue import CompletionOutcome
from tests.queue.harness import World, counts

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(15)]


class Handler:
    """Waits for ever, and does as it is told when it is interrupted."""

    def __init__(self, then: Any = None, *, clean_up: float = 0, stubborn: bool = False) -> None:
        self.then = then
        self.clean_up = clean_up
        self.stubborn = stubborn
        self.started = 0
        self.interrupted = 0
        self.world: World
        self.go = asyncio.Event()

    async def __call__(self, delivery: Delivery) -> Any:
        self.started += 1
        delivery.effects.put("k", b"staged")
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.interrupted += 1
                if self.stubborn:
                    continue
                if self.clean_up:
                    await self.world.clock.sleep(self.clean_up)
                if self.then is None:
                    raise
                if isinstance(self.then, BaseException):
                    raise self.then from None
                return self.then
        return None


async def cancelled(world: World, queue: Queue, handler: Handler, **options: Any) -> Any:
    """How a job ends whose handler is under way when it is cancelled."""
    handler.world = world
    job_id = (await queue.enqueue("q", b"", max_attempts=2)).job_id
    completion = asyncio.ensure_future(queue.wait_for_completion(job_id))
    worker = queue.worker("q", handler, on_cancel="interrupt", **options)
    async with worker:
        await world.clock.advance(0)
        assert handler.started == 1
        await queue.cancel(job_id)
        await queue.cancel(job_id)
        await world.clock.advance(60)
        handler.go.set()
    return (await completion).outcome


@pytest.mark.parametrize("then", [None, TransientError("no"), asyncio.CancelledError()])
async def test_an_interrupted_job_is_removed(world: World, queue: Queue, then: Any) -> None:
    handler = Handler(then)
    assert await cancelled(world, queue, handler) is CompletionOutcome.CANCELLED
    assert (handler.started, handler.interrupted) == (1, 1)
    assert await queue.stats("q") == counts()
    assert await queue.kv.get("k") is None


async def test_what_the_handler_returns_counts(world: World, queue: Queue) -> None:
    handler = Handler(Effects().put("told", b"cleaned up"))
    assert await cancelled(world, queue, handler) is CompletionOutcome.DONE
    assert await queue.stats("q") == counts(done=1)
    assert await queue.kv.get("told") == b"cleaned up"
    assert await queue.kv.get("k") == b"staged"


async def test_it_has_time_to_clean_up(world: World, queue: Queue) -> None:
    handler = Handler(clean_up=9)
    assert await cancelled(world, queue, handler, cancel_grace=10) is CompletionOutcome.CANCELLED
    assert handler.interrupted == 1


async def test_one_that_does_not_end_is_not_waited_for(world: World, queue: Queue) -> None:
    """Its job comes back, and is removed instead of being worked on again."""
    handler = Handler(stubborn=True)
    outcome = await cancelled(world, queue, handler, cancel_grace=10, concurrency=2)
    assert outcome is CompletionOutcome.CANCELLED
    assert handler.started == 1
    assert await queue.stats("q") == counts()


async def test_a_job_that_has_not_begun(world: World, queue: Queue) -> None:
    """It was claimed and cancelled by somebody who then lost it."""
    handler = Handler()
    job_id = (await queue.enqueue("q", b"")).job_id
    claim = await queue.claim("q", lease=1)
    assert claim is not None
    await queue.cancel(job_id)
    world.clock.stall(2)
    queue.reap_due()
    job = await queue.get_job(job_id)
    assert job is not None and (job.state, job.cancel_requested) == (JobState.PENDING, True)
    async with queue.worker("q", handler, on_cancel="interrupt"):
        await world.clock.advance(0)
    assert handler.started == 0
    assert await queue.get_job(job_id) is None


async def test_other_jobs_are_not_affected(world: World, queue: Queue) -> None:
    """Also the next one in the same place."""
    seen: list[int] = []

    async def handler(delivery: Delivery) -> None:
        task = asyncio.current_task()
        assert task is not None
        seen.append(task.cancelling())
        if delivery.payload == b"first":
            await asyncio.get_running_loop().create_future()

    first = (await queue.enqueue("q", b"first")).job_id
    await queue.enqueue("q", b"second")
    async with queue.worker("q", handler, on_cancel="interrupt", concurrency=1):
        await world.clock.advance(0)
        await queue.cancel(first)
        await world.clock.advance(0)
    assert seen == [0, 0]
    assert await queue.stats("q") == counts(done=1)


async def test_cooperation_is_the_default(world: World) -> None:
    queue = await world.open(config=QueueConfig(lease=30))
    handler = Handler()
    job_id = (await queue.enqueue("q", b"")).job_id
    async with queue.worker("q", handler):
        await world.clock.advance(0)
        await queue.cancel(job_id)
        await world.clock.advance(29)
        assert handler.interrupted == 0
        handler.go.set()
    assert await queue.stats("q") == counts(done=1)


async def test_a_function_in_a_thread_is_told_only(world: World, queue: Queue) -> None:
    started, go = threading.Event(), threading.Event()
    told: list[bool] = []

    def handler(delivery: Delivery) -> None:
        started.set()
        assert go.wait(10)
        told.append(delivery.should_stop)

    job_id = (await queue.enqueue("q", b"")).job_id
    async with queue.worker("q", handler, on_cancel="interrupt"):
        await asyncio.to_thread(started.wait, 10)
        await queue.cancel(job_id)
        go.set()
    assert told == [True]
    assert await queue.stats("q") == counts(done=1)


async def test_bad_options(queue: Queue) -> None:
    for bad in ("stop", None, True):
        with pytest.raises(InvalidArgument, match="on_cancel"):
            queue.worker("q", Handler(), on_cancel=bad)  # type: ignore[arg-type]
