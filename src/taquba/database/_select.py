"""SQL of callers who only read."""

# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import apsw

from taquba.errors import InvalidState

__all__ = ["select"]

_READS = re.compile(
    r"(?:\s|;|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*"
    r"(?:\Z|(?:explain\s+(?:query\s+plan\s+)?)?(?:select|values|with)\b)",
    re.IGNORECASE | re.DOTALL,
)


def select(
    connection: apsw.Connection, sql: str, parameters: Sequence[Any]
) -> list[tuple[Any, ...]]:
    """The rows of statements that only read.

    SQLite's own notion of that is not enough: it lets BEGIN and ATTACH pass, and runs a PRAGMA
    as soon as it is parsed. So each statement is looked at before SQLite gets to parse it.

    Raises:
        InvalidState: One would change something.
    """
    rest = sql

    def look(cursor: apsw.Cursor, statement: str, _: Any) -> bool:
        nonlocal rest
        if not cursor.is_readonly:
            raise _refused()
        rest = rest[len(statement) :]
        _check(rest)
        return True

    _check(rest)
    cursor = connection.cursor()
    cursor.exec_trace = look
    return cursor.execute(sql, tuple(parameters)).fetchall()


def _check(sql: str) -> None:
    if _READS.match(sql) is None:
        raise _refused()


def _refused() -> InvalidState:
    return InvalidState(
        "this only reads: write SELECT, WITH … SELECT or VALUES; instead of a PRAGMA, "
        "SELECT * FROM pragma_table_info('jobs')"
    )
