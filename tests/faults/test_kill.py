"""SIGKILL at every write: amid work, during a checkpoint, a collection, and a migration."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from taquba import Queue
from taquba.errors import IncompatibleStore
from taquba.queue import JobState

from .harness import KILLED, LONG, Nursery, World, new_world
from .plan import Kill, When
from .workload import CONFIG, shop

WHENS: tuple[When, ...] = ("before", "amid", "after")

CHECKPOINT_REQUESTS = (
    ("put", ""),
    ("create", "checkpoints/"),
    ("create", "chunks/"),
    ("delete", ""),
)
EVERY_WRITE = (("put", ""), ("create", ""), ("delete", ""))


def live_until_killed(world: World, kill: Kill, **plan: Any) -> str | None:
    """What a process was killed at; None if it came to its end before."""
    life = world.start(kill=kill, **plan)
    if life.wait() == 0:
        return None
    assert life.code == KILLED, (life.code, life.events[-10:], life.errors())
    [hit] = [event for event in life.events if event.startswith("killing ")]
    return hit.removeprefix("killing ")


def assert_all_were_hit(hits: Counter[str], *requests: str) -> None:
    missed = [f"{request} {when}" for request in requests for when in WHENS]
    assert [hit for hit in missed if not hits[hit]] == [], hits


def test_at_every_write_of_a_checkpoint_and_of_a_collection(
    nursery: Nursery, tmp_path: Path
) -> None:
    with new_world(nursery, tmp_path / "base", payload=25_000) as base:
        assert base.start(task="checkpoints").wait() == 0
    hits: Counter[str] = Counter()
    for number in count(1):
        for when in WHENS:
            with new_world(nursery, tmp_path / f"{number}-{when}", payload=25_000) as world:
                world.copy(base)
                kill = Kill(number=number, when=when, requests=CHECKPOINT_REQUESTS)
                hit = live_until_killed(world, kill, name="B", task="checkpoints")
                if hit is not None:
                    hits[hit] += 1
                    world.judge()
                if LONG or hit is None:
                    # A successor that does the same in what is left.
                    assert world.start(name="C", task="checkpoints").wait() == 0
                    world.judge()
        if hit is None:
            break
    assert_all_were_hit(
        hits,
        "put chunks",
        "create checkpoints",
        "delete journal",
        "delete checkpoints",
        "delete chunks",
    )


def test_at_every_write_of_an_opening_and_of_a_migration(nursery: Nursery, tmp_path: Path) -> None:
    """The new version's process opens, migrates and works; what is left fits one version."""
    with new_world(nursery, tmp_path / "old") as old:
        assert old.start(task="migrate", version=1, jobs=5).wait() == 0
        before = old.judge()
    prices = {f"thing {number}": number for number in range(50)}
    hits: Counter[str] = Counter()
    migrated: Counter[bool] = Counter()
    for number in count(1):
        for when in WHENS:
            home = tmp_path / f"{number}-{when}"
            with new_world(nursery, home) as world:
                world.copy(old)
                kill = Kill(number=number, when=when, requests=EVERY_WRITE)
                plan = NEW_VERSION
                hit = live_until_killed(world, kill, name="B", **plan)
                if hit is not None:
                    hits[hit] += 1
                    migrated[is_migrated(world, prices)] += 1
                assert world.start(name="C", **plan).wait() == 0
                assert is_migrated(world, prices)
                contents = world.judge()
                assert contents.jobs.keys() >= before.jobs.keys()
        if hit is None:
            break
    assert migrated[True] and migrated[False]
    assert_all_were_hit(hits, "create journal", "put chunks", "create checkpoints")


NEW_VERSION: dict[str, Any] = {
    "task": "migrate",
    "version": 2,
    "jobs": 0,
    "producers": 1,
    "consumers": 1,
}


def is_migrated(world: World, prices: dict[str, int]) -> bool:
    """Whether a store has the second version of the tables; its rows are right in any case."""

    async def look() -> bool:
        async with Queue.open(world.target, config=CONFIG) as queue:
            try:
                await queue.add_tables(shop(1))
            except IncompatibleStore:
                found = dict(await queue.read("SELECT name, price FROM goods"))
                assert found == {name: 2 * price for name, price in prices.items()}
                assert await queue.read("SELECT count(currency) FROM goods") == [(0,)]
                return True
            assert dict(await queue.read("SELECT name, price FROM goods")) == prices
            return False

    return asyncio.run(look())


def test_at_random_moments_under_load(world: World) -> None:
    """Three kills amid everything that the queue does at once, then one life to the end."""
    for settled in (1, 40, 150):
        life = world.start()
        life.expect("settled", count=settled)
        life.kill()
        assert life.code == KILLED
        world.judge()
    last = world.start(jobs=20)
    assert last.wait() == 0, last.events[-10:]
    contents = world.judge()
    assert all(job.state in (JobState.DONE, JobState.DEAD) for job in contents.jobs.values())
