"""Giving a key to jobs that were enqueued while their queue had no limit per key."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from taquba.queue._transaction import QueueTransaction

if TYPE_CHECKING:
    from taquba.queue._core import Core

__all__ = ["mark_keys"]

_AT_ONCE = 1000
"""Jobs in one transaction, after which the event loop goes on."""


async def mark_keys(core: Core) -> None:
    """Let every job have a key on queues that have a limit per key since this opening.

    Only then is the whole backlog looked at. Where there is no such limit any more, jobs that
    come from now on have no key, which is noted for the opening after that.
    """
    noted = dict(core.database.execute("SELECT queue, keyed FROM flow_limits").fetchall())
    for lane in list(core.lanes_by_number.values()):
        keyed = lane.flow is not None and lane.flow.keyed
        if keyed and not noted.get(lane.number):
            await _mark(core, lane.number)
        if keyed != bool(noted.get(lane.number)):
            with QueueTransaction(core) as tx:
                if lane.flow is not None:
                    lane.flow.write(tx.execute, lane.number)
                else:
                    tx.execute("UPDATE flow_limits SET keyed = 0 WHERE queue = ?", (lane.number,))


async def _mark(core: Core, queue: int) -> None:
    after = 0
    while True:
        await core.database.admit()
        with QueueTransaction(core) as tx:
            rows = tx.execute(
                "SELECT seq FROM jobs WHERE queue = ? AND seq > ? AND flow_key IS NULL"
                " ORDER BY seq LIMIT ?",
                (queue, after, _AT_ONCE),
            ).fetchall()
            for (seq,) in rows:
                tx.execute("UPDATE jobs SET flow_key = '' WHERE seq = ?", (seq,))
        if len(rows) < _AT_ONCE:
            return
        after = rows[-1][0]
        await asyncio.sleep(0)
