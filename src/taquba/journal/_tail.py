"""Reading on in a log that somebody else writes, without writing anything.

A reader at a place (seq *s*, epoch *e*, digest *d*) takes what lies at *s* for the next entry.
Why that never shows what does not count:

*Under a key that was never deleted*, create-if-absent lets one object win, once and for all.

- An ordinary entry at *s* that continues *d* was sealed by the writer of epoch *e*, since only
  that writer's digests lead to *d*, and it seals each seq once. It would not count only if a
  takeover's epoch entry lay at some *g* ≤ *s* of the same log. But a reader comes to *s* through
  each seq before it, so it would have met that entry at *g* and jumped; and at *s* itself only
  one of the two can be. Hence a late entry of a fenced writer either lands on the path, before
  any epoch entry there (then the opener finds it, reads on, and it counts), or it lands in a
  window that is skipped, where no reader looks.
- An epoch entry *ahead* lies on the path or not in the same way: if the log comes to its seq
  through all entries before, the old writer runs into it, and it counts. If the log is taken
  over before that seq, the window skipped there covers it, since ahead is less than a window.
  Seeing it early means nothing: nobody looks at it before the path leads there.
- An entry behind one that is absent is never shown: the reader waits at the absent one.

*Collection deletes keys*, so an absent key may be no tail, and a key may be created again.

- Ordinary entries only come back as themselves (a request that was sent twice): true all the
  same. A slow opener may create an **epoch entry** at a seq that was collected. It will find
  that its takeover was void, but the entry stays. So on meeting an epoch entry at *s* a reader
  looks for checkpoints beyond *s*. None: then nothing at *s* was ever deleted, and the entry is
  the first and only object there. One: then its table of epochs says whether the log has an
  epoch entry at *s*, and those are never deleted.
- If *s* is absent, and after that no checkpoint beyond *s* is listed, then *s* had not been
  collected, since only a checkpoint beyond it permits that, and the newest one always stays. So
  *s* was the tail, and everything that was acknowledged before has been read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from taquba.errors import CorruptStore
from taquba.journal._checkpoint import (
    CHECKPOINT_PREFIX,
    Checkpoint,
    checkpoint_key,
    read_checkpoint,
)
from taquba.journal._entry import Entry, Kind, decode_entry
from taquba.journal._position import JournalGap, Position, advance, entry_key, seq_of_key
from taquba.journal._replay import Prefetch, list_from
from taquba.objectstore import ObjectInfo, ObjectStore

__all__ = ["Overtaken", "Tail"]

_GROWTH = 4
"""How much wider the next guess is when all that was guessed was there."""
_MAX_LOOKS = 10
_LARGE = 1024 * 1024


class Overtaken(JournalGap):
    """The log was collected beyond a reader's place; `checkpoint` is where it can go on."""

    def __init__(self, message: str, seq: int, checkpoint: Checkpoint) -> None:
        super().__init__(message, seq)
        self.checkpoint = checkpoint

    def __reduce__(self) -> tuple[type[Overtaken], tuple[str, int, Checkpoint]]:  # type: ignore[override]
        return type(self), (str(self), self.seq, self.checkpoint)


class Tail:
    """Looks for the next entries of a log, time and again, with few requests.

    It asks for as many entries at once as it found the last time, and one more: an idle log
    costs one request a look, and a busy one is read in one or two round trips. A backlog is
    listed, and then fetched many at a time.
    """

    def __init__(
        self, store: ObjectStore, *, prefetch: int = 64, prefetch_bytes: int = 64 * 1024 * 1024
    ) -> None:
        """Args:
        store: Where the log is.
        prefetch: Entries fetched at the same time.
        prefetch_bytes: Bytes fetched ahead.
        """
        self._store = store
        self._prefetch = prefetch
        self._prefetch_bytes = prefetch_bytes
        self._expected = prefetch  # to begin with, a listing
        self._found = 0
        self._largest = 0
        self._vouching: Checkpoint | None = None
        self.at_tail = True
        """Whether the last look ended at an absent entry, rather than at the end of a listing."""
        self.behind = 0
        """Entries that are known to be there, and were not given out yet."""

    async def entries(self, position: Position) -> AsyncGenerator[tuple[Entry, Position], None]:
        """What is there from `position` on, in order, each with the place after it.

        Whatever was acknowledged before the call is among it, unless the log was collected
        beyond `position`. Close the iterator when you leave it early.

        Raises:
            Overtaken: The log was collected beyond `position`.
            JournalGap: An entry that was listed is gone.
            CorruptStore: An entry is damaged, or does not continue the log.
            IncompatibleStore: A newer taquba wrote it.
        """
        width = self._expected + 1 if self.at_tail else 1
        self.at_tail = False
        while not self.at_tail:
            start = position.seq
            listing = width >= self._prefetch
            if listing:
                listed = await list_from(self._store, start)
                self.behind = len(listed)
            else:
                listed = self._guess(start, width)
            ahead = Prefetch(self._store, listed, self._prefetch, self._prefetch_bytes)
            async with aclosing(self._along(ahead, position, listed=listing)) as entries:
                async for entry, after in entries:
                    position = after
                    self._found += 1
                    self.behind = max(0, self.behind - 1)
                    yield entry, after
            if listing:
                self.behind = 0
                if position.seq != start:
                    return  # as of the listing that was all
                self.at_tail = True
            width *= _GROWTH
        self._expected, self._found = self._found, 0

    def _guess(self, seq: int, width: int) -> list[ObjectInfo]:
        size = self._largest
        return [ObjectInfo(entry_key(seq + offset), size) for offset in range(width)]

    async def _along(
        self, ahead: Prefetch, position: Position, *, listed: bool
    ) -> AsyncGenerator[tuple[Entry, Position], None]:
        largest = 0
        try:
            while ahead.has(position.seq):
                key = entry_key(position.seq)
                data = await ahead.take(position.seq)
                if data is None:
                    if listed:
                        raise JournalGap(
                            f"journal entry {key!r} was listed, and is gone", position.seq
                        )
                    self.at_tail = True
                    return
                largest = max(largest, len(data))
                if len(data) > _LARGE:  # digests take their time, and let others run meanwhile
                    entry = await asyncio.to_thread(decode_entry, key, data)
                else:
                    entry = decode_entry(key, data)
                after = advance(position, entry)
                if entry.kind is Kind.EPOCH:
                    await self._vouch_for(entry)
                position = after
                ahead.skip_to(position.seq)
                yield entry, after
        finally:
            if largest:
                self._largest = largest
            await ahead.close()

    async def _vouch_for(self, epoch_entry: Entry) -> None:
        """Make sure that an epoch entry that was met is part of the log."""
        seq = epoch_entry.seq
        newest = self._vouching
        if newest is None or newest.position.seq <= seq:
            newest = self._vouching = await self.beyond(seq)
        if newest is None or any(
            mark.seq == seq and mark.epoch == epoch_entry.epoch for mark in newest.position.epochs
        ):
            return
        raise Overtaken(
            f"journal entry {entry_key(seq)!r} was created after the log had been collected",
            seq,
            newest,
        )

    async def beyond(self, seq: int) -> Checkpoint | None:
        """The newest checkpoint that includes entry `seq`; `None` if there is none."""
        newest = -1
        for _ in range(_MAX_LOOKS):
            found = [
                number
                async for info in self._store.list(CHECKPOINT_PREFIX, checkpoint_key(seq))
                if (number := seq_of_key(info.key, CHECKPOINT_PREFIX, ".json")) is not None
            ]
            if not found:
                return None
            newest = max(found)
            checkpoint = await read_checkpoint(self._store, newest)
            if checkpoint is not None:
                return checkpoint
            # It was collected between the two requests, so there must be a newer one.
        raise CorruptStore(
            f"checkpoint {checkpoint_key(newest)!r} is damaged: it is listed, and yet cannot be "
            f"read. Restore the object from a backup or an older object version",
            key=checkpoint_key(newest),
        )
