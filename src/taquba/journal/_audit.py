"""Reading a log in order to judge it, beside an owner that goes on writing and collecting."""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from taquba.errors import CorruptStore, IncompatibleStore, ObjectNotFound, TaqubaError
from taquba.journal._checkpoint import (
    Checkpoint,
    _self_digest,
    checkpoint_key,
    decode_checkpoint,
    list_checkpoints,
)
from taquba.journal._entry import HEADER_SIZE, Entry, Kind, decode_entry
from taquba.journal._position import EpochMark, Position, entry_key, seq_of_key
from taquba.journal._replay import Prefetch, is_settled, list_from, read_along
from taquba.objectstore import ObjectStore

__all__ = ["LogWalk", "Manifests", "contradiction", "read_entry", "read_manifests"]

_AT_ONCE = 64
_BYTES_AT_ONCE = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Manifests:
    """The manifests that a store has.

    Attributes:
        read: The checkpoints, by seq, ascending.
        damaged: What is wrong with the others, by seq.
    """

    read: dict[int, Checkpoint] = field(default_factory=dict[int, Checkpoint])
    damaged: dict[int, CorruptStore] = field(default_factory=dict[int, CorruptStore])


async def read_manifests(store: ObjectStore) -> Manifests:
    """Every manifest; one that is collected meanwhile is left out.

    Raises:
        IncompatibleStore: A newer taquba wrote one.
    """
    manifests = Manifests()
    for seq in await list_checkpoints(store):
        key = checkpoint_key(seq)
        try:
            data = await store.get(key)
        except ObjectNotFound:
            continue
        try:
            checkpoint = decode_checkpoint(key, data)
            if checkpoint.position.seq != seq:
                raise CorruptStore(
                    f"checkpoint {key!r} is damaged: it says that it is number "
                    f"{checkpoint.position.seq}",
                    key=key,
                )
            manifests.read[seq] = checkpoint
        except CorruptStore as error:
            manifests.damaged[seq] = error
        except IncompatibleStore as error:
            if _manifest_is_intact(data):
                raise
            manifests.damaged[seq] = _neither(key, error)
    return manifests


class LogWalk:
    """The entries from a place on, as `replay` gives them; but it does not chase a busy tail.

    Iterate over it once. It raises as `replay` does; then `position` is the place that could
    not be read.
    """

    def __init__(self, store: ObjectStore, position: Position, *, patience: int = 3) -> None:
        """Args:
        store: Where to read.
        position: Where to begin.
        patience: Listings after which a log that still grows was read far enough.
        """
        self._store = store
        self._patience = patience
        self.position = position
        self.settled = False
        """Whether it ended at the tail, and not only where the log was when it was listed."""

    async def entries(self) -> AsyncGenerator[tuple[Entry, Position]]:
        """Each entry with the place after it. Close it when you leave it early."""
        for _ in range(self._patience):
            start = self.position.seq
            listed = await list_from(self._store, start)
            ahead = Prefetch(self._store, listed, _AT_ONCE, _BYTES_AT_ONCE)
            try:
                async with aclosing(read_along(ahead, self.position)) as entries:
                    async for entry, after in entries:
                        self.position = after
                        yield entry, after
                still = self.position.seq == start
                if still and await is_settled(self._store, self.position, listed):
                    self.settled = True
                    return
            except IncompatibleStore as error:
                raise await self._newer_or_damaged(error) from error

    async def _newer_or_damaged(self, error: IncompatibleStore) -> TaqubaError:
        # It is the next entry, or one that a dead writer left behind the tail.
        try:
            for info in await list_from(self._store, self.position.seq):
                seq = seq_of_key(info.key)
                if seq is not None and seq <= self.position.seq + self.position.window:
                    await read_entry(self._store, seq)
        except (CorruptStore, IncompatibleStore) as found:
            return found
        return error


async def read_entry(store: ObjectStore, seq: int) -> Entry | None:
    """The entry at `seq`, whatever may come before it; `None` if it is not there.

    Raises:
        CorruptStore: It is damaged, or says that it is another.
        IncompatibleStore: A newer taquba wrote it.
    """
    key = entry_key(seq)
    try:
        data = await store.get(key)
    except ObjectNotFound:
        return None
    try:
        entry = decode_entry(key, data)
    except IncompatibleStore as error:
        if _header_is_intact(data):
            raise
        raise _neither(key, error) from error
    if entry.seq != seq:
        raise CorruptStore(
            f"journal entry {key!r} says that it is number {entry.seq}: another object was put "
            "in its place. Restore it from a backup or an older object version",
            key=key,
        )
    return entry


def contradiction(mark: EpochMark, window: int, entry: Entry | None) -> str:
    """What speaks against `entry` being the epoch entry that `mark` remembers; or nothing."""
    if entry is None:
        return "it is missing"
    if entry.kind is not Kind.EPOCH:
        return "it is an ordinary entry, and the checkpoints know an epoch entry there"
    if (entry.epoch, entry.window) != (mark.epoch, window):
        return (
            f"it says epoch {entry.epoch} and window {entry.window}, and the checkpoints know "
            f"epoch {mark.epoch} and window {window}"
        )
    return ""


def _header_is_intact(data: bytes) -> bool:
    header, checksum = data[: HEADER_SIZE - 4], data[HEADER_SIZE - 4 : HEADER_SIZE]
    return zlib.crc32(header).to_bytes(4, "big") == checksum


def _manifest_is_intact(data: bytes) -> bool:
    manifest: Any = json.loads(data)
    return bool(manifest.pop("sha256", None) == _self_digest(manifest))


def _neither(key: str, error: IncompatibleStore) -> CorruptStore:
    return CorruptStore(f"{error}. But its checksum is wrong, so it may be damaged", key=key)
