"""What the benchmarks share: options, measuring, and JSON lines."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taquba.testing import LatencyStore

Check = tuple[str, Callable[[dict[str, float]], bool]]
"""What a figure must reach, in words and as a test of the printed line."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said."""

    smoke: bool
    check: bool


def options(description: str) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--smoke", action="store_true", help="small sizes: only show that it runs")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a figure misses what it must reach"
    )
    arguments = parser.parse_args()
    return Options(smoke=arguments.smoke, check=arguments.check)


class Report:
    """Prints one JSON line per scenario, and remembers what was missed."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._missed: list[str] = []

    def line(self, scenario: str, figures: dict[str, float], checks: Sequence[Check] = ()) -> None:
        """Print a scenario's figures, and whether they reach what they must."""
        reached: dict[str, bool] = {}
        if not self._options.smoke:
            reached = {words: holds(figures) for words, holds in checks}
        printed: dict[str, object] = {"scenario": scenario}
        printed |= {name: _round(value) for name, value in figures.items()}
        if reached:
            printed["must_reach"] = reached
        print(json.dumps(printed), flush=True)
        missed = [words for words, holds in reached.items() if not holds]
        self._missed.extend(f"{scenario}: must reach {words}" for words in missed)

    def finish(self) -> int:
        """The exit status."""
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        for missed in self._missed:
            print(f"missed ({machine}): {missed}", file=sys.stderr)
        return 1 if self._missed and self._options.check else 0


class Meter:
    """Wall clock, processor time and requests between entering and leaving."""

    def __init__(self, store: LatencyStore) -> None:
        self._store = store
        self.seconds = 0.0
        self.cpu = 0.0
        self.puts = 0
        self.bytes = 0

    def __enter__(self) -> Meter:
        self._start = (
            time.perf_counter(),
            time.process_time(),
            self._store.puts,
            self._store.bytes_written,
        )
        return self

    def __exit__(self, *_: object) -> None:
        wall, cpu, puts, size = self._start
        self.seconds = time.perf_counter() - wall
        self.cpu = time.process_time() - cpu
        self.puts = self._store.puts - puts
        self.bytes = self._store.bytes_written - size


async def raw_put(store: LatencyStore, times: int = 15) -> float:
    """Median seconds of a PUT that nobody else waits for: what ratios refer to."""
    taken: list[float] = []
    for number in range(times):
        started = time.perf_counter()
        await store.create(f"raw/{number}", b"x" * 500)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def resident_mb() -> float:
    """Megabytes of memory that this process holds now (Linux), or held at most."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 1e6
    except FileNotFoundError:
        return peak_mb()


def peak_mb() -> float:
    """Megabytes of memory that this process held at most."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def run(main: Callable[[], object]) -> None:
    """Run an async main that gives an exit status."""
    sys.exit(asyncio.run(main()))  # type: ignore[arg-type]


def _round(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.4g}")
