"""The timeline of a run: every attempt of every step, noted in the transaction that ends it."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from taquba import Follower, ManualClock, PermanentError, Queue, QueueConfig
from taquba._checks import moment
from taquba.errors import InvalidArgument, InvalidType
from taquba.objectstore import MemoryStore
from taquba.workflow import (
    MAX_TIMELINE,
    BlockingStep,
    Cancel,
    Continue,
    Fail,
    GroupMember,
    Outcome,
    Step,
    StepAttempt,
    StepAttemptOutcome,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
    WorkflowView,
)
from tests.workflow.harness import Process, bed, settle

pytestmark = pytest.mark.anyio

CONFIG = QueueConfig(jitter=False, backoff_base=10, lease=30)


async def timeline(reader: Any, run_id: str = "r") -> tuple[StepAttempt, ...]:
    page = await reader.timeline(run_id)
    assert page is not None and page.next is None and page.run_id == run_id
    return page.attempts  # type: ignore[no-any-return]


def told(attempts: tuple[StepAttempt, ...]) -> list[tuple[int, int, str | None]]:
    return [
        (each.step, each.attempt, None if each.outcome is None else each.outcome.value)
        for each in attempts
    ]


def rows(queue: Queue) -> int:
    [(count,)] = queue.peek("SELECT count(*) FROM timeline")
    return int(count)


def now(clock: ManualClock) -> datetime:
    return moment(clock.now_ms())


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def test_steps_that_go_on_retry_and_succeed() -> None:
    async def runner(step: Step) -> Outcome:
        if step.number == 0:
            await t.clock.advance(3)
            return Continue(b"", after=20)
        await step.memo.memoized("a", lambda: 1)
        await step.run_memo.memoized("b", lambda: 1)
        if step.attempt == 1:
            raise ValueError("no luck")
        return Succeed()

    async with bed(runner, config=CONFIG, keep_history=True) as t:
        began = now(t.clock)
        await t.runtime.submit(b"", run_id="r")
        await t.end("r")
        first, second, third = await timeline(t.runtime)
        assert told((first, second, third)) == [
            (0, 1, "continued"),
            (1, 1, "retried"),
            (1, 2, "succeeded"),
        ]
        after = lambda s: began + timedelta(seconds=s)  # noqa: E731
        assert (first.claimed_at, first.started_at) == (began, began)
        assert (first.recorded_at, first.due) == (after(3), after(23))
        assert (second.claimed_at, second.recorded_at, second.due) == (
            after(23),
            after(23),
            after(33),
        )
        assert (second.error, second.error_type) == ("no luck", "ValueError")
        assert (second.memo_hits, second.memo_misses) == (0, 2)
        assert (third.claimed_at, third.due, third.error) == (after(33), None, None)
        assert (third.memo_hits, third.memo_misses) == (2, 0)


@pytest.mark.parametrize("way", ["fail", "permanent", "last", "cancel"])
async def test_ends_that_the_step_makes(way: str) -> None:
    async def runner(step: Step) -> Outcome:
        if way == "fail":
            return Fail("a reason")
        if way == "cancel":
            return Cancel("a reason")
        raise PermanentError("a reason") if way == "permanent" else OSError("a reason")

    async with bed(runner, config=CONFIG, keep_history=True) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        await t.end("r")
        [attempt] = await timeline(t.runtime)
        outcome = StepAttemptOutcome.CANCELLED if way == "cancel" else StepAttemptOutcome.FAILED
        assert (attempt.outcome, attempt.error) == (outcome, "a reason")
        types = {"permanent": "taquba.errors.PermanentError", "last": "OSError"}
        assert attempt.error_type == types.get(way)


async def test_a_runner_in_a_thread() -> None:
    def runner(step: BlockingStep) -> Outcome:
        step.memo.memoized("a", lambda: 1)
        step.memo.memoized("a", lambda: 1)
        return Succeed()

    async with Queue.open("memory://") as queue:
        async with WorkflowRuntime(queue, runner, keep_history=True) as runtime:
            await runtime.submit(b"", run_id="r")
            await runtime.wait("r")
            [attempt] = await timeline(runtime)
            assert (attempt.memo_hits, attempt.memo_misses) == (1, 1)


@pytest.mark.parametrize("came", ["before", "in time", "not"])
async def test_waiting_for_a_signal(came: str) -> None:
    async def runner(step: Step) -> Outcome:
        if step.number == 0:
            return Continue(b"", signal="key", timeout=60)
        if step.attempt == 1:
            raise ValueError
        return Succeed()

    async with bed(runner, config=CONFIG, keep_history=True) as t:
        if came == "before":
            await t.runtime.signal("key", b"x")
        began = now(t.clock)
        await t.runtime.submit(b"", run_id="r")
        await t.clock.advance(5)
        if came == "in time":
            await t.runtime.signal("key", b"x")
        await t.end("r")
        waited, *woken = await timeline(t.runtime)
        assert (waited.outcome, waited.waits_for) == (StepAttemptOutcome.WAITING, "key")
        assert waited.due == (None if came == "before" else began + timedelta(seconds=60))
        assert [each.woken_by for each in woken] == [None if came == "not" else "key"] * 2
        assert all(each.waits_for is None for each in woken)


async def test_waiting_for_ever_has_no_time() -> None:
    async def runner(step: Step) -> Outcome:
        return Continue(b"", signal="key")

    async with bed(runner, keep_history=True) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        [attempt] = await timeline(t.runtime)
        assert (attempt.waits_for, attempt.due) == ("key", None)


async def test_what_is_under_way() -> None:
    async def runner(step: Step) -> Outcome:
        if step.attempt == 1:
            raise ValueError
        await never()
        raise AssertionError

    async with bed(runner, config=CONFIG, keep_history=True) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.clock.advance(10)
        attempts = await timeline(t.runtime)
        assert told(attempts) == [(0, 1, "retried"), (0, 2, None)]
        assert attempts[1].claimed_at == now(t.clock) and attempts[1].recorded_at is None
        await t.runtime.cancel("r")
        await t.end("r")
        assert told(await timeline(t.runtime)) == [(0, 1, "retried"), (0, 2, "cancelled")]


@pytest.mark.parametrize("when", ["scheduled", "retry", "waiting"])
async def test_cancelled_while_nobody_has_it(when: str) -> None:
    async def runner(step: Step) -> Outcome:
        if when == "retry":
            raise ValueError
        return Continue(b"", signal="key")

    async with bed(runner, config=CONFIG, keep_history=True) as t:
        later = now(t.clock) + timedelta(hours=1) if when == "scheduled" else None
        await t.runtime.submit(b"", run_id="r", run_at=later)
        await t.settle()
        await t.runtime.cancel("r")
        attempts = await timeline(t.runtime)
        before = {"scheduled": [], "retry": [(0, 1, "retried")], "waiting": [(0, 1, "waiting")]}
        end = {"scheduled": (0, 1), "retry": (0, 2), "waiting": (1, 1)}[when]
        assert told(attempts) == [*before[when], (*end, "cancelled")]
        assert (attempts[-1].claimed_at, attempts[-1].recorded_at) == (None, now(t.clock))


async def test_leases_that_expire() -> None:
    async def runner(step: Step) -> Outcome:
        if step.attempt <= 2:
            await never()
        return Succeed()

    async with bed(runner, config=CONFIG, keep_history=True, renew=None) as t:
        began = now(t.clock)
        await t.runtime.submit(b"", run_id="r")
        await t.clock.advance(31)
        assert told(await timeline(t.runtime)) == [(0, 1, "lease_expired"), (0, 2, None)]
        await t.end("r")
        attempts = await timeline(t.runtime)
        assert told(attempts) == [
            (0, 1, "lease_expired"),
            (0, 2, "lease_expired"),
            (0, 3, "succeeded"),
        ]
        assert attempts[0].claimed_at == began and attempts[0].started_at is None
        assert attempts[0].recorded_at == began + timedelta(seconds=30)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_lease_of_the_last_attempt_expires(cancelled: bool) -> None:
    async def runner(step: Step) -> Outcome:
        await never()
        raise AssertionError

    async with bed(runner, config=CONFIG, keep_history=True, renew=None) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=2)
        await t.clock.advance(31)
        if cancelled:
            await t.runtime.cancel("r")
        end = await t.end("r")
        attempts = await timeline(t.runtime)
        last = "cancelled" if cancelled else "lease_expired"
        assert told(attempts) == [(0, 1, "lease_expired"), (0, 2, last)]
        assert attempts[1].claimed_at is not None
        assert (end.termination.status is TerminalStatus.CANCELLED) == cancelled


async def test_a_step_that_takes_too_long() -> None:
    async def runner(step: Step) -> Outcome:
        if step.attempt == 1:
            await never()
        return Succeed()

    async with bed(runner, config=CONFIG, keep_history=True, step_timeout=5) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.end("r")
        attempts = await timeline(t.runtime)
        assert told(attempts) == [(0, 1, "retried"), (0, 2, "succeeded")]
        assert attempts[0].error_type == "TimeoutError"


@pytest.mark.parametrize("last", [False, True])
async def test_processes_that_die(last: bool) -> None:
    """The queue takes the claim back before any runtime is there."""

    async def runner(step: Step) -> Outcome:
        if step.attempt < 3:
            started.set()
            await never()
        return Succeed()

    store, clock = MemoryStore(), ManualClock()
    for number in range(3):
        started = asyncio.Event()
        process = Process(store, runner, clock, config=CONFIG, keep_history=True)
        await process.opened()
        if number == 0:
            await process.runtime.submit(b"", run_id="r", max_attempts=2 if last else 3)
        if number < 2:
            await started.wait()
            await process.kill()
    await settle(clock)
    attempts = await timeline(process.runtime)
    lost = [(0, 1, "interrupted"), (0, 2, "interrupted")]
    assert told(attempts) == (lost if last else [*lost, (0, 3, "succeeded")])
    assert (await process.runtime.wait("r")).termination.status is (
        TerminalStatus.FAILED if last else TerminalStatus.SUCCEEDED
    )
    await process.leave()


async def test_given_back_in_order_is_no_attempt() -> None:
    async def runner(step: Step) -> Outcome:
        started.set()
        if hang:
            await never()
        return Succeed()

    store, clock, hang = MemoryStore(), ManualClock(), True
    started = asyncio.Event()
    async with bed(runner, store=store, clock=clock, keep_history=True, drain_timeout=1) as t:
        await t.runtime.submit(b"", run_id="r")
        await started.wait()
        leaving = asyncio.ensure_future(clock.advance(100))
    await leaving
    hang = False
    async with bed(runner, store=store, clock=clock, keep_history=True) as t:
        await t.end("r")
        assert told(await timeline(t.runtime)) == [(0, 1, "succeeded")]


async def test_pages() -> None:
    async def runner(step: Step) -> Outcome:
        return Continue(b"") if step.number < 9 else Continue(b"", signal="k")

    async with bed(runner, keep_history=True) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        whole = await timeline(t.runtime)
        assert len(whole) == 10
        seen: list[StepAttempt] = []
        after = None
        while True:
            page = await t.runtime.timeline("r", limit=3, after=after)
            assert page is not None and page.dropped == 0
            seen += page.attempts
            after = page.next
            if after is None:
                break
        assert tuple(seen) == whole
        nothing = await t.runtime.timeline("r", limit=0)
        assert nothing is not None and nothing.attempts == () and nothing.next is not None
        first = await t.runtime.timeline("r", limit=10, after=nothing.next)
        assert first is not None and first.attempts == whole
        assert await t.runtime.timeline("nobody") is None
        for wrong in ("", "x", "1", "1.", ".1", "1.-", "1.x", "1.2.3", "9" * 30 + ".1"):
            with pytest.raises(InvalidArgument):
                await t.runtime.timeline("r", after=wrong)
        with pytest.raises(InvalidType):
            await t.runtime.timeline("r", after=1)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            await t.runtime.timeline("r", limit=10_001)
        with pytest.raises(InvalidType):
            WorkflowRuntime(t.queue, runner, keep_history=1)  # type: ignore[arg-type]


async def test_pages_of_what_is_not_noted_yet() -> None:
    async def runner(step: Step) -> Outcome:
        await never()
        raise AssertionError

    async with bed(runner, config=CONFIG, keep_history=True, renew=None) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=9)
        await t.clock.advance(100)
        whole = await timeline(t.runtime)
        assert told(whole) == [*((0, n, "lease_expired") for n in (1, 2, 3)), (0, 4, None)]
        page = await t.runtime.timeline("r", limit=2)
        assert page is not None and page.attempts == whole[:2]
        await t.clock.advance(31)
        page = await t.runtime.timeline("r", after=page.next)
        assert page is not None
        assert told(page.attempts) == [*((0, n, "lease_expired") for n in (3, 4)), (0, 5, None)]
        await t.runtime.cancel("r")
        await t.end("r")


async def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_TIMELINE == 1000
    monkeypatch.setattr("taquba.workflow._history.MAX_TIMELINE", 10)

    async def runner(step: Step) -> Outcome:
        return Continue(b"") if step.number < 24 else Succeed()

    async with bed(runner, keep_history=True) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.end("r")
        assert rows(t.queue) == 10
        page = await t.runtime.timeline("r")
        assert page is not None and page.dropped == 15
        assert [each.step for each in page.attempts] == list(range(15, 25))


async def test_in_another_process() -> None:
    async def runner(step: Step) -> Outcome:
        if step.number == 0:
            return Continue(b"", signal="k")
        if step.attempt == 1:
            raise ValueError("x")
        return Succeed()

    async with bed(runner, config=CONFIG, keep_history=True) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.runtime.signal("k", b"1")
        await t.end("r")
        async with Follower.open(t.store.below, clock=t.clock) as follower:
            view = WorkflowView(follower)
            assert await timeline(view) == await timeline(t.runtime)
            assert await view.timeline("nobody") is None
        assert await timeline(WorkflowView(t.queue)) == await timeline(t.runtime)


async def test_off_writes_nothing_and_looks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def runner(step: Step) -> Outcome:
        if step.attempt == 1:
            raise ValueError("x")
        return Continue(b"") if step.number < 2 else Succeed()

    statements: list[str] = []

    async with bed(runner, config=CONFIG, retention=60) as t:
        database = t.queue._core.database
        database._state.connection.exec_trace = lambda cursor, sql, bindings: (
            statements.append(sql) or True
        )
        await t.runtime.submit(b"", run_id="r")
        await t.clock.advance(12)
        assert told(await timeline(t.runtime)) == [(1, 1, "retried")]
        statements.clear()
        await t.end("r", within=20)
        await t.runtime.submit(b"", run_id="r")
        await t.end("r", within=40)
        assert await timeline(t.runtime) == ()
        reads = [sql for sql in statements if "timeline" in sql]
        assert len(reads) == 2, reads  # of the one call
        await t.clock.advance(100)
        assert await t.runtime.timeline("r") is None
        assert len([sql for sql in statements if "timeline" in sql]) == 2
        assert rows(t.queue) == 0
        database._state.connection.exec_trace = None


@pytest.mark.parametrize("end", ["retention", "new life"])
@pytest.mark.parametrize("steps", [3, 600])
async def test_it_goes_with_its_run(end: str, steps: int) -> None:
    """A long one goes in slices; and it is not mistaken for that of the next life."""

    async def runner(step: Step) -> Outcome:
        return Continue(b"") if step.number < steps - 1 and step.payload != b"2" else Succeed()

    async with bed(runner, keep_history=True, retention=60) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.end("r", within=10)
        assert rows(t.queue) == steps
        page = await t.runtime.timeline("r", limit=2)
        assert page is not None and page.next is not None
        if end == "retention":
            await t.clock.advance(61)
            assert await t.runtime.timeline("r") is None
            assert rows(t.queue) == 0
        else:
            await t.runtime.submit(b"2", run_id="r")
            await t.end("r", within=10)
            assert told(await timeline(t.runtime)) == [(0, 1, "succeeded")]
            later = await t.runtime.timeline("r", after=page.next)
            assert later is not None and later.attempts == () and later.next is None
            assert rows(t.queue) == 1
        assert t.queue.peek("SELECT * FROM ended_lives") == []


async def test_it_goes_with_its_group() -> None:
    async def runner(step: Step) -> Outcome:
        return Succeed()

    async with bed(runner, keep_history=True) as t:
        await t.runtime.submit(b"", run_id="alone")
        group = t.runtime.group("g")
        await group.submit([GroupMember(str(n), b"") for n in range(3)])
        await t.clock.advance(1)
        assert rows(t.queue) == 4
        await group.forget()
        await t.clock.advance(10)
        assert rows(t.queue) == 1


async def test_an_end_does_not_remove_it_with_the_memos() -> None:
    """Memos of a life go in slices after its end; the timeline stays."""

    async def runner(step: Step) -> Outcome:
        if step.number == 0:
            for number in range(600):
                await step.memo.put(str(number), b"x")
            return Continue(b"")
        return Succeed()

    async with bed(runner, keep_history=True) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.end("r")
        await t.clock.advance(10)
        assert t.queue.peek("SELECT * FROM ended_lives") == []
        assert t.queue.peek("SELECT * FROM memos") == []
        assert told(await timeline(t.runtime)) == [(0, 1, "continued"), (1, 1, "succeeded")]


async def test_switched_on_while_a_run_is_under_way() -> None:
    """What the queue still knows of the current step is told, too."""

    async def runner(step: Step) -> Outcome:
        if step.number == 1 and step.attempt < 3:
            raise ValueError(f"no {step.attempt}")
        return Continue(b"") if step.number == 0 else Succeed()

    store, clock = MemoryStore(), ManualClock()
    async with bed(runner, store=store, clock=clock, config=CONFIG) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.clock.advance(5)
    async with bed(runner, store=store, clock=clock, config=CONFIG, keep_history=True) as t:
        await t.end("r")
        attempts = await timeline(t.runtime)
        assert told(attempts) == [(1, 1, "retried"), (1, 2, "retried"), (1, 3, "succeeded")]
        assert [each.error for each in attempts] == ["no 1", "no 2", None]


async def test_a_process_that_keeps_none_removes_what_another_kept() -> None:
    async def runner(step: Step) -> Outcome:
        return Succeed()

    store, clock = MemoryStore(), ManualClock()
    async with bed(runner, store=store, clock=clock, keep_history=True) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.end("r", within=10)
    async with bed(runner, store=store, clock=clock, retention=60) as t:
        assert told(await timeline(t.runtime)) == [(0, 1, "succeeded")]
        await t.clock.advance(61)
        assert rows(t.queue) == 0


@pytest.mark.parametrize("die_after", range(1, 14))
async def test_death_after_every_object(die_after: int) -> None:
    """What is there of a run matches the attempts that its timeline tells."""
    calls: list[tuple[int, int]] = []

    async def runner(step: Step) -> Outcome:
        calls.append((step.number, step.attempt))
        if step.number == 0:
            return Continue(b"", signal="k")
        if step.number == 1 and step.attempt == 1:
            raise ValueError
        return Continue(b"") if step.number == 1 else Succeed()

    store, clock = MemoryStore(), ManualClock()
    first = Process(store, runner, clock, die_after=die_after, config=CONFIG, keep_history=True)
    if await first.opened():
        submitting = asyncio.ensure_future(_submit(first.runtime))
        await clock.advance(60)
        submitting.cancel()
        await asyncio.gather(submitting, return_exceptions=True)
    await first.kill()
    second = Process(store, runner, clock, config=CONFIG, keep_history=True)
    await second.opened()
    await second.runtime.submit(b"", run_id="r", once=True)
    await second.runtime.signal("k", b"1", signal_id="1")
    await clock.advance(60)
    end = await second.runtime.wait("r")
    assert end.termination.status is TerminalStatus.SUCCEEDED
    attempts = await timeline(second.runtime)
    outcomes = [each.outcome for each in attempts]
    assert outcomes[-1] is StepAttemptOutcome.SUCCEEDED
    assert outcomes.count(StepAttemptOutcome.INTERRUPTED) <= 1
    # Of each step the attempts are there without a gap, and exactly the last of them went on.
    for number in range(3):
        mine = [each for each in attempts if each.step == number]
        assert [each.attempt for each in mine] == list(range(1, len(mine) + 1))
        ends = {
            StepAttemptOutcome.CONTINUED,
            StepAttemptOutcome.WAITING,
            StepAttemptOutcome.SUCCEEDED,
        }
        assert [each.outcome in ends for each in mine] == [False] * (len(mine) - 1) + [True]
    assert [each.step for each in attempts] == sorted(each.step for each in attempts)
    assert {(each.step, each.attempt) for each in attempts if each.started_at} <= set(calls)
    await second.leave()


async def _submit(runtime: WorkflowRuntime) -> None:
    await runtime.submit(b"", run_id="r")
    await runtime.signal("k", b"1", signal_id="1")
