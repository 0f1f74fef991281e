"""Cancelling runs, in every state."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taquba import Effects, JobState, PermanentError, QueueConfig
from taquba.errors import CancelRequested, InconsistentRunState, InvalidRunId, InvalidType
from taquba.workflow import Cancel, Continue, Fail, RunState, Step, Succeed, TerminalStatus

from .cancelling import done, ended_cancelled, running, state
from .harness import bed

pytestmark = pytest.mark.anyio


async def test_a_pending_run() -> None:
    """CAN-01, CAN-04"""
    async with bed(None) as t:
        run = await t.runtime.submit(b"in", run_id="r", headers={"h": "x"})
        assert await t.runtime.cancel("r") is True
        await ended_cancelled(t)
        assert await t.queue.get_job(run.job_id) is None
        outcome = await t.runtime.outcome("r")
        assert outcome is not None and outcome.headers == {"h": "x"}
        writes = t.store.writes
        assert await t.runtime.cancel("r") is False
        await t.settle()
        assert t.store.writes == writes


async def test_a_cancelled_pending_run_is_never_run() -> None:
    """CAN-01"""
    calls = 0

    async def runner(step: Step) -> Succeed:
        nonlocal calls
        calls += 1
        return Succeed()

    async with bed(runner) as t:
        later = datetime.fromtimestamp(t.clock.now_ms() / 1000, UTC) + timedelta(hours=1)
        await t.runtime.submit(b"in", run_id="r", run_at=later)
        assert await t.runtime.cancel("r") is True
        await t.clock.advance(7200)
        await ended_cancelled(t)
    assert calls == 0


async def test_cancelling_a_pending_run_is_one_write() -> None:
    """At most 1.2 latencies: one PUT, and nothing before or after it."""
    async with bed(None) as t:
        await t.runtime.submit(b"in", run_id="r")
        await t.settle()
        writes = t.store.writes
        assert await t.runtime.cancel("r") is True
        assert t.store.writes == writes + 1
        await t.settle()
        assert t.store.writes == writes + 1


async def test_unknown_and_ended_runs() -> None:
    """CAN-05, CAN-06"""
    async with bed(done) as t:
        assert await t.runtime.cancel("r") is False
        await t.runtime.submit(b"in", run_id="r")
        end = await t.end("r")
        assert await t.runtime.cancel("r") is False
        assert await t.end("r") == end
        assert end.termination.status is TerminalStatus.SUCCEEDED


async def test_bad_ids() -> None:
    async with bed(None) as t:
        for bad in ("", "a/b", "a" * 129):
            with pytest.raises(InvalidRunId):
                await t.runtime.cancel(bad)
        with pytest.raises(InvalidType):
            await t.runtime.cancel(7)  # type: ignore[arg-type]


async def test_a_running_step_is_asked_to_stop() -> None:
    """CAN-07, CAN-08, CAN-19"""
    async with running() as run:
        t = run.t
        waiting = asyncio.ensure_future(t.runtime.wait("r"))
        assert not run.step.cancel_token.is_cancelled
        assert await t.runtime.cancel("r") is True
        assert run.step.cancel_token.is_cancelled
        assert await state(t) is RunState.CANCELLING
        assert await t.runtime.cancel("r") is True
        assert await t.runtime.outcome("r") is None
        assert await t.runtime.unfinished() == 1

        async def succeed(step: Step) -> Succeed:
            step.effects.put("k", b"v").enqueue("mail", b"hello")
            return Succeed(b"result")

        await run.finish(succeed)
        await ended_cancelled(t)
        assert await t.queue.kv.get("k") is None
        assert (await t.queue.stats("mail")).pending == 0
        assert waiting.done() and waiting.result().outcome.status is TerminalStatus.CANCELLED
        assert run.calls == 1


async def go_on(step: Step) -> Continue:
    step.effects.put("k", b"v")
    return Continue(b"more")


async def fail(step: Step) -> Fail:
    step.effects.put("k", b"v")
    return Fail("no")


async def permanent(step: Step) -> None:
    raise PermanentError("never")


async def transient(step: Step) -> None:
    raise ValueError("not now")


async def nonsense(step: Step) -> Any:
    return 7


@pytest.mark.parametrize("then", [go_on, fail, permanent, transient, nonsense])
async def test_whatever_the_step_says_the_run_is_cancelled(then: Any) -> None:
    """CAN-09, CAN-10, CAN-11: no next step, no dead job, no retry, no effects."""
    async with running() as run:
        assert await run.t.runtime.cancel("r") is True
        await run.finish(then)
        await ended_cancelled(run.t)
        assert await run.t.queue.kv.get("k") is None
        await run.t.clock.advance(3600)
        assert run.calls == 1


async def test_the_last_attempt_is_cancelled_too() -> None:
    """CAN-10, CAN-11"""
    async with running(config=QueueConfig(max_attempts=1, jitter=False)) as run:
        assert await run.t.runtime.cancel("r") is True
        await run.finish(transient)
        await ended_cancelled(run.t)


async def test_a_step_that_watches_its_token_gives_a_reason() -> None:
    """CAN-12, CAN-13: the runner's own Cancel wins, and keeps its effects."""

    async def runner(step: Step) -> Cancel:
        await step.cancel_token.wait()
        step.effects.put("k", b"v").enqueue("mail", b"hello")
        return Cancel("was asked to")

    async with bed(runner) as t:
        await t.runtime.submit(b"in", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r") is True
        await t.settle()
        await ended_cancelled(t, error="was asked to")
        assert await t.queue.kv.get("k") == b"v"
        assert (await t.queue.stats("mail")).pending == 1


async def test_only_a_cancellation_fires_the_token() -> None:
    """CAN-14: a runner cannot fire it; its run is its own to end."""

    async def runner(step: Step) -> Succeed:
        assert not hasattr(step.cancel_token, "cancel") and not hasattr(step.cancel_token, "fire")
        with pytest.raises(AttributeError):
            step.cancel_token.is_cancelled = True  # type: ignore[misc]
        step.effects.put("k", b"v")
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"in", run_id="r")
        assert (await t.end("r")).termination.status is TerminalStatus.SUCCEEDED
        assert await t.queue.kv.get("k") == b"v"


async def test_a_step_in_retry_backoff() -> None:
    """CAN-20"""
    async with running() as run:
        t = run.t
        await run.finish(transient)
        assert (await t.queue.stats("workflow-steps")).scheduled == 1
        assert await t.runtime.cancel("r") is True
        await ended_cancelled(t)
        await t.clock.advance(3600)
        assert run.calls == 1


async def test_a_delayed_step() -> None:
    """CAN-21"""

    async def runner(step: Step) -> Continue:
        assert step.number == 0
        return Continue(after=60)

    async with bed(runner) as t:
        await t.runtime.submit(b"in", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r") is True
        await ended_cancelled(t, step=1)
        await t.clock.advance(3600)
        await ended_cancelled(t, step=1)


async def test_a_lease_is_not_extended_after_a_cancellation() -> None:
    """CAN-31"""
    async with running() as run:
        assert await run.t.runtime.cancel("r") is True

        async def extend(step: Step) -> Succeed:
            with pytest.raises(CancelRequested):
                step.lease.ensure_at_least(600)
            step.lease.ensure_at_least(600)
            return Succeed()

        await run.finish(extend)
        await ended_cancelled(run.t)


async def test_a_run_whose_job_is_gone() -> None:
    """STAT-08, section 4.2: a job removed behind the runtime's back."""
    async with bed(None) as t:
        run = await t.runtime.submit(b"in", run_id="r")
        await t.queue.cancel(run.job_id)
        with pytest.raises(InconsistentRunState, match="'r'"):
            await t.runtime.cancel("r")


async def test_a_cancelled_id_begins_anew() -> None:
    """SUB-09, CAN-17: an old request cannot leak into the next life."""
    async with running() as run:
        t = run.t
        assert await t.runtime.cancel("r") is True
        await run.finish()
        await ended_cancelled(t)
        again = await t.runtime.submit(b"other", run_id="r")
        assert again.created
        assert (await t.end("r")).outcome.result == b"other"
    async with bed(None) as t:
        await t.runtime.submit(b"in", run_id="r")
        assert await t.runtime.cancel("r") is True
        assert (await t.runtime.submit(b"in", run_id="r")).created
        assert await state(t) is RunState.PENDING


async def test_another_run_is_not_affected() -> None:
    """CAN-30"""
    async with bed(None) as t:
        await t.runtime.submit(b"in", run_id="r")
        other = await t.runtime.submit(b"in", run_id="r2")
        assert await t.runtime.cancel("r") is True
        assert await state(t, "r2") is RunState.PENDING
        job = await t.queue.get_job(other.job_id)
        assert job is not None and job.state is JobState.PENDING and not job.cancel_requested


async def test_cancelling_through_the_queue_counts_too() -> None:
    """A request at the job is the request: there is no second record of it."""
    async with running() as run:
        [(job_id,)] = run.t.queue.peek("SELECT job_id FROM runs WHERE run_id = 'r'")
        await run.t.queue.cancel(job_id, Effects().put("k", b"v"))
        assert await state(run.t) is RunState.CANCELLING
        await run.finish()
        await ended_cancelled(run.t)
