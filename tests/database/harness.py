"""What the tests of this folder share."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from taquba.clock import ManualClock
from taquba.database import Database, DatabaseConfig, SchemaModule
from taquba.journal import JournalConfig
from taquba.objectstore import MemoryStore, ObjectStore

ITEMS = SchemaModule(
    name="items",
    version=1,
    statements=(
        "CREATE TABLE items (key INTEGER NOT NULL PRIMARY KEY, value BLOB, tag TEXT)",
        "CREATE UNIQUE INDEX items_by_tag ON items (tag)",
        "CREATE TABLE pairs (a TEXT NOT NULL, b TEXT NOT NULL, PRIMARY KEY (a, b)) WITHOUT ROWID",
    ),
)
EAGER = DatabaseConfig(
    checkpoint_bytes=20_000, checkpoint_entries=30, chunk_size=8192, pages_per_step=3
)
"""Takes a checkpoint after little, and copies it in many steps."""
LAZY = DatabaseConfig(checkpoint_bytes=2**40, checkpoint_entries=2**40)
"""Takes no checkpoint by itself."""


_state: Literal["memory", "disk"] = "memory"


def keep_state(where: Literal["memory", "disk"]) -> None:
    """Where databases that are opened from now on keep their state."""
    global _state
    _state = where


def kept(config: DatabaseConfig) -> DatabaseConfig:
    """These settings, with the state where it is to be."""
    if _state == "memory":
        return config
    # With so small a cache, changed pages are written in the middle of transactions.
    return dataclasses.replace(config, state="disk", cache_bytes=16 * 1024)


async def open_database(
    store: ObjectStore,
    *modules: SchemaModule,
    config: DatabaseConfig = LAZY,
    journal_config: JournalConfig | None = None,
) -> Database:
    return await Database.open(
        store,
        modules or [ITEMS],
        clock=ManualClock(),
        config=kept(config),
        journal_config=journal_config,
    )


@asynccontextmanager
async def opened(
    store: ObjectStore, *modules: SchemaModule, config: DatabaseConfig = LAZY
) -> AsyncIterator[Database]:
    database = await open_database(store, *modules, config=config)
    try:
        yield database
    finally:
        await database.close()


async def put(database: Database, key: int, value: bytes = b"", tag: str | None = None) -> None:
    with database.transaction() as tx:
        tx.execute(
            "INSERT INTO items VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
            " value = excluded.value, tag = excluded.tag",
            (key, value, tag),
        )
    await tx.durable()


def dump(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table."""
    tables = database.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
    ).fetchall()
    return {
        table: sorted(database.execute(f"SELECT * FROM {table}").fetchall(), key=repr)
        for (table,) in tables
    }


async def keys(store: MemoryStore, prefix: str) -> list[str]:
    return [info.key async for info in store.list(prefix)]
