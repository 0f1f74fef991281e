"""The state on the local disk: as in memory, but bounded, and gone at the end."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from taquba import Queue
from taquba.clock import ManualClock
from taquba.database import Database, DatabaseConfig, Replica, SchemaModule
from taquba.database._chunks import ChunkStore
from taquba.errors import InvalidArgument, StateFull
from taquba.objectstore import MemoryStore

from .harness import ITEMS, LAZY, dump, open_database, opened, put

pytestmark = pytest.mark.anyio

_CACHE = 64 * 1024


def _config(scratch: Path, **options: Any) -> DatabaseConfig:
    return DatabaseConfig(
        state="disk",
        scratch=str(scratch),
        cache_bytes=_CACHE,
        checkpoint_bytes=2**40,
        checkpoint_entries=2**40,
        **options,
    )


async def _open(store: MemoryStore, config: DatabaseConfig) -> Database:
    return await Database.open(store, [ITEMS], clock=ManualClock(), config=config)


async def test_the_file_is_nowhere_while_it_is_open_and_gone_at_the_end(tmp_path: Path) -> None:
    """So that a process that is killed leaves nothing behind."""
    store = MemoryStore()
    database = await _open(store, _config(tmp_path))
    for i in range(100):
        await put(database, i, bytes(1000))
    await database.checkpoint()
    assert list(tmp_path.iterdir()) == []
    await database.close()
    database = await _open(store, _config(tmp_path))
    assert len(dump(database)["items"]) == 100
    assert list(tmp_path.iterdir()) == []
    await database.close()


async def test_an_open_file_that_cannot_be_deleted_is_deleted_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "it is open")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        database = await _open(MemoryStore(), _config(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1
    await database.close()
    assert list(tmp_path.iterdir()) == []


async def test_an_opening_that_fails_leaves_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    database = await _open(store, _config(tmp_path))
    await put(database, 1)
    await database.checkpoint()
    await database.close()

    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ChunkStore, "download", fail)
    with pytest.raises(ZeroDivisionError):
        await _open(store, _config(tmp_path))
    assert list(tmp_path.iterdir()) == []


async def test_memory_stays_within_the_cache(tmp_path: Path) -> None:
    database = await _open(MemoryStore(), _config(tmp_path))
    connection = database._state.connection
    with database.transaction() as tx:
        for i in range(2000):
            tx.execute("INSERT INTO items VALUES (?, ?, NULL)", (i, bytes(1000)))
            used, _ = connection.status(apsw.SQLITE_DBSTATUS_CACHE_USED)
            assert used < 2 * _CACHE
    await tx.durable()
    assert database.statistics().size > 30 * _CACHE
    await database.checkpoint()
    used, _ = connection.status(apsw.SQLITE_DBSTATUS_CACHE_USED)
    assert used < 2 * _CACHE
    await database.close()


@pytest.mark.parametrize("rolled_back", [False, True])
async def test_what_is_written_amid_a_transaction_does_not_disturb_a_checkpoint(
    tmp_path: Path, rolled_back: bool
) -> None:
    """More changes than fit the cache: they reach the file, and the copy, before they count."""
    store = MemoryStore()
    database = await _open(store, _config(tmp_path, pages_per_step=16))
    for i in range(200):
        await put(database, i, bytes([i % 250]) * 2000)
    checkpoint = asyncio.ensure_future(database.checkpoint())
    while not database._checkpointer._copy:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(3):
        try:
            with database.transaction() as tx:
                tx.execute("UPDATE items SET value = zeroblob(3000)")
                if rolled_back:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            await asyncio.sleep(0)
        else:
            await tx.durable()
    await checkpoint
    before = dump(database)
    await database.close()
    for config in (_config(tmp_path), LAZY):
        again = await open_database(store, config=config)
        assert dump(again) == before
        await again.close()


@contextmanager
def _full_from(size: int) -> Iterator[None]:
    """No file can grow beyond this many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("rows", [1, 1000])
async def test_a_full_disk_stops_the_database_and_loses_nothing_acknowledged(
    tmp_path: Path, rows: int
) -> None:
    """Either in the middle of a large transaction, or when a batch ends."""
    store = MemoryStore()
    database = await _open(store, _config(tmp_path))
    told: list[object] = []
    database.on_failure(told.append)
    acknowledged: list[int] = []
    with _full_from(400_000), pytest.raises(StateFull, match=r"scratch.*open the store again"):
        for start in range(0, 10**6, rows):
            with database.transaction() as tx:
                for i in range(start, start + rows):
                    tx.execute("INSERT INTO items VALUES (?, ?, NULL)", (i, bytes(1000)))
            await tx.durable()
            acknowledged.extend(range(start, start + rows))
    await asyncio.sleep(0)
    assert isinstance(database.failure, StateFull)
    assert len(told) == 1
    with pytest.raises(StateFull), database.transaction():
        pass
    await database.close()
    assert list(tmp_path.iterdir()) == []
    again = await _open(store, _config(tmp_path))
    found = sorted(key for key, _, _ in dump(again)["items"])
    assert found[: len(acknowledged)] == acknowledged
    assert len(found) % rows == 0
    await put(again, 10**7)
    await again.close()


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_disk_too_small_for_the_state_is_named_at_opening(
    tmp_path: Path, checkpointed: bool
) -> None:
    store = MemoryStore()
    database = await open_database(store)
    for i in range(200):
        await put(database, i, os.urandom(1000))
    if checkpointed:
        await database.checkpoint()
    await database.close()
    before = [info.key async for info in store.list("")]
    with _full_from(100_000), pytest.raises(StateFull, match="scratch.*make room"):
        await _open(store, _config(tmp_path))
    assert [info.key async for info in store.list("")] == before
    assert list(tmp_path.iterdir()) == []
    again = await _open(store, _config(tmp_path))
    assert len(dump(again)["items"]) == 200
    await again.close()


@pytest.mark.parametrize("room", [0, 4096, 8192, 12_288, 16_384, 20_480])
async def test_a_disk_that_is_full_when_a_store_is_made_is_named(tmp_path: Path, room: int) -> None:
    """Whatever does not fit any more: the first page, or the tables of a module."""
    store = MemoryStore()
    with _full_from(room), pytest.raises(StateFull, match="scratch.*make room"):
        await _open(store, _config(tmp_path))
    assert list(tmp_path.iterdir()) == []
    database = await _open(store, _config(tmp_path))
    await put(database, 1)
    await database.close()


async def test_a_disk_that_is_full_when_a_module_is_added_is_no_fault_of_the_module(
    tmp_path: Path,
) -> None:
    database = await _open(MemoryStore(), _config(tmp_path))
    statements = [f"CREATE TABLE t{i} (k INTEGER NOT NULL PRIMARY KEY)" for i in range(100)]
    module = SchemaModule(name="large", version=1, statements=tuple(statements))
    with _full_from(100_000), pytest.raises(StateFull, match="scratch.*make room"):
        await database.add_module(module)
    with pytest.raises(StateFull):
        await put(database, 1)
    await database.close()


async def test_a_disk_that_is_full_when_a_batch_ends_is_named(tmp_path: Path) -> None:
    """A layer above may write just before an entry is sealed, as the queue does."""
    database = await _open(MemoryStore(), _config(tmp_path))

    def write() -> None:
        for i in range(1000, 2000):
            database.execute("INSERT INTO items VALUES (?, ?, NULL)", (i, bytes(1000)))

    database.before_seal(write)
    with _full_from(100_000), pytest.raises(StateFull, match="scratch.*make room"):
        await put(database, 1)
    await database.close()


@pytest.mark.parametrize("cache", [_CACHE, 4 * 1024 * 1024])
async def test_a_disk_that_is_full_amid_a_large_entry_ends_a_follower_by_its_name(
    tmp_path: Path, cache: int
) -> None:
    """With a large cache, what an entry changed is written only at its end."""
    store = MemoryStore()
    async with opened(store) as owner:
        await put(owner, 1)
        config = dataclasses.replace(_config(tmp_path), cache_bytes=cache)
        replica = await Replica.open(store, [ITEMS], clock=ManualClock(), config=config)
        with owner.transaction() as tx:
            for i in range(2, 200):
                tx.execute("INSERT INTO items VALUES (?, ?, NULL)", (i, os.urandom(2000)))
        await tx.durable()
        with _full_from(100_000), pytest.raises(StateFull, match="scratch.*make room"):
            await replica.refresh()
        assert isinstance(replica.failure, StateFull)
        await replica.close()
    assert list(tmp_path.iterdir()) == []


async def test_memory_that_is_used_up_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taquba.database._state._LARGEST", 300_000)
    store = MemoryStore()
    database = await open_database(store)
    with pytest.raises(StateFull, match="state='disk'"):
        for i in range(1000):
            await put(database, i, bytes(1000))
    await database.close()
    monkeypatch.undo()
    again = await open_database(store)
    assert 100 < len(dump(again)["items"]) < 300
    await again.close()


async def test_statements_are_not_prepared_anew_on_disk_either(tmp_path: Path) -> None:
    database = await _open(MemoryStore(), _config(tmp_path))
    connection = database._state.connection
    assert connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1)
    assert connection.pragma("journal_mode") == "memory"
    assert connection.pragma("synchronous") == 0
    assert connection.pragma("locking_mode") == "exclusive"
    await database.close()


async def test_a_state_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'memory' or 'disk'"):
        DatabaseConfig(state="cloud")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="'memory' or 'disk'"):
        await Queue.open(MemoryStore(), state="cloud")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="scratch"):
        await Queue.open(MemoryStore(), scratch=7)  # type: ignore[arg-type]


async def test_a_queue_keeps_its_jobs_on_disk(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Queue.open(store, state="disk", scratch=tmp_path) as queue:
        await queue.enqueue("mail", b"hello")
        assert queue._core.database._state.on_disk
    async with Queue.open(store, state="disk", scratch=str(tmp_path)) as queue:
        [claim] = await queue.claim_many("mail", 1)
        assert claim.job.payload == b"hello"
