"""How long ended runs are remembered."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from taquba import ManualClock, PermanentError, TransientError
from taquba.errors import InvalidArgument, InvalidType, RunNotFound
from taquba.objectstore import MemoryStore
from taquba.workflow import (
    Cancel,
    Continue,
    Fail,
    Outcome,
    RunState,
    Step,
    Succeed,
    WorkflowRuntime,
)
from taquba.workflow import _retention as retention_module

from .harness import Bed, Process, bed

pytestmark = pytest.mark.anyio

WINDOW = 0.2


async def done(step: Step) -> Outcome:
    await step.run_memo.put("k", b"memo")
    return Succeed(step.payload)


async def run(t: Bed, run_id: str, payload: bytes = b"") -> None:
    await t.runtime.submit(payload, run_id=run_id)
    await t.settle()
    status = await t.runtime.status(run_id)
    assert status is not None and status.state is RunState.TERMINATED


async def known(runtime: WorkflowRuntime, *run_ids: str) -> list[bool]:
    return [await runtime.status(run_id) is not None for run_id in run_ids]


def rows(t: Bed, table: str) -> int:
    [(count,)] = t.queue.peek(f"SELECT count(*) FROM {table}")
    return int(count)


async def test_without_retention_runs_stay() -> None:
    """RET-01"""
    async with bed(done) as t:
        await run(t, "r")
        await t.clock.advance(timedelta(days=4000))
        assert await known(t.runtime, "r") == [True]
        assert t.clock.sleeping == 0, "and nobody waits for anything"


@pytest.mark.parametrize("how", ["success", "failure", "dead", "transient", "cancelled"])
async def test_a_run_goes_however_it_ended(how: str) -> None:
    """RET-02: what is due is the time of its end, and it is written with every end."""

    async def runner(step: Step) -> Outcome:
        match how:
            case "success":
                return Succeed()
            case "failure":
                return Fail("no")
            case "dead":
                raise PermanentError("no")
            case "transient":
                raise TransientError("no")
            case _:
                return Cancel("no")

    async with bed(runner, retention=60) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        await t.clock.advance(59.999)
        assert await known(t.runtime, "r") == [True]
        await t.clock.advance(0.001)
        assert await known(t.runtime, "r") == [False]
        assert (rows(t, "runs"), rows(t, "memos")) == (0, 0)


async def test_exactly_at_the_window() -> None:
    """RET-03, WRK-06"""
    async with bed(done, retention=WINDOW) as t:
        await run(t, "r", b"result")
        await t.clock.advance(0.199)
        assert await known(t.runtime, "r") == [True]
        await t.clock.advance(0.001)
        assert await known(t.runtime, "r") == [False]
        assert (rows(t, "runs"), rows(t, "memos"), rows(t, "ended_lives")) == (0, 0, 0)


async def test_only_what_is_old_enough_goes() -> None:
    """RET-04"""
    async with bed(done, retention=timedelta(seconds=10)) as t:
        await run(t, "old")
        await t.clock.advance(6)
        await run(t, "young")
        await t.clock.advance(4)
        assert await known(t.runtime, "old", "young") == [False, True]
        await t.clock.advance(6)
        assert await known(t.runtime, "young") == [False]
        assert t.clock.sleeping == 0, "nothing is left to wait for"


async def test_a_run_that_has_not_ended_stays() -> None:
    """RET-05: however long it takes, and its memos with it."""

    async def runner(step: Step) -> Outcome:
        if step.number == 0:
            await step.run_memo.put("k", b"kept")
            return Continue(after=timedelta(days=30))
        return Succeed(await step.run_memo.get("k"))

    async with bed(runner, retention=0) as t:
        await t.runtime.submit(b"", run_id="r")
        end = asyncio.ensure_future(t.runtime.wait("r"))
        await t.clock.advance(timedelta(days=29))
        assert await known(t.runtime, "r") == [True]
        await t.clock.advance(timedelta(days=1))
        assert (await end).outcome.result == b"kept"


async def test_a_new_life_is_not_touched_when_the_old_one_would_have_been_due() -> None:
    """RET-06: neither the run nor its memos."""
    steps: list[bytes | None] = []

    async def runner(step: Step) -> Outcome:
        if step.payload == b"old":
            return Succeed()
        if step.number == 0:
            await step.run_memo.put("k", b"new")
            return Continue(after=100)
        steps.append(await step.run_memo.get("k"))
        return Succeed()

    async with bed(runner, retention=10) as t:
        await run(t, "r", b"old")
        await t.clock.advance(5)
        await t.runtime.submit(b"new", run_id="r")
        await t.clock.advance(50)
        status = await t.runtime.status("r")
        assert status is not None
        assert (status.state, status.current_step) == (RunState.PENDING, 1)
        await t.clock.advance(50)
        assert steps == [b"new"]


async def test_a_new_life_that_has_ended_has_a_window_of_its_own() -> None:
    """RET-07"""
    async with bed(done, retention=10) as t:
        await run(t, "r", b"old")
        await t.clock.advance(5)
        await run(t, "r", b"new")
        await t.clock.advance(9.999)
        outcome = await t.runtime.outcome("r")
        assert outcome is not None and outcome.result == b"new"
        await t.clock.advance(0.001)
        assert await known(t.runtime, "r") == [False]


async def test_a_window_of_zero() -> None:
    """RET-09: gone at once, and whoever waited is told its end all the same."""
    async with bed(done, retention=0) as t:
        waiting = [
            asyncio.ensure_future(t.runtime.wait((await t.runtime.submit(b"x")).run_id))
            for _ in range(3)
        ]
        await t.settle()
        assert [(await each).outcome.result for each in waiting] == [b"x"] * 3
        assert rows(t, "runs") == 0


@pytest.mark.parametrize("how", ["left", "killed"])
async def test_a_fresh_process_sweeps_what_earlier_ones_left(how: str) -> None:
    """RET-10: also if they had no retention, whatever the clock did meanwhile."""
    store, clock = MemoryStore(), ManualClock()
    process = Process(store, done, clock)
    assert await process.opened()
    for run_id in ("a", "b"):
        await process.runtime.submit(b"", run_id=run_id)
        await process.runtime.wait(run_id)
    await (process.leave() if how == "left" else process.kill())
    await clock.advance(30)
    async with bed(None, store=store, clock=clock, retention=60) as t:
        await t.settle()
        assert await known(t.runtime, "a", "b") == [True, True]
        await t.clock.advance(30)
        assert await known(t.runtime, "a", "b") == [False, False]
    await clock.advance(1)
    async with bed(done, store=store, clock=clock, retention=60) as t:
        await run(t, "c")
    await clock.advance(timedelta(days=1))
    async with bed(None, store=store, clock=clock, retention=60) as t:
        await t.settle()
        assert rows(t, "runs") == 0, "the first pass is at the start"


async def test_switched_on_later_it_applies_to_all_runs() -> None:
    """8.1: no marker is needed, since a run tells when it ended."""
    store, clock = MemoryStore(), ManualClock()
    async with bed(done, store=store, clock=clock) as t:
        await run(t, "r")
    await clock.advance(60)
    async with bed(done, store=store, clock=clock, retention=60) as t:
        await t.settle()
        assert await known(t.runtime, "r") == [False]


async def test_switched_off_later_runs_stay() -> None:
    """8.1"""
    store, clock = MemoryStore(), ManualClock()
    async with bed(done, store=store, clock=clock, retention=60) as t:
        await run(t, "r")
    async with bed(done, store=store, clock=clock) as t:
        await t.clock.advance(timedelta(days=1))
        assert await known(t.runtime, "r") == [True]


async def test_a_swept_run_is_unknown() -> None:
    """RET-12"""
    async with bed(done, retention=1) as t:
        await run(t, "r", b"old")
        await t.clock.advance(1)
        assert await t.runtime.status("r") is None
        assert await t.runtime.outcome("r") is None
        with pytest.raises(RunNotFound):
            await t.runtime.wait("r")
        assert not await t.runtime.cancel("r")
        assert (await t.runtime.submit(b"new", run_id="r")).created
        assert (await t.end("r", within=0)).outcome.result == b"new"


async def test_a_cancelled_step_counts_from_its_end() -> None:
    """RET-13: not from the request."""
    go = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        await go.wait()
        return Succeed()

    async with bed(runner, retention=10) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r")
        await t.clock.advance(9)
        go.set()
        await t.clock.advance(9.999)
        assert await known(t.runtime, "r") == [True]
        await t.clock.advance(0.001)
        assert await known(t.runtime, "r") == [False]


async def test_names_do_not_touch_each_other() -> None:
    """WRK-12: several runtimes with windows of their own, or none, on one store."""
    async with bed(done, retention=10) as t:
        async with (
            WorkflowRuntime(t.queue, done, queue_name="longer", retention=20) as longer,
            WorkflowRuntime(t.queue, done, queue_name="never") as never,
        ):
            runtimes = (t.runtime, longer, never)
            for runtime in runtimes:
                await runtime.submit(b"", run_id="r")
            await t.settle()
            for passed, expected in [(9.9, 3), (0.1, 2), (9.9, 2), (0.1, 1), (1e6, 1)]:
                await t.clock.advance(passed)
                found = [(await known(runtime, "r"))[0] for runtime in runtimes]
                assert found == [False] * (3 - expected) + [True] * expected


async def test_two_runtimes_of_one_name() -> None:
    """13.4: the shortest window counts, as long as its runtime is there."""
    async with bed(done, retention=20) as t:
        async with WorkflowRuntime(t.queue, None, retention=5):
            await run(t, "a")
            await t.clock.advance(5)
            assert await known(t.runtime, "a") == [False]
            await run(t, "b")
        await t.clock.advance(19.9)
        assert await known(t.runtime, "b") == [True]
        await t.clock.advance(0.1)
        assert await known(t.runtime, "b") == [False]


async def test_a_runtime_that_was_left_sweeps_no_more() -> None:
    async with bed(None) as t:
        async with WorkflowRuntime(t.queue, done, retention=5) as runtime:
            await runtime.submit(b"", run_id="r")
            await runtime.wait("r")
        await t.clock.advance(60)
        assert await known(t.runtime, "r") == [True]
        assert t.clock.sleeping == 0


async def test_many_runs_go_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """No transaction is larger than a slice, by runs or by bytes; and others come between."""
    monkeypatch.setattr(retention_module, "_FIRST_SLICE", 8)
    monkeypatch.setattr(retention_module, "_LARGEST_SLICE", 16)
    monkeypatch.setattr(retention_module, "_BYTES_PER_SLICE", 1000)
    store, clock = MemoryStore(), ManualClock()
    async with bed(done, store=store, clock=clock) as t:
        for number in range(100):
            await t.runtime.submit(b"", run_id=f"small-{number}")
        await t.settle()
        await t.clock.advance(1)
        for number in range(10):
            await t.runtime.submit(b"x" * 500, run_id=f"large-{number}")
        await t.settle()
    await clock.advance(10)
    async with bed(None, store=store, clock=clock) as t:
        removed: list[int] = []
        transaction = t.queue.transaction

        def counting() -> Any:
            before = rows(t, "runs")
            tx = transaction()
            tx.after_commit(lambda: removed.append(before - rows(t, "runs")))
            return tx

        monkeypatch.setattr(t.queue, "transaction", counting)
        async with WorkflowRuntime(t.queue, None, retention=10):
            await t.settle()
            assert rows(t, "runs") == 0
        assert removed == [8, 16, 16, 16, 16, 16, 14, 2, 2, 2, 2], "fewer of the large ones"


async def test_a_failing_pass_is_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """RET-11: what was due stays so, and goes a little later."""
    async with bed(done, retention=10) as t:
        await run(t, "r")
        transaction, errors = t.queue.transaction, [OSError("disk")]

        def failing() -> Any:
            if errors:
                raise errors.pop()
            return transaction()

        monkeypatch.setattr(t.queue, "transaction", failing)
        await t.clock.advance(10)
        assert await known(t.runtime, "r") == [True]
        assert "will be repeated" in caplog.text
        await t.clock.advance(5)
        assert await known(t.runtime, "r") == [False]


async def test_a_result_that_is_an_object_goes_with_its_run() -> None:
    """RET-03"""

    async def objects() -> list[str]:
        return [info.key async for info in t.store.below.list("payloads/")]

    async def runner(step: Step) -> Outcome:
        return Succeed(bytes(2_000_000))

    async with bed(runner, retention=10) as t:
        await run(t, "r")
        await t.clock.advance(9)
        assert len(await objects()) == 1
        await t.clock.advance(1)
        assert await known(t.runtime, "r") == [False]
        await t.clock.advance(60)
        assert await objects() == []


async def test_a_clock_that_is_stepped_forward_is_noticed() -> None:
    async with bed(done, retention=timedelta(days=10)) as t:
        await run(t, "r")
        t.clock.shift_wall_clock(timedelta(days=20))
        await t.clock.advance(3600)
        assert await known(t.runtime, "r") == [False]


async def test_a_number_of_a_life_is_not_used_again() -> None:
    """RET-06: what is left of a life that was removed must not meet a later one."""
    store, clock = MemoryStore(), ManualClock()
    async with bed(done, store=store, clock=clock, retention=0) as t:
        await t.runtime.submit(b"")
        await t.settle()
        with t.queue.transaction() as tx:
            tx.execute("INSERT INTO ended_lives VALUES (7)")
    async with bed(None, store=store, clock=clock) as t:
        await t.runtime.submit(b"", run_id="r")
        assert t.queue.peek("SELECT life FROM runs") == [(8,)]


async def test_it_waits_without_doing_anything() -> None:
    """A sweep sleeps until the next run is due, and costs no request."""
    async with bed(done, retention=timedelta(minutes=50)) as t:
        await run(t, "r")
        await t.clock.advance(5)
        before = t.store.writes
        assert t.clock.sleeping == 1
        await t.clock.advance(timedelta(minutes=49))
        assert (t.store.writes, t.clock.sleeping) == (before, 1)
        await t.clock.advance(timedelta(minutes=1))
        assert t.store.writes == before + 1
        assert t.clock.sleeping == 0


@pytest.mark.parametrize("wrong", [-1, float("nan"), timedelta(seconds=-1)])
async def test_windows_that_are_none(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="retention"):
        async with bed(done, retention=wrong):
            pass


async def test_a_window_of_another_type() -> None:
    with pytest.raises(InvalidType, match="retention"):
        async with bed(done, retention="1d"):
            pass


async def test_an_endless_window() -> None:
    async with bed(done, retention=float("inf")) as t:
        await run(t, "r")
        await t.clock.advance(timedelta(days=4000))
        assert await known(t.runtime, "r") == [True]
        assert t.clock.sleeping == 0
