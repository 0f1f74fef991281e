"""Typed jobs: a call and its result, one at a time; and many of them as a group.

    python benchmarks/jobs.py [--smoke] [--check]

Prints one JSON line per scenario. Stores are in memory behind an injected latency `L`.
"""

from __future__ import annotations

import statistics
import time

from _common import Meter, Options, Report, options, percentile, raw_put, resident_mb, run
from taquba import Queue
from taquba.jobs import JobContext, JobRunner, job, payload_idempotency_key
from taquba.objectstore import MemoryStore
from taquba.testing import LatencyStore


@job("double")
async def double(ctx: JobContext, number: int) -> int:
    return 2 * number


@job("once", idempotency_key=payload_idempotency_key)
async def once(ctx: JobContext, number: int) -> int:
    return 2 * number


async def one_at_a_time(options: Options, report: Report) -> None:
    """From the call until its result is there."""
    times = 5 if options.smoke else 100
    store = LatencyStore(MemoryStore(), 0.02)
    taken: list[float] = []
    async with Queue.open(store) as queue, JobRunner(queue, [double, once]) as jobs:
        latency = await raw_put(store)
        for number in range(times):
            began = time.perf_counter()
            result = await (await jobs.submit((double, once)[number % 2](number)))
            taken.append(time.perf_counter() - began)
            assert result == 2 * number
    median = statistics.median(taken)
    report.line(
        "submit and await the result, one at a time, L = 20 ms",
        {
            "jobs": times,
            "latency_ms": latency * 1000,
            "median_ms": median * 1000,
            "median_ratio": median / latency,
            "p95_ratio": percentile(taken, 0.95) / latency,
        },
        [("2.2 L", lambda f: f["median_ratio"] <= 2.2)],
    )


async def as_a_group(options: Options, report: Report) -> None:
    """Many jobs submitted as a group, and all results read; then submitted again."""
    count = 200 if options.smoke else 10_000
    store = LatencyStore(MemoryStore(), 0.02)
    async with Queue.open(store) as queue, JobRunner(queue, [double], concurrency=500) as jobs:
        group = jobs.group("many", double)
        with Meter(store) as meter:
            await group.submit(double(number) for number in range(count))
            total = 0
            async for result in group.results():
                total += result.value
        assert total == count * (count - 1)
        began = time.perf_counter()
        await group.submit(double(number) for number in range(count))
        again = time.perf_counter() - began
        assert (await group.status()).succeeded == count
    report.line(
        f"{count:,} jobs as a group, all results read, L = 20 ms",
        {
            "jobs": count,
            "jobs_per_s": count / meter.seconds,
            "puts_per_job": meter.puts / count,
            "cpu_s_per_1000": meter.cpu / count * 1000,
            "resident_mb": resident_mb(),
            "again_s": again,
        },
        [
            ("2,500 jobs a second", lambda f: f["jobs_per_s"] >= 2500),
            ("0.02 PUTs a job", lambda f: f["puts_per_job"] <= 0.02),
            ("150 MB resident", lambda f: f["resident_mb"] <= 150),
            ("2 s to submit it again", lambda f: f["again_s"] <= 2),
        ],
    )


async def as_a_map(options: Options, report: Report) -> None:
    """A job for each item, while the values are read."""
    count = 300 if options.smoke else 10_000
    store = LatencyStore(MemoryStore(), 0.02)
    async with Queue.open(store) as queue, JobRunner(queue, [double], concurrency=500) as jobs:
        with Meter(store) as meter:
            total = 0
            async for value in jobs.map(double, range(count)):
                total += value
        assert total == count * (count - 1)
    report.line(
        f"{count:,} items mapped, L = 20 ms",
        {
            "jobs": count,
            "jobs_per_s": count / meter.seconds,
            "puts_per_job": meter.puts / count,
            "cpu_s_per_1000": meter.cpu / count * 1000,
        },
    )


async def main() -> int:
    chosen = options("Typed jobs: one at a time, and many as a group.")
    report = Report(chosen)
    await one_at_a_time(chosen, report)
    await as_a_group(chosen, report)
    await as_a_map(chosen, report)
    return report.finish()


if __name__ == "__main__":
    run(main)
