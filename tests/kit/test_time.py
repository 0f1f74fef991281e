"""Time in a sandbox moves only when the test says so, and nothing is left undone then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from taquba import Delivery, Queue, QueueConfig
from taquba.clock import ManualClock
from taquba.errors import Fenced, InvalidArgument, InvalidState, InvalidType, RunNotFound
from taquba.objectstore import LocalStore, MemoryStore
from taquba.testing import FaultyStore, LatencyStore, Sandbox, StillRunning
from taquba.workflow import (
    BlockingStep,
    Continue,
    Outcome,
    RunState,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)

pytestmark = pytest.mark.anyio

WEEK = timedelta(days=7)


class Steps:
    """A runner that notes when each of its steps begins, in seconds since its sandbox began."""

    def __init__(self, *outcomes: Outcome | Exception | Callable[[Step], Any]) -> None:
        self.outcomes = outcomes
        self.seen: list[tuple[int, int, float]] = []
        self.clock: ManualClock | None = None

    async def run_step(self, step: Step) -> Outcome:
        time = 0.0 if self.clock is None else self.clock.monotonic()
        self.seen.append((step.number, step.attempt, time))
        outcome = self.outcomes[min(len(self.seen), len(self.outcomes)) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        if callable(outcome):
            outcome = await outcome(step)
        return outcome

    def sandbox(self, **options: Any) -> Sandbox:
        sandbox = Sandbox(self, **options)
        self.clock = sandbox.clock
        return sandbox


async def test_a_week_takes_no_time() -> None:
    steps = Steps(Continue(b"remind", after=WEEK), Succeed(b"done"))
    async with steps.sandbox() as sandbox:
        run = await sandbox.runtime.submit(b"", run_id="trial")
        await sandbox.advance(WEEK - timedelta(seconds=1))
        status = await sandbox.runtime.status("trial")
        assert status is not None and status.state is RunState.PENDING
        assert len(steps.seen) == 1

        await sandbox.advance(1)
        end = await sandbox.runtime.wait(run.run_id)
        assert end.outcome.result == b"done"
        assert steps.seen == [(0, 1, 0.0), (1, 1, WEEK.total_seconds())]


async def test_retries_come_after_their_backoff() -> None:
    steps = Steps(OSError("1"), OSError("2"), Succeed())
    config = QueueConfig(jitter=False, backoff_base=60, backoff_max=3600)
    async with steps.sandbox(config=config) as sandbox:
        await sandbox.runtime.submit(b"")
        await sandbox.advance(timedelta(hours=1))
        assert steps.seen == [(0, 1, 0.0), (0, 2, 60.0), (0, 3, 180.0)]


async def test_a_run_that_is_submitted_for_later() -> None:
    steps = Steps(Succeed())
    async with steps.sandbox() as sandbox:
        await sandbox.runtime.submit(b"", run_at=datetime(2026, 1, 2, 8, tzinfo=UTC))
        await sandbox.advance_to(datetime(2026, 1, 2, 7, 59, 59, tzinfo=UTC))
        assert steps.seen == []
        await sandbox.advance_to(datetime(2026, 1, 2, 8, tzinfo=UTC))
        assert [time for *_, time in steps.seen] == [32 * 3600.0]


async def test_many_due_times_in_one_advance_come_in_order() -> None:
    times: list[tuple[bytes, float]] = []

    async def handler(delivery: Delivery) -> None:
        times.append((delivery.payload, sandbox.clock.monotonic()))
        if delivery.payload == b"2":  # what follows from it is due in the same advance
            delivery.effects.enqueue("work", b"2.5", delay=0.5)

    async with Sandbox(workers={"work": handler}) as sandbox:
        for delay in (3, 1, 2, 500_000, 2.25):
            await sandbox.queue.enqueue("work", b"%g" % delay, delay=delay)
        await sandbox.advance(timedelta(days=10))
    assert times == [
        (b"1", 1.0),
        (b"2", 2.0),
        (b"2.25", 2.25),
        (b"2.5", 2.5),
        (b"3", 3.0),
        (b"500000", 500_000.0),
    ]


async def test_advancing_by_nothing_lets_happen_what_can_happen() -> None:
    steps = Steps(Continue(b"a"), Continue(b"b"), Succeed(b"c"))
    async with steps.sandbox() as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        assert steps.seen == []
        await sandbox.advance(0)
        assert [number for number, *_ in steps.seen] == [0, 1, 2]
        assert await sandbox.runtime.unfinished() == 0
        assert sandbox.clock.monotonic() == 0


@pytest.mark.parametrize(
    ("by", "error"),
    [
        (-1, InvalidArgument),
        (timedelta(seconds=-1), InvalidArgument),
        (float("nan"), InvalidArgument),
        (float("inf"), InvalidArgument),
        (None, InvalidType),
        ("7 days", InvalidType),
        (True, InvalidType),
        (datetime(2026, 1, 2, tzinfo=UTC), InvalidType),
    ],
)
async def test_what_is_no_duration_is_refused(by: Any, error: type[Exception]) -> None:
    async with Sandbox() as sandbox:
        with pytest.raises(error, match="by is"):
            await sandbox.advance(by)
        assert sandbox.clock.monotonic() == 0


@pytest.mark.parametrize(
    ("when", "error"),
    [
        (datetime(2026, 2, 1), InvalidArgument),  # noqa: DTZ001
        (datetime(2025, 2, 1, tzinfo=UTC), InvalidArgument),
        (5.0, InvalidType),
        (None, InvalidType),
    ],
)
async def test_what_is_no_moment_to_come_is_refused(when: Any, error: type[Exception]) -> None:
    async with Sandbox() as sandbox:
        with pytest.raises(error, match="when is"):
            await sandbox.advance_to(when)


# -- advancing while time is advanced ----------------------------------------------------------


async def test_a_handler_may_advance_the_clock_itself() -> None:
    times: list[tuple[bytes, float]] = []

    async def handler(delivery: Delivery) -> None:
        if delivery.payload == b"slow":
            await sandbox.clock.advance(10)
        times.append((delivery.payload, sandbox.clock.monotonic()))

    async with Sandbox(workers={"work": handler}) as sandbox:
        await sandbox.queue.enqueue("work", b"slow", delay=1)
        for delay in (5, 12):
            await sandbox.queue.enqueue("work", b"%d" % delay, delay=delay)
        await sandbox.advance(20)
        assert times == [(b"5", 5.0), (b"slow", 11.0), (b"12", 12.0)]
        assert sandbox.clock.monotonic() == 20


async def test_a_handler_that_advances_beyond_the_end_is_not_undone() -> None:
    async def handler(delivery: Delivery) -> None:
        await sandbox.clock.advance(100)

    async with Sandbox(workers={"work": handler}) as sandbox:
        await sandbox.queue.enqueue("work", b"", delay=1)
        await sandbox.advance(20)
        assert sandbox.clock.monotonic() == 101


async def test_advances_at_the_same_time() -> None:
    async with Sandbox() as sandbox:
        await asyncio.gather(sandbox.advance(3), sandbox.advance(5), sandbox.advance(1))
        assert sandbox.clock.monotonic() == 5


async def test_an_advance_that_is_cancelled_holds_up_no_other() -> None:
    async with Sandbox() as sandbox:
        first, second = (asyncio.ensure_future(sandbox.advance(9)) for _ in range(2))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([first, second])
        assert second.cancelled()
        assert sandbox.clock.monotonic() == 9
        await sandbox.advance(1)
        assert sandbox.clock.monotonic() == 10


# -- what the event loop does not see ----------------------------------------------------------


async def test_steps_in_threads_are_waited_for() -> None:
    seen: list[tuple[int, int]] = []

    def runner(step: BlockingStep) -> Outcome:
        threading.Event().wait(0.03)
        seen.append((step.number, step.memo.memoized("n", lambda: step.number)))
        return Continue(b"", after=60) if step.number < 2 else Succeed()

    async with Sandbox(runner) as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        await sandbox.advance(600)
        assert seen == [(0, 0), (1, 1), (2, 2)]
        assert await sandbox.runtime.outcome("r") is not None


async def test_handlers_in_threads_are_waited_for() -> None:
    seen: list[bytes] = []

    def handler(delivery: Delivery) -> None:
        threading.Event().wait(0.03)
        seen.append(delivery.payload)

    async with Sandbox(workers={"work": handler}) as sandbox:
        for number in range(3):
            await sandbox.queue.enqueue("work", b"%d" % number)
        await sandbox.run_until_idle()
        assert sorted(seen) == [b"0", b"1", b"2"]
        assert (await sandbox.queue.stats("work")).claimed == 0


def blocking(seconds: float = 0.03) -> bool:
    threading.Event().wait(seconds)
    return True


async def in_asyncio() -> bool:
    return await asyncio.to_thread(blocking)


async def in_an_executor() -> bool:
    return await asyncio.get_running_loop().run_in_executor(None, blocking)


async def in_anyio() -> bool:
    return await anyio.to_thread.run_sync(blocking)


async def in_several() -> bool:
    loop = asyncio.get_running_loop()
    return all(await asyncio.gather(*(loop.run_in_executor(None, blocking) for _ in range(3))))


async def in_a_task_of_its_own() -> bool:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(asyncio.to_thread(blocking))
    return task.result()


async def within_a_timeout() -> bool:
    return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(None, blocking), 30)


async def by_a_real_sleep() -> bool:
    await asyncio.sleep(0.03)
    return True


async def through_a_generator() -> bool:
    async def parts() -> AsyncIterator[bool]:
        await asyncio.sleep(0.03)
        yield True

    return [part async for part in parts()] == [True]


async def through_a_socket() -> bool:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.to_thread(blocking)
        writer.write(await reader.readline())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"hello\n")
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
    return line == b"hello\n"


async def through_a_process() -> bool:
    process = await asyncio.create_subprocess_exec("sleep", "0.03")
    return await process.wait() == 0


@pytest.mark.parametrize(
    "wait",
    [
        in_asyncio,
        in_an_executor,
        in_anyio,
        in_several,
        in_a_task_of_its_own,
        within_a_timeout,
        by_a_real_sleep,
        through_a_generator,
        through_a_socket,
        through_a_process,
    ],
)
async def test_async_steps_that_wait_outside_are_waited_for(wait: Callable[[], Any]) -> None:
    async def runner(step: Step) -> Outcome:
        return Succeed(b"yes" if await wait() else b"no")

    async with Sandbox(runner) as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        await sandbox.advance(0)
        outcome = await sandbox.runtime.outcome("r")
        assert outcome is not None and outcome.result == b"yes"


async def test_a_store_on_the_disk_is_waited_for(tmp_path: Any) -> None:
    steps = Steps(Continue(b"a", after=60), Succeed(b"c"))
    async with steps.sandbox(store=LocalStore(tmp_path)) as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        await sandbox.advance(60)
        assert await sandbox.runtime.unfinished() == 0


async def test_what_the_test_asks_of_a_store_on_the_disk_is_waited_for(tmp_path: Any) -> None:
    async with Sandbox(store=LocalStore(tmp_path)) as sandbox:
        putting = asyncio.ensure_future(sandbox.queue.kv.put("a", b"1"))
        await sandbox.advance(0)
        assert putting.done()


async def test_a_store_that_is_slow_by_the_test_clock() -> None:
    steps, clock = Steps(Continue(b"a"), Succeed(b"c")), ManualClock()
    store = LatencyStore(MemoryStore(), 0.25, clock=clock)
    async with steps.sandbox(store=store, clock=clock) as sandbox:
        submitting = asyncio.ensure_future(sandbox.runtime.submit(b"", run_id="r"))
        await sandbox.advance(5)
        assert submitting.done()
        assert await sandbox.runtime.unfinished() == 0


# -- what does not end -------------------------------------------------------------------------


async def test_a_step_that_waits_for_the_test() -> None:
    gate = asyncio.Event()

    async def waits(step: Step) -> Outcome:
        await gate.wait()
        return Succeed()

    async with Steps(waits).sandbox() as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        await sandbox.advance(0)  # which does not hang
        with pytest.raises(StillRunning, match=r"step 0 of run 'r' \(attempt 1\) at test_time.py"):
            await sandbox.run_until_idle()
        gate.set()
        await sandbox.run_until_idle()
        assert await sandbox.runtime.unfinished() == 0


async def test_a_step_that_never_ends_loses_its_lease() -> None:
    async def hangs(step: Step) -> Outcome:
        await asyncio.Event().wait()
        return Succeed()

    steps = Steps(hangs, Succeed())
    config = QueueConfig(lease=30, backoff_base=0)
    async with steps.sandbox(config=config, runtime_options={"renew": None}) as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        await sandbox.advance(29)
        assert len(steps.seen) == 1
        await sandbox.advance(1)
        assert [time for *_, time in steps.seen] == [0.0, 30.0]
        assert await sandbox.runtime.unfinished() == 0


async def test_a_step_that_keeps_the_loop_busy_is_named() -> None:
    async def spins(step: Step) -> Outcome:
        while not stop:
            await asyncio.sleep(0)
        return Succeed()

    stop: list[bool] = []
    async with Steps(spins).sandbox() as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        with pytest.raises(StillRunning, match=r"step 0 of run 'r'.*kept busy"):
            await sandbox.advance(1)
        stop.append(True)


async def test_a_thread_that_never_ends_is_named() -> None:
    end = threading.Event()

    def runner(step: BlockingStep) -> Outcome:
        end.wait()
        return Succeed()

    async with Sandbox(runner, patience=0.05) as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        with pytest.raises(StillRunning, match=r"step 0 of run 'r' \(attempt 1\) in a thread"):
            await sandbox.advance(1)
        end.set()
        await sandbox.run_until_idle()
        assert await sandbox.runtime.unfinished() == 0


async def test_threads_need_not_be_waited_for() -> None:
    end = threading.Event()

    def handler(delivery: Delivery) -> None:
        end.wait()

    async with Sandbox(workers={"work": handler}, patience=0) as sandbox:
        await sandbox.queue.enqueue("work", b"")
        await sandbox.advance(100)
        assert (await sandbox.queue.stats("work")).claimed == 1
        end.set()


async def test_a_long_history_is_no_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What gets something done may keep the event loop busy for long."""
    monkeypatch.setattr("taquba.clock._MOST_ROUNDS", 200)
    steps = Steps(*[Continue(b"")] * 200, Succeed())
    async with steps.sandbox() as sandbox:
        await sandbox.runtime.submit(b"")
        await sandbox.run_until_idle()
        assert await sandbox.runtime.unfinished() == 0


# -- waiting for the end of a run --------------------------------------------------------------


async def test_waiting_for_a_run_moves_time_to_its_end_and_no_further() -> None:
    steps = Steps(Continue(b"", after=60), OSError("again"), Succeed(b"end"))
    async with steps.sandbox() as sandbox:
        run = await sandbox.runtime.submit(b"")
        end = await sandbox.wait(run.run_id)
        assert end.termination.status is TerminalStatus.SUCCEEDED
        assert sandbox.clock.monotonic() == 61


async def test_waiting_for_a_run_that_does_not_end() -> None:
    steps = Steps(Continue(b"", after=WEEK), Succeed())
    async with steps.sandbox() as sandbox:
        run = await sandbox.runtime.submit(b"", run_id="r")
        with pytest.raises(StillRunning, match=r"within 60 s.*pending, in step 1.*within=…"):
            await sandbox.wait(run.run_id, within=60)
        assert sandbox.clock.monotonic() == 60
        await sandbox.wait(run.run_id, within=WEEK)
        with pytest.raises(RunNotFound):
            await sandbox.wait("other")


# -- a sandbox and its parts -------------------------------------------------------------------


async def test_a_queue_that_was_closed() -> None:
    async with Sandbox() as sandbox:
        await sandbox.queue.close()
        await sandbox.advance(WEEK)
        assert sandbox.clock.monotonic() == WEEK.total_seconds()


async def test_what_works_beside() -> None:
    seen: list[bytes] = []

    async def handler(delivery: Delivery) -> None:
        seen.append(delivery.payload)

    async def runner(step: Step) -> Outcome:
        step.effects.enqueue("b", step.payload)
        return Succeed()

    async with Sandbox(
        beside=[
            lambda queue: queue.worker(["a", "b"], handler, concurrency=1),
            lambda queue: WorkflowRuntime(queue, runner, queue_name="others"),
        ]
    ) as sandbox:
        await sandbox.queue.enqueue("a", b"1")
        await sandbox.run_until_idle()
        await sandbox.runtime.submit(b"2")
        await sandbox.run_until_idle()
        assert seen == [b"1", b"2"]


async def test_a_sandbox_that_was_taken_over_says_so() -> None:
    with pytest.raises(Fenced):
        async with Sandbox(Steps(Succeed())) as sandbox:
            async with Queue.open(sandbox.store, clock=sandbox.clock):
                with pytest.raises(Fenced):
                    await sandbox.queue.kv.put("a", b"1")
                with pytest.raises(Fenced):
                    await sandbox.advance(0)
                with pytest.raises(Fenced):
                    _ = sandbox.queue


async def test_two_sandboxes_on_one_store_and_clock() -> None:
    first = Sandbox(Steps(Continue(b"", after=60), Succeed()))
    async with first:
        await first.runtime.submit(b"", run_id="r")
        await first.run_until_idle()
    async with Sandbox(Steps(Succeed(b"2")), store=first.store, clock=first.clock) as second:
        end = await second.wait("r")
        assert end.outcome.result == b"2"
        assert second.clock.monotonic() == 60


async def test_what_runs_at_the_end_is_given_up_at_once() -> None:
    async def hangs(step: Step) -> Outcome:
        await asyncio.Event().wait()
        return Succeed()

    before = asyncio.all_tasks()
    async with Steps(hangs).sandbox() as sandbox:
        await sandbox.runtime.submit(b"")
        await sandbox.advance(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    assert asyncio.get_running_loop().get_task_factory() is None


async def test_stopping_finishes_what_is_under_way() -> None:
    async def slow(step: Step) -> Outcome:
        await sandbox.clock.sleep(10)
        return Succeed(b"whole")

    async with Steps(slow).sandbox() as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        await sandbox.advance(0)
        with pytest.raises(StillRunning, match="step 0 of run 'r'"):
            await sandbox.stop(within=5)
        await sandbox.stop()
        assert sandbox.clock.monotonic() == 10
        with pytest.raises(InvalidState, match="stopped"):
            await sandbox.stop()
        await sandbox.reopen()
        assert (await sandbox.runtime.wait("r")).outcome.result == b"whole"


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"clock": object()}, InvalidType, "clock"),
        ({"workers": ["q"]}, InvalidType, "workers"),
        ({"queue_options": {"clock": 1}}, InvalidArgument, "queue_options has clock"),
        ({"runtime_options": 7}, InvalidType, "runtime_options"),
        ({"patience": -1}, InvalidArgument, "patience"),
    ],
)
async def test_what_no_sandbox_can_be_made_of(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Sandbox(**options)


async def test_a_part_that_cannot_be_made_is_told() -> None:
    with pytest.raises(InvalidType, match="runner"):
        async with Sandbox(7):  # type: ignore[arg-type]
            pass
    assert asyncio.get_running_loop().get_task_factory() is None


async def test_a_sandbox_is_used_once_and_entered_first() -> None:
    sandbox = Sandbox()
    with pytest.raises(InvalidState, match="not entered"):
        _ = sandbox.queue
    async with sandbox:
        with pytest.raises(InvalidState, match="no runtime"):
            _ = sandbox.runtime
    with pytest.raises(InvalidState, match="used already"):
        async with sandbox:
            pass


async def test_a_store_that_does_not_answer() -> None:
    store = FaultyStore(MemoryStore())
    store.hold("create", times=float("inf"))
    with pytest.raises(StillRunning, match="does the store answer"):
        async with Sandbox(store=store):
            pass
    store.heal()
