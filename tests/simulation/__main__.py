"""``python -m tests.simulation --seeds 2000``; ``--seed 7 --trace`` shows one world."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.runner import simulate_many
from tests.simulation.world import explain, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes to use")
    parser.add_argument("--seed", type=int, help="only this world")
    parser.add_argument("--trace", action="store_true", help="print what happens there")
    options = parser.parse_args()
    if options.seed is not None:
        world = simulate(options.seed)
        if world.violations:
            print(explain(world))
        else:
            print(world.readable() if options.trace else f"seed {world.seed} keeps every promise")
        return bool(world.violations)
    began = time.perf_counter()
    seeds = range(options.first, options.first + options.seeds)
    totals, broken = simulate_many(seeds, jobs=options.jobs)
    print(f"{len(seeds)} worlds in {time.perf_counter() - began:.1f} s: {dict(totals)}")
    if broken:
        print(explain(simulate(broken[0])))
        print(f"{len(broken)} worlds broke a promise: seeds {broken[:20]}")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
