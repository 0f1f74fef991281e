"""How fast workflow steps go, and what they cost.

    python benchmarks/steps.py [--smoke] [--check]

Prints one JSON line per scenario, on a store in memory behind an injected latency `L`.
Times are in milliseconds; `raw_put_ms` is the latency as measured in the same run, so that
ratios can be read off whatever the machine.
"""

from __future__ import annotations

import asyncio
import itertools
import time

from _common import Meter, Options, Report, options, percentile, raw_put, run
from taquba import Queue
from taquba.objectstore import MemoryStore
from taquba.testing import LatencyStore
from taquba.workflow import Continue, Outcome, Step, Succeed, WorkflowRuntime


async def one_run_alone(options: Options, report: Report) -> None:
    """A single run of many steps, with the store to itself."""
    steps = 20 if options.smoke else 200
    store = LatencyStore(MemoryStore(), 0.02)
    started: list[float] = []

    async def runner(step: Step) -> Outcome:
        started.append(time.perf_counter())
        return Continue(step.payload) if step.number < steps - 1 else Succeed()

    async with Queue.open(store) as queue, WorkflowRuntime(queue, runner) as runtime:
        with Meter(store) as meter:
            run = await runtime.submit(b"x" * 64)
            await runtime.wait(run.run_id)
        raw = await raw_put(store)
    taken = [after - before for before, after in itertools.pairwise(started)]
    figures = {
        "steps": steps,
        "steps_per_s": steps / meter.seconds,
        "p50_ms": percentile(taken, 0.5) * 1e3,
        "p99_ms": percentile(taken, 0.99) * 1e3,
        "raw_put_ms": raw * 1e3,
        "p50_in_raw_puts": percentile(taken, 0.5) / raw,
        "puts_per_step": meter.puts / steps,
        "bytes_per_step": meter.bytes / steps,
        "cpu_s_per_1000": meter.cpu / steps * 1000,
    }
    report.line(
        "one run alone, L = 20 ms",
        figures,
        [
            ("a median step of 1.15 L", lambda f: f["p50_in_raw_puts"] <= 1.15),
            ("1.05 PUTs a step", lambda f: f["puts_per_step"] <= 1.05),
        ],
    )


async def many_runs(latency: float, options: Options, report: Report) -> None:
    """A thousand runs side by side, all in flight at once."""
    runs = 100 if options.smoke else 1000
    steps = 10 if options.smoke else 50
    store = LatencyStore(MemoryStore(), latency)
    started: dict[str, float] = {}
    taken: list[float] = []

    async def runner(step: Step) -> Outcome:
        now = time.perf_counter()
        before = started.get(step.run_id)
        if before is not None:
            taken.append(now - before)
        started[step.run_id] = now
        return Continue(step.payload) if step.number < steps - 1 else Succeed()

    async with (
        Queue.open(store) as queue,
        WorkflowRuntime(queue, runner, concurrency=runs) as runtime,
    ):
        with Meter(store) as meter:
            submitted = await asyncio.gather(*(runtime.submit(b"x" * 64) for _ in range(runs)))
            await asyncio.gather(*(runtime.wait(run.run_id) for run in submitted))
        raw = await raw_put(store)
    total = runs * steps
    figures = {
        "steps": total,
        "steps_per_s": total / meter.seconds,
        "p50_ms": percentile(taken, 0.5) * 1e3,
        "p99_ms": percentile(taken, 0.99) * 1e3,
        "raw_put_ms": raw * 1e3,
        "puts_per_step": meter.puts / total,
        "bytes_per_step": meter.bytes / total,
        "cpu_s_per_1000": meter.cpu / total * 1000,
    }
    if latency:
        report.line(
            f"{runs} runs side by side, L = {latency * 1e3:.0f} ms",
            figures,
            [
                ("5,000 steps/s", lambda f: f["steps_per_s"] >= 5000),
                ("0.05 PUTs a step", lambda f: f["puts_per_step"] <= 0.05),
            ],
        )
    else:
        report.line(
            f"{runs} runs side by side, L = 0",
            figures,
            [
                ("8,000 steps/s", lambda f: f["steps_per_s"] >= 8000),
                ("0.12 s CPU per 1,000 steps", lambda f: f["cpu_s_per_1000"] <= 0.12),
            ],
        )


async def history(options: Options, report: Report) -> None:
    """The same runs without and with `keep_history`, in turn: the least processor time of each."""
    runs, steps, rounds = (20, 5, 1) if options.smoke else (400, 20, 5)
    cpu: dict[bool, list[float]] = {False: [], True: []}
    size: dict[bool, float] = {}

    async def runner(step: Step) -> Outcome:
        return Continue(step.payload) if step.number < steps - 1 else Succeed()

    for keep in (False, True) * rounds:
        store = LatencyStore(MemoryStore(), 0.0)
        async with (
            Queue.open(store) as queue,
            WorkflowRuntime(queue, runner, concurrency=runs, keep_history=keep) as runtime,
        ):
            with Meter(store) as meter:
                submitted = await asyncio.gather(*(runtime.submit(b"x" * 64) for _ in range(runs)))
                await asyncio.gather(*(runtime.wait(run.run_id) for run in submitted))
        cpu[keep].append(meter.cpu / (runs * steps) * 1000)
        size[keep] = meter.bytes / (runs * steps)
    off, on = min(cpu[False]), min(cpu[True])
    report.line(
        "the timeline of runs kept, and not, L = 0",
        {
            "steps": runs * steps,
            "cpu_s_per_1000_off": off,
            "cpu_s_per_1000_on": on,
            "cpu_ratio": on / off,
            "bytes_per_step_off": size[False],
            "bytes_per_step_on": size[True],
        },
        [("at most 1.6 times the processor time", lambda f: f["cpu_ratio"] <= 1.6)],
    )


async def main() -> int:
    chosen = options("Workflow steps: how fast, and at what cost.")
    report = Report(chosen)
    await one_run_alone(chosen, report)
    await many_runs(0.02, chosen, report)
    await many_runs(0.0, chosen, report)
    await history(chosen, report)
    return report.finish()


if __name__ == "__main__":
    run(main)
