"""Tables travel in the journal, and what could not be replicated is refused."""

from __future__ import annotations

import asyncio

import pytest

from taquba.database import InvalidSchema, SchemaModule
from taquba.errors import IncompatibleStore
from taquba.journal import JournalConfig
from taquba.objectstore import MemoryStore
from taquba.testing import FaultyStore

from .harness import ITEMS, dump, keys, open_database, opened, put

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("state")]

EXTRA = SchemaModule(
    name="extra",
    version=1,
    statements=("CREATE TABLE extra (id TEXT NOT NULL PRIMARY KEY, n INTEGER)",),
)
EXTRA_2 = SchemaModule(
    name="extra",
    version=2,
    statements=("CREATE TABLE extra (id TEXT NOT NULL PRIMARY KEY, n INTEGER, more TEXT)",),
    migrations={1: ("ALTER TABLE extra ADD COLUMN more TEXT", "UPDATE extra SET more = 'was 1'")},
)


async def test_a_module_added_later_is_there_after_reopening() -> None:
    store = MemoryStore()
    database = await open_database(store)
    await put(database, 1)
    await database.add_module(EXTRA)
    with database.transaction() as tx:
        tx.execute("INSERT INTO extra VALUES ('a', 1)")
    await tx.durable()
    async with opened(store) as again:
        assert dump(again)["extra"] == [("a", 1)]
        assert dump(again)["items"] == [(1, b"", None)]


async def test_adding_a_module_twice_changes_nothing() -> None:
    store = MemoryStore()
    async with opened(store) as database:
        await database.add_module(EXTRA)
        entries = await keys(store, "journal/")
        await database.add_module(EXTRA)
        assert await keys(store, "journal/") == entries


async def test_changes_on_both_sides_of_a_new_table_are_kept() -> None:
    store = MemoryStore()
    database = await open_database(store)
    with database.transaction() as tx:
        tx.execute("INSERT INTO items VALUES (1, NULL, NULL)")  # in the batch before
    await database.add_module(EXTRA)
    with database.transaction() as tx:
        tx.execute("INSERT INTO extra VALUES ('b', 2)")
        tx.execute("INSERT INTO items VALUES (2, NULL, NULL)")
    await tx.durable()
    async with opened(store) as again:
        assert len(dump(again)["items"]) == 2
        assert dump(again)["extra"] == [("b", 2)]


async def test_a_newer_module_migrates_and_takes_a_checkpoint() -> None:
    store = MemoryStore()
    async with opened(store, ITEMS, EXTRA) as database:
        with database.transaction() as tx:
            tx.execute("INSERT INTO extra VALUES ('a', 1)")
    async with opened(store, ITEMS, EXTRA_2) as database:
        assert dump(database)["extra"] == [("a", 1, "was 1")]
        assert database.statistics().checkpoints == 1
    async with opened(store, ITEMS, EXTRA_2) as database:
        assert dump(database)["extra"] == [("a", 1, "was 1")]


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_store_of_a_newer_version_is_refused_before_anything_is_written(
    checkpointed: bool,
) -> None:
    store = MemoryStore()
    async with opened(store, ITEMS, EXTRA_2) as database:
        await put(database, 1)
        if checkpointed:
            await database.checkpoint()
    before = await keys(store, "")
    with pytest.raises(IncompatibleStore, match=r"'extra' tables have version 2.*knows version 1"):
        await open_database(store, ITEMS, EXTRA)
    assert await keys(store, "") == before


async def test_a_newer_module_that_was_added_later_is_refused_before_anything_is_written() -> None:
    """Such a module is in no epoch entry, only in the rows."""
    store = MemoryStore()
    async with opened(store) as database:
        await database.add_module(EXTRA_2)
    before = await keys(store, "")
    with pytest.raises(IncompatibleStore, match=r"'extra' tables have version 2"):
        await open_database(store, ITEMS, EXTRA)
    assert await keys(store, "") == before
    async with opened(store) as database:
        with pytest.raises(IncompatibleStore, match=r"'extra' tables have version 2"):
            await database.add_module(EXTRA)
        await put(database, 1)


async def test_two_that_add_the_same_module_at_once_both_get_it_durable() -> None:
    store = FaultyStore(MemoryStore())
    config = JournalConfig(max_unacknowledged_bytes=1)
    database = await open_database(store, journal_config=config)
    held = store.hold("create", prefix="journal/")
    with database.transaction() as tx:
        tx.execute("INSERT INTO items VALUES (1, NULL, NULL)")
    await held.arrived()
    adding = [asyncio.ensure_future(database.add_module(EXTRA)) for _ in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)
    held.release()
    await asyncio.gather(*adding)
    await database.close()


async def test_a_module_that_is_there_but_not_durable_is_waited_for() -> None:
    store = FaultyStore(MemoryStore())
    database = await open_database(store)
    held = store.hold("create", prefix="journal/")
    first = asyncio.ensure_future(database.add_module(EXTRA))
    await held.arrived()
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.ensure_future(database.add_module(EXTRA))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not second.done()
    held.release()
    await second
    await database.close()


async def test_a_module_with_a_statement_that_is_wrong_is_refused_and_leaves_nothing() -> None:
    store = MemoryStore()
    broken = SchemaModule(
        name="broken",
        version=1,
        statements=("CREATE TABLE good (a TEXT NOT NULL PRIMARY KEY)", "CREATE TABLE bad ("),
    )
    async with opened(store) as database:
        with pytest.raises(InvalidSchema, match="incomplete input"):
            await database.add_module(broken)
        await put(database, 1)
        assert "good" not in dump(database)
    with pytest.raises(InvalidSchema, match="incomplete input"):
        await open_database(store, ITEMS, broken)
    async with opened(store) as database:
        assert len(dump(database)["items"]) == 1


async def test_generated_columns_are_replayed() -> None:
    store = MemoryStore()
    module = SchemaModule(
        name="generated",
        version=1,
        statements=(
            "CREATE TABLE g (a INTEGER NOT NULL PRIMARY KEY, b INTEGER,"
            " c INTEGER GENERATED ALWAYS AS (b * 2) STORED, d AS (b + 1), e TEXT)",
            "CREATE INDEX g_by_d ON g (d)",
        ),
    )
    async with opened(store, module) as database:
        with database.transaction() as tx:
            tx.execute("INSERT INTO g (a, b, e) VALUES (1, 2, 'x'), (2, 3, 'y')")
        await tx.durable()
        with database.transaction() as tx:
            tx.execute("UPDATE g SET b = 9, e = 'z' WHERE a = 1")
    async with opened(store, module) as again:
        assert dump(again)["g"] == [(1, 9, 18, 10, "z"), (2, 3, 6, 4, "y")]


async def test_a_missing_migration_is_refused() -> None:
    store = MemoryStore()
    async with opened(store, EXTRA):
        pass
    broken = SchemaModule(name="extra", version=3, statements=(), migrations={1: ()})
    with pytest.raises(InvalidSchema, match="no migration from version 2"):
        await open_database(store, broken)


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("CREATE TABLE bad (a TEXT)", "no PRIMARY KEY"),
        ("CREATE TABLE bad (a TEXT PRIMARY KEY)", "NOT NULL"),
        ("CREATE TABLE bad (a INTEGER PRIMARY KEY)", "NOT NULL"),
        ("CREATE TABLE bad (a INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT)", "AUTOINCREMENT"),
        (
            "CREATE TABLE bad (a TEXT NOT NULL PRIMARY KEY REFERENCES items (key))",
            "foreign key",
        ),
        ("CREATE TRIGGER bad AFTER INSERT ON items BEGIN DELETE FROM pairs; END", "trigger"),
        ("CREATE VIRTUAL TABLE bad USING fts5(x)", "virtual"),
    ],
)
async def test_what_would_not_be_replicated_is_refused_and_leaves_nothing(
    statement: str, complaint: str
) -> None:
    store = MemoryStore()
    module = SchemaModule(
        name="bad",
        version=1,
        statements=("CREATE TABLE good (a TEXT NOT NULL PRIMARY KEY)", statement),
    )
    async with opened(store) as database:
        with pytest.raises(InvalidSchema, match=complaint):
            await database.add_module(module)
        assert "good" not in dump(database)
        await put(database, 1)
    async with opened(store) as again:
        assert set(dump(again)) == {"items", "pairs", "schema_modules"}
