"""Looking at journal entries one by one, where the chain cannot be followed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from taquba.database._survey import skipped
from taquba.database._verify_notes import Notes
from taquba.errors import CorruptStore
from taquba.journal import (
    JOURNAL_PREFIX,
    Entry,
    Kind,
    Position,
    contradiction,
    entry_key,
    read_entry,
    seq_of_key,
)
from taquba.objectstore import ObjectStore

__all__ = ["Apart"]

_AT_ONCE = 16


class Apart:
    """Looks at entries by themselves."""

    def __init__(
        self,
        store: ObjectStore,
        notes: Notes,
        was_collected: Callable[[int], Awaitable[bool]],
    ) -> None:
        """Args:
        store: Where they are.
        notes: Where damages go.
        was_collected: Tells whether an absent entry was deleted rightly.
        """
        self._store = store
        self._notes = notes
        self._was_collected = was_collected

    async def read(
        self, position: Position, place: int, end: int | None, *, whole: bool = True
    ) -> None:
        """Look at the entries between a damage and the next start, each by itself.

        Args:
            position: As far as the log could be followed.
            place: What is damaged.
            end: Where the next start is; None if there is none.
            whole: All must be there, as far as another one, or `end`, says that they were.
        """
        unused = skipped(position.epochs)
        for checkpoint in self._notes.checkpoints.values():
            unused |= skipped(checkpoint.position.epochs)
        there: set[int] = set()
        damaged: set[int] = set()
        known = end or 0
        after = entry_key(place - 1) if place > 0 else ""
        async for info in self._store.list(JOURNAL_PREFIX, after):
            seq = seq_of_key(info.key)
            if seq is None:
                continue
            if seq == place:
                there.add(seq)
                continue
            if end is not None and seq >= end:
                break
            there.add(seq)
            if seq in unused:
                continue
            entry = await self.entry(seq)
            if isinstance(entry, CorruptStore):
                self._notes.found(entry.key, str(entry))
                damaged.add(seq)
            elif entry is not None:
                known = max(known, entry.durable_before) if end is None else known
                if entry.kind is Kind.EPOCH:
                    unused |= set(range(seq + 1, seq + entry.window))
        if whole:
            await self._find_gaps(
                position, place, known, there, unused, damaged if end is None else None
            )

    async def _find_gaps(
        self,
        position: Position,
        place: int,
        end: int,
        there: set[int],
        unused: set[int],
        damaged: set[int] | None,
    ) -> None:
        """Name what is missing between a damage and `end`.

        With `damaged`, nothing is known of the epochs there: each entry that cannot be read may
        have been an epoch entry, behind which a window is skipped.
        """
        window = position.window
        doubtful = 0 if damaged is None else place + window
        before = place
        for seq in [*sorted(there | unused), end]:
            first = before + 1
            if damaged is not None and before in damaged:
                doubtful = max(doubtful, before + window)
            before = max(before, seq)
            if not first < seq <= end or (first == place + 1 and place not in there):
                continue
            if first < doubtful:
                doubtful = max(doubtful, seq - 1 + window)
                continue
            if await self._was_collected(first):
                return
            more = seq - first - 1
            self._notes.found(
                entry_key(first),
                f"it is missing{f', and so are the {more:,} after it' if more else ''}; later ones "
                "say that they were stored",
            )

    async def examine_epochs(self, position: Position, walked: set[int]) -> None:
        """Look at the epoch entries that the log remembers, and that were not walked."""
        places = [position, *(other.position for other in self._notes.checkpoints.values())]
        known = {mark.seq: (mark, place.window) for place in places for mark in place.epochs}
        remaining = [known[seq] for seq in sorted(known.keys() - walked)]
        for start in range(0, len(remaining), _AT_ONCE):
            batch = remaining[start : start + _AT_ONCE]
            entries = await asyncio.gather(*(self.entry(mark.seq) for mark, _ in batch))
            for (mark, window), entry in zip(batch, entries, strict=True):
                key = entry_key(mark.seq)
                if isinstance(entry, CorruptStore):
                    self._notes.found(key, str(entry))
                elif not self._notes.complained_of(key) and (
                    told := contradiction(mark, window, entry)
                ):
                    self._notes.found(key, told)

    async def entry(self, seq: int) -> Entry | CorruptStore | None:
        """An entry, or what is wrong with it; None if it is not there."""
        try:
            return await read_entry(self._store, seq)
        except CorruptStore as error:
            return error
