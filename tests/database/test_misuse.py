"""Mistakes of whoever writes transactions: nothing that would not replay is acknowledged."""

from __future__ import annotations

import asyncio

import apsw
import pytest

from taquba.errors import Fenced, InvalidState
from taquba.objectstore import MemoryStore
from taquba.testing import FaultyStore

from .harness import dump, open_database, opened, put

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("state")]


async def _keys_after_reopening(store: MemoryStore) -> list[int]:
    async with opened(store) as again:
        return sorted(key for key, _, _ in dump(again)["items"])


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE sneaky (id INTEGER NOT NULL PRIMARY KEY)",
        "CREATE INDEX sneaky ON items (value)",
        "ALTER TABLE items ADD COLUMN sneaky",
        "DROP TABLE pairs",
        "ANALYZE",
    ],
)
async def test_a_transaction_that_changes_tables_is_not_acknowledged(statement: str) -> None:
    """Tables that are not in the journal would make the rows after them impossible to replay."""
    store = MemoryStore()
    database = await open_database(store)
    await put(database, 1)
    with database.transaction() as tx:
        tx.execute(statement)
        tx.execute("INSERT INTO items (key) VALUES (2)")
    with pytest.raises(InvalidState, match="SchemaModule"):
        await tx.durable()
    with pytest.raises(InvalidState, match="SchemaModule"), database.transaction():
        pass
    await database.close()
    assert await _keys_after_reopening(store) == [1]


async def test_tables_that_were_rolled_back_are_fine() -> None:
    store = MemoryStore()
    database = await open_database(store)
    with pytest.raises(ZeroDivisionError), database.transaction() as tx:
        tx.execute("CREATE TABLE sneaky (id INTEGER NOT NULL PRIMARY KEY)")
        raise ZeroDivisionError
    await put(database, 1)
    await database.close()
    assert await _keys_after_reopening(store) == [1]


@pytest.mark.parametrize("fails", [False, True])
async def test_awaiting_in_a_transaction_stores_no_part_of_it(fails: bool) -> None:
    store = MemoryStore()
    database = await open_database(store)
    await put(database, 1)
    with database.transaction() as innocent:
        innocent.execute("INSERT INTO items VALUES (2, NULL, NULL)")
    expected = ZeroDivisionError if fails else InvalidState
    with pytest.raises(expected):
        with database.transaction() as tx:
            tx.execute("INSERT INTO items VALUES (3, NULL, NULL)")
            for _ in range(5):
                await asyncio.sleep(0)
            if fails:
                raise ZeroDivisionError
            tx.execute("INSERT INTO items VALUES (4, NULL, NULL)")
    with pytest.raises(InvalidState, match="middle of a transaction"):
        await innocent.durable()
    await database.close()
    assert await _keys_after_reopening(store) == [1]


async def test_a_checkpoint_does_not_end_a_transaction_that_awaits() -> None:
    store = FaultyStore(MemoryStore())
    database = await open_database(store)
    await put(database, 1)
    checkpoint = asyncio.ensure_future(database.checkpoint())
    with pytest.raises(ZeroDivisionError):
        with database.transaction() as tx:
            tx.execute("INSERT INTO items VALUES (2, NULL, NULL)")
            for _ in range(20):
                await asyncio.sleep(0)
            raise ZeroDivisionError
    await checkpoint
    await put(database, 3)
    await database.close()
    assert await _keys_after_reopening(store.store) == [1, 3]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "statement", ["ROLLBACK", "INSERT OR ROLLBACK INTO items (key) VALUES (1)"]
)
async def test_a_statement_that_ends_the_batch_acknowledges_nothing_of_it(statement: str) -> None:
    """It takes the transactions of others with it, which thought that they were committed."""
    store = MemoryStore()
    database = await open_database(store)
    await put(database, 1)
    with database.transaction() as innocent:
        innocent.execute("INSERT INTO items VALUES (2, NULL, NULL)")
    with pytest.raises(apsw.Error), database.transaction() as tx:
        tx.execute(statement)
    with pytest.raises(InvalidState, match="ended the transaction of a whole batch"):
        await innocent.durable()
    assert isinstance(database.failure, InvalidState)
    await database.close()
    assert await _keys_after_reopening(store) == [1]


async def test_rows_written_outside_a_transaction_are_noticed_and_never_checkpointed() -> None:
    store = MemoryStore()
    database = await open_database(store)
    await put(database, 1)
    database.execute("INSERT INTO items VALUES (2, NULL, NULL)")
    with pytest.raises(InvalidState, match="outside a transaction"), database.transaction():
        pass
    with pytest.raises(InvalidState, match="outside a transaction"):
        await database.checkpoint()
    await database.close()
    assert await _keys_after_reopening(store) == [1]


async def test_rows_written_beside_what_was_rolled_back_are_not_checkpointed() -> None:
    store = MemoryStore()
    database = await open_database(store)
    await put(database, 1)
    with pytest.raises(ZeroDivisionError), database.transaction():
        raise ZeroDivisionError
    database.execute("INSERT INTO items VALUES (2, NULL, NULL)")
    with pytest.raises(InvalidState, match="outside a transaction"):
        await database.checkpoint()
    await database.close()
    assert await _keys_after_reopening(store) == [1]


async def test_every_callback_is_told_of_a_failure_even_if_one_fails() -> None:
    store = MemoryStore()
    first = await open_database(store)
    told: list[object] = []

    def broken(error: object) -> None:
        raise ZeroDivisionError

    first.on_failure(broken)
    first.on_failure(told.append)
    second = await open_database(store)
    with pytest.raises(Fenced):
        await put(first, 1)
    assert len(told) == 1
    await first.close()
    await second.close()
