"""Crashes where a test wants them, and what the next process finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from taquba import Delivery, Effects, Follower, PermanentError
from taquba.clock import ManualClock
from taquba.errors import Closed, CommitUnknown, InvalidArgument, InvalidState, InvalidType
from taquba.objectstore import MemoryStore
from taquba.testing import LatencyStore, Sandbox, StillRunning
from taquba.workflow import BlockingStep, Continue, Outcome, Step, Succeed, TerminalStatus

pytestmark = pytest.mark.anyio

Seen = list[tuple[int, int]]


def runners(seen: Seen) -> dict[str, Any]:
    """A run of three steps, each of which tells the outside world that it ran."""

    def outcome(step: Step | BlockingStep) -> Outcome:
        seen.append((step.number, step.attempt))
        step.effects.put(f"done/{step.number}", b"%d" % step.attempt)
        return Continue(b"", after=60) if step.number < 2 else Succeed(b"end")

    async def on_loop(step: Step) -> Outcome:
        await asyncio.sleep(0)
        return outcome(step)

    class Steps:
        async def run_step(self, step: Step) -> Outcome:
            return outcome(step)

    return {"async": on_loop, "in a thread": outcome, "object": Steps()}


@pytest.mark.parametrize("kind", ["async", "in a thread", "object"])
@pytest.mark.parametrize(
    ("point", "before", "after"),
    [
        ("before_step", [(0, 1)], [(1, 2), (2, 1)]),
        ("before_settlement", [(0, 1), (1, 1)], [(1, 2), (2, 1)]),
        ("after_settlement", [(0, 1), (1, 1)], [(2, 1)]),
    ],
)
async def test_a_crash_at_a_named_point(point: Any, before: Seen, after: Seen, kind: str) -> None:
    seen: Seen = []
    async with Sandbox(runners(seen)[kind]) as sandbox:
        run = await sandbox.runtime.submit(b"", run_id="r")
        sandbox.crash_at(point, step=1)
        await sandbox.advance(timedelta(days=1))
        assert sandbox.crashed
        assert seen == before
        with pytest.raises(InvalidState, match=rf"{point} of step 1 of run 'r', attempt 1.*reopen"):
            _ = sandbox.queue

        durable = {"before_step": None, "before_settlement": None, "after_settlement": b"1"}
        async with Follower.open(sandbox.store, clock=sandbox.clock) as follower:
            assert await follower.kv.get("done/1") == durable[point]

        await sandbox.reopen()
        assert not sandbox.crashed
        end = await sandbox.wait(run.run_id)
        assert end.outcome.result == b"end"
        assert seen == before + after


async def test_the_next_step_does_not_begin_after_the_settlement() -> None:
    """Also if it is due at once, and claimed with the settlement."""
    seen: Seen = []

    async def runner(step: Step) -> Outcome:
        seen.append((step.number, step.attempt))
        return Continue(b"") if step.number < 2 else Succeed()

    async with Sandbox(runner) as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        sandbox.crash_at("after_settlement", step=0, run_id="r")
        await sandbox.run_until_idle()
        assert seen == [(0, 1)]
        await sandbox.reopen()
        await sandbox.run_until_idle()
        assert seen == [(0, 1), (1, 2), (2, 1)]  # the claim of step 1 was durable, too


@pytest.mark.parametrize("run_id", ["a", "b", "c"])
async def test_no_next_step_begins_after_the_settlement_of_several(run_id: str) -> None:
    """Also if the task that has it is told before the one that ran the step."""
    seen: list[tuple[str, int]] = []

    async def runner(step: Step) -> Outcome:
        seen.append((step.run_id, step.number))
        return Continue(b"") if step.number == 0 else Succeed()

    async with Sandbox(runner) as sandbox:
        sandbox.crash_at("after_settlement", step=0, run_id=run_id)
        async with asyncio.TaskGroup() as group:
            for each in "abc":
                group.create_task(sandbox.runtime.submit(b"", run_id=each))
        await sandbox.run_until_idle()
        assert sandbox.crashed
        assert (run_id, 0) in seen
        assert (run_id, 1) not in seen


@pytest.mark.parametrize("blocking", [False, True])
async def test_points_of_a_worker(blocking: bool) -> None:
    seen: list[tuple[bytes, int]] = []

    async def on_loop(delivery: Delivery) -> Effects:
        seen.append((delivery.payload, delivery.attempt))
        return Effects().put(b"seen/" + delivery.payload, b"")

    def in_thread(delivery: Delivery) -> Effects:
        seen.append((delivery.payload, delivery.attempt))
        return Effects().put(b"seen/" + delivery.payload, b"")

    async with Sandbox(workers={"work": in_thread if blocking else on_loop}) as sandbox:
        sandbox.crash_at("after_settlement", job_id="a")
        await sandbox.queue.enqueue("work", b"b", job_id="b", delay=1)
        await sandbox.queue.enqueue("work", b"a", job_id="a")
        await sandbox.run_until_idle()
        assert sandbox.crashed
        await sandbox.reopen()
        assert await sandbox.queue.get_job("a") is None
        sandbox.crash_at("before_settlement", queue="work", attempt=1)
        await sandbox.advance(1)
        await sandbox.reopen()
        await sandbox.run_until_idle()
        assert seen == [(b"a", 1), (b"b", 1), (b"b", 2)]
        assert await sandbox.queue.kv.get("seen/a") == await sandbox.queue.kv.get("seen/b") == b""


async def test_a_step_that_fails_comes_to_its_settlement_too() -> None:
    attempts: list[int] = []

    async def runner(step: Step) -> Outcome:
        attempts.append(step.attempt)
        raise PermanentError("no")

    async with Sandbox(runner) as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        sandbox.crash_at("before_settlement")
        await sandbox.run_until_idle()
        await sandbox.reopen()
        assert (await sandbox.wait("r")).termination.status is TerminalStatus.FAILED
        assert attempts == [1, 2]


async def test_a_crash_in_the_middle_of_a_step() -> None:
    seen: list[str] = []

    async def runner(step: Step) -> Outcome:
        await step.memo.memoized("paid", lambda: seen.append("paid"))
        step.effects.put("k", b"%d" % step.attempt)
        if step.attempt == 1:
            seen.append("waits")
            await asyncio.Event().wait()
        return Succeed()

    async with Sandbox(runner) as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        await sandbox.advance(0)
        assert seen == ["paid", "waits"]
        old = sandbox.queue
        await sandbox.crash()
        with pytest.raises((Closed, CommitUnknown)):
            await old.enqueue("q", b"")
        await sandbox.advance(timedelta(days=1))  # while nobody is there
        await sandbox.reopen()
        await sandbox.run_until_idle()
        assert seen == ["paid", "waits"]
        assert await sandbox.queue.kv.get("k") == b"2"


async def test_a_step_that_crashes_its_process_itself() -> None:
    seen: list[str] = []

    async def runner(step: Step) -> Outcome:
        if step.attempt == 1:
            await step.memo.put("kept", b"1")
            await sandbox.crash()
            seen.append("the dead go on")
        assert await step.memo.get("kept") == b"1"
        return Succeed()

    async with Sandbox(runner) as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        await sandbox.run_until_idle()
        assert sandbox.crashed
        await sandbox.reopen()
        await sandbox.run_until_idle()
        assert (await sandbox.wait("r")).termination.status is TerminalStatus.SUCCEEDED
        assert seen == []


async def test_what_the_dying_do_reaches_no_store() -> None:
    async def runner(step: Step) -> Outcome:
        try:
            await asyncio.Event().wait()
        finally:
            if step.attempt == 1:
                tasks.append(asyncio.ensure_future(queue.kv.put("from", b"beyond")))
        return Succeed()

    tasks: list[asyncio.Future[Any]] = []
    async with Sandbox(runner) as sandbox:
        queue = sandbox.queue
        await sandbox.runtime.submit(b"", run_id="r")
        await sandbox.advance(0)
        await sandbox.reopen()
        [result] = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(result, (Closed, CommitUnknown))
        assert await sandbox.queue.kv.get("from") is None


@pytest.mark.parametrize("in_flight", ["lost", "landed"])
async def test_what_becomes_of_writes_that_were_in_flight(in_flight: Any) -> None:
    clock = ManualClock()
    store = LatencyStore(MemoryStore(), 1, clock=clock)
    async with Sandbox(store=store, clock=clock) as sandbox:
        putting = asyncio.ensure_future(sandbox.queue.kv.put("a", b"1"))
        await sandbox.advance(0.5)
        assert not putting.done()
        await sandbox.crash(in_flight=in_flight)
        with pytest.raises(CommitUnknown):
            await putting
        await sandbox.advance(10)
        await sandbox.reopen()
        assert await sandbox.queue.kv.get("a") == (b"1" if in_flight == "landed" else None)


@pytest.mark.parametrize("in_flight", ["lost", "landed"])
async def test_writes_in_flight_when_a_step_crashes_its_process(in_flight: Any) -> None:
    clock = ManualClock()
    store = LatencyStore(MemoryStore(), 1, clock=clock)
    putting: list[asyncio.Future[Any]] = []

    async def runner(step: Step) -> Outcome:
        if step.attempt == 1:
            putting.append(asyncio.ensure_future(sandbox.queue.kv.put("a", b"1")))
            await clock.sleep(0.5)
            await sandbox.crash(in_flight=in_flight)
        return Succeed()

    async with Sandbox(runner, store=store, clock=clock) as sandbox:
        submitting = asyncio.ensure_future(sandbox.runtime.submit(b"", run_id="r"))
        await sandbox.advance(30)
        await submitting
        assert sandbox.crashed
        await asyncio.gather(*putting, return_exceptions=True)
        await sandbox.reopen()
        await sandbox.advance(30)
        assert await sandbox.queue.kv.get("a") == (b"1" if in_flight == "landed" else None)


@pytest.mark.parametrize("landed", [False, True])
async def test_a_crash_with_a_write(landed: bool) -> None:
    async with Sandbox() as sandbox:
        sandbox.crash_at_write(2, landed=landed)
        await sandbox.queue.kv.put("a", b"1")
        with pytest.raises((CommitUnknown, Closed)):
            await sandbox.queue.kv.put("b", b"2")
        assert sandbox.crashed
        await sandbox.reopen()
        assert await sandbox.queue.kv.get("a") == b"1"
        assert await sandbox.queue.kv.get("b") == (b"2" if landed else None)


async def _pays_once(crash: Callable[[Sandbox], None]) -> bool:
    """Run an order through one crash; whether there was one."""
    seen: Seen = []

    async with Sandbox(runners(seen)["async"]) as sandbox:
        crash(sandbox)
        crashed = False
        try:
            await sandbox.runtime.submit(b"", run_id="order")
        except (CommitUnknown, Closed):
            crashed = True
            await sandbox.reopen()
            await sandbox.runtime.submit(b"", run_id="order")
        await sandbox.advance(timedelta(hours=1))
        if sandbox.crashed:
            crashed = True
            await sandbox.reopen()
        end = await sandbox.wait("order")
        assert end.outcome.result == b"end"
        assert sorted({number for number, _ in seen}) == [0, 1, 2]
        assert len(seen) <= 4
        for number in range(3):
            assert await sandbox.queue.kv.get(f"done/{number}") is not None
    return crashed


@pytest.mark.parametrize("landed", [False, True])
async def test_every_crash_there_is(landed: bool) -> None:
    number = 1
    while await _pays_once(partial(Sandbox.crash_at_write, number=number, landed=landed)):
        number += 1
    assert number > 5


async def test_crashes_by_chance_can_be_repeated() -> None:
    async def place(seed: int) -> Any:
        async with Sandbox() as sandbox:
            sandbox.crash_by_chance(seed)
            process = sandbox._process
            assert process is not None
            return process.gate.die_at

    places = [await place(seed) for seed in range(20)]
    assert places == [await place(seed) for seed in range(20)]
    assert len(set(places)) > 10
    for seed in range(4):
        await _pays_once(partial(Sandbox.crash_by_chance, seed=seed, writes=6))


async def test_another_version_takes_over() -> None:
    async def bad(step: Step) -> Outcome:
        raise OSError("a bug")

    async def good(step: Step) -> Outcome:
        return Succeed(b"fixed")

    async with Sandbox(bad) as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        await sandbox.advance(0)
        await sandbox.reopen(good)  # a living process crashes
        assert (await sandbox.wait("r")).outcome.result == b"fixed"


async def test_waiting_for_a_run_whose_process_crashes() -> None:
    seen: Seen = []
    async with Sandbox(runners(seen)["async"]) as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        sandbox.crash_at("before_step", step=1)
        with pytest.raises(InvalidState, match="before_step of step 1"):
            await sandbox.wait("r")
        await sandbox.reopen()
        await sandbox.wait("r")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda s: s.crash_at("sometime"), InvalidArgument, "before_step, before_settlement"),
        (lambda s: s.crash_at("before_step", step=-1), InvalidArgument, "step"),
        (lambda s: s.crash_at("before_step", attempt=0), InvalidArgument, "attempt"),
        (lambda s: s.crash_at("before_step", step="1"), InvalidType, "step"),
        (lambda s: s.crash_at_write(0), InvalidArgument, "number"),
        (lambda s: s.crash_by_chance(1, writes=0), InvalidArgument, "writes"),
        (lambda s: s.crash(in_flight="unknown"), InvalidArgument, "in_flight"),
    ],
)
async def test_crashes_that_cannot_be(
    call: Callable[[Sandbox], Any], error: type[Exception], text: str
) -> None:
    async with Sandbox() as sandbox:
        with pytest.raises(error, match=text):
            result = call(sandbox)
            if result is not None:
                await result
        assert not sandbox.crashed


async def test_the_dead_cannot_crash() -> None:
    async with Sandbox() as sandbox:
        await sandbox.crash()
        for call in (
            lambda: sandbox.crash_at("before_step"),
            lambda: sandbox.crash_at_write(1),
        ):
            with pytest.raises(InvalidState, match="reopen"):
                call()
        with pytest.raises(InvalidState, match="reopen"):
            await sandbox.crash()
        await sandbox.run_until_idle()


async def test_writes_that_never_land() -> None:
    clock = ManualClock()
    store = LatencyStore(MemoryStore(), 1, clock=clock)
    async with Sandbox(store=store, clock=clock) as sandbox:
        store._latency = 1e6
        putting = asyncio.ensure_future(sandbox.queue.kv.put("a", b"1"))
        await sandbox.advance(0)
        with pytest.raises(StillRunning, match="land"):
            await sandbox.crash(in_flight="landed")
        putting.cancel()
