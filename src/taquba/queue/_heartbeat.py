"""A sign of life of the process that owns a store, for those who only read it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from taquba.clock import Duration, seconds
from taquba.errors import InvalidArgument, TaqubaError
from taquba.metrics import HEARTBEAT_FAILURES
from taquba.queue._core import Core, logger

if TYPE_CHECKING:
    from taquba.database import Transaction

__all__ = ["Pulse", "heartbeat_interval"]

_SHORTEST = 0.1
"""Seconds; each beat is a write to the store."""
_LONGEST = 86_400.0


def heartbeat_interval(interval: Duration | None) -> float | None:
    """The seconds between two beats; None: there are none.

    Raises:
        InvalidArgument: It is no duration, or too short or too long.
    """
    if interval is None:
        return None
    value = seconds(interval, name="heartbeat")
    if not _SHORTEST <= value <= _LONGEST:
        raise InvalidArgument(f"heartbeat is {interval!r}: give 0.1 seconds to a day, or None")
    return value


class Pulse:
    """Writes the beats of one open queue: one row, which says how often it was written.

    A queue that is opened without heartbeat hides the row that an earlier one left, since
    that would show an owner that closed, or died, while there is another.
    """

    def __init__(self, core: Core, interval: float | None) -> None:
        self._core = core
        self._interval = interval
        self._counter = 0
        self._task: asyncio.Task[None] | None = None
        self._late = False
        """Whether the last beat is not stored, or could not be made."""

    async def begin(self) -> None:
        """Write the first beat; durable on return.

        Raises:
            Fenced: Another process took the store over.
        """
        database = self._core.database
        row = database.execute("SELECT counter, interval FROM heartbeat").fetchone()
        if row is not None:
            self._counter = row[0]
        if self._interval is not None:
            await self._beat().durable()
        elif row is not None and row[1]:
            with database.transaction() as tx:
                tx.execute("UPDATE heartbeat SET interval = 0")
            await tx.durable()

    def start(self) -> None:
        """Go on beating."""
        if self._interval is not None:
            self._task = asyncio.ensure_future(self._run(self._interval))

    async def end(self) -> None:
        """Stop, and say that the owner goes. The database still has to store that."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._core.database.stopped is None:
            try:
                self._beat(closed=True)
            except TaqubaError as error:
                self._note(f"could not be made: {error}")

    def _beat(self, *, closed: bool = False) -> Transaction:
        core = self._core
        assert self._interval is not None
        self._counter += 1  # also if it cannot be made: a reader sees that one is missing
        with core.database.transaction() as tx:
            tx.execute(
                "INSERT OR REPLACE INTO heartbeat VALUES (0, ?, ?, ?, ?, ?)",
                (
                    self._counter,
                    core.clock.now_ms(),
                    round(self._interval * 1000),
                    core.database.journal.epoch,
                    int(closed),
                ),
            )
        return tx

    async def _run(self, interval: float) -> None:
        clock, database = self._core.clock, self._core.database
        waited = False
        while True:
            if not waited:
                await clock.sleep(interval)
            waited = False
            if database.stopped is not None:
                return
            try:
                tx = self._beat()
            except Exception as error:
                self._note(f"could not be made: {error!r}")
                continue
            stored = asyncio.ensure_future(tx.durable())
            patience = asyncio.ensure_future(clock.sleep(interval))
            try:
                await asyncio.wait([stored, patience], return_when=asyncio.FIRST_COMPLETED)
                if not stored.done():
                    waited = True
                    self._note(f"was not stored within {interval:g} s")
                elif stored.exception() is not None:
                    return  # the queue stopped, and whoever uses it is told
                elif self._late:
                    self._late = False
                    logger.info("heartbeats are stored again")
            finally:
                stored.cancel()
                patience.cancel()
                await asyncio.gather(stored, patience, return_exceptions=True)

    def _note(self, what: str) -> None:
        if self._core.observer is not None:
            self._core.observer.meter.add(HEARTBEAT_FAILURES, 1)
        if not self._late:
            self._late = True
            logger.warning("a heartbeat %s; the next ones follow", what)
