"""Runs that wait: what they cost, and how soon a signal or a cancellation reaches them.

    python benchmarks/waiting.py [--smoke] [--check]

Ten thousand runs wait for signals of their own; their memory is what the process grows by, and
what the state's database grows by. Then signals, and cancellations of runs that wait, one after
the other, on a store with an injected latency of 20 ms. Prints one JSON line per scenario.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time

from _common import Report, options, percentile, raw_put, resident_mb, run
from taquba import Queue
from taquba.objectstore import MemoryStore
from taquba.testing import LatencyStore
from taquba.workflow import Continue, Outcome, Step, Succeed, WorkflowRuntime

_LATENCY = 0.02


class Approvals:
    """Step 0 waits for the signal of the run's own id; step 1 notes when it began."""

    def __init__(self) -> None:
        self.quick = False
        self.started: asyncio.Future[float] | None = None

    async def run_step(self, step: Step) -> Outcome:
        if self.quick:
            return Succeed(step.payload)
        if step.number == 0:
            return Continue(step.payload, signal=step.run_id, timeout=7 * 24 * 3600)
        if self.started is not None:
            self.started.set_result(time.perf_counter())
        return Succeed(step.signal)


async def submit(runtime: WorkflowRuntime, name: str, count: int) -> None:
    for first in range(0, count, 500):
        numbers = range(first, first + 500)
        await asyncio.gather(*(runtime.submit(b"x", run_id=f"{name}-{n}") for n in numbers))


async def many(count: int, seconds: float) -> dict[str, float]:
    """What runs that wait cost."""
    runner = Approvals()
    # In a folder, so that what is stored is not in this process's memory too.
    with tempfile.TemporaryDirectory() as folder:
        async with (
            Queue.open(folder) as queue,
            WorkflowRuntime(queue, runner, concurrency=300) as runtime,
        ):
            database = queue._core.database
            # What the same work leaves behind anyway, in caches and in the allocator.
            runner.quick = True
            await submit(runtime, "warm", count)
            while await runtime.unfinished():
                await asyncio.sleep(0.05)
            runner.quick = False
            await database.checkpoint()
            gc.collect()
            before, size = resident_mb(), database.statistics().size
            await submit(runtime, "run", count)
            while (await queue.stats("workflow-steps")).scheduled < count:
                await asyncio.sleep(0.05)
            await database.checkpoint()
            gc.collect()
            figures: dict[str, float] = {
                "runs": count,
                "resident_mb": resident_mb() - before,
                "state_mb": (database.statistics().size - size) / 1e6,
            }
            cpu, puts = time.process_time(), database.statistics().checkpoint_bytes
            await asyncio.sleep(seconds)
            figures["cpu_percent"] = (time.process_time() - cpu) / seconds * 100
            figures["bytes_written"] = database.statistics().checkpoint_bytes - puts
    return figures


async def one_at_a_time(count: int) -> dict[str, float]:
    """Signals that runs wait for, and cancellations of runs that wait."""
    runner = Approvals()
    store = LatencyStore(MemoryStore(), _LATENCY)
    to_start: list[float] = []
    to_cancel: list[float] = []
    async with Queue.open(store) as queue, WorkflowRuntime(queue, runner) as runtime:
        raw = await raw_put(store)
        for number in range(2 * count):
            run_id = f"run-{number}"
            await runtime.submit(b"x", run_id=run_id)
            while (await queue.stats("workflow-steps")).scheduled == 0:
                await asyncio.sleep(0.001)
            puts = store.puts
            began = time.perf_counter()
            if number < count:
                runner.started = asyncio.get_running_loop().create_future()
                signalling = asyncio.ensure_future(runtime.signal(run_id, b"yes"))
                to_start.append(await runner.started - began)
                await signalling
                await runtime.wait(run_id)
            else:
                if not await runtime.cancel(run_id):
                    raise RuntimeError("a run that waits could not be cancelled")
                to_cancel.append(time.perf_counter() - began)
                if store.puts != puts + 1:
                    raise RuntimeError("a cancellation took more than one write")
    return {
        "each": count,
        "raw_put_ms": raw * 1e3,
        "signal_to_start_in_raw_puts": percentile(to_start, 0.5) / raw,
        "signal_to_start_p99_in_raw_puts": percentile(to_start, 0.99) / raw,
        "cancel_in_raw_puts": percentile(to_cancel, 0.5) / raw,
        "cancel_p99_in_raw_puts": percentile(to_cancel, 0.99) / raw,
    }


async def main() -> int:
    chosen = options("Runs that wait.")
    report = Report(chosen)
    count = 1000 if chosen.smoke else 10_000
    report.line(
        f"{count:,} runs that wait for signals",
        await many(count, 0.5 if chosen.smoke else 5),
        [
            ("20 MB", lambda f: max(f["resident_mb"], f["state_mb"]) <= 20),
            ("no CPU (at most 0.5 %)", lambda f: f["cpu_percent"] <= 0.5),
            ("nothing written", lambda f: f["bytes_written"] == 0),
        ],
    )
    report.line(
        "signals and cancellations, one after the other, L = 20 ms",
        await one_at_a_time(5 if chosen.smoke else 100),
        [
            ("1.2 L from signal to start", lambda f: f["signal_to_start_in_raw_puts"] <= 1.2),
            ("1.2 L for a cancellation", lambda f: f["cancel_in_raw_puts"] <= 1.2),
        ],
    )
    return report.finish()


if __name__ == "__main__":
    run(main)
