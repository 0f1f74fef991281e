"""Processes that die after every number of objects, around a cancellation.

Whatever was told to whoever cancelled must hold in every later process.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from taquba import ManualClock, Queue, QueueConfig
from taquba.errors import TaqubaError
from taquba.objectstore import MemoryStore
from taquba.workflow import Cancel, Continue, Outcome, RunEnd, Step, Succeed, TerminalStatus

from .harness import Process, settle

pytestmark = pytest.mark.anyio

STEPS = 3


@dataclass
class World:
    """What is seen of the run `r`, over all processes."""

    cancel_in: int
    """The step during which somebody cancels the run."""
    own: bool
    """Whether the step answers that with a `Cancel` of its own."""
    accepted: bool = False
    """Somebody was told that the run is cancelled."""
    called_after: list[int] = field(default_factory=list)
    """Steps whose runner was called in a later process than the one that was told so."""
    ends: list[RunEnd] = field(default_factory=list)
    process: int = 0
    accepted_by: int | None = None
    processes: dict[int, Process] = field(default_factory=dict)

    def runner(self, number: int) -> Any:
        async def run(step: Step) -> Outcome:
            if self.accepted_by is not None and self.accepted_by < number:
                self.called_after.append(step.number)
            step.effects.enqueue("log", b"%d" % step.number)
            if step.number == self.cancel_in:
                cancelling = asyncio.ensure_future(self.cancel(number))
                if not self.own:
                    await asyncio.wait({cancelling})
                    await step.memo.put("told", b"")  # so that it can die after it was told
                else:
                    await step.cancel_token.wait()
                    return Cancel("of its own")
            return Continue() if step.number < STEPS else Succeed()

        return run

    async def cancel(self, number: int) -> None:
        try:
            told = await self.processes[number].runtime.cancel("r")
        except TaqubaError:
            return
        if told:
            self.accepted = True
            self.accepted_by = number if self.accepted_by is None else self.accepted_by

    async def drive(self, process: Process) -> None:
        if await process.opened():
            if await process.runtime.status("r") is None:
                await process.runtime.submit(b"", run_id="r", max_attempts=9)
            self.ends.append(await process.runtime.wait("r"))


@pytest.mark.parametrize("on_cancel", ["cooperate", "interrupt"])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("cancel_in", [0, 2])
async def test_dying_after_every_number_of_objects(
    cancel_in: int, own: bool, on_cancel: str
) -> None:
    """CAN-17, WRK-11"""
    told = 0
    for after in range(1, 60):
        store, clock, world = MemoryStore(), ManualClock(), World(cancel_in, own)
        for number, die_after in enumerate((after, None)):
            process = Process(
                store, world.runner(number), clock, die_after=die_after, on_cancel=on_cancel
            )
            world.processes[number] = process
            dead = asyncio.ensure_future(process.store.dead.wait())
            driving = asyncio.ensure_future(world.drive(process))
            for _ in range(200):
                await settle(clock)
                if driving.done() or dead.done():
                    break
                await clock.advance(1)
            else:
                raise AssertionError("nothing happens any more")
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)
            if dead.done():
                await process.kill()
            else:
                await process.leave()
                dead.cancel()
        await judge(world, store, clock)
        told += world.accepted
        if len(world.ends) == 2:  # the first process was done before it died
            assert world.ends[0] == world.ends[1]
            break
    else:
        raise AssertionError("one process alone does not finish")
    assert told > 0


async def judge(world: World, store: MemoryStore, clock: ManualClock) -> None:
    termination = world.ends[-1].termination
    assert termination.status is TerminalStatus.CANCELLED
    assert termination.final_step == world.cancel_in
    assert termination.error in ((None, "of its own") if world.own else (None,))
    assert world.called_after == [], "the runner of a cancelled run was called again"
    async with Queue.open(store, clock=clock, config=QueueConfig(jitter=False)) as queue:
        claims = await queue.claim_many("log", 1000)
        logged = Counter(claim.job.payload for claim in claims)
        steps = world.cancel_in + (termination.error is not None)
        assert logged == Counter(b"%d" % number for number in range(steps))
        stats = await queue.stats("workflow-steps")
        assert (stats.pending, stats.scheduled, stats.claimed, stats.dead) == (0, 0, 0, 0)
