"""Steps and their outcomes, errors and effects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from taquba import Effects, JobState, PermanentError, QueueConfig, TransientError
from taquba.errors import (
    ClaimLost,
    ConflictingEffects,
    EffectsSealed,
    InvalidArgument,
    SerializationError,
    ValueTooLarge,
)
from taquba.testing import Sandbox
from taquba.workflow import (
    Cancel,
    Continue,
    ErrorKind,
    Fail,
    Outcome,
    RunState,
    Step,
    Succeed,
    TerminalStatus,
)

from .harness import bed

pytestmark = pytest.mark.anyio

STEPS = "workflow-steps"


def always(outcome: Outcome | BaseException) -> Any:
    async def runner(step: Step) -> Outcome:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return runner


async def test_a_run_of_one_step() -> None:
    """STEP-01"""
    async with bed(always(Succeed(b"out"))) as t:
        await t.runtime.submit(b"in", run_id="r")
        end = await t.end("r")
        assert end.termination.status is TerminalStatus.SUCCEEDED
        assert (end.termination.error, end.termination.error_kind) == (None, None)
        assert end.termination.final_step == 0
        assert end.outcome.result == b"out"


async def test_steps_are_numbered_and_hand_on_their_payloads() -> None:
    """STEP-02"""
    seen: list[tuple[int, bytes, int]] = []

    async def runner(step: Step) -> Outcome:
        seen.append((step.number, step.payload, step.attempt))
        return Continue(step.payload + b"+") if step.number < 2 else Succeed(step.payload)

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        end = await t.end("r")
        assert end.termination.final_step == 2
        assert end.outcome.result == b"++"
    assert seen == [(0, b"", 1), (1, b"+", 1), (2, b"++", 1)]


async def test_headers_reach_every_step_and_the_outcome() -> None:
    """STEP-03"""
    seen: list[dict[str, str]] = []

    async def runner(step: Step) -> Outcome:
        seen.append(step.headers)
        step.headers["mine"] = "a copy"
        return Continue() if step.number < 2 else Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r", headers={"tenant": "7", "é": "ü"})
        end = await t.end("r")
        assert end.outcome.headers == {"tenant": "7", "é": "ü"}
    assert seen == [{"tenant": "7", "é": "ü"}] * 3


async def test_continue_after_a_delay() -> None:
    """STEP-04, STEP-05"""
    seen: list[int] = []

    async def runner(step: Step) -> Outcome:
        seen.append(step.number)
        return Continue(after=60) if step.number == 0 else Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        stats = await t.queue.stats(STEPS)
        assert (stats.scheduled, stats.pending, stats.claimed) == (1, 0, 0)
        await t.clock.advance(59.999)
        assert seen == [0]
        status = await t.runtime.status("r")
        assert status is not None
        assert (status.state, status.current_step) == (RunState.PENDING, 1)
        await t.clock.advance(0.001)
        assert seen == [0, 1]
        assert await t.runtime.unfinished() == 0


@pytest.mark.parametrize("after", [0, 0.0, timedelta(0), 0.0004, None])
async def test_a_delay_of_nothing_is_no_delay(after: Any) -> None:
    """STEP-06"""
    async with bed(lambda step: None) as t:  # never called
        pass

    async def runner(step: Step) -> Outcome:
        return Continue(after=after) if step.number < 5 else Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        assert await t.runtime.unfinished() == 0


async def test_a_delay_may_be_a_timedelta() -> None:
    """STEP-05"""

    async def runner(step: Step) -> Outcome:
        return Continue(after=timedelta(days=30)) if step.number == 0 else Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.clock.advance(timedelta(days=30) - timedelta(milliseconds=1))
        assert await t.runtime.unfinished() == 1
        await t.clock.advance(timedelta(milliseconds=1))
        assert await t.runtime.unfinished() == 0


@pytest.mark.parametrize(
    ("outcome", "status", "error", "kind"),
    [
        (Fail("no such page"), TerminalStatus.FAILED, "no such page", ErrorKind.PERMANENT),
        (Cancel("not wanted"), TerminalStatus.CANCELLED, "not wanted", None),
        (Fail(""), TerminalStatus.FAILED, "", ErrorKind.PERMANENT),
    ],
)
async def test_fail_and_cancel(
    outcome: Outcome, status: TerminalStatus, error: str, kind: ErrorKind | None
) -> None:
    """STEP-07, STEP-08, EFF-10"""

    async def runner(step: Step) -> Outcome:
        step.effects.put("k", b"v").enqueue("mail", b"sorry")
        return outcome

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        end = await t.end("r")
        assert end.termination.status is end.outcome.status is status
        assert (end.termination.error, end.termination.error_kind) == (error, kind)
        assert (end.outcome.error, end.outcome.result) == (error, None)
        assert (await t.queue.stats(STEPS)).dead == 0
        assert await t.queue.kv.get("k") == b"v"
        assert (await t.queue.stats("mail")).pending == 1


class Unforgivable(PermanentError):
    """A user's own kind of permanent error."""


@pytest.mark.parametrize("error", [PermanentError("bad page"), Unforgivable("bad page")])
async def test_a_permanent_error(error: Exception) -> None:
    """STEP-09"""
    calls = 0

    async def runner(step: Step) -> Outcome:
        nonlocal calls
        calls += 1
        step.effects.put("k", b"v")
        raise error

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        end = await t.end("r")
        assert calls == 1
        assert end.termination.status is TerminalStatus.FAILED
        assert (end.termination.error, end.termination.error_kind) == (
            "bad page",
            ErrorKind.PERMANENT,
        )
        assert (await t.queue.stats(STEPS)).dead == 1
        assert await t.queue.kv.get("k") is None


@pytest.mark.parametrize("limit", [1, 3, 5])
async def test_a_transient_error_up_to_the_limit(limit: int) -> None:
    """STEP-10, STEP-11, STEP-14"""
    attempts: list[tuple[int, int, bool]] = []

    async def runner(step: Step) -> Outcome:
        attempts.append((step.attempt, step.max_attempts, step.is_last_attempt))
        step.effects.put("k", b"v")
        raise TransientError(f"busy {step.attempt}")

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=limit)
        end = await t.end("r")
        assert end.termination.status is TerminalStatus.FAILED
        assert end.termination.error == f"busy {limit}"
        assert end.termination.error_kind is ErrorKind.TRANSIENT
        stats = await t.queue.stats(STEPS)
        assert (stats.dead, stats.pending, stats.scheduled) == (1, 0, 0)
        assert await t.runtime.unfinished() == 0
        assert await t.queue.kv.get("k") is None
    assert attempts == [(n, limit, n == limit) for n in range(1, limit + 1)]


async def test_a_retry_comes_after_the_backoff() -> None:
    """STEP-13"""
    at: list[float] = []

    async def runner(step: Step) -> Outcome:
        at.append(t.clock.monotonic())
        if step.number == 1 and step.attempt < 4:
            raise TransientError("busy")
        return Continue() if step.number < 2 else Succeed()

    async with bed(runner, config=QueueConfig(max_attempts=9, jitter=False)) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        [before] = t.queue.peek("SELECT * FROM runs")
        await t.clock.advance(1)
        assert t.queue.peek("SELECT * FROM runs") == [before], "a retry writes nothing of the run"
        status = await t.runtime.status("r")
        assert status is not None and status.state is RunState.PENDING
        await t.end("r")
    assert at == [0, 0, 1, 3, 7, 7]


async def test_the_end_is_dated_at_the_success() -> None:
    """STEP-12"""

    async def runner(step: Step) -> Outcome:
        if step.attempt == 1:
            raise TransientError("busy")
        return Succeed()

    async with bed(runner) as t:
        start = t.clock.now_ms()
        await t.runtime.submit(b"", run_id="r")
        end = await t.end("r")
        assert end.termination.terminated_at.timestamp() * 1000 == start + 1000
        assert end.termination.terminated_at.tzinfo is not None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("odd"), "odd"),
        (KeyError("k"), "'k'"),
        (RuntimeError(), "RuntimeError"),
        (TimeoutError(), "TimeoutError"),
        (ExceptionGroup("several", [ValueError("a")]), "several (1 sub-exception)"),
        (StopAsyncIteration(), "StopAsyncIteration"),
    ],
)
async def test_an_unexpected_exception_is_transient(error: Exception, text: str) -> None:
    """STEP-30"""
    calls = 0

    async def runner(step: Step) -> Outcome:
        nonlocal calls
        calls += 1
        raise error

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        end = await t.end("r")
        assert calls == 3
        if not isinstance(error, StopAsyncIteration):  # Python wraps it in a RuntimeError
            assert end.termination.error == text
        assert end.termination.error_kind is ErrorKind.TRANSIENT


async def test_a_cancellation_that_nobody_asked_for_is_transient() -> None:
    """STEP-30: a runner that awaits a task which was cancelled, say."""
    calls = 0

    async def runner(step: Step) -> Outcome:
        nonlocal calls
        calls += 1
        task = asyncio.ensure_future(asyncio.Event().wait())
        task.cancel()
        await task
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        end = await t.end("r")
        assert calls == 3
        assert end.termination.status is TerminalStatus.FAILED
        assert end.termination.error_kind is ErrorKind.TRANSIENT
        assert end.termination.error is not None and "CancelledError" in end.termination.error


async def test_taquba_s_own_errors_say_themselves_whether_to_retry() -> None:
    """1.11: bad input and what cannot be encoded stay so, however often it is tried."""
    calls: list[int] = []

    async def runner(step: Step) -> Outcome:
        calls.append(int(step.payload))
        match int(step.payload):
            case 0:
                await step.memo.put("k" * 70_000, b"")
            case 1:
                await step.memo.memoized("k", lambda: object())
            case 2:
                await t.runtime.submit(b"", run_id="a b")
            case 3:
                Effects().put("k", bytes(262_145))
            case 4:
                await t.runtime.wait("unknown")
            case 5:
                await t.queue.enqueue("q", b"", job_id="taken")
            case _:
                pass
        return Succeed()

    async with bed(runner) as t:
        await t.queue.enqueue("q", b"", job_id="taken")
        for number in range(6):
            await t.runtime.submit(b"%d" % number, run_id=f"r{number}")
        for number in range(6):
            end = await t.end(f"r{number}")
            assert end.termination.status is TerminalStatus.FAILED, number
            assert end.termination.error_kind is ErrorKind.PERMANENT, number
    assert sorted(calls) == list(range(6))


# -- settlements that cannot be applied ------------------------------------------------------


@pytest.mark.parametrize("after", [timedelta.max, float("inf"), 1e300, timedelta(days=365 * 9000)])
async def test_a_delay_past_the_end_of_time(after: Any) -> None:
    """A Continue that cannot be committed fails the run; it does not leave it hanging."""
    async with bed(always(Continue(after=after))) as t:
        await t.runtime.submit(b"", run_id="r")
        end = await t.end("r")
        assert end.termination.status is TerminalStatus.FAILED
        assert end.termination.error_kind is ErrorKind.PERMANENT
        assert "9999" in end.termination.error


async def test_effects_that_cannot_be_committed() -> None:
    """An enqueue under a taken id: nothing of the step is applied, and the run fails."""
    calls = 0

    async def runner(step: Step) -> Outcome:
        nonlocal calls
        calls += 1
        step.effects.put("k", b"v").enqueue("mail", b"again", job_id="taken")
        return Succeed()

    async with bed(runner) as t:
        await t.queue.enqueue("mail", b"first", job_id="taken")
        await t.runtime.submit(b"", run_id="r")
        end = await t.end("r")
        assert end.termination.status is TerminalStatus.FAILED
        assert "'taken'" in end.termination.error
        assert end.termination.error_kind is ErrorKind.PERMANENT
        assert calls == 1
        assert await t.queue.kv.get("k") is None
        assert (await t.queue.stats("mail")).pending == 1
        stats = await t.queue.stats(STEPS)
        assert (stats.pending, stats.scheduled, stats.claimed, stats.dead) == (0, 0, 0, 1)


async def test_effects_on_the_runtime_s_own_queue() -> None:
    """1.11 ReservedQueue: such a job could never be a step."""

    async def runner(step: Step) -> Outcome:
        step.effects.enqueue(STEPS, b"x")
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        end = await t.end("r")
        assert end.termination.error_kind is ErrorKind.PERMANENT
        assert STEPS in end.termination.error
        assert (await t.queue.stats(STEPS)).pending == 0


# -- leases ----------------------------------------------------------------------------------


async def test_a_step_that_outlives_its_lease_is_run_again() -> None:
    """STEP-15, STEP-16, STEP-28, EFF-11, EFF-12"""
    attempts: list[int] = []
    cancelled: list[int] = []

    async def runner(step: Step) -> Outcome:
        attempts.append(step.attempt)
        step.effects.put("by", b"%d" % step.attempt)
        if step.attempt == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(step.attempt)
                raise
        return Continue(b"%d" % step.attempt) if step.number == 0 else Succeed(step.payload)

    async with bed(runner, renew=None) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=2)
        await t.clock.advance(29)
        assert attempts == [1]
        await t.clock.advance(2)
        assert cancelled == [1]
        # Attempt 2 of step 0 went on; step 1 hung in attempt 1, too.
        assert attempts == [1, 2, 1]
        assert await t.queue.kv.get("by") == b"2"
        end = await t.end("r")
        assert end.outcome.result == b"2"
    assert attempts == [1, 2, 1, 2]
    assert cancelled == [1, 1]


async def test_a_late_outcome_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """STEP-15, STEP-16, STEP-17, EFF-11: a runner that will not be cancelled."""
    go = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        if step.attempt == 1:
            step.effects.put("k", b"late")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
            return Fail("late")
        await go.wait()
        return Succeed(b"in time")

    async with bed(runner, renew=None) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.clock.advance(31)
        status = await t.runtime.status("r")
        assert status is not None and status.state is RunState.RUNNING
        go.set()
        end = await t.end("r")
        assert end.outcome.result == b"in time"
        assert await t.queue.kv.get("k") is None


async def test_a_step_is_held_as_long_as_it_runs() -> None:
    """The default: nothing needs to be extended, and the lease of the queue does not matter."""
    attempts: list[int] = []

    async def runner(step: Step) -> Outcome:
        attempts.append(step.attempt)
        assert step.lease.remaining == float("inf")
        step.lease.ensure_at_least(1)
        await t.clock.sleep(7200)
        await step.memo.put("k", b"v")
        return Succeed(b"slow")

    async with bed(runner, config=QueueConfig(lease=1, jitter=False)) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        assert (await t.end("r", within=7200)).outcome.result == b"slow"
    assert attempts == [1]


async def test_a_step_that_hangs_is_held_no_longer_than_the_step_timeout() -> None:
    attempts: list[tuple[int, float]] = []

    async def runner(step: Step) -> Outcome:
        attempts.append((step.attempt, t.clock.monotonic()))
        if step.attempt == 1:
            await asyncio.Event().wait()
        return Succeed()

    config = QueueConfig(backoff_base=0, jitter=False)
    async with bed(runner, step_timeout=100, config=config) as t:
        await t.runtime.submit(b"", run_id="r")
        assert (await t.end("r")).termination.status is TerminalStatus.SUCCEEDED
    assert attempts == [(1, 0), (2, 100)]


async def test_a_held_step_of_a_process_that_died_is_run_by_the_next_one() -> None:
    """No lease has to end for that: whoever opens the store gives back what was held."""
    attempts: list[int] = []

    async def runner(step: Step) -> Outcome:
        attempts.append(step.attempt)
        if step.attempt == 1:
            await asyncio.Event().wait()
        return Succeed(b"in the next")

    async with Sandbox(runner) as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        await sandbox.advance(7200)
        assert attempts == [1]
        await sandbox.crash()
        await sandbox.reopen()
        assert (await sandbox.wait("r")).outcome.result == b"in the next"
    assert attempts == [1, 2]


async def test_extending_a_lease() -> None:
    """STEP-27"""
    calls = 0

    async def runner(step: Step) -> Outcome:
        nonlocal calls
        calls += 1
        assert step.lease.remaining == 30
        step.lease.ensure_at_least(600)
        assert step.lease.remaining == 605
        step.lease.ensure_at_least(timedelta(seconds=1))
        assert step.lease.remaining == 605, "it never shortens"
        await t.clock.sleep(600)
        return Succeed(b"slow")

    async with bed(runner, renew=None) as t:
        await t.runtime.submit(b"", run_id="r")
        assert (await t.end("r")).outcome.result == b"slow"
    assert calls == 1


async def test_a_lost_lease_cannot_be_extended() -> None:
    """1.3: the lease handle fails with ClaimLost when the claim has ended."""
    kept: list[Step] = []

    async def runner(step: Step) -> Outcome:
        kept.append(step)
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.end("r")
        with pytest.raises(ClaimLost):
            kept[0].lease.ensure_at_least(1)


async def test_a_step_whose_lease_expires_on_its_last_attempt() -> None:
    """STAT-19, T18 and T19: the run ends in the same transaction, and waiters learn it."""

    async def runner(step: Step) -> Outcome:
        await asyncio.Event().wait()
        return Succeed()

    async with bed(runner, drain_timeout=0, renew=None) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        end = await t.end("r")
        assert end.termination.status is TerminalStatus.FAILED
        assert (end.termination.error, end.termination.error_kind) == ("lease expired", None)
        status = await t.runtime.status("r")
        assert status is not None and status.termination == end.termination
        assert (await t.queue.stats(STEPS)).dead == 1
        again = await t.runtime.submit(b"", run_id="r", max_attempts=1)
        assert again.created


# -- jobs that are no steps ------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"workflow.run_id": "r"},
        {"workflow.run_id": "r", "workflow.life": ""},
        {"workflow.run_id": "r", "workflow.life": "x"},
        {"workflow.run_id": "r", "workflow.life": "-1"},
        {"workflow.run_id": "r", "workflow.life": "1"},
        {"workflow.run_id": "r", "workflow.life": "77"},
        {"workflow.run_id": "r", "workflow.life": "٣"},
        {"workflow.run_id": "r", "workflow.life": "9" * 30},
        {"workflow.run_id": "r", "workflow.life": "9" * 5000},
    ],
)
async def test_a_job_that_is_no_step(headers: dict[str, str]) -> None:
    """STEP-18, STEP-19, STEP-21"""
    calls = 0

    async def runner(step: Step) -> Outcome:
        nonlocal calls
        calls += 1
        return Continue(after=timedelta(hours=1))

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        job = await t.queue.enqueue(STEPS, b"foreign", headers=headers)
        await t.settle()
        found = await t.queue.get_job(job.job_id)
        assert found is not None and found.state is JobState.DEAD
        assert found.attempts == 1
        status = await t.runtime.status("r")
        assert status is not None and status.current_step == 1
    assert calls == 1


@pytest.mark.parametrize("life", ["", "x", "9" * 30, "1", "0"])
async def test_a_foreign_job_that_dies_on_the_queue_does_not_disturb(life: str) -> None:
    """STEP-18: the reaper goes on, and the run of that number is not touched."""
    async with bed(None) as t:
        await t.runtime.submit(b"", run_id="r", run_at=datetime_of(t.clock.now_ms() + 10_000_000))
        await t.queue.enqueue(STEPS, b"", headers={"workflow.life": life}, max_attempts=1)
        claim = await t.queue.claim(STEPS)
        assert claim is not None
        await t.clock.advance(60)
        assert (await t.queue.stats(STEPS)).dead == 1
        status = await t.runtime.status("r")
        assert status is not None and status.state is RunState.PENDING


async def test_a_dead_step_of_an_ended_run_is_requeued_in_vain() -> None:
    """STEP-22"""
    calls = 0

    async def runner(step: Step) -> Outcome:
        nonlocal calls
        calls += 1
        raise PermanentError("no")

    async with bed(runner) as t:
        run = await t.runtime.submit(b"", run_id="r")
        end = await t.end("r")
        await t.queue.requeue_dead(run.job_id)
        await t.settle()
        job = await t.queue.get_job(run.job_id)
        assert job is not None and job.state is JobState.DEAD
        assert await t.runtime.wait("r") == end
        assert calls == 1
        # Nor does it take part in the next life of its run id.
        again = await t.runtime.submit(b"", run_id="r")
        await t.queue.requeue_dead(run.job_id)
        assert (await t.end("r")).termination.error == "no"
        assert again.job_id != run.job_id
        assert calls == 2


# -- effects ---------------------------------------------------------------------------------


async def test_effects_of_a_step_are_there_for_the_next() -> None:
    """EFF-01, EFF-02, EFF-06"""
    seen: list[bytes | None] = []

    async def runner(step: Step) -> Outcome:
        seen.append(await t.queue.kv.get("k"))
        if step.number == 0:
            step.effects.put("k", b"first").put("k", b"last")
            seen.append(await t.queue.kv.get("k"))
            return Continue()
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.end("r")
    assert seen == [None, None, b"last"]


async def test_a_refused_effect_leaves_the_others() -> None:
    """EFF-04, EFF-05, EFF-07"""

    async def runner(step: Step) -> Outcome:
        step.effects.put("a", b"1")
        step.effects.delete("b")
        with pytest.raises(ConflictingEffects):
            step.effects.delete("a")
        with pytest.raises(ConflictingEffects):
            step.effects.put("b", b"1")
        with pytest.raises(ValueTooLarge):
            step.effects.put("c", bytes(262_145))
        step.effects.put("d", bytes(262_144))
        return Succeed()

    async with bed(runner) as t:
        await t.queue.kv.put("b", b"0")
        await t.runtime.submit(b"", run_id="r")
        assert (await t.end("r")).termination.status is TerminalStatus.SUCCEEDED
        kv = t.queue.kv
        assert [await kv.get("a"), await kv.get("b"), await kv.get("c")] == [b"1", None, None]
        assert await kv.get("d") == bytes(262_144)


@pytest.mark.parametrize("staged_before", [True, False])
@pytest.mark.parametrize("ends", [Succeed(), Continue(after=60), ValueError("no"), "lost"])
async def test_effects_are_sealed_when_the_step_returns(staged_before: bool, ends: Any) -> None:
    """EFF-08, EFF-09: nothing is dropped silently."""
    kept: list[Step] = []

    async def runner(step: Step) -> Outcome:
        kept.append(step)
        if staged_before:
            step.effects.put("k", b"v")
        if ends == "lost":
            await asyncio.Event().wait()
        if isinstance(ends, Exception):
            raise ends
        return ends  # pyright: ignore[reportReturnType]

    async with bed(runner, renew=None) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        await t.clock.advance(31 if ends == "lost" else 0)
        with pytest.raises(EffectsSealed):
            kept[0].effects.put("late", b"v")
        with pytest.raises(EffectsSealed):
            kept[0].effects.enqueue("mail", b"")
        await t.clock.advance(3600)
        assert await t.queue.kv.get("late") is None


async def test_effects_are_dropped_with_a_failed_attempt_and_applied_once() -> None:
    """EFF-10, EFF-12"""

    async def runner(step: Step) -> Outcome:
        step.effects.enqueue("mail", b"%d" % step.attempt)
        if step.attempt < 3:
            raise TransientError("busy")
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.end("r")
        [claim] = await t.queue.claim_many("mail", 10)
        assert claim.job.payload == b"3"


async def test_a_runner_s_exception_is_logged_with_its_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The operator sees run, step, attempt and traceback."""
    with caplog.at_level(logging.WARNING, "taquba"):
        async with bed(always(ValueError("odd"))) as t:
            await t.runtime.submit(b"", run_id="run-7", max_attempts=1)
            await t.end("run-7")
    [record] = [r for r in caplog.records if "odd" in r.getMessage()]
    assert "step 0 of run run-7" in record.getMessage()
    assert "attempt 1 of 1" in record.getMessage()
    assert record.exc_info


def datetime_of(ms: int) -> datetime:
    from datetime import UTC

    return datetime.fromtimestamp(ms / 1000, UTC)


def test_outcomes_are_values() -> None:
    """Frozen, comparable, and with the defaults that the docs promise."""
    assert Continue() == Continue(b"", None)
    assert Succeed() == Succeed(None)
    make: Callable[[], Any] = lambda: Fail()  # type: ignore[call-arg]  # noqa: E731
    with pytest.raises(TypeError):
        make()
    with pytest.raises(AttributeError):
        Succeed().result = b""  # type: ignore[misc]
    assert issubclass(SerializationError, Exception) and issubclass(ValueTooLarge, InvalidArgument)
