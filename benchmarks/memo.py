"""What memos cost: requests, time, and the event loop when a run ends that has many.

    python benchmarks/memo.py [--smoke] [--check]

Prints one JSON line per scenario. Stores are in memory behind an injected latency `L`.
"""

from __future__ import annotations

import asyncio
import time

from _common import Meter, Options, Report, options, percentile, raw_put, run
from taquba import Queue
from taquba.objectstore import MemoryStore
from taquba.testing import LatencyStore
from taquba.workflow import Continue, Outcome, Step, Succeed, WorkflowRuntime

_MIB = 1024 * 1024


async def beside_others(options: Options, report: Report) -> None:
    """How many PUTs small values add, while others have something to store all the time."""
    span = 0.5 if options.smoke else 4.0
    values = 0
    puts: list[int] = []
    for memoizing in (False, True):
        store = LatencyStore(MemoryStore(), 0.02)
        over = asyncio.Event()

        async def runner(step: Step, over: asyncio.Event = over) -> Outcome:
            nonlocal values
            number = 0
            while not over.is_set():
                number += 1
                await step.memo.memoized(f"k{number}", lambda: {"answer": "x" * 1000})
                values += 1
            return Succeed()

        async def produce(queue: Queue, over: asyncio.Event = over) -> None:
            async with asyncio.TaskGroup() as group:
                while not over.is_set():
                    group.create_task(queue.enqueue("others", b"x" * 64))
                    await asyncio.sleep(0.002)

        async with Queue.open(store) as queue, WorkflowRuntime(queue, runner) as runtime:
            producing = asyncio.ensure_future(produce(queue))
            if memoizing:
                await runtime.submit(b"", run_id="r")
            await asyncio.sleep(0.1)
            with Meter(store) as meter:
                await asyncio.sleep(span)
            puts.append(meter.puts)
            over.set()
            await producing
    without, with_them = puts
    report.line(
        "small values beside a job every 2 ms, L = 20 ms",
        {
            "values": values,
            "puts_without": without,
            "puts_with": with_them,
            "puts_per_value": max(0, with_them - without) / max(values, 1),
        },
        [("0.1 PUTs a value", lambda f: f["puts_per_value"] <= 0.1)],
    )


async def side_by_side(options: Options, report: Report) -> None:
    """Runs that each store a value in each of their steps."""
    runs, steps = (20, 5) if options.smoke else (300, 20)
    store = LatencyStore(MemoryStore(), 0.02)

    async def runner(step: Step) -> Outcome:
        await step.memo.memoized("k", lambda: {"answer": "x" * 1000})
        return Continue() if step.number < steps - 1 else Succeed()

    async with (
        Queue.open(store) as queue,
        WorkflowRuntime(queue, runner, concurrency=runs) as runtime,
    ):
        with Meter(store) as meter:
            submitted = await asyncio.gather(*(runtime.submit(b"") for _ in range(runs)))
            await asyncio.gather(*(runtime.wait(each.run_id) for each in submitted))
    values = runs * steps
    report.line(
        f"a small value in each step of {runs} runs, L = 20 ms",
        {
            "values": values,
            "values_per_s": values / meter.seconds,
            "puts_per_value": meter.puts / values,
            "bytes_per_value": meter.bytes / values,
            "cpu_s_per_1000": meter.cpu / values * 1000,
        },
        [("0.05 PUTs a value and its step", lambda f: f["puts_per_value"] <= 0.05)],
    )


async def reading(options: Options, report: Report) -> None:
    """Values that are there: how fast, and how many requests."""
    reads = 500 if options.smoke else 50_000
    store = LatencyStore(MemoryStore(), 0.02)
    figures: dict[str, float] = {"reads": reads}

    async def runner(step: Step) -> Outcome:
        memo = step.memo
        await memo.put("bytes", b"x" * 1000)
        await memo.memoized("plain", lambda: {"answer": "x" * 1000})
        await memo.memoized("typed", lambda: {"answer": "x" * 1000}, dict[str, str])
        before = store.requests.total()
        began = time.process_time()
        for _ in range(reads):
            await memo.get("bytes")
        figures["get_us"] = (time.process_time() - began) / reads * 1e6
        began = time.process_time()
        for _ in range(reads):
            await memo.memoized("plain", lambda: 0)
        figures["memoized_us"] = (time.process_time() - began) / reads * 1e6
        began = time.process_time()
        for _ in range(reads):
            await memo.memoized("typed", lambda: {}, dict[str, str])
        figures["typed_us"] = (time.process_time() - began) / reads * 1e6
        figures["requests"] = store.requests.total() - before
        return Succeed()

    async with Queue.open(store) as queue, WorkflowRuntime(queue, runner) as runtime:
        await runtime.submit(b"", run_id="r")
        await runtime.wait("r")
    report.line(
        "small values that are there",
        figures,
        [
            ("0 requests", lambda f: f["requests"] == 0),
            ("50 µs of processor a read", lambda f: f["memoized_us"] <= 50),
        ],
    )


async def large_values(size: int, options: Options, report: Report) -> None:
    """Values that are objects: how long storing and reading one takes, in round trips."""
    times = 2 if options.smoke else 15
    store = LatencyStore(MemoryStore(), 0.02)
    put: list[float] = []
    got: list[float] = []
    value = bytes(size)

    async def runner(step: Step) -> Outcome:
        for number in range(times):
            began = time.perf_counter()
            await step.memo.put(f"k{number}", value)
            put.append(time.perf_counter() - began)
            began = time.perf_counter()
            await step.memo.get(f"k{number}")
            got.append(time.perf_counter() - began)
        return Succeed()

    async with Queue.open(store) as queue, WorkflowRuntime(queue, runner) as runtime:
        await runtime.submit(b"", run_id="r")
        await runtime.wait("r")
        raw = await raw_put(store)
    report.line(
        f"values of {size // 1024:,} KiB, L = 20 ms",
        {
            "put_p50_ms": percentile(put, 0.5) * 1e3,
            "get_p50_ms": percentile(got, 0.5) * 1e3,
            "raw_put_ms": raw * 1e3,
            "put_p50_in_raw_puts": percentile(put, 0.5) / raw,
            "get_p50_in_raw_puts": percentile(got, 0.5) / raw,
        },
        [
            ("3 L to store one", lambda f: f["put_p50_in_raw_puts"] <= 3),
            ("1.5 L to read one", lambda f: f["get_p50_in_raw_puts"] <= 1.5),
        ]
        if size <= _MIB
        else [],
    )


async def end_of_a_large_run(size: int, options: Options, report: Report) -> None:
    """How long the event loop is held up while what a run has stored is removed."""
    count = 1000 if options.smoke else (100_000 if size < 1024 else 5_000)
    busy: list[float] = []
    ended = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        for start in range(0, count, 500):
            numbers = range(start, min(start + 500, count))
            await asyncio.gather(*(step.memo.put(f"k{n}", bytes(size)) for n in numbers))
        ended.set()
        return Succeed()

    async def watch() -> None:
        await ended.wait()
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            busy.append(time.thread_time() - before)

    async with Queue.open(MemoryStore()) as queue, WorkflowRuntime(queue, runner) as runtime:
        watching = asyncio.ensure_future(watch())
        await runtime.submit(b"", run_id="r")
        await runtime.wait("r")
        began = time.perf_counter()
        while queue.peek("SELECT 1 FROM memos LIMIT 1"):
            await asyncio.sleep(0.01)
        seconds = time.perf_counter() - began
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    report.line(
        f"the end of a run with {count:,} values of {size:,} bytes",
        {"seconds": seconds, "largest_stall_cpu_ms": max(busy) * 1e3, "looks": len(busy)},
        [("no stall over 20 ms", lambda f: f["largest_stall_cpu_ms"] <= 20)] if size < 1024 else [],
    )


async def main() -> int:
    chosen = options("Memos: requests, time, and the end of a run that has many.")
    report = Report(chosen)
    await beside_others(chosen, report)
    await side_by_side(chosen, report)
    await reading(chosen, report)
    await large_values(_MIB, chosen, report)
    await large_values(32 * _MIB, chosen, report)
    await end_of_a_large_run(100, chosen, report)
    await end_of_a_large_run(32 * 1024, chosen, report)
    return report.finish()


if __name__ == "__main__":
    run(main)
