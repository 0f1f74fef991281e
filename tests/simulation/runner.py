"""Many worlds at once."""

from __future__ import annotations

import gc
import logging
import multiprocessing
from collections import Counter
from collections.abc import Sequence

from tests.simulation import groups, runs, stack, workers, world

_SHARE = 25


def simulate_many(
    seeds: Sequence[int], *, jobs: int, kind: str = "stack"
) -> tuple[Counter[str], list[int]]:
    """What happened in the worlds of these seeds, and which of them broke a promise.

    Args:
        seeds: Which.
        jobs: Processes to use.
        kind: "stack" for journal, database and queue together; "journal" for it alone;
            "workers" for handlers over the whole; "runs" for workflow runs; "groups" for groups
            of these.
    """
    shares = [(kind, seeds[start : start + _SHARE]) for start in range(0, len(seeds), _SHARE)]
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


def _simulate_share(share: tuple[str, Sequence[int]]) -> tuple[Counter[str], list[int]]:
    kind, seeds = share
    logging.getLogger("taquba").setLevel(logging.CRITICAL)
    totals: Counter[str] = Counter()
    broken: list[int] = []
    # What a world leaves behind is collected between worlds: that is cheaper than amid them.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for number, seed in enumerate(seeds):
            counts, violations = _simulate(kind, seed)
            totals.update(counts)
            if violations:
                broken.append(seed)
            if number % 10 == 9:
                gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    return totals, broken


def _simulate(kind: str, seed: int) -> tuple[Counter[str], list[str]]:
    if kind == "stack":
        stacked = stack.simulate(seed)
        return stacked.counts, stacked.violations
    if kind == "workers":
        busy = workers.simulate(seed)
        return busy.counts, busy.violations
    if kind == "runs":
        flowing = runs.simulate(seed)
        return flowing.counts, flowing.violations
    if kind == "groups":
        together = groups.simulate(seed)
        return together.counts, together.violations
    simple = world.simulate(seed)
    return Counter(simple.counts, acknowledged=len(simple.acknowledged)), simple.violations
