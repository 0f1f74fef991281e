"""Objects that rows name: deleted when none does, and never while anybody may need them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Collection, Sequence
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from taquba.clock import ManualClock
from taquba.database import Database, DatabaseConfig, ObjectKeys
from taquba.errors import CommitUnknown, Fenced, InvalidArgument, StoreUnavailable
from taquba.objectstore import MemoryStore
from taquba.testing import FaultyStore

from .harness import ITEMS, keys, put

pytestmark = pytest.mark.anyio

GRACE = timedelta(hours=3)
HOUR = 3600.0


class Blobs:
    """A layer above: values in objects of their own, named by rows of `items`."""

    def __init__(self, database: Database, store: Any, grace: Any = GRACE) -> None:
        self.database = database
        self.store = store
        self.asked: list[int] = []
        self.keys: ObjectKeys = database.collect_orphans(
            "payloads/", is_named=self.is_named, grace=grace
        )

    def is_named(self, keys: Sequence[str]) -> Collection[str]:
        self.asked.append(len(keys))
        marks = ",".join("?" * len(keys))
        rows = self.database.execute(f"SELECT tag FROM items WHERE tag IN ({marks})", tuple(keys))
        return {tag for (tag,) in rows.fetchall()}

    async def write(self, key: int, value: bytes = b"value") -> str:
        with self.keys.new() as name:
            await self.store.put(name, value)
            await put(self.database, key, tag=name)
        return name

    async def leave(self) -> str:
        """Write an object, and die before the commit."""
        with self.keys.new() as name:
            await self.store.put(name, b"left")
        return name

    def forget(self, key: int) -> Any:
        with self.database.transaction() as tx:
            tx.execute("DELETE FROM items WHERE key = ?", (key,))
        return tx

    async def checkpoint(self, times: int = 1) -> None:
        for _ in range(times):
            await put(self.database, 10**6, self.database.position.seq.to_bytes(8))
            await self.database.checkpoint()
            await self.database.collect()


async def open_blobs(store: Any, clock: ManualClock, grace: Any = GRACE, **settings: Any) -> Blobs:
    config = DatabaseConfig(checkpoint_bytes=2**40, checkpoint_entries=2**40, **settings)
    database = await Database.open(store, [ITEMS], clock=clock, config=config)
    return Blobs(database, store, grace)


async def test_what_no_row_names_goes_and_what_one_names_stays() -> None:
    clock, store = ManualClock(), MemoryStore()
    blobs = await open_blobs(store, clock)
    named = [await blobs.write(i) for i in range(5)]
    left = [await blobs.leave() for _ in range(5)]
    await blobs.forget(0).durable()
    await blobs.forget(1).durable()
    await clock.advance(4 * HOUR)
    await blobs.checkpoint(4)
    assert await keys(store, "payloads/") == sorted(named[2:])
    assert not set(left) & set(await keys(store, "payloads/"))
    assert blobs.database.execute("SELECT count(*) FROM orphans").fetchone() == (0,)
    await blobs.database.close()


async def test_nothing_younger_than_the_grace_period_goes() -> None:
    clock, store = ManualClock(), MemoryStore()
    blobs = await open_blobs(store, clock)
    early = await blobs.leave()
    await clock.advance(1.5 * HOUR)
    late = await blobs.leave()
    for half_hours in range(9):
        await blobs.checkpoint(3)
        there = set(await keys(store, "payloads/"))
        for name, age in ((early, 1.5 + half_hours / 2), (late, half_hours / 2)):
            assert name in there or age >= 3
            # It is looked for orphans four times in a grace period.
            assert name not in there or age < 3.75
        await clock.advance(HOUR / 2)
    await blobs.database.close()


async def test_a_key_that_is_held_stays_however_long_its_commit_takes() -> None:
    """No clock decides that: neither one that jumps, nor the grace period."""
    clock, store = ManualClock(), MemoryStore()
    blobs = await open_blobs(store, clock)
    with blobs.keys.new() as name:
        await store.put(name, b"large")
        await clock.advance(100 * HOUR)
        clock.shift_wall_clock(100 * HOUR)
        await blobs.checkpoint(4)
        assert await keys(store, "payloads/") == [name]
        await put(blobs.database, 1, tag=name)
    await blobs.checkpoint(4)
    assert await keys(store, "payloads/") == [name]
    await blobs.database.close()


async def test_a_name_in_a_commit_that_is_not_durable_yet_counts() -> None:
    clock, below = ManualClock(), MemoryStore()
    store = FaultyStore(below)
    blobs = await open_blobs(store, clock)
    await blobs.checkpoint(3)
    with blobs.keys.new() as name:
        await store.put(name, b"large")
        held = store.hold("create", "journal/", times=10**6)
        with blobs.database.transaction() as tx:
            tx.execute("INSERT INTO items VALUES (1, NULL, ?)", (name,))
    await clock.advance(4 * HOUR)
    collecting = asyncio.ensure_future(blobs.database.collect())
    await clock.advance(60)
    assert name in await keys(below, "payloads/")
    held.release()
    await tx.durable()
    await collecting
    await blobs.checkpoint(4)
    assert name in await keys(below, "payloads/")
    await blobs.database.close()


async def test_an_object_stays_until_the_end_of_its_name_is_in_every_kept_checkpoint() -> None:
    """A successor may go back to what is durable; history, to any moment of it."""
    clock, below = ManualClock(), MemoryStore()
    store = FaultyStore(below)
    blobs = await open_blobs(store, clock)
    name = await blobs.write(1)
    await clock.advance(4 * HOUR)
    await blobs.checkpoint(2)
    held = store.hold("create", "journal/", times=10**6)
    blobs.forget(1)
    for _ in range(3):
        await clock.advance(HOUR)
        collecting = asyncio.ensure_future(blobs.database.collect())
        await clock.advance(60)
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        assert name in await keys(below, "payloads/")
    # This commit is lost: another process takes over from what is durable.
    other = await open_blobs(below, clock)
    assert other.is_named([name]) == {name}
    held.release()
    await other.checkpoint(4)
    assert await below.get(name) == b"value"
    with pytest.raises(Fenced):
        await blobs.database.barrier()
    await blobs.database.close()
    await other.database.close()


async def test_a_mark_in_the_entry_behind_the_cut_is_not_in_the_cut() -> None:
    """It may be lost, and with it the end of the name."""
    clock, below = ManualClock(), MemoryStore()
    store = FaultyStore(below)
    blobs = await open_blobs(store, clock, keep_checkpoints=1)
    name = await blobs.write(1)
    await blobs.leave()  # so that there is a table for marks
    await clock.advance(4 * HOUR)
    await blobs.checkpoint(2)
    await clock.advance(HOUR)
    await blobs.database.checkpoint()  # of what the collections wrote
    cut = blobs.database.position.seq
    assert blobs.database.statistics().checkpoint_seq == cut
    held = store.hold("create", "journal/", times=10**6)
    asked: list[str] = []

    def forget_when_asked(keys: Sequence[str]) -> Collection[str]:
        if not asked:  # in the round of the loop in which it is marked, so in the same entry
            asked.extend(keys)
            blobs.forget(1)
        return blobs.is_named(keys)

    blobs.database._collector.orphans[0]._is_named = forget_when_asked
    await blobs.database.collect()  # marks it
    assert blobs.database.position.seq == cut + 1
    assert blobs.database.execute("SELECT key FROM orphans").fetchall() == [(name,)]
    await blobs.database.collect()
    assert name in await keys(below, "payloads/")
    other = await open_blobs(below, clock)
    assert other.is_named([name]) == {name}
    held.release()
    await blobs.database.close(timeout=0)
    await other.database.close()


async def test_with_history_an_object_stays_as_long_as_a_state_that_names_it() -> None:
    clock, store = ManualClock(), MemoryStore()
    blobs = await open_blobs(store, clock, retain_history=timedelta(hours=24))
    name = await blobs.write(1)
    await blobs.checkpoint()
    await clock.advance(5 * HOUR)
    await blobs.forget(1).durable()
    for hours in range(40):
        await blobs.checkpoint()
        if hours <= 24:
            assert name in await keys(store, "payloads/"), hours
        await clock.advance(HOUR)
    assert await keys(store, "payloads/") == []
    await blobs.database.close()


async def test_marks_survive_the_owner_and_the_next_one_goes_on() -> None:
    clock, store = ManualClock(), MemoryStore()
    for owner in range(8):
        blobs = await open_blobs(store, clock)
        if owner == 0:
            await blobs.leave()
            await clock.advance(4 * HOUR)
        if await keys(store, "payloads/"):
            await blobs.checkpoint()  # one each: no owner sees more than a step
        await blobs.database.close()
    assert await keys(store, "payloads/") == []


async def test_without_orphans_nothing_is_written_for_them() -> None:
    clock, store = ManualClock(), MemoryStore()
    blobs = await open_blobs(store, clock)
    for i in range(3):
        await blobs.write(i)
    await clock.advance(4 * HOUR)
    await blobs.checkpoint(2)
    before = blobs.database.position.seq
    await blobs.database.collect()
    assert blobs.database.position.seq == before
    tables = blobs.database.execute("SELECT name FROM schema_modules").fetchall()
    assert tables == [("items",)]
    await blobs.database.close()


async def test_an_earlier_owner_whose_clock_was_ahead_hides_nobodys_orphans() -> None:
    clock, store = ManualClock(), MemoryStore()
    now = clock.now_ms()
    for _ in range(2):
        blobs = await open_blobs(store, clock)
        await blobs.database.close()
    young = f"payloads/0000000001-{now + 10**9:013d}-{1:016x}"
    old = f"payloads/0000000002-{now - 10**9:013d}-{2:016x}"
    for key in (young, old):
        await store.create(key, b"?")
    blobs = await open_blobs(store, clock)
    await blobs.checkpoint(4)
    assert await keys(store, "payloads/") == [young]
    await clock.advance(timedelta(days=13))
    await blobs.checkpoint(4)
    assert await keys(store, "payloads/") == []
    await blobs.database.close()


async def test_other_objects_are_not_touched() -> None:
    clock, store = ManualClock(), MemoryStore()
    strange = [
        "payloads/README",
        "payloads/0000000001-1-ab",
        "payloads/0000000099-0000000000001-0123456789abcdef",  # of a newer epoch
        "memos/0000000001-0000000000001-0123456789abcdef",  # of another prefix
    ]
    for key in strange:
        await store.create(key, b"?")
    blobs = await open_blobs(store, clock)
    await blobs.leave()
    await clock.advance(4 * HOUR)
    await blobs.checkpoint(4)
    assert (
        await keys(store, "payloads/") + await keys(store, "memos/")
        == sorted(strange[:3]) + strange[3:]
    )
    await blobs.database.close()


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
@pytest.mark.parametrize("when", ["before", "amid"])
async def test_a_clock_that_jumps_an_hour_loses_nothing(jump: float, when: str) -> None:
    """Not even what a careless maker does not hold."""
    clock, store = ManualClock(), MemoryStore()
    blobs = await open_blobs(store, clock, grace=timedelta(hours=2))
    await blobs.checkpoint(2)
    if when == "before":
        clock.shift_wall_clock(jump)
    with blobs.keys.new() as name:
        pass
    await store.put(name, b"large")
    clock.shift_wall_clock(jump if when == "amid" else -jump)
    for _ in range(5):
        await clock.advance(0.15 * HOUR)
        await blobs.checkpoint(2)
        assert await keys(store, "payloads/") == [name]
    await put(blobs.database, 1, tag=name)
    for _ in range(10):
        await clock.advance(HOUR)
        await blobs.checkpoint(2)
        assert await keys(store, "payloads/") == [name]
    await blobs.database.close()


async def test_a_name_that_comes_back_against_the_rule_is_respected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, store = ManualClock(), MemoryStore()
    blobs = await open_blobs(store, clock)
    name = await blobs.leave()
    await clock.advance(4 * HOUR)
    await blobs.checkpoint()
    assert blobs.database.execute("SELECT key FROM orphans").fetchall() == [(name,)]
    await put(blobs.database, 1, tag=name)
    with caplog.at_level(logging.WARNING):
        await blobs.checkpoint(4)
    assert "named again" in caplog.text
    assert await keys(store, "payloads/") == [name]
    await blobs.database.close()


async def test_a_callback_that_fails_deletes_nothing_and_stops_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, store = ManualClock(), MemoryStore()
    blobs = await open_blobs(store, clock)
    name = await blobs.leave()

    def fails(keys: Sequence[str]) -> Collection[str]:
        raise ZeroDivisionError

    blobs.database.collect_orphans("memos/", is_named=fails)
    with_error = "memos/0000000001-0000000000001-0123456789abcdef"
    await store.create(with_error, b"?")
    await clock.advance(4 * HOUR)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await blobs.checkpoint()
    await blobs.database.close()
    assert with_error in await keys(store, "memos/")
    assert name not in await keys(store, "payloads/")


async def test_many_are_asked_about_in_batches_and_go_at_the_configured_rate() -> None:
    clock, store = ManualClock(), MemoryStore()
    blobs = await open_blobs(store, clock)
    for _ in range(3000):
        await blobs.leave()
    await blobs.database.close()
    blobs = await open_blobs(store, clock, collection_rate=200)
    await clock.advance(4 * HOUR)
    for _ in range(4):
        await put(blobs.database, 1, blobs.database.position.seq.to_bytes(8))
        await blobs.database.checkpoint()
        collecting = asyncio.ensure_future(blobs.database.collect())
        before, seconds = len(await keys(store, "payloads/")), 0
        while not collecting.done():
            await clock.advance(1)
            seconds += 1
            there = len(await keys(store, "payloads/"))
            assert before - there <= 200 * (seconds + 1)
        await collecting
    assert await keys(store, "payloads/") == []
    assert max(blobs.asked) == 200
    await blobs.database.close()


@pytest.mark.parametrize("how", ["fail", "fail after", "crash"])
async def test_a_crash_or_failure_at_any_request_leaves_what_is_named(how: str) -> None:
    for step in range(12):
        clock, below = ManualClock(seed=step), MemoryStore()
        store = FaultyStore(below)
        blobs = await open_blobs(store, clock)
        named = [await blobs.write(i) for i in range(4)]
        for _ in range(3):
            await blobs.leave()
        await blobs.forget(0).durable()
        await clock.advance(4 * HOUR)
        await blobs.checkpoint(2)
        await put(blobs.database, 9, b"x")
        await blobs.database.checkpoint()
        if how == "crash":
            held = store.hold("any", skip=step, times=math.inf)
            collecting = asyncio.ensure_future(blobs.database.collect())
            await clock.advance(1)
            with contextlib.suppress(CommitUnknown):
                await blobs.database.close(timeout=0)
            await asyncio.gather(collecting, return_exceptions=True)
            held.release()
            await store.settle()
        else:
            store.fail("delete", skip=step % 4, after=how == "fail after")
            store.fail("list", skip=step)
            with contextlib.suppress(StoreUnavailable):
                await blobs.database.collect()
            store.heal()
            await blobs.database.close()
        assert set(named[1:]) <= set(await keys(below, "payloads/"))
        blobs = await open_blobs(below, clock)
        await blobs.checkpoint(5)
        assert await keys(below, "payloads/") == sorted(named[1:]), step
        await blobs.database.close()


async def test_owners_at_random_moments_never_lose_what_a_durable_state_names() -> None:
    """Rivals that do not know that they were replaced collect, too; clocks jump."""
    deleted = 0
    for seed in range(30):
        random = Random(seed)
        below = MemoryStore()
        owners: list[tuple[Blobs, ManualClock]] = []
        for step in range(70):
            if not owners or random.random() < 0.06:
                clock = ManualClock(seed=1000 * seed + step)
                await clock.advance(step * HOUR)
                retain = random.choice((None, None, 10 * HOUR))
                owners.append(
                    (await open_blobs(FaultyStore(below), clock, retain_history=retain), clock)
                )
            blobs, clock = random.choice(owners[-2:])
            with contextlib.suppress(Fenced):
                match random.choice("wwwlffccccjt"):
                    case "w":
                        await blobs.write(random.randrange(6))
                    case "l":
                        await blobs.leave()
                    case "f":
                        tx = blobs.forget(random.randrange(6))
                        if random.random() < 0.5:
                            await tx.durable()
                    case "c":
                        await blobs.checkpoint()
                    case "j":
                        clock.shift_wall_clock(random.uniform(-HOUR, HOUR))
                    case _:
                        await clock.advance(random.choice((0.5, 2, 5)) * HOUR)
        for blobs, _ in owners:
            await blobs.database.close(timeout=0)
        clock = ManualClock(seed=1000 * seed + 999)
        last = await open_blobs(below, clock)
        tags = last.database.execute("SELECT tag FROM items WHERE tag IS NOT NULL").fetchall()
        there = set(await keys(below, "payloads/"))
        missing = {tag for (tag,) in tags} - there
        assert not missing, f"seed {seed}: {missing}"
        await clock.advance(500 * HOUR)
        await last.checkpoint(5)
        assert set(await keys(below, "payloads/")) == {tag for (tag,) in tags}
        deleted += len(there) - len(tags)
        await last.database.close()
    assert deleted > 50


async def test_keys_say_when_and_by_whom_and_are_unlike_each_other() -> None:
    clock, store = ManualClock(), MemoryStore()
    blobs = await open_blobs(store, clock)
    with blobs.keys.new() as one, blobs.keys.new() as other:
        assert one != other
        assert one.startswith(f"payloads/0000000001-{clock.now_ms():013d}-")
        assert blobs.keys.is_held(one)
    assert not blobs.keys.is_held(one)
    await blobs.database.close()


async def test_bad_registrations() -> None:
    clock, store = ManualClock(), MemoryStore()
    blobs = await open_blobs(store, clock)
    for prefix in ("payloads/", "journal/", "chunks/", "checkpoints/", "", "x", "a/b/", "a b/"):
        with pytest.raises(InvalidArgument, match="prefix"):
            blobs.database.collect_orphans(prefix, is_named=blobs.is_named)
    for grace in (0, 7199, -1, timedelta(hours=1), "long"):
        with pytest.raises(InvalidArgument, match="grace"):
            blobs.database.collect_orphans("memos/", is_named=blobs.is_named, grace=grace)  # type: ignore[arg-type]
    blobs.database.collect_orphans("memos/", is_named=blobs.is_named, grace=7200)
    await blobs.database.close()
