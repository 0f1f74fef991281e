"""Tables: how layers declare them, and what they must be like to be replicated.

SQLite records changes only of tables with a declared primary key, and says nothing about
the others; so what it would not record is refused here.
"""

# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taquba.errors import IncompatibleStore, InvalidArgument

if TYPE_CHECKING:
    import apsw

__all__ = ["MODULES_TABLE", "InvalidSchema", "SchemaModule", "check_tables", "table_names"]

MODULES_TABLE = (
    "CREATE TABLE schema_modules (name TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL)"
)


class InvalidSchema(InvalidArgument):
    """A table, or something else in a schema, whose changes could not be replicated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaModule:
    """The tables of one layer, in one version.

    Every table needs a primary key whose columns are declared NOT NULL. Triggers, foreign
    keys, AUTOINCREMENT and virtual tables are refused.
    """

    name: str
    """Unique among the modules of a store."""
    version: int
    """1 for the first; higher for every later one."""
    statements: tuple[str, ...]
    """What creates the tables of this version in an empty database."""
    migrations: Mapping[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    """By version: what leads from it to the next. Must give the same rows on every run."""

    def steps_from(self, stored: int | None) -> list[str]:
        """The statements that bring a stored version (None: nothing) to this one.

        Raises:
            IncompatibleStore: The stored version is newer.
            InvalidSchema: A migration is missing.
        """
        if stored is None:
            return list(self.statements)
        self.check_not_newer(stored)
        steps: list[str] = []
        for version in range(stored, self.version):
            if version not in self.migrations:
                raise InvalidSchema(
                    f"module {self.name!r} has no migration from version {version}, which the "
                    "store has"
                )
            steps.extend(self.migrations[version])
        return steps

    def check_not_newer(self, stored: int) -> None:
        """Refuse a store whose tables are newer than this module knows.

        Raises:
            IncompatibleStore: They are.
        """
        if stored > self.version:
            raise IncompatibleStore(
                f"the store's {self.name!r} tables have version {stored}, and this process knows "
                f"version {self.version}: upgrade taquba here. Nothing was changed"
            )


def table_names(connection: apsw.Connection) -> frozenset[str]:
    """Names of all tables that are replicated."""
    rows = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%'"
        " ESCAPE '\\'"
    )
    return frozenset(str(name) for (name,) in rows)


def check_tables(connection: apsw.Connection) -> None:
    """Refuse what would not be replicated, or not exactly.

    Raises:
        InvalidSchema: Something is there that must not be; the message names it.
    """
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_schema"):
        if kind == "trigger":
            raise InvalidSchema(f"trigger {name!r}: rows are replicated, so it would act twice")
        if name == "sqlite_sequence":
            raise InvalidSchema("a table is AUTOINCREMENT: choose the keys yourself")
        if kind == "table" and str(sql).upper().startswith("CREATE VIRTUAL"):
            raise InvalidSchema(f"table {name!r} is virtual: its changes are not recorded")
    for table in sorted(table_names(connection)):
        quoted = '"' + table.replace('"', '""') + '"'
        columns = connection.execute(f"PRAGMA table_info({quoted})").fetchall()
        keys = [(column, not_null) for _, column, _, not_null, _, place in columns if place]
        if not keys:
            raise InvalidSchema(
                f"table {table!r} has no PRIMARY KEY, so its changes would not be recorded"
            )
        for column, not_null in keys:
            if not not_null:
                raise InvalidSchema(
                    f"column {column!r} of table {table!r} is in the primary key: "
                    "declare it NOT NULL"
                )
        if connection.execute(f"PRAGMA foreign_key_list({quoted})").fetchall():
            raise InvalidSchema(f"table {table!r} has a foreign key: changes apply in any order")
