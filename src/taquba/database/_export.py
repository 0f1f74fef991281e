"""Writing the state, as it is or as it was, into an ordinary SQLite file.

Only reads the store, so anybody may do it at any time. The store's owner may collect what is
being read; then reading starts over from what there is by then.
"""

# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import contextlib
import os
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import apsw

from taquba._checks import wrong_type
from taquba.database._apply import apply_body
from taquba.database._checkpoints import latest
from taquba.database._chunks import CHUNK_PREFIX, ChunkStore, Contents
from taquba.database._schema import MODULES_TABLE, table_names
from taquba.database._state import NO_ROOM
from taquba.errors import CorruptStore, HistoryNotKept, InvalidArgument
from taquba.journal import (
    START,
    Checkpoint,
    Entry,
    JournalGap,
    Kind,
    Position,
    checkpoint_as_of,
    checkpoints,
    newest_checkpoint,
    read_checkpoint,
    replay,
)

if TYPE_CHECKING:
    from taquba.objectstore import ObjectStore

__all__ = ["Exported", "export_state"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    position: Position
    """The place in the journal: the file holds everything before it."""
    committed_at_ms: int | None
    """The latest commit time of all that it holds; None if it holds nothing."""
    checkpoint_seq: int | None
    """Place of the checkpoint that reading began with; None: at the beginning."""
    entries: int
    """Journal entries that were applied to it."""


async def export_state(
    store: ObjectStore,
    path: str | os.PathLike[str],
    *,
    at: datetime | None = None,
    transfers: int = 8,
) -> Exported:
    """Write the state as an SQLite file, which appears whole or not at all.

    The state as of a moment is what the journal holds before the first entry whose commit time
    is later. Commit times are those of the writers' clocks. A clock that jumped ahead therefore
    hides what came after the jump, until that time; nothing is hidden from ``at=None``.

    Args:
        store: Where journal and checkpoints are. Nothing is written to it.
        path: The file to make. It must not exist.
        at: The moment; an aware datetime. None: now, that is, all that is durable.
        transfers: Requests at the same time.

    Returns:
        What the file holds.

    Raises:
        InvalidArgument: The file exists, or `at` has no time zone.
        HistoryNotKept: What the state of that moment needs was collected, or the store is
            younger. The error says what the earliest moment is.
        CorruptStore: Something is damaged or missing; the message names it.
        IncompatibleStore: A newer taquba wrote it.
        StoreError: The store cannot be used.
        OSError: The file cannot be written.
    """
    at_ms = None if at is None else _milliseconds(at)
    path = os.path.abspath(os.fspath(path))
    if os.path.lexists(path):
        raise InvalidArgument(f"{path!r} exists: choose another file, or move it away")
    scratch = f"{path}.part-{os.getpid()}"
    os.close(os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        exported = await _Export(store, scratch, at_ms, transfers).run()
        await asyncio.to_thread(_publish, scratch, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)
    return exported


def _milliseconds(at: datetime) -> int:
    if not isinstance(at, datetime):
        raise wrong_type("at must be a datetime", at)
    if at.utcoffset() is None:
        raise InvalidArgument(
            f"at is {at.isoformat()}, without a time zone: say which one, for example "
            f"{at.isoformat()}+00:00"
        )
    at_ms = (at - _EPOCH) // timedelta(milliseconds=1)
    return max(at_ms, _FIRST_MS)  # east of UTC there are moments that UTC has no name for


def _publish(scratch: str, path: str) -> None:
    with open(scratch, "rb") as file:
        os.fsync(file.fileno())
    os.replace(scratch, path)


class _Overtaken(Exception):
    """What was being read was collected."""


class _Void(Exception):
    """This checkpoint was published so late that what it needs had been collected."""


class _Export:
    def __init__(self, store: ObjectStore, path: str, at_ms: int | None, transfers: int) -> None:
        self._store = store
        self._path = path
        self._at_ms = at_ms
        self._transfers = transfers
        self._skipped_void = False

    async def run(self) -> Exported:
        before: int | None = None
        while True:
            base = await self._base(before)
            self._skipped_void = before is not None
            try:
                return await self._from(base)
            except _Overtaken:
                before = None
            except _Void:
                assert base is not None
                before = base.position.seq

    async def _base(self, before: int | None) -> Checkpoint | None:
        if self._at_ms is None:
            return await newest_checkpoint(self._store)
        return await checkpoint_as_of(self._store, self._at_ms, before=before)

    async def _from(self, base: Checkpoint | None) -> Exported:
        os.truncate(self._path, 0)
        if base is not None:
            await self._download(base)
        connection = apsw.Connection(self._path)
        try:
            for pragma in ("journal_mode = MEMORY", "synchronous = OFF"):
                connection.execute(f"PRAGMA {pragma}").fetchall()
            if base is None:
                connection.execute(MODULES_TABLE)
            connection.execute("BEGIN")
            exported = await self._replay(connection, base)
            connection.execute("COMMIT")
            return exported
        except NO_ROOM as error:
            raise self._unwritable(error) from error
        except (apsw.NotADBError, apsw.CorruptError) as error:
            name = "the log" if base is None else f"checkpoint {base.position.seq}"
            raise CorruptStore(f"{name} is damaged: SQLite says {error}") from error
        finally:
            connection.close(True)

    async def _download(self, base: Checkpoint) -> None:
        contents = Contents.from_json(f"checkpoint {base.position.seq}", base.content)
        try:
            await ChunkStore(self._store, transfers=self._transfers).download(contents, self._path)
        except CorruptStore as error:
            if await self._is_gone(base):
                raise _Overtaken from error
            if await self._misses_chunks(contents) and await self._is_superseded(base):
                raise _Void from error
            raise

    async def _is_superseded(self, base: Checkpoint) -> bool:
        """Whether it may have appeared only after its chunks had been collected."""
        newest = await newest_checkpoint(self._store)
        assert newest is not None
        replaced = newest.position.epoch > base.position.epoch
        return replaced or await self._lacks_first_entry(base)

    async def _lacks_first_entry(self, base: Checkpoint) -> bool:
        """Whether what follows it is gone, as it is below the oldest checkpoint that is kept."""
        newest = await newest_checkpoint(self._store)
        if newest is None or newest.position.seq <= base.position.seq:
            return False
        async with aclosing(replay(self._store, base.position)) as log:
            try:
                await anext(log)
            except JournalGap as error:
                return error.seq == base.position.seq
        return False

    async def _misses_chunks(self, contents: Contents) -> bool:
        missing = contents.chunk_keys()
        async for info in self._store.list(CHUNK_PREFIX):
            missing.discard(info.key)
        return bool(missing)

    async def _replay(self, connection: apsw.Connection, base: Checkpoint | None) -> Exported:
        position = START if base is None else base.position
        committed_at_ms = None if base is None else base.as_of_ms
        tables = table_names(connection)
        entries = 0
        try:
            async with aclosing(replay(self._store, position)) as log:
                async for entry, after in log:
                    if self._is_later(entry):
                        if position is START:
                            raise _too_early(self._at_ms, entry.committed_at_ms)
                        if entry.kind is Kind.ORDINARY:
                            break
                    position = after
                    if entry.kind is Kind.ORDINARY:
                        name = f"journal entry {entry.seq}"
                        tables = self._apply(connection, tables, name, entry.body)
                        committed_at_ms = latest(committed_at_ms, entry.committed_at_ms)
                        entries += 1
                        await asyncio.sleep(0)
        except CorruptStore as error:
            gap = isinstance(error, JournalGap)
            if base is None:
                if gap:
                    await self._explain(error)
            elif await self._is_gone(base):
                raise _Overtaken from error
            elif gap and await self._lacks_first_entry(base):
                raise _Void from error
            raise
        await self._look_again(base)
        return Exported(
            position=position,
            committed_at_ms=committed_at_ms,
            checkpoint_seq=None if base is None else base.position.seq,
            entries=entries,
        )

    def _apply(
        self, connection: apsw.Connection, tables: frozenset[str], name: str, body: bytes
    ) -> frozenset[str]:
        try:
            return apply_body(connection, tables, name, body) or tables
        except CorruptStore as error:
            if isinstance(error.__cause__, NO_ROOM):
                raise self._unwritable(error.__cause__) from error
            raise

    def _unwritable(self, error: apsw.Error) -> OSError:
        return OSError(f"{self._path!r} cannot be written: {error}. Is the disk full?")

    def _is_later(self, entry: Entry) -> bool:
        return self._at_ms is not None and entry.committed_at_ms > self._at_ms

    async def _is_gone(self, base: Checkpoint) -> bool:
        return await read_checkpoint(self._store, base.position.seq) is None

    async def _look_again(self, base: Checkpoint | None) -> None:
        """What was collected is no tail, and a slow opener may have left a stray entry there."""
        if base is not None:
            gone = await self._is_gone(base)
        else:
            gone = self._at_ms is None and await newest_checkpoint(self._store) is not None
        if gone:
            raise _Overtaken

    async def _explain(self, gap: CorruptStore) -> None:
        """Why the log has a gap after its beginning, if that is no damage."""
        later: Checkpoint | None = None
        async for checkpoint in checkpoints(self._store):
            if self._at_ms is not None and checkpoint.as_of_ms > self._at_ms:
                later = checkpoint
                break
            if not self._skipped_void:
                raise _Overtaken from gap
        if later is not None:
            earliest = _datetime(later.as_of_ms)
            raise HistoryNotKept(
                f"the state as of {_readable(self._at_ms)} is not kept: the earliest is that of "
                f"{_readable(later.as_of_ms)}. The option retain_history keeps it longer",
                earliest,
            ) from gap


def _too_early(at_ms: int | None, first_ms: int) -> HistoryNotKept:
    return HistoryNotKept(
        f"there is no state as of {_readable(at_ms)}: the store was made at {_readable(first_ms)}",
        _datetime(first_ms),
    )


def _datetime(at_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=at_ms)


def _readable(at_ms: int | None) -> str:
    assert at_ms is not None
    return _datetime(at_ms).isoformat(timespec="milliseconds")
