"""Opening the log for writing, so that whoever wrote it before cannot any more.

A writer reads the log to its tail, and creates an *epoch entry* there. Older writers run
into it, and what they still have in flight lands in the window that it skips.

A slow opener may create its entry where the log was long collected, so that the absent key
was no tail at all. Therefore it looks at the newest checkpoint again, after its entry landed:
one that says otherwise makes the takeover void. (Nothing is lost by the stray entry: it lies
before every place that anybody reads from.) It also looks before, so that a stray entry can
never lead the next opener further astray.

The tail of a log in full use moves on before an entry created there arrives, time and again.
Then the opener creates an epoch entry *ahead*, in the path of the other writer, and reads on
until the log gets there. If it never does, because that writer died, the log is taken over at
its tail as usual. Ahead is less than a window away, so that any takeover before that place
skips it, and an entry created ahead counts at the place that it was made for, or never.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum, auto

from taquba.clock import Clock
from taquba.errors import CorruptStore, ObjectExists, ObjectNotFound, StoreUnavailable
from taquba.journal._checkpoint import list_checkpoints, newest_checkpoint, read_checkpoint
from taquba.journal._config import JournalConfig
from taquba.journal._entry import Entry, Kind, decode_entry, encode_entry
from taquba.journal._machine import StateMachine
from taquba.journal._position import START, Position, advance, entry_key
from taquba.journal._replay import Prefetch, is_settled, list_from, read_along
from taquba.journal._settle import create_or_read
from taquba.objectstore import ObjectInfo, ObjectStore

__all__ = ["place_ahead", "second_look", "take_over"]

logger = logging.getLogger("taquba.journal")

_PASSES = 3
"""Listings after which a log that still moves is met ahead of its tail."""
_PROBE_WINDOWS = 4
"""How far a moving log is read at a time; its writer moves up to two windows meanwhile."""
_PROBE_MAX = 256


@dataclass(slots=True)
class _Trail:
    """The places that a reader came through, from the checkpoint that it began with."""

    position: Position
    base: int
    digests: dict[int, bytes] = field(default_factory=dict[int, bytes])

    def go(self, position: Position) -> None:
        self.position = position
        self.digests[position.seq] = position.digest


class _End(Enum):
    """Where reading ended."""

    TAIL = auto()
    MOVING = auto()
    """It might go on for ever: another process is writing."""
    OURS = auto()
    """At an epoch entry of our own."""


async def take_over(
    store: ObjectStore,
    machine: StateMachine,
    *,
    clock: Clock,
    config: JournalConfig,
    writer: bytes,
    metadata: bytes,
) -> Position:
    """Bring `machine` to the tail and make `writer` the owner of what follows.

    Returns:
        The place after the writer's own epoch entry.
    """
    opening = _Opening(store, machine, clock, config, writer, metadata)
    while True:
        position = await opening.attempt()
        if position is not None:
            return position
        logger.info("the journal was collected while it was read: starting over")


class _Opening:
    def __init__(
        self,
        store: ObjectStore,
        machine: StateMachine,
        clock: Clock,
        config: JournalConfig,
        writer: bytes,
        metadata: bytes,
    ) -> None:
        self._store = store
        self._machine = machine
        self._clock = clock
        self._config = config
        self._writer = writer
        self._metadata = metadata
        self._trail = _Trail(START, 0)
        self._made: set[bytes] = set()
        """Digests of our epoch entries. A writer id alone does not show that one is ours:
        a clock with a fixed seed gives every writer the same."""

    async def attempt(self) -> Position | None:
        """The place after our epoch entry, or `None`: start over from a newer checkpoint."""
        checkpoint = await newest_checkpoint(self._store)
        position = START if checkpoint is None else checkpoint.position
        trail = self._trail = _Trail(position, position.seq)
        try:
            await self._machine.restore(checkpoint)
            while True:
                end = await self._read()
                if end is not _End.OURS:
                    if not await _first_look(self._store, trail):
                        return None
                    if end is _End.MOVING and trail.position.epoch:
                        end = await self._meet_ahead()
                    elif await self._create_at_tail():
                        end = _End.OURS
                if end is _End.OURS:
                    return trail.position if await second_look(self._store, trail) else None
        except CorruptStore:
            if await _is_on_trail(self._store, trail):
                raise
            return None

    async def _read(self) -> _End:
        """Read on, to the tail if it stands still."""
        for _ in range(_PASSES):
            start = self._trail.position.seq
            listed = await list_from(self._store, start)
            ahead = Prefetch(
                self._store, listed, self._config.prefetch, self._config.prefetch_bytes
            )
            if await self._apply(ahead):
                return _End.OURS
            position = self._trail.position
            if position.seq == start and await is_settled(self._store, position, listed):
                return _End.TAIL
        return _End.MOVING

    async def _apply(self, ahead: Prefetch) -> bool:
        """Apply what is listed; whether that ended at an epoch entry of our own."""
        async with aclosing(read_along(ahead, self._trail.position)) as entries:
            async for entry, after in entries:
                self._trail.go(after)
                if self._is_ours(entry):
                    return True
                if entry.kind is Kind.EPOCH:
                    self._machine.check(entry.body)
                else:
                    self._machine.apply(entry)
        return False

    def _is_ours(self, entry: Entry) -> bool:
        return entry.kind is Kind.EPOCH and entry.digest in self._made

    async def _create_at_tail(self) -> bool:
        """Whether our epoch entry now is where the tail was."""
        tail = self._trail.position
        key = entry_key(tail.seq)
        data = self._epoch_entry(tail, tail.seq)
        attempt = 0
        while True:
            try:
                if await create_or_read(self._store, key, data) is not None:
                    return False
                self._trail.go(advance(tail, decode_entry(key, data)))
                return True
            except (StoreUnavailable, ObjectNotFound) as error:
                attempt += 1
                if attempt >= self._config.open_attempts:
                    raise StoreUnavailable(
                        f"opening was given up: {key!r} could not be created in {attempt} "
                        f"attempts: {error}",
                        operation="create",
                        key=key,
                    ) from error
            bound = self._config.first_retry_delay * 2.0 ** min(attempt, 60)
            bound = min(bound, self._config.max_retry_delay)
            await self._clock.sleep(self._clock.random() * bound)

    async def _meet_ahead(self) -> _End:
        """Create epoch entries in the path of a moving log, until it is ours or stands still."""
        trail = self._trail
        waiting_at = -1
        while True:
            before = trail.position
            if await self._apply(await self._probe(before)):
                return _End.OURS
            position = trail.position
            if position.seq == before.seq or position.epoch != before.epoch:
                return _End.MOVING  # it stands still, or somebody else took it over
            if position.seq <= waiting_at:
                continue
            ahead_at = place_ahead(position)
            data = self._epoch_entry(position, ahead_at)
            try:
                await self._store.create(entry_key(ahead_at), data)
            except (ObjectExists, StoreUnavailable):
                continue  # too late, or unknown: reading on tells
            waiting_at = ahead_at

    async def _probe(self, position: Position) -> Prefetch:
        """The next entries of a moving log, without the time that a listing takes."""
        count = min(position.window * _PROBE_WINDOWS, _PROBE_MAX)
        near = [ObjectInfo(entry_key(position.seq + offset), 0) for offset in range(count)]
        probe = Prefetch(self._store, near, count, 1)
        try:
            await probe.drop_absent()
        except BaseException:
            await probe.close()
            raise
        return probe

    def _epoch_entry(self, position: Position, seq: int) -> bytes:
        ahead = seq != position.seq
        data, digest = encode_entry(
            kind=Kind.EPOCH,
            epoch=position.epoch + 1,
            seq=seq,
            writer=self._writer,
            previous=bytes(32) if ahead else position.digest,
            committed_at_ms=self._clock.now_ms(),
            window=position.window or self._config.window,
            durable_before=position.seq,
            body=self._metadata,
            ahead=ahead,
        )
        self._made.add(digest)
        return data


def place_ahead(position: Position) -> int:
    """As far ahead as any takeover at or after `position` is sure to skip."""
    return position.seq + position.window - 1


async def _first_look(store: ObjectStore, trail: _Trail) -> bool:
    return await _is_on_trail(store, trail)


async def second_look(store: ObjectStore, trail: _Trail) -> bool:
    """Whether the place of the epoch entry, which landed, was the tail of the log."""
    return await _is_on_trail(store, trail)


async def _is_on_trail(store: ObjectStore, trail: _Trail) -> bool:
    """Whether no checkpoint contradicts what was read.

    A checkpoint that is newer than the one the reader began with either lies on its trail,
    or shows that the reader followed a log that is gone.
    """
    while True:
        seqs = await list_checkpoints(store)
        if not seqs or seqs[-1] <= trail.base:
            return True
        digest = trail.digests.get(seqs[-1])
        if digest is None:
            return False
        newest = await read_checkpoint(store, seqs[-1])
        if newest is not None:
            return newest.position.digest == digest
