from __future__ import annotations

from collections.abc import Iterator

import pytest

from .harness import keep_state


@pytest.fixture(params=["memory", "disk"])
def state(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each test that uses this runs twice: with the state in memory, and on the disk."""
    keep_state(request.param)
    yield request.param
    keep_state("memory")
