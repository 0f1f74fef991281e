"""What a crash ends, and what takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from taquba.errors import TaqubaError
from taquba.objectstore import ObjectStore
from taquba.queue import Queue
from taquba.testing._activity import Activity
from taquba.testing._crash_points import CrashPlan
from taquba.testing._gate import Gate
from taquba.workflow import WorkflowRuntime

__all__ = ["Process"]


class Process:
    """A queue, and what works beside it, in a task of their own: what a crash ends."""

    def __init__(
        self,
        store: ObjectStore,
        activity: Activity,
        open_queue: Callable[[Gate], Awaitable[Queue]],
        parts: Callable[[Queue, CrashPlan], Iterable[AbstractAsyncContextManager[object]]],
    ) -> None:
        self.gate = Gate(store, activity)
        self.gate.on_death = self._died
        self.plan = CrashPlan(self.kill, lambda: self.gate.is_dead)
        self.why: str | None = None
        self.lands = False
        """Whether the writes that it leaves behind take effect."""
        self.queue: Queue | None = None
        self.runtime: WorkflowRuntime | None = None
        self.leave = asyncio.Event()
        self._open_queue = open_queue
        self._parts = parts
        with activity.inside():
            self.task = asyncio.ensure_future(self._live())
        self.task.add_done_callback(_note)

    async def _live(self) -> None:
        async with AsyncExitStack() as stack:
            queue = await self._open_queue(self.gate)
            stack.push_async_exit(self._close(queue))
            runtime: WorkflowRuntime | None = None
            for part in self._parts(queue, self.plan):
                entered = await stack.enter_async_context(part)
                if runtime is None and isinstance(entered, WorkflowRuntime):
                    runtime = entered
            self.runtime, self.queue = runtime, queue
            await self.leave.wait()

    def _close(self, queue: Queue) -> Any:
        async def close(kind: type[BaseException] | None, *_: object) -> None:
            if self.gate.is_dead:
                queue._close_timeout = 0.0
            try:
                await queue.close()
            except TaqubaError:
                if not self.gate.is_dead:
                    raise

        return close

    def kill(self, why: str) -> None:
        """End it, as kill -9 would: nothing that it does from now on reaches the store."""
        if self.why is None:
            self.why = why
            self.gate.die()

    def _died(self) -> None:
        if self.why is None:
            self.why = f"with write {self.gate.writes}"
        if not self.lands:
            self.lose()
        self.task.cancel()

    def lose(self) -> None:
        """Let nothing come of the writes that are in flight."""
        for write in self.gate.in_flight:
            write.cancel()

    @property
    def is_open(self) -> bool:
        return self.queue is not None and not self.task.done() and not self.gate.is_dead


def _note(task: asyncio.Future[None]) -> None:
    if not task.cancelled():
        task.exception()
