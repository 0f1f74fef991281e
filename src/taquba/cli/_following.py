"""A store, read beside its owner for the length of a command."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from taquba.cli._arguments import Usage, opened

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.queue import Follower

__all__ = ["following", "known_queue"]


@contextlib.asynccontextmanager
async def following(options: argparse.Namespace, clock: Clock) -> AsyncGenerator[Follower]:
    """What the store holds now.

    Raises:
        Usage: It holds nothing.
        TaqubaError: It cannot be read.
    """
    from taquba.queue import Follower

    store = await opened(options, clock)
    try:
        async with Follower.open(store, clock=clock, state="disk", poll_interval=60) as follower:
            if follower.position == 0:
                raise Usage(f"{options.url} holds no taquba store: nobody has written there")
            yield follower
    finally:
        await store.close()


async def known_queue(follower: Follower, name: str) -> str:
    """The name of a queue, if there is one that is called so.

    Raises:
        Usage: There is none.
    """
    names = await follower.list_queues()
    if name not in names:
        there = ", ".join(repr(each) for each in names[:10]) or "none at all"
        more = f" and {len(names) - 10:,} more" if len(names) > 10 else ""
        raise Usage(f"there never was a job on queue {name!r}; there are {there}{more}")
    return name
