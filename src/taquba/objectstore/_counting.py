"""A store that tells of each request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

from taquba.objectstore._protocol import ObjectInfo, ObjectStore
from taquba.objectstore._retry import RetryingStore

__all__ = ["CountingStore", "OnRequest", "counted"]

T = TypeVar("T")

OnRequest = Callable[[str, int, int, bool], None]
"""Told of the operation, the bytes sent and received, and whether it succeeded."""


class CountingStore:
    """Another store, whose requests are counted."""

    def __init__(self, store: ObjectStore, on_request: OnRequest) -> None:
        """Args:
        store: The store to ask; closed with this one.
        on_request: Told of each request, when it is over.
        """
        self._store = store
        self._on_request = on_request

    def __repr__(self) -> str:
        return f"CountingStore({self._store!r})"

    async def _count(self, operation: str, sent: int, request: Awaitable[T]) -> T:
        try:
            answer = await request
        except BaseException:
            self._on_request(operation, sent, 0, False)
            raise
        received = len(answer) if isinstance(answer, bytes) else 0
        self._on_request(operation, sent, received, True)
        return answer

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        return await self._count("get", 0, self._store.get(key))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """See `ObjectStore.get_range`."""
        return await self._count("get_range", 0, self._store.get_range(key, start, end))

    async def create(self, key: str, data: bytes) -> None:
        """See `ObjectStore.create`."""
        await self._count("create", len(data), self._store.create(key, data))

    async def put(self, key: str, data: bytes) -> None:
        """See `ObjectStore.put`."""
        await self._count("put", len(data), self._store.put(key, data))

    async def delete(self, keys: Iterable[str]) -> None:
        """See `ObjectStore.delete`."""
        await self._count("delete", 0, self._store.delete(keys))

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """See `ObjectStore.list`. A listing counts once, however many pages it has."""
        entries = self._store.list(prefix, start_after)
        succeeded = True
        try:
            async for info in entries:
                yield info
        except Exception:
            succeeded = False
            raise
        finally:
            self._on_request("list", 0, 0, succeeded)
            close = getattr(entries, "aclose", None)
            if close is not None:
                await close()

    async def close(self) -> None:
        """Close the store below."""
        await self._store.close()


def counted(store: ObjectStore, on_request: OnRequest, on_retry: Callable[[], None]) -> ObjectStore:
    """The store, with each of its requests told of: repetitions, too, if it makes them."""
    if not isinstance(store, RetryingStore):
        return CountingStore(store, on_request)
    return store._with(CountingStore(store.store, on_request), on_retry)
