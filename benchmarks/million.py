"""What a million waiting jobs cost: memory, claims, enqueueing, reopening.

    python benchmarks/million.py [--smoke] [--check]

Child processes do the work, so that each one's memory is its own: one fills a local folder
with jobs of 200 bytes, the next opens it and claims. Prints a JSON line for each step.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from _common import Options, Report, options, peak_mb, percentile, resident_mb, run
from taquba import Queue
from taquba.queue import Claim

PAYLOAD = 200
BATCH = 10_000
CLAIMS = 3_200
SLOTS = 16
STATES = ("memory", "disk")


async def fill(folder: str, count: int, state: Any) -> dict[str, float]:
    """Enqueue that many jobs, in batches, each waited for."""
    async with Queue.open(folder, state=state) as queue:
        started = time.perf_counter(), time.process_time()
        for start in range(0, count, BATCH):
            size = min(BATCH, count - start)
            await queue.enqueue_many("jobs", [os.urandom(PAYLOAD) for _ in range(size)])
        seconds = time.perf_counter() - started[0]
        cpu = time.process_time() - started[1]
        resident = resident_mb()
    return {
        "jobs": count,
        "jobs_per_s": count / seconds,
        "cpu_s_per_1000": cpu / count * 1000,
        "resident_mb": resident,
        "peak_mb": peak_mb(),
    }


async def reopen(folder: str, count: int, state: Any) -> dict[str, float]:
    """Open the folder, and claim some."""
    started = time.perf_counter(), time.process_time()
    async with Queue.open(folder, state=state) as queue:
        seconds = time.perf_counter() - started[0]
        cpu = time.process_time() - started[1]
        resident = resident_mb()
        stats = await queue.stats("jobs")
        if stats.pending + stats.claimed != count:
            raise RuntimeError(f"{stats} of {count} jobs")
        figures = {"open_s": seconds, "open_cpu_s": cpu, "resident_mb": resident}
        figures |= await claim_some(queue)
        figures["peak_mb"] = peak_mb()
    return figures


async def few(folder: str, count: int, state: Any) -> dict[str, float]:
    """Claim from a folder with few jobs."""
    async with Queue.open(folder, state=state) as queue:
        await queue.enqueue_many("jobs", [os.urandom(PAYLOAD) for _ in range(count)])
        return await claim_some(queue)


async def claim_some(queue: Queue) -> dict[str, float]:
    """CPU of claims from a queue that stays as long as it is: of a worker with 16 slots.

    The first claim of a batch also pays for beginning it, and is told apart.
    """
    first: list[float] = []
    others: list[float] = []
    lane = queue._core.lane("jobs")
    for _ in range(CLAIMS // SLOTS):
        claims: list[Claim] = []
        for slot in range(SLOTS):
            before = time.thread_time()
            with queue.transaction() as tx:
                claims += tx.claim(lane, 1, 30.0)
            (others if slot else first).append(time.thread_time() - before)
        await queue.barrier()
        await asyncio.gather(*(queue.ack(claim) for claim in claims))
        await queue.enqueue_many("jobs", [os.urandom(PAYLOAD) for _ in claims])
    return {
        "claim_cpu_p50_ms": percentile(first + others, 0.5) * 1e3,
        "claim_cpu_p99_ms": percentile(first + others, 0.99) * 1e3,
        "first_claim_cpu_p50_ms": percentile(first, 0.5) * 1e3,
    }


def child(*arguments: object) -> dict[str, float]:
    """What a child process that was told to do one of the above prints."""
    command = [sys.executable, __file__, "--child", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure(chosen: Options, report: Report, state: str) -> None:
    """One folder, filled and opened again, with the state kept in memory or on disk."""
    count = 20_000 if chosen.smoke else 1_000_000
    bound = {"memory": 700, "disk": 250}[state]
    with tempfile.TemporaryDirectory() as folder:
        small = child("few", folder, 1000, state)
    report.line(f"1,000 jobs, state in {state}", small)
    with tempfile.TemporaryDirectory() as folder:
        report.line(
            f"enqueue {count:,} jobs in batches of {BATCH:,}, state in {state}",
            child("fill", folder, count, state),
            [
                ("20,000 jobs/s", lambda f: f["jobs_per_s"] >= 20_000),
                (f"{bound} MB resident", lambda f: f["resident_mb"] <= bound),
            ],
        )
        figures = child("reopen", folder, count, state)
    figures["claim_cpu_to_1000"] = figures["claim_cpu_p50_ms"] / small["claim_cpu_p50_ms"]
    report.line(
        f"reopen {count:,} jobs and claim, state in {state}",
        figures,
        [
            ("open within 5 s", lambda f: f["open_s"] <= 5),
            (f"{bound} MB resident", lambda f: f["resident_mb"] <= bound),
            ("0.1 ms of CPU a claim", lambda f: f["claim_cpu_p50_ms"] <= 0.1),
            ("a claim at most half dearer than at 1,000", lambda f: f["claim_cpu_to_1000"] <= 1.5),
        ],
    )


async def main() -> int:
    chosen = options("A million waiting jobs.")
    report = Report(chosen)
    for state in STATES:
        await asyncio.to_thread(measure, chosen, report, state)
    return report.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        what, where, count, state = sys.argv[2:6]
        work = {
            "fill": lambda: fill(where, int(count), state),
            "reopen": lambda: reopen(where, int(count), state),
            "few": lambda: few(where, int(count), state),
        }[what]
        print(json.dumps(asyncio.run(work())))
    else:
        run(main)
