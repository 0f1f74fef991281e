"""Space that is not needed any more is given back, beside the work."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from typing import Any

import apsw
import pytest

from taquba.database import Database
from taquba.database._schema import MODULES_TABLE
from taquba.database._state import Moving, State
from taquba.objectstore import MemoryStore
from taquba.testing import FaultyStore

from .harness import LAZY, dump, open_database, opened, put

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("state")]

_ROWS = 4000


async def _fill(database: Database, rows: int = _ROWS) -> None:
    with database.transaction() as tx:
        for i in range(rows):
            tx.execute("INSERT INTO items VALUES (?, randomblob(4000), ?)", (i, f"tag {i}"))
    await tx.durable()


async def _drain(database: Database, where: str = "TRUE") -> None:
    with database.transaction() as tx:
        tx.execute(f"DELETE FROM items WHERE {where}")
    await tx.durable()


async def _until(condition: Callable[[], Any]) -> None:
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never became true")


def _idle(database: Database) -> Callable[[], bool]:
    return lambda: not database._shrinker._due.is_set()


async def test_what_was_drained_is_given_back_while_nothing_happens() -> None:
    store = MemoryStore()
    database = await open_database(store)
    await _fill(database)
    await database.checkpoint()
    large = database.statistics().size
    connection = database._state.connection
    await _drain(database, "key % 100 <> 7")
    before = dump(database)
    await _until(_idle(database))
    assert database.statistics().size < large / 40
    assert dump(database) == before
    if not database._state.on_disk:
        # Its memory was let go with it.
        assert database._state.connection is not connection
        with pytest.raises(apsw.ConnectionClosedError):
            connection.execute("SELECT 1")
    await put(database, 7, b"changed", "tag")
    await database.checkpoint()
    before = dump(database)
    await database.close()
    chunks = [info.size async for info in store.list("chunks/")]
    manifests = [info.key async for info in store.list("checkpoints/")]
    assert len(manifests) == 2
    assert sum(chunks) < 1.3 * large, "the small checkpoint takes as much as the large one"
    async with opened(store) as again:
        assert dump(again) == before


async def test_a_transaction_that_was_made_before_the_state_moved() -> None:
    """It works on the state as it is when the transaction begins."""
    database = await open_database(MemoryStore())
    await _fill(database)
    early = database.transaction()
    connection = database._state.connection
    await _drain(database)
    await _until(_idle(database))
    assert database._state.on_disk or database._state.connection is not connection
    with early as tx:
        tx.execute("INSERT INTO items VALUES (1, x'01', 'late')")
    await tx.durable()
    assert database.execute("SELECT tag FROM items").fetchall() == [("late",)]
    await database.close()


async def test_what_was_drained_is_given_back_beside_the_work() -> None:
    """A batch is open at all times, so only the moments after a seal are left for it."""
    store = MemoryStore()
    database = await open_database(store)
    await _fill(database)
    large = database.statistics().size
    await _drain(database)
    rounds = 0
    while database._shrinker._due.is_set():
        with database.transaction() as tx:
            tx.execute("INSERT OR REPLACE INTO items VALUES (?, ?, NULL)", (rounds, bytes(50)))
        rounds += 1
        if rounds % 3 == 0:
            await tx.durable()
        else:
            await asyncio.sleep(0)
    assert rounds > 10, "it was over at once, and shows nothing"
    assert database.statistics().size < large / 10
    await database.barrier()
    before = dump(database)
    assert len(before["items"]) == rounds
    await database.checkpoint()
    await database.close()
    async with opened(store) as again:
        assert dump(again) == before


@pytest.mark.parametrize("first", ["checkpoint", "shrinking"])
async def test_a_checkpoint_and_giving_back_wait_for_each_other(first: str) -> None:
    """The copy would go on with what the database is not any more."""
    store = MemoryStore()
    database = await open_database(store, config=dataclasses.replace(LAZY, pages_per_step=1))
    await _fill(database)
    if first == "checkpoint":
        checkpoint = asyncio.ensure_future(database.checkpoint())
        await _until(lambda: database._checkpointer._copy is not None)
        await _drain(database, "key % 10 <> 1")
    else:
        await _drain(database, "key % 10 <> 1")
        await asyncio.sleep(0)
        checkpoint = asyncio.ensure_future(database.checkpoint())
    assert database._shrinker._due.is_set()
    i = 0
    while not checkpoint.done():
        i += 1
        await put(database, i % 4000, b"beside it")
    await checkpoint
    assert i > 100, "it was over at once, and shows nothing"
    before = dump(database)
    await database.close()
    async with opened(store) as again:
        assert dump(again) == before


async def test_little_that_is_free_is_kept_for_what_comes_next() -> None:
    database = await open_database(MemoryStore())
    await _fill(database)
    large = database.statistics().size
    await _drain(database, "key % 10 = 1")
    for _ in range(50):
        await asyncio.sleep(0)
    assert not database._shrinker._due.is_set()
    assert database.statistics().size == large
    await database.close()


async def test_a_store_that_is_opened_with_much_that_is_free_gives_it_back() -> None:
    store = MemoryStore()
    database = await open_database(store)
    await _fill(database)
    await _drain(database)
    await database.checkpoint()
    await database.close()
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    async with opened(store) as again:
        await _until(_idle(again))
        assert again.statistics().size < 200_000
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("turns", [1, 5, 20, 40])
async def test_closing_in_the_middle_leaves_nothing_behind(turns: int) -> None:
    store = FaultyStore(MemoryStore())
    tasks = asyncio.all_tasks()
    database = await open_database(store, config=LAZY)
    await _fill(database)
    await _drain(database, "key > 5")
    for _ in range(turns):
        await asyncio.sleep(0)
    await database.close()
    assert asyncio.all_tasks() == tasks
    async with opened(store) as again:
        assert len(dump(again)["items"]) == 6


async def test_giving_back_sends_no_request_and_ends() -> None:
    store = FaultyStore(MemoryStore())
    database = await open_database(store)
    await _fill(database)
    await _drain(database)
    before = len(store.requests)
    await _until(_idle(database))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not database._shrinker._due.is_set()
    assert len(store.requests) == before
    await database.close()


async def test_a_copy_that_finds_no_memory_is_given_up_and_stops_no_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is made amid commits, and only to take less: nobody's work depends on it."""
    attempts = 0

    def fail(*_: object) -> bool:
        nonlocal attempts
        attempts += 1
        raise apsw.NoMemError("out of memory")

    monkeypatch.setattr(Moving, "step", fail)
    store = MemoryStore()
    database = await open_database(store)
    await _fill(database)
    await _drain(database, "key % 100 <> 7")
    for i in range(1000):
        await put(database, i, b"beside it")
    await _until(_idle(database))
    assert attempts == (0 if database._state.on_disk else 1)
    await database.checkpoint()
    before = dump(database)
    await database.close()
    async with opened(store) as again:
        assert dump(again) == before


async def test_a_file_that_cannot_shrink_holds_up_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one whose tables were made before it was told to."""
    with monkeypatch.context() as patch:
        patch.setattr(State, "create", _create_without_vacuum)
        database = await open_database(MemoryStore())
    await _fill(database)
    await _drain(database, "key % 100 <> 7")
    before = dump(database)
    for _ in range(50):
        await asyncio.sleep(0)
    await asyncio.wait_for(database.checkpoint(), 10)
    await _until(_idle(database))
    assert dump(database) == before
    await database.close()


def _create_without_vacuum(state: State) -> None:
    state.execute(MODULES_TABLE)
    state.tables_changed()
