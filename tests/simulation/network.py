"""Simulated processes, and the network between them and the store.

A request is drawn its fate when it is made: how long it is under way, whether it arrives at
all, or twice, whether its answer does, and whether it lands long after its sender gave up, or
died. A frozen process neither sends nor hears until it thaws; a dead one never again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, TypeVar

from taquba.errors import StoreUnavailable, TaqubaError
from taquba.journal._entry import decode_entry
from taquba.journal._position import seq_of_key
from taquba.objectstore import MemoryStore, ObjectInfo
from tests.simulation.virtual_loop import PATIENCE

T = TypeVar("T")


@dataclass(frozen=True)
class Weather:
    """How bad the network is."""

    latency: float = 0.01
    slow: float = 0.05
    """Share of requests that are under way for up to `slowest`."""
    slowest: float = 4.0
    lost: float = 0.06
    """Share of requests whose answer, or which themselves, are lost."""
    twice: float = 0.06
    """Share of requests that are sent a second time by the client, and answered then."""


class RecordingStore(MemoryStore):
    """A store that remembers who wrote each journal entry, whatever became of it."""

    def __init__(self) -> None:
        super().__init__()
        self.landed: dict[int, bytes] = {}
        self._ahead: set[int] = set()

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data)
        seq = seq_of_key(key)
        if seq is not None:
            entry = decode_entry(key, data)
            self.landed[seq] = entry.writer
            if entry.ahead:
                self._ahead.add(seq)

    def ahead(self, seq: int) -> bool:
        """Whether an epoch entry was created there ahead of a moving log."""
        return seq in self._ahead


FAIR = Weather(slow=0.0, lost=0.0, twice=0.0)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the memory store waited")


class Process:
    """One simulated process: its clock, its client of the store, its fate."""

    def __init__(
        self,
        name: str,
        store: MemoryStore,
        random: Random,
        weather: Weather,
        note: Callable[..., None],
        count: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.name = name
        self.count = count
        self.random_source = random
        self.weather = weather
        self.note = note
        self.dead = False
        self.frozen_until = 0.0
        self.creates_take = 0.0
        """Seconds more that each create is under way."""
        self.requests_left = -1
        """Requests until it dies, with or without sending the last; negative: does not count."""
        self.loop = asyncio.get_running_loop()
        self.clock = ProcessClock(self, skew=random.uniform(-5, 5))
        self.store = Client(self, store)

    def freeze(self, seconds: float) -> None:
        self.note(self.name, "freezes for", round(seconds, 3))
        self.frozen_until = max(self.frozen_until, self.loop.time() + seconds)

    def die(self) -> None:
        if not self.dead:
            self.note(self.name, "dies")
            self.count("crashes")
        self.dead = True

    def live_here(self) -> None:
        """Let the calling task, and all that it starts, wait as this process does."""
        PATIENCE.set(self.when_awake)

    def when_awake(self, delay: float, act: Callable[[], None]) -> None:
        """Act after `delay`, or as soon as the process is not frozen; never when it is dead."""

        def now() -> None:
            if self.dead:
                return
            left = self.frozen_until - self.loop.time()
            if left > 0:
                self.loop.call_later(left + 1e-9, now)
            else:
                act()

        if delay > 0:
            self.loop.call_later(delay, now)
        else:
            now()

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = self.loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        self.when_awake(max(seconds, 1e-9), wake)
        await woken


class ProcessClock:
    """The `Clock` of a process."""

    def __init__(self, process: Process, skew: float) -> None:
        self._process = process
        self._skew = skew

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round((self._process.loop.time() + self._skew) * 1000)

    def monotonic(self) -> float:
        return self._process.loop.time()

    async def sleep(self, seconds: float) -> None:
        await self._process.sleep(seconds)

    def random(self) -> float:
        return self._process.random_source.random()

    def random_bytes(self, count: int) -> bytes:
        return self._process.random_source.randbytes(count)


class Client:
    """The store, as a process reaches it."""

    def __init__(self, process: Process, store: MemoryStore) -> None:
        self.page = 7
        """Objects in one answer to a listing: it is no snapshot."""
        self._process = process
        self._store = store

    async def get(self, key: str) -> bytes:
        return await self._ask("get", key, lambda: at_once(self._store.get(key)))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return (await self.get(key))[start:end]

    async def create(self, key: str, data: bytes) -> None:
        await self._ask("create", key, lambda: at_once(self._store.create(key, data)))

    async def put(self, key: str, data: bytes) -> None:
        await self._ask("put", key, lambda: at_once(self._store.put(key, data)))

    async def delete(self, keys: Iterable[str]) -> None:
        doomed = list(keys)
        what = f"{doomed[0]} … {doomed[-1]} ({len(doomed)})"
        await self._ask("delete", what, lambda: at_once(self._store.delete(doomed)))

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        while True:
            page = await self._ask("list", prefix, partial(self._page, prefix, start_after))
            for info in page:
                yield info
            if len(page) < self.page:
                return
            start_after = page[-1].key

    async def close(self) -> None:
        pass

    def _page(self, prefix: str, start_after: str) -> list[ObjectInfo]:
        async def collect() -> list[ObjectInfo]:
            found: list[ObjectInfo] = []
            async for info in self._store.list(prefix, start_after):
                found.append(info)
                if len(found) == self.page:
                    break
            return found

        return at_once(collect())

    def _ask(self, operation: str, key: str, act: Callable[[], T]) -> asyncio.Future[T]:
        process = self._process
        weather = process.weather
        draw = process.random_source.random
        loop = process.loop
        answer: asyncio.Future[T] = loop.create_future()

        def under_way() -> float:
            if draw() < weather.slow:
                return draw() * weather.slowest
            return (0.2 + draw()) * weather.latency

        def deliver(result: T | None, error: TaqubaError | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
                answer.exception()
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        def arrive(*, answered: bool) -> None:
            result, error = None, None
            try:
                result = act()
            except TaqubaError as raised:
                error = raised
            said = "ok" if error is None else type(error).__name__
            process.note(process.name, operation, key, said, "" if answered else "(unheard)")
            if answered:
                back = under_way()
                loop.call_later(back, process.when_awake, 0.0, lambda: deliver(result, error))

        def send() -> None:
            if process.requests_left >= 0:
                process.requests_left -= 1
                if process.requests_left < 0:
                    if draw() < 0.5:
                        loop.call_later(under_way(), lambda: arrive(answered=False))
                    process.die()
                    return
            fate = draw()
            if fate < weather.lost:
                process.count("lost answers")
                # The request is lost (a quarter), or its answer is; either way it times out,
                # perhaps long before it lands.
                if draw() < 0.75:
                    loop.call_later(under_way(), lambda: arrive(answered=False))
                failed = StoreUnavailable("no answer", operation=operation, key=key)
                process.when_awake(0.05 + draw() * 0.5, lambda: deliver(None, failed))
            elif fate < weather.lost + weather.twice:
                first = under_way()
                loop.call_later(first, lambda: arrive(answered=False))
                loop.call_later(first + under_way(), lambda: arrive(answered=True))
            else:
                more = process.creates_take if operation == "create" else 0.0
                loop.call_later(under_way() + more, lambda: arrive(answered=True))

        process.when_awake(0.0, send)
        return answer
