"""How many commits a second the queue takes.

    python benchmarks/commits.py [--smoke] [--check]

Producers that each enqueue, claim and acknowledge, waiting for each to be durable: three
commits a round. And a backlog that is enqueued one by one, then worked off: what is written
for it, checkpoints included. Prints one JSON line each, on a store in memory behind an
injected latency.
"""

from __future__ import annotations

import asyncio
import time

from _common import Meter, Options, Report, options, percentile, raw_put, run
from taquba import Queue
from taquba.objectstore import MemoryStore
from taquba.testing import LatencyStore


async def producers(options: Options, report: Report) -> None:
    """Many producers at once, so that commits share PUTs."""
    count = 30 if options.smoke else 300
    rounds = 5 if options.smoke else 50
    store = LatencyStore(MemoryStore(), 0.02)
    taken: list[float] = []

    async def timed(work: object) -> object:
        started = time.perf_counter()
        result = await work  # type: ignore[misc]
        taken.append(time.perf_counter() - started)
        return result

    async with Queue.open(store) as queue:

        async def producer() -> None:
            for _ in range(rounds):
                await timed(queue.enqueue("jobs", b"x" * 64))
                claim = await timed(queue.claim("jobs"))
                assert claim is not None
                await timed(queue.ack(claim))  # type: ignore[arg-type]

        with Meter(store) as meter:
            await asyncio.gather(*(producer() for _ in range(count)))
        raw = await raw_put(store)
    commits = count * rounds * 3
    figures = {
        "commits": commits,
        "commits_per_s": commits / meter.seconds,
        "p50_ms": percentile(taken, 0.5) * 1e3,
        "p99_ms": percentile(taken, 0.99) * 1e3,
        "raw_put_ms": raw * 1e3,
        "puts_per_job": meter.puts / commits * 3,
        "bytes_per_job": meter.bytes / commits * 3,
        "cpu_s_per_1000": meter.cpu / commits * 1000,
    }
    report.line(
        f"enqueue, claim, ack: {count} producers, L = 20 ms",
        figures,
        [
            ("6,000 commits/s", lambda f: f["commits_per_s"] >= 6000),
            ("0.05 PUTs a job", lambda f: f["puts_per_job"] <= 0.05),
            ("600 bytes a job", lambda f: f["bytes_per_job"] <= 600),
        ],
    )


async def backlog(options: Options, report: Report) -> None:
    """Every job is in the state at one time, so that checkpoints have to hold it."""
    count = 1_000 if options.smoke else 100_000
    store = LatencyStore(MemoryStore(), 0.02)
    async with Queue.open(store) as queue:
        numbers = iter(range(count))

        async def producer() -> None:
            for _ in numbers:
                await queue.enqueue("jobs", b"x" * 64)

        async def consumer() -> None:
            while claim := await queue.claim("jobs"):
                await queue.ack(claim)

        with Meter(store) as meter:
            await asyncio.gather(*(producer() for _ in range(300)))
            await asyncio.gather(*(consumer() for _ in range(300)))
        checkpoints = queue._core.database.statistics().checkpoints
    report.line(
        f"{count:,} jobs of 64 B enqueued, then worked off: 300 at a time, L = 20 ms",
        {
            "jobs_per_s": count / meter.seconds,
            "puts_per_job": meter.puts / count,
            "bytes_per_job": meter.bytes / count,
            "checkpoints": checkpoints,
        },
        [
            ("0.05 PUTs a job", lambda f: f["puts_per_job"] <= 0.05),
            ("600 bytes a job", lambda f: f["bytes_per_job"] <= 600),
        ],
    )


async def main() -> int:
    chosen = options("Commits a second, each waited for.")
    report = Report(chosen)
    await producers(chosen, report)
    await backlog(chosen, report)
    return report.finish()


if __name__ == "__main__":
    run(main)
