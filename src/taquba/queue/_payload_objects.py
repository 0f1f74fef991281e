"""Payloads that are objects of their own: their keys, their bytes, and how they are read.

A payload is one object, or several parts of one length; a job names them all by one reference.
An object begins with a magic number and a digest of its key and its bytes, so that it is told
when a store gives back something else.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from taquba.errors import CorruptStore, ObjectNotFound, PayloadMissing

if TYPE_CHECKING:
    from taquba.objectstore import ObjectStore

__all__ = [
    "PART_SIZE",
    "PAYLOAD_PREFIX",
    "PayloadReader",
    "PayloadRef",
    "base_key",
    "encode",
    "part_key",
    "together",
]

PAYLOAD_PREFIX = "payloads/"
"""What the keys of payload objects begin with."""
PART_SIZE = 8 * 1024 * 1024
"""Bytes of each part of a payload that is streamed; the last one has the rest."""
_DOWNLOADS = 8
"""Objects of one payload that are read at the same time."""
_MAGIC = b"tqp\x01"
_DIGEST_SIZE = 16
_HEADER_SIZE = len(_MAGIC) + _DIGEST_SIZE


def part_key(key: str, number: int) -> str:
    """The key of one of the objects of a payload."""
    return f"{key}-{number:05d}"


def base_key(part: str) -> str:
    """What the keys of all objects of the same payload begin with."""
    return part[:-6]


class PayloadRef(NamedTuple):
    """What a job's row says of a payload that is not in it."""

    key: str
    """What the keys of its objects begin with."""
    size: int
    """Bytes of the payload."""
    part_size: int
    """Bytes of it in each object but the last."""

    def __str__(self) -> str:
        return f"{self.key}:{self.size}:{self.part_size}"

    @classmethod
    def parse(cls, text: str) -> PayloadRef:
        """The reverse of `str`.

        Raises:
            CorruptStore: It is no reference.
        """
        try:
            key, size, part_size = text.split(":")
            parsed = cls(key, int(size), int(part_size))
        except ValueError:
            parsed = None
        if parsed is None or parsed.part_size < 1 or parsed.size < 0:
            raise CorruptStore(f"a reference to a payload is damaged: {text[:100]!r}")
        return parsed

    @property
    def keys(self) -> list[str]:
        """The keys of its objects, in their order."""
        count = max(1, -(-self.size // self.part_size))
        return [part_key(self.key, number) for number in range(count)]

    def objects(self) -> list[tuple[str, int]]:
        """The keys of its objects, and how many bytes each of them has."""
        keys = self.keys
        last = self.size - (len(keys) - 1) * self.part_size
        sizes = [self.part_size] * (len(keys) - 1) + [last]
        return [(key, _HEADER_SIZE + size) for key, size in zip(keys, sizes, strict=True)]


def encode(key: str, data: bytes) -> bytes:
    """The object that holds `data` under `key`."""
    return b"".join((_MAGIC, _digest(key, data), data))


def _decode(key: str, stored: bytes) -> bytes:
    data = stored[_HEADER_SIZE:]
    if stored[:_HEADER_SIZE] != _MAGIC + _digest(key, data):
        raise CorruptStore(
            f"payload object {key!r} is damaged: its bytes are not those that were written. "
            "Restore it from a backup or an older object version",
            key=key,
        )
    return data


def _digest(key: str, data: bytes) -> bytes:
    digest = hashlib.blake2b(key.encode() + b"\0", digest_size=_DIGEST_SIZE)
    digest.update(data)
    return digest.digest()


async def together(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of them; the first error, or cancellation, ends the others, and is raised."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [end for end in ends if end is not None]
    for error in errors:
        if not isinstance(error, asyncio.CancelledError):
            raise error
    if errors:
        raise errors[0]


class PayloadReader:
    """Reads payloads that are objects."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    async def fetch(self, ref: PayloadRef) -> bytes:
        """The whole payload.

        Raises:
            PayloadMissing: An object of it is gone.
            CorruptStore: One is damaged.
            StoreError: The store failed.
        """
        keys = ref.keys
        if len(keys) == 1:
            data = await self._part(keys[0])
        else:
            data = b"".join(await self._parts(keys))
        _check_size(ref, len(data))
        return data

    async def stream(self, ref: PayloadRef) -> AsyncGenerator[bytes, None]:
        """The payload, part by part; raises as `fetch`."""
        size = 0
        for key in ref.keys:
            part = await self._part(key)
            size += len(part)
            yield part
        _check_size(ref, size)

    async def _parts(self, keys: list[str]) -> list[bytes]:
        """Several objects, some at a time."""
        parts: dict[int, bytes] = {}
        numbers = iter(range(len(keys)))

        async def get_next() -> None:
            for number in numbers:
                parts[number] = await self._part(keys[number])

        await together(get_next() for _ in range(min(_DOWNLOADS, len(keys))))
        return [parts[number] for number in range(len(keys))]

    async def _part(self, key: str) -> bytes:
        try:
            stored = await self.store.get(key)
        except ObjectNotFound:
            raise PayloadMissing(
                f"payload object {key!r} is gone, and is needed. If another process took the store "
                "over, it has deleted it, and this one learns of that with its next commit. Or "
                "else something other than taquba did: restore it from a backup or an older "
                "object version"
            ) from None
        return _decode(key, stored)


def _check_size(ref: PayloadRef, size: int) -> None:
    if size != ref.size:
        raise CorruptStore(
            f"payload {ref.key!r} has {size:,} bytes, and what names it says {ref.size:,}",
            key=ref.key,
        )
