from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from taquba import Queue
from tests.queue.harness import World


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent):
            continue
        marker = item.get_closest_marker("timeout")
        limit: float = 30 if marker is None else marker.args[0]
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            _end_in_time(item, limit)
            limit += 5
        item.add_marker(pytest.mark.timeout(limit), append=False)


def _end_in_time(item: pytest.Function, limit: float) -> None:
    """Let a coroutine that waits for ever fail where it waits, a bit before pytest's own limit.

    That one is raised in whatever runs just then, and a task of the event loop may swallow it.
    """
    function = item.obj

    @functools.wraps(function)
    async def bounded(**arguments: Any) -> None:
        with anyio.fail_after(limit):
            await function(**arguments)

    item.obj = bounded


@pytest.fixture(autouse=True)
def _no_internal_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What goes wrong in the background is logged; no test may bring that about."""
    yield
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors, [record.getMessage() for record in errors]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


@pytest.fixture
async def queue(world: World) -> Queue:
    """A queue with the default configuration; `world.close` closes it."""
    return await world.open()
