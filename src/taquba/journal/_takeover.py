"""Opening the log for writing, so that whoever wrote it before cannot any more.

A writer reads the log to its tail, and creates an *epoch entry* there. Older writers run
into it, and what they still have in flight lands in the window that it skips.

A slow opener may create its entry where the log was long collected, so that the absent key
was no tail at all. Therefore it looks at the newest checkpoint again, after its entry landed:
one that says otherwise makes the takeover void. (Nothing is lost by the stray entry: it lies
before every place that anybody reads from.) It also looks before, so that a stray entry can
never lead the next opener further astray.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from dataclasses import dataclass, field

from taquba.clock import Clock
from taquba.errors import CorruptStore, ObjectNotFound, StoreUnavailable
from taquba.journal._checkpoint import list_checkpoints, newest_checkpoint, read_checkpoint
from taquba.journal._config import JournalConfig
from taquba.journal._entry import Kind, decode_entry, encode_entry
from taquba.journal._machine import StateMachine
from taquba.journal._position import START, Position, advance, entry_key
from taquba.journal._replay import replay
from taquba.journal._settle import create_or_read
from taquba.objectstore import ObjectStore

__all__ = ["second_look", "take_over"]

logger = logging.getLogger("taquba.journal")


@dataclass(slots=True)
class _Trail:
    """The places that a reader came through, from the checkpoint that it began with."""

    position: Position
    base: int
    digests: dict[int, bytes] = field(default_factory=dict[int, bytes])

    def go(self, position: Position) -> None:
        self.position = position
        self.digests[position.seq] = position.digest


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
    while True:
        checkpoint = await newest_checkpoint(store)
        position = START if checkpoint is None else checkpoint.position
        trail = _Trail(position, position.seq)
        try:
            await machine.restore(checkpoint)
            while True:
                await _read_to_tail(store, machine, trail, config)
                if not await _first_look(store, trail):
                    break
                data = _epoch_entry(trail.position, clock, config, writer, metadata)
                key = entry_key(trail.position.seq)
                if await _create(store, key, data, clock, config) is not None:
                    continue  # somebody was faster: read on from there
                if not await second_look(store, trail):
                    break
                return advance(trail.position, decode_entry(key, data))
        except CorruptStore:
            if await is_tail(store, trail):
                raise
        logger.info("the journal was collected while it was read: starting over")


async def _read_to_tail(
    store: ObjectStore, machine: StateMachine, trail: _Trail, config: JournalConfig
) -> None:
    entries = replay(
        store,
        trail.position,
        prefetch=config.prefetch,
        prefetch_bytes=config.prefetch_bytes,
    )
    async with aclosing(entries):
        async for entry, after in entries:
            if entry.kind is Kind.EPOCH:
                machine.check(entry.body)
            else:
                machine.apply(entry)
            trail.go(after)


async def _first_look(store: ObjectStore, trail: _Trail) -> bool:
    return await is_tail(store, trail)


async def second_look(store: ObjectStore, trail: _Trail) -> bool:
    """Whether the place of the epoch entry, which landed, was the tail of the log."""
    return await is_tail(store, trail)


async def is_tail(store: ObjectStore, trail: _Trail) -> bool:
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


def _epoch_entry(
    tail: Position, clock: Clock, config: JournalConfig, writer: bytes, metadata: bytes
) -> bytes:
    data, _ = encode_entry(
        kind=Kind.EPOCH,
        epoch=tail.epoch + 1,
        seq=tail.seq,
        writer=writer,
        previous=tail.digest,
        committed_at_ms=clock.now_ms(),
        window=tail.window or config.window,
        durable_before=tail.seq,
        body=metadata,
    )
    return data


async def _create(
    store: ObjectStore, key: str, data: bytes, clock: Clock, config: JournalConfig
) -> bytes | None:
    """As `create_or_read`, some times: until the store says which it is."""
    attempt = 0
    while True:
        try:
            return await create_or_read(store, key, data)
        except (StoreUnavailable, ObjectNotFound) as error:
            attempt += 1
            if attempt >= config.open_attempts:
                raise StoreUnavailable(
                    f"opening was given up: {key!r} could not be created in {attempt} attempts: "
                    f"{error}",
                    operation="create",
                    key=key,
                ) from error
        bound = min(config.max_retry_delay, config.first_retry_delay * 2.0 ** min(attempt, 60))
        await clock.sleep(clock.random() * bound)
