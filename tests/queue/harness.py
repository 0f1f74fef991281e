"""What the queue's tests stand on: one store, one clock, and the processes that open it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

from taquba import Claim, Job, ManualClock, Queue, QueueConfig, QueueStats, TaqubaError
from taquba.objectstore import MemoryStore, ObjectInfo

T = TypeVar("T")

NO_BACKOFF = QueueConfig(backoff_base=0)


class Wire:
    """One process's connection to the store. It counts, and it can be held up."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.created: list[str] = []
        """Keys in the order in which their creation was asked for."""
        self.bytes_created = 0
        self._up = asyncio.Event()
        self._up.set()

    def hold(self) -> None:
        """From now on the store answers nothing, and nothing reaches it."""
        self._up.clear()

    def release(self) -> None:
        self._up.set()

    @property
    def entries(self) -> int:
        """How many journal entries this process wrote, or tried to."""
        return sum(key.startswith("journal/") for key in self.created)

    async def get(self, key: str) -> bytes:
        await self._up.wait()
        return await self.store.get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        await self._up.wait()
        return await self.store.get_range(key, start, end)

    async def create(self, key: str, data: bytes) -> None:
        self.created.append(key)
        self.bytes_created += len(data)
        await self._up.wait()
        await self.store.create(key, data)

    async def put(self, key: str, data: bytes) -> None:
        self.created.append(key)
        await self._up.wait()
        await self.store.put(key, data)

    async def delete(self, keys: Iterable[str]) -> None:
        await self._up.wait()
        await self.store.delete(keys)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._up.wait()
        async for info in self.store.list(prefix, start_after):
            yield info

    async def close(self) -> None:
        pass


class StallingClock(ManualClock):
    """A clock whose event loop can stand still: time passes, and nobody is woken for it."""

    def stall(self, seconds: float) -> None:
        self._elapsed += seconds


class World:
    """One store, and the processes that opened it one after another."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.clock = StallingClock()
        self._processes: list[tuple[Queue, Wire]] = []

    async def open(self, **options: Any) -> Queue:
        """What a new process does."""
        wire = Wire(self.store)
        options.setdefault("clock", self.clock)
        options.setdefault("config", QueueConfig(jitter=False))
        queue = await Queue.open(wire, **options)
        self._processes.append((queue, wire))
        return queue

    def kill(self) -> None:
        """The newest process dies: whatever it has not stored by now never arrives."""
        self._processes[-1][1].hold()

    async def crash(self, **options: Any) -> Queue:
        """The newest process dies and another one takes its place."""
        self.kill()
        return await self.open(**options)

    @property
    def wire(self) -> Wire:
        """The newest process's connection."""
        return self._processes[-1][1]

    async def bury(self) -> None:
        """The dead come back as zombies, find that they are fenced, and go."""
        for queue, wire in self._processes[:-1]:
            wire.release()
            with contextlib.suppress(TaqubaError):
                await queue.close()
        del self._processes[:-1]

    async def close(self) -> None:
        """Clean up."""
        await self.bury()
        for queue, wire in self._processes:
            wire.release()
            with contextlib.suppress(TaqubaError):
                await queue.close()


async def take(queue: Queue, name: str = "q", lease: float | None = None) -> Claim:
    """Claim a job that must be there."""
    claim = await queue.claim(name, lease)
    assert claim is not None, f"nothing to claim on {name!r}"
    return claim


async def drain(queue: Queue, name: str = "q") -> list[bytes]:
    """Claim and acknowledge everything, one by one; the payloads in that order."""
    payloads: list[bytes] = []
    while (claim := await queue.claim(name)) is not None:
        payloads.append(claim.job.payload)
        await queue.ack(claim)
    return payloads


async def read(queue: Queue, job_id: str) -> Job:
    """A job that must exist."""
    job = await queue.get_job(job_id)
    assert job is not None, f"no job {job_id!r}"
    return job


async def die(queue: Queue, name: str = "q", payload: bytes = b"x") -> str:
    """Make a dead job; its id. The queue must be empty before."""
    await queue.enqueue(name, payload)
    claim = await take(queue, name)
    await queue.dead_letter(claim, "given up")
    return claim.job.id


def counts(
    *, pending: int = 0, scheduled: int = 0, claimed: int = 0, done: int = 0, dead: int = 0
) -> QueueStats:
    return QueueStats(pending, scheduled, claimed, done, dead)


async def started(world: World, awaitable: Awaitable[T]) -> asyncio.Future[T]:
    """Begin something, and let everybody run until nobody can go on."""
    task = asyncio.ensure_future(awaitable)
    await world.clock.advance(0)
    return task


async def cancelled(world: World, task: asyncio.Future[Any]) -> None:
    """Cancel a task, and see that it says so."""
    task.cancel()
    await world.clock.advance(0)
    assert task.cancelled()


async def cancel_after(steps: int, call: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
    """Begin something and cancel it after so many rounds of the event loop."""
    task = asyncio.ensure_future(call())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task
