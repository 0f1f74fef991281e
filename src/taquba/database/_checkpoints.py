"""Taking checkpoints beside the work."""

# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import copy
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import apsw

from taquba.database._chunks import ChunkStore, Contents
from taquba.database._pace import Pace
from taquba.database._scratch import scratch_folder
from taquba.errors import StoreError, TaqubaError
from taquba.journal import Checkpoint, Position, publish_checkpoint

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.database._collection import Collector
    from taquba.database._config import DatabaseConfig
    from taquba.database._state import State
    from taquba.journal import Journal
    from taquba.objectstore import ObjectStore

__all__ = ["Checkpointer"]

logger = logging.getLogger("taquba.database")

_PAUSE_AFTER_ERROR = 10.0
"""Seconds until a checkpoint that failed is tried again."""
_SMALL_SHARE = 16
"""Many small entries justify a checkpoint with this much less of the usual share."""


def latest(one: int | None, other: int | None) -> int | None:
    """The later of two times, either of which may not be known."""
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


class _Copied(NamedTuple):
    """A finished copy: its place in the journal, and what was counted at that moment."""

    position: Position
    entries: int
    bytes: int
    modules: dict[str, int]
    committed_at_ms: int | None


class _Copy:
    """A copy of the database, made a few pages at a time, that ends exactly at a seal.

    What is committed to pages that were copied before is carried over by SQLite. So the copy
    is the state at the moment of its last step, and that has to be the moment of a seal.
    """

    def __init__(self, state: State, path: str, pages_per_step: int, clock: Clock) -> None:
        self._path = path
        self._pace = Pace(clock, pages_per_step)
        self.copied: _Copied | None = None
        self.error: OSError | None = None
        self.moved = asyncio.Event()
        """Set after each step, and after an error."""
        try:
            self._destination = apsw.Connection(path)
            for pragma in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
                self._destination.execute(f"PRAGMA {pragma}").fetchall()
            self._backup = self._destination.backup("main", state.connection, "main")
        except apsw.Error as error:
            raise self._failed(error) from error

    def step(self) -> bool:
        """Copy some pages; no transaction may be open. Whether that was all.

        Does not raise, since it is called amid a commit, which a full disk must not stop.
        """
        if self.copied is not None or self.error is not None:
            return False
        self.moved.set()
        try:
            return self._pace.turn(self._backup.step, lambda: self._backup.remaining)
        except apsw.Error as error:
            self.error = self._failed(error)
            self.error.__cause__ = error
            return False

    def _failed(self, error: apsw.Error) -> OSError:
        return OSError(
            f"the database could not be copied to {self._path!r}: {error}. Is the disk full? "
            "DatabaseConfig(scratch=…) chooses another folder"
        )

    def close(self) -> None:
        self._backup.close(True)
        self._destination.close(True)


class Checkpointer:
    """Takes checkpoints when they are due."""

    def __init__(
        self,
        store: ObjectStore,
        state: State,
        journal: Journal,
        *,
        clock: Clock,
        config: DatabaseConfig,
        chunks: ChunkStore,
        collector: Collector,
        base: Checkpoint | None,
        entries: int,
        size: int,
        committed_at_ms: int | None,
    ) -> None:
        self._store = store
        self._state = state
        self._journal = journal
        self._clock = clock
        self._config = config
        self._chunks = chunks
        self._collector = collector
        self._copy: _Copy | None = None
        self._due = asyncio.Event()
        self._taking = asyncio.Lock()
        self.copying = asyncio.Lock()
        """Held while the database is copied; whoever holds it may move the database, too."""
        self._takes: set[asyncio.Task[None]] = set()
        self._ended: TaqubaError | None = None
        self.entries = entries
        """Journal entries since the last checkpoint."""
        self.bytes = size
        """Bytes of those entries."""
        self.committed_at_ms = committed_at_ms
        """The latest commit time of all entries ever."""
        self.seq = None if base is None else base.position.seq
        """Place of the newest checkpoint."""
        self.taken = 0
        self.on_taken: Callable[[float, int], None] | None = None
        """Told how long a checkpoint took, in seconds, and how many bytes were stored."""
        self._note_due()

    @property
    def chunks_uploaded(self) -> int:
        return self._chunks.uploaded

    @property
    def bytes_uploaded(self) -> int:
        return self._chunks.uploaded_bytes

    @property
    def chunks_reused(self) -> int:
        return self._chunks.reused

    def sealed(self, position: Position, size: int) -> None:
        """An entry was sealed, and the state is exactly `position` now."""
        self.entries += 1
        self.bytes += size
        self.committed_at_ms = latest(self.committed_at_ms, self._journal.committed_at_ms)
        if self._copy is not None:
            self.clean(position)
        elif self.entries % 16 == 0 or self.bytes >= self._config.checkpoint_bytes:
            self._note_due()

    def clean(self, position: Position) -> None:
        """Nothing is open, and the state is exactly `position` now."""
        running = self._copy
        if running is not None and running.step():
            running.copied = _Copied(
                position, self.entries, self.bytes, self._state.versions(), self.committed_at_ms
            )

    def failed(self, error: TaqubaError) -> None:
        """The journal stopped: so does every checkpoint that is being taken."""
        if self._ended is None:
            self._ended = error
        for task in self._takes:
            task.cancel()

    async def close(self, error: TaqubaError) -> None:
        """End every checkpoint that is being taken, with this error, and wait until they have."""
        self.failed(error)
        if self._takes:
            await asyncio.wait(self._takes)

    def _note_due(self) -> None:
        if self._taking.locked():
            return  # what was counted for the one under way still counts until it is stored
        config = self._config
        share = max(self._state.size() * config.checkpoint_share, config.checkpoint_bytes)
        many = self.entries >= config.checkpoint_entries
        if self.bytes >= share or (many and self.bytes >= share / _SMALL_SHARE):
            self._due.set()

    async def run(self) -> None:
        """Take checkpoints when they are due, until cancelled."""
        while True:
            await self._due.wait()
            try:
                await self.take()
            except (StoreError, OSError) as error:
                logger.warning("a checkpoint failed and will be tried again: %s", error)
                await self._clock.sleep(_PAUSE_AFTER_ERROR)
                self._due.set()
            except TaqubaError as error:
                if self._ended is None:
                    logger.error("checkpoints stop, since one failed for good: %s", error)
                return
            except Exception:
                # Whatever it is: without checkpoints, reopening would take ever longer.
                logger.exception("a checkpoint failed and will be tried again")
                await self._clock.sleep(_PAUSE_AFTER_ERROR)
                self._due.set()

    async def take(self) -> None:
        """Take a checkpoint of now.

        Raises:
            StoreError, OSError: It could not be stored; nothing depends on it.
            Fenced, Closed: The journal stopped.
        """
        if self._ended is not None:
            raise copy.copy(self._ended)
        task = asyncio.ensure_future(self._take_alone())
        self._takes.add(task)
        try:
            await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._ended is not None and caller is not None and not caller.cancelling():
                raise copy.copy(self._ended) from None
            raise
        finally:
            self._takes.discard(task)

    async def _take_alone(self) -> None:
        async with self._taking:
            await self._take()
        self._note_due()

    async def _take(self) -> None:
        self._due.clear()
        if self._state.come_to_rest() and self._journal.position.seq == self.seq:
            return
        began, stored = self._clock.monotonic(), self.bytes_uploaded
        async with scratch_folder(self._config.scratch) as folder:
            path = os.path.join(folder, "checkpoint.db")
            async with self.copying:
                copied = await self._make_copy(path)
            if copied.position.seq == self.seq:
                return
            contents = await self._chunks.upload(
                path,
                epoch=self._journal.epoch,
                chunk_size=self._config.chunk_size,
                modules=copied.modules,
            )
        await self._journal.wait_stored(copied.position.seq)
        checkpoint = Checkpoint(
            position=copied.position,
            created_at_ms=self._clock.now_ms(),
            writer=self._journal.writer_id,
            content=contents.to_json(),
            committed_at_ms=copied.committed_at_ms,
        )
        self._collector.will_publish(copied.position.seq, contents)
        published = await publish_checkpoint(self._store, checkpoint)
        if published.content == checkpoint.content:
            self._chunks.published()
        else:
            # An attempt that seemed to fail had stored it, and it consists of other packs.
            self._chunks.forget()
            contents = Contents.from_json(f"checkpoint {copied.position.seq}", published.content)
        self.entries -= copied.entries
        self.bytes -= copied.bytes
        self.seq = copied.position.seq
        self.taken += 1
        self._collector.published(published, contents)
        if self.on_taken is not None:
            self.on_taken(self._clock.monotonic() - began, self.bytes_uploaded - stored)

    async def _make_copy(self, path: str) -> _Copied:
        running = _Copy(self._state, path, self._config.pages_per_step, self._clock)
        self._copy = running
        try:
            while running.copied is None:
                if running.error is not None:
                    raise running.error
                running.moved.clear()
                if self._state.come_to_rest():
                    self.clean(self._journal.position)
                    await self._clock.sleep(0)
                elif self._state.in_transaction:
                    await self._clock.sleep(0)  # a seal need not be on its way
                else:
                    await running.moved.wait()  # the next seal takes it on
            return running.copied
        finally:
            self._copy = None
            running.close()
