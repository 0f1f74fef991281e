"""Checkpoint contents: a database file in content-addressed, compressed pieces.

A piece's key begins with the epoch of the writer that stored it, and a writer refers only to
pieces of its own epoch. A writer that was replaced without knowing it may still collect its
own pieces; so nobody ever builds on another epoch's.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar, cast

from taquba.errors import CorruptStore, ObjectNotFound
from taquba.objectstore import ObjectStore

__all__ = ["CHUNK_PREFIX", "ChunkStore", "Contents"]

CHUNK_PREFIX = "chunks/"
_LEVEL = 1
"""zlib's fastest: checkpoints should not take the processor from the work."""
_BATCH = 500

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a checkpoint's manifest says about its database file."""

    size: int
    """Bytes of the file."""
    chunk_size: int
    """Bytes of each piece but the last."""
    epoch: int
    """Whose pieces they are."""
    digests: tuple[str, ...]
    """Hex sha256 of each piece as it is in the file."""
    modules: dict[str, int]
    """Versions of the schema modules."""

    def to_json(self) -> dict[str, Any]:
        return {
            "database": {
                "size": self.size,
                "chunk_size": self.chunk_size,
                "epoch": self.epoch,
                "chunks": list(self.digests),
            },
            "modules": self.modules,
        }

    @classmethod
    def from_json(cls, name: str, content: dict[str, Any]) -> Contents:
        """Read what `to_json` made; `name` is for errors.

        Raises:
            CorruptStore: Something is missing or has the wrong type.
        """
        try:
            database = cast("dict[str, Any]", content["database"])
            contents = cls(
                size=int(database["size"]),
                chunk_size=int(database["chunk_size"]),
                epoch=int(database["epoch"]),
                digests=tuple(str(digest) for digest in database["chunks"]),
                modules={str(k): int(v) for k, v in content["modules"].items()},
            )
            expected = -(-contents.size // contents.chunk_size)
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise CorruptStore(f"{name} is damaged: it is incomplete ({error!r})") from error
        if expected != len(contents.digests):
            raise CorruptStore(
                f"{name} is damaged: it lists {len(contents.digests)} chunks, not {expected}"
            )
        return contents

    def chunk_keys(self) -> set[str]:
        """Keys of all its pieces."""
        return {chunk_key(self.epoch, digest) for digest in self.digests}


class ChunkStore:
    """Moves database files to and from the store, in pieces."""

    def __init__(self, store: ObjectStore, *, transfers: int) -> None:
        self._store = store
        self._transfers = transfers
        self._present: set[str] = set()
        """Keys of pieces that this writer has stored."""
        self.uploaded = 0
        self.reused = 0

    async def upload(
        self, path: str, *, epoch: int, chunk_size: int, modules: dict[str, int]
    ) -> Contents:
        """Store the pieces of a file that are not there yet."""
        size = os.path.getsize(path)
        count = -(-size // chunk_size)
        # Many requests at a time hide the store's latency. Many threads that compress would
        # only keep the event loop from getting the processor.
        processor = asyncio.Lock()

        async def send(index: int) -> str:
            async with processor:
                digest, compressed = await asyncio.to_thread(
                    self._prepare, path, index * chunk_size, chunk_size, epoch
                )
            if compressed is None:
                self.reused += 1
            else:
                key = chunk_key(epoch, digest)
                await self._store.put(key, compressed)
                self._present.add(key)
                self.uploaded += 1
            return digest

        digests = await _in_order(send, count, self._transfers)
        return Contents(
            size=size,
            chunk_size=chunk_size,
            epoch=epoch,
            digests=tuple(digests),
            modules=modules,
        )

    def _prepare(self, path: str, start: int, length: int, epoch: int) -> tuple[str, bytes | None]:
        """Digest of a piece, and its compressed bytes if it is not stored yet; in a thread."""
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read(length)
        digest = sha256(data).hexdigest()
        if chunk_key(epoch, digest) in self._present:
            return digest, None
        return digest, zlib.compress(data, _LEVEL)

    async def download(self, contents: Contents, path: str) -> None:
        """Write the file that these pieces are.

        Raises:
            CorruptStore: A piece is missing or damaged; the message names it.
        """
        with open(path, "wb") as file:
            file.truncate(contents.size)

        async def fetch(index: int) -> None:
            digest = contents.digests[index]
            key = chunk_key(contents.epoch, digest)
            try:
                data = await self._store.get(key)
            except ObjectNotFound as error:
                raise CorruptStore(
                    f"chunk {key!r} of the newest checkpoint is missing. Restore the object from "
                    "a backup or an older object version"
                ) from error
            start = index * contents.chunk_size
            length = min(contents.chunk_size, contents.size - start)
            await asyncio.to_thread(_write_piece, path, start, length, key, digest, data)

        await _in_order(fetch, len(contents.digests), self._transfers)

    async def collect(self, epoch: int, kept: Iterable[Contents]) -> int:
        """Delete every piece up to `epoch` that no kept checkpoint needs; how many."""
        needed = {key for contents in kept for key in contents.chunk_keys()}
        doomed: list[str] = []
        count = 0
        async for key in self._keys_up_to(epoch):
            if key not in needed:
                doomed.append(key)
            if len(doomed) == _BATCH:
                count += await self._delete(doomed)
                doomed = []
        return count + await self._delete(doomed)

    async def _keys_up_to(self, epoch: int) -> AsyncIterator[str]:
        last = chunk_key(epoch, "~")
        async for info in self._store.list(CHUNK_PREFIX):
            if info.key > last:
                return
            yield info.key

    async def _delete(self, keys: list[str]) -> int:
        if keys:
            self._present.difference_update(keys)
            await self._store.delete(keys)
        return len(keys)


def chunk_key(epoch: int, digest: str) -> str:
    return f"{CHUNK_PREFIX}{epoch:010d}-{digest}"


def _write_piece(path: str, start: int, length: int, key: str, digest: str, data: bytes) -> None:
    try:
        piece = zlib.decompress(data)
    except zlib.error as error:
        raise _damaged(key, f"it cannot be decompressed ({error})") from error
    if sha256(piece).hexdigest() != digest:
        raise _damaged(key, "its content does not match its name")
    if len(piece) != length:
        raise _damaged(key, f"it has {len(piece)} bytes instead of {length}")
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(piece)


def _damaged(key: str, reason: str) -> CorruptStore:
    return CorruptStore(
        f"chunk {key!r} of the newest checkpoint is damaged: {reason}. Restore the object from a "
        "backup or an older object version"
    )


async def _in_order(work: Callable[[int], Awaitable[T]], count: int, at_once: int) -> list[T]:
    """The results of ``work(0)`` … ``work(count - 1)``, some of them under way at a time."""
    results: dict[int, T] = {}
    indexes = iter(range(count))

    async def worker() -> None:
        for index in indexes:
            results[index] = await work(index)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, count)):
                group.create_task(worker())
    except BaseExceptionGroup as errors:
        raise _first_error(errors) from None
    return [results[index] for index in range(count)]


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first: Any = group.exceptions[0]
    return _first_error(first) if isinstance(first, BaseExceptionGroup) else first  # pyright: ignore
