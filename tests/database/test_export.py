"""The state as an ordinary SQLite file: as it is, and as it was at any moment that is kept."""

from __future__ import annotations

import asyncio
import math
import os
import resource
import sqlite3
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import pytest

from taquba.clock import ManualClock
from taquba.database import Database, export_state
from taquba.errors import CorruptStore, HistoryNotKept, InvalidArgument, InvalidType
from taquba.journal import Kind
from taquba.journal._entry import encode_entry
from taquba.objectstore import MemoryStore
from taquba.testing import FaultyStore

from .harness import ITEMS, LAZY, dump, keys, open_database, opened, put

pytestmark = pytest.mark.anyio


def read(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, by another SQLite than ours."""
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        tables = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
        ).fetchall()
        return {
            table: sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr)
            for (table,) in tables
        }
    finally:
        connection.close()


def moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at_ms)


async def open_at(store: Any, clock: ManualClock) -> Database:
    return await Database.open(store, [ITEMS], clock=clock, config=LAZY)


async def test_what_is_durable_is_exported_whether_or_not_it_is_in_a_checkpoint(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    async with opened(store) as database:
        await put(database, 1, b"one")
        first = await export_state(store, tmp_path / "a.db")
        assert read(tmp_path / "a.db") == dump(database)
        await database.checkpoint()
        await put(database, 2, b"two", tag="x")
        second = await export_state(store, str(tmp_path / "b.db"))
        assert read(tmp_path / "b.db") == dump(database)
        assert second.position == database.position
    assert (first.checkpoint_seq, second.entries) == (None, 1)
    assert second.checkpoint_seq == first.position.seq
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "b.db"]


async def test_nothing_is_written_to_the_store_and_its_owner_goes_on(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with opened(store) as database:
        await put(database, 1)
        await database.checkpoint()
        await database.collect()
        before = store.count("write")
        await export_state(store, tmp_path / "a.db")
        assert store.count("write") == before
        await put(database, 2)


async def test_the_state_as_of_every_commit(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    store.fail("delete", times=math.inf)  # so that nothing is collected
    clock = ManualClock()
    made = clock.now_ms()
    database = await open_at(store, clock)
    states = {clock.now_ms(): dump(database)}
    for i in range(12):
        await clock.advance(60)
        await put(database, i % 5, bytes([i]) * 100)
        states[clock.now_ms()] = dump(database)
        if i in (4, 9):
            await clock.advance(20)
            await database.checkpoint()
    for number, (at_ms, state) in enumerate(states.items()):
        for offset in (0, 1, 59_999):
            path = tmp_path / f"{number}-{offset}.db"
            done = await export_state(store, path, at=moment(at_ms + offset))
            assert read(path) == state
            assert done.committed_at_ms is not None
            assert done.committed_at_ms <= at_ms + offset
    with pytest.raises(HistoryNotKept, match=r"made at 2026-01-01T00:00:00\.000") as caught:
        await export_state(store, tmp_path / "none.db", at=moment(made - 1))
    assert caught.value.earliest == moment(made)
    assert not list(tmp_path.glob("none*"))
    await database.close()


async def test_a_clock_that_goes_back_does_not_change_what_a_moment_means(
    tmp_path: Path,
) -> None:
    """Wherever checkpoints are, it is all before the first entry that is later."""
    exported: list[dict[str, Any]] = []
    for with_checkpoints in (False, True):
        store = FaultyStore(MemoryStore())
        store.fail("delete", times=math.inf)  # so that nothing is collected
        clock = ManualClock(seed=1)
        database = await open_at(store, clock)
        await put(database, 1, b"before")
        start = clock.now_ms()
        await clock.advance(7200)
        await put(database, 2, b"two hours later")
        clock.shift_wall_clock(-3600)
        if with_checkpoints:
            await database.checkpoint()
        await put(database, 3, b"one hour later, says the clock")
        if with_checkpoints:
            await database.checkpoint()
        path = tmp_path / f"{with_checkpoints}.db"
        await export_state(store, path, at=moment(start + 5400_000))
        exported.append(read(path))
        everything = tmp_path / f"{with_checkpoints}-all.db"
        await export_state(store, everything, at=moment(start + 7200_000))
        assert len(read(everything)["items"]) == 3
        await database.close()
    assert exported[0] == exported[1]
    assert [row[0] for row in exported[0]["items"]] == [1]


async def test_what_was_collected_is_refused_and_the_error_says_what_is_there(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    clock = ManualClock()
    database = await open_at(store, clock)
    times: list[int] = []
    for i in range(4):
        await clock.advance(60)
        await put(database, i)
        times.append(clock.now_ms())
        await database.checkpoint()
        await database.collect()
    with pytest.raises(HistoryNotKept, match="earliest.*retain_history") as caught:
        await export_state(store, tmp_path / "a.db", at=moment(times[1]))
    assert caught.value.earliest == moment(times[2])
    await export_state(store, tmp_path / "b.db", at=caught.value.earliest)
    assert len(read(tmp_path / "b.db")["items"]) == 3
    await database.close()


@pytest.mark.parametrize("at", [None, datetime(2030, 1, 1, tzinfo=UTC)])
async def test_reading_starts_over_when_collection_overtakes_it(
    at: datetime | None, tmp_path: Path
) -> None:
    below = MemoryStore()
    store = FaultyStore(below)
    async with opened(below) as database:
        await put(database, 0, Random(0).randbytes(30_000))
        await database.checkpoint()
        for operation, prefix in (("get", "chunks/"), ("list", "journal/"), ("get", "checkpoi")):
            held = store.hold(operation, prefix)  # type: ignore[arg-type]
            path = tmp_path / f"{prefix[:5]}.db"
            exporting = asyncio.ensure_future(export_state(store, path, at=at))
            await held.arrived()
            for i in range(3):
                await put(database, i, Random(prefix + str(i)).randbytes(30_000))
                await database.checkpoint()
                await database.collect()
            held.release()
            await exporting
            assert read(path) == dump(database)


async def test_a_missing_chunk_of_the_newest_checkpoint_is_damage(tmp_path: Path) -> None:
    store = MemoryStore()
    async with opened(store) as database:
        await put(database, 0)
        await database.checkpoint()
    await store.delete((await keys(store, "chunks/"))[:1])
    with pytest.raises(CorruptStore, match="missing"):
        await export_state(store, tmp_path / "a.db")
    assert list(tmp_path.iterdir()) == []


async def test_a_late_checkpoint_of_a_replaced_writer_is_passed_over(tmp_path: Path) -> None:
    """It was published when its chunks had long been collected."""
    below = MemoryStore()
    store = FaultyStore(below)
    store.fail("delete", times=math.inf)  # so that nothing is collected
    clock = ManualClock()
    old = await open_at(store, clock)
    await clock.advance(60)
    await put(old, 1)
    await old.checkpoint()
    await clock.advance(60)
    await put(old, 2)
    before = set(await keys(below, "chunks/"))
    await old.checkpoint()
    at = moment(clock.now_ms())
    new = await open_at(store, clock)
    await clock.advance(60)
    await put(new, 3)
    await new.checkpoint()
    late = set(await keys(below, "chunks/0000000001-")) - before
    assert late
    await below.delete(late)
    await export_state(store, tmp_path / "a.db", at=at)
    assert [row[0] for row in read(tmp_path / "a.db")["items"]] == [1, 2]
    await new.close()
    await old.close()


async def test_a_missing_entry_is_damage(tmp_path: Path) -> None:
    store = MemoryStore()
    async with opened(store) as database:
        for i in range(20):
            await put(database, i)
    await store.delete([(await keys(store, "journal/"))[3]])
    for at in (None, datetime(2027, 1, 1, tzinfo=UTC)):
        with pytest.raises(CorruptStore, match="missing"):
            await export_state(store, tmp_path / "a.db", at=at)


@pytest.mark.parametrize("room", [0, 4096, 50_000, 150_000])
@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_full_disk_is_no_damage(tmp_path: Path, room: int, checkpointed: bool) -> None:
    """Whoever is told of damage restores a backup, and there is nothing to restore."""
    store = MemoryStore()
    async with opened(store) as database:
        for i in range(200):
            await put(database, i, os.urandom(1000))
        if checkpointed:
            await database.checkpoint()
        await put(database, 7, b"changed")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(OSError):
            await export_state(store, tmp_path / "a.db")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
    await export_state(store, tmp_path / "a.db")


async def test_bad_arguments(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "there").write_text("mine")
    with pytest.raises(InvalidArgument, match="exists"):
        await export_state(store, tmp_path / "there")
    assert (tmp_path / "there").read_text() == "mine"
    with pytest.raises(InvalidArgument, match="time zone"):
        await export_state(store, tmp_path / "a.db", at=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidType, match="datetime"):
        await export_state(store, tmp_path / "a.db", at="2026-01-01")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        await export_state(store, tmp_path / "absent" / "a.db")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


async def test_the_first_and_the_last_moment_of_every_time_zone(tmp_path: Path) -> None:
    """Some of them have no name in UTC."""
    store = MemoryStore()
    async with opened(store) as database:
        await put(database, 1)
    for hours in (-14, 0, 14):
        zone = timezone(timedelta(hours=hours))
        with pytest.raises(HistoryNotKept, match="no state as of 0001-01-01T"):
            await export_state(store, tmp_path / "a.db", at=datetime.min.replace(tzinfo=zone))
        whole = await export_state(
            store, tmp_path / f"{hours}.db", at=datetime.max.replace(tzinfo=zone)
        )
        assert whole.entries == 2


async def test_an_empty_store(tmp_path: Path) -> None:
    await export_state(MemoryStore(), tmp_path / "a.db")
    assert read(tmp_path / "a.db") == {"schema_modules": []}


async def test_a_manifest_that_comes_back_after_it_was_collected_is_passed_over(
    tmp_path: Path,
) -> None:
    """A request to publish it was repeated, and arrived a second time much later."""
    for chunks_too in (False, True):
        store = MemoryStore()
        clock = ManualClock()
        database = await open_at(store, clock)
        revenant: dict[str, bytes] = {}
        times: list[int] = []
        for i in range(5):
            await clock.advance(60)
            await put(database, i, bytes([i]) * 3000)
            await database.checkpoint()
            times.append(clock.now_ms())
            if i == 1:
                keep = [*(await keys(store, "checkpoints/"))[-1:]]
                keep += (await keys(store, "chunks/")) if chunks_too else []
                revenant = {key: await store.get(key) for key in keep}
        await database.collect()
        for key, data in revenant.items():
            await store.put(key, data)
        with pytest.raises(HistoryNotKept) as caught:
            await export_state(store, tmp_path / "a.db", at=moment(times[2]))
        assert caught.value.earliest == moment(times[3])
        await export_state(store, tmp_path / "a.db", at=moment(times[3]))
        assert len(read(tmp_path / "a.db")["items"]) == 4
        (tmp_path / "a.db").unlink()
        await database.close()


async def test_a_missing_entry_amid_the_history_is_damage_and_not_called_history(
    tmp_path: Path,
) -> None:
    store = FaultyStore(MemoryStore())
    store.fail("delete", times=math.inf)  # so that nothing is collected
    clock = ManualClock()
    database = await open_at(store, clock)
    for i in range(30):
        await clock.advance(60)
        await put(database, i)
        if i in (9, 19):
            await database.checkpoint()
    at = moment(clock.now_ms() - 600_000)
    await database.close()
    newest = (await keys(store.store, "checkpoints/"))[-1]  # type: ignore[arg-type]
    seq = int(newest[len("checkpoints/") : -len(".json")])
    await store.store.delete([f"journal/{seq - 4:020d}"])
    with pytest.raises(CorruptStore, match=f"{seq - 4:020d}"):
        await export_state(store, tmp_path / "a.db", at=at - timedelta(minutes=2))
    await export_state(store, tmp_path / "b.db")  # is not concerned


async def test_a_stray_epoch_entry_where_the_log_was_collected_is_not_believed(
    tmp_path: Path,
) -> None:
    """A slow opener created it, and found then that its takeover was void."""
    below = MemoryStore()
    database = await open_database(below, config=LAZY)
    for i in range(3):
        await put(database, i)
    await database.checkpoint()
    tail = database.position
    store = FaultyStore(below)
    held = store.hold("list", "journal/")
    exporting = asyncio.ensure_future(export_state(store, tmp_path / "a.db"))
    await held.arrived()
    for i in range(40):
        await put(database, i, b"later")
        if i % 10 == 9:
            await database.checkpoint()
    await database.collect()
    expected = dump(database)
    # The window behind it holds nothing, so it looks like the end of the log.
    data, _ = encode_entry(
        kind=Kind.EPOCH,
        epoch=tail.epoch + 1,
        seq=tail.seq,
        writer=bytes(16),
        previous=tail.digest,
        committed_at_ms=0,
        window=tail.window,
        durable_before=tail.seq,
        body=b"",
    )
    await below.create(f"journal/{tail.seq:020d}", data)
    later = [key for key in await keys(below, "journal/") if key > f"journal/{tail.seq:020d}"]
    hidden = {key: await below.get(key) for key in later}
    await below.delete(later)  # as a listing may have it that began before they were there
    gate = store.hold("get", "checkpoints/")
    held.release()
    await gate.arrived()
    for key, entry in hidden.items():
        await below.create(key, entry)
    gate.release()
    await exporting
    assert read(tmp_path / "a.db") == expected
    await database.close()
