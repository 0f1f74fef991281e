"""Runs that are submitted as an effect, many runs at once, and what steps read of keys."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from taquba import Effects, ManualClock, PermanentError, Queue, QueueConfig, TransientError
from taquba.errors import (
    ConflictingEffects,
    EffectsSealed,
    InputMismatch,
    InvalidArgument,
    InvalidRunId,
    InvalidState,
    InvalidType,
    ReservedName,
    ValueTooLarge,
)
from taquba.objectstore import MemoryStore
from taquba.workflow import (
    BlockingStep,
    Cancel,
    Continue,
    ErrorKind,
    Fail,
    RunEffects,
    RunState,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)

from .harness import Process, bed

pytestmark = pytest.mark.anyio


class Parent:
    """A runner whose run `parent` submits `child`; every other run succeeds with its input."""

    def __init__(self, outcome: Any = None, *, fail_first: bool = False, **options: Any) -> None:
        self.outcome = outcome or Succeed()
        self.fail_first = fail_first
        self.options = {"run_id": "child", **options}
        self.children = 0

    async def __call__(self, step: Step) -> Any:
        if step.run_id != "parent":
            self.children += 1
            return Succeed(step.payload)
        if step.number > 0:
            return Succeed()
        step.effects.submit(b"for the child", **self.options).put("k", b"v")
        if self.fail_first and step.attempt == 1:
            raise TransientError("not yet")
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize(
    "outcome", [Succeed(b"x"), Continue(), Fail("no"), Cancel("no"), Continue(after=60)]
)
async def test_a_step_submits_a_run(outcome: Any) -> None:
    """EFF-10: with whatever outcome effects are applied, in the same transaction."""
    runner = Parent(outcome, headers={"h": "x"}, priority=7, max_attempts=2)
    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="parent")
        await t.settle()
        end = await t.end("child")
        assert (end.outcome.result, end.outcome.headers) == (b"for the child", {"h": "x"})
        await t.end("parent")
        assert await t.queue.kv.get("k") == b"v"
    assert runner.children == 1


async def test_it_costs_no_write_of_its_own() -> None:
    async with bed(Parent()) as t:
        before = t.store.writes
        await t.runtime.submit(b"", run_id="parent")
        await t.settle()
        await t.end("child")
        # The submission, the parent's step with the child's claim, and the end of the child.
        assert t.store.writes == before + 3


@pytest.mark.parametrize("outcome", [PermanentError("no"), 7])
async def test_a_step_that_fails_submits_nothing(outcome: Any) -> None:
    """EFF-10"""
    async with bed(Parent(outcome), config=QueueConfig(max_attempts=1, jitter=False)) as t:
        await t.runtime.submit(b"", run_id="parent")
        await t.end("parent")
        assert await t.runtime.status("child") is None


async def test_a_cancelled_step_submits_nothing() -> None:
    """EFF-10"""
    go = asyncio.Event()

    async def runner(step: Step) -> Any:
        step.effects.submit(b"", run_id="child")
        await go.wait()
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="parent")
        await t.settle()
        assert await t.runtime.cancel("parent") is True
        go.set()
        await t.settle()
        assert await t.runtime.status("child") is None
        assert await t.runtime.unfinished() == 0


async def test_a_step_that_is_tried_again_submits_once() -> None:
    """EFF-12: without a run id of the caller's, too."""
    runner = Parent(fail_first=True, run_id=None)
    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="parent")
        await t.end("parent")
        await t.settle()
        assert t.queue.peek("SELECT count(*) FROM runs WHERE run_id <> 'parent'") == [(1,)]
    assert runner.children == 1


async def test_an_active_run_with_the_same_input_is_left_alone() -> None:
    async with bed(Parent()) as t:
        first = await t.runtime.submit(b"for the child", run_id="child", run_at=_in(t, 3600))
        await t.runtime.submit(b"", run_id="parent")
        assert (await t.end("parent", within=60)).termination.status is TerminalStatus.SUCCEEDED
        status = await t.runtime.status("child")
        assert status is not None and status.state is RunState.PENDING
        assert (await t.runtime.submit(b"for the child", run_id="child")).job_id == first.job_id


async def test_an_active_run_with_another_input_fails_the_step_for_good() -> None:
    """EFF-07: and nothing else of the step is applied."""
    runner = Parent()
    async with bed(runner) as t:
        await t.runtime.submit(b"other", run_id="child", run_at=_in(t, 3600))
        await t.runtime.submit(b"", run_id="parent")
        termination = (await t.end("parent", within=60)).termination
        assert termination.status is TerminalStatus.FAILED
        assert termination.error_kind is ErrorKind.PERMANENT
        assert termination.error is not None and "'child' is active" in termination.error
        assert await t.queue.kv.get("k") is None
        stats = await t.queue.stats("workflow-steps")
        assert stats.dead == 1


async def test_a_mismatch_does_not_harm_what_is_settled_with_it() -> None:
    go = asyncio.Event()

    async def runner(step: Step) -> Any:
        await go.wait()
        if step.run_id == "bad":
            step.effects.submit(b"x", run_id="good")
        return Succeed(step.payload)

    async with bed(runner) as t:
        for run_id in ("good", "bad", "also-good"):
            await t.runtime.submit(run_id.encode(), run_id=run_id)
        await t.settle()
        go.set()
        ends = [await t.end(run_id) for run_id in ("good", "bad", "also-good")]
        assert [end.termination.status.value for end in ends][0::2] == ["succeeded"] * 2


async def test_a_run_begins_again_in_the_batch_that_ends_it() -> None:
    """Whoever waits for the old life gets its end, also if the new one replaced its record."""
    go = asyncio.Event()

    async def runner(step: Step) -> Any:
        if step.payload == b"new":
            return Succeed(b"of the new life")
        await go.wait()
        if step.run_id == "other":
            step.effects.submit(b"new", run_id="r")
        return Succeed(b"of the old life")

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.runtime.submit(b"", run_id="other")
        await t.settle()
        waiting = [asyncio.ensure_future(t.runtime.wait("r")) for _ in range(2)]
        await t.settle()
        go.set()
        await t.settle()
        assert {each.result().outcome.result for each in waiting} == {b"of the old life"}
        assert (await t.end("r")).outcome.result == b"of the new life"
        assert (await t.end("other")).termination.status is TerminalStatus.SUCCEEDED


async def test_a_step_s_own_run_is_active() -> None:
    async def runner(step: Step) -> Any:
        step.effects.submit(step.payload, run_id=step.run_id)
        return Succeed(b"once")

    async with bed(runner) as t:
        await t.runtime.submit(b"in", run_id="r")
        assert (await t.end("r")).outcome.result == b"once"
        assert await t.runtime.unfinished() == 0


async def test_a_terminal_hook_submits_a_run() -> None:
    """HOOK-03: with the end of the notification, and so once."""
    calls = 0

    async def hook(outcome: Any, effects: RunEffects) -> None:
        nonlocal calls
        if outcome.run_id == "parent":
            calls += 1
            effects.put("k", b"v").submit(b"for the child", run_id="child")
            if calls == 1:
                raise TransientError("not yet")

    async def runner(step: Step) -> Any:
        return Succeed(step.payload)

    async with bed(runner, terminal_hook=hook) as t:
        await t.runtime.submit(b"", run_id="parent")
        await t.clock.advance(60)
        assert (await t.end("child")).outcome.result == b"for the child"
    assert calls == 2


async def test_with_the_end_of_a_job_on_another_queue() -> None:
    async def runner(step: Step) -> Any:
        return Succeed(step.payload)

    async with bed(runner) as t:
        await t.queue.enqueue("mail", b"order 7")

        async def handler(delivery: Any) -> Effects:
            return Effects().add(t.runtime.submission(delivery.payload, run_id="order-7"))

        async with t.queue.worker("mail", handler):
            await t.settle()
            assert (await t.end("order-7")).outcome.result == b"order 7"


async def test_with_calls_of_the_queue_and_with_another_submission() -> None:
    async def runner(step: Step) -> Any:
        return Succeed(step.payload)

    async with bed(runner) as t:
        made = [t.runtime.submission(b"in", run_id=f"r{number}") for number in range(5)]
        await t.queue.commit(Effects().add(made[0]))
        await t.queue.enqueue("mail", b"", effects=Effects().add(made[1]))
        claim = await t.queue.claim("mail")
        assert claim is not None
        await t.queue.ack(claim, Effects().add(made[2]))
        await t.runtime.submit(b"", effects=Effects().add(made[3]).add(made[4]))
        for each in made:
            assert (await t.end(each.run_id)).outcome.result == b"in"
        # Committed again, it begins a new life.
        await t.queue.commit(Effects().add(made[0]))
        assert (await t.end("r0")).outcome.result == b"in"


async def test_a_mismatch_undoes_the_settlement_of_a_job() -> None:
    async with bed(None) as t:
        await t.runtime.submit(b"other", run_id="r")
        await t.queue.enqueue("mail", b"")
        claim = await t.queue.claim("mail")
        assert claim is not None
        effects = Effects().put("k", b"v").add(t.runtime.submission(b"in", run_id="r"))
        with pytest.raises(InputMismatch, match="'r'"):
            await t.queue.ack(claim, effects)
        assert claim.is_live and await t.queue.kv.get("k") is None
        await t.queue.ack(claim)


async def test_one_id_twice_in_the_same_effects() -> None:
    async with bed(None) as t:
        same = [t.runtime.submission(b"in", run_id="r") for _ in range(2)]
        await t.queue.commit(Effects().add(same[0]).add(same[1]))
        assert await t.runtime.unfinished() == 1
        other = t.runtime.submission(b"x", run_id="s")
        with pytest.raises(InputMismatch):
            await t.queue.commit(Effects().add(other).add(t.runtime.submission(b"y", run_id="s")))
        assert await t.runtime.status("s") is None


async def test_a_large_input_is_stored_before() -> None:
    """Of what fails to be committed nothing is left behind."""
    big = bytes(300_000)
    store = MemoryStore()

    async def runner(step: Step) -> Any:
        if step.run_id == "parent":
            step.effects.submit(big, run_id="child")
        return Succeed(str(len(step.payload)).encode())

    async with bed(runner, store=store) as t:
        await t.runtime.submit(b"", run_id="parent")
        assert (await t.runtime.wait("parent")).termination.status is TerminalStatus.SUCCEEDED
        assert (await t.runtime.wait("child")).outcome.result == b"300000"
        await t.runtime.submit(b"other", run_id="r", run_at=_in(t, 3600))
        with pytest.raises(InputMismatch):
            await t.queue.commit(Effects().add(t.runtime.submission(big, run_id="r")))
        await t.settle()
    async with bed(None, store=store) as t:
        await t.settle()
        assert [info.key async for info in store.list("payloads/")] == []


async def test_a_submission_belongs_to_its_store() -> None:
    async with bed(None) as t, bed(None) as other:
        with pytest.raises(InvalidArgument, match="another store"):
            await other.queue.commit(Effects().add(t.runtime.submission(b"in", run_id="r")))
        assert await t.runtime.status("r") is None


async def test_a_runtime_of_another_name() -> None:
    async def runner(step: Step) -> Any:
        return Succeed(b"of the other")

    async with bed(None) as t:
        async with WorkflowRuntime(t.queue, runner, queue_name="other") as other:
            await t.runtime.submit(
                b"", run_id="r", effects=Effects().add(other.submission(b"", run_id="r"))
            )
            assert (await other.wait("r")).outcome.result == b"of the other"
            status = await t.runtime.status("r")
            assert status is not None and status.state is RunState.PENDING


async def test_what_is_wrong_shows_where_it_is_staged() -> None:
    """EFF-05, EFF-08, EFF-09: as of every other effect."""
    kept: list[Any] = []

    async def runner(step: Step) -> Any:
        kept.append(step.effects)
        assert step.effects is step.effects
        for bad, error in (
            ({"run_id": "a/b"}, InvalidRunId),
            ({"headers": {"workflow.x": "1"}}, ReservedName),
            ({"priority": -1}, InvalidArgument),
            ({"revision": "1"}, InvalidArgument),
        ):
            with pytest.raises(error):
                step.effects.submit(b"", **bad)
        with pytest.raises(InvalidType):
            step.effects.submit("text")  # type: ignore[arg-type]
        with pytest.raises(ValueTooLarge):
            step.effects.submit(bytes(2**24 + 1))
        with pytest.raises(ConflictingEffects):
            step.effects.put("k", b"v").delete("k")
        with pytest.raises(InvalidType):
            step.effects.add(b"x")  # type: ignore[arg-type]
        return Succeed()

    async def nothing(step: Step) -> Any:
        kept.append(step)
        return Succeed()

    async with bed(runner) as t:
        run = await t.runtime.submit(b"")
        assert (await t.end(run.run_id)).termination.error is None
        with pytest.raises(EffectsSealed):
            kept[0].submit(b"")
        assert await t.runtime.unfinished() == 0
    async with bed(nothing) as t:
        run = await t.runtime.submit(b"")
        await t.end(run.run_id)
        with pytest.raises(EffectsSealed):
            kept[1].effects.submit(b"")


async def test_a_detached_step_checks_and_keeps() -> None:
    """EFF-13"""
    step = Step.detached()
    step.effects.submit(b"in", run_id="child", headers={"h": "x"}).put("k", b"v")
    [part] = step.effects.parts
    assert repr(part) == "Submission(run_id='child', input=<2 bytes>)"
    with pytest.raises(InvalidRunId):
        step.effects.submit(b"", run_id="a/b")
    async with bed(None) as t:
        with pytest.raises(InvalidState, match="detached"):
            await t.queue.commit(step.effects)
        assert await t.queue.kv.get("k") is None


@pytest.mark.parametrize("die_after", range(3, 10))
async def test_a_crash_leaves_both_or_neither(die_after: int) -> None:
    """EFF-11, EFF-12: parent and child, after every number of objects that were stored."""
    store, clock = MemoryStore(), ManualClock()
    first = Process(store, Parent(Succeed(b"x")), clock, die_after=die_after)
    if await first.opened():
        submitting = asyncio.ensure_future(first.runtime.submit(b"", run_id="parent"))
        await clock.advance(5)
        submitting.cancel()
        await asyncio.gather(submitting, return_exceptions=True)
    await first.kill()
    async with bed(None, store=store, clock=clock) as t:
        parent, child = await t.runtime.status("parent"), await t.runtime.status("child")
        ended = parent is not None and parent.state is RunState.TERMINATED
        assert (child is not None) is ended
    async with bed(Parent(Succeed(b"x")), store=store, clock=clock) as t:
        await t.runtime.submit(b"", run_id="parent")
        assert (await t.end("parent")).termination.status is TerminalStatus.SUCCEEDED
        assert (await t.end("child")).outcome.result == b"for the child"


# -- many at once ---------------------------------------------------------------------------


async def test_many_runs_in_one_transaction() -> None:
    async with bed(None) as t:
        await t.runtime.submit(b"1", run_id="r1")
        await t.settle()
        writes = t.store.writes
        made = [t.runtime.submission(b"%d" % number, run_id=f"r{number}") for number in range(100)]
        submitted = await t.runtime.submit_many(made)
        assert t.store.writes == writes + 1
        assert [each.run_id for each in submitted] == [f"r{number}" for number in range(100)]
        assert [each.created for each in submitted] == [number != 1 for number in range(100)]
        assert await t.runtime.unfinished() == 100
        assert await t.runtime.submit_many([]) == []


async def test_many_runs_or_none() -> None:
    async with bed(None) as t:
        await t.runtime.submit(b"other", run_id="r1")
        writes = t.store.writes
        with pytest.raises(InputMismatch, match="'r1'"):
            await t.runtime.submit_many(
                t.runtime.submission(b"", run_id=f"r{number}") for number in range(3)
            )
        assert t.store.writes == writes
        assert await t.runtime.unfinished() == 1
        with pytest.raises(InvalidType):
            await t.runtime.submit_many([b"in"])  # type: ignore[list-item]
        with pytest.raises(InvalidType):
            await t.runtime.submit_many(b"in")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="10,000"):
            await t.runtime.submit_many([t.runtime.submission(b"")] * 10_001)
        assert len(await t.runtime.submit_many([t.runtime.submission(b"")] * 10_000)) == 10_000
        assert await t.runtime.unfinished() == 2


# -- reading keys ---------------------------------------------------------------------------


async def test_a_step_reads_what_is_committed() -> None:
    """EFF-01, EFF-02: not what it stages itself; the next step does."""
    seen: list[bytes | None] = []

    async def runner(step: Step) -> Any:
        if step.number == 0:
            step.effects.put("k", b"v")
        seen.append(await step.kv.get("k"))
        page = await step.kv.scan("k")
        assert [value for _, value in page.entries] == ([] if step.number == 0 else [b"v"])
        assert not hasattr(step.kv, "put")
        return Continue() if step.number == 0 else Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        assert (await t.end("r")).termination.error is None
    assert seen == [None, b"v"]


async def test_a_step_in_a_thread_reads_too() -> None:
    seen: list[Any] = []

    def runner(step: BlockingStep) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        seen.append((step.kv.get("k"), step.kv.scan("k", limit=5).entries))
        return Succeed()

    async with Queue.open("memory://") as queue:
        await queue.kv.put("k", b"v")
        async with WorkflowRuntime(queue, runner) as runtime:
            run = await runtime.submit(b"")
            assert (await runtime.wait(run.run_id)).termination.error is None
    assert seen == [(b"v", ((b"k", b"v"),))]


async def test_a_detached_step_finds_no_key() -> None:
    """EFF-14"""
    step = Step.detached()
    step.effects.put("k", b"v")
    assert await step.kv.get("k") is None
    assert (await step.kv.scan()).entries == ()
    assert [entry async for entry in step.kv.entries()] == []
    assert BlockingStep.detached().kv.get("k") is None


def _in(t: Any, seconds: float) -> Any:
    from datetime import UTC, datetime, timedelta

    return datetime.fromtimestamp(t.clock.now_ms() / 1000, UTC) + timedelta(seconds=seconds)
