"""Many worlds at once."""

from __future__ import annotations

import logging
import multiprocessing
from collections import Counter
from collections.abc import Sequence

from tests.simulation.world import simulate

_SHARE = 25


def simulate_many(seeds: Sequence[int], *, jobs: int) -> tuple[Counter[str], list[int]]:
    """What happened in the worlds of these seeds, and which of them broke a promise."""
    shares = [seeds[start : start + _SHARE] for start in range(0, len(seeds), _SHARE)]
    totals: Counter[str] = Counter()
    broken: list[int] = []
    if jobs == 1 or len(shares) == 1:
        results = [_simulate_share(share) for share in shares]
    else:
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            results = pool.map(_simulate_share, shares, chunksize=1)
    for counts, failed in results:
        totals.update(counts)
        broken += failed
    return totals, broken


def _simulate_share(seeds: Sequence[int]) -> tuple[Counter[str], list[int]]:
    logging.getLogger("taquba").setLevel(logging.CRITICAL)
    totals: Counter[str] = Counter()
    broken: list[int] = []
    for seed in seeds:
        world = simulate(seed)
        totals.update(world.counts)
        totals["acknowledged"] += len(world.acknowledged)
        if world.violations:
            broken.append(seed)
    return totals, broken
