"""Whether two databases hold the same, row by row; their pages may differ."""

# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import apsw

from taquba._msgpack import pack
from taquba.database._schema import table_names

__all__ = ["difference", "inconsistency", "quoted"]

_ROWS = 500
"""Rows that are looked at before others get the event loop."""


async def difference(ours: apsw.Connection, theirs: apsw.Connection) -> str:
    """The first difference between what two databases hold; nothing if there is none.

    `ours` was replayed, `theirs` is a checkpoint; this is for the wording.
    """
    if told := _schema_difference(ours, theirs):
        return told
    for table in sorted(table_names(ours)):
        columns = _primary_key(ours, table)
        query = f"SELECT * FROM {quoted(table)} ORDER BY {', '.join(map(quoted, columns))}"
        pairs = itertools.zip_longest(ours.execute(query), theirs.execute(query))
        for number, (our, their) in enumerate(pairs):
            # 1 and 1.0 are equal in Python, and different in a database.
            if our != their or (our is not None and pack(our) != pack(their)):
                return _row_difference(ours, table, columns, our, their)
            if number % _ROWS == _ROWS - 1:
                await asyncio.sleep(0)
    return ""


def _schema_difference(ours: apsw.Connection, theirs: apsw.Connection) -> str:
    query = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"
    our, their = set(ours.execute(query)), set(theirs.execute(query))
    if our == their:
        return ""
    kind, name, _, _ = sorted(our ^ their, key=repr)[0]
    return f"its {kind} {name!r} is not what the journal says"


def _row_difference(
    connection: apsw.Connection,
    table: str,
    columns: list[str],
    our: tuple[Any, ...] | None,
    their: tuple[Any, ...] | None,
) -> str:
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({quoted(table)})")]
    places = [names.index(column) for column in columns]

    def key(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(row[place] for place in places)

    def named(row: tuple[Any, ...]) -> str:
        return ", ".join(
            f"{column} {value!r}" for column, value in zip(columns, key(row), strict=True)
        )

    if our is not None and their is not None and key(our) == key(their):
        differing = [
            name for name, ours, theirs in zip(names, our, their, strict=True) if ours != theirs
        ]
        what = f"in {', '.join(differing)}" if differing else "in the type of a value"
        return f"in table {table!r} the row with {named(our)} differs {what}"
    if their is None or (our is not None and _sorts_before(key(our), key(their))):
        assert our is not None
        return f"in table {table!r} it lacks the row with {named(our)}"
    return f"in table {table!r} it has a row with {named(their)} that the journal does not know"


def _sorts_before(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    try:
        return one < other
    except TypeError:  # values of different types
        return False


async def inconsistency(connection: apsw.Connection) -> str:
    """What SQLite finds wrong in a database, such as an index that lacks a row; or nothing."""
    for table in sorted(table_names(connection)):
        try:
            found = connection.execute(f"PRAGMA integrity_check({quoted(table)})").fetchall()
        except apsw.Error as error:
            return f"SQLite says of table {table!r}: {error}"
        if found != [("ok",)]:
            return f"SQLite says of table {table!r}: {found[0][0]}"
        await asyncio.sleep(0)
    return ""


def _primary_key(connection: apsw.Connection, table: str) -> list[str]:
    rows: list[Any] = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    return [row[1] for row in sorted(rows, key=lambda row: row[5]) if row[5]]


def quoted(name: str) -> str:
    """A name as SQL wants it."""
    return '"' + name.replace('"', '""') + '"'
