"""Processes that die after every number of objects, around a group and what is done with it.

Whatever the group said in one process holds in every later one, and every member ends once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from taquba import ManualClock
from taquba.errors import GroupNotFound, GroupStopped
from taquba.objectstore import MemoryStore
from taquba.workflow import Fail, GroupMember, GroupStatus, Outcome, Step, Succeed, TerminalStatus

from .harness import Process, settle

pytestmark = pytest.mark.anyio

MEMBERS = [GroupMember(f"k{n}", b"fail" if n % 5 == 1 else b"x%d" % n) for n in range(8)]
FAILING = 2


@dataclass
class World:
    """What is seen of the group `g`, over all processes."""

    acts: str
    counted: list[GroupStatus] = field(default_factory=list)
    told: dict[str, TerminalStatus] = field(default_factory=dict)
    cancelled: bool = False
    """Somebody was told that the group is cancelled."""
    begun_after: list[str] = field(default_factory=list)
    forgotten: bool = False
    process: int = 0
    cancelled_by: int | None = None

    def runner(self, number: int) -> Any:
        async def run(step: Step) -> Outcome:
            if self.cancelled_by is not None and self.cancelled_by < number:
                self.begun_after.append(step.run_id)
            step.effects.enqueue("log", step.payload)
            return Fail("no") if step.payload == b"fail" else Succeed(step.payload)

        return run

    async def stream(self) -> AsyncIterator[GroupMember]:
        for member in MEMBERS:
            yield member

    async def drive(self, process: Process, number: int) -> None:
        if not await process.opened():
            return
        runtime = process.runtime
        stop_after = 1 if self.acts == "threshold" else None
        group = runtime.group("g", stop_after_failures=stop_after)
        known = await runtime.group_status("g")
        if known is not None:
            self.counted.append(known)
        assert known is None or not self.forgotten, "a group that was forgotten came back"
        if known is None and self.told:
            return
        if known is None or not (known.is_complete or known.is_stopped):
            try:
                self.counted.append(await group.submit(self.stream()))
            except GroupStopped:
                assert self.acts == "threshold"
        if self.acts == "cancel":
            await group.cancel()
            self.cancelled = True
            self.cancelled_by = number if self.cancelled_by is None else self.cancelled_by
        try:
            async for end in group.results():
                status = end.termination.status
                assert self.told.setdefault(end.key, status) == status, "another end"
            self.counted.append(await group.status())
        except GroupNotFound:
            assert self.acts == "forget"
        if self.acts == "forget":
            await group.forget()
            self.forgotten = True


@pytest.mark.parametrize("acts", ["submit", "cancel", "forget", "threshold"])
async def test_dying_after_every_number_of_objects(
    acts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRP-12, GRP-14, GRP-18: in the middle of anything."""
    monkeypatch.setattr("taquba.workflow._group_submission._CHUNK", 3)
    monkeypatch.setattr("taquba.workflow._group_removal._REMOVED", 3)
    monkeypatch.setattr("taquba.workflow._group_upkeep._SLICE", 3)
    for after in range(1, 80):
        store, clock, world = MemoryStore(), ManualClock(), World(acts)
        died = False
        for number, die_after in enumerate((after, None)):
            process = Process(
                store, world.runner(number), clock, die_after=die_after, concurrency=2
            )
            dead = asyncio.ensure_future(process.store.dead.wait())
            driving = asyncio.ensure_future(world.drive(process, number))
            for _ in range(200):
                await settle(clock)
                if driving.done() or dead.done():
                    break
                await clock.advance(1)
            else:
                raise AssertionError("nothing happens any more")
            if dead.done():
                died = True
                driving.cancel()
                await asyncio.gather(driving, return_exceptions=True)
                await process.kill()
            else:
                await driving
                if die_after is None:
                    await judge(world, process)
                dead.cancel()
                await process.leave()
        if not died:
            break
    else:
        raise AssertionError("one process alone does not finish")
    assert after > 5


async def judge(world: World, process: Process) -> None:
    queue = process.queue
    claims = await queue.claim_many("log", 1000)
    logged = Counter(claim.job.payload for claim in claims)
    assert all(count == 1 for payload, count in logged.items() if payload != b"fail"), (
        "a member's end was committed twice"
    )
    # What was broken off is submitted again, which runs those again that have failed.
    assert logged[b"fail"] <= 2 * FAILING
    assert not world.begun_after, "a member of a cancelled group began"
    if world.acts == "forget":
        for table in ("groups", "members", "runs"):
            for _ in range(10):
                await settle(process.clock)
                await process.clock.advance(1)
            assert queue.peek(f"SELECT count(*) FROM {table}") == [(0,)]
        return
    status = await process.runtime.group("g").status()
    assert status.pending == 0
    ends = Counter(world.told.values())
    assert len(world.told) == status.total
    succeeded = sum(logged.values()) - logged[b"fail"]
    assert status.succeeded == ends[TerminalStatus.SUCCEEDED] == succeeded
    assert status.failed == ends[TerminalStatus.FAILED] <= logged[b"fail"]
    assert status.cancelled == ends[TerminalStatus.CANCELLED]
    for before in world.counted:
        assert before.total <= status.total
        assert before.succeeded <= status.succeeded
        assert before.is_stopped <= status.is_stopped
    if world.acts == "submit":
        assert (status.total, status.failed) == (len(MEMBERS), FAILING)
    if world.acts == "threshold":
        assert status.is_stopped and 1 <= status.failed <= FAILING
    if world.acts == "cancel":
        assert status.is_stopped
