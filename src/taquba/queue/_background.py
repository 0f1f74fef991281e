"""The loops that run beside an open queue: reaping, scheduling, retention.

None of them polls: each sleeps until the next moment at which it has something to do, or
until it is told that this moment has moved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from taquba.clock import wait_for_event
from taquba.errors import TaqubaError
from taquba.queue._core import Core, Lane, logger
from taquba.queue._reaping import reap_due
from taquba.queue._records import JobState
from taquba.queue._transaction import QueueTransaction

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

__all__ = ["Background"]

Step = Callable[[], Awaitable[None]]

_TICK = 1.0
"""Seconds between looks at the leases while there are any: how finely a stall is noticed."""
_STALL = 0.5
"""Seconds of lateness that count as a stalled event loop, and are given back to the leases."""
_LONG_STALL = 5.0
"""Seconds of lateness that are worth a warning: some handler probably blocks the loop."""
_LONGEST_SLEEP = 3600.0
"""Seconds; a wall clock that is stepped forward is noticed after this at the latest."""
_PER_TRANSACTION = 500
"""Jobs moved or removed in one transaction, so that the event loop is never held up."""
_PAUSE_AFTER_ERROR = 5.0


class Background:
    """Runs the loops until it is cancelled."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._due_changed = asyncio.Event()
        self._next_due: float = 0.0  # milliseconds; 0: to be looked up
        self._next_removal = float("inf")  # milliseconds
        self._kept_changed = asyncio.Event()
        core.on_scheduled = self._scheduled
        core.on_kept = self._kept
        self._dry: dict[Lane, int] = {}
        self._dry_changed = asyncio.Event()
        core.on_dry = self._ran_dry
        self._steps: list[Step] = [self._reap, self._promote, self._sweep, self._refill]
        self._group: TaskGroup | None = None

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            self._group = group
            for step in self._steps:
                group.start_soon(self._keep_running, step)

    def add(self, step: Step) -> None:
        """Repeat this, too: it waits until there is something to do, and does a little of it."""
        self._steps.append(step)
        if self._group is not None:
            self._group.start_soon(self._keep_running, step)

    async def _keep_running(self, step: Step) -> None:
        core = self._core
        while core.database.failure is None:
            try:
                await step()
            except TaqubaError as error:
                if core.database.failure is not None:
                    return  # whoever uses the queue is told the same, with context
                logger.warning("background work failed and will be repeated: %s", error)
                await core.clock.sleep(_PAUSE_AFTER_ERROR)
            except Exception:
                logger.exception("background work failed and will be repeated")
                await core.clock.sleep(_PAUSE_AFTER_ERROR)

    # -- leases -----------------------------------------------------------------------------

    async def _reap(self) -> None:
        core = self._core
        leases, clock = core.leases, core.clock
        earliest = leases.earliest()
        if earliest is None:
            await leases.changed.wait()
            return
        started = clock.monotonic()
        delay = min(max(earliest - started, 0.0), _TICK)
        await wait_for_event(leases.changed, delay, clock)
        passed = clock.monotonic() - started
        late = passed - delay
        if late > _STALL:
            # Nobody could renew or settle meanwhile, so nobody's time was running. When the
            # stall began is not known: at the earliest, when this began to wait.
            level = logging.WARNING if late > _LONG_STALL else logging.DEBUG
            logger.log(level, "the event loop stood still for %.1f s; leases extended", late)
            leases.give_back(passed)
        self.reap_due()

    def reap_due(self) -> int:
        """End every lease that has expired; how many."""
        return reap_due(self._core)

    # -- scheduled jobs ---------------------------------------------------------------------

    def _scheduled(self, run_at_ms: int) -> None:
        if run_at_ms < self._next_due:
            self._next_due = run_at_ms
            self._due_changed.set()

    async def _promote(self) -> None:
        core = self._core
        self._due_changed.clear()
        (first,) = core.database.execute("SELECT min(run_at) FROM jobs WHERE state = 1").fetchone()
        self._next_due = float("inf") if first is None else first
        if first is None:
            await self._due_changed.wait()
            return
        delay = (first - core.clock.now_ms()) / 1000
        if delay > 0:
            await wait_for_event(self._due_changed, min(delay, _LONGEST_SLEEP), core.clock)
            return
        await core.database.admit()
        with QueueTransaction(core) as tx:
            tx.promote(_PER_TRANSACTION)
        await asyncio.sleep(0)

    # -- rates ------------------------------------------------------------------------------

    def _ran_dry(self, lane: Lane, at_ms: int) -> None:
        if self._dry.get(lane) != at_ms:
            self._dry[lane] = at_ms
            self._dry_changed.set()

    async def _refill(self) -> None:
        """Wake who waits for jobs of a queue, when there is a token for it."""
        core = self._core
        self._dry_changed.clear()
        if not self._dry:
            await self._dry_changed.wait()
            return
        now_ms = core.clock.now_ms()
        delay = (min(self._dry.values()) - now_ms) / 1000
        if delay > 0:
            await wait_for_event(self._dry_changed, min(delay, _LONGEST_SLEEP), core.clock)
            return
        await core.database.admit()
        for lane in [lane for lane, at_ms in self._dry.items() if at_ms <= now_ms]:
            del self._dry[lane]
            for listener in list(lane.listeners):
                listener()
        await asyncio.sleep(0)

    # -- retention --------------------------------------------------------------------------

    def _kept(self, due_ms: float) -> None:
        if due_ms < self._next_removal:
            self._next_removal = due_ms
            self._kept_changed.set()

    async def _sweep(self) -> None:
        core = self._core
        self._kept_changed.clear()
        self._next_removal = float("inf")
        now_ms = core.clock.now_ms()
        for lane in list(core.lanes.values()):
            for state, keep_ms in lane.keep_ms.items():
                if keep_ms == float("inf"):
                    continue
                (first,) = core.database.execute(
                    "SELECT min(ended_at) FROM jobs WHERE queue = ? AND state = ? AND state >= 3",
                    (lane.number, int(state)),
                ).fetchone()
                if first is None:
                    continue
                if first + keep_ms <= now_ms:
                    await core.database.admit()
                    with QueueTransaction(core) as tx:
                        tx.remove_ended(lane, JobState(state), now_ms - keep_ms, _PER_TRANSACTION)
                    self._next_removal = 0.0  # there may be more of them
                else:
                    self._next_removal = min(self._next_removal, first + keep_ms)
        if self._next_removal == float("inf"):
            await self._kept_changed.wait()
        elif (wait_ms := self._next_removal - core.clock.now_ms()) > 0:
            delay = min(wait_ms / 1000, _LONGEST_SLEEP)
            await wait_for_event(self._kept_changed, delay, core.clock)
        else:
            await asyncio.sleep(0)
