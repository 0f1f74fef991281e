"""What an open store costs while nothing happens.

    python benchmarks/idle.py [--smoke] [--check]

A queue with kept and scheduled jobs, a worker and a workflow runtime, over an hour of a
clock that is moved by hand. Prints one JSON line.
"""

from __future__ import annotations

from datetime import timedelta

from _common import Report, options, run
from taquba import Queue, QueueConfig
from taquba.objectstore import MemoryStore
from taquba.testing import LatencyStore, ManualClock
from taquba.workflow import Outcome, Step, Succeed, WorkflowRuntime


async def runner(step: Step) -> Outcome:
    return Succeed(step.payload)


async def main() -> int:
    chosen = options("Requests of an idle store.")
    report = Report(chosen)
    minutes = 2 if chosen.smoke else 60
    clock = ManualClock()
    store = LatencyStore(MemoryStore(), 0.0)
    config = QueueConfig(keep_done=timedelta(days=1))
    async with (
        Queue.open(store, clock=clock, config=config) as queue,
        WorkflowRuntime(queue, runner) as runtime,
    ):
        await queue.enqueue_many("later", [b"x"] * 100, delay=timedelta(days=2))
        run_ids = [(await runtime.submit(b"x")).run_id for _ in range(100)]
        for run_id in run_ids:
            await runtime.wait(run_id)
        before = store.requests.total()
        for _ in range(minutes):
            await clock.advance(60)
        asked = store.requests.total() - before
    report.line(
        "an open store with a worker, idle",
        {"minutes": minutes, "requests": asked, "requests_per_minute": asked / minutes},
        [("0 requests", lambda f: f["requests"] == 0)],
    )
    return report.finish()


if __name__ == "__main__":
    run(main)
