from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

_SECONDS = 30.0
"""For a test that waits for ever: it fails in its own event loop, and says where it waited."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(120))
        if not isinstance(item, pytest.Function) or hasattr(item.obj, "hypothesis"):
            continue
        if inspect.iscoroutinefunction(item.obj):
            item.obj = _bounded(item.obj)


def _bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def bounded(**arguments: Any) -> None:
        async with asyncio.timeout(_SECONDS):
            await test(**arguments)

    return bounded
