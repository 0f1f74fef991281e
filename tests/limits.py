"""How long tests of some folders may take: a coroutine that waits for ever fails where it waits."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any

import anyio
import pytest

__all__ = ["bound"]


def bound(items: list[pytest.Item], folder: Path, *, seconds: float, margin: float = 5) -> None:
    """Bound the tests of this folder, unless they have a timeout of their own.

    pytest's own limit, which is raised in whatever runs just then, and may be swallowed by a
    task of the event loop, comes `margin` seconds later.
    """
    for item in items:
        if not item.path.is_relative_to(folder):
            continue
        marker = item.get_closest_marker("timeout")
        limit = seconds if marker is None else float(marker.args[0])
        if _is_coroutine(item):
            _end_in_time(item, limit)
            limit += margin
        item.add_marker(pytest.mark.timeout(limit), append=False)


def _is_coroutine(item: pytest.Item) -> bool:
    # What hypothesis drives is called many times, in loops of its own.
    return (
        isinstance(item, pytest.Function)
        and not hasattr(item.obj, "hypothesis")
        and inspect.iscoroutinefunction(item.obj)
    )


def _end_in_time(item: Any, limit: float) -> None:
    function = item.obj

    @functools.wraps(function)
    async def bounded(**arguments: Any) -> None:
        with anyio.fail_after(limit):
            await function(**arguments)

    item.obj = bounded
