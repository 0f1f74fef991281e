"""``python -m tests.simulation --seeds 5000``; ``--seed 7 --trace`` shows one world."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.simulation import shrink, stack, world
from tests.simulation.runner import simulate_many


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5000, help="how many worlds of the whole")
    parser.add_argument(
        "--journal-seeds",
        type=int,
        help="how many worlds of the journal alone (default: three for ten of the whole)",
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes to use")
    parser.add_argument("--seed", type=int, help="only this world")
    parser.add_argument("--journal", action="store_true", help="with --seed: the journal alone")
    parser.add_argument("--trace", action="store_true", help="print what happens there")
    options = parser.parse_args()
    logging.getLogger("taquba").setLevel(logging.CRITICAL)
    if options.seed is not None:
        return _one(options.seed, journal=options.journal, trace=options.trace)
    count = options.journal_seeds
    count = options.seeds * 3 // 10 if count is None else count
    failed = _many("stack", range(options.first, options.first + options.seeds), options.jobs)
    return _many("journal", range(options.first, options.first + count), options.jobs) or failed


def _one(seed: int, *, journal: bool, trace: bool) -> int:
    lived = world.simulate(seed) if journal else stack.simulate(seed)
    if trace:
        print(lived.readable())
    if not lived.violations:
        print(f"seed {seed} keeps every promise")
    elif isinstance(lived, stack.StackWorld):
        print(shrink.explain(lived))
    else:
        print(world.explain(lived))
    return bool(lived.violations)


def _many(kind: str, seeds: range, jobs: int) -> int:
    if not seeds:
        return 0
    began = time.perf_counter()
    totals, broken = simulate_many(seeds, jobs=jobs, kind=kind)
    seconds = time.perf_counter() - began
    print(f"{len(seeds)} worlds ({kind}) in {seconds:.1f} s; in them happened:")
    print("  " + ", ".join(f"{totals[what]} {what}" for what in sorted(totals)), flush=True)
    if broken:
        print(f"{len(broken)} worlds broke a promise: seeds {broken[:20]}", flush=True)
        if kind == "stack":
            print(shrink.explain(stack.simulate(broken[0])))
        else:
            print(world.explain(world.simulate(broken[0])))
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
