"""What goes on beside the work on groups: cancelling those that stopped, removing the forgotten."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from taquba.clock import wait_for_event
from taquba.workflow._group_removal import expired_groups, forgotten_group, remove_some

if TYPE_CHECKING:
    from taquba.queue import Queue
    from taquba.workflow._group_rows import Group
    from taquba.workflow._runs import RunTable

__all__ = ["GroupUpkeep", "cancel_members"]

_SLICE = 100
"""Members that one transaction cancels, so that the event loop is never held up."""

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
        number = forgotten_group(self._queue, groups.name)
        if number is not None:
            await self._queue.leisure()
            clock = self._queue.clock
            began = clock.monotonic()
            remove_some(self._queue, number)
            await clock.sleep(clock.monotonic() - began)  # others get as much time
            return
        due, following = expired_groups(
            self._queue, groups.name, self._runs.window_ms, groups.is_submitting
        )
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


async def cancel_members(queue: Queue, runs: RunTable, group: Group) -> int:
    """Cancel the members of a group that has stopped, in slices; how many there were.

    It ends early if the group is submitted again, or resumed, meanwhile.
    """
    count = 0
    first: int | None = 0
    while first is not None:
        await queue.ready()
        if group.group_id not in runs.groups.stopped:
            break
        active, first = runs.groups.active_runs(group.number, first, _SLICE)
        if active:
            with queue.transaction() as tx:
                count += sum(runs.cancel(tx, run_id) for run_id in active)
        await asyncio.sleep(0)
    await queue.barrier()
    return count
