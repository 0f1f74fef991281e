from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from taquba import Queue
from tests.queue.harness import World


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(30))


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
