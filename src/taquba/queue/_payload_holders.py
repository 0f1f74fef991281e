"""Which rows name payload objects, in whatever layer's tables.

A table of any layer may name objects in one of its columns. It has an index on that column, with
the name of the table and ``_stored`` behind it, for the rows that do. By that, whoever reads the
state finds out what is named without knowing the layer: an owner that does not use it, a
verification, a follower.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from taquba.queue._payload_objects import base_key

__all__ = ["Rows", "named_keys", "references"]

Rows = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Runs a statement, with these parameters."""

_INDEX = re.compile(r"CREATE INDEX \w+_stored ON (\w+) \((\w+)\)")


def _holders(rows: Rows) -> list[tuple[str, str]]:
    """The tables that can name objects, with their columns; none in a store of an older version."""
    found = rows(
        "SELECT sql FROM sqlite_schema WHERE type = 'index' AND name GLOB '*_stored' ORDER BY name",
        (),
    )
    matches = [_INDEX.match(sql) for (sql,) in found]
    return [(match[1], match[2]) for match in matches if match is not None]


def named_keys(rows: Rows, keys: Sequence[str]) -> Collection[str]:
    """Which of these objects are named."""
    holders = _holders(rows)

    def is_named(base: str) -> bool:
        return any(
            rows(
                f"SELECT 1 FROM {table} WHERE {column} IS NOT NULL"
                f" AND {column} > ? AND {column} < ? LIMIT 1",
                (f"{base}:", f"{base};"),
            )
            for table, column in holders
        )

    found = {base: is_named(base) for base in {base_key(key) for key in keys}}
    return [key for key in keys if found[base_key(key)]]


def references(rows: Rows) -> Iterator[tuple[str, str]]:
    """Every reference that there is, and what holds it, in words."""
    for table, column in _holders(rows):
        name = "id" if table == "jobs" else "NULL"
        for ref, job_id in rows(
            f"SELECT {column}, {name} FROM {table} WHERE {column} IS NOT NULL ORDER BY {column}",
            (),
        ):
            yield ref, f"a row of the table {table!r}" if job_id is None else f"job {job_id!r}"
