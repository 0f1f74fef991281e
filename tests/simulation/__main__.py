"""``python -m tests.simulation --seeds 2000``; ``--seed 7 --trace`` shows one world."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from tests.simulation.world import explain, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this world")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    options = parser.parse_args()
    seeds = (
        range(options.first, options.first + options.seeds)
        if options.seed is None
        else [options.seed]
    )
    logging.getLogger("taquba").setLevel(logging.ERROR)
    began = time.perf_counter()
    totals: Counter[str] = Counter()
    failed: list[int] = []
    for seed in seeds:
        world = simulate(seed)
        totals.update(world.counts)
        totals["acknowledged"] += len(world.acknowledged)
        if world.violations:
            if not failed or options.trace:
                print(explain(world))
            failed.append(seed)
        elif options.trace:
            print(world.readable())
    seconds = time.perf_counter() - began
    print(f"{len(seeds)} worlds in {seconds:.1f} s: {dict(totals)}")
    if failed:
        print(f"{len(failed)} worlds broke a promise: seeds {failed[:20]}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
