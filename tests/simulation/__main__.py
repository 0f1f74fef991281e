"""``python -m tests.simulation --seeds 5000``; ``--seed 7 --trace`` shows one world."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.simulation import groups, runs, shrink, stack, workers, world
from tests.simulation.runner import simulate_many


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5000, help="how many worlds of the whole")
    parser.add_argument(
        "--journal-seeds",
        type=int,
        help="how many worlds of the journal alone (default: three for ten of the whole)",
    )
    parser.add_argument(
        "--worker-seeds",
        type=int,
        help="how many worlds of workers (default: three for ten of the whole)",
    )
    parser.add_argument(
        "--run-seeds",
        type=int,
        help="how many worlds of workflow runs (default: one for ten of the whole)",
    )
    parser.add_argument(
        "--group-seeds",
        type=int,
        help="how many worlds of run groups (default: one for ten of the whole)",
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes to use")
    parser.add_argument("--seed", type=int, help="only this world")
    parser.add_argument("--journal", action="store_true", help="with --seed: the journal alone")
    parser.add_argument("--workers", action="store_true", help="with --seed: the world of workers")
    parser.add_argument("--runs", action="store_true", help="with --seed: the world of runs")
    parser.add_argument("--groups", action="store_true", help="with --seed: the world of groups")
    parser.add_argument("--trace", action="store_true", help="print what happens there")
    options = parser.parse_args()
    logging.getLogger("taquba").setLevel(logging.CRITICAL)
    if options.seed is not None:
        chosen = [
            kind for kind in ("workers", "journal", "runs", "groups") if getattr(options, kind)
        ]
        kind = chosen[0] if chosen else "stack"
        return _one(seed=options.seed, kind=kind, trace=options.trace)
    fewer = options.seeds * 3 // 10
    failed = 0
    for kind, count in (
        ("stack", options.seeds),
        ("journal", fewer if options.journal_seeds is None else options.journal_seeds),
        ("workers", fewer if options.worker_seeds is None else options.worker_seeds),
        ("runs", options.seeds // 10 if options.run_seeds is None else options.run_seeds),
        ("groups", options.seeds // 10 if options.group_seeds is None else options.group_seeds),
    ):
        failed |= _many(kind, range(options.first, options.first + count), options.jobs)
    return failed


_SIMULATE = {
    "stack": stack.simulate,
    "journal": world.simulate,
    "workers": workers.simulate,
    "runs": runs.simulate,
    "groups": groups.simulate,
}


def _one(seed: int, *, kind: str, trace: bool) -> int:
    lived = _SIMULATE[kind](seed)
    if trace:
        print(lived.readable())
    if not lived.violations:
        print(f"seed {seed} keeps every promise")
    else:
        _explain(lived)
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
        _explain(_SIMULATE[kind](broken[0]))
    return bool(broken)


def _explain(lived: stack.StackWorld | world.World | workers.WorkerWorld) -> None:
    if isinstance(lived, stack.StackWorld):
        print(shrink.explain(lived))
    elif isinstance(lived, world.World):
        print(world.explain(lived))
    else:
        print(f"seed {lived.seed} breaks promises:", *lived.violations[:10], sep="\n  - ")
        kind = "runs" if isinstance(lived, runs.RunWorld) else "workers"
        print(f"again: python -m tests.simulation --{kind} --seed {lived.seed} --trace")


if __name__ == "__main__":
    sys.exit(main())
