"""Processes that die, or are taken over, after the n-th object, for every n: each end is told.

What a hook stages is what can be counted: exactly once for each life that ended, however it
ended, and wherever processes died between the end and the telling.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from taquba import Effects, ManualClock, Queue, TransientError
from taquba.objectstore import MemoryStore
from taquba.queue import JobState
from taquba.workflow import (
    Cancel,
    Continue,
    Fail,
    Outcome,
    RunOutcome,
    Step,
    Succeed,
    TerminalStatus,
)

from .harness import Process, settle
from .test_crash import until

pytestmark = pytest.mark.anyio

SUCCEEDED, FAILED, CANCELLED = TerminalStatus
EXPECTED = {
    "ok": {SUCCEEDED},
    "fail": {FAILED},
    "stop": {CANCELLED},
    "busy": {SUCCEEDED},
    "hang": {FAILED},
    "unwanted": {CANCELLED},
    "asks": {CANCELLED},
    "twice": {SUCCEEDED},
}


class World:
    """What happened, in all processes of one store."""

    def __init__(self) -> None:
        self.store, self.clock = MemoryStore(), ManualClock()
        self.calls = 0
        self.ended: set[str] = set()
        """Lives that a process was told have ended."""

    async def run_step(self, step: Step) -> Outcome:
        match step.run_id:
            case "fail":
                return Fail("no such page")
            case "stop":
                return Cancel("not wanted")
            case "busy" if step.attempt == 1:
                raise TransientError("busy")
            case "hang":
                await asyncio.Event().wait()
            case "unwanted":
                return Continue(after=3600)
            case "asks":
                return Continue(signal="answer")
            case _:
                pass
        return Succeed() if step.number == 1 else Continue()

    async def on_termination(self, outcome: RunOutcome, effects: Effects) -> None:
        self.calls += 1
        effects.enqueue("told", _life(outcome).encode())
        if self.calls % 3 == 0:
            raise TransientError("not now")

    def process(self, die_after: int | None = None) -> Process:
        return Process(
            self.store,
            self,
            self.clock,
            die_after=die_after,
            terminal_hook=self,
            drain_timeout=0,
            renew=None,
        )

    async def drive(self, process: Process) -> None:
        """What an application does whenever it is started."""
        if not await process.opened():
            return
        runtime = process.runtime
        for name in EXPECTED:
            if await runtime.status(name) is None:
                # Its notification has as many, and needs up to three.
                attempts = 3 if name == "hang" else 9
                await runtime.submit(b"", run_id=name, max_attempts=attempts)
        for name in ("unwanted", "asks"):
            await runtime.cancel(name)
        for name in EXPECTED:
            await self.wait(process, name)
        if len([life for life in self.ended if life.startswith("twice ")]) == 1:
            await runtime.submit(b"", run_id="twice", max_attempts=9)
            await self.wait(process, "twice")
        while (stats := await process.queue.stats(runtime.hook_queue)).pending + (
            stats.claimed + stats.scheduled
        ):
            await self.clock.sleep(1)

    async def wait(self, process: Process, name: str) -> None:
        self.ended.add(_life((await process.runtime.wait(name)).outcome))

    async def judge(self) -> None:
        async with Queue.open(self.store, clock=self.clock) as queue:
            told: Counter[str] = Counter()
            async for job in queue.jobs("told", state=JobState.PENDING):
                told[job.payload.decode()] += 1
            assert set(told.values()) == {1}, "each end is told once"
            assert told.keys() >= self.ended, "and none is missed"
            for life in told:
                name, status, _ = life.split()
                assert TerminalStatus(status) in EXPECTED[name] or name == "hang"
            by_name = Counter(life.split()[0] for life in told)
            lives = {**dict.fromkeys(EXPECTED, 1), "twice": 2}
            assert by_name == Counter(lives), "nor is one told that did not end"
            [(left,)] = await queue.read(
                "SELECT count(*) FROM jobs JOIN queues ON queues.number = jobs.queue"
                " WHERE queues.name LIKE 'workflow-steps%' AND state != 4"
            )
            assert left == 0


def _life(outcome: RunOutcome) -> str:
    return f"{outcome.run_id} {outcome.status.value} {outcome.terminated_at.timestamp()}"


async def _gathered(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("start", [1, 2, 3])
async def test_dying_after_every_number_of_objects(start: int) -> None:
    for after in range(start, 200, 3):
        world = World()
        process = world.process(after)
        dead = asyncio.ensure_future(process.store.dead.wait())
        driving = asyncio.ensure_future(world.drive(process))
        await until(world.clock, driving, dead)
        died = dead.done()
        await _gathered(driving, dead)
        await process.kill()
        last = world.process()
        driving = asyncio.ensure_future(world.drive(last))
        await until(world.clock, driving)
        await driving
        await last.leave()
        await world.judge()
        if not died:
            assert after > 15
            return
    raise AssertionError("one process alone does not finish")


@pytest.mark.parametrize("start", [1, 2, 3])
async def test_taking_over_from_a_living_process_after_every_number_of_objects(start: int) -> None:
    for after in range(start, 200, 3):
        world = World()
        first = world.process()
        reached = asyncio.get_running_loop().create_future()

        def tell(first: Process = first, after: int = after, reached: Any = reached) -> None:
            if first.store.writes == after and not reached.done():
                reached.set_result(None)

        first.store.on_write = tell
        driving = asyncio.ensure_future(world.drive(first))
        await until(world.clock, driving, reached)
        if not reached.done():
            await driving
            await first.leave()
            assert after > 15
            return
        second = world.process()
        second_driving = asyncio.ensure_future(world.drive(second))
        await until(world.clock, second_driving)
        await second_driving
        await settle(world.clock)
        await _gathered(driving)
        await first.kill()
        await second.leave()
        await world.judge()
    raise AssertionError("one process alone does not finish")
