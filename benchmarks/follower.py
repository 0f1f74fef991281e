"""How far a follower is behind, and what it costs.

    python benchmarks/follower.py [--smoke] [--check]

Prints one JSON line per scenario, on a store in memory behind an injected latency. The lag of
an entry is the time from its acknowledgement by the owner until the follower shows it;
`round_trip_ms` is that of a GET as measured in the same run.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import statistics
import time
from datetime import timedelta

from _common import Options, Report, options, percentile, run
from taquba import Follower, Queue
from taquba.database import Replica
from taquba.errors import ObjectNotFound
from taquba.objectstore import MemoryStore
from taquba.testing import LatencyStore, ManualClock

_TICK = 0.001


async def round_trip(store: LatencyStore, times: int = 15) -> float:
    """Median seconds of a GET that nobody else waits for."""
    taken: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        with contextlib.suppress(ObjectNotFound):
            await store.get("absent")
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


async def entries_keep_coming(
    poll_interval: float, pause: float, options: Options, report: Report
) -> None:
    """An owner that commits all the time, and a follower that looks at intervals."""
    seconds = 1.0 if options.smoke else 15.0
    memory = MemoryStore()
    store = LatencyStore(memory, 0.02)
    acknowledged: dict[int, float] = {}
    lags: list[float] = []

    async with (
        # With its history kept, so that no checkpoint makes the follower start again.
        Queue.open(LatencyStore(memory, 0.02), retain_history=timedelta(days=1)) as queue,
        Follower.open(store, poll_interval=poll_interval) as follower,
    ):

        async def watch() -> None:
            shown = follower.position
            async for position in follower.changes():
                now = time.perf_counter()
                # One that is shown before its owner hears of it is not late.
                lags.extend(
                    max(0.0, now - acknowledged.pop(seq, now)) for seq in range(shown, position)
                )
                shown = position

        async def commit() -> None:
            journal = queue._core.database.journal
            waiting = asyncio.ensure_future(queue.enqueue("q", b"x" * 64))
            await asyncio.sleep(0)
            seq = journal.seal_now().seq - 1
            await waiting
            acknowledged[seq] = time.perf_counter()

        watching = asyncio.ensure_future(watch())
        commits: list[asyncio.Future[None]] = []
        await asyncio.sleep(3 * poll_interval)
        before = store.requests.total()
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            commits.append(asyncio.ensure_future(commit()))
            await asyncio.sleep(pause)
        await asyncio.gather(*commits)
        await follower.wait_for(queue.position)
        requests = store.requests.total() - before
        watching.cancel()
        trip = await round_trip(store)
    bound = poll_interval + 2 * trip
    report.line(
        f"an entry every {pause * 1e3:.0f} ms, a look every {poll_interval * 1e3:.0f} ms, "
        "L = 20 ms",
        {
            "entries": len(lags),
            "p50_ms": percentile(lags, 0.5) * 1e3,
            "p99_ms": percentile(lags, 0.99) * 1e3,
            "largest_ms": max(lags) * 1e3,
            "round_trip_ms": trip * 1e3,
            "bound_ms": bound * 1e3,
            "requests_per_entry": requests / len(lags),
        },
        [("a lag of the interval and 2 round trips", lambda f: f["p99_ms"] <= f["bound_ms"])],
    )


async def idle(longest: float, options: Options, report: Report) -> None:
    """An idle store, over hours of a clock that is moved by hand."""
    hours = 0.1 if options.smoke else 2
    memory, clock = MemoryStore(), ManualClock()
    store = LatencyStore(memory, 0.0)
    async with Queue.open(memory, clock=clock) as queue:
        await queue.enqueue("q", b"x")
        async with Follower.open(store, poll_interval=1, max_poll_interval=longest, clock=clock):
            await clock.advance(60)
            before = store.requests.copy()
            await clock.advance(hours * 3600)
            asked = store.requests - before
    report.line(
        f"an idle store, intervals of 1 to {longest:.0f} s",
        {
            "hours": hours,
            "requests_per_interval": asked.total() / (hours * 3600 / longest),
            "gets_per_interval": asked["get"] / (hours * 3600 / longest),
            "requests_per_hour": asked.total() / hours,
        },
        [("1 request an interval, of any kind", lambda f: f["requests_per_interval"] <= 1)],
    )


async def backlog(options: Options, report: Report) -> None:
    """A follower that comes late to many entries, some of them large."""
    entries = 200 if options.smoke else 5000
    large = 2000 if options.smoke else 50_000
    memory = MemoryStore()
    stalls: list[float] = []
    busy: list[float] = []

    async def tick() -> None:
        while True:
            before, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(_TICK)
            stalls.append(max(0.0, time.perf_counter() - before - _TICK))
            busy.append(time.thread_time() - cpu)

    # With its history kept, so that the entries are there to be read.
    async with Queue.open(memory, retain_history=timedelta(days=1)) as queue:
        replica = await Replica.open(LatencyStore(memory, 0.02), clock=ManualClock())
        for number in range(entries):
            await queue.enqueue_many("q", [b"x" * 64] * (10_000 if number % 1000 == 500 else 5))
        with queue.transaction() as tx:
            for number in range(large):
                tx.put(b"%d" % number, b"x" * 64)
        await tx.durable()
        gc.collect()
        gc.freeze()  # what the owner has in memory is not the follower's
        replica_ticks = asyncio.ensure_future(tick())
        before = time.perf_counter()
        cpu = time.process_time()
        await replica.refresh()
        taken, used = time.perf_counter() - before, time.process_time() - cpu
        replica_ticks.cancel()
        caught_up = replica.position.seq == queue.position
        await replica.close()
    ordered = sorted(stalls)
    report.line(
        f"a backlog of {entries:,} entries and one of {large:,} rows, L = 20 ms",
        {
            "caught_up": int(caught_up),
            "seconds": taken,
            "entries_per_s": entries / taken,
            "cpu_s": used,
            "largest_stall_ms": ordered[-1] * 1e3,
            "p99_stall_ms": percentile(ordered, 0.99) * 1e3,
            # Of the loop's own thread, so that what else runs on the machine does not count.
            "largest_stall_cpu_ms": max(busy) * 1e3,
        },
        [("no stall over 20 ms", lambda f: f["largest_stall_cpu_ms"] <= 20)],
    )


async def main() -> int:
    chosen = options("Lag and cost of a follower.")
    report = Report(chosen)
    await entries_keep_coming(0.1, 0.05, chosen, report)
    await entries_keep_coming(0.5, 0.012, chosen, report)
    await idle(1, chosen, report)
    await idle(5, chosen, report)
    await backlog(chosen, report)
    return report.finish()


if __name__ == "__main__":
    run(main)
