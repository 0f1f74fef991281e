"""Jobs over items, as the built-in `map`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any, Literal, TypeVar

from taquba.errors import GroupIncomplete
from taquba.jobs._class import Submittable, call_of
from taquba.jobs._definition import Call, check_key
from taquba.jobs._group import JobGroup, each_of

__all__ = ["values"]

R = TypeVar("R")
T = TypeVar("T")


async def values(
    group: JobGroup[R],
    function: Callable[[T], Submittable[R]],
    items: Iterable[T] | AsyncIterable[T],
    *,
    key: Callable[[T], str] | None,
    order: Literal["completion", "submission"],
    ahead: int,
    is_nameless: bool,
    options: dict[str, Any],
) -> AsyncIterator[R]:
    """What the jobs return, while more are submitted."""
    pulled = told = 0
    room = asyncio.Event()

    async def calls() -> AsyncIterator[Call[R]]:
        nonlocal pulled
        async for item in each_of(items, "items"):
            pulled += 1
            call = call_of(function(item), "map takes a function that makes the call of a job")
            yield call if key is None else call.under(check_key(key(item), "the key of an item"))
            while pulled - told >= ahead:
                room.clear()
                await room.wait()

    table = group._runs._table()
    if table.find(group.group_id) is not None:
        # Those that failed are run again when all were compared: only then their ends count.
        ahead = 2**62
        await group.submit(calls(), **options)
        submitting = None
    else:
        await group._runs._open(options.get("priority"), options.get("max_attempts"))
        table.begin_submitting(group.group_id)
        submitting = asyncio.create_task(group.submit(calls(), **options))
        submitting.add_done_callback(lambda _: table.end_submitting(group.group_id))
    is_told = False
    try:
        try:
            async for result in group.results(order=order):
                told += 1
                room.set()
                yield result.value
            is_told = True
        except GroupIncomplete:
            if submitting is not None:
                await submitting  # says why
            raise
        if submitting is not None:
            await submitting
    finally:
        if submitting is not None and not submitting.done():
            submitting.cancel()
            await asyncio.wait([submitting])
        if submitting is not None and not submitting.cancelled():
            submitting.exception()
        if is_nameless:
            if is_told:
                await group.forget()
            else:
                await group._runs._abandon()
