"""A store that refuses writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import NoReturn

from taquba.errors import StoreAccessDenied
from taquba.objectstore._protocol import ObjectInfo, ObjectStore

__all__ = ["ReadOnlyStore"]


class ReadOnlyStore:
    """Another store, of which only the reading methods work."""

    def __init__(self, store: ObjectStore) -> None:
        """Args:
        store: The store to read; closed with this one.
        """
        self._store = store

    def __repr__(self) -> str:
        return f"ReadOnlyStore({self._store!r})"

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        return await self._store.get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """See `ObjectStore.get_range`."""
        return await self._store.get_range(key, start, end)

    async def create(self, key: str, data: bytes) -> None:
        """Refused."""
        self._refuse("create", key)

    async def put(self, key: str, data: bytes) -> None:
        """Refused."""
        self._refuse("put", key)

    async def delete(self, keys: Iterable[str]) -> None:
        """Refused."""
        self._refuse("delete", "")

    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        return self._store.list(prefix, start_after)

    async def close(self) -> None:
        """Close the store below."""
        await self._store.close()

    def _refuse(self, operation: str, key: str) -> NoReturn:
        raise StoreAccessDenied(
            f"{operation} {key!r}: the store was opened with read_only=True",
            operation=operation,
            key=key,
        )
