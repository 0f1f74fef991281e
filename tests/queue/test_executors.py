"""Handlers in threads and in processes: what they get, and what their ends mean for the job."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import os
import threading
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import ProcessPoolExecutor
from typing import Any

import pytest

from taquba import Delivery, Effects, JobState, JobView, PermanentError, Queue, QueueConfig
from taquba.errors import InvalidArgument, InvalidType
from tests.queue.harness import NO_BACKOFF, World, counts, read

pytestmark = pytest.mark.anyio


def processes(number: int = 1) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(number, mp_context=multiprocessing.get_context("spawn"))


def in_a_process(view: JobView) -> Effects:
    """The handler of the tests with processes."""
    match view.payload:
        case b"die":
            os._exit(3)
        case b"exit":
            raise SystemExit(3)
        case b"permanent":
            raise PermanentError("hopeless")
        case _:
            assert os.getpid() != int(view.headers["parent"])
            return Effects().put(view.id, view.payload + b"%d" % view.attempt)


async def until(event: threading.Event) -> None:
    """Wait for a thread, in a thread."""
    assert await asyncio.to_thread(event.wait, 20)


async def test_a_function_runs_in_a_thread(queue: Queue) -> None:
    threads: list[threading.Thread] = []

    def handler(delivery: Delivery) -> Effects:
        threads.append(threading.current_thread())
        delivery.ensure_at_least(60)
        delivery.effects.put("staged", delivery.payload)
        return Effects().put("returned", delivery.payload)

    await queue.enqueue("q", b"x")
    async with queue.worker("q", handler):
        pass
    assert threads[0] is not threading.main_thread()
    assert await queue.kv.get("staged") == await queue.kv.get("returned") == b"x"
    assert await queue.stats("q") == counts(done=1)


async def test_an_executor_of_threads_stays_the_caller_s(queue: Queue) -> None:
    def handler(delivery: Delivery) -> None:
        assert threading.current_thread().name.startswith("mine")

    await queue.enqueue_many("q", [b"1", b"2"])
    with ThreadPoolExecutor(1, "mine") as executor:
        async with queue.worker("q", handler, executor=executor):
            pass
        assert executor.submit(lambda: 7).result() == 7
    assert await queue.stats("q") == counts(done=2)


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_what_would_end_the_process_ends_the_attempt_in_a_thread(
    queue: Queue, error: BaseException
) -> None:
    def handler(delivery: Delivery) -> None:
        if delivery.payload == b"bad":
            raise error

    bad = (await queue.enqueue("q", b"bad", max_attempts=1)).job_id
    await queue.enqueue("q", b"good")
    async with queue.worker("q", handler):
        pass
    job = await read(queue, bad)
    assert job.state is JobState.DEAD
    assert type(error).__name__ in (job.last_error or "")
    assert (await queue.stats("q")).done == 1


async def test_a_job_is_not_delivered_again_while_its_thread_runs(world: World) -> None:
    queue = await world.open(config=QueueConfig(lease=10))
    began, may_end, again = threading.Event(), threading.Event(), threading.Event()
    running: list[int] = []
    most: list[int] = []
    stopped: list[bool] = []

    def handler(delivery: Delivery) -> None:
        running.append(1)
        most.append(len(running))
        if delivery.attempt == 1:
            began.set()
            may_end.wait(20)
            stopped.append(delivery.should_stop)
        running.pop()
        if delivery.attempt == 2:
            again.set()

    await queue.enqueue("q", b"")
    async with queue.worker("q", handler, renew=None, concurrency=4):
        await until(began)
        await world.clock.advance(39)  # the lease, and almost the grace
        assert await queue.stats("q") == counts(claimed=1)
        may_end.set()
        await until(again)
    assert most == [1, 1]
    assert stopped == [True]
    assert await queue.stats("q") == counts(done=1)


async def test_a_cancelled_worker_waits_for_its_threads_only_so_long(
    world: World, queue: Queue
) -> None:
    began, may_end = threading.Event(), threading.Event()

    def handler(delivery: Delivery) -> None:
        began.set()
        may_end.wait(20)

    job_id = (await queue.enqueue("q", b"")).job_id
    running = asyncio.ensure_future(queue.worker("q", handler, cancel_grace=5).run())
    await until(began)
    running.cancel()
    await world.clock.advance(4)
    assert not running.done()
    await world.clock.advance(1)
    await asyncio.wait([running])
    assert running.cancelled()
    job = await read(queue, job_id)
    assert (job.state, job.attempts) == (JobState.PENDING, 0)
    may_end.set()


async def test_a_coroutine_from_a_function_is_named_as_such(queue: Queue) -> None:
    async def work(delivery: Delivery) -> None: ...

    job_id = (await queue.enqueue("q", b"")).job_id
    async with queue.worker("q", lambda delivery: work(delivery)):
        pass
    assert "'async def'" in ((await read(queue, job_id)).last_error or "")


async def test_a_partial_of_an_async_function_is_async(queue: Queue) -> None:
    async def work(option: int, delivery: Delivery) -> Effects:
        return Effects().put("option", b"%d" % option)

    await queue.enqueue("q", b"")
    async with queue.worker("q", functools.partial(work, 7)):
        pass
    assert await queue.kv.get("option") == b"7"


async def test_processes(world: World) -> None:
    """A handler in another process; and one that dies there, which breaks the pool."""
    queue = await world.open(config=NO_BACKOFF)
    parent = {"parent": str(os.getpid())}
    good = (await queue.enqueue("q", b"x", headers=parent)).job_id
    permanent = (await queue.enqueue("q", b"permanent")).job_id
    left = (await queue.enqueue("q", b"exit", max_attempts=1)).job_id
    died = (await queue.enqueue("q", b"die", max_attempts=1)).job_id
    after = (await queue.enqueue("q", b"y", headers=parent, max_attempts=1)).job_id
    made: list[Executor] = []

    def make() -> Executor:
        made.append(processes())
        return made[-1]

    async with queue.worker("q", in_a_process, executor=make, concurrency=1):
        while await queue.kv.get(after) is None:
            await queue.wait_for_completion(after)
    assert len(made) == 2
    assert await queue.kv.get(good) == b"x1"
    assert (await read(queue, permanent)).last_error == "hopeless"
    assert "SystemExit" in ((await read(queue, left)).last_error or "")
    assert "the executor broke" in ((await read(queue, died)).last_error or "")
    assert await queue.stats("q") == counts(done=2, dead=3)


class Fragile(Executor):
    """An executor that breaks when it is told to."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []
        self.is_broken = False

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.is_broken:
            raise BrokenExecutor("it broke before")
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        self.futures.append(future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass


async def test_a_worker_ends_when_the_caller_s_executor_breaks(world: World) -> None:
    queue = await world.open(config=NO_BACKOFF)
    executor = Fragile()
    jobs = [x.job_id for x in await queue.enqueue_many("q", [b"1", b"2", b"3"])]
    worker = queue.worker("q", in_a_process, executor=executor, concurrency=2)
    running = asyncio.ensure_future(worker.run())
    await world.clock.advance(0)
    executor.is_broken = True
    for future in executor.futures:
        future.set_exception(BrokenExecutor("killed"))
    await world.clock.advance(1)
    with pytest.raises(BrokenExecutor, match="a function that makes an executor"):
        await running
    found = [await read(queue, job_id) for job_id in jobs]
    assert [(job.state, job.attempts) for job in found] == [
        (JobState.PENDING, 1),
        (JobState.PENDING, 1),
        (JobState.PENDING, 0),
    ]


async def test_what_an_executor_does_not_take_is_given_back(world: World, queue: Queue) -> None:
    executor = Fragile()
    executor.is_broken = True
    job_id = (await queue.enqueue("q", b"")).job_id
    with pytest.raises(BrokenExecutor):
        async with queue.worker("q", in_a_process, executor=executor):
            await asyncio.Event().wait()
    job = await read(queue, job_id)
    assert (job.state, job.attempts) == (JobState.PENDING, 0)


async def test_an_executor_that_breaks_is_replaced(world: World, queue: Queue) -> None:
    made: list[Fragile] = []

    def make() -> Fragile:
        made.append(Fragile())
        return made[-1]

    await queue.enqueue("q", b"1")
    async with queue.worker("q", in_a_process, executor=make, concurrency=1):
        await world.clock.advance(0)
        made[0].is_broken = True
        made[0].futures[0].set_result(None)
        await queue.enqueue("q", b"2")
        await world.clock.advance(1)
        assert len(made) == 2
        made[1].futures[0].set_result(None)
    assert await queue.stats("q") == counts(done=2)


async def test_executors_that_cannot_be(queue: Queue) -> None:
    with processes() as pool, pytest.raises(InvalidArgument, match="top of a module"):
        queue.worker("q", lambda view: None, executor=pool)
    with pytest.raises(InvalidType, match="not an Executor"):
        await queue.worker("q", in_a_process, executor=lambda: 7).run()  # type: ignore[arg-type,return-value]


async def test_what_ends_within_the_grace_counts(world: World, queue: Queue) -> None:
    began, go = threading.Event(), threading.Event()

    def handler(delivery: Delivery) -> Effects:
        began.set()
        assert go.wait(10)
        return Effects().put("done", b"yes")

    await queue.enqueue("q", b"x")
    worker = queue.worker("q", handler, concurrency=1, drain_timeout=5, cancel_grace=20)
    running = asyncio.ensure_future(worker.run())
    await world.clock.advance(0)
    assert await asyncio.to_thread(began.wait, 10)
    worker.stop()
    await world.clock.advance(6)
    assert not running.done()
    go.set()
    await running
    assert await queue.stats("q") == counts(done=1)
    assert await queue.kv.get("done") == b"yes"
