"""Applying the body of a journal entry to a database."""

# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import contextlib

import apsw

from taquba.database._body import decode_body
from taquba.database._schema import table_names
from taquba.errors import CorruptStore

__all__ = ["apply_body"]


def apply_body(
    connection: apsw.Connection, tables: frozenset[str], name: str, body: bytes
) -> frozenset[str] | None:
    """Apply a body that was made of the same state; the tables if it changed them, else None.

    Args:
        connection: The database.
        tables: The names of its tables.
        name: Of the entry, for errors.
        body: What `taquba.database._body.encode_body` made.

    Raises:
        CorruptStore: It does not fit this state.
        IncompatibleStore: A newer taquba wrote it.
    """
    statements, patchset = decode_body(name, body)
    changed: frozenset[str] | None = None
    try:
        for statement in statements:
            connection.execute(statement).fetchall()
        if statements:
            tables = changed = table_names(connection)
        if patchset:
            _apply_patchset(connection, tables, name, patchset)
    except apsw.Error as error:
        raise CorruptStore(f"{name} does not apply to the state before it: {error}") from error
    return changed


def _apply_patchset(
    connection: apsw.Connection, tables: frozenset[str], name: str, patchset: bytes
) -> None:
    problems: list[str] = []

    def known(table: str) -> bool:
        # SQLite itself would silently skip the changes of a table that is not there.
        if table not in tables:
            problems.append(f"there is no table {table!r}")
        return table in tables

    def conflict(reason: int, change: apsw.TableChange) -> int:
        kind = apsw.mapping_session_conflict.get(reason, reason)
        problems.append(f"{change.op} in table {change.name!r}: {kind}")
        return apsw.SQLITE_CHANGESET_ABORT

    with contextlib.suppress(apsw.AbortError):  # what `conflict` asked for
        apsw.Changeset.apply(patchset, connection, filter=known, conflict=conflict)
    if problems:
        raise CorruptStore(
            f"{name} does not apply to the state before it: {'; '.join(problems[:3])}"
        )
