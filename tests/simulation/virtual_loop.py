"""An event loop whose time jumps to the next timer as soon as nothing is ready."""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from heapq import heappop
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE: ContextVar[Callable[[float, Callable[[], None]], None] | None] = ContextVar(
    "PATIENCE", default=None
)
"""How the simulated process that runs waits: ``wait(delay, act)``, which may never come."""


THREAD_TAKES = 0.002
"""Seconds after which what was given to a thread is done."""


_MOST_ROUNDS = 20
_RESOLUTION = 1e-9
"""Seconds; timers that are no further apart are due together."""


class Stuck(AssertionError):
    """Nothing is ready, no timer is set: whoever waits, waits for ever."""


class _NoIO(selectors.BaseSelector):
    """Watches nothing: the loop asks only the timers."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, fileobj, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        raise AssertionError("a virtual loop waits for no input")

    def get_map(self) -> dict[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """Deterministic, single-threaded, without input or output; time begins at 0."""

    max_rounds = 100_000

    def __init__(self) -> None:
        self._now = 0.0
        self._rounds = 0
        self._in_threads: dict[asyncio.Future[Any], Callable[[], None]] = {}
        self._ending = False
        super().__init__(_NoIO())
        # What asyncio's own loop keeps, and its call_soon and call_at add to.
        self._ready: deque[asyncio.Handle]
        self._scheduled: list[asyncio.TimerHandle]

    def time(self) -> float:
        return self._now

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> Any:
        """What would run in a thread runs here, a moment later, if its process lives then."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if self._in_threads.pop(future, None) is None:
                return
            try:
                result = func(*args)
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self._in_threads[future] = work
        wait = PATIENCE.get()
        if wait is None or self._ending:
            self.call_soon(work)
        else:
            wait(THREAD_TAKES, work)
        return future

    def finish_threads(self) -> None:
        """Do what no process lives to do any more; from now on none need live for it."""
        self._ending = True
        for work in list(self._in_threads.values()):
            work()

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _run_once(self) -> None:
        """A round, as asyncio's own loop has it, which costs twice as much.

        All that is ready runs. If nothing is, time passes until the next timer.
        """
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0].cancelled():
            heappop(scheduled)._scheduled = False  # type: ignore[attr-defined]
        self._rounds += 1
        if self._rounds > self.max_rounds:
            raise Stuck(f"no end after {self._rounds} rounds of the loop")
        if scheduled:
            if not ready and not self._stopping:  # type: ignore[attr-defined]
                self._now += max(scheduled[0].when() - self._now, 0.0)
            end = self._now + _RESOLUTION
            while scheduled and scheduled[0].when() < end:
                timer = heappop(scheduled)
                timer._scheduled = False  # type: ignore[attr-defined]
                ready.append(timer)
        elif not ready and not self._stopping:  # type: ignore[attr-defined]
            raise Stuck("nothing is ready, and no timer is set")
        for _ in range(len(ready)):  # what becomes ready meanwhile has to wait for the next round
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()


def run(main: Coroutine[Any, Any, None], on_error: Any) -> None:
    """Run `main` in a loop of its own, and end every task that it leaves behind.

    Args:
        main: What to run.
        on_error: The loop's exception handler.
    """
    loop = VirtualLoop()
    loop.set_exception_handler(on_error)
    try:
        loop.run_until_complete(main)
    finally:
        loop.set_exception_handler(lambda _loop, _context: None)
        loop.finish_threads()
        loop.call_later(1e9, lambda: None)  # so that a task that resists is not 'stuck'
        for _ in range(_MOST_ROUNDS):  # what is cancelled may start something, to clean up
            tasks = asyncio.all_tasks(loop)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=1e3))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
