"""Where an engine works on jobs, one after the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taquba.queue._engine import Engine

__all__ = ["Slot"]


class Slot:
    """A task that works on one job after the other; holds the lease of the one it is at."""

    __slots__ = ("_grace", "_task", "cancelled", "engine", "interrupted", "leaving", "span")

    def __init__(self, engine: Engine, task: asyncio.Task[Any], grace: float) -> None:
        self.engine = engine
        self._task = task
        self._grace = grace
        self.cancelled = False
        """Since the lease expired."""
        self.interrupted = False
        """Cancelled, since that was requested for the job."""
        self.leaving = False
        """Cancelled, since the engine gives back what is under way."""
        self.span: object = None
        """Of the handler that ran last, if that is traced, until what it says is settled."""

    def cancel(self) -> None:
        self.cancelled = True
        self._task.cancel()

    @property
    def grace(self) -> float:
        return 0.0 if self.interrupted else self._grace  # once is enough

    def interrupt(self) -> None:
        self.interrupted = True
        self._task.cancel()

    def leave(self) -> None:
        if not self.leaving and not self.interrupted:
            self.leaving = True
            self._task.cancel()

    def uncancel(self) -> None:
        # Also if the work did not heed it: the next one must not seem cancelled.
        if self.cancelled:
            self.cancelled = False
            self._task.uncancel()
        if self.leaving:
            self.leaving = False
            self._task.uncancel()
        if self.interrupted:
            self.interrupted = False
            self._task.uncancel()
