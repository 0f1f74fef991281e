"""What a checkpoint of a large database costs those who work meanwhile, and what it uploads.

    python benchmarks/checkpoint.py [--smoke] [--check]

A queue holds jobs of 200 B that make up a database of 400 MB. A hundred runs go on beside them,
on a store with an injected latency of 20 ms, without and with a checkpoint under way that uploads
everything. Then 1 % of the waiting jobs are changed, first jobs next to each other, then jobs that
are evenly scattered, and each time another checkpoint is taken. Prints one JSON line per scenario.

Where other processes want the processor, stalls tell more of them than of taquba; `largest_busy_ms`
is the most processor time that the event loop's thread used between two rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from _common import Report, options, percentile, run
from taquba import Queue
from taquba.database import Database
from taquba.objectstore import MemoryStore
from taquba.testing import LatencyStore
from taquba.workflow import Continue, Outcome, Step, Succeed, WorkflowRuntime

_LATENCY = 0.02
_RUNS = 100
_TICK = 0.001
_INSERT = """
    WITH RECURSIVE numbers (value) AS (
        SELECT ?1 UNION ALL SELECT value + 1 FROM numbers WHERE value < ?2 - 1
    )
    INSERT INTO jobs (seq, id, queue, state, priority, attempts, max_attempts, enqueued_at, payload)
    SELECT value, printf('%026d', value), 1000, 0, 100, 0, 3, 1767225600000 + value,
           CAST(hex(randomblob(100)) AS BLOB)
    FROM numbers
"""
_CHANGE = """
    UPDATE jobs SET attempts = 1, claimed_at = 1767225600000,
                    payload = CAST(hex(randomblob(100)) AS BLOB)
    WHERE queue = 1000 AND {which}
"""


@dataclass(slots=True)
class Watch:
    """What happened to the event loop and to the steps since it was cleared."""

    stalls: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    """Processor time of the event loop's thread from one round to the next."""
    steps: list[float] = field(default_factory=list)

    def clear(self) -> None:
        self.stalls.clear()
        self.busy.clear()
        self.steps.clear()

    def figures(self) -> dict[str, float]:
        ordered = sorted(self.stalls)
        return {
            "steps": len(self.steps),
            "p50_ms": percentile(self.steps, 0.5) * 1e3,
            "p99_ms": percentile(self.steps, 0.99) * 1e3,
            "largest_stall_ms": ordered[-1] * 1e3,
            "second_stall_ms": ordered[-2] * 1e3,
            "p999_stall_ms": percentile(ordered, 0.999) * 1e3,
            "largest_busy_ms": max(self.busy) * 1e3,
        }


async def fill(database: Database, size: int, rows_at_once: int) -> int:
    """Make the database this large; how many rows that took."""
    rows = 0
    while database.statistics().size < size:
        with database.transaction() as tx:
            first = 10**9 + rows
            tx.execute(_INSERT, (first, first + rows_at_once))
        await tx.durable()
        rows += rows_at_once
    return rows


@contextlib.asynccontextmanager
async def load(queue: Queue, watch: Watch) -> AsyncIterator[None]:
    """Runs that go on, and somebody who measures how long the event loop takes to come round."""
    ending = False
    started: dict[str, float] = {}

    async def runner(step: Step) -> Outcome:
        now = time.perf_counter()
        if step.run_id in started:
            watch.steps.append(now - started[step.run_id])
        started[step.run_id] = now
        return Succeed() if ending else Continue(step.payload)

    async def tick() -> None:
        before, busy_before = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(_TICK)
            now, busy = time.perf_counter(), time.thread_time()
            watch.stalls.append(max(0.0, now - before - _TICK))
            watch.busy.append(busy - busy_before)
            before, busy_before = now, busy

    ticking = asyncio.ensure_future(tick())
    async with WorkflowRuntime(queue, runner, concurrency=_RUNS) as runtime:
        runs = [await runtime.submit(b"x" * 64) for _ in range(_RUNS)]
        try:
            yield
        finally:
            ending = True
            await asyncio.gather(*(runtime.wait(run.run_id) for run in runs))
            ticking.cancel()


async def checkpoint_after(database: Database, which: str) -> dict[str, float]:
    """Change the rows of a condition, and tell what the next checkpoint uploads."""
    with database.transaction() as tx:
        rows = tx.execute(_CHANGE.format(which=which) + " RETURNING 1").fetchall()
    await tx.durable()
    before = database.statistics().checkpoint_bytes
    started = time.perf_counter()
    await database.checkpoint()
    return {
        "rows": len(rows),
        "seconds": time.perf_counter() - started,
        "uploaded_bytes": database.statistics().checkpoint_bytes - before,
    }


async def main() -> int:
    chosen = options("A checkpoint of a large database.")
    report = Report(chosen)
    size = (8 if chosen.smoke else 400) * 2**20
    watch = Watch()
    async with Queue.open(LatencyStore(MemoryStore(), _LATENCY)) as queue:
        database = queue._core.database
        rows = await fill(database, size, 2000)
        await database.checkpoint()
        database._checkpointer._chunks.forget()  # so that the next one uploads everything
        async with load(queue, watch):
            await asyncio.sleep(0.3)
            watch.clear()
            await asyncio.sleep(0.5 if chosen.smoke else 5)
            without = watch.figures()
            report.line("no checkpoint", without)
            watch.clear()
            before = database.statistics().checkpoint_bytes
            started, cpu = time.perf_counter(), time.process_time()
            await database.checkpoint()
            whole = database.statistics().checkpoint_bytes - before
            during = watch.figures()
            during |= {
                "p99_ratio": during["p99_ms"] / without["p99_ms"],
                "seconds": time.perf_counter() - started,
                "cpu_s": time.process_time() - cpu,
                "uploaded_bytes": whole,
                "database_bytes": database.statistics().size,
            }
            report.line(
                "a checkpoint that uploads everything",
                during,
                [
                    ("no stall over 20 ms", lambda f: f["largest_stall_ms"] <= 20),
                    ("a p99 of at most twice that without", lambda f: f["p99_ratio"] <= 2),
                ],
            )
        await database.checkpoint()
        last = 10**9 + rows
        for scenario, which in (
            ("1 % of the rows changed, next to each other", f"seq >= {last - rows // 100}"),
            ("1 % of the rows changed, evenly scattered", "seq % 100 = 7"),
        ):
            figures = await checkpoint_after(database, which)
            figures["share_of_whole"] = figures["uploaded_bytes"] / whole
            report.line(
                scenario,
                figures,
                [("at most 15 % of the bytes uploaded", lambda f: f["share_of_whole"] <= 0.15)],
            )
    return report.finish()


if __name__ == "__main__":
    run(main)
