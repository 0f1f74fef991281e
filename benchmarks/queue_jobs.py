"""How many jobs go through the queue from end to end, and how soon.

    python benchmarks/queue_jobs.py [--smoke] [--check]

A job is enqueued, handled by a worker, and acknowledged. Prints one JSON line per scenario, on
a store in memory behind an injected latency `L`. `raw_put_ms` is the latency as measured in
the same run, so that ratios can be read off whatever the machine.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from _common import Meter, Options, Report, options, percentile, raw_put, run
from taquba import Delivery, Queue, QueueConfig
from taquba.objectstore import MemoryStore
from taquba.queue import Claim, QueueTransaction, RateLimit, Work
from taquba.testing import LatencyStore

_PAYLOAD = b"x" * 64


@asynccontextmanager
async def working(queue: Queue, *names: str, work: Work, slots: int) -> AsyncIterator[None]:
    """What workers stand on, on each of some queues."""
    workers = [queue.engine(name, work, concurrency=slots) for name in names]
    tasks = [asyncio.ensure_future(worker.run()) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)


class Ends:
    """Notes when the acknowledgement of each job is durable."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._waiting: set[asyncio.Task[None]] = set()
        self.ended: asyncio.Queue[float] = asyncio.Queue()

    def settlement(self, claim: Claim) -> Callable[[QueueTransaction], None]:
        def settle(tx: QueueTransaction) -> None:
            tx.ack(claim)
            tx.after_commit(applied)

        def applied() -> None:
            task = asyncio.ensure_future(self._durable())
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

        return settle

    async def _durable(self) -> None:
        await self._queue.barrier()
        self.ended.put_nowait(time.perf_counter())


class Line:
    """Many producers, each waiting for each of its jobs to be stored, and a worker with as many
    slots.
    """

    def __init__(self, latency: float, config: QueueConfig, producers: int) -> None:
        self.store = LatencyStore(MemoryStore(), latency)
        self.producers = producers
        self._config = config
        self._left = 0
        self._handled = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Line]:
        async with (
            Queue.open(self.store, config=self._config) as self._queue,
            self._queue.worker("jobs", self._handle, concurrency=self.producers),
        ):
            yield self

    async def go(self, rounds: int) -> Meter:
        """So many jobs of each producer, from the first enqueue to the last acknowledgement."""
        self._left = self.producers * rounds
        self._handled.clear()
        done = (await self._queue.stats("jobs")).done + self._left
        with Meter(self.store) as meter:
            await asyncio.gather(*(self._produce(n, rounds) for n in range(self.producers)))
            await self._handled.wait()
            await asyncio.sleep(0)  # the last settlements are applied
            await self._queue.barrier()
        assert (await self._queue.stats("jobs")).done == done
        return meter

    async def _handle(self, _: Delivery) -> None:
        self._left -= 1
        if self._left == 0:
            self._handled.set()

    async def _produce(self, number: int, rounds: int) -> None:
        key = f"tenant-{number}" if self._config.concurrency_per_key else None
        for _ in range(rounds):
            await self._queue.enqueue("jobs", _PAYLOAD, concurrency_key=key)


async def measured(latency: float, options: Options) -> tuple[int, dict[str, float]]:
    """How many producers there were without any limits, and the figures."""
    producers = 30 if options.smoke else 300
    rounds = 5 if options.smoke else 50
    jobs = producers * rounds
    async with Line(latency, QueueConfig(), producers).open() as line:
        meter = await line.go(rounds)
        raw = await raw_put(line.store)
    return producers, {
        "jobs": jobs,
        "jobs_per_s": jobs / meter.seconds,
        "commits_per_s": 3 * jobs / meter.seconds,  # enqueue, claim, acknowledge
        "raw_put_ms": raw * 1e3,
        "puts_per_job": meter.puts / jobs,
        "bytes_per_job": meter.bytes / jobs,
        "cpu_s_per_1000": meter.cpu / jobs * 1000,
    }


async def through(latency: float, options: Options, report: Report) -> None:
    """Jobs through a queue without limits."""
    producers, figures = await measured(latency, options)
    if latency:
        report.line(
            f"{producers} producers, {producers} slots, L = {latency * 1e3:.0f} ms",
            figures,
            [
                ("6,000 commits/s", lambda f: f["commits_per_s"] >= 6000),
                ("2,500 jobs/s", lambda f: f["jobs_per_s"] >= 2500),
                ("0.05 PUTs a job", lambda f: f["puts_per_job"] <= 0.05),
            ],
        )
    else:
        report.line(
            f"{producers} producers, {producers} slots, L = 0",
            figures,
            [("5,000 jobs/s", lambda f: f["jobs_per_s"] >= 5000)],
        )


async def limited(options: Options, report: Report) -> None:
    """The same with limits that are on, and hold nothing back; and without, in turns.

    Each turn is compared with the one beside it, and the median counts, so that whatever else
    the machine does falls on both.
    """
    producers, rounds, turns = (30, 2, 3) if options.smoke else (300, 10, 9)
    limits = QueueConfig(
        concurrency_per_key=1000,
        max_running=1000,
        rate=RateLimit(1_000_000, per=1),
        max_depth=1_000_000,
    )
    pairs: list[tuple[Meter, Meter]] = []
    async with (
        Line(0.02, QueueConfig(), producers).open() as free,
        Line(0.02, limits, producers).open() as bound,
    ):
        for line in (free, bound):
            await line.go(1)  # both have begun
        for turn in range(turns):
            if turn % 2:
                without = await free.go(rounds)
                pairs.append((without, await bound.go(rounds)))
            else:
                under = await bound.go(rounds)
                pairs.append((await free.go(rounds), under))
        raw = await raw_put(bound.store)
    jobs = producers * rounds
    figures = {
        "jobs": jobs * turns,
        "jobs_per_s": jobs / statistics.median(under.seconds for _, under in pairs),
        "raw_put_ms": raw * 1e3,
        "puts_per_job": sum(under.puts for _, under in pairs) / jobs / turns,
        "bytes_per_job": sum(under.bytes for _, under in pairs) / jobs / turns,
        "cpu_s_per_1000": statistics.median(under.cpu for _, under in pairs) / jobs * 1000,
        "of_without": statistics.median(x.seconds / under.seconds for x, under in pairs),
        "cpu_of_without": statistics.median(under.cpu / x.cpu for x, under in pairs),
    }
    report.line(
        f"{producers} producers, {producers} slots, all limits on, L = 20 ms",
        figures,
        [
            ("within 10 % of the jobs/s", lambda f: f["of_without"] >= 0.9),
            ("within 10 % of the processor time", lambda f: f["cpu_of_without"] <= 1.1),
        ],
    )


async def one_by_one(options: Options, report: Report) -> None:
    """One producer and one worker with the store to themselves."""
    jobs = 10 if options.smoke else 150
    store = LatencyStore(MemoryStore(), 0.02)
    enqueued: list[float] = []
    started: list[float] = []
    ended: list[float] = []
    async with Queue.open(store) as queue:
        ends = Ends(queue)

        async def handler(claim: Claim) -> Callable[[QueueTransaction], None]:
            started.append(time.perf_counter())
            return ends.settlement(claim)

        async with working(queue, "jobs", work=handler, slots=1):
            with Meter(store) as meter:
                for _ in range(jobs):
                    enqueued.append(time.perf_counter())
                    await queue.enqueue("jobs", _PAYLOAD)
                    ended.append(await ends.ended.get())
        raw = await raw_put(store)
    to_start = [after - before for before, after in zip(enqueued, started, strict=True)]
    to_end = [after - before for before, after in zip(enqueued, ended, strict=True)]
    figures = {
        "jobs": jobs,
        "to_start_p50_ms": percentile(to_start, 0.5) * 1e3,
        "to_start_p99_ms": percentile(to_start, 0.99) * 1e3,
        "to_end_p50_ms": percentile(to_end, 0.5) * 1e3,
        "to_end_p99_ms": percentile(to_end, 0.99) * 1e3,
        "raw_put_ms": raw * 1e3,
        "to_start_in_raw_puts": percentile(to_start, 0.5) / raw,
        "to_end_in_raw_puts": percentile(to_end, 0.5) / raw,
        "puts_per_job": meter.puts / jobs,
        "cpu_s_per_1000": meter.cpu / jobs * 1000,
    }
    report.line(
        "one producer, one worker, L = 20 ms",
        figures,
        [
            ("1.2 L to the handler's start", lambda f: f["to_start_in_raw_puts"] <= 1.2),
            ("2.2 L to the acknowledgement", lambda f: f["to_end_in_raw_puts"] <= 2.2),
        ],
    )


async def many_queues(options: Options, report: Report) -> None:
    """A thousand queues, each with a worker that waits for jobs."""
    count = 50 if options.smoke else 1000
    seconds = 0.2 if options.smoke else 5.0
    store = LatencyStore(MemoryStore(), 0.02)
    names = [f"queue-{number}" for number in range(count)]
    async with Queue.open(store) as queue:

        async def handler(claim: Claim) -> Callable[[QueueTransaction], object]:
            return lambda tx: tx.ack(claim)

        async with working(queue, *names, work=handler, slots=4):
            await asyncio.gather(*(queue.enqueue(name, _PAYLOAD) for name in names))
            await asyncio.sleep(0.5)  # they are all handled
            await queue.barrier()
            with Meter(store) as meter:
                await asyncio.sleep(seconds)
        done = [(await queue.stats(name)).done for name in names]
        assert done == [1] * count
    report.line(
        f"{count:,} queues with a worker each, idle",
        {"queues": count, "cpu_percent": meter.cpu / meter.seconds * 100, "puts": meter.puts},
        [
            ("1 % of a processor", lambda f: f["cpu_percent"] <= 1.0),
            ("0 PUTs", lambda f: f["puts"] == 0),
        ],
    )


async def main() -> int:
    chosen = options("Jobs from end to end: how many, how soon, and at what cost.")
    report = Report(chosen)
    await through(0.02, chosen, report)
    await through(0.0, chosen, report)
    await limited(chosen, report)
    await one_by_one(chosen, report)
    await many_queues(chosen, report)
    return report.finish()


if __name__ == "__main__":
    run(main)
