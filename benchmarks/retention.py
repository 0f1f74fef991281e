"""What a sweep of many expired runs does to everybody else in the process.

    python benchmarks/retention.py [--smoke] [--check]

A store is filled with runs that have ended, and then a runtime with a retention that all of
them have outlived is opened. Prints a JSON line for each kind of run: how long the sweep took,
and for how long the thread of the event loop was busy, at most, before others had their turn.
"""

from __future__ import annotations

import asyncio
import time

from _common import Check, Options, Report, options, run
from taquba import Queue
from taquba.objectstore import MemoryStore
from taquba.testing import LatencyStore
from taquba.workflow import WorkflowRuntime

PUT = 0.02
RUNS = 100_000
BATCH = 2_000
MOST = 20.0
"""Milliseconds."""


async def fill(store: MemoryStore, count: int, result: int) -> None:
    """Runs that have ended long ago, as their rows are."""
    async with Queue.open(store) as queue, WorkflowRuntime(queue, None) as runtime:
        name = runtime._queue_name
        ended_at = queue.clock.now_ms() - 86_400_000
        for start in range(0, count, BATCH):
            await queue.ready()
            with queue.transaction() as tx:
                for life in range(start + 1, min(start + BATCH, count) + 1):
                    tx.execute(
                        "INSERT INTO runs (life, queue, run_id, status, step, job_id, input_digest,"
                        " submitted_at, ended_at, headers, result)"
                        " VALUES (?, ?, ?, 1, 3, ?, ?, ?, ?, ?, ?)",
                        (
                            *(life, name, f"run-{life:026}", f"job-{life:022}", b"d" * 32),
                            *(ended_at, ended_at + life, b"\x80", b"r" * result),
                        ),
                    )
            await tx.durable()
        await queue._core.database.checkpoint()


class Stalls:
    """Asks for its turn again and again, and notes how much the thread did before it came."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.wall = 0.0
        self._stop = False

    async def watch(self) -> None:
        busy, at = time.thread_time(), time.perf_counter()
        while not self._stop:
            await asyncio.sleep(0.001)
            now, then = time.thread_time(), time.perf_counter()
            self.longest = max(self.longest, now - busy)
            self.wall = max(self.wall, then - at)
            busy, at = now, then

    def stop(self) -> None:
        self._stop = True


async def sweep(count: int, result: int, latency: float) -> dict[str, float]:
    """Open it with retention, and wait until they are gone."""
    store = MemoryStore()
    await fill(store, count, result)
    slow = LatencyStore(store, latency)
    async with Queue.open(slow) as queue:
        stalls = Stalls()
        watching = asyncio.ensure_future(stalls.watch())
        await asyncio.sleep(0.1)
        stalls.longest = stalls.wall = 0.0
        puts = slow.puts
        started, cpu = time.perf_counter(), time.process_time()
        async with WorkflowRuntime(queue, None, retention=3600):
            while queue.peek("SELECT 1 FROM runs LIMIT 1"):
                await asyncio.sleep(0.01)
            await queue.barrier()
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        stalls.stop()
        await watching
    return {
        "runs": count,
        "runs_per_s": count / seconds,
        "cpu_s_per_1000": cpu / count * 1000,
        "puts": slow.puts - puts,
        "busiest_ms": stalls.longest * 1e3,
        "longest_turn_ms": stalls.wall * 1e3,
    }


async def main() -> int:
    chosen: Options = options("Sweeping expired runs.")
    report = Report(chosen)
    count = 2_000 if chosen.smoke else RUNS
    for words, result, share, latency in (
        ("small results", 100, 1.0, PUT),
        ("small results, no latency", 100, 1.0, 0.0),
        ("results of 16 KiB", 16 * 1024, 0.1, PUT),
    ):
        number = round(count * share)
        bounds: list[Check] = [
            (f"no stall over {MOST:g} ms", lambda f: f["busiest_ms"] <= MOST),
        ]
        # Giving back the memory of large ones copies it, which is not the sweep's doing.
        report.line(
            f"sweep {number:,} runs with {words}",
            await sweep(number, result, latency),
            bounds if result < 1024 else [],
        )
    return report.finish()


if __name__ == "__main__":
    run(main)
