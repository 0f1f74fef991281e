"""What goes on beside the work on groups: cancelling those that stopped, removing the forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from taquba.clock import wait_for_event
from taquba.workflow._group import cancel_members

if TYPE_CHECKING:
    from taquba.queue import Queue
    from taquba.workflow._runs import RunTable

__all__ = ["GroupUpkeep"]

_LONGEST_SLEEP = 3600.0
"""Seconds; a wall clock that is stepped forward is noticed after this at the latest."""


@final
class GroupUpkeep:
    """Looks after the groups of one queue name; it does nothing while there is nothing to do."""

    def __init__(self, queue: Queue, runs: RunTable) -> None:
        self._queue = queue
        self._runs = runs
        queue.in_background(self._cancel_stopped)
        queue.in_background(self._forget)

    async def _cancel_stopped(self) -> None:
        groups = self._runs.groups
        await groups.to_stop.wait()
        groups.to_stop.clear()
        try:
            for group_id in sorted(groups.stopped):
                group = groups.find(group_id)
                if group is not None and group.stopped and group.pending:
                    await cancel_members(self._queue, self._runs, group)
        except Exception:
            groups.to_stop.set()  # it is tried again
            raise

    async def _forget(self) -> None:
        """One slice; or wait until there is something to do."""
        groups = self._runs.groups
        groups.to_forget.clear()
        number = groups.forgotten()
        if number is not None:
            await self._queue.leisure()
            clock = self._queue.clock
            began = clock.monotonic()
            groups.remove_some(number)
            await clock.sleep(clock.monotonic() - began)  # others get as much time
            return
        due, following = groups.expired(self._runs.window_ms)
        for group_id in due:
            with self._queue.transaction() as tx:
                groups.forget(tx, groups.get(group_id))
        if due:
            return
        if following == float("inf"):
            await groups.to_forget.wait()
        else:
            wait = max(following - self._queue.clock.now_ms(), 0) / 1000
            await wait_for_event(groups.to_forget, min(wait, _LONGEST_SLEEP), self._queue.clock)
