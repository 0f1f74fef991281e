"""The tasks of one journal, which end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["Supervisor"]


class Supervisor:
    """Holds tasks, so that none is lost, forgotten, or outlives its owner."""

    def __init__(self, on_crash: Callable[[BaseException], None]) -> None:
        """Args:
        on_crash: Called with the error of a task that ended with one.
        """
        self._on_crash = on_crash
        # A dict, since sets have no order: what is cancelled first should not vary by run.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._stopped = False

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Run `work` until it ends, or `cancel`."""
        if self._stopped:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Cancel every task but the calling one; nothing can be started any more."""
        self._stopped = True
        current = asyncio.current_task()
        for task in list(self._tasks):
            if task is not current:
                task.cancel()

    async def stop(self) -> None:
        """Cancel every task and wait until they have ended."""
        self.cancel()
        while tasks := list(self._tasks):
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash(error)
