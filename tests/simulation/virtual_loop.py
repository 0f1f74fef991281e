"""An event loop whose time jumps to the next timer as soon as nothing is ready."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class Stuck(AssertionError):
    """Nothing is ready, no timer is set: whoever waits, waits for ever."""


class _NoIO(selectors.BaseSelector):
    """Waits for timers only, and does not really wait."""

    def __init__(self) -> None:
        self.loop: VirtualLoop | None = None
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, fileobj, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert self.loop is not None
        self.loop.pass_time(timeout)
        return []

    def get_map(self) -> dict[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """Deterministic, single-threaded, without input or output; time begins at 0."""

    max_rounds = 400_000

    def __init__(self) -> None:
        selector = _NoIO()
        self._now = 0.0
        self._rounds = 0
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self._now

    def pass_time(self, timeout: float | None) -> None:
        """Called once a round, with the time until the next timer."""
        self._rounds += 1
        if timeout is None:
            raise Stuck("nothing is ready, and no timer is set")
        if self._rounds > self.max_rounds:
            raise Stuck(f"no end after {self._rounds} rounds of the loop")
        if timeout > 0:
            self._now += timeout


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
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.call_later(1e9, lambda: None)  # so that a task that resists is not 'stuck'
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=1e6))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
