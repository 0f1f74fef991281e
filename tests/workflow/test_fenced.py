"""Another process takes the store over: the first one stops, and says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taquba import Effects, ManualClock
from taquba.errors import Fenced
from taquba.objectstore import MemoryStore
from taquba.workflow import (
    Continue,
    Outcome,
    RunState,
    Step,
    Succeed,
    TerminalStatus,
)

from .harness import Process, bed, settle

pytestmark = pytest.mark.anyio


class Waiting:
    """A runner whose steps wait until they are told to go on, or are cancelled."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.go = asyncio.Event()

    async def __call__(self, step: Step) -> Outcome:
        self.started += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Succeed(b"from the first")


async def second(step: Step) -> Outcome:
    return Succeed(b"from the second")


async def test_a_runtime_that_is_at_work() -> None:
    """WRK-09: its block is cancelled and raises Fenced; what it finished late does not count."""
    store, clock = MemoryStore(), ManualClock()
    runner = Waiting()
    first = Process(store, runner, clock)
    assert await first.opened()
    await first.runtime.submit(b"", run_id="r")
    await first.runtime.submit(b"", run_id="s")
    await settle(clock)
    waiting = asyncio.ensure_future(first.runtime.wait("r"))
    async with bed(second, store=store, clock=clock) as t:
        assert (await t.end("r")).outcome.result == b"from the second"
        runner.go.set()
        await settle(clock)
        with pytest.raises(Fenced):
            await waiting
        with pytest.raises(Fenced):
            await first.task
        assert (await t.end("s")).outcome.result == b"from the second"
        assert (await t.runtime.wait("r")).outcome.result == b"from the second"


async def test_steps_under_way_are_cancelled() -> None:
    """They run again elsewhere, so they must not go on here."""
    store, clock = MemoryStore(), ManualClock()
    runner = Waiting()
    first = Process(store, runner, clock)
    assert await first.opened()
    for number in range(3):
        await first.runtime.submit(b"", run_id=f"r{number}")
    await settle(clock)
    async with bed(second, store=store, clock=clock) as t:
        with pytest.raises(Fenced):
            await first.runtime.submit(b"", run_id="new")
        await settle(clock)
        with pytest.raises(Fenced):
            await first.task
        assert (runner.started, runner.cancelled) == (3, 3)
        assert await t.runtime.status("new") is None


async def test_every_call_raises_fenced() -> None:
    """Nothing is acknowledged, and nothing is answered that is no longer true."""
    store, clock = MemoryStore(), ManualClock()
    first = Process(store, None, clock)
    assert await first.opened()
    await first.runtime.submit(b"", run_id="r")
    calls: list[Any] = []

    async def body() -> None:
        runtime = first.runtime
        for call in (
            lambda: runtime.submit(b"", run_id="n"),
            lambda: runtime.submit(b"", run_id="n", effects=Effects().put("k", b"v")),
            lambda: runtime.submit(b"", run_id="r"),
            lambda: runtime.wait("r"),
            lambda: runtime.wait("r", timeout=5),
            lambda: runtime.status("r"),
            lambda: runtime.outcome("r"),
            lambda: runtime.unfinished(),
        ):
            try:
                calls.append(await call())
            except Exception as error:
                calls.append(error)

    async with bed(None, store=store, clock=clock) as t:
        await body()
        assert [type(x) for x in calls] == [Fenced] * len(calls), calls
        assert await t.runtime.status("n") is None
        assert await t.queue.kv.get("k") is None


@pytest.mark.parametrize("runner", [second, None])
async def test_an_idle_runtime_learns_it_with_the_first_write(runner: Any) -> None:
    """Also if somebody else's call met the fence: the block must not stay open."""
    store, clock = MemoryStore(), ManualClock()
    first = Process(store, runner, clock)
    assert await first.opened()
    async with bed(second, store=store, clock=clock):
        await clock.advance(3600)
        assert not first.task.done(), "an idle process asks nothing, so it cannot know yet"
        with pytest.raises(Fenced):
            await first.queue.kv.put("k", b"v")
        await settle(clock)
        assert first.task.done()
        with pytest.raises(Fenced):
            await first.task


async def test_a_body_that_handles_it() -> None:
    """The block raises what the body made of it."""
    store, clock = MemoryStore(), ManualClock()

    class Mine(Exception):
        pass

    with pytest.raises(Mine) as caught:
        async with bed(second, store=store, clock=clock) as t:
            other = Process(store, second, clock)
            assert await other.opened()
            try:
                await t.runtime.submit(b"")
            except Fenced as error:
                raise Mine from error
    assert isinstance(caught.value.__cause__, Fenced)
    await other.leave()


async def test_a_memo_in_a_fenced_process() -> None:
    """It is not stored, and the step is told."""
    store, clock = MemoryStore(), ManualClock()
    told: list[BaseException] = []
    go = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        await go.wait()
        try:
            await step.memo.put("k", b"late")
        except BaseException as error:
            told.append(error)
            raise
        return Succeed()

    async def look(step: Step) -> Outcome:
        return Succeed(await step.memo.get("k"))

    first = Process(store, runner, clock)
    assert await first.opened()
    await first.runtime.submit(b"", run_id="r")
    await settle(clock)
    async with bed(look, store=store, clock=clock) as t:
        go.set()
        await settle(clock)
        assert [type(x) for x in told] in ([Fenced], [asyncio.CancelledError])
        assert (await t.end("r")).outcome.result is None
        with pytest.raises(Fenced):
            await first.task


async def test_taking_over_again_and_again() -> None:
    """Each of many processes fences the one before; the run ends once."""
    store, clock = MemoryStore(), ManualClock()
    steps: list[int] = []

    async def runner(step: Step) -> Outcome:
        steps.append(step.number)
        return Continue(after=10) if step.number < 10 else Succeed(b"end")

    processes: list[Process] = []
    for number in range(11):
        processes.append(Process(store, runner, clock))
        assert await processes[-1].opened()
        if number == 0:
            await processes[0].runtime.submit(b"", run_id="r")
        await clock.advance(10)
    end = await processes[-1].runtime.wait("r", timeout=0)
    assert end.termination.final_step == 10
    assert end.termination.status is TerminalStatus.SUCCEEDED
    assert sorted(set(steps)) == list(range(11))
    for process in processes[:-1]:
        with pytest.raises(Fenced):
            await process.runtime.submit(b"")
        await settle(clock)
        with pytest.raises(Fenced):
            await process.task
    await processes[-1].leave()


async def test_what_was_acknowledged_before_is_kept() -> None:
    store, clock = MemoryStore(), ManualClock()
    first = Process(store, None, clock)
    assert await first.opened()
    acknowledged = [await first.runtime.submit(b"%d" % n, run_id=f"r{n}") for n in range(20)]
    async with bed(None, store=store, clock=clock) as t:
        for n, run in enumerate(acknowledged):
            again = await t.runtime.submit(b"%d" % n, run_id=run.run_id)
            assert (again.created, again.job_id) == (False, run.job_id)
            status = await t.runtime.status(run.run_id)
            assert status is not None and status.state is RunState.PENDING
    await first.kill()


async def test_a_runtime_cannot_be_entered_on_a_fenced_queue() -> None:
    from taquba import Queue
    from taquba.workflow import WorkflowRuntime

    store, clock = MemoryStore(), ManualClock()
    queue = await Queue.open(store, clock=clock)
    async with bed(None, store=store, clock=clock):
        with pytest.raises(Fenced):
            await queue.kv.put("k", b"v")
        for runner in (second, None):
            with pytest.raises(Fenced):
                async with WorkflowRuntime(queue, runner):
                    raise AssertionError("not reached")
            for _ in range(5):
                await asyncio.sleep(0)  # and this task is not cancelled afterwards
    await queue.close()
