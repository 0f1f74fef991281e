"""Retained history: every state within it can be rebuilt exactly, and no more than it is kept."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from taquba import Queue
from taquba.clock import ManualClock
from taquba.database import Database, DatabaseConfig, export_state
from taquba.errors import Fenced, HistoryNotKept, InvalidArgument
from taquba.journal import START, Kind, checkpoints, replay
from taquba.objectstore import MemoryStore
from taquba.testing import FaultyStore

from .harness import ITEMS, dump, keys, put

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000


def moment(at_ms: float) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at_ms)


def config(retain: Any, **settings: Any) -> DatabaseConfig:
    return DatabaseConfig(
        checkpoint_bytes=2**40, checkpoint_entries=2**40, retain_history=retain, **settings
    )


def read(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table; the file goes."""
    connection = apsw.Connection(str(path))
    tables = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
    ).fetchall()
    found: dict[str, list[tuple[Any, ...]]] = {
        str(table): sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr)
        for (table,) in tables
    }
    connection.close()
    path.unlink()
    return found


class Life:
    """Owners that replace each other, their clocks, and a copy of every state that there was."""

    def __init__(self, seed: int, retain: float) -> None:
        self.random = Random(seed)
        self.retain = retain
        self.store = MemoryStore()
        self.clock = ManualClock(seed=seed)
        self.owner: Database | None = None
        self.replaced: list[Database] = []
        self.states: list[tuple[int, dict[str, Any]]] = []
        """The time from which on a state is that of its moment, and the state."""
        self.latest = self.clock.now_ms()

    async def open(self) -> None:
        random = self.random
        if self.owner is not None:
            if random.random() < 0.5:
                await self.owner.close()
            else:
                self.replaced.append(self.owner)
        self.owner = await Database.open(
            self.store,
            [ITEMS],
            clock=self.clock,
            config=config(self.retain, keep_checkpoints=random.choice((1, 2)), chunk_size=8192),
        )
        self.note()

    def note(self) -> None:
        """Something may have been committed at this time of the clock."""
        assert self.owner is not None
        self.latest = max(self.latest, self.clock.now_ms())
        self.states.append((self.latest, dump(self.owner)))

    def expected(self, at_ms: float) -> dict[str, Any] | None:
        """All that was committed before the first commit that is later."""
        state = None
        for latest, found in self.states:
            if latest <= at_ms:
                state = found
        return state

    async def step(self, jumps: bool) -> None:
        random = self.random
        assert self.owner is not None
        match random.choice("ppppppccgot" + "j" * jumps):
            case "p":
                await self.clock.advance(random.choice((0, 0.001, 1, 60)) * random.random())
                value = random.randbytes(random.choice((10, 1000)))
                await put(self.owner, random.randrange(20), value)
                self.note()
            case "c":
                await self.owner.checkpoint()
            case "g":
                await self.owner.collect()
            case "o":
                await self.open()
            case "t":
                await self.clock.advance(random.choice((10, 100, 600)) * random.random())
            case _:
                self.clock.shift_wall_clock(random.choice((-1, 1)) * random.random() * 3600)
        for old in self.replaced:
            if random.random() < 0.1:
                with contextlib.suppress(Fenced):
                    await old.collect()

    async def end(self) -> None:
        for owner in [*self.replaced, self.owner]:
            if owner is not None:
                await owner.close()


async def test_every_state_within_the_retained_time_is_rebuilt_exactly(tmp_path: Path) -> None:
    """Compared with copies, row for row; without jumps of the clock all of the time is kept."""
    rebuilt = 0
    for seed in range(15):
        life = Life(seed, retain=900)
        await life.open()
        for _ in range(60):
            await life.step(jumps=False)
        await life.owner.checkpoint()  # type: ignore[union-attr]
        await life.owner.collect()  # type: ignore[union-attr]
        now = life.clock.now_ms()
        first = life.states[0][0]
        moments = [now - 900_000, now, now + 10**9]
        moments += [life.random.uniform(now - 900_000, now) for _ in range(6)]
        moments += [at + offset for at, _ in life.states[-6:] for offset in (-1, 0)]
        for at_ms in moments:
            if not max(first, now - 900_000) <= at_ms:
                continue
            path = tmp_path / "state.db"
            await export_state(life.store, path, at=moment(int(at_ms)))
            assert read(path) == life.expected(int(at_ms)), f"seed {seed}, {at_ms - now}"
            rebuilt += 1
        await life.end()
    assert rebuilt > 120


async def test_what_can_be_rebuilt_is_right_however_the_clocks_jump(tmp_path: Path) -> None:
    """And the error names a moment that can."""
    rebuilt = refused = 0
    for seed in range(100, 115):
        life = Life(seed, retain=600)
        await life.open()
        for _ in range(60):
            await life.step(jumps=True)
        times = [at for at, _ in life.states]
        for _ in range(12):
            at_ms = int(life.random.uniform(min(times) - 1000, max(times) + 1000))
            path = tmp_path / "state.db"
            try:
                await export_state(life.store, path, at=moment(at_ms))
            except HistoryNotKept as error:
                refused += 1
                assert error.earliest is not None
                assert error.earliest > moment(at_ms)
                at_ms = (error.earliest - moment(0)) // timedelta(milliseconds=1)
                await export_state(life.store, path, at=error.earliest)
            assert read(path) == life.expected(at_ms), f"seed {seed}, {at_ms}"
            rebuilt += 1
        await export_state(life.store, tmp_path / "now.db")
        assert read(tmp_path / "now.db") == life.states[-1][1]
        await life.end()
    assert rebuilt > 120
    assert refused > 10


async def test_no_more_is_kept_than_the_retained_time_needs() -> None:
    clock = ManualClock()
    store = MemoryStore()
    database = await Database.open(store, [ITEMS], clock=clock, config=config(timedelta(hours=1)))
    for i in range(40):
        await clock.advance(600)
        await put(database, i % 5, bytes([i]) * 1000)
        await database.checkpoint()
        await database.collect()
        horizon = clock.now_ms() - HOUR_MS
        kept = [checkpoint async for checkpoint in checkpoints(store)]
        old = [checkpoint for checkpoint in kept if checkpoint.as_of_ms <= horizon]
        if i >= 6:
            assert old == kept[:1], "one to begin with, and those that are younger"
            assert len(kept) == 7
        below = [
            seq
            for key in await keys(store, "journal/")
            if (seq := int(key.removeprefix("journal/"))) < kept[0].position.seq
        ]
        if i >= 6:
            assert below == [mark.seq for mark in kept[0].position.epochs]
    await database.close()


async def test_before_the_first_checkpoint_is_old_enough_the_log_is_kept_whole(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    store = MemoryStore()
    database = await Database.open(store, [ITEMS], clock=clock, config=config(3600))
    made = clock.now_ms()
    await clock.advance(60)
    for i in range(5):
        await put(database, i)
        await clock.advance(60)
        await database.checkpoint()
        await database.collect()
    await export_state(store, tmp_path / "a.db", at=moment(made + 60_000))
    assert [row[0] for row in read(tmp_path / "a.db")["items"]] == [0]
    await export_state(store, tmp_path / "b.db", at=moment(made))
    assert read(tmp_path / "b.db")["items"] == []
    await database.close()


async def test_a_clock_that_jumps_ahead_costs_no_history(tmp_path: Path) -> None:
    clock = ManualClock()
    store = MemoryStore()
    database = await Database.open(store, [ITEMS], clock=clock, config=config(1800))
    await put(database, 0)
    at_ms = clock.now_ms()
    await database.checkpoint()
    for i in range(3):
        await clock.advance(60)
        await put(database, 10 + i)
        await database.checkpoint()
    clock.shift_wall_clock(3600)
    for i in range(3):
        await put(database, i + 1)
        await database.checkpoint()
        await database.collect()
    clock.shift_wall_clock(-3600)
    await export_state(store, tmp_path / "a.db", at=moment(at_ms))
    assert [row[0] for row in read(tmp_path / "a.db")["items"]] == [0]
    await database.close()


async def test_history_that_is_not_wanted_any_more_goes(tmp_path: Path) -> None:
    clock = ManualClock()
    store = MemoryStore()
    for retain in (86_400, None):
        database = await Database.open(store, [ITEMS], clock=clock, config=config(retain))
        for i in range(5):
            await clock.advance(60)
            await put(database, i, bytes([i]) * 100)
            await database.checkpoint()
        await database.collect()
        assert len(await keys(store, "checkpoints/")) == (5 if retain else 2)
        await database.close()
    with pytest.raises(HistoryNotKept):
        await export_state(store, tmp_path / "a.db", at=moment(clock.now_ms() - 600_000))


async def test_manifests_of_the_past_are_read_once() -> None:
    clock = ManualClock()
    below = MemoryStore()
    database = await Database.open(below, [ITEMS], clock=clock, config=config(86_400))
    for i in range(30):
        await put(database, i)
        await database.checkpoint()
    await database.close()
    store = FaultyStore(below)
    database = await Database.open(store, [ITEMS], clock=clock, config=config(86_400))
    reads: list[int] = []
    for i in range(3):
        before = store.count("get", "checkpoints/")
        await put(database, 100 + i)
        await database.checkpoint()
        await database.collect()
        reads.append(store.count("get", "checkpoints/") - before)
    assert reads == [30, 0, 0]
    await database.close()


async def test_reading_the_past_does_not_disturb_the_owner_nor_the_owner_it(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    below = MemoryStore()
    database = await Database.open(below, [ITEMS], clock=clock, config=config(600))
    for i in range(5):
        await clock.advance(60)
        await put(database, i)
        await database.checkpoint()
    at_ms = clock.now_ms()
    expected = dump(database)
    store = FaultyStore(below)
    for operation, prefix in (("get", "chunks/"), ("list", "journal/")):
        held = store.hold(operation, prefix)  # type: ignore[arg-type]
        path = tmp_path / "state.db"
        exporting = asyncio.ensure_future(export_state(store, path, at=moment(at_ms)))
        await held.arrived()
        for i in range(5):
            await clock.advance(60 if operation == "get" else 180)
            await put(database, 10 + i)
            await database.checkpoint()
            await database.collect()
        held.release()
        if operation == "get":
            await exporting
            assert read(path) == expected
        else:  # by now it is too old
            with pytest.raises(HistoryNotKept):
                await exporting
    await database.close()


async def test_the_queue_has_the_option(tmp_path: Path) -> None:
    clock = ManualClock()
    store = MemoryStore()
    async with Queue.open(store, clock=clock, retain_history=timedelta(days=1)) as queue:
        await queue.kv.put("a", b"1")
        at_ms = clock.now_ms()
        await clock.advance(60)
        await queue.kv.put("a", b"2")
    await export_state(store, tmp_path / "a.db", at=moment(at_ms))
    rows = read(tmp_path / "a.db")
    assert any(b"1" in row for row in rows["kv"])
    for bad in (-1, "a day"):
        with pytest.raises(InvalidArgument, match="retain_history"):
            Queue.open(store, retain_history=bad)  # type: ignore[arg-type]


async def test_commit_times_are_those_of_the_entries() -> None:
    """What the checkpoints say is the latest of all commit times before them."""
    life = Life(7, retain=10**6)
    await life.open()
    for _ in range(80):
        await life.step(jumps=True)
    await life.owner.checkpoint()  # type: ignore[union-attr]
    found = {
        checkpoint.position.seq: checkpoint.committed_at_ms
        async for checkpoint in checkpoints(life.store)
    }
    latest: int | None = None
    seen = 0
    async for entry, after in replay(life.store, START):
        if entry.kind is Kind.ORDINARY:
            latest = max(entry.committed_at_ms, latest or entry.committed_at_ms)
        if after.seq in found:
            assert found[after.seq] == latest
            seen += 1
    assert seen == len(found) > 3
    await life.end()
