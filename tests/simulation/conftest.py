"""The option that says how many worlds to simulate, and silence while they are."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

DEFAULT_SEEDS = 200


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sim-seeds",
        type=int,
        default=DEFAULT_SEEDS,
        help="how many worlds of each kind are lived through",
    )


@pytest.fixture
def sim_seeds(request: pytest.FixtureRequest) -> int:
    # Only the conftest of a folder named on the command line can add an option in time.
    seeds = request.config.getoption("--sim-seeds", default=DEFAULT_SEEDS)
    assert isinstance(seeds, int)
    return seeds


@pytest.fixture
def quiet() -> Iterator[None]:
    """No warnings of a simulated process: there are thousands."""
    logger = logging.getLogger("taquba")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
