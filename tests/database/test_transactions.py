"""Transactions: all or nothing, here and now, and durable when they say so."""

from __future__ import annotations

import asyncio

import pytest

from taquba.errors import Closed, InvalidState
from taquba.objectstore import MemoryStore
from taquba.testing import FaultyStore

from .harness import dump, open_database, opened, put

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("state")]


async def test_what_is_durable_is_there_after_reopening() -> None:
    store = MemoryStore()
    first = await open_database(store)
    await put(first, 1, b"one", "a")
    async with opened(store) as second:  # the first one is abandoned, as by a crash
        assert dump(second)["items"] == [(1, b"one", "a")]


async def test_an_exception_rolls_back_and_leaves_nothing_in_the_journal() -> None:
    store = MemoryStore()
    async with opened(store) as database:
        await put(database, 1, b"kept")
        before = database.journal.last_ticket
        with pytest.raises(RuntimeError, match="no"), database.transaction() as tx:
            tx.execute("DELETE FROM items")
            tx.execute("INSERT INTO pairs VALUES ('a', 'b')")
            raise RuntimeError("no")
        assert database.journal.last_ticket == before
        await put(database, 2, b"after")
    async with opened(store) as database:
        rows = dump(database)
        assert rows["items"] == [(1, b"kept", None), (2, b"after", None)]
        assert rows["pairs"] == []


async def test_a_transaction_that_writes_nothing_costs_nothing() -> None:
    store = MemoryStore()
    async with opened(store) as database:
        with database.transaction() as tx:
            tx.execute("SELECT * FROM items").fetchall()
            tx.execute("DELETE FROM items WHERE key = 7")
        assert tx.ticket == 0
        await tx.durable()


async def test_what_comes_and_goes_within_a_batch_makes_no_entry() -> None:
    store = MemoryStore()
    async with opened(store) as database:
        entries = len(await store_entries(store))
        with database.transaction() as tx:
            tx.execute("INSERT INTO items VALUES (1, x'00', NULL)")
        with database.transaction() as tx:
            tx.execute("DELETE FROM items")
        await tx.durable()
        await database.barrier()
        assert len(await store_entries(store)) == entries


async def test_unique_values_can_be_swapped_within_a_batch() -> None:
    store = MemoryStore()
    async with opened(store) as database:
        await put(database, 1, b"", "a")
        await put(database, 2, b"", "b")
        with database.transaction() as tx:
            tx.execute("UPDATE items SET tag = 'x' WHERE key = 1")
            tx.execute("UPDATE items SET tag = 'a' WHERE key = 2")
            tx.execute("UPDATE items SET tag = 'b' WHERE key = 1")
        await tx.durable()
    async with opened(store) as database:
        assert dump(database)["items"] == [(1, b"", "b"), (2, b"", "a")]


async def test_transactions_do_not_nest() -> None:
    async with opened(MemoryStore()) as database:
        with database.transaction() as tx:
            tx.execute("INSERT INTO items VALUES (1, NULL, NULL)")
            with pytest.raises(InvalidState, match="do not nest"), database.transaction():
                pass
        await tx.durable()
        assert len(dump(database)["items"]) == 1


async def test_durable_waits_for_the_store_and_giving_up_undoes_nothing() -> None:
    below = MemoryStore()
    store = FaultyStore(below)
    database = await open_database(store)
    held = store.hold("create", prefix="journal/")
    with database.transaction() as tx:
        tx.execute("INSERT INTO items VALUES (1, NULL, NULL)")
    waiting = asyncio.ensure_future(tx.durable())
    reading = asyncio.ensure_future(database.barrier())
    await held.arrived()
    assert not waiting.done()
    assert not reading.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    held.release()
    await reading
    await database.close()
    async with opened(below) as again:
        assert len(dump(again)["items"]) == 1


async def test_after_closing_everything_says_so() -> None:
    database = await open_database(MemoryStore())
    await database.close()
    await database.close()
    with pytest.raises(Closed), database.transaction():
        pass
    with pytest.raises(Closed):
        database.execute("SELECT 1")
    with pytest.raises(Closed):
        await database.barrier()
    with pytest.raises(Closed):
        await database.admit()
    with pytest.raises(Closed):
        await database.checkpoint()


async def test_closing_stores_what_was_committed_and_not_awaited() -> None:
    store = MemoryStore()
    database = await open_database(store)
    with database.transaction() as tx:
        tx.execute("INSERT INTO items VALUES (1, NULL, NULL)")
    await database.close()
    async with opened(store) as again:
        assert len(dump(again)["items"]) == 1


async def test_rows_written_before_a_seal_belong_to_its_entry() -> None:
    store = MemoryStore()
    database = await open_database(store)
    seals: list[int] = []

    def count() -> None:
        seals.append(1)
        database.execute(
            "INSERT INTO pairs VALUES ('seals', ?) ON CONFLICT DO NOTHING", (str(len(seals)),)
        )

    database.before_seal(count)
    await put(database, 1)
    async with opened(store) as again:
        assert dump(again)["pairs"] == [("seals", "1")]


async def store_entries(store: MemoryStore) -> list[str]:
    return [info.key async for info in store.list("journal/")]
