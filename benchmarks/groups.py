"""How fast groups of runs go, and what they cost.

    python benchmarks/groups.py [--smoke] [--check]

Each scenario has a process of its own, so that the memory is its own. Prints one JSON line for
each. The store is in memory; what it holds is told apart, since a bucket would hold it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator

from _common import Meter, Options, Report, options, peak_mb, resident_mb, run
from taquba import Queue
from taquba.objectstore import MemoryStore
from taquba.testing import LatencyStore
from taquba.workflow import GroupMember, Outcome, Step, Succeed, WorkflowRuntime

_INPUT = b"x" * 64


def members(count: int) -> Iterator[GroupMember]:
    """So many members, made when they are asked for."""
    return (GroupMember(f"item-{number}", _INPUT) for number in range(count))


async def whole(count: int) -> dict[str, float]:
    """A group is submitted and all its results are read, L = 20 ms; then it is submitted again."""
    store = LatencyStore(MemoryStore(), 0.02)
    called = 0

    async def runner(step: Step) -> Outcome:
        nonlocal called
        called += 1
        return Succeed(step.payload)

    async with (
        Queue.open(store) as queue,
        WorkflowRuntime(queue, runner, concurrency=1000) as runtime,
    ):
        group = runtime.group("batch")
        with Meter(store) as meter:
            await group.submit(members(count))
            results = [result async for result in group.results()]
        if len(results) != count or called != count:
            raise RuntimeError(f"{len(results)} results of {called} calls")
        peak = peak_mb()
        del results
        with Meter(store) as again:
            await group.submit(members(count))
        if called != count:
            raise RuntimeError(f"{called - count} members were run again")
    return {
        "members": count,
        "members_per_s": count / meter.seconds,
        "puts_per_member": meter.puts / count,
        "bytes_per_member": meter.bytes / count,
        "cpu_s_per_1000": meter.cpu / count * 1000,
        "peak_mb": peak,
        "again_s": again.seconds,
        "again_puts": again.puts,
    }


async def streamed(count: int) -> dict[str, float]:
    """Members of an iterator are submitted, L = 0, and nobody works on them."""
    store = MemoryStore()
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - before - 0.001)

    async with Queue.open(store) as queue, WorkflowRuntime(queue) as runtime:
        await runtime.group("first").submit(members(100))
        before = resident_mb(), await held_mb(store)
        watching = asyncio.ensure_future(watch())
        started = time.perf_counter(), time.process_time()
        await runtime.group("batch").submit(members(count))
        seconds, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
        watching.cancel()
        grown = resident_mb() - before[0]
        held = await held_mb(store) - before[1]
    return {
        "members": count,
        "members_per_s": count / seconds,
        "cpu_s_per_1000": cpu / count * 1000,
        "grown_mb": grown,
        "store_mb": held,
        "bytes_per_member": (grown - held) * 1e6 / count,
        "longest_stall_ms": longest * 1e3,
        "peak_mb": peak_mb(),
    }


async def held_mb(store: MemoryStore) -> float:
    """Megabytes of objects in this store."""
    return sum([info.size async for info in store.list("")]) / 1e6


def child(name: str, count: int) -> dict[str, float]:
    """What a child process that was told to do one of the above prints."""
    command = [sys.executable, __file__, "--child", name, str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure(chosen: Options, report: Report) -> None:
    count = 1000 if chosen.smoke else 10_000
    report.line(
        f"{count:,} members submitted, all results read and submitted again, L = 20 ms",
        child("whole", count),
        [
            ("2,500 members/s", lambda f: f["members_per_s"] >= 2500),
            ("0.02 PUTs a member", lambda f: f["puts_per_member"] <= 0.02),
            ("150 MB resident", lambda f: f["peak_mb"] <= 150),
            ("2 s to submit it again", lambda f: f["again_s"] <= 2),
        ],
    )
    count = 10_000 if chosen.smoke else 1_000_000
    report.line(
        f"{count:,} members of an iterator submitted, L = 0",
        child("streamed", count),
        [
            ("10,000 members/s", lambda f: f["members_per_s"] >= 10_000),
            ("1 KB a pending member", lambda f: f["bytes_per_member"] <= 1024),
        ],
    )


async def main() -> int:
    chosen = options("Groups of runs: how fast, and at what cost.")
    report = Report(chosen)
    await asyncio.to_thread(measure, chosen, report)
    return report.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        work = {"whole": whole, "streamed": streamed}[sys.argv[2]]
        print(json.dumps(asyncio.run(work(int(sys.argv[3])))))
    else:
        run(main)
