"""Removing what lives that are over have left: at once if that is little, else in slices."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from taquba.workflow._history import remove_timeline
from taquba.workflow._memo_rows import remove_some

if TYPE_CHECKING:
    from taquba.queue import Queue, QueueTransaction

__all__ = ["Clearing"]

_TIMELINE_AT_ONCE = 16
"""Attempts that go together with their run."""
_TIMELINE_SLICE = 250
"""Attempts that one transaction removes beside the work."""


@final
class Clearing:
    """Clears the lives of one queue that are over; it does nothing while there are none.

    What cannot go in the transaction that ends a life, because that would hold up the event
    loop, is noted in the table `ended_lives`, and goes in slices beside the work, also after a
    restart.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._noted = asyncio.Event()
        [(timelines,)] = queue.peek("SELECT EXISTS (SELECT 1 FROM timeline)")
        self.timelines = bool(timelines)
        """Whether there may be timelines: if none was ever written, none is looked for."""
        queue.in_background(self._clear_next)

    @classmethod
    def of(cls, queue: Queue) -> Clearing:
        """That of this queue, and no second one."""
        return queue.shared("workflow.clearing", lambda: cls(queue))

    def clear(self, tx: QueueTransaction, life: int) -> None:
        """This life is over: nothing of what it has stored will be read again."""
        if remove_some(tx, life):
            tx.execute("INSERT INTO ended_lives VALUES (?) ON CONFLICT DO NOTHING", (life,))
            tx.after_commit(self._noted.set)

    def forget(self, tx: QueueTransaction, life: int) -> None:
        """The run of this life is gone: so is its timeline."""
        if self.timelines and remove_timeline(tx, life, _TIMELINE_AT_ONCE):
            tx.execute("INSERT INTO ended_lives VALUES (?) ON CONFLICT DO NOTHING", (life,))
            tx.after_commit(self._noted.set)

    def _remove_some(self, tx: QueueTransaction, life: int) -> bool:
        """Remove what is left of a life, up to a bound; whether there may be more."""
        if remove_some(tx, life):
            return True
        # The timeline of a run goes when the run goes, not when it ends.
        if (
            not self.timelines
            or tx.execute("SELECT 1 FROM runs WHERE life = ?", (life,)).fetchone()
        ):
            return False
        return remove_timeline(tx, life, _TIMELINE_SLICE)

    async def _clear_next(self) -> None:
        self._noted.clear()
        rows = self._queue.peek("SELECT life FROM ended_lives ORDER BY life LIMIT 1")
        if not rows:
            await self._noted.wait()
            return
        [(life,)] = rows
        await self._queue.ready()
        clock = self._queue.clock
        began = clock.monotonic()
        with self._queue.transaction() as tx:
            if not self._remove_some(tx, life):
                tx.execute("DELETE FROM ended_lives WHERE life = ?", (life,))
        # Others get as much time between two slices.
        await clock.sleep(clock.monotonic() - began)
