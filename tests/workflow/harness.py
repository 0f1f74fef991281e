"""What the tests of this folder share: stores that can be held and killed, and processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from taquba import ManualClock, Queue, QueueConfig
from taquba.objectstore import MemoryStore, ObjectInfo, ObjectStore
from taquba.workflow import WorkflowRuntime

__all__ = ["Bed", "GateStore", "Process", "bed", "settle"]


class GateStore:
    """A handle on a store that counts what goes through it, and can be held or killed.

    Every process of a test has a handle of its own on the one store below.
    """

    def __init__(self, store: ObjectStore, *, die_after: int | None = None) -> None:
        self.below = store
        self.writes = 0
        """Objects that this handle has stored."""
        self.dead = asyncio.Event()
        self.on_death: Callable[[], None] = lambda: None
        self.on_write: Callable[[], None] = lambda: None
        self._die_after = die_after
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """Let every write wait, from now on."""
        self._open.clear()

    def release(self) -> None:
        """Let the writes that wait, and all later ones, through."""
        self._open.set()

    def kill(self) -> None:
        """Nothing comes through any more, and nothing is answered."""
        if not self.dead.is_set():
            self.dead.set()
            self.on_death()

    async def _answered(self) -> None:
        if self.dead.is_set():
            await asyncio.get_running_loop().create_future()

    async def _write(self, write: Callable[[], Awaitable[None]]) -> None:
        await self._answered()
        await self._open.wait()
        await self._answered()
        await write()
        self.writes += 1
        self.on_write()
        if self.writes == self._die_after:
            self.kill()
        await self._answered()

    async def create(self, key: str, data: bytes) -> None:
        await self._write(lambda: self.below.create(key, data))

    async def put(self, key: str, data: bytes) -> None:
        await self._write(lambda: self.below.put(key, data))

    async def get(self, key: str) -> bytes:
        await self._answered()
        return await self.below.get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        await self._answered()
        return await self.below.get_range(key, start, end)

    async def delete(self, keys: Iterable[str]) -> None:
        await self._answered()
        await self.below.delete(keys)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._answered()
        async for info in self.below.list(prefix, start_after):
            yield info

    async def close(self) -> None:
        pass


@dataclass
class Bed:
    """A runtime to test, and what is around it."""

    queue: Queue
    runtime: WorkflowRuntime
    clock: ManualClock
    store: GateStore

    async def settle(self) -> None:
        await settle(self.clock)

    async def end(self, run_id: str, *, within: float = 3600.0) -> Any:
        """The end of a run, with the time that it needs."""
        waiting = asyncio.ensure_future(self.runtime.wait(run_id))
        await self.settle()
        if not waiting.done():
            await self.clock.advance(within)
        if not waiting.done():
            waiting.cancel()
            raise AssertionError(f"run {run_id} has not ended after {within:g} s")
        return await waiting


async def settle(clock: ManualClock) -> None:
    """Let everything happen that can happen at this moment."""
    await clock.advance(0)


@asynccontextmanager
async def bed(
    runner: Any,
    *,
    store: ObjectStore | None = None,
    clock: ManualClock | None = None,
    config: QueueConfig | None = None,
    **options: Any,
) -> AsyncIterator[Bed]:
    """A runtime on a fresh store in memory and a clock that stands still."""
    clock = clock or ManualClock()
    gate = GateStore(store if store is not None else MemoryStore())
    async with Queue.open(gate, clock=clock, config=config or QueueConfig(jitter=False)) as queue:
        async with WorkflowRuntime(queue, runner, **options) as runtime:
            try:
                yield Bed(queue, runtime, clock, gate)
            finally:
                gate.release()


class Process:
    """A queue and a runtime in a task of their own, as another process would have them."""

    def __init__(
        self,
        store: ObjectStore,
        runner: Any,
        clock: ManualClock,
        *,
        die_after: int | None = None,
        config: QueueConfig | None = None,
        queue_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.store = GateStore(store, die_after=die_after)
        self.store.on_death = self._died
        self.clock = clock
        self.queue: Queue
        self.runtime: WorkflowRuntime
        self._runner = runner
        self._config = config or QueueConfig(jitter=False)
        self._options = options
        self._queue_options = queue_options or {}
        self._opened = asyncio.Event()
        self._leave = asyncio.Event()
        self.task = asyncio.ensure_future(self._live())

    async def _live(self) -> None:
        async with Queue.open(
            self.store,
            clock=self.clock,
            config=self._config,
            close_timeout=0,
            **self._queue_options,
        ) as self.queue:
            async with WorkflowRuntime(self.queue, self._runner, **self._options) as self.runtime:
                self._opened.set()
                await self._leave.wait()

    def _died(self) -> None:
        self.task.cancel()

    async def opened(self) -> bool:
        """Wait until it works, or has ended; whether it works."""
        opened = asyncio.ensure_future(self._opened.wait())
        await asyncio.wait({opened, self.task}, return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        return self._opened.is_set() and not self.task.done()

    async def leave(self) -> None:
        """Leave the block normally."""
        self._leave.set()
        await self.task

    async def kill(self) -> None:
        """kill -9: whatever it does from now on is of no consequence."""
        self.store.kill()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
