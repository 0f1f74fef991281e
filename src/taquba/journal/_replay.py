"""Reading the log: many requests at a time, applied strictly in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

from taquba.errors import ObjectNotFound
from taquba.journal._entry import Entry, Kind, decode_entry
from taquba.journal._position import (
    JOURNAL_PREFIX,
    JournalGap,
    Position,
    advance,
    entry_key,
    seq_of_key,
)
from taquba.objectstore import ObjectInfo, ObjectStore

__all__ = ["Prefetch", "is_settled", "list_from", "read_along", "replay"]

_AT_ONCE = 1000
"""Listed objects that are looked at before the event loop goes on."""


async def replay(
    store: ObjectStore,
    position: Position,
    *,
    settle_tail: bool = True,
    prefetch: int = 64,
    prefetch_bytes: int = 64 * 1024 * 1024,
) -> AsyncGenerator[tuple[Entry, Position], None]:
    """The entries from `position` on, each with the place after it; ends at the tail.

    The tail is the first absent entry. A dead writer may have left entries behind it, fewer
    than a window away, which never counted; anything else behind it proves that the absent
    entry was there once.

    Close the iterator when you leave it early (`contextlib.aclosing`).

    Args:
        store: Where to read.
        position: Where to begin.
        settle_tail: Prove that the tail is one. Without it an up-to-date reader that polls
            pays a single GET, but does not learn that collection overtook it.
        prefetch: Entries fetched at the same time.
        prefetch_bytes: Bytes fetched ahead.

    Raises:
        JournalGap: The first absent entry existed: collected meanwhile (then there is a newer
            checkpoint), or lost.
        CorruptStore: An entry is damaged, or does not continue the log.
        IncompatibleStore: A newer taquba wrote an entry.
    """
    if not settle_tail and not await _exists(store, position.seq):
        return
    while True:
        moved = False
        listed = await list_from(store, position.seq)
        ahead = Prefetch(store, listed, prefetch, prefetch_bytes)
        async with aclosing(read_along(ahead, position)) as entries:
            async for entry, after in entries:
                position, moved = after, True
                yield entry, after
        # Having moved, look again: what was stored meanwhile is not in that listing.
        if not moved and (not settle_tail or await is_settled(store, position, listed)):
            return


async def read_along(
    ahead: Prefetch, position: Position
) -> AsyncGenerator[tuple[Entry, Position], None]:
    """The entries from `position` on, as far as they are listed without a gap."""
    try:
        while ahead.has(position.seq):
            data = await ahead.take(position.seq)
            if data is None:
                raise _gap(position.seq, "it was listed, and is gone")
            entry = decode_entry(entry_key(position.seq), data)
            position = advance(position, entry)
            ahead.skip_to(position.seq)
            yield entry, position
    finally:
        await ahead.close()


async def is_settled(store: ObjectStore, position: Position, listed: list[ObjectInfo]) -> bool:
    """Whether `position`, absent from a listing that began there, is the tail.

    `False` means that it is there by now.

    Raises:
        JournalGap: It is absent, and must have existed.
    """
    evidence = await _evidence_of_more(store, position, listed)
    if evidence is None:
        return True
    # A living writer may have stored it between our requests: then that is the evidence.
    if not await _exists(store, position.seq):
        raise _gap(position.seq, evidence)
    return False


async def _evidence_of_more(
    store: ObjectStore, position: Position, later: list[ObjectInfo]
) -> str | None:
    """Why the absent entry at `position` must have existed; `None` if it need not have.

    A writer has at most a window of entries in flight, so when it dies, entries may be left
    behind the first that did not land; a takeover fences them off. Each of them says up to
    where its writer had seen the log acknowledged. An opener that died, too, may have left
    the epoch entry that it created ahead.
    """
    if not later:
        return None
    last = later[-1].key
    number = seq_of_key(last)
    if number is None or number >= position.seq + position.window:
        return f"{last!r} is there, {position.window} or more entries later"
    leftovers = Prefetch(store, later, len(later), sum(info.size for info in later) + 1)
    try:
        for info in later:
            seq = seq_of_key(info.key)
            data = None if seq is None else await leftovers.take(seq)
            if data is None:
                continue
            entry = decode_entry(info.key, data)
            if entry.seq != seq:
                return f"{info.key!r} says that it is number {entry.seq}"
            if entry.ahead and entry.epoch == position.epoch + 1:
                continue
            if entry.kind is Kind.EPOCH or entry.epoch != position.epoch:
                return f"{info.key!r} of epoch {entry.epoch} follows epoch {position.epoch}"
            if entry.durable_before > position.seq:
                return f"{info.key!r} says that everything before {entry.durable_before} was stored"
    finally:
        await leftovers.close()
    return None


def _gap(seq: int, evidence: str) -> JournalGap:
    return JournalGap(
        f"journal entry {entry_key(seq)!r} is missing: {evidence}. Something other than taquba "
        f"deleted it; restore it from a backup or an older object version",
        seq,
    )


async def _exists(store: ObjectStore, seq: int) -> bool:
    try:
        await store.get(entry_key(seq))
    except ObjectNotFound:
        return False
    return True


async def list_from(store: ObjectStore, seq: int) -> list[ObjectInfo]:
    """The entries from `seq` on, ascending."""
    before = entry_key(seq - 1) if seq else ""
    found: list[ObjectInfo] = []
    async for info in store.list(JOURNAL_PREFIX, before):
        if seq_of_key(info.key) is not None:
            found.append(info)
            if len(found) % _AT_ONCE == 0:
                await asyncio.sleep(0)  # a store that answers at once must not hold up the loop
    return found


class Prefetch:
    """Fetches listed entries ahead of their use, within bounds; ascending only."""

    def __init__(
        self, store: ObjectStore, listed: list[ObjectInfo], limit: int, limit_bytes: int
    ) -> None:
        self._store = store
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._plan = deque(
            (seq, info.size) for info in listed if (seq := seq_of_key(info.key)) is not None
        )
        self._tasks: dict[int, tuple[asyncio.Task[bytes | None], int]] = {}
        self._bytes = 0
        self._dropped: list[asyncio.Task[bytes | None]] = []

    def has(self, seq: int) -> bool:
        """Whether `seq`, the lowest one still wanted, was listed."""
        return seq in self._tasks or (bool(self._plan) and self._plan[0][0] == seq)

    async def take(self, seq: int) -> bytes | None:
        """The bytes of `seq`, the lowest one still wanted; `None` if it is gone."""
        self._fill()
        task, size = self._tasks[seq]
        data = await task
        del self._tasks[seq]
        self._bytes -= size
        return data

    def skip_to(self, seq: int) -> None:
        """Forget everything before `seq`."""
        while self._plan and self._plan[0][0] < seq:
            self._plan.popleft()
        for skipped in [early for early in self._tasks if early < seq]:
            task, size = self._tasks.pop(skipped)
            self._bytes -= size
            task.cancel()
            self._dropped.append(task)

    async def drop_absent(self) -> None:
        """Fetch all within the limit now; forget the first that is absent, and all behind it."""
        self._fill()
        self._plan.clear()
        for seq, (task, _) in list(self._tasks.items()):
            if await task is None:
                for later in [other for other in self._tasks if other >= seq]:
                    self._dropped.append(self._tasks.pop(later)[0])
                return

    async def close(self) -> None:
        """End every request."""
        tasks = [task for task, _ in self._tasks.values()] + self._dropped
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    def _fill(self) -> None:
        while self._plan and len(self._tasks) < self._limit:
            seq, size = self._plan[0]
            if self._tasks and self._bytes + size > self._limit_bytes:
                break
            self._plan.popleft()
            self._tasks[seq] = (asyncio.ensure_future(self._fetch(seq)), size)
            self._bytes += size

    async def _fetch(self, seq: int) -> bytes | None:
        try:
            return await self._store.get(entry_key(seq))
        except ObjectNotFound:
            return None
