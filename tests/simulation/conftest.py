"""The option that says how many worlds to simulate."""

from __future__ import annotations

import pytest

DEFAULT_SEEDS = 200


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sim-seeds",
        type=int,
        default=DEFAULT_SEEDS,
        help="how many worlds the journal's simulation lives through",
    )


@pytest.fixture
def sim_seeds(request: pytest.FixtureRequest) -> int:
    # Only the conftest of a folder named on the command line can add an option in time.
    seeds = request.config.getoption("--sim-seeds", default=DEFAULT_SEEDS)
    assert isinstance(seeds, int)
    return seeds
