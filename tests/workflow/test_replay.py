"""Outcomes are never replayed, since none is kept apart from what it brings about.

What a step returned, its effects and the next step (or the end of the run) are one commit. Before
it, the step has not happened and is run again; after it, it has, and nothing is run again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taquba import ManualClock, TransientError
from taquba.objectstore import MemoryStore
from taquba.workflow import (
    Continue,
    ErrorKind,
    Fail,
    Outcome,
    RunState,
    Step,
    Succeed,
    TerminalStatus,
)

from .harness import Process, bed, settle

pytestmark = pytest.mark.anyio

STEPS = "workflow-steps"


class Told:
    """A runner that counts its calls, and returns what it is told to."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = outcomes
        self.calls: list[tuple[int, int]] = []
        self.returned = asyncio.Event()

    async def run_step(self, step: Step) -> Outcome:
        self.calls.append((step.number, step.attempt))
        step.effects.put(f"ran/{step.number}", b"%d" % len(self.calls))
        step.effects.delete("old")
        step.effects.enqueue("mail", b"%d" % step.number)
        self.returned.set()
        return self.outcomes[step.number]


async def crashed(store: MemoryStore, clock: ManualClock, runner: Told, *, stored: bool) -> None:
    """A process dies when step 0 has returned: before or after that is stored."""
    process = Process(store, runner, clock)
    assert await process.opened()
    await process.queue.kv.put("old", b"x")
    await process.runtime.submit(b"in", run_id="r")
    await runner.returned.wait()
    if not stored:
        process.store.hold()
    await settle(clock)
    await process.kill()


@pytest.mark.parametrize("stored", [True, False])
async def test_a_crash_after_a_step_that_goes_on(stored: bool) -> None:
    """REP-01, REP-04: it is run again only if nothing of it was stored."""
    store, clock = MemoryStore(), ManualClock()
    first, second = Told(Continue(b"1", after=60)), Told(Continue(b"1", after=60), Succeed(b"end"))
    await crashed(store, clock, first, stored=stored)
    assert first.calls == [(0, 1)]
    async with bed(second, store=store, clock=clock) as t:
        await t.settle()
        assert second.calls == ([] if stored else [(0, 2)])
        status = await t.runtime.status("r")
        assert status is not None
        assert (status.state, status.current_step) == (RunState.PENDING, 1)
        stats = await t.queue.stats(STEPS)
        assert (stats.scheduled, stats.pending, stats.claimed) == (1, 0, 0)
        assert await t.queue.kv.get("ran/0") == b"1"
        assert await t.queue.kv.get("old") is None
        assert [x.job.payload for x in await t.queue.claim_many("mail", 9)] == [b"0"]
        assert (await t.end("r")).outcome.result == b"end"


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("outcome", [Succeed(b"out"), Fail("no")])
async def test_a_crash_after_the_last_step(outcome: Outcome, stored: bool) -> None:
    """REP-02: the end that was stored is the end, and is told."""
    store, clock = MemoryStore(), ManualClock()
    first, second = Told(outcome), Told(Succeed(b"again"))
    await crashed(store, clock, first, stored=stored)
    async with bed(second, store=store, clock=clock) as t:
        end = await t.end("r")
        assert len(second.calls) == (0 if stored else 1)
        if not stored:
            assert end.outcome.result == b"again"
        elif isinstance(outcome, Succeed):
            assert (end.outcome.result, end.outcome.error) == (b"out", None)
        else:
            assert (end.outcome.result, end.outcome.error) == (None, "no")
        assert (await t.queue.stats("mail")).pending == 1


@pytest.mark.parametrize(("later", "left"), [(3, 7), (20, 0)])
async def test_a_delay_counts_from_the_step_s_end(later: float, left: float) -> None:
    """REP-05: whatever happens in between, also while nobody is there."""
    store, clock = MemoryStore(), ManualClock()
    runner = Told(Continue(after=10), Succeed())
    await crashed(store, clock, runner, stored=True)
    await clock.advance(later)
    async with bed(runner, store=store, clock=clock) as t:
        if left:
            await clock.advance(left - 0.5)
            assert runner.calls == [(0, 1)]
            await clock.advance(0.5)
        await t.settle()
        assert runner.calls == [(0, 1), (1, 1)]


async def test_an_error_is_not_kept_for_the_retry() -> None:
    """REP-07"""
    calls = 0

    async def runner(step: Step) -> Outcome:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise TransientError("busy")
        return Succeed(b"out")

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        assert (await t.end("r")).outcome.result == b"out"
    assert calls == 2


@pytest.mark.parametrize("stored", [True, False])
async def test_a_cancelled_step_is_not_run_again(stored: bool) -> None:
    """REP-08, REP-09, STAT-23: the request is all that is kept of it, and it ends the run."""
    store, clock = MemoryStore(), ManualClock()
    began, go = asyncio.Event(), asyncio.Event()

    async def runner(step: Step) -> Outcome:
        step.effects.put("k", b"v")
        began.set()
        await go.wait()
        return Succeed(b"out")

    async def never(step: Step) -> Any:
        raise AssertionError("a cancelled step is not run")

    process = Process(store, runner, clock)
    assert await process.opened()
    await process.runtime.submit(b"", run_id="r", headers={"h": "x"})
    await began.wait()
    assert await process.runtime.cancel("r")
    if not stored:
        process.store.hold()
        go.set()
        await settle(clock)
    await process.kill()
    async with bed(never, store=store, clock=clock) as t:
        end = await t.end("r")
        assert end.termination.status is TerminalStatus.CANCELLED
        assert (end.termination.error, end.termination.error_kind) == (None, None)
        outcome = await t.runtime.outcome("r")
        assert outcome is not None and outcome.status is TerminalStatus.CANCELLED
        assert (outcome.result, outcome.headers) == (None, {"h": "x"})
        assert await t.queue.kv.get("k") is None


async def test_a_failure_of_an_earlier_life_is_not_repeated() -> None:
    """REP-13: the same input once more is a new run, whatever came of the old one."""
    calls = 0

    async def runner(step: Step) -> Outcome:
        nonlocal calls
        calls += 1
        return Fail("no") if calls == 1 else Succeed(b"out")

    async with bed(runner) as t:
        await t.runtime.submit(b"in", run_id="r")
        assert (await t.end("r")).termination.error_kind is ErrorKind.PERMANENT
        assert (await t.runtime.submit(b"in", run_id="r")).created
        assert (await t.end("r")).outcome.result == b"out"
    assert calls == 2
