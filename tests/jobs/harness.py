"""A store, a clock, and job runners on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from taquba import Queue, QueueConfig
from taquba.clock import ManualClock
from taquba.jobs import JobHandle, JobRunner
from taquba.objectstore import MemoryStore

__all__ = ["World", "ended", "settle"]

R = TypeVar("R")


class World:
    """A store and a clock, and runners on it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.clock: Any = ManualClock()

    async def copy(self) -> World:
        """The store as it is now, as a process leaves it that is killed."""
        other = World()
        other.clock = ManualClock()
        await other.clock.advance(self.clock.monotonic())
        async for info in self.store.list(""):
            await other.store.create(info.key, await self.store.get(info.key))
        return other

    @asynccontextmanager
    async def runner(self, *jobs: Any, **options: Any) -> AsyncIterator[JobRunner]:
        config = QueueConfig(jitter=False)
        async with Queue.open(self.store, clock=self.clock, config=config) as queue:
            async with JobRunner(queue, jobs, **options) as runner:
                yield runner


async def settle(world: World) -> None:
    await world.clock.advance(0)


async def ended(world: World, handle: JobHandle[R]) -> R:
    """The result of a job, with the time that it needs."""
    if not isinstance(world.clock, ManualClock):
        return await handle
    waiting = asyncio.ensure_future(handle.result())
    for seconds in (0, 3600):
        if not waiting.done():
            await world.clock.advance(seconds)
    assert waiting.done()
    return await waiting
