"""The SQLite database itself: changed in batches, each batch a patchset."""

# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

import apsw

from taquba.database._apply import apply_body
from taquba.database._body import encode_body
from taquba.database._schema import MODULES_TABLE, InvalidSchema, check_tables, table_names
from taquba.errors import CorruptStore, InvalidState, StateFull

__all__ = ["NO_ROOM", "Execute", "Rows", "State"]

NO_ROOM = (apsw.FullError, apsw.IOError, apsw.NoMemError)
"""What SQLite raises when it cannot write the file. It may have rolled back everything then."""


class Rows(Protocol):
    """The rows of a statement, one tuple each."""

    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


Execute = Callable[..., Rows]
"""Runs one SQL statement: ``execute(sql, parameters=())``."""


_numbers = itertools.count()
"""Names for in-memory files, which are shared by name within a process."""

_LARGEST = 2**31 - 2**16
"""Bytes; the limit of SQLite's in-memory files is lifted to this from one gibibyte. More cannot
be allocated at a time."""
_LOADING_CACHE_KIB = 2048


class State:
    """One connection, whose changes since the last seal are recorded by a session.

    In memory, the file lives in SQLite's ``memdb`` VFS rather than in ``:memory:``: there, as
    on a disk, a commit by the same connection is carried over into a running backup instead of
    restarting it.
    """

    def __init__(self, cache_bytes: int, path: str | None = None) -> None:
        """Open the file `path`, or a new one in memory."""
        self.on_disk = path is not None
        self._cache_kib = cache_bytes // 1024
        self._use(_in_memory() if path is None else apsw.Connection(path))
        _configure(self.connection)
        self._set_cache(self._cache_kib, spill=self.on_disk)
        self.session: apsw.Session | None = None
        self.in_transaction = False
        """Whether somebody is amid a transaction, which neither counts yet nor is undone."""
        self.unsealed = False
        """Whether something was committed since the last seal; whoever commits says so."""
        self.problem: StateFull | None = None
        """Why this is not what was committed any more: something took back a whole batch."""
        self._statements: list[str] = []
        self._tables: frozenset[str] = frozenset()
        self._schema_version = 0
        self._changes = 0

    def _use(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.execute: Execute = connection.execute
        self.control: Execute = connection.cursor().execute
        """As `execute`, without the price of a cursor of its own: for what has no rows."""

    def create(self) -> None:
        """Make an empty database what every database begins as.

        Raises:
            StateFull: There is no room for it.
        """
        try:
            self.execute("PRAGMA auto_vacuum = INCREMENTAL").fetchall()
            self.execute(MODULES_TABLE)
        except NO_ROOM as error:
            raise self.no_room(error) from error
        self.tables_changed()

    def tables_changed(self) -> None:
        """Look at the tables anew."""
        self._tables = table_names(self.connection)
        self._schema_version = self._read_schema_version()

    def _read_schema_version(self) -> int:
        return int(self.control("PRAGMA schema_version").fetchall()[0][0])

    # -- changing ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Start recording, if that is not under way.

        Raises:
            InvalidState: Rows were written that nobody recorded.
        """
        if self.session is None:
            self._check_unrecorded()
            session = apsw.Session(self.connection, "main")
            session.attach()
            self.control("BEGIN")
            self.session = session

    def _check_unrecorded(self) -> None:
        if self.connection.total_changes() != self._changes:
            # They are not in the journal, so what is written after them may never apply again.
            raise _written_outside()

    def _end(self) -> None:
        """Stop recording."""
        if self.session is not None:
            self.session.close()
            self.session = None
            try:
                self.control("COMMIT")
            except NO_ROOM as error:
                self.problem = self.no_room(error)
                raise self.problem from error
            self._changes = self.connection.total_changes()

    def seal(self) -> bytes | None:
        """The body that holds what changed since the last seal; None if nothing did.

        Raises:
            InvalidState: What was written cannot be told from the session; nothing may be
                acknowledged any more.
        """
        patchset = b""
        if self.session is not None:
            self._check_sealable()
            patchset = self.session.patchset()
            self._end()
        self.unsealed = False
        statements, self._statements = self._statements, []
        if not patchset and not statements:
            return None
        return encode_body(statements, patchset)

    def _check_sealable(self) -> None:
        if self.problem is not None:
            raise self.problem
        if self.in_transaction:
            raise InvalidState(
                "the event loop ran in the middle of a transaction: leave "
                "`with database.transaction()` before you await anything"
            )
        if not self.connection.in_transaction:
            raise InvalidState(
                "a statement (COMMIT, ROLLBACK, OR ROLLBACK …) ended the transaction of a whole "
                "batch, and what others did in it is lost"
            )
        if self._read_schema_version() != self._schema_version:
            raise InvalidState(
                "a transaction changed tables (or ran ANALYZE), which the journal would not "
                "replay: change them with a SchemaModule"
            )

    def come_to_rest(self) -> bool:
        """End what is open, if nothing was committed since the last seal; whether that is so.

        What was begun and rolled back, or only read, leaves a transaction open.

        Raises:
            InvalidState: Rows were written that nobody recorded.
        """
        if self.in_transaction or self.unsealed or self._statements:
            return False
        if self.session is None:
            self._check_unrecorded()
        elif self.session.patchset():
            raise _written_outside()
        self._end()
        return True

    def define(self, statements: list[str]) -> None:
        """Run DDL, to be part of the next body. Only right after a seal.

        Raises:
            InvalidSchema: A statement is wrong, or the tables would not be replicated; nothing
                was changed.
            StateFull: There is no room for it.
        """
        at_rest = self.come_to_rest()
        assert at_rest
        self.execute("BEGIN")
        try:
            for statement in statements:
                self.execute(statement).fetchall()
            check_tables(self.connection)
            self.execute("COMMIT")
        except BaseException as error:
            if self.connection.in_transaction:  # SQLite may have rolled it back by itself
                self.execute("ROLLBACK")
            self._changes = self.connection.total_changes()  # what was rolled back counts too
            if isinstance(error, NO_ROOM):
                self.problem = self.no_room(error)
                raise self.problem from error
            if isinstance(error, apsw.Error):
                raise InvalidSchema(f"a statement of a schema module failed: {error}") from error
            raise
        self._changes = self.connection.total_changes()
        self._statements.extend(statements)
        self.tables_changed()

    # -- replaying --------------------------------------------------------------------------

    @contextlib.contextmanager
    def loading(self, source: apsw.Connection) -> Generator[apsw.Backup]:
        """A backup of `source` into this database, which is empty."""
        # With a cache that keeps all that is not committed, the last step would copy the
        # whole database a second time, and the event loop would stand still meanwhile.
        self._set_cache(_LOADING_CACHE_KIB, spill=True)
        try:
            with self.connection.backup("main", source, "main") as backup:
                yield backup
        finally:
            self._set_cache(self._cache_kib, spill=self.on_disk)

    def _set_cache(self, kib: int, *, spill: bool) -> None:
        _set_cache(self.connection, kib, spill=spill)

    def apply(self, name: str, body: bytes) -> bool:
        """Apply a body that `seal` made of the same state; whether it changed tables.

        `name` is for errors.

        Raises:
            CorruptStore: It does not fit this state.
        """
        try:
            tables = apply_body(self.connection, self._tables, name, body)
        except CorruptStore as error:
            if isinstance(error.__cause__, NO_ROOM):
                raise self.no_room(error.__cause__) from error
            raise
        if tables is not None:
            self.tables_changed()
        self._changes = self.connection.total_changes()
        return tables is not None

    def no_room(self, error: apsw.Error) -> StateFull:
        """The error to raise when SQLite raised one of `NO_ROOM`."""
        advice = (
            "The scratch disk is full, or fails: make room, or choose another folder (scratch=…)"
            if self.on_disk
            else "In memory it may take 2 GiB, if there is so much: state='disk' has no limit"
        )
        return StateFull(
            f"the state has no room here ({error}). {advice}. Nothing that was acknowledged is "
            "lost; open the store again to go on"
        )

    # -- giving space back ------------------------------------------------------------------

    def pages(self) -> tuple[int, int]:
        """Pages of the file, and how many of them hold nothing."""
        (pages,) = self.control("PRAGMA page_count").fetchall()[0]
        (free,) = self.control("PRAGMA freelist_count").fetchall()[0]
        return int(pages), int(free)

    def vacuum(self, pages: int) -> None:
        """Make the file smaller by some pages that hold nothing. Only while nothing is open.

        Raises:
            StateFull: The file cannot be written.
        """
        try:
            self.control(f"PRAGMA incremental_vacuum({pages})").fetchall()
        except NO_ROOM as error:
            self.problem = self.no_room(error)
            raise self.problem from error

    def moving(self) -> Moving:
        """Begin to move the database into new memory."""
        return Moving(self)

    def change_over(self, connection: apsw.Connection) -> apsw.Connection:
        """Go on with another connection, to a copy; the one before. Only while nothing is open."""
        before = self.connection
        self._use(connection)
        self._set_cache(self._cache_kib, spill=self.on_disk)
        self._changes = connection.total_changes()
        self._schema_version = self._read_schema_version()
        return before

    # -- looking ----------------------------------------------------------------------------

    def versions(self) -> dict[str, int]:
        """The schema modules that are there, with their versions."""
        rows: list[Any] = self.execute("SELECT name, version FROM schema_modules").fetchall()
        return {str(name): int(version) for name, version in rows}

    def size(self) -> int:
        """Bytes of the database."""
        return int(self.connection.pragma("page_count")) * int(self.connection.pragma("page_size"))

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None
        self.connection.close()


class Moving:
    """A copy of a database in memory that is going to take its place."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._connection = _in_memory()
        """The copy; when that has taken the place, what was there before."""
        _configure(self._connection)
        _set_cache(self._connection, _LOADING_CACHE_KIB, spill=True)
        self._backup = self._connection.backup("main", state.connection, "main")

    @property
    def remaining(self) -> int:
        """Pages that are not copied yet."""
        return self._backup.remaining

    def step(self, pages: int) -> bool:
        """Copy some pages. Only while nothing is open; whether that was all."""
        return self._backup.step(pages)

    def change_over(self) -> None:
        """Let the copy take the place; right after the step that was the last."""
        self._backup.close()
        self._connection = self._state.change_over(self._connection)

    def stop(self) -> None:
        """Copy no more."""
        self._backup.close(True)

    def close(self) -> None:
        """Let go what is not used; after `stop`, and in whatever thread."""
        self._connection.close(True)


def _configure(connection: apsw.Connection) -> None:
    # Without this SQLite prepares a statement anew whenever a value is bound that its
    # planner once looked at to judge a partial index: six times the cost of a claim.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 0)
    for pragma in ("journal_mode = MEMORY", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _set_cache(connection: apsw.Connection, kib: int, *, spill: bool) -> None:
    connection.execute(f"PRAGMA cache_size = -{kib}").fetchall()
    connection.execute(f"PRAGMA cache_spill = {'ON' if spill else 'OFF'}").fetchall()


def _in_memory() -> apsw.Connection:
    connection = apsw.Connection(
        f"file:/taquba-{next(_numbers)}?vfs=memdb",
        flags=apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE,
    )
    limit = ctypes.c_int64(_LARGEST)
    connection.file_control("main", apsw.SQLITE_FCNTL_SIZE_LIMIT, ctypes.addressof(limit))
    return connection


def _written_outside() -> InvalidState:
    return InvalidState(
        "rows were written outside a transaction, so they are not in the journal. Write in "
        "`with database.transaction()` only, and open the store again to go on"
    )
