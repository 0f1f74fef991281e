"""Helpers of the tests in this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from taquba.clock import ManualClock, SystemClock
from taquba.objectstore import ObjectStore

T = TypeVar("T")


class HastyClock(SystemClock):
    """Real time, but nobody is kept waiting: for retries against a real server."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(0)


async def drive(clock: ManualClock, work: Coroutine[Any, Any, T], *, limit: float = 600) -> T:
    """The result of `work`, while fake time passes in small steps, up to a limit."""
    task = asyncio.ensure_future(work)
    end = clock.monotonic() + limit
    await clock.advance(0)
    while not task.done():
        assert clock.monotonic() < end, f"not done in {limit} s of fake time"
        await clock.advance(0.05)
    return await task


async def keys(store: ObjectStore, prefix: str = "", start_after: str = "") -> list[str]:
    """The keys of a listing."""
    return [info.key async for info in store.list(prefix, start_after)]
