"""A store that lives in this process's memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Iterable

from taquba.errors import ObjectExists, ObjectNotFound
from taquba.objectstore._protocol import (
    ObjectInfo,
    check_data,
    check_key,
    check_keys,
    check_prefix,
    check_range,
)

__all__ = ["MemoryStore"]

_AFTER_ALL_KEYS = "\x7f"
"""Sorts after every character that a key may have."""


class MemoryStore:
    """A store in memory, one per instance: nothing is shared, nothing outlives it.

    `close` keeps the objects, so a test can open the same store again, as if a new process
    had taken over. Use one instance from one event loop.

    Example:
        >>> import asyncio
        >>> store = MemoryStore()
        >>> asyncio.run(store.create("a", b"1"))
        >>> asyncio.run(store.get("a"))
        b'1'
    """

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._sorted: list[str] = []

    def __repr__(self) -> str:
        return f"<MemoryStore with {len(self._objects)} objects>"

    def __len__(self) -> int:
        return len(self._objects)

    def __bool__(self) -> bool:
        return True  # an empty store is still a store

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        check_key(key)
        try:
            return self._objects[key]
        except KeyError:
            raise ObjectNotFound(f"no object {key!r} in memory", operation="get", key=key) from None

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """See `ObjectStore.get_range`."""
        check_key(key)
        if not check_range(start, end):
            return b""
        return (await self.get(key))[start:end]

    async def create(self, key: str, data: bytes) -> None:
        """See `ObjectStore.create`."""
        check_key(key)
        data = check_data(data)
        if key in self._objects:
            raise ObjectExists(f"object {key!r} exists in memory", operation="create", key=key)
        self._objects[key] = data
        insort(self._sorted, key)

    async def put(self, key: str, data: bytes) -> None:
        """See `ObjectStore.put`."""
        check_key(key)
        data = check_data(data)
        if key not in self._objects:
            insort(self._sorted, key)
        self._objects[key] = data

    async def delete(self, keys: Iterable[str]) -> None:
        """See `ObjectStore.delete`."""
        for key in check_keys(keys):
            if self._objects.pop(key, None) is not None:
                del self._sorted[bisect_left(self._sorted, key)]

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        check_prefix(prefix)
        check_prefix(start_after, name="start_after")
        first = max(bisect_left(self._sorted, prefix), bisect_right(self._sorted, start_after))
        end = bisect_left(self._sorted, prefix + _AFTER_ALL_KEYS)
        for key in self._sorted[first:end]:
            data = self._objects.get(key)
            if data is not None:
                yield ObjectInfo(key, len(data))

    async def close(self) -> None:
        """Does nothing: the objects stay for whoever opens this instance again."""
