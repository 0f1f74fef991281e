"""A simulated process that follows a store which others write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from taquba import Follower
from taquba.database import Replica, verify
from taquba.errors import Closed, StoreError, TaqubaError
from taquba.objectstore import RetryingStore
from taquba.queue import QUEUE_CHECKS
from tests.simulation import stack_invariants as must
from tests.simulation.network import FAIR, Process
from tests.simulation.shadow import Tables
from tests.simulation.stack_invariants import Seen

if TYPE_CHECKING:
    from tests.simulation.stack import StackWorld


def content_from(rows: Callable[[str], list[tuple[Any, ...]]]) -> Tables:
    """All rows of all tables that can be read, by their primary keys."""
    tables: Tables = {}
    for (name,) in rows("SELECT name FROM sqlite_master WHERE type = 'table'"):
        keys = rows(f"SELECT cid FROM pragma_table_info('{name}') WHERE pk > 0 ORDER BY cid")
        places = [place for (place,) in keys]
        found = rows(f'SELECT * FROM "{name}"')
        tables[name] = {tuple(row[place] for place in places): row for row in found}
    return tables


async def audit(world: StackWorld, name: str, *, at_the_end: bool) -> None:
    """Verify the whole store, beside those who write and collect, or when they are gone."""
    random = Random(f"{world.seed}/{name}")
    process = Process(
        name, world.store, random, FAIR if at_the_end else world.weather, world.note, world.count
    )
    process.live_here()
    if not at_the_end:
        await process.sleep(random.random() * 5)
    store = RetryingStore(process.store, clock=process.clock)
    world.note(name, "verifies")
    try:
        report = await verify(store, checks=QUEUE_CHECKS, config=world.database_config())
    except StoreError:
        return
    except TaqubaError as error:
        world.violate(f"cannot_verify: {name}: {error!r}")
        return
    world.count("audits")
    world.check(must.verify_complains, name, report.findings)
    if at_the_end:
        world.check(must.verify_is_lost, report.position.seq, report.settled)


class Reader:
    """One follower: it shows what it has at every change, stands still, and goes on."""

    def __init__(self, world: StackWorld, number: int) -> None:
        self.world = world
        self.name = f"f{number}"
        self.random = Random(f"{world.seed}/{self.name}")
        self.loads = 0
        self.process = Process(
            self.name,
            world.store,
            Random(f"{world.seed}/{self.name}/network"),
            world.weather,
            self.note,
            world.count,
        )
        self.follower: Follower | None = None
        self.replica: Replica | None = None
        self.task: asyncio.Future[None] = asyncio.ensure_future(self.live())

    def note(self, *event: Any) -> None:
        self.world.note(*event)
        heard = event[1:] and event[1] == "get" and event[3:] == ("ok", "")
        if heard and str(event[2]).startswith("checkpoints/"):
            self.loads += 1
            if self.loads > 1:
                self.world.count("reloads")

    async def live(self) -> None:
        self.process.live_here()
        await self.process.sleep(self.random.random())
        if not await self.open():
            return
        following = asyncio.ensure_future(self.follow())
        if self.random.random() < 0.7:
            await self.process.sleep(self.random.random() * 3)
            # Until collection has overtaken it, or until everything is over.
            self.process.freeze(self.random.choice((1.0, 5.0, 7200.0)) * self.random.random())
        await following

    async def open(self) -> bool:
        for _ in range(30):
            known = self.acknowledged()
            try:
                self.follower = await Follower.open(
                    self.process.store,
                    clock=self.process.clock,
                    poll_interval=self.random.choice((0.05, 0.3)),
                    max_poll_interval=self.random.choice((300.0, 900.0)),
                )
            except StoreError:
                await self.process.sleep(0.2)
                continue
            except TaqubaError as error:
                self.world.violate(f"follower_failed: {self.name} cannot open: {error!r}")
                return False
            self.replica = self.follower._replica
            self.show(known)
            return True
        return False

    async def follow(self) -> None:
        """Show what there is, after each change."""
        assert self.follower is not None and self.replica is not None
        try:
            async for _ in self.follower.changes():
                self.show([])
                await self.count_jobs()
                if self.random.random() < 0.1:
                    known = self.acknowledged()
                    with suppress(StoreError):
                        await self.follower.refresh()
                        self.show(known)
        except Closed:
            return
        except TaqubaError as error:
            self.world.violate(f"follower_failed: {self.name}: {error!r}")

    def acknowledged(self) -> list[int]:
        return [op.number for op in self.world.ops.values() if op.acknowledged_at is not None]

    def show(self, known: list[int]) -> None:
        """Note what is shown now, which has all of what was `known` to be committed."""
        assert self.replica is not None
        content = content_from(self.replica.rows)
        seq = self.replica.position.seq
        self.world.note(self.name, "shows", seq)
        self.world.count("shown by followers")
        self.world.seen.append(Seen(self.name, self.process.loop.time(), seq, content))
        found = [must.number_of(key[0]) for key in content.get("kv", {})]
        self.world.check(must.not_shown, known, found)

    async def count_jobs(self) -> None:
        """Ask for counters, as a user would, and compare them with the jobs that are shown."""
        assert self.follower is not None and self.replica is not None
        lane = self.random.choice(("a", "b", "w"))
        before = self.follower.position
        stats = await self.follower.stats(lane)
        if self.follower.position == before:
            rows = self.replica.rows(
                "SELECT state, count(*) FROM jobs JOIN queues ON queue = number WHERE name = ?"
                " GROUP BY state",
                (lane,),
            )
            self.world.check(must.follower_miscounts, self.name, stats, dict(rows))

    async def finish(self) -> None:
        """Everything has healed: show all there is, and close."""
        self.process.weather = FAIR
        if self.follower is None:
            return
        try:
            await self.follower.refresh()
            self.show(self.acknowledged())
            await self.follower.close()
        except TaqubaError as error:
            self.world.violate(f"follower_failed: {self.name} at the end: {error!r}")
        await asyncio.wait([self.task])
