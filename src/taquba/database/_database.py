"""The database as the layers above see it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, final

from taquba.clock import Duration
from taquba.database._checkpoints import Checkpointer
from taquba.database._chunks import ChunkStore
from taquba.database._collection import Collector
from taquba.database._config import DatabaseConfig, DatabaseStatistics
from taquba.database._machine import Machine
from taquba.database._orphans import IsNamed, ObjectKeys, OrphanCollector, check_object_prefix
from taquba.database._schema import SchemaModule
from taquba.database._select import select
from taquba.database._shrink import Shrinker
from taquba.database._state import NO_ROOM, Execute
from taquba.errors import Closed, InvalidState, TaqubaError
from taquba.journal import Journal, JournalConfig, Position

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.objectstore import ObjectStore

__all__ = ["Database", "Transaction"]

_CLOSED = (
    "this store was closed here: its 'async with' block has ended, or close() was called; "
    "open it again to go on"
)
_PATIENCE = 5.0
"""Seconds that closing waits, at most, for a collection to go through."""
_SAVEPOINT = "SAVEPOINT work"
_RELEASE = "RELEASE work"
_ROLLBACK = "ROLLBACK TO work"

logger = logging.getLogger("taquba.database")


@final
class Transaction:
    """Changes that happen together or not at all; made by `Database.transaction`.

    The body of the ``with`` block is synchronous. Leaving it by an exception rolls it back;
    leaving it normally applies it here and now, and `durable` waits until it is stored.
    """

    __slots__ = ("_before", "_database", "execute", "ticket", "write")

    ticket: int
    """Of the journal's batch that holds the changes; 0 if there were none."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._before = 0
        self.ticket = 0
        self.execute: Execute = database.execute
        """Run one statement; its rows come from `fetchone` and `fetchall`."""
        self.write: Execute = database.execute
        """As `execute`, and cheaper: for one that has no rows."""

    def __enter__(self) -> Transaction:
        database = self._database
        state = database._state
        if database._blocked or state.in_transaction:
            database._refuse()
        if state.session is None:
            state.begin()
        state.control(_SAVEPOINT)
        state.in_transaction = True
        self._before = state.connection.total_changes()
        self.execute = database.execute  # of now: the state may have moved to other memory
        self.write = state.control
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        database = self._database
        state = database._state
        state.in_transaction = False
        try:
            if kind is not None:
                state.control(_ROLLBACK)
            state.control(_RELEASE)
        except Exception as problem:
            # The savepoint is gone, and with it the transaction of everybody in this batch.
            # The seal will find that out, and stop the journal before anything is stored.
            state.unsealed = True
            for cause in (error, problem):
                if isinstance(cause, NO_ROOM):
                    state.problem = state.no_room(cause)
            with contextlib.suppress(TaqubaError):
                database._journal.append()
            if state.problem is not None:
                raise copy.copy(state.problem) from problem
            if error is not None:
                error.add_note(f"the database stops, since this ended its transaction: {problem}")
                return
            raise
        if isinstance(error, NO_ROOM):
            raise state.no_room(error) from error
        if kind is None and state.connection.total_changes() != self._before:
            state.unsealed = True
            self.ticket = database._journal.append()

    async def durable(self) -> None:
        """Return when the changes will survive any crash.

        Giving up waiting does not undo them: they may still become durable.

        Raises:
            Fenced: Another process took the store over, and the changes are lost.
            Closed, CommitUnknown: The database was closed before.
        """
        if self.ticket:
            await self._database._journal.durable(self.ticket)

    def when_durable(self, callback: Callable[[asyncio.Future[None]], None]) -> None:
        """As `durable`, without a task that waits: call this with a future that is done then."""
        if self.ticket:
            future = self._database._journal.durable(self.ticket)
        else:
            future = asyncio.get_running_loop().create_future()
            future.set_result(None)
        future.add_done_callback(callback)


@final
class Database:
    """A SQLite database, in memory or on the local disk, whose changes are in the journal.

    Reading is immediate and sees what was committed here, durable or not; `barrier` waits
    until what was seen is durable.
    """

    def __init__(
        self,
        machine: Machine,
        journal: Journal,
        checkpointer: Checkpointer,
        collector: Collector,
        *,
        store: ObjectStore,
        clock: Clock,
    ) -> None:
        """Use `open`."""
        self._store = store
        self._clock = clock
        self._machine = machine
        self._state = machine.state
        self._journal = journal
        self._checkpointer = checkpointer
        self._collector = collector
        self._blocked: TaqubaError | None = None
        self._adding_module = asyncio.Lock()
        self._failure_callbacks: list[Callable[[TaqubaError], None]] = []
        self._checkpoints = asyncio.ensure_future(checkpointer.run())
        self._collections = asyncio.ensure_future(collector.run())
        self._shrinker = Shrinker(
            self._state, clock=clock, exclusive=checkpointer.copying, moved=self._moved
        )
        self._shrinking = asyncio.ensure_future(self._shrinker.run())
        self._object_keys: dict[str, ObjectKeys] = {}
        self._closing: asyncio.Future[None] | None = None
        self.execute: Execute = self._state.execute
        """Run one statement that reads; its rows come from `fetchone` and `fetchall`."""

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
        """Take a store over, and bring the database to what its journal says.

        Args:
            store: Where journal and checkpoints are.
            modules: The tables that must be there; they are created or migrated.
            clock: Time and randomness.
            config: Settings.
            journal_config: Settings of the journal.

        Raises:
            CorruptStore: What is stored is damaged; the message names the object.
            IncompatibleStore: A newer version wrote it; nothing was changed.
            StoreError: The store cannot be used.
        """
        config = config or DatabaseConfig()
        machine = Machine(store, modules, config)
        try:
            journal = await Journal.open(
                store,
                machine,
                clock=clock,
                config=journal_config,
                metadata=machine.metadata(),
            )
        except BaseException:
            machine.close()
            raise
        chunks = ChunkStore(store, transfers=config.transfers)
        collector = Collector(store, chunks, clock=clock, config=config, epoch=journal.epoch)
        checkpointer = Checkpointer(
            store,
            machine.state,
            journal,
            clock=clock,
            config=config,
            chunks=chunks,
            collector=collector,
            base=machine.base,
            entries=machine.replayed_entries,
            size=machine.replayed_bytes,
            committed_at_ms=machine.committed_at_ms,
        )
        database = cls(machine, journal, checkpointer, collector, store=store, clock=clock)
        machine.attach(journal, checkpointer, database._shrinker, database._failed)
        try:
            migrated = False
            for module in modules:
                migrated |= await database._add_module(module)
            if migrated:
                await database.checkpoint()
        except BaseException:
            with contextlib.suppress(TaqubaError):  # what went wrong before says more
                await database.close(timeout=0)
            raise
        return database

    # -- reading and changing ---------------------------------------------------------------

    def transaction(self) -> Transaction:
        """A set of changes; use it with ``with``. Transactions do not nest."""
        return Transaction(self)

    def select(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of statements that others wrote.

        Raises:
            InvalidState: One would change something.
        """
        if self.execute == self._refuse_reading:
            self._refuse_reading()
        return select(self._state.connection, sql, parameters)

    async def barrier(self) -> None:
        """Wait until everything that is visible now is durable.

        Raises:
            Fenced, Closed, CommitUnknown: That will not happen, or is not known.
        """
        if self._blocked is not None:
            raise copy.copy(self._blocked)
        journal = self._journal
        if journal.last_ticket > journal.acknowledged_ticket:
            await journal.durable(journal.last_ticket)

    @property
    def admitting(self) -> bool:
        """Whether new transactions should begin: not too much waits to become durable."""
        return self._journal.admitting

    async def admit(self) -> None:
        """Wait until `admitting`.

        Raises:
            Fenced, Closed, CommitUnknown: The database stopped.
        """
        if self._blocked is not None:
            raise copy.copy(self._blocked)
        if not self._journal.admitting:
            await self._journal.admit()

    async def leisure(self) -> None:
        """As `admit`, for what removes much and can wait: also while the state is being copied or
        moved, since that would take longer turns to keep up with the changes.

        Raises:
            Fenced, Closed, CommitUnknown: The database stopped.
        """
        async with self._checkpointer.copying:
            pass
        await self.admit()

    def before_seal(self, callback: Callable[[], None]) -> None:
        """Call this before each seal; it may write rows with `execute`."""
        self._machine.before_seal.append(callback)

    async def add_module(self, module: SchemaModule) -> None:
        """Create or migrate the tables of a further module; durable when this returns.

        Raises:
            IncompatibleStore: The store has a newer version of it.
            InvalidSchema: A statement is wrong, or changes could not be replicated; nothing
                was changed.
        """
        if await self._add_module(module):
            await self.checkpoint()

    async def _add_module(self, module: SchemaModule) -> bool:
        """As `add_module`; whether an older version was migrated."""
        async with self._adding_module:
            stored = self._state.versions().get(module.name)
            statements = module.steps_from(stored)
            if stored == module.version:
                await self.barrier()  # whoever added it may still wait
                return False
            await self.admit()
            self._journal.seal_now()
            with self.transaction() as tx:
                pass  # refuses what is closed or nested, before anything is done
            self._state.define(statements)
            with self.transaction() as tx:
                tx.execute(
                    "INSERT INTO schema_modules VALUES (?, ?)"
                    " ON CONFLICT (name) DO UPDATE SET version = excluded.version",
                    (module.name, module.version),
                )
            await tx.durable()
            return stored is not None

    async def checkpoint(self) -> None:
        """Take a checkpoint now; they are also taken when they are due.

        Raises:
            StoreError, OSError: It could not be stored, or not copied to the scratch folder.
                No commit depends on it.
            Fenced, Closed, CommitUnknown: The database stopped.
        """
        if self._blocked is not None:
            raise copy.copy(self._blocked)
        await self._checkpointer.take()

    # -- deleting what is not needed --------------------------------------------------------

    async def collect(self) -> None:
        """Delete what is superfluous now; that also happens after each checkpoint.

        Raises:
            StoreError: It could not be deleted. No commit depends on it.
            CorruptStore: What is needed cannot be told, so nothing was deleted.
            Fenced, Closed, CommitUnknown: The database stopped.
        """
        if self._blocked is not None:
            raise copy.copy(self._blocked)
        await self._collector.collect()

    def collect_orphans(
        self, prefix: str, *, is_named: IsNamed, grace: Duration = timedelta(days=1)
    ) -> ObjectKeys:
        """Delete objects with this prefix that no row names, some time after that is durable.

        Args:
            prefix: What the keys of these objects begin with, such as ``"payloads/"``.
            is_named: Tells which of some keys are named by a row. A key is named by the
                transaction in `ObjectKeys.new`, may be handed on to other rows within a
                transaction, and once it is gone is never named again.
            grace: How old an unnamed object is at least before it is deleted.

        Returns:
            Makes the keys.

        Raises:
            InvalidArgument: The prefix is used already, or cannot be one; or `grace` is shorter
                than two hours.
        """
        check_object_prefix(prefix, self._object_keys)
        epoch = self._journal.epoch
        keys = ObjectKeys(prefix, clock=self._clock, epoch=epoch)
        orphans = OrphanCollector(
            self._store,
            self,
            keys,
            is_named,
            grace,
            clock=self._clock,
            time=self._collector.time,
            epoch=epoch,
        )
        self._object_keys[prefix] = keys
        self._collector.orphans.append(orphans)
        return keys

    # -- what it is -------------------------------------------------------------------------

    @property
    def failure(self) -> TaqubaError | None:
        """Why the database stopped by itself, or None."""
        return self._journal.failure

    @property
    def stopped(self) -> TaqubaError | None:
        """Why nothing can be changed any more: it was closed, or stopped by itself. Or None."""
        return self._blocked

    def on_failure(self, callback: Callable[[TaqubaError], None]) -> None:
        """Call this when the database stops: by itself, or because it is closed."""
        self._failure_callbacks.append(callback)

    def watch(
        self,
        *,
        stored: Callable[[float, int], None],
        retried: Callable[[], None],
        checkpointed: Callable[[float, int], None],
    ) -> None:
        """Be told of journal entries, see `Journal.watch`; and of each checkpoint, with the
        seconds that it took and the bytes stored for it. None of them may raise.
        """
        self._journal.watch(stored=stored, retried=retried)
        self._checkpointer.on_taken = checkpointed

    @property
    def position(self) -> Position:
        """Place in the journal of the last seal."""
        return self._journal.position

    @property
    def journal(self) -> Journal:
        """The journal, for its statistics."""
        return self._journal

    def statistics(self) -> DatabaseStatistics:
        """Sizes and counts."""
        checkpointer = self._checkpointer
        return DatabaseStatistics(
            size=self._state.size(),
            entries_since_checkpoint=checkpointer.entries,
            bytes_since_checkpoint=checkpointer.bytes,
            checkpoint_seq=checkpointer.seq,
            checkpoints=checkpointer.taken,
            chunks_uploaded=checkpointer.chunks_uploaded,
            chunks_reused=checkpointer.chunks_reused,
            checkpoint_bytes=checkpointer.bytes_uploaded,
            objects_deleted=self._collector.deleted,
        )

    # -- the end ----------------------------------------------------------------------------

    async def close(self, *, timeout: float | None = None) -> None:
        """Store what is committed, and let go. Safe to call twice; always terminates.

        A collection that is due after a checkpoint goes through, if it takes a few seconds.

        Args:
            timeout: Seconds to wait for a store that does not answer; None waits for ever.

        Raises:
            CommitUnknown: The time was up; the last commits may still become durable.
            Fenced: Another process took the store over while this waited.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(timeout))
        await asyncio.shield(self._closing)

    async def _close(self, timeout: float | None) -> None:
        if self._blocked is None:
            self._block(Closed(_CLOSED))
        ended = self._blocked or Closed(_CLOSED)
        self._shrinking.cancel()
        self._checkpoints.cancel()
        await asyncio.gather(self._shrinking, self._checkpoints, return_exceptions=True)
        await self._checkpointer.close(ended)
        if self.failure is None:
            await self._collector.finish(_PATIENCE if timeout is None else min(timeout, _PATIENCE))
        self._collections.cancel()
        await asyncio.gather(self._collections, return_exceptions=True)
        await self._collector.close(ended)
        try:
            await self._journal.close(timeout=timeout)
        finally:
            self.execute = self._refuse_reading
            self._machine.close()
            for callback in self._failure_callbacks if self.failure is None else ():
                callback(Closed(_CLOSED))

    def _failed(self, error: TaqubaError) -> None:
        self._block(error)
        self._checkpoints.cancel()
        self._collections.cancel()
        self._shrinking.cancel()
        self._collector.failed(error)
        for callback in self._failure_callbacks:
            try:
                callback(error)
            except Exception:
                logger.exception("a callback failed to note that the database stopped")

    def _moved(self) -> None:
        """The state has another connection now."""
        self.execute = self._state.execute

    def _block(self, error: TaqubaError) -> None:
        self._blocked = error

    def _refuse(self) -> NoReturn:
        if self._blocked is not None:
            raise copy.copy(self._blocked)
        raise InvalidState("transactions do not nest: leave the first one before the next")

    def _refuse_reading(self, *_: Any) -> NoReturn:
        raise copy.copy(self._blocked or Closed(_CLOSED))
