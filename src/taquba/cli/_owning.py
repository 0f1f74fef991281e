"""A store, owned for the length of a command that writes."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from taquba.cli._arguments import Usage, opened
from taquba.cli._text import ago

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.queue import Follower, Queue

__all__ = ["check_unowned", "owning"]

_ADVICE = (
    "A process that is running can do it itself, with {call}. --take-over does it here all the "
    "same: that process, if there is one, is fenced, stops with an error, and has to be started "
    "again; jobs that it works on are delivered again"
)


@contextlib.asynccontextmanager
async def owning(options: argparse.Namespace, clock: Clock) -> AsyncGenerator[Queue]:
    """The store's queue, opened as its owner."""
    store = await opened(options, clock, read_only=False)
    try:
        from taquba.queue import Queue, QueueConfig

        # What the owner keeps must not be swept by a configuration that is not its own.
        config = QueueConfig(keep_dead=None)
        # Its heartbeat says that it closed, so that the next command need not take over.
        async with Queue.open(
            store, clock=clock, config=config, state="disk", heartbeat=60
        ) as queue:
            yield queue
    finally:
        await store.close()


async def check_unowned(
    follower: Follower, options: argparse.Namespace, clock: Clock, *, call: str
) -> None:
    """Refuse, unless the last owner said that it went, or the command is to take over.

    Raises:
        Usage: There may be an owner, which could do the same with `call`.
    """
    if options.take_over:
        return
    url = options.url
    advice = _ADVICE.format(call=call)
    beat = await follower.heartbeat()
    if beat is None:
        raise Usage(
            f"{url} may be owned by a running process: it writes no heartbeat "
            f"(Queue.open(heartbeat=…)), so nobody can tell. {advice}"
        )
    if beat.epoch < follower.lag.epoch:
        raise Usage(
            f"{url} may be owned by a running process: it was opened again since the last "
            f"heartbeat, by one that writes none. {advice}"
        )
    if not beat.closed:
        age = ago(clock.now_ms() - round(beat.at.timestamp() * 1000))
        raise Usage(
            f"{url} may be owned by a running process: its last heartbeat was {age}, and it did "
            f"not say that it closed. {advice}"
        )
