from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from taquba import Queue
from tests.queue.harness import World


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(30))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


@pytest.fixture
async def queue(world: World) -> Queue:
    """A queue with the default configuration; `world.close` closes it."""
    return await world.open()
