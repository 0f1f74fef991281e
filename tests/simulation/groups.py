"""One seeded world of run groups: submitted, broken off, cancelled, resumed, read and forgotten.

It is a world of runs whose runs are members. Each life of a process does with a few groups what
comes to its mind; at the end one that nothing befalls brings them all to their ends. What the
records of groups say is compared with their members at every entry of the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from unittest import mock

from taquba import PermanentError, TransientError
from taquba.errors import (
    GroupActive,
    GroupIncomplete,
    GroupNotFound,
    GroupStopped,
    PayloadMissing,
    StoreError,
)
from taquba.workflow import (
    Continue,
    Fail,
    GroupMember,
    MemberResult,
    Outcome,
    RunGroup,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)
from taquba.workflow._group_records import member_run_id
from taquba.workflow._schema import WORKFLOW_SCHEMA
from tests.simulation import runs
from tests.simulation import worker_invariants as must
from tests.simulation.network import Weather
from tests.simulation.shadow import Row, columns_of
from tests.simulation.shadow import Step as Entry
from tests.simulation.workers import Plan

GROUPS = ("g0", "g1", "g2")
_LAST = 2
_PATIENCE = 900.0
_ACTIVE, _STATUSES = 0, {1: "succeeded", 2: "failed", 3: "cancelled"}
_COLUMNS = columns_of(WORKFLOW_SCHEMA, "groups", "members", "runs")


class Broken(Exception):
    """The source of members has failed."""


def members_of(seed: int, group_id: str) -> list[GroupMember]:
    """The members of a group, the same in every life."""
    random = Random(f"{seed}/{group_id}")
    return [
        GroupMember(f"{group_id}/m{n}", f"{group_id} {'x' * random.choice((0, 0, 40))}".encode())
        for n in range(random.choice((1, 3, 8, 15)))
    ]


def plan_of(seed: int) -> Plan:
    """What the world of this seed consists of."""
    return replace(runs.plan_of(seed), jobs=6, keep_done=None)


@dataclass
class GroupWorld(runs.RunWorld):
    """What is recorded of a world, to judge it."""

    stopped: set[str] = field(default_factory=set[str])
    """Groups of which somebody was told that they are, and with which nobody goes on."""
    succeeded: dict[str, str] = field(default_factory=dict[str, str])
    """By run id, the key of a member of which somebody was told that it has succeeded."""
    forgetting: set[str] = field(default_factory=set[str])
    """Groups that somebody has begun to forget: nobody submits them again."""


class GroupLife(runs.RunLife):
    """One life of a process, with its runtime."""

    world: GroupWorld  # pyright: ignore[reportIncompatibleVariableOverride]
    has_hook = False

    def __init__(self, world: GroupWorld, name: str, weather: Weather) -> None:
        super().__init__(world, name, weather)

    @property
    def is_owner(self) -> bool:
        """One that does not know yet that it is no owner any more may do what is done already."""
        assert self.queue is not None
        epoch = self.queue._core.database.position.epoch
        return epoch == self.world.store.epoch and not self.process.dead

    async def act(self, runtime: WorkflowRuntime) -> None:
        tasks = [self.start(runs.quietly(self.drive(runtime, name))) for name in GROUPS]
        await self.process.sleep(self.random.choice((1.0, 3.0, 8.0)))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    def group(self, runtime: WorkflowRuntime, name: str) -> RunGroup:
        limit = 3 if name == "g1" and not self.healed else None
        return runtime.group(name, stop_after_failures=limit)

    async def drive(self, runtime: WorkflowRuntime, name: str) -> None:
        """Do one thing after the other with one group."""
        acts = [self.submit_members, self.submit_members, self.read, self.stop, self.go_on]
        if name == "g2":
            acts.append(self.forget)
        for _ in range(self.world.plan.jobs):
            await self.process.sleep(self.random.choice((0.0, 0.05, 0.3, 1.0)))
            act = self.random.choice(acts)
            try:
                await act(self.group(runtime, name))
            except (*runs.STOPPED, asyncio.CancelledError):
                raise
            except Exception as error:
                self.world.violate(f"group_raised: {act.__name__} of {name}: {error!r}")

    async def stream(self, name: str) -> AsyncIterator[GroupMember]:
        members = members_of(self.world.seed, name)
        end = self.random.choice((len(members), len(members), self.random.randint(0, len(members))))
        for number, member in enumerate(members):
            if number == end:
                raise Broken
            if self.random.random() < 0.3:
                await self.process.sleep(self.random.choice((0.0, 0.01, 0.2)))
            yield member

    async def submit_members(self, group: RunGroup) -> None:
        world = self.world
        if group.group_id in world.forgetting:
            return
        world.stopped.discard(group.group_id)
        try:
            status = await group.submit(self.stream(group.group_id))
        except (Broken, StoreError):
            world.count("groups broken off")
        except GroupStopped:
            world.count("groups stopped")
        else:
            wanted = len(members_of(world.seed, group.group_id))
            if not self.process.dead:
                world.count("groups submitted")
                world.acknowledged.add(group.group_id)
            if (status.total, status.is_complete) != (wanted, True):
                world.violate(f"group_not_whole: {status}")

    async def read(self, group: RunGroup) -> None:
        """All results, if they come soon: each member once."""
        try:
            await self._read(group)
        except PayloadMissing as error:  # the owner may have removed it by now
            if self.is_owner:
                self.world.violate(f"payload_missing: {error}")

    async def _read(self, group: RunGroup) -> None:
        world = self.world
        seen: dict[str, TerminalStatus] = {}
        with suppress(GroupNotFound, GroupIncomplete, TimeoutError, StoreError):
            order = self.random.choice(("completion", "submission"))
            async with asyncio.timeout(self.random.choice((0.5, 5.0))):
                async with aclosing(group.results(order=order)) as results:  # type: ignore[arg-type]
                    async for end in results:
                        if end.key in seen:
                            world.violate(f"result_twice: {end.key}")
                        seen[end.key] = end.termination.status
                        if self.process.dead:
                            return
                        if end.termination.status is TerminalStatus.SUCCEEDED:
                            # Nobody runs it again.
                            world.succeeded[end.run_id] = end.key
            status = await group.status()
            if len(seen) != status.total:
                world.violate(f"results_missing: {len(seen)} of {status}")
            world.count("groups read")

    async def stop(self, group: RunGroup) -> None:
        world = self.world
        await group.cancel()
        with suppress(GroupNotFound):
            status = await group.status()
            if status.is_stopped and self.is_owner:
                world.stopped.add(group.group_id)
                world.count("groups cancelled")

    async def go_on(self, group: RunGroup) -> None:
        world = self.world
        if group.group_id in world.forgetting:
            return
        world.stopped.discard(group.group_id)
        with suppress(GroupNotFound, GroupIncomplete, StoreError):
            await group.resume()
            world.count("groups resumed")

    async def forget(self, group: RunGroup) -> None:
        world, name = self.world, group.group_id
        is_new = name not in world.forgetting
        world.forgetting.add(name)
        try:
            await group.forget()
        except GroupActive:
            if is_new:
                world.forgetting.discard(name)
        else:
            world.count("groups forgotten")
            if not self.process.dead:
                with suppress(GroupNotFound):
                    await group.status()
                    world.violate(f"not_forgotten: {name}")

    async def do(self, step: Step) -> Outcome:
        world, process = self.world, self.process
        name = step.payload.split()[0].decode()
        is_first = (step.number, step.attempt) == (0, 1)
        if self.is_owner and step.run_id in world.succeeded:
            world.violate(f"run_again: {world.succeeded[step.run_id]}")
        if is_first and self.is_owner and name in world.stopped:
            world.violate(f"begun_in_stopped: a member of {name}")
        random = Random(f"{world.seed}/{step.run_id}/{step.number}/{len(world.trace)}")
        kinds = ["on", "later", "busy", "slow", "fail", "no", "end", "end", "end"]
        kind = "end" if self.healed or step.number >= _LAST else random.choice(kinds)
        if step.attempt > 2:
            kind = "on"
        world.count(f"steps: {kind}")
        await process.sleep(random.choice((0.0, 0.01, 0.1)))
        match kind:
            case "busy":
                raise TransientError("busy")
            case "no":
                raise PermanentError("never")
            case "slow":
                await process.sleep(world.plan.lease * random.choice((0.9, 1.5)))
            case "later":
                return Continue(step.payload, after=random.choice((0.05, 1.0)))
            case "fail":
                return Fail("no")
            case "end":
                step.effects.put(f"done/{step.run_id}#{len(world.trace)}", b"1,")
                return Succeed(step.payload)
            case _:
                pass
        return Continue(step.payload)


class LastLife(GroupLife):
    """Brings all groups to their ends, and looks at what came of it."""

    async def act(self, runtime: WorkflowRuntime) -> None:
        world, queue = self.world, self.queue
        assert queue is not None
        done: set[str] = set()
        for name in GROUPS:
            group = self.group(runtime, name)
            known = await runtime.group_status(name)
            if known is None and (name in world.forgetting or name not in world.acknowledged):
                continue
            if known is None:
                world.violate(f"group_lost: {name}")
                continue
            members = members_of(world.seed, name)
            world.stopped.discard(name)
            ends: list[MemberResult] = []
            try:
                async with asyncio.timeout(_PATIENCE):
                    for _ in range(2):  # one that is being cancelled ends as such, at first
                        await group.submit(members)
                        ends = await group.gather()
            except TimeoutError:
                world.violate(f"not_ended: {await group.status()}")
                continue
            wrong = [end.key for end in ends if end.termination.status != TerminalStatus.SUCCEEDED]
            if wrong or [end.key for end in ends] != [member.key for member in members]:
                world.violate(f"not_succeeded: {wrong} of {name}, {len(ends)} ends")
            if [end.outcome.result for end in ends] != [member.input for member in members]:
                world.violate(f"another_input: {name}")
            done |= {member_run_id(name, member.key) for member in members}
        notes = {
            key.decode(): value.decode() for key, value in await queue.read("SELECT * FROM kv")
        }
        noted = must.End(jobs={}, notes=notes, done={}).under("done/")
        again = [run_id for run_id, times in noted.items() if len(times) != 1]
        if again or done - set(noted):
            world.violate(f"end_not_once: {again}, {sorted(done - set(noted))[:5]}")
        for name in GROUPS:
            await runtime.group(name).forget()
        await self.process.sleep(60.0)
        for table in ("groups", "members", "runs", "memos", "ended_lives"):
            if await queue.read(f"SELECT 1 FROM {table} LIMIT 1"):
                world.violate(f"left_behind: in {table}")
        if await queue.read("SELECT 1 FROM jobs WHERE state < 3 LIMIT 1"):
            world.violate("left_behind: in jobs")


def false_books(entries: list[Entry]) -> str:
    """At every entry, what groups say is what their members are."""
    tables: dict[str, dict[Any, Row]] = {"groups": {}, "members": {}, "runs": {}}
    of_group: dict[str, dict[int, set[Any]]] = {"members": {}, "runs": {}}
    for entry in entries:
        touched: set[int] = set()
        for change in entry.changes:
            if change.table not in tables:
                continue
            column = _COLUMNS[change.table]
            for row, is_there in ((change.before, False), (change.after, True)):
                if row is None:
                    continue
                name = "number" if change.table == "groups" else "group_number"
                number = row[column[name]]
                if number is None:
                    continue
                touched.add(number)
                if change.table in of_group:
                    keys = of_group[change.table].setdefault(number, set())
                    (keys.add if is_there else keys.discard)(change.key)
            if change.after is None:
                tables[change.table].pop(change.key, None)
            else:
                tables[change.table][change.key] = change.after
        for number in touched:
            rows = {
                name: [tables[name][key] for key in of_group[name].get(number, ())]
                for name in of_group
            }
            complaint = _false_book(tables["groups"].get((number,)), rows)
            if complaint:
                return f"entry {entry.seq}: group {number}: {complaint}"
    return ""


def _false_book(row: Row | None, rows: dict[str, list[Row]]) -> str:
    members = [_named("members", member) for member in rows["members"]]
    lives = {run["life"]: run for run in (_named("runs", run) for run in rows["runs"])}
    if row is None:
        return f"{len(members)} members, {len(lives)} runs, and no group" if rows["members"] else ""
    group = _named("groups", row)
    if group["group_id"] is None:
        return ""
    if group["total"] != len(members) or {member["life"] for member in members} != set(lives):
        return f"total {group['total']}, {len(members)} members, {len(lives)} runs"
    for status, counter in _STATUSES.items():
        found = sum(run["status"] == status for run in lives.values())
        if found != group[counter]:
            return f"{group[counter]} {counter}, and {found} are"
    ends = sorted(run["ended_number"] for run in lives.values() if run["ended_number"] is not None)
    ended = sum(run["status"] != _ACTIVE for run in lives.values())
    if len(ends) != len(set(ends)) or len(ends) != ended or (ends and ends[-1] > group["ends"]):
        return f"ends {ends} of {ended}, {group['ends']} in all"
    is_finished = ended == len(members) and bool(group["sealed"] or group["stopped"])
    if (group["finished_at"] is not None) != is_finished:
        return f"finished at {group['finished_at']}, with {ended} of {len(members)} ended"
    return ""


def _named(table: str, row: Row) -> dict[str, Any]:
    return {name: row[place] for name, place in _COLUMNS[table].items()}


def simulate(seed: int, plan: Plan | None = None) -> GroupWorld:
    """Live through the world of this seed. Same seed and plan, same trace."""
    with (
        mock.patch("taquba.workflow._group_submission._CHUNK", 4),
        mock.patch("taquba.workflow._group_removal._REMOVED", 3),
        mock.patch("taquba.workflow._group_upkeep._SLICE", 3),
        mock.patch("taquba.workflow._group_results._PAGE", 4),
    ):
        return runs.live_in(
            GroupWorld,
            seed,
            plan or plan_of(seed),
            GroupLife,
            LastLife,
            {"false_books": false_books},
        )
