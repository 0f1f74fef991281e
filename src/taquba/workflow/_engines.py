"""The engines of one runtime: how they are begun, and how they end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from taquba.clock import Clock
    from taquba.queue import Engine

__all__ = ["Engines"]


class Engines:
    """What works on the jobs of one runtime, in its task group."""

    def __init__(
        self, group: TaskGroup, clock: Clock, drain_timeout: float | None, cancel_grace: float
    ) -> None:
        self._group = group
        self._clock = clock
        self._drain_timeout = drain_timeout
        self._cancel_grace = cancel_grace
        self._engines: list[Engine] = []

    async def start(self, engine: Engine) -> None:
        """Let this one work, too."""
        self._engines.append(engine)
        await self._group.start(engine.run)

    def stop(self) -> None:
        """Take no further jobs, and finish those under way, for at most the drain timeout."""
        for engine in self._engines:
            engine.stop()
        if self._engines and self._drain_timeout is not None:
            self._group.start_soon(self._cancel_late, self._drain_timeout)

    def is_cancelled(self) -> bool:
        """Whether what runs in the current task, one of theirs, must end."""
        return any(engine.is_cancelled() for engine in self._engines)

    async def _cancel_late(self, timeout: float) -> None:
        if not await self._drained_within(timeout):
            for engine in self._engines:
                engine.give_back()
            await self._drained_within(self._cancel_grace)
        # If something does not heed one cancellation: this one does not end.
        self._group.cancel_scope.cancel()

    async def _drained_within(self, timeout: float) -> bool:
        timer = asyncio.ensure_future(self._clock.sleep(timeout))
        drained = asyncio.ensure_future(self._drained())
        try:
            await asyncio.wait({timer, drained}, return_when=asyncio.FIRST_COMPLETED)
            return drained.done()
        finally:
            timer.cancel()
            drained.cancel()
            await asyncio.gather(timer, drained, return_exceptions=True)

    async def _drained(self) -> None:
        for engine in self._engines:
            await engine.drained()
