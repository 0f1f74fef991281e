"""Processes that die after the n-th object that they stored, for every n.

What a run does is written down as it happens, across all processes, and judged at the end:
steps go on one by one, what was acknowledged is never lost and never done again, every run
ends once, and ends as it should.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from taquba import ManualClock, Queue, TransientError
from taquba.errors import Fenced
from taquba.objectstore import MemoryStore, ObjectStore
from taquba.workflow import (
    Cancel,
    Continue,
    Fail,
    Outcome,
    RunEnd,
    Step,
    Succeed,
    TerminalStatus,
)

from .harness import Process, settle

pytestmark = pytest.mark.anyio

LAST = 3
EXPECTED = {
    "plain": (TerminalStatus.SUCCEEDED, None, b"plain", LAST),
    "busy": (TerminalStatus.SUCCEEDED, None, b"busy", LAST),
    "fails": (TerminalStatus.FAILED, "no such page", None, 2),
    "stops": (TerminalStatus.CANCELLED, "not wanted", None, 1),
}


@dataclass
class Chronicle:
    """What happened, in order, as the processes themselves saw it."""

    process: int = 0
    """The process that owns the store by now."""
    started: list[tuple[str, int]] = field(default_factory=list)
    computed: list[tuple[int, tuple[str, int, str]]] = field(default_factory=list)
    remembered: dict[tuple[str, int, str], int] = field(default_factory=dict)
    """Memos that a process was told are stored, and which process."""
    submitted: set[str] = field(default_factory=set)
    ended: dict[str, RunEnd] = field(default_factory=dict)
    repeated: list[tuple[str, int, str]] = field(default_factory=list)

    def runner(self, process: int) -> Any:
        async def run(step: Step) -> Outcome:
            if process == self.process:
                self.started.append((step.run_id, step.number))
            step.effects.enqueue("log", f"{step.run_id} {step.number}".encode())
            step.effects.put(f"at/{step.run_id}", b"%d" % step.number)
            for name in ("a", "b"):
                key = (step.run_id, step.number, name)

                async def compute(key: tuple[str, int, str] = key) -> str:
                    self.computed.append((process, key))
                    if self.remembered.get(key, process) < process:
                        self.repeated.append(key)
                    await asyncio.sleep(0)
                    return "/".join(map(str, key))

                assert await step.memo.memoized(name, compute) == "/".join(map(str, key))
                self.remembered.setdefault(key, process)
            if step.run_id == "busy" and step.attempt == 1 and step.number < 2:
                raise TransientError("busy")
            if step.run_id == "fails" and step.number == 2:
                return Fail("no such page")
            if step.run_id == "stops" and step.number == 1:
                return Cancel("not wanted")
            if step.number == LAST:
                return Succeed(step.run_id.encode())
            return Continue(after=5 if step.number == 1 else None)

        return run

    async def drive(self, process: Process) -> None:
        """What the application does whenever it is started: submit all, and wait for all.

        A run that has ended would be run again, so it looks first.
        """
        for name in EXPECTED:
            known = await process.runtime.status(name)
            if known is None:
                assert name not in self.submitted, "an accepted run was lost"
            if known is None or known.termination is None:
                run = await process.runtime.submit(name.encode(), run_id=name, max_attempts=9)
                assert run.created == (known is None)
            self.submitted.add(name)
        for name in EXPECTED:
            end = await process.runtime.wait(name)
            assert self.ended.setdefault(name, end) == end, "an end that was reported changed"

    async def judge(self, store: ObjectStore, clock: ManualClock) -> None:
        assert self.repeated == []
        for name, (status, error, result, last) in EXPECTED.items():
            end = self.ended[name]
            assert (end.termination.status, end.termination.error) == (status, error)
            assert (end.outcome.result, end.termination.final_step) == (result, last)
            numbers = [number for run_id, number in self.started if run_id == name]
            assert numbers == sorted(numbers), "steps go forward"
            assert set(numbers) == set(range(last + 1)), "and none is left out"
        async with Queue.open(store, clock=clock) as queue:
            claims = await queue.claim_many("log", 1000)
            told = Counter(claim.job.payload.decode() for claim in claims)
            assert told == Counter(
                f"{name} {number}"
                for name, (_, _, _, last) in EXPECTED.items()
                for number in range(last + 1)
            ), "effects of each step are there once"
            for name, (_, _, _, last) in EXPECTED.items():
                assert await queue.kv.get(f"at/{name}") == b"%d" % last
            stats = await queue.stats("workflow-steps")
            assert (stats.pending, stats.scheduled, stats.claimed, stats.dead) == (0, 0, 0, 0)
            assert queue.peek("SELECT count(*) FROM memos") == [(0,)]


async def until(clock: ManualClock, *events: asyncio.Future[Any]) -> None:
    """Let time pass until one of these is done."""
    for _ in range(200):
        await settle(clock)
        if any(event.done() for event in events):
            return
        await clock.advance(1)
    raise AssertionError("nothing happens any more")


@pytest.mark.parametrize("then", [[], [2], [9]], ids=str)
async def test_dying_after_every_number_of_objects(then: list[int]) -> None:
    """WRK-11, 13.3"""
    for after in range(1, 200):
        store, clock, chronicle = MemoryStore(), ManualClock(), Chronicle()
        died = await lives(store, clock, chronicle, [after, *then])
        await chronicle.judge(store, clock)
        if not died:
            assert after > 15
            break
    else:
        raise AssertionError("one process alone does not finish")


async def lives(
    store: MemoryStore, clock: ManualClock, chronicle: Chronicle, after: list[int]
) -> bool:
    """Processes that die after so many objects, and one that does not; whether the first died."""
    for number, die_after in enumerate([*after, None]):
        chronicle.process = number
        process = Process(store, chronicle.runner(number), clock, die_after=die_after)
        dead = asyncio.ensure_future(process.store.dead.wait())
        driving = asyncio.ensure_future(_open_and_drive(chronicle, process))
        await until(clock, driving, dead)
        if driving.done() and not dead.done():
            await driving
            await process.leave()
            dead.cancel()
            return number > 0
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
        await process.kill()
    raise AssertionError("the last process died")


async def _open_and_drive(chronicle: Chronicle, process: Process) -> None:
    if await process.opened():
        await chronicle.drive(process)


async def test_taking_over_from_a_living_process_after_every_number_of_objects() -> None:
    """13.4: the first goes on until it meets the fence; nothing of that counts."""
    fenced = 0
    for after in range(1, 200):
        store, clock, chronicle = MemoryStore(), ManualClock(), Chronicle()
        first = Process(store, chronicle.runner(0), clock)
        reached = asyncio.get_running_loop().create_future()
        first.store.on_write = _tell(first, after, reached)
        driving = asyncio.ensure_future(_open_and_drive(chronicle, first))
        await until(clock, driving, reached)
        if not reached.done():
            await driving
            await first.leave()
            break
        chronicle.process = 1
        second = Process(store, chronicle.runner(1), clock)
        second_driving = asyncio.ensure_future(_open_and_drive(chronicle, second))
        await until(clock, second_driving)
        await second_driving
        with pytest.raises(Fenced):
            await first.runtime.submit(b"")
        await settle(clock)
        with pytest.raises(Fenced):
            await first.task
        await asyncio.gather(driving, return_exceptions=True)
        await second.leave()
        await chronicle.judge(store, clock)
        if driving.exception() is None:  # it was done just before
            break
        assert isinstance(driving.exception(), Fenced)
        fenced += 1
    assert fenced > 15


def _tell(process: Process, after: int, reached: asyncio.Future[None]) -> Any:
    def on_write() -> None:
        if process.store.writes >= after and hasattr(process, "runtime") and not reached.done():
            reached.set_result(None)

    return on_write


@pytest.mark.parametrize("attempts", [1, 2])
async def test_dying_with_few_attempts(attempts: int) -> None:
    """T18, T19: whatever the crash interrupts, every run ends, and ends once."""
    interrupted = 0
    for after in range(1, 100):
        store, clock = MemoryStore(), ManualClock()
        delivered: Counter[int] = Counter()

        async def runner(step: Step, delivered: Counter[int] = delivered) -> Outcome:
            delivered[step.number] += 1
            await step.memo.put("k", b"v")
            return Continue() if step.number < 3 else Succeed()

        ends: list[RunEnd] = []
        for die_after in (after, None):
            process = Process(store, runner, clock, die_after=die_after)
            dead = asyncio.ensure_future(process.store.dead.wait())

            async def drive(process: Process = process, ends: list[RunEnd] = ends) -> None:
                if await process.opened():
                    if await process.runtime.status("r") is None:
                        await process.runtime.submit(b"", run_id="r", max_attempts=attempts)
                    ends.append(await process.runtime.wait("r"))

            driving = asyncio.ensure_future(drive())
            await until(clock, driving, dead)
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)
            if dead.done():
                await process.kill()
            else:
                await process.leave()
                dead.cancel()
        assert ends
        assert max(delivered.values(), default=0) <= attempts
        last = ends[-1].termination
        if last.status is TerminalStatus.FAILED:
            interrupted += 1
            assert attempts == 1
            assert (last.error, last.error_kind) == ("claim interrupted by process exit", None)
        else:
            assert last.final_step == 3
        if len(ends) == 2:  # the first process was done before it died
            assert ends[0] == ends[1]
            break
    assert (interrupted > 0) == (attempts == 1)
