"""A first, thin database: transactions, sessions and replay, without checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import apsw

from taquba.clock import Clock
from taquba.errors import Closed, CorruptStore, InvalidArgument, TaqubaError
from taquba.journal import Checkpoint, Entry, Journal, JournalConfig, Position
from taquba.objectstore import ObjectStore

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaModule:
    name: str
    version: int
    statements: tuple[str, ...]
    migrations: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DatabaseConfig:
    pass


class Transaction:
    __slots__ = ("_database", "_before", "execute", "ticket")

    def __init__(self, database: Database) -> None:
        self._database = database
        self.execute = database.execute
        self.ticket = 0

    def __enter__(self) -> Transaction:
        self._database._begin()
        self.execute("SAVEPOINT t")
        self._before = self._database._connection.total_changes()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        database = self._database
        database._in_transaction = False
        if kind is None:
            self.execute("RELEASE t")
            if database._connection.total_changes() != self._before:
                self.ticket = database._journal.append()
        else:
            self.execute("ROLLBACK TO t")
            self.execute("RELEASE t")

    async def durable(self) -> None:
        if self.ticket:
            await self._database._journal.durable(self.ticket)


class Database:
    def __init__(self, modules: Sequence[SchemaModule]) -> None:
        self._modules = list(modules)
        self._callbacks: list[Callable[[], None]] = []
        self._failure_callbacks: list[Callable[[TaqubaError], None]] = []
        self._session: apsw.Session | None = None
        self._in_transaction = False
        self._ddl: list[str] = []
        self.failure: TaqubaError | None = None
        self._closed = False

    @classmethod
    async def open(
        cls,
        store: ObjectStore,
        modules: Sequence[SchemaModule],
        *,
        clock: Clock,
        config: DatabaseConfig | None = None,
        journal_config: JournalConfig | None = None,
    ) -> Database:
        database = cls(modules)
        database._journal = await Journal.open(store, database, clock=clock, config=journal_config)
        for module in modules:
            await database.add_module(module)
        return database

    async def restore(self, checkpoint: Checkpoint | None) -> None:
        self._connection = apsw.Connection(
            f"file:/taquba-{next(_numbers)}?vfs=memdb",
            flags=apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE,
        )
        self._connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        for pragma in (
            "journal_mode=MEMORY",
            "synchronous=OFF",
            "locking_mode=EXCLUSIVE",
            "cache_size=-65536",
            "cache_spill=OFF",
        ):
            self._connection.execute(f"PRAGMA {pragma}")
        self.execute = self._connection.execute
        self.execute("CREATE TABLE modules (name TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL)")

    def apply(self, entry: Entry) -> None:
        import msgpack

        ddl, patchset = msgpack.unpackb(entry.body)
        for statement in ddl:
            self.execute(statement)

        def conflict(*_: Any) -> int:
            raise CorruptStore(f"entry {entry.seq} does not apply")

        if patchset:
            apsw.Changeset.apply(patchset, self._connection, conflict=conflict)

    def check(self, metadata: bytes) -> None:
        pass

    def seal(self, seq: int) -> bytes | None:
        import msgpack

        for callback in self._callbacks:
            callback()
        patchset = b""
        if self._session is not None:
            patchset = self._session.patchset()
            self._session.close()
            self._session = None
            self.execute("COMMIT")
        ddl, self._ddl = self._ddl, []
        if not patchset and not ddl:
            return None
        packed: bytes = msgpack.packb((ddl, patchset))
        return packed

    def sealed(self, position: Position) -> None:
        pass

    def failed(self, error: TaqubaError) -> None:
        self.failure = error
        for callback in self._failure_callbacks:
            callback(error)

    async def add_module(self, module: SchemaModule) -> None:
        row = self.execute("SELECT version FROM modules WHERE name = ?", (module.name,)).fetchone()
        if row is not None:
            return
        self._journal.seal_now()
        for statement in module.statements:
            self.execute(statement)
        self._ddl.extend(module.statements)
        with self.transaction() as tx:
            tx.execute("INSERT INTO modules VALUES (?, ?)", (module.name, module.version))
        await tx.durable()

    def _begin(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise Closed("the database is closed")
        if self._in_transaction:
            raise InvalidArgument("transactions do not nest")
        self._in_transaction = True
        if self._session is None:
            self._session = apsw.Session(self._connection, "main")
            self._session.attach()
            self.execute("BEGIN")

    def transaction(self) -> Transaction:
        return Transaction(self)

    def before_seal(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def on_failure(self, callback: Callable[[TaqubaError], None]) -> None:
        self._failure_callbacks.append(callback)

    async def barrier(self) -> None:
        journal = self._journal
        if journal.last_ticket > journal.acknowledged_ticket:
            await journal.durable(journal.last_ticket)

    @property
    def admitting(self) -> bool:
        return self._journal.admitting

    async def admit(self) -> None:
        await self._journal.admit()

    async def close(self, *, timeout: float | None = None) -> None:
        self._closed = True
        await self._journal.close(timeout=timeout)
        self._connection.close()
