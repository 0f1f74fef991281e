"""A parameter sweep on a process pool, which goes on where it was when it was interrupted.

    $ python examples/parameter_sweep.py --store sweep
    30 points: 30 computed now, 0 known from before
    in other processes: True
    best: rate 3.52 gives 0.879487
    $ python examples/parameter_sweep.py --store sweep
    30 points: 0 computed now, 30 known from before
    in other processes: True
    best: rate 3.52 gives 0.879487

Each point is a job of a class, and all of them are a group: a point is computed once, however often
the sweep is started. What is computed is the largest value that the logistic map comes to.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from pydantic import BaseModel

from taquba import Queue
from taquba.errors import GroupNotFound
from taquba.jobs import JobRunner, job
from taquba.queue import JobView


class Found(BaseModel):
    rate: float
    value: float
    process: int


@job("point", executor="cpu")
class Point(BaseModel):
    rate: float
    start: float
    steps: int = 20_000

    def run(self, view: JobView) -> Found:
        x = self.start
        largest = 0.0
        for step in range(self.steps):
            x = self.rate * x * (1 - x)
            if step > self.steps // 2:
                largest = max(largest, x)
        return Found(rate=self.rate, value=largest, process=os.getpid())


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", default="sweep-state", help="folder or URL of the state")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    points = [(round(2.8 + 0.08 * n, 2), start) for n in range(10) for start in (0.2, 0.4, 0.6)]
    # Not by fork: other threads are running in this process.
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        async with (
            Queue.open(options.store) as queue,
            JobRunner(
                queue, [Point], executors={"cpu": pool}, concurrency=2 * options.processes
            ) as jobs,
        ):
            try:
                known = (await jobs.group("sweep").status()).succeeded
            except GroupNotFound:
                known = 0
            values = jobs.map(
                lambda point: Point(rate=point[0], start=point[1]),
                points,
                key=lambda point: f"rate {point[0]}, start {point[1]}",
                group_id="sweep",
            )
            results = [found async for found in values]
    best = max(results, key=lambda found: (found.value, found.rate))
    print(f"{len(points)} points: {len(points) - known} computed now, {known} known from before")
    print(f"in other processes: {all(found.process != os.getpid() for found in results)}")
    print(f"best: rate {best.rate} gives {best.value:.6f}")


if __name__ == "__main__":
    asyncio.run(main())
