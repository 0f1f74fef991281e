"""What every side does: the same workloads, and how they are counted.

A side is a script with two commands: `work` runs all workloads but the last, and prints a JSON
line for each; `leave` leaves runs pending in a folder, and `first` waits in a fresh process until
one of them has run. The sides run in environments of their own, so this imports nothing but the
standard library.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path

ONE, RUNS, MANY, JOBS, FAN_OUT, RESTART = (
    "1 run",
    "some runs",
    "many runs",
    "single-step jobs",
    "fan-out",
    "restart",
)


class Sizes:
    """How much of everything."""

    def __init__(self, *, smoke: bool) -> None:
        self.one = 10 if smoke else 100
        self.runs, self.steps = (5, 4) if smoke else (100, 20)
        self.many, self.many_steps = (20, 2) if smoke else (1000, 5)
        self.submitters, self.jobs = (5, 20) if smoke else (100, 2000)
        self.children = 10 if smoke else 500
        self.pending = 50 if smoke else 5000


class Side(ABC):
    """One of those that are compared."""

    @abstractmethod
    async def run(self, steps: int) -> int:
        """Do a run of so many steps that do nothing, each durable; how many it has done."""

    @abstractmethod
    async def fan_out(self, children: int) -> int:
        """Do a run that begins so many others of one step and reads their results: the sum."""

    @abstractmethod
    async def steps_done(self) -> int:
        """How many steps have run, as counted by the steps themselves."""

    def cpu(self) -> float:
        """Processor seconds of all processes of this side so far."""
        return time.process_time()


def say(**figures: object) -> None:
    """Print what was measured."""
    print(json.dumps(figures), flush=True)


async def work(side: Side, sizes: Sizes) -> None:
    """Do all workloads, check that all of their work was done, and print how long each took."""

    async def measured(name: str, count: int, do: Callable[[], Awaitable[int]]) -> None:
        before = await side.steps_done()
        began, cpu = time.perf_counter(), side.cpu()
        told = await do()
        seconds, used = time.perf_counter() - began, side.cpu() - cpu
        did = await side.steps_done() - before
        if told != count or did != count:
            raise AssertionError(f"{name}: {count} steps wanted, {did} done, {told} reported")
        say(workload=name, count=count, seconds=seconds, cpu=used)

    async def several(runs: int, steps: int) -> int:
        return sum(await asyncio.gather(*(side.run(steps) for _ in range(runs))))

    async def submitter() -> int:
        return sum([await side.run(1) for _ in range(sizes.jobs // sizes.submitters)])

    async def submitters() -> int:
        return sum(await asyncio.gather(*(submitter() for _ in range(sizes.submitters))))

    await side.run(1)  # whatever is made at the first use
    await measured(ONE, sizes.one, lambda: side.run(sizes.one))
    await measured(RUNS, sizes.runs * sizes.steps, lambda: several(sizes.runs, sizes.steps))
    await measured(
        MANY, sizes.many * sizes.many_steps, lambda: several(sizes.many, sizes.many_steps)
    )
    await measured(JOBS, sizes.jobs, submitters)
    await measured(FAN_OUT, sizes.children, lambda: side.fan_out(sizes.children))


def arguments() -> tuple[str, Path, Sizes]:
    """The command, the folder, and how much of everything."""
    command, folder, size = sys.argv[1:]
    return command, Path(folder), Sizes(smoke=size == "smoke")


def since_start() -> float:
    """Seconds since this process was started, imports and all (Linux)."""
    with open("/proc/self/stat", encoding="ascii") as file:
        started = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
