from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import LONG, Nursery, World, new_world


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Many processes share few processors here; nothing but the whole must be fast."""
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in ours:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600 if LONG else 180))
    if not LONG:
        left_out = [item for item in ours if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def world(nursery: Nursery, tmp_path: Path) -> Iterator[World]:
    """A world whose store is a local folder."""
    with new_world(nursery, tmp_path) as made:
        yield made
