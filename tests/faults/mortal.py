"""A store whose process ends itself, with SIGKILL, at its n-th request."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from taquba.objectstore import ObjectInfo, ObjectStore

from .plan import Kill

__all__ = ["MortalStore"]


class MortalStore:
    """Passes everything on, up to the request that is the last."""

    def __init__(self, below: ObjectStore, kill: Kill, tell: Callable[[str], None]) -> None:
        self._below = below
        self._kill = kill
        self._tell = tell
        self._count = 0

    async def create(self, key: str, data: bytes) -> None:
        await self._pass("create", key, lambda: self._below.create(key, data))

    async def put(self, key: str, data: bytes) -> None:
        await self._pass("put", key, lambda: self._below.put(key, data))

    async def delete(self, keys: Iterable[str]) -> None:
        doomed = list(keys)
        half = doomed[: len(doomed) // 2]
        await self._pass(
            "delete",
            doomed[0] if doomed else "",
            lambda: self._below.delete(doomed),
            lambda: self._below.delete(half),
        )

    async def get(self, key: str) -> bytes:
        return await self._below.get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self._below.get_range(key, start, end)

    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._below.list(prefix, start_after)

    async def close(self) -> None:
        await self._below.close()

    async def _pass(
        self,
        operation: str,
        key: str,
        request: Callable[[], Awaitable[None]],
        half: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        kill = self._kill
        if not any(operation == x and key.startswith(y) for x, y in kill.requests):
            return await request()
        self._count += 1
        if self._count != kill.number:
            return await request()
        self._tell(f"killing {operation} {key.partition('/')[0]} {kill.when}")
        match kill.when:
            case "before":
                pass
            case "amid" if half is not None:
                await half()
            case "amid":
                sending = asyncio.ensure_future(request())
                await asyncio.wait([sending], timeout=0)  # now it is on its way
            case "after":
                await request()
        os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.Event().wait()
