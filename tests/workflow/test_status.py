"""status, outcome and wait."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taquba import ManualClock, Queue, TransientError
from taquba.errors import Closed, InconsistentRunState, RunNotFound
from taquba.objectstore import MemoryStore
from taquba.workflow import (
    Continue,
    ErrorKind,
    Fail,
    Outcome,
    RunState,
    RunStatus,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)

from .harness import Process, bed

pytestmark = pytest.mark.anyio


async def done(step: Step) -> Outcome:
    return Succeed(step.payload)


async def test_an_unknown_run() -> None:
    """STAT-01, STAT-14"""
    async with bed(done) as t:
        assert await t.runtime.status("r") is None
        assert await t.runtime.outcome("r") is None
        with pytest.raises(RunNotFound, match="'r'"):
            await t.runtime.wait("r")
        with pytest.raises(RunNotFound):
            await t.runtime.wait("r", timeout=0)


async def test_pending_running_terminated() -> None:
    """STAT-02, STAT-03, STAT-06"""
    go = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        await go.wait()
        return Fail("no")

    store, clock = MemoryStore(), ManualClock()
    async with bed(None, store=store, clock=clock) as t:
        await t.runtime.submit(b"", run_id="r")
        assert await t.runtime.status("r") == RunStatus("r", RunState.PENDING, 0)
        assert await t.runtime.outcome("r") is None
    async with bed(runner, store=store, clock=clock) as t:
        await t.settle()
        assert await t.runtime.status("r") == RunStatus("r", RunState.RUNNING, 0)
        assert await t.runtime.outcome("r") is None
        go.set()
        end = await t.end("r")
        status = await t.runtime.status("r")
        assert status == RunStatus("r", RunState.TERMINATED, 0, end.termination)
        assert end.termination.status is TerminalStatus.FAILED
        assert (end.termination.error, end.termination.error_kind) == ("no", ErrorKind.PERMANENT)
        assert end.termination.terminated_at.timestamp() * 1000 == t.clock.now_ms()
        assert await t.runtime.outcome("r") == end.outcome


async def test_a_run_in_backoff_is_pending() -> None:
    """STAT-04"""

    async def runner(step: Step) -> Outcome:
        if step.attempt < 3:
            raise TransientError("busy")
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        due = datetime.fromtimestamp(t.clock.now_ms() / 1000 + 1, UTC)
        assert await t.runtime.status("r") == RunStatus("r", RunState.PENDING, 0, due=due)


async def test_cancelling_until_the_step_has_ended() -> None:
    """STAT-05, also while nobody is there to end it."""
    go = asyncio.Event()
    began = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        began.set()
        await go.wait()
        return Continue()

    store, clock = MemoryStore(), ManualClock()
    process = Process(store, runner, clock)
    assert await process.opened()
    await process.runtime.submit(b"", run_id="r")
    await began.wait()
    assert await process.runtime.cancel("r")
    assert await process.runtime.status("r") == RunStatus("r", RunState.CANCELLING, 0)
    await process.kill()
    async with bed(None, store=store, clock=clock) as t:
        assert await t.runtime.status("r") == RunStatus("r", RunState.CANCELLING, 0)
    async with bed(runner, store=store, clock=clock) as t:
        await t.settle()
        status = await t.runtime.status("r")
        assert status is not None and status.termination is not None
        assert status.termination.status is TerminalStatus.CANCELLED


async def test_an_ended_run_is_remembered() -> None:
    """STAT-07, STAT-16"""
    store, clock = MemoryStore(), ManualClock()
    async with bed(done, store=store, clock=clock) as t:
        await t.runtime.submit(b"x", run_id="r")
        end = await t.end("r")
        await t.clock.advance(timedelta(days=400))
        assert await t.runtime.wait("r") == end
    async with bed(None, store=store, clock=clock) as t:
        assert await t.runtime.wait("r") == end
        assert await t.runtime.wait("r", timeout=0) == end
        assert await t.runtime.outcome("r") == end.outcome


async def test_a_job_removed_behind_the_runtime_s_back() -> None:
    """STAT-08"""
    async with bed(None) as t:
        run = await t.runtime.submit(b"", run_id="r")
        await t.queue.cancel(run.job_id)
        with pytest.raises(InconsistentRunState, match="'r'"):
            await t.runtime.status("r")
        with pytest.raises(InconsistentRunState):
            await t.runtime.wait("r")
        assert await t.runtime.outcome("r") is None


@pytest.mark.parametrize("how", ["cancelled", "swept"])
async def test_a_run_whose_job_is_gone_has_failed_when_a_runtime_is_entered(how: str) -> None:
    """STAT-08, T19: its id becomes free again."""
    store, clock = MemoryStore(), ManualClock()
    async with bed(None, store=store, clock=clock) as t:
        run = await t.runtime.submit(b"", run_id="r", max_attempts=1)
        if how == "cancelled":
            await t.queue.cancel(run.job_id)
    if how == "swept":  # it died, and was kept for a week, while nobody ran a runtime
        async with Queue.open(store, clock=clock) as queue:
            assert await queue.claim("workflow-steps") is not None
            await clock.advance(timedelta(days=8))
            assert await queue.get_job(run.job_id) is None
    async with bed(done, store=store, clock=clock) as t:
        end = await t.runtime.wait("r", timeout=0)
        assert end.termination.status is TerminalStatus.FAILED
        assert end.termination.error is not None and "gone" in end.termination.error
        assert end.termination.error_kind is None
        assert (await t.runtime.submit(b"again", run_id="r")).created
        assert (await t.end("r")).outcome.result == b"again"


async def test_status_never_raises_while_a_run_advances() -> None:
    """STAT-09, STAT-10: one read of one state."""

    async def runner(step: Step) -> Outcome:
        await asyncio.sleep(0)
        return Continue() if step.number < 50 else Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        last = 0
        while True:
            await asyncio.sleep(0)
            status = await t.runtime.status("r")
            assert status is not None
            assert status.current_step >= last
            last = status.current_step
            if status.termination is not None:
                break
        assert last == 50


async def test_a_fresh_runtime_reports_the_same() -> None:
    """STAT-11"""
    store, clock = MemoryStore(), ManualClock()

    async def runner(step: Step) -> Outcome:
        return Continue(after=3600)

    async with bed(runner, store=store, clock=clock) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        status = await t.runtime.status("r")
    async with bed(None, store=store, clock=clock) as t:
        due = datetime.fromtimestamp(clock.now_ms() / 1000 + 3600, UTC)
        expected = RunStatus("r", RunState.PENDING, 1, due=due)
        assert await t.runtime.status("r") == status == expected


async def test_waiting_from_the_start() -> None:
    """STAT-15, STAT-18"""

    async def runner(step: Step) -> Outcome:
        return Continue(after=5) if step.number == 0 else Succeed(b"out")

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        waits = [asyncio.ensure_future(t.runtime.wait("r")) for _ in range(5)]
        waits[1].cancel()
        await t.clock.advance(5)
        ends = [wait.result() for wait in waits if not wait.cancelled()]
        assert len(ends) == 4
        assert all(end == ends[0] for end in ends)
        assert (ends[0].termination.final_step, ends[0].outcome.result) == (1, b"out")


@pytest.mark.parametrize("timeout", [0, 2.5, timedelta(seconds=2.5)])
async def test_waiting_for_a_while(timeout: Any) -> None:
    """STAT-17"""
    async with bed(None) as t:
        await t.runtime.submit(b"", run_id="r")
        waiting = asyncio.ensure_future(t.runtime.wait("r", timeout))
        await t.clock.advance(2.4)
        assert waiting.done() == (timeout == 0)
        await t.clock.advance(0.1)
        with pytest.raises(TimeoutError, match="'r'"):
            await waiting
        assert await t.runtime.status("r") == RunStatus("r", RunState.PENDING, 0)
        assert t.clock.sleeping == 0


async def test_a_wait_within_its_time_leaves_no_timer() -> None:
    """STAT-17"""

    async def runner(step: Step) -> Outcome:
        await t.clock.sleep(3)
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        waiting = asyncio.ensure_future(t.runtime.wait("r", timeout=100))
        await t.clock.advance(3)
        assert waiting.done()
        assert t.clock.sleeping == 0


async def test_a_cancelled_wait_does_not_touch_the_run() -> None:
    """STAT-17"""
    go = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        await go.wait()
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        for timeout in (None, 100):
            waiting = asyncio.ensure_future(t.runtime.wait("r", timeout))
            await t.settle()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert waiting.cancelled()
        go.set()
        assert (await t.end("r")).termination.status is TerminalStatus.SUCCEEDED


async def test_a_new_life_hides_the_old_one_s_outcome() -> None:
    """STAT-20, STAT-21"""
    store, clock = MemoryStore(), ManualClock()
    async with bed(done, store=store, clock=clock) as t:
        await t.runtime.submit(b"old", run_id="r")
        await t.end("r")
    async with bed(None, store=store, clock=clock) as t:
        await t.runtime.submit(b"new", run_id="r")
        assert await t.runtime.outcome("r") is None
        assert await t.runtime.status("r") == RunStatus("r", RunState.PENDING, 0)


async def test_whoever_waited_for_the_old_life_is_told_of_the_old_life() -> None:
    """STAT-21: the new life begins in the same moment in which the old one ends."""

    async def runner(step: Step) -> Outcome:
        if step.payload == b"chain":
            tasks.append(asyncio.ensure_future(resubmit()))
        return Succeed(step.payload)

    tasks: list[asyncio.Future[None]] = []

    async def resubmit() -> None:
        while True:
            await asyncio.sleep(0)
            status = await t.runtime.status("r")
            if status is not None and status.termination is not None:
                break
        await t.runtime.submit(b"new", run_id="r")

    async with bed(runner) as t:
        await t.runtime.submit(b"chain", run_id="r")
        assert (await t.runtime.wait("r")).outcome.result == b"chain"
        await asyncio.gather(*tasks)
        assert (await t.end("r")).outcome.result == b"new"


async def test_what_wait_reports_is_durable() -> None:
    """Reads tell the truth: an end that is not stored yet is not reported."""
    go = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        await go.wait()
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        waiting = asyncio.ensure_future(t.runtime.wait("r"))
        await t.settle()
        t.store.hold()
        go.set()
        await t.settle()
        asking = [
            asyncio.ensure_future(t.runtime.status("r")),
            asyncio.ensure_future(t.runtime.outcome("r")),
            asyncio.ensure_future(t.runtime.wait("r")),
            asyncio.ensure_future(t.runtime.unfinished()),
        ]
        await t.clock.advance(5)
        assert not waiting.done()
        assert not any(task.done() for task in asking)
        t.store.release()
        await t.clock.advance(5)
        assert waiting.done()
        assert all(task.done() for task in asking)


async def test_waiting_at_a_runtime_that_runs_nothing() -> None:
    """13.4: several runtimes of one name in one process know of each other's ends."""
    async with bed(done) as t:
        async with WorkflowRuntime(t.queue, None) as looking:
            waiting = [
                asyncio.ensure_future(run.wait((await looking.submit(b"%d" % n)).run_id))
                for n, run in enumerate([looking, t.runtime, looking])
            ]
            await t.settle()
            assert [task.done() for task in waiting] == [True] * 3
            assert [task.result().outcome.result for task in waiting] == [b"0", b"1", b"2"]


async def test_waiters_of_a_runtime_that_is_left() -> None:
    """13.2: a waiter is told that nobody will tell it any more."""
    store, clock = MemoryStore(), ManualClock()
    process = Process(store, None, clock)
    assert await process.opened()
    runtime = process.runtime
    await runtime.submit(b"", run_id="r")
    waits = [asyncio.ensure_future(runtime.wait("r", timeout)) for timeout in (None, 1000)]
    await clock.advance(0)
    await process.leave()
    for wait in waits:
        with pytest.raises(Closed, match="run is safe"):
            await wait
    with pytest.raises(Closed):
        await runtime.wait("r")


async def test_looking_after_the_block() -> None:
    """What has ended can still be asked for, while the queue is open."""
    async with bed(None) as t:
        async with WorkflowRuntime(t.queue, done, queue_name="other") as runtime:
            await runtime.submit(b"x", run_id="r")
            end = await runtime.wait("r")
        assert await runtime.wait("r") == end
        assert await runtime.outcome("r") == end.outcome
        status = await runtime.status("r")
        assert status is not None and status.termination == end.termination
