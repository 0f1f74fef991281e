"""Tables travel in the journal, and what could not be replicated is refused."""

from __future__ import annotations

import pytest

from taquba.database import InvalidSchema, SchemaModule
from taquba.errors import IncompatibleStore
from taquba.objectstore import MemoryStore

from .harness import ITEMS, dump, keys, open_database, opened, put

pytestmark = pytest.mark.anyio

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
