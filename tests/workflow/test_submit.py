"""Submitting runs: identity, idempotency, settings, and what is refused."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from taquba import Effects, JobState, ManualClock
from taquba.errors import (
    ConflictingEffects,
    InconsistentRunState,
    InputMismatch,
    InvalidRunId,
    ReservedName,
    ValueTooLarge,
)
from taquba.objectstore import MemoryStore
from taquba.workflow import Continue, RunEffects, RunState, Step, Succeed

from .harness import Process, bed

pytestmark = pytest.mark.anyio


async def done(step: Step) -> Succeed:
    return Succeed(step.payload)


async def test_a_run_without_an_id_is_always_new() -> None:
    """SUB-01"""
    async with bed(None) as t:
        first = await t.runtime.submit(b"same")
        second = await t.runtime.submit(b"same")
        assert first.created and second.created
        assert first.run_id != second.run_id
        assert len(first.run_id) == len(second.run_id) == 26
        assert await t.runtime.unfinished() == 2


async def test_submitting_an_active_run_again_changes_nothing() -> None:
    """SUB-02"""
    async with bed(None) as t:
        first = await t.runtime.submit(b"in", run_id="r")
        writes = t.store.writes
        second = await t.runtime.submit(b"in", run_id="r")
        assert (second.created, second.job_id) == (False, first.job_id)
        await t.settle()
        assert t.store.writes == writes
        assert (await t.queue.stats("workflow-steps")).pending == 1


async def test_an_active_run_with_another_input_is_a_mismatch() -> None:
    """SUB-03"""
    async with bed(None) as t:
        await t.runtime.submit(b"in", run_id="r")
        writes = t.store.writes
        with pytest.raises(InputMismatch, match="'r'"):
            await t.runtime.submit(b"other", run_id="r")
        await t.settle()
        assert t.store.writes == writes


async def test_a_mismatch_inside_a_runner_fails_its_run_for_good() -> None:
    """SUB-03: the error is permanent, like bad input."""
    calls = 0

    async def runner(step: Step) -> Succeed:
        nonlocal calls
        calls += 1
        await t.runtime.submit(b"other", run_id=step.run_id)
        return Succeed()

    async with bed(runner) as t:
        run = await t.runtime.submit(b"in")
        end = await t.end(run.run_id)
        assert calls == 1
        assert end.termination.error_kind is not None
        assert end.termination.error_kind.value == "permanent"


async def test_a_later_step_stands_for_the_run() -> None:
    """SUB-04"""
    store, clock = MemoryStore(), ManualClock()

    async def runner(step: Step) -> Continue:
        return Continue(after=timedelta(hours=1))

    async with bed(runner, store=store, clock=clock) as t:
        first = await t.runtime.submit(b"in", run_id="r")
        await t.settle()
    async with bed(None, store=store, clock=clock) as t:
        again = await t.runtime.submit(b"in", run_id="r")
        assert not again.created
        assert again.job_id != first.job_id
        job = await t.queue.get_job(again.job_id)
        assert job is not None and job.state is JobState.SCHEDULED


async def test_a_mismatch_is_seen_after_a_restart() -> None:
    """SUB-05"""
    store, clock = MemoryStore(), ManualClock()
    first = Process(store, None, clock)
    assert await first.opened()
    await first.runtime.submit(b"in", run_id="r")
    await first.kill()
    async with bed(None, store=store, clock=clock) as t:
        with pytest.raises(InputMismatch):
            await t.runtime.submit(b"other", run_id="r")


async def test_concurrent_submissions_of_one_id() -> None:
    """SUB-06"""
    async with bed(None) as t:
        results: Any = await asyncio.gather(
            t.runtime.submit(b"in", run_id="r"),
            t.runtime.submit(b"in", run_id="r"),
            t.runtime.submit(b"other", run_id="r"),
            return_exceptions=True,
        )
        assert results[0].created
        assert not results[1].created
        assert results[1].job_id == results[0].job_id
        assert isinstance(results[2], InputMismatch)


async def test_a_running_step_keeps_the_id_taken() -> None:
    """SUB-07"""
    go = asyncio.Event()

    async def runner(step: Step) -> Succeed:
        await go.wait()
        return Succeed()

    async with bed(runner) as t:
        first = await t.runtime.submit(b"in", run_id="r")
        await t.settle()
        assert (await t.runtime.submit(b"in", run_id="r")).job_id == first.job_id
        with pytest.raises(InputMismatch):
            await t.runtime.submit(b"other", run_id="r")
        go.set()


async def test_an_ended_run_s_id_is_free() -> None:
    """SUB-08"""
    async with bed(done) as t:
        await t.runtime.submit(b"one", run_id="r")
        assert (await t.end("r")).outcome.result == b"one"
        again = await t.runtime.submit(b"two", run_id="r")
        assert again.created
        assert (await t.end("r")).outcome.result == b"two"


@pytest.mark.parametrize("times", [2, 5])
async def test_an_ended_run_with_the_same_input_runs_again(times: int) -> None:
    """SUB-08"""
    async with bed(done) as t:
        for _ in range(times):
            assert (await t.runtime.submit(b"one", run_id="r")).created
            assert (await t.end("r")).outcome.result == b"one"
        assert (await t.queue.stats("workflow-steps")).done == times


async def test_effects_are_committed_with_a_new_run() -> None:
    """SUB-19"""
    async with bed(None) as t:
        await t.queue.kv.put("old", b"x")
        effects = Effects().put("k", b"v").delete("old").enqueue("mail", b"hello")
        await t.runtime.submit(b"in", run_id="r", effects=effects)
        assert await t.queue.kv.get("k") == b"v"
        assert await t.queue.kv.get("old") is None
        assert (await t.queue.stats("mail")).pending == 1


async def test_a_duplicate_drops_its_effects() -> None:
    """SUB-10"""
    async with bed(None) as t:
        await t.runtime.submit(b"in", run_id="r")
        again = await t.runtime.submit(
            b"in", run_id="r", effects=Effects().put("k", b"v").enqueue("mail", b"hello")
        )
        assert not again.created
        assert await t.queue.kv.get("k") is None
        assert (await t.queue.stats("mail")).pending == 0


async def test_a_mismatch_drops_its_effects() -> None:
    """SUB-11"""
    async with bed(None) as t:
        await t.runtime.submit(b"in", run_id="r")
        with pytest.raises(InputMismatch):
            await t.runtime.submit(b"other", run_id="r", effects=Effects().put("k", b"v"))
        assert await t.queue.kv.get("k") is None


async def test_a_duplicate_keeps_the_first_settings() -> None:
    """SUB-12"""
    async with bed(None) as t:
        await t.runtime.submit(b"in", run_id="r", headers={"a": "1"}, priority=7)
        again = await t.runtime.submit(b"in", run_id="r", headers={"a": "2"}, priority=8)
        job = await t.queue.get_job(again.job_id)
        assert job is not None
        assert (job.priority, job.headers["a"]) == (7, "1")


@pytest.mark.parametrize("name", ["workflow.run_id", "workflow.", "workflow.anything"])
async def test_reserved_headers(name: str) -> None:
    """SUB-13"""
    async with bed(None) as t:
        writes = t.store.writes
        with pytest.raises(ReservedName, match=name):
            await t.runtime.submit(b"in", headers={name: "x"})
        await t.settle()
        assert t.store.writes == writes
        assert await t.runtime.unfinished() == 0


@pytest.mark.parametrize("name", ["workflow", "workflows.x", "Workflow.run_id", ""])
async def test_headers_that_only_look_reserved(name: str) -> None:
    """SUB-14"""
    async with bed(done) as t:
        run = await t.runtime.submit(b"in", headers={name: "x"})
        assert (await t.end(run.run_id)).outcome.headers == {name: "x"}


async def test_effects_cannot_enqueue_on_the_runtime_s_queue() -> None:
    """SUB-16"""
    async with bed(None, queue_name="steps") as t:
        effects = Effects().put("k", b"v").enqueue("steps", b"in")
        with pytest.raises(ReservedName, match="'steps'"):
            await t.runtime.submit(b"in", run_id="r", effects=effects)
        assert await t.runtime.status("r") is None
        assert await t.queue.kv.get("k") is None


async def test_the_key_value_store_is_all_the_caller_s() -> None:
    """SUB-17, EFF-03: runs are rows of their own, so no key is reserved."""
    async with bed(None) as t:
        await t.runtime.submit(b"in", run_id="r", effects=Effects().put("workflow/runs/r", b"v"))
        assert await t.queue.kv.get("workflow/runs/r") == b"v"
        status = await t.runtime.status("r")
        assert status is not None and status.state is RunState.PENDING


async def test_conflicting_and_oversized_effects_are_refused_where_they_are_staged() -> None:
    """SUB-20, SUB-21, SUB-22"""
    with pytest.raises(ConflictingEffects):
        Effects().put("k", b"v").delete("k")
    with pytest.raises(ConflictingEffects):
        Effects().delete("k").put("k", b"v")
    with pytest.raises(ValueTooLarge):
        Effects().put("k", bytes(262_145))
    Effects().put("k", bytes(262_144))


async def test_a_reserved_header_is_refused_of_a_duplicate_too() -> None:
    """SUB-23"""
    async with bed(None) as t:
        await t.runtime.submit(b"in", run_id="r")
        with pytest.raises(ReservedName):
            await t.runtime.submit(b"in", run_id="r", headers={"workflow.x": "1"})


BAD_IDS = ["", "a/b", "a b", "a:b", "a" * 129, "é", "a\n", "a.b", "\x00", "ａ", "٣"]


@pytest.mark.parametrize("run_id", BAD_IDS)
async def test_invalid_run_ids(run_id: str) -> None:
    """SUB-24, SUB-27"""
    async with bed(None) as t:
        writes = t.store.writes
        for call in (
            t.runtime.submit(b"in", run_id=run_id),
            t.runtime.status(run_id),
            t.runtime.outcome(run_id),
            t.runtime.wait(run_id),
        ):
            with pytest.raises(InvalidRunId, match="run id"):
                await call
        await t.settle()
        assert t.store.writes == writes


@pytest.mark.parametrize("run_id", ["a" * 128, "-", "_", "A-z_09"])
async def test_valid_run_ids(run_id: str) -> None:
    """SUB-25"""
    async with bed(done) as t:
        assert (await t.runtime.submit(b"in", run_id=run_id)).run_id == run_id
        assert (await t.end(run_id)).outcome.run_id == run_id


async def test_a_run_that_starts_later() -> None:
    """SUB-28"""
    async with bed(done) as t:
        at = at_ms(t.clock) + timedelta(minutes=1)
        run = await t.runtime.submit(b"in", run_at=at)
        job = await t.queue.get_job(run.job_id)
        assert job is not None and (job.state, job.run_at) == (JobState.SCHEDULED, at)
        status = await t.runtime.status(run.run_id)
        assert status is not None and status.state is RunState.PENDING
        await t.clock.advance(59.999)
        assert await t.runtime.unfinished() == 1
        await t.clock.advance(0.001)
        assert await t.runtime.unfinished() == 0


@pytest.mark.parametrize("delay", [60, timedelta(minutes=1)])
async def test_a_run_that_starts_after_a_while(delay: timedelta | float) -> None:
    """The delay counts from the commit, however the run is submitted."""
    async with bed(done) as t:
        waiting = t.runtime.submission(b"in", delay=delay)
        await t.clock.advance(600)
        await t.runtime.submit(b"in", delay=delay)
        await t.runtime.submit_many([waiting])
        await t.queue.commit(RunEffects(t.runtime._opened()).submit(b"in", delay=delay))
        await t.clock.advance(59.999)
        assert await t.runtime.unfinished() == 3
        await t.clock.advance(0.001)
        assert await t.runtime.unfinished() == 0


@pytest.mark.parametrize("earlier", [timedelta(0), timedelta(milliseconds=1), timedelta(days=9999)])
async def test_a_start_that_has_passed_is_now(earlier: timedelta) -> None:
    """SUB-29"""
    async with bed(None) as t:
        run = await t.runtime.submit(b"in", run_at=at_ms(t.clock) - earlier)
        job = await t.queue.get_job(run.job_id)
        assert job is not None and (job.state, job.run_at) == (JobState.PENDING, None)


async def test_settings_of_every_step() -> None:
    """SUB-30, SUB-31"""
    seen: list[tuple[int, int, int, dict[str, str]]] = []

    async def runner(step: Step) -> Continue | Succeed:
        [(job_id,)] = t.queue.peek("SELECT job_id FROM runs WHERE run_id = ?", (step.run_id,))
        job = await t.queue.get_job(job_id)
        assert job is not None
        seen.append((job.priority, job.max_attempts, step.max_attempts, step.headers))
        return Continue() if step.number < 3 else Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r", priority=3, max_attempts=5, headers={"h": "x"})
        assert (await t.end("r")).termination.final_step == 3
    assert seen == [(3, 5, 5, {"h": "x"})] * 4


async def test_only_step_0_waits_for_run_at() -> None:
    """SUB-30"""
    at: list[int] = []

    async def runner(step: Step) -> Continue | Succeed:
        at.append(t.clock.now_ms())
        return Continue() if step.number < 2 else Succeed()

    async with bed(runner) as t:
        start = t.clock.now_ms()
        await t.runtime.submit(b"", run_id="r", run_at=at_ms(t.clock) + timedelta(hours=1))
        await t.end("r")
        assert at == [start + 3_600_000] * 3


async def test_a_run_whose_job_is_gone_is_not_confirmed() -> None:
    """SUB-34: nobody works on it, so that must not look like an active run."""
    async with bed(None) as t:
        run = await t.runtime.submit(b"in", run_id="r")
        await t.queue.cancel(run.job_id)
        with pytest.raises(InconsistentRunState, match="'r'"):
            await t.runtime.submit(b"in", run_id="r")


async def test_an_empty_input() -> None:
    """SUB-32"""
    async with bed(done) as t:
        run = await t.runtime.submit(b"")
        assert (await t.end(run.run_id)).outcome.result == b""


async def test_two_runtimes_of_other_names_have_their_own_runs() -> None:
    """SUB-35: runs are scoped by queue name."""

    def answer(name: bytes) -> Any:
        async def runner(step: Step) -> Succeed:
            return Succeed(name + step.payload)

        return runner

    from taquba.workflow import WorkflowRuntime

    async with bed(answer(b"a:"), queue_name="a") as t:
        async with WorkflowRuntime(t.queue, answer(b"b:"), queue_name="b") as other:
            first = await t.runtime.submit(b"one", run_id="r")
            second = await other.submit(b"two", run_id="r")
            assert first.created and second.created
            assert (await t.runtime.wait("r")).outcome.result == b"a:one"
            assert (await other.wait("r")).outcome.result == b"b:two"
            # Numbers of lives are never given twice, whoever submits.
            third = await t.runtime.submit(b"three", run_id="s")
            assert (await t.runtime.wait(third.run_id)).outcome.result == b"a:three"


async def test_a_submission_is_durable_when_it_returns() -> None:
    """T0: one transaction, acknowledged after its PUT."""
    store, clock = MemoryStore(), ManualClock()
    first = Process(store, None, clock)
    assert await first.opened()
    first.store.hold()
    submitting = asyncio.ensure_future(first.runtime.submit(b"in", run_id="r"))
    again = asyncio.ensure_future(first.runtime.submit(b"in", run_id="r"))
    await clock.advance(5)
    assert not submitting.done()
    assert not again.done(), "a duplicate must not be reported before the original is durable"
    first.store.release()
    await clock.advance(5)
    assert submitting.result().created and not again.result().created
    await first.kill()
    async with bed(done, store=store, clock=clock) as t:
        assert (await t.end("r")).outcome.result == b"in"


async def test_a_submission_whose_caller_gave_up_is_whole_or_absent() -> None:
    """T0"""
    async with bed(done) as t:
        t.store.hold()
        submitting = asyncio.ensure_future(t.runtime.submit(b"in", run_id="r"))
        await t.settle()
        submitting.cancel()
        await asyncio.gather(submitting, return_exceptions=True)
        t.store.release()
        assert (await t.end("r")).outcome.result == b"in"


def at_ms(clock: ManualClock) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC)


async def test_an_id_may_be_used_once() -> None:
    async with bed(done) as t:
        first = await t.runtime.submit(b"x", run_id="r", once=True)
        await t.end("r")
        again = await t.runtime.submit(b"x", run_id="r", once=True)
        assert (again.created, again.job_id) == (False, first.job_id)
        with pytest.raises(InputMismatch, match="has ended with another input"):
            await t.runtime.submit(b"y", run_id="r", once=True)
        assert (await t.runtime.submit(b"y", run_id="r")).created
