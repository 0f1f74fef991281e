from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import Nursery, World, new_world


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
