"""Random histories of groups, compared with a small model after every command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from taquba import ManualClock
from taquba.errors import GroupActive, GroupIncomplete, GroupMismatch, GroupNotFound
from taquba.objectstore import MemoryStore
from taquba.workflow import Continue, Fail, GroupMember, Outcome, RunGroup, Step, Succeed
from taquba.workflow._group_records import member_run_id

from .harness import Process, settle

KEEP_MS = 600_000
KINDS = ["ok", "two", "fail", "wait"]
"""What a member does: one step, two steps, a failure; and waiting for a signal of its own."""
NAMES = st.sampled_from(["g", "h"])
INPUTS = st.lists(st.sampled_from(KINDS), max_size=5)


class Broken(Exception):
    """No more members come."""


@dataclass(eq=False)
class Member:
    kind: str
    state: str = "active"
    number: int = 0
    """Of its end."""


@dataclass
class Group:
    """What a group should be, one moment after the other."""

    members: list[Member] = field(default_factory=list[Member])
    whole: bool = False
    stopped: bool = False
    ends: int = 0
    finished_ms: int | None = None
    told: bool = False
    """Whether its end was signalled since somebody looked."""

    def begin(self, member: Member, *, mended: bool) -> None:
        member.state = "active"
        if member.kind != "wait":
            self.end(member, "failed" if member.kind == "fail" and not mended else "succeeded")

    def end(self, member: Member, state: str) -> None:
        self.ends += 1
        member.state, member.number = state, self.ends

    def count(self, state: str) -> int:
        return sum(member.state == state for member in self.members)

    def note(self, now_ms: int) -> None:
        if self.count("active") or not (self.whole or self.stopped):
            self.finished_ms = None
        elif self.finished_ms is None:
            self.finished_ms, self.told = now_ms, True


class Groups(RuleBasedStateMachine):
    """Two groups of a real runtime, in a process that may die between any two commands."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.process: Process

    def do(self, work: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(30):
                return await work

        return self.loop.run(bounded())

    @initialize()
    def begin(self) -> None:
        self.store, self.clock = MemoryStore(), ManualClock()
        self.known: dict[str, Group] = {}
        self.now_ms = 0
        self.mended = False
        self.do(self._open())
        self.submit("g", ["wait", "fail", "wait"], breaks=False)

    async def _open(self) -> None:
        self.process = Process(self.store, self.run_step, self.clock, drain_timeout=0)
        assert await self.process.opened()
        await settle(self.clock)

    async def run_step(self, step: Step) -> Outcome:
        match step.payload:
            case b"two" if step.number == 0:
                return Continue(b"two")
            case b"fail" if not self.mended:
                return Fail("no")
            case b"wait" if step.number == 0:
                return Continue(b"wait", signal=step.run_id)
            case _:
                return Succeed(step.payload)

    def group(self, name: str) -> RunGroup:
        return self.process.runtime.group(
            name, retention=timedelta(milliseconds=KEEP_MS), signal_when_finished=f"end-of-{name}"
        )

    @rule(name=NAMES, kinds=INPUTS, breaks=st.sampled_from([False, False, True]))
    def submit(self, name: str, kinds: list[str], breaks: bool) -> None:
        group = self.known.setdefault(name, Group())
        old = [member.kind for member in group.members]
        is_other = group.whole and kinds[: len(old)] != old
        if not is_other and not group.whole:
            kinds = old + kinds
        elif not is_other:
            kinds = old
        breaks = breaks and not group.whole and bool(kinds)
        if is_other:
            try:
                self.do(self.group(name).submit(members(kinds)))
            except GroupMismatch:
                return
            raise AssertionError("other members were submitted")
        again = [each for each in group.members if each.state in ("failed", "cancelled")]
        try:
            self.do(self.group(name).submit(self.stream(kinds) if breaks else members(kinds)))
        except Broken:
            assert breaks
        group.stopped = False
        if again and not breaks:
            group.finished_ms = None
        if not group.whole:
            group.finished_ms = None
        group.whole = group.whole or not breaks
        fresh = [Member(kind) for kind in kinds[len(old) :]]
        group.members += fresh
        for each in [*fresh, *([] if breaks else again)]:
            group.begin(each, mended=self.mended)

    async def stream(self, kinds: list[str]) -> AsyncIterator[GroupMember]:
        for member in members(kinds):
            yield member
        await settle(self.clock)
        raise Broken

    @rule(name=NAMES)
    def resume(self, name: str) -> None:
        group = self.known.get(name)
        try:
            self.do(self.group(name).resume())
        except GroupNotFound:
            assert group is None
            return
        except GroupIncomplete:
            assert group is not None and not group.whole
            return
        assert group is not None and group.whole
        group.stopped = False
        for each in group.members:
            if each.state in ("failed", "cancelled"):
                group.finished_ms = None
                group.begin(each, mended=self.mended)

    @rule(name=NAMES)
    def cancel(self, name: str) -> None:
        group = self.known.get(name)
        active = [] if group is None else [m for m in group.members if m.state == "active"]
        assert self.do(self.group(name).cancel()) == len(active)
        if group is not None and active:
            group.stopped = True
            for each in active:
                group.end(each, "cancelled")

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        group = self.known.get(name)
        try:
            self.do(self.group(name).forget())
        except GroupActive:
            assert group is not None and group.count("active")
            return
        assert group is None or not group.count("active")
        self.known.pop(name, None)

    @rule(name=NAMES, position=st.integers(0, 3))
    def end_one(self, name: str, position: int) -> None:
        group = self.known.get(name)
        waiting = [] if group is None else [m for m in group.members if m.state == "active"]
        if group is None or position >= len(waiting):
            return
        member = waiting[position]
        run_id = member_run_id(name, str(group.members.index(member)))
        self.do(self.process.runtime.signal(run_id, b"go"))
        group.end(member, "succeeded")

    @rule()
    def mend(self) -> None:
        self.mended = not self.mended

    @rule(ms=st.sampled_from([1, KEEP_MS // 2, KEEP_MS]))
    def advance(self, ms: int) -> None:
        self.do(self.clock.advance(timedelta(milliseconds=ms)))
        self.now_ms += ms
        for name, group in list(self.known.items()):
            if group.finished_ms is not None and group.finished_ms + KEEP_MS <= self.now_ms:
                del self.known[name]

    @rule(how=st.sampled_from(["kill", "leave", "take over"]))
    def restart(self, how: str) -> None:
        async def stop() -> None:
            old = self.process
            if how == "leave":
                await old.leave()
            elif how == "kill":
                await old.kill()
            await self._open()
            if how == "take over":
                await old.kill()

        self.do(stop())

    @invariant()
    def same(self) -> None:
        self.do(self._compare())

    async def _compare(self) -> None:
        await settle(self.clock)
        runtime, queue = self.process.runtime, self.process.queue
        for name in ("g", "h"):
            group = self.known.get(name)
            if group is not None:
                group.note(self.now_ms)
            status = await runtime.group_status(name)
            if group is None:
                assert status is None
            else:
                assert status is not None
                assert (status.total, status.is_complete, status.is_stopped) == (
                    len(group.members),
                    group.whole,
                    group.stopped,
                )
                assert (status.succeeded, status.failed, status.cancelled) == tuple(
                    group.count(state) for state in ("succeeded", "failed", "cancelled")
                )
                ended = sorted(
                    (each.number, str(n), each.state)
                    for n, each in enumerate(group.members)
                    if each.state != "active"
                )
                for order in ("completion", "submission"):
                    if group.count("active"):
                        continue
                    told = await read(self.group(name), order)
                    assert sorted(told) == sorted(each[1:] for each in ended)
                    if order == "submission":
                        assert [int(key) for key, _ in told] == list(range(len(told)))
                if group.told:
                    assert await runtime.clear_signal(f"end-of-{name}") == 1
                    group.told = False
            assert await runtime.clear_signal(f"end-of-{name}") == 0, "signalled again"
        count = sum(len(group.members) for group in self.known.values())
        assert queue.peek("SELECT count(*) FROM runs") == [(count,)]
        assert queue.peek("SELECT count(*) FROM members") == [(count,)]
        assert queue.peek("SELECT count(*) FROM groups") == [(len(self.known),)]

    def teardown(self) -> None:
        try:
            if hasattr(self, "process"):
                self.do(self.process.leave())
        finally:
            self.loop.close()


def members(kinds: list[str]) -> list[GroupMember]:
    return [GroupMember(f"{n}", kind.encode()) for n, kind in enumerate(kinds)]


async def read(group: RunGroup, order: Any) -> list[tuple[str, str]]:
    told: list[tuple[str, str]] = []
    try:
        async for end in group.results(order=order):
            told.append((end.key, end.termination.status.value))
    except GroupIncomplete:
        assert not (await group.status()).is_complete
    return told


Groups.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestGroups = Groups.TestCase
