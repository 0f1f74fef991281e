"""One process's way to the store, which ends when the process is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import NoReturn

from taquba.objectstore import ObjectInfo, ObjectStore
from taquba.testing._activity import Activity

__all__ = ["Gate", "for_ever"]


async def for_ever() -> NoReturn:
    """Wait until the waiting task is cancelled."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("not reached")


class Gate:
    """Another store, as one process sees it. After `die`, nothing goes in or comes out."""

    def __init__(self, below: ObjectStore, activity: Activity) -> None:
        self.below = below
        self.is_dead = False
        self.writes = 0
        """Writes that were begun."""
        self.die_at: tuple[int, bool] | None = None
        """The write with which to die, and whether it still takes effect."""
        self.on_death: Callable[[], None] = lambda: None
        self.in_flight: set[asyncio.Future[None]] = set()
        self._activity = activity

    def die(self) -> None:
        if not self.is_dead:
            self.is_dead = True
            self.on_death()

    async def _alive(self) -> None:
        if self.is_dead:
            await for_ever()

    async def _write(self, work: Callable[[], Awaitable[None]]) -> None:
        await self._alive()
        self.writes += 1
        number = self.writes
        if self.die_at == (number, False):
            self.die()
            await for_ever()

        async def write() -> None:
            with self._activity.request():
                await work()

        writing = asyncio.ensure_future(write())
        self.in_flight.add(writing)
        writing.add_done_callback(self._written)
        try:
            await asyncio.shield(writing)
        except Exception:
            await self._alive()
            raise
        if self.die_at == (number, True):
            self.die()
        await self._alive()

    def _written(self, writing: asyncio.Future[None]) -> None:
        self.in_flight.discard(writing)
        if not writing.cancelled():
            writing.exception()  # whoever asked may be gone

    async def create(self, key: str, data: bytes) -> None:
        await self._write(lambda: self.below.create(key, data))

    async def put(self, key: str, data: bytes) -> None:
        await self._write(lambda: self.below.put(key, data))

    async def delete(self, keys: Iterable[str]) -> None:
        wanted = keys if isinstance(keys, str) else list(keys)
        await self._write(lambda: self.below.delete(wanted))

    async def get(self, key: str) -> bytes:
        await self._alive()
        with self._activity.request():
            data = await self.below.get(key)
        await self._alive()
        return data

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        await self._alive()
        with self._activity.request():
            data = await self.below.get_range(key, start, end)
        await self._alive()
        return data

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._alive()
        with self._activity.request():
            infos = [info async for info in self.below.list(prefix, start_after)]
        for info in infos:
            await self._alive()
            yield info

    async def close(self) -> None:
        pass
