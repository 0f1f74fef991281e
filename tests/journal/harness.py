"""What the journal's tests share: virtual time, a small state machine, a store that obeys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from random import Random
from typing import Any, TypeVar

from taquba.errors import TaqubaError
from taquba.journal import Checkpoint, Entry, Journal, JournalConfig, Position
from taquba.objectstore import MemoryStore, ObjectInfo
from tests.simulation.virtual_loop import VirtualLoop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run in virtual time; whatever the loop would only log is an error."""
    reports: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop().set_exception_handler(lambda _loop, context: reports.append(context))
        result = runner.run(main)
    assert not reports
    return result


class LoopClock:
    """The loop's own time, which is virtual in `run`."""

    def __init__(self) -> None:
        self._random = Random(1)

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def random(self) -> float:
        return self._random.random()

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)


CLOCK = LoopClock()


class Words:
    """A state machine: all words so far."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.fresh: list[str] = []
        self.seals: list[int] = []
        self.positions: list[Position] = []
        self.metadata: list[bytes] = []
        self.restored: list[Checkpoint | None] = []
        self.failure: TaqubaError | None = None

    async def restore(self, checkpoint: Checkpoint | None) -> None:
        self.restored.append(checkpoint)
        self.words = [] if checkpoint is None else list(checkpoint.content["words"])

    def apply(self, entry: Entry) -> None:
        self.words += entry.body.decode().split()

    def check(self, metadata: bytes) -> None:
        self.metadata.append(metadata)

    def seal(self, seq: int) -> bytes | None:
        self.seals.append(seq)
        fresh, self.fresh = self.fresh, []
        self.words += fresh
        return " ".join(fresh).encode() if fresh else None

    def sealed(self, position: Position) -> None:
        self.positions.append(position)

    def failed(self, error: TaqubaError) -> None:
        self.failure = error


class Log:
    """A journal and its words."""

    def __init__(self, journal: Journal, machine: Words) -> None:
        self.journal = journal
        self.machine = machine

    def say(self, *words: str) -> asyncio.Future[None]:
        self.machine.fresh += words
        return self.journal.durable(self.journal.append())

    def checkpoint(self) -> Checkpoint:
        """One of the state at the last seal."""
        return Checkpoint(
            position=self.journal.position,
            created_at_ms=CLOCK.now_ms(),
            writer=self.journal.writer_id,
            content={"words": self.machine.words},
        )


async def open_log(store: Any, *, metadata: bytes = b"", **config: Any) -> Log:
    machine = Words()
    journal = await Journal.open(
        store, machine, clock=CLOCK, config=JournalConfig(**config), metadata=metadata
    )
    return Log(journal, machine)


async def read_words(store: MemoryStore) -> list[str]:
    """What a new owner of the store finds."""
    log = await open_log(store)
    await log.journal.close()
    return log.machine.words


class ObedientStore:
    """A store whose creates wait until they are told how to end."""

    def __init__(self, store: MemoryStore, latency: float = 0.0) -> None:
        self.store = store
        self.latency = latency
        self.holding = False
        self.held: list[tuple[str, asyncio.Future[Callable[[], None] | None]]] = []
        self.creates: list[str] = []
        self.calls: list[tuple[str, str]] = []
        self.fail: Callable[[str, str], None] = lambda operation, key: None
        self.active = 0
        self.most_active = 0

    async def _pass(self, operation: str, key: str) -> None:
        self.calls.append((operation, key))
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            if self.latency:
                await asyncio.sleep(self.latency)
        finally:
            self.active -= 1
        self.fail(operation, key)

    async def get(self, key: str) -> bytes:
        await self._pass("get", key)
        return await self.store.get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        await self._pass("get_range", key)
        return await self.store.get_range(key, start, end)

    async def create(self, key: str, data: bytes) -> None:
        self.creates.append(key)
        if self.holding:
            told: asyncio.Future[Callable[[], None] | None] = (
                asyncio.get_running_loop().create_future()
            )
            self.held.append((key, told))
            instead = await told
            if instead is not None:
                instead()
        await self._pass("create", key)
        await self.store.create(key, data)

    def release(self, index: int = 0, instead: Callable[[], None] | None = None) -> str:
        """Let a held create go on, or fail as `instead` does; its key."""
        key, told = self.held.pop(index)
        if not told.done():  # its sender gave up
            told.set_result(instead)
        return key

    def release_all(self) -> None:
        self.holding = False
        while self.held:
            self.release()

    async def put(self, key: str, data: bytes) -> None:
        await self._pass("put", key)
        await self.store.put(key, data)

    async def delete(self, keys: Iterable[str]) -> None:
        doomed = list(keys)
        await self._pass("delete", " ".join(doomed))
        await self.store.delete(doomed)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._pass("list", prefix)
        async for info in self.store.list(prefix, start_after):
            yield info

    async def close(self) -> None:
        pass


async def rounds(count: int = 20) -> None:
    """Let everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def keys(store: MemoryStore, prefix: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix)]
