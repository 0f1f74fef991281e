"""Fixtures for tests of code that uses taquba. Pytest finds them wherever taquba is installed.

They are ordinary fixtures, not async ones, so they work with anyio's plugin, with pytest-asyncio
in each of its modes, and with `asyncio.run`: what has to be entered is made by `taquba_sandbox`.

Nothing but pytest is imported until a test asks for one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from taquba.clock import ManualClock
    from taquba.objectstore import MemoryStore
    from taquba.testing import Sandbox

__all__ = ["taquba_clock", "taquba_sandbox", "taquba_store"]


@pytest.fixture
def taquba_clock() -> ManualClock:
    """A clock that stands still until the test advances it. The same for the whole test."""
    from taquba.clock import ManualClock

    return ManualClock(seed=0)


@pytest.fixture
def taquba_store() -> MemoryStore:
    """A store in memory. The same for the whole test."""
    from taquba.objectstore import MemoryStore

    return MemoryStore()


@pytest.fixture
def taquba_sandbox(taquba_clock: ManualClock, taquba_store: MemoryStore) -> Callable[..., Sandbox]:
    """Makes a `taquba.testing.Sandbox` on `taquba_clock` and `taquba_store`.

    It takes what `Sandbox` takes: ``async with taquba_sandbox(runner) as sandbox:``.
    """
    from taquba.testing import Sandbox

    def make(*arguments: Any, **options: Any) -> Sandbox:
        return Sandbox(*arguments, **{"clock": taquba_clock, "store": taquba_store, **options})

    return make
