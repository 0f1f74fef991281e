"""An object store that answers as slowly as a distant one, and counts what it is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable

from taquba.clock import Clock, Duration, SystemClock, seconds
from taquba.objectstore import ObjectInfo, ObjectStore

__all__ = ["LatencyStore"]


class LatencyStore:
    """Another store behind a latency, for benchmarks and for tests of waiting.

    Example:
        >>> from taquba.objectstore import MemoryStore
        >>> store = LatencyStore(MemoryStore(), 0.02)
        >>> store.puts, store.bytes_written
        (0, 0)
    """

    def __init__(
        self, store: ObjectStore, latency: Duration, *, clock: Clock | None = None
    ) -> None:
        """Wrap a store.

        Args:
            store: The store below.
            latency: What every request takes in addition; 0 adds nothing, not even a pause.
            clock: What measures it; the real time by default.
        """
        self._store = store
        self._latency = seconds(latency, name="latency")
        self._clock = clock or SystemClock()
        self.requests: Counter[str] = Counter()
        """Requests so far, by operation."""
        self.bytes_written = 0
        """Bytes of all creates and puts so far."""

    @property
    def puts(self) -> int:
        """Creates and puts so far: what stores charge most for."""
        return self.requests["create"] + self.requests["put"]

    async def _wait(self, operation: str, size: int = 0) -> None:
        self.requests[operation] += 1
        self.bytes_written += size
        if self._latency:
            await self._clock.sleep(self._latency)

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        await self._wait("get")
        return await self._store.get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """See `ObjectStore.get_range`."""
        await self._wait("get_range")
        return await self._store.get_range(key, start, end)

    async def create(self, key: str, data: bytes) -> None:
        """See `ObjectStore.create`."""
        await self._wait("create", len(data))
        await self._store.create(key, data)

    async def put(self, key: str, data: bytes) -> None:
        """See `ObjectStore.put`."""
        await self._wait("put", len(data))
        await self._store.put(key, data)

    async def delete(self, keys: Iterable[str]) -> None:
        """See `ObjectStore.delete`."""
        await self._wait("delete")
        await self._store.delete(keys)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        await self._wait("list")
        entries = self._store.list(prefix, start_after)
        try:
            async for info in entries:
                yield info
        finally:
            close = getattr(entries, "aclose", None)
            if close is not None:
                await close()

    async def close(self) -> None:
        """Close the store below."""
        await self._store.close()
