"""What a PUT and a GET cost with each driver for buckets: processor time and latency.

    python benchmarks/drivers.py [--smoke] [--check]

Starts SeaweedFS for S3 and Azurite for Azure, and lets the drivers take turns on them, so that
what else the machine does meets both alike. Processor time is that of this process, all its
threads together. Prints one JSON line per kind of request.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _common import Report, options, percentile, run
from taquba.objectstore import ObjectStore, open_store

KIB = 1024
DRIVERS = ("fsspec", "obstore")
SERVERS = Path(__file__).parents[1] / "tests/servers"
SERVICES = {"S3": ("start_seaweedfs.py",), "Azure": ("start_azurite.py", "--memory")}


@contextmanager
def server(script: str, *arguments: str) -> Iterator[dict[str, Any]]:
    """A server of tests/servers for as long as the block runs."""
    process = subprocess.Popen(
        [sys.executable, str(SERVERS / script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the server did not start; see above")
        yield json.loads(line)
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of request, some at once."""

    operation: str
    size: int
    at_once: int
    requests: int

    @property
    def name(self) -> str:
        """For the printed line."""
        size = f"{self.size // KIB} KiB"
        return f"{self.operation} {size}, {self.at_once} at once"


@dataclass(slots=True)
class Measured:
    """Of one driver, over all its turns."""

    latencies: list[float] = field(default_factory=list[float])
    cpu: list[float] = field(default_factory=list[float])
    rate: list[float] = field(default_factory=list[float])

    def figures(self, driver: str) -> dict[str, float]:
        """Named for the printed line."""
        return {
            f"{driver}_cpu_ms": statistics.median(self.cpu) * 1e3,
            f"{driver}_p50_ms": statistics.median(self.latencies) * 1e3,
            f"{driver}_p99_ms": percentile(self.latencies, 0.99) * 1e3,
            f"{driver}_per_s": statistics.median(self.rate),
        }


async def take_turn(store: ObjectStore, case: Case, turn: int, measured: Measured) -> None:
    """Send the requests of one turn."""
    body = bytes(case.size)
    request: Callable[[int], Awaitable[object]]
    if case.operation == "create":
        request = lambda number: store.create(f"{case.size}/{turn}-{number:06d}", body)  # noqa: E731
    elif case.operation == "put":
        request = lambda number: store.put(f"{case.size}/put-{number:06d}", body)  # noqa: E731
    else:
        await store.put(f"get/{case.size}", body)
        request = lambda number: store.get(f"get/{case.size}")  # noqa: E731
    numbers = iter(range(case.requests))

    async def work() -> None:
        for number in numbers:
            started = time.perf_counter()
            await request(number)
            measured.latencies.append(time.perf_counter() - started)

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(work() for _ in range(case.at_once)))
    measured.cpu.append((time.process_time() - cpu) / case.requests)
    measured.rate.append(case.requests / (time.perf_counter() - wall))


async def compare(stores: dict[str, ObjectStore], case: Case, turns: int) -> dict[str, float]:
    """All drivers in turn, and their figures side by side."""
    measured = {driver: Measured() for driver in stores}
    for store in stores.values():
        await take_turn(store, Case(case.operation, case.size, 1, 3), -1, Measured())
    for turn in range(turns):
        for driver, store in stores.items():
            await take_turn(store, case, turn, measured[driver])
    figures: dict[str, float] = {}
    for driver, result in measured.items():
        figures |= result.figures(driver)
    figures["cpu_ratio"] = figures["obstore_cpu_ms"] / figures["fsspec_cpu_ms"]
    figures["p50_ratio"] = figures["obstore_p50_ms"] / figures["fsspec_p50_ms"]
    return figures


async def main() -> int:
    chosen = options("What a PUT and a GET cost with each driver for buckets.")
    report = Report(chosen)
    scale, turns = (1, 1) if chosen.smoke else (10, 5)
    cases = [
        Case(operation, size, at_once, scale * at_once * (1 if at_once > 1 else 5))
        for operation, size in [
            ("create", 4 * KIB),
            ("put", 4 * KIB),
            ("get", 4 * KIB),
            ("create", 256 * KIB),
            ("get", 256 * KIB),
        ]
        for at_once in ([1, 16] if size == 4 * KIB else [4])
    ]
    for service, script in SERVICES.items():
        with server(*script) as info:
            stores: dict[str, ObjectStore] = {}
            for driver in DRIVERS:
                url = f"{info['url']}/{driver}"
                stores[driver] = await open_store(url, driver=driver, **info["storage_options"])
            for case in cases:
                report.line(
                    f"{service}: {case.name}",
                    await compare(stores, case, turns),
                    [
                        (
                            "with obstore at most 0.6 of the processor time of fsspec",
                            lambda figures: figures["cpu_ratio"] <= 0.6,
                        )
                    ],
                )
            for store in stores.values():
                await store.close()
    return report.finish()


if __name__ == "__main__":
    run(main)
