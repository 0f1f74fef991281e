"""How many requests things cost: writes are what one waits for, and pays for."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from taquba import ManualClock, Queue
from taquba.objectstore import MemoryStore
from taquba.testing import LatencyStore
from taquba.workflow import Continue, Outcome, Step, Succeed, TerminalStatus, WorkflowRuntime

from .harness import bed

pytestmark = pytest.mark.anyio

STEPS = 200


def steps(count: int, *, memos: int = 0, effects: bool = False) -> object:
    async def runner(step: Step) -> Outcome:
        for number in range(memos):
            await step.memo.put(f"k{number}", b"v")
        if effects:
            step.effects.put("k", b"v").enqueue("mail", b"")
        return Continue(step.payload) if step.number < count - 1 else Succeed(step.payload)

    return runner


async def test_a_run_alone_costs_one_write_a_step() -> None:
    """REP-12, and settle-and-claim: the end of a step and the claim of the next share a write."""
    async with bed(steps(STEPS)) as t:
        before = t.store.writes
        await t.runtime.submit(b"x", run_id="r")
        assert (await t.end("r")).termination.final_step == STEPS - 1
        assert STEPS + 1 <= t.store.writes - before <= STEPS + 2


async def test_effects_cost_nothing_more() -> None:
    async with bed(steps(STEPS, effects=True)) as t:
        before = t.store.writes
        await t.runtime.submit(b"x", run_id="r")
        await t.end("r")
        assert t.store.writes - before <= STEPS + 2
        assert (await t.queue.stats("mail")).pending == STEPS


async def test_a_memo_costs_one_write_when_it_is_awaited_alone() -> None:
    async with bed(steps(50, memos=2)) as t:
        before = t.store.writes
        await t.runtime.submit(b"x", run_id="r")
        await t.end("r")
        assert t.store.writes - before <= 50 * 3 + 2


async def test_memos_that_are_stored_at_once_share_a_write() -> None:
    """Within one step, and with the other steps that are under way."""

    async def runner(step: Step) -> Outcome:
        await asyncio.gather(*(step.memo.put(f"k{number}", b"v") for number in range(50)))
        return Succeed()

    async with bed(runner, concurrency=20) as t:
        before = t.store.writes
        runs = await asyncio.gather(*(t.runtime.submit(b"") for _ in range(20)))
        for run in runs:
            assert (await t.end(run.run_id)).termination.status is TerminalStatus.SUCCEEDED
        assert t.store.writes - before <= 8


async def test_a_memo_that_is_found_costs_nothing() -> None:
    async def runner(step: Step) -> Outcome:
        await step.memo.memoized("k", lambda: 1)
        before = t.store.writes
        for _ in range(20):
            assert await step.memo.memoized("k", lambda: 2) == 1
            assert await step.memo.get("k") is not None
        assert t.store.writes == before
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        assert (await t.end("r")).termination.error is None


@pytest.mark.parametrize("memoizing", [False, True])
async def test_a_small_memo_beside_others_costs_no_write(memoizing: bool) -> None:
    """It shares the write that goes out anyhow. Half a second in which there always is one."""
    clock = ManualClock()
    store = LatencyStore(MemoryStore(), 0, clock=clock)
    stored = 0

    over = False

    async def runner(step: Step) -> Outcome:
        nonlocal stored
        while not over:
            await step.memo.memoized(f"k{stored}", lambda: "x" * 1000)
            stored += 1
        return Succeed()

    async with Queue.open(store, clock=clock) as queue, WorkflowRuntime(queue, runner) as runtime:
        store._latency = 0.02
        tasks: list[asyncio.Future[Any]] = []
        if memoizing:
            tasks.append(asyncio.ensure_future(runtime.submit(b"")))
        await clock.advance(0.1)
        before = store.puts
        for _ in range(50):
            tasks.append(asyncio.ensure_future(queue.enqueue("others", b"")))
            await clock.advance(0.01)
        assert 49 <= store.puts - before <= 52
        assert stored >= 15 if memoizing else stored == 0
        over = True
        await clock.advance(1)
        await asyncio.gather(*tasks)
        store._latency = 0


async def test_requests_of_memos_that_are_objects() -> None:
    """A PUT, its part of a write, a GET for each read, and a DELETE in the end."""
    store = LatencyStore(MemoryStore(), 0)
    clock = ManualClock()
    counts: list[dict[str, int]] = []

    async def runner(step: Step) -> Outcome:
        counts.append(dict(store.requests))
        await step.memo.put("k", bytes(100_000))
        counts.append(dict(store.requests))
        for _ in range(3):
            await step.memo.get("k")
        counts.append(dict(store.requests))
        return Succeed()

    async with Queue.open(store, clock=clock) as queue, WorkflowRuntime(queue, runner) as runtime:
        await runtime.submit(b"", run_id="r")
        await runtime.wait("r")
        await clock.advance(0)
        counts.append(dict(store.requests))
    start, put, got, end = (Counter(count) for count in counts)
    assert put - start == Counter(put=1, create=1)
    assert got - put == Counter(get=3)
    assert end - got == Counter(create=1, delete=1)


async def test_many_runs_side_by_side_share_writes() -> None:
    async with bed(steps(10), concurrency=100) as t:
        before = t.store.writes
        runs = await asyncio.gather(*(t.runtime.submit(b"") for _ in range(100)))
        for run in runs:
            await t.end(run.run_id)
        assert t.store.writes - before <= 10 * 3


async def test_an_idle_runtime_writes_nothing() -> None:
    """Not for hours, whatever waits: runs that are due later, waiters, dead and ended runs."""
    async with bed(steps(2)) as t:
        await t.runtime.submit(b"", run_id="ended")
        await t.end("ended")
        await t.queue.enqueue("other", b"")
        waiting = [
            asyncio.ensure_future(t.runtime.wait(run.run_id, timeout=timeout))
            for timeout in (None, timedelta(days=1000))
            for run in [await t.runtime.submit(b"", run_at=_in(t.clock.now_ms(), days=900))]
        ]
        await t.clock.advance(60)  # a checkpoint that was due may still be taken
        before = t.store.writes
        await t.clock.advance(timedelta(hours=50))
        assert t.store.writes == before
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize("renew", ["auto", None])
async def test_a_step_that_takes_long_writes_nothing(renew: str | None) -> None:
    """Leases live in memory, so holding and extending one costs nothing."""

    async def runner(step: Step) -> Outcome:
        for _ in range(100):
            if renew is None:
                step.lease.ensure_at_least(60)
            await t.clock.sleep(60)
        return Succeed()

    async with bed(runner, renew=renew) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.clock.advance(60)
        before = t.store.writes
        await t.clock.advance(60 * 90)
        assert t.store.writes == before
        assert (await t.end("r")).termination.status is TerminalStatus.SUCCEEDED
        job = await t.queue.stats("workflow-steps")
        assert (job.done, job.dead) == (1, 0)


async def test_looking_costs_nothing() -> None:
    async with bed(None) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        before = t.store.writes
        for _ in range(10):
            await t.runtime.status("r")
            await t.runtime.outcome("r")
            await t.runtime.unfinished()
            await t.runtime.submit(b"", run_id="r")
            with pytest.raises(TimeoutError):
                await t.runtime.wait("r", timeout=0)
        await t.settle()
        assert t.store.writes == before


def _in(now_ms: int, *, days: int) -> object:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(now_ms / 1000, UTC) + timedelta(days=days)
