"""How long ended runs are remembered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from taquba.clock import wait_for_event
from taquba.workflow._clearing import Clearing

if TYPE_CHECKING:
    from taquba.queue import Queue

__all__ = ["Retention"]

_LONGEST_SLEEP = 3600.0
"""Seconds; a wall clock that is stepped forward is noticed after this at the latest."""
_FIRST_SLICE = 64
_LARGEST_SLICE = 256
"""Runs that one transaction removes, so that the event loop is never held up."""
_BYTES_PER_SLICE = 1024 * 1024
"""Of results and headers, likewise."""
_AIM = 0.002
"""Seconds that a slice may take; it grows and shrinks with what the slice before took. Others get
as much time between two slices, and what both have changed is sealed in yet another turn."""
_NEVER = float("inf")


@final
class Retention:
    """Removes the ended runs of one queue's runtimes when they are old enough.

    It sleeps until the next run is due, and does nothing while no runtime wants it. What is due
    is a row's `ended_at` and nothing else, so it does not matter when retention was switched
    on, or which process ended a run; and a row is one life of its id, and no later one.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._windows: dict[str, list[float]] = {}
        self._next = _NEVER  # milliseconds
        self._changed = asyncio.Event()
        self._slice = float(_FIRST_SLICE)
        self._pause = 0.0
        self._clearing = Clearing.of(queue)
        queue.in_background(self._sweep)

    @classmethod
    def of(cls, queue: Queue) -> Retention:
        """That of this queue, and no second one."""
        return queue.shared("workflow.retention", lambda: cls(queue))

    def begin(self, name: str, window: float) -> None:
        """From now on, runs of this name go this many seconds after their end.

        If several runtimes of one name say so, the shortest window counts.
        """
        self._windows.setdefault(name, []).append(window * 1000)
        self._changed.set()

    def end(self, name: str, window: float) -> None:
        """The runtime that said so is left."""
        windows = self._windows[name]
        windows.remove(window * 1000)
        if not windows:
            del self._windows[name]
        self._changed.set()

    def window_ms(self, name: str) -> float | None:
        """How long runs of this name are kept, in milliseconds; None: for ever."""
        windows = self._windows.get(name)
        return min(windows) if windows else None

    def run_ended(self, name: str, ended_at: int) -> None:
        """A run has ended: look for it when it is due."""
        windows = self._windows.get(name)
        if windows is not None and (due := ended_at + min(windows)) < self._next:
            self._next = due
            self._changed.set()

    async def _sweep(self) -> None:
        """One slice; or wait until there is something to do."""
        self._changed.clear()
        self._next = _NEVER
        now = self._queue.clock.now_ms()
        for name, windows in list(self._windows.items()):
            window = min(windows)
            [(first,)] = self._queue.peek(
                "SELECT min(ended_at) FROM runs INDEXED BY runs_by_age"
                " WHERE queue = ? AND status > 0 AND group_number IS NULL",
                (name,),
            )
            if first is None:
                continue
            if first + window <= now:
                await self._queue.leisure()
                self._remove_some(name, now - window)
                self._next = 0.0  # there may be more of them
            else:
                self._next = min(self._next, first + window)
        if self._next == _NEVER:
            await self._changed.wait()
        elif (wait := self._next - self._queue.clock.now_ms()) > 0:
            await wait_for_event(self._changed, min(wait / 1000, _LONGEST_SLEEP), self._queue.clock)
        else:
            await self._queue.clock.sleep(self._pause)

    def _remove_some(self, name: str, until: float) -> None:
        """Remove the runs that ended first."""
        clock = self._queue.clock
        began = clock.monotonic()
        rows = self._queue.peek(
            "SELECT life, coalesce(length(result), 0) + coalesce(length(headers), 0), result_ref"
            " FROM runs INDEXED BY runs_by_age WHERE queue = ? AND status > 0"
            " AND group_number IS NULL AND ended_at <= ?"
            " ORDER BY ended_at, life LIMIT ?",
            (name, until, int(self._slice)),
        )
        size = 0
        with self._queue.transaction() as tx:
            for life, length, ref in rows:
                tx.execute("DELETE FROM runs WHERE life = ?", (life,))
                self._clearing.forget(tx, life)
                if ref is not None:
                    tx.forget_value(ref)
                size += length
                if size >= _BYTES_PER_SLICE:
                    break
        self._pause = taken = clock.monotonic() - began
        # At most twice as many as before, since a single slice may have been lucky.
        factor = _AIM / taken if taken > _AIM / 2 else 2.0
        self._slice = min(max(self._slice * factor, 1.0), float(_LARGEST_SLICE))
