"""Concurrency, order, shutdown and restart."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from taquba import JobState, ManualClock, Queue, QueueConfig
from taquba.errors import Closed
from taquba.objectstore import MemoryStore
from taquba.workflow import (
    BlockingStep,
    Continue,
    Outcome,
    RunState,
    RunStatus,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)

from .harness import GateStore, Process, bed, settle

pytestmark = pytest.mark.anyio

STEPS = "workflow-steps"


class Gated:
    """A runner whose steps wait for a word, and that notes what it does."""

    def __init__(self, last: int = 0) -> None:
        self.last = last
        self.started: list[tuple[str, int, int]] = []
        self.finished: list[tuple[str, int, int]] = []
        self.running = 0
        self.most = 0
        self.go = asyncio.Event()

    async def run_step(self, step: Step) -> Outcome:
        me = (step.run_id, step.number, step.attempt)
        self.started.append(me)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.go.wait()
        finally:
            self.running -= 1
        self.finished.append(me)
        return Continue() if step.number < self.last else Succeed()


# -- concurrency and order -------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 3, 16])
async def test_no_more_steps_at_once_than_allowed(concurrency: int) -> None:
    """WRK-03"""
    runner = Gated(last=2)
    async with bed(runner, concurrency=concurrency) as t:
        for number in range(40):
            await t.runtime.submit(b"", run_id=f"r{number}")
        await t.settle()
        assert runner.running == concurrency
        runner.go.set()
        await t.settle()
        assert await t.runtime.unfinished() == 0
        assert runner.most == concurrency
        assert len(runner.started) == 120


async def test_the_default_is_16() -> None:
    """0.3"""
    runner = Gated()
    async with bed(runner) as t:
        for _ in range(20):
            await t.runtime.submit(b"")
        await t.settle()
        assert runner.running == 16
        runner.go.set()


async def test_with_one_slot_runs_take_turns_in_order() -> None:
    """13.2: steps of different runs interleave, first come, first served."""
    order: list[tuple[str, int]] = []

    async def runner(step: Step) -> Outcome:
        order.append((step.run_id, step.number))
        return Continue() if step.number < 2 else Succeed()

    store, clock = MemoryStore(), ManualClock()
    async with bed(None, store=store, clock=clock) as t:
        for name in "abc":
            await t.runtime.submit(b"", run_id=name)
    async with bed(runner, store=store, clock=clock, concurrency=1) as t:
        await t.settle()
    assert order == [(name, number) for number in range(3) for name in "abc"]


async def test_priority_holds_for_every_step() -> None:
    """SUB-30: an urgent run overtakes at each step."""
    order: list[str] = []

    async def runner(step: Step) -> Outcome:
        order.append(step.run_id)
        return Continue() if step.number < 2 else Succeed()

    store, clock = MemoryStore(), ManualClock()
    async with bed(None, store=store, clock=clock) as t:
        await t.runtime.submit(b"", run_id="slow", priority=10_000)
        await t.runtime.submit(b"", run_id="usual")
        await t.runtime.submit(b"", run_id="urgent", priority=100)
    async with bed(runner, store=store, clock=clock, concurrency=1) as t:
        await t.settle()
    assert order == ["urgent"] * 3 + ["usual"] * 3 + ["slow"] * 3


async def test_an_idle_worker_starts_at_once() -> None:
    """WRK-08"""
    runner = Gated()
    async with bed(runner) as t:
        await t.clock.advance(timedelta(hours=5))
        before = t.clock.monotonic()
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        assert runner.started == [("r", 0, 1)]
        assert t.clock.monotonic() == before
        runner.go.set()


async def test_a_worker_may_claim_what_is_not_stored_yet_but_starts_it_when_it_is() -> None:
    """Design 6: wake on local commit."""
    runner = Gated()
    async with bed(runner) as t:
        t.store.hold()
        submitting = asyncio.ensure_future(t.runtime.submit(b"", run_id="r"))
        await t.clock.advance(1)
        assert runner.started == []
        t.store.release()
        await t.clock.advance(1)
        assert submitting.done()
        assert runner.started == [("r", 0, 1)]
        runner.go.set()


async def test_two_workers_of_one_name() -> None:
    """WRK-05"""
    calls: list[tuple[str, int]] = []

    async def runner(step: Step) -> Outcome:
        calls.append((step.run_id, step.number))
        await asyncio.sleep(0)
        return Continue() if step.number < 3 else Succeed(step.run_id.encode())

    async with bed(runner, concurrency=2) as t:
        async with WorkflowRuntime(t.queue, runner, concurrency=2) as other:
            for number in range(10):
                await (t.runtime if number % 2 else other).submit(b"", run_id=f"r{number}")
            for number in range(10):
                end = await (other if number % 2 else t.runtime).wait(f"r{number}")
                assert end.outcome.result == f"r{number}".encode()
        # The one that is still there goes on, and hears of steps that die.
        await t.runtime.submit(b"", run_id="late")
        assert (await t.end("late")).outcome.result == b"late"
    assert len(calls) == len(set(calls)) == 44


async def test_leaving_one_of_two_runtimes_keeps_the_other_informed() -> None:
    """WRK-05, T18: the hook for steps that die stays while anybody is there."""

    async def hangs(step: Step) -> Outcome:
        await asyncio.Event().wait()
        return Succeed()

    async with bed(hangs, renew=None) as t:
        async with WorkflowRuntime(t.queue, None):
            pass
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        assert (await t.end("r")).termination.error == "lease expired"


# -- leaving normally ------------------------------------------------------------------------


async def test_leaving_finishes_what_is_under_way() -> None:
    """WRK-01"""
    store, clock = MemoryStore(), ManualClock()
    runner = Gated(last=2)
    process = Process(store, runner, clock)
    assert await process.opened()
    await process.runtime.submit(b"", run_id="r")
    await settle(clock)
    leaving = asyncio.ensure_future(process.leave())
    await clock.advance(20)
    assert not leaving.done(), "it waits for the step, however long"
    runner.go.set()
    await clock.advance(0)
    await leaving
    assert runner.finished == [("r", 0, 1)]
    async with bed(runner, store=store, clock=clock) as t:
        await t.end("r")
    assert runner.started == [("r", 0, 1), ("r", 1, 1), ("r", 2, 1)]


async def test_leaving_at_once() -> None:
    """WRK-10"""
    for runner in (Gated(), None):
        async with bed(runner) as t:
            before = t.clock.monotonic()
        assert t.clock.monotonic() == before


async def test_leaving_takes_no_further_steps() -> None:
    """WRK-01: neither the successor, nor a step that waits for a slot."""
    store, clock = MemoryStore(), ManualClock()
    runner = Gated(last=1)
    process = Process(store, runner, clock, concurrency=1)
    assert await process.opened()
    await process.runtime.submit(b"", run_id="a")
    await process.runtime.submit(b"", run_id="b")
    await settle(clock)
    leaving = asyncio.ensure_future(process.leave())
    await settle(clock)
    runner.go.set()
    await settle(clock)
    await leaving
    assert runner.started == [("a", 0, 1)]
    async with bed(None, store=store, clock=clock) as t:
        assert await t.runtime.status("a") == RunStatus("a", RunState.PENDING, 1)
        assert await t.runtime.status("b") == RunStatus("b", RunState.PENDING, 0)


async def test_leaving_does_not_return_before_the_last_settlement_is_durable() -> None:
    """WRK-01"""
    store, clock = MemoryStore(), ManualClock()
    runner = Gated()
    process = Process(store, runner, clock)
    assert await process.opened()
    await process.runtime.submit(b"", run_id="r")
    await settle(clock)
    process.store.hold()
    leaving = asyncio.ensure_future(process.leave())
    runner.go.set()
    await clock.advance(3)
    assert not leaving.done()
    process.store.release()
    await clock.advance(3)
    await leaving
    async with bed(None, store=store, clock=clock) as t:
        assert (await t.runtime.wait("r")).termination.status is TerminalStatus.SUCCEEDED


@pytest.mark.parametrize("timeout", [0, 10, timedelta(seconds=10)])
async def test_leaving_within_a_time(timeout: Any) -> None:
    """drain_timeout: then steps are cancelled and given back, and the attempt does not count."""
    store, clock = MemoryStore(), ManualClock()
    runner = Gated()
    process = Process(store, runner, clock, drain_timeout=timeout)
    assert await process.opened()
    await process.runtime.submit(b"", run_id="r", max_attempts=1)
    await settle(clock)
    waiting = asyncio.ensure_future(process.runtime.wait("r"))
    leaving = asyncio.ensure_future(process.leave())
    await clock.advance(9.9)
    assert leaving.done() == (timeout == 0)
    await clock.advance(0.1)
    await leaving
    with pytest.raises(Closed):
        await waiting
    assert (runner.running, runner.finished) == (0, [])
    runner.go.set()
    async with bed(runner, store=store, clock=clock) as t:
        assert (await t.end("r")).termination.status is TerminalStatus.SUCCEEDED
    assert runner.started == [("r", 0, 1), ("r", 0, 1)]


async def test_a_step_that_is_cancelled_at_the_end_may_clean_up() -> None:
    store, clock = MemoryStore(), ManualClock()
    cleaned: list[int] = []

    async def runner(step: Step) -> Outcome:
        try:
            await asyncio.Event().wait()
        finally:
            await clock.sleep(2)
            cleaned.append(step.attempt)
        return Succeed()

    process = Process(store, runner, clock, drain_timeout=10)
    assert await process.opened()
    await process.runtime.submit(b"", run_id="r")
    await settle(clock)
    leaving = asyncio.ensure_future(process.leave())
    await clock.advance(11)
    assert (cleaned, leaving.done()) == ([], False)
    await clock.advance(1)
    await leaving
    assert cleaned == [1]


async def test_leaving_sooner_than_the_drain_timeout_leaves_no_timer() -> None:
    clock = ManualClock()
    runner = Gated()
    async with bed(runner, clock=clock, drain_timeout=1000) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        runner.go.set()
    assert runner.finished == [("r", 0, 1)]
    assert clock.sleeping == 0


# -- leaving by an exception -----------------------------------------------------------------


async def test_leaving_by_an_exception_gives_steps_back() -> None:
    """The attempts do not count, and nothing is claimed again on the way out."""
    store, clock = MemoryStore(), ManualClock()
    runner = Gated()
    with pytest.raises(ZeroDivisionError):
        async with bed(runner, store=store, clock=clock, concurrency=4) as t:
            for number in range(6):
                await t.runtime.submit(b"", run_id=f"r{number}", max_attempts=1)
            await t.settle()
            raise ZeroDivisionError
    assert runner.started == [(f"r{number}", 0, 1) for number in range(4)]
    assert (runner.running, runner.finished) == (0, [])
    runner.go.set()
    async with bed(runner, store=store, clock=clock) as t:
        for number in range(6):
            end = await t.end(f"r{number}")
            assert end.termination.status is TerminalStatus.SUCCEEDED
    assert len(runner.started) == 10


@pytest.mark.parametrize("busy", [False, True])
async def test_leaving_by_an_exception_while_steps_come_and_go(busy: bool) -> None:
    """Terminates also when every step is between two awaits."""

    async def runner(step: Step) -> Outcome:
        if busy:
            await asyncio.sleep(0)
        return Continue()

    store, clock = MemoryStore(), ManualClock()
    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            async with bed(runner, store=store, clock=clock, concurrency=2) as t:
                for number in range(3):
                    await t.runtime.submit(b"", run_id=f"r{number}")
                for _ in range(17):
                    await asyncio.sleep(0)
                raise ZeroDivisionError
    async with bed(None, store=store, clock=clock) as t:
        assert await t.runtime.unfinished() == 3
        for number in range(3):
            status = await t.runtime.status(f"r{number}")
            assert status is not None and status.current_step > 0
        stats = await t.queue.stats(STEPS)
        assert (stats.pending, stats.claimed, stats.dead) == (3, 0, 0)


async def test_what_had_finished_when_the_block_was_left_by_an_exception_counts() -> None:
    """A step that returned is settled, if its settlement can still be made."""
    store, clock = MemoryStore(), ManualClock()
    returned = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        returned.set()
        return Succeed(b"done")

    with pytest.raises(ZeroDivisionError):
        async with bed(runner, store=store, clock=clock) as t:
            await t.runtime.submit(b"", run_id="r")
            await returned.wait()
            raise ZeroDivisionError
    async with bed(None, store=store, clock=clock) as t:
        assert (await t.runtime.wait("r", timeout=0)).outcome.result == b"done"


async def test_an_exception_leaves_the_block_as_it_was_raised() -> None:
    """With its cause, its traceback, and no group around it."""
    first = KeyError("cause")
    with pytest.raises(ValueError, match="body") as caught:
        async with bed(Gated()):
            try:
                raise first
            except KeyError as error:
                raise ValueError("body") from error
    assert caught.value.__cause__ is first
    assert caught.traceback[-1].name == "test_an_exception_leaves_the_block_as_it_was_raised"


async def test_an_exception_group_of_the_body_stays_one() -> None:
    with pytest.raises(ExceptionGroup, match="mine") as caught:
        async with bed(Gated()):
            raise ExceptionGroup("mine", [ValueError("a"), ValueError("b")])
    assert len(caught.value.exceptions) == 2


async def test_cancelling_the_block() -> None:
    """Cancellation goes through, and gives steps back."""
    store, clock = MemoryStore(), ManualClock()
    runner = Gated()
    process = Process(store, runner, clock)
    assert await process.opened()
    await process.runtime.submit(b"", run_id="r", max_attempts=1)
    await settle(clock)
    process.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await process.task
    assert runner.running == 0
    async with bed(None, store=store, clock=clock) as t:
        job = await t.queue.claim(STEPS)
        assert job is not None and job.job.attempts == 1


async def test_cancelling_while_draining() -> None:
    store, clock = MemoryStore(), ManualClock()
    runner = Gated()
    process = Process(store, runner, clock, drain_timeout=100)
    assert await process.opened()
    await process.runtime.submit(b"", run_id="r", max_attempts=1)
    await settle(clock)
    leaving = asyncio.ensure_future(process.leave())
    await settle(clock)
    process.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    runner.go.set()
    async with bed(runner, store=store, clock=clock) as t:
        assert (await t.end("r")).termination.status is TerminalStatus.SUCCEEDED


# -- restart ---------------------------------------------------------------------------------


async def test_an_interrupted_step_is_claimable_at_once_and_its_attempt_counts() -> None:
    """WRK-11"""
    store, clock = MemoryStore(), ManualClock()
    runner = Gated(last=1)
    process = Process(store, runner, clock)
    assert await process.opened()
    await process.runtime.submit(b"", run_id="r")
    await settle(clock)
    await process.kill()
    runner.go.set()
    async with bed(runner, store=store, clock=clock) as t:
        await t.settle()
        assert await t.runtime.unfinished() == 0
    assert runner.started == [("r", 0, 1), ("r", 0, 2), ("r", 1, 1)]


@pytest.mark.parametrize("runtime_is_late", [False, True])
async def test_a_step_interrupted_at_its_last_attempt(runtime_is_late: bool) -> None:
    """13.3, T18, T19: the run has failed when a runtime is there."""
    store, clock = MemoryStore(), ManualClock()
    process = Process(store, Gated(), clock)
    assert await process.opened()
    await process.runtime.submit(b"", run_id="r", max_attempts=1)
    await process.runtime.submit(b"", run_id="other", max_attempts=2)
    await settle(clock)
    await process.kill()
    if runtime_is_late:  # a process that uses only the queue comes in between
        async with Queue.open(store, clock=clock) as queue:
            assert (await queue.stats(STEPS)).dead == 1
    async with bed(None, store=store, clock=clock) as t:
        end = await t.runtime.wait("r", timeout=0)
        assert end.termination.status is TerminalStatus.FAILED
        assert end.termination.error == "claim interrupted by process exit"
        assert end.termination.error_kind is None
        assert await t.runtime.outcome("r") == end.outcome
        assert await t.runtime.unfinished() == 1
        assert (await t.runtime.submit(b"", run_id="r")).created
    async with bed(None, store=store, clock=clock) as t:
        status = await t.runtime.status("r")
        assert status is not None and status.state is RunState.PENDING


async def test_a_dead_step_that_is_requeued_before_a_runtime_comes_goes_on() -> None:
    """STEP-23"""
    store, clock = MemoryStore(), ManualClock()
    runner = Gated()
    process = Process(store, runner, clock)
    assert await process.opened()
    run = await process.runtime.submit(b"", run_id="r", max_attempts=1)
    await settle(clock)
    await process.kill()
    async with Queue.open(store, clock=clock) as queue:
        job = await queue.get_job(run.job_id)
        assert job is not None and job.state is JobState.DEAD
        await queue.requeue_dead(run.job_id)
    runner.go.set()
    async with bed(runner, store=store, clock=clock) as t:
        assert (await t.end("r")).termination.status is TerminalStatus.SUCCEEDED


async def test_old_runs_go_on_with_new_code() -> None:
    """13.3"""
    store, clock = MemoryStore(), ManualClock()

    async def old(step: Step) -> Outcome:
        return Continue(b"from old", after=60)

    async def new(step: Step) -> Outcome:
        return Succeed(step.payload + b", new")

    async with bed(old, store=store, clock=clock) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
    async with bed(new, store=store, clock=clock) as t:
        assert (await t.end("r")).outcome.result == b"from old, new"


async def test_delays_go_on_while_nobody_is_there() -> None:
    """WRK-06"""
    store, clock = MemoryStore(), ManualClock()

    async def runner(step: Step) -> Outcome:
        return Continue(after=timedelta(days=2)) if step.number == 0 else Succeed()

    async with bed(runner, store=store, clock=clock) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
    await clock.advance(timedelta(days=3))
    async with bed(runner, store=store, clock=clock) as t:
        await t.settle()
        assert await t.runtime.unfinished() == 0


async def test_thousands_of_interrupted_runs() -> None:
    """All of them are taken back, and run to their ends."""
    store, clock = MemoryStore(), ManualClock()
    runner = Gated()
    process = Process(store, runner, clock, concurrency=1000)
    assert await process.opened()
    await asyncio.gather(*(process.runtime.submit(b"", run_id=f"r{n}") for n in range(1000)))
    await settle(clock)
    assert runner.running == 1000
    await process.kill()
    runner.go.set()
    async with bed(runner, store=store, clock=clock) as t:
        while await t.runtime.unfinished():
            await t.settle()
        assert (await t.queue.stats(STEPS)).done == 1000
    assert len(runner.started) == 2000


# -- odd runners -----------------------------------------------------------------------------


async def test_a_runner_that_swallows_its_cancellation_does_not_harm_the_next() -> None:
    """Of one slot: the next step's own CancelledError is that step's failure."""
    attempts: list[tuple[str, int]] = []

    async def runner(step: Step) -> Outcome:
        attempts.append((step.run_id, step.attempt))
        if step.run_id == "stubborn":
            if step.attempt == 1:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass
            return Succeed(b"late" if step.attempt == 1 else b"in time")
        if step.attempt < 3:
            task = asyncio.ensure_future(asyncio.Event().wait())
            task.cancel()
            await task
        async with asyncio.timeout(100), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        return Succeed(b"ok")

    async with bed(runner, concurrency=1, renew=None) as t:
        await t.runtime.submit(b"", run_id="stubborn")
        for number in range(3):
            await t.runtime.submit(b"", run_id=f"next{number}")
        await t.clock.advance(31)
        for number in range(3):
            assert (await t.end(f"next{number}")).outcome.result == b"ok"
        assert (await t.end("stubborn")).outcome.result == b"in time"
    assert sorted(attempts) == sorted(
        [("stubborn", 1), ("stubborn", 2)]
        + [(f"next{number}", attempt) for number in range(3) for attempt in (1, 2, 3)]
    )


async def test_a_runner_that_works_on_while_it_is_cancelled() -> None:
    """Leaving by an exception waits for its clean-up."""
    cleaned = False

    async def runner(step: Step) -> Outcome:
        nonlocal cleaned
        try:
            await asyncio.Event().wait()
        finally:
            import anyio

            with anyio.CancelScope(shield=True):
                for _ in range(10):
                    await asyncio.sleep(0)
            cleaned = True
        return Succeed()

    with pytest.raises(ZeroDivisionError):
        async with bed(runner) as t:
            await t.runtime.submit(b"")
            await t.settle()
            raise ZeroDivisionError
    assert cleaned


async def test_a_base_exception_of_a_runner_fails_its_step() -> None:
    """Else it would end one runtime after the other, and no attempt would count."""

    class Abandon(BaseException):
        pass

    async def runner(step: Step) -> Outcome:
        raise Abandon("enough")

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        end = await t.runtime.wait("r")
    assert end.termination.status is TerminalStatus.FAILED
    assert end.outcome.error == "enough"


def test_what_ends_the_process_goes_through_and_fails_no_step() -> None:
    store, clock = MemoryStore(), ManualClock()

    async def runner(step: Step) -> Outcome:
        raise SystemExit(3)

    async def ends() -> None:
        async with bed(runner, store=store, clock=clock) as t:
            await t.runtime.submit(b"", run_id="r", max_attempts=1)
            await asyncio.Event().wait()

    async def looks() -> RunStatus | None:
        async with bed(None, store=store, clock=clock) as t:
            return await t.runtime.status("r")

    with pytest.raises(SystemExit):
        asyncio.run(ends())
    assert asyncio.run(looks()) == RunStatus("r", RunState.PENDING, 0)


async def test_a_runner_uses_its_own_runtime() -> None:
    """Submitting and waiting from inside a step."""

    async def runner(step: Step) -> Outcome:
        if step.run_id == "parent":
            child = await t.runtime.submit(b"7", run_id="child")
            end = await t.runtime.wait(child.run_id)
            return Succeed(end.outcome.result)
        return Succeed(step.payload * 2)

    async with bed(runner, concurrency=2) as t:
        await t.runtime.submit(b"", run_id="parent")
        assert (await t.end("parent")).outcome.result == b"77"


async def test_a_thread_outlives_its_lease() -> None:
    """A thread cannot be stopped: what it returns late is refused, the slot goes on meanwhile."""
    entered, leave = threading.Event(), threading.Event()
    late = threading.Event()

    def runner(step: BlockingStep) -> Outcome:
        if step.attempt == 1:
            entered.set()
            leave.wait(20)
            late.set()
            return Succeed(b"late")
        return Succeed(b"in time")

    async with bed(runner, concurrency=2, renew=None) as t:
        await t.runtime.submit(b"", run_id="r")
        await asyncio.to_thread(entered.wait, 20)
        await t.clock.advance(31)
        assert (await t.runtime.wait("r")).outcome.result == b"in time"
        leave.set()
        await asyncio.to_thread(late.wait, 20)
        assert (await t.runtime.wait("r")).outcome.result == b"in time"


async def test_the_queue_s_configuration_holds_for_steps() -> None:
    """Lease, attempts and backoff of the runtime's queue name."""
    seen: list[tuple[int, float]] = []

    async def runner(step: Step) -> Outcome:
        seen.append((step.max_attempts, t.clock.monotonic()))
        assert step.lease.remaining == 7
        raise ValueError("no")

    gate, clock = GateStore(MemoryStore()), ManualClock()
    config = QueueConfig(max_attempts=2, lease=7, backoff_base=20, jitter=False)
    async with Queue.open(gate, clock=clock, queues={"mine": config}) as queue:
        async with WorkflowRuntime(queue, runner, queue_name="mine", renew=None) as runtime:
            from .harness import Bed

            t = Bed(queue, runtime, clock, gate)
            await runtime.submit(b"", run_id="r")
            end = await t.end("r")
            assert end.termination.error == "no"
    assert seen == [(2, 0), (2, 20)]


# -- a store that does not answer ------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1])
async def test_an_outage_of_the_store_costs_a_step_that_has_not_begun_no_attempt(
    number: int,
) -> None:
    """Its claim is not durable yet, so its lease does not run; or else all runs would fail."""
    attempts: list[tuple[int, int]] = []

    async def runner(step: Step) -> Outcome:
        attempts.append((step.number, step.attempt))
        if step.number == 0 and number == 1:
            t.store.hold()
            return Continue()
        return Succeed()

    async with bed(runner) as t:
        if number == 0:
            t.store.hold()
        submitting = asyncio.ensure_future(t.runtime.submit(b"", run_id="r", max_attempts=1))
        await t.clock.advance(timedelta(minutes=10))
        assert attempts == [(0, 1)] * number
        t.store.release()
        await t.clock.advance(60)
        assert submitting.done()
        end = await t.end("r")
        assert end.termination.status is TerminalStatus.SUCCEEDED
    assert attempts == [(n, 1) for n in range(number + 1)]


async def test_an_outage_of_the_store_loses_nothing_that_was_finished() -> None:
    """A step that returned is settled, however late the store takes it."""
    calls = 0

    async def runner(step: Step) -> Outcome:
        nonlocal calls
        calls += 1
        t.store.hold()
        return Succeed(b"once")

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        waiting = asyncio.ensure_future(t.runtime.wait("r"))
        await t.clock.advance(timedelta(minutes=10))
        assert not waiting.done()
        t.store.release()
        await t.clock.advance(60)
        assert (await waiting).outcome.result == b"once"
    assert calls == 1
