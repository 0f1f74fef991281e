"""Our side: a workflow runtime on a folder, each object of which is synced, as is its name."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from pathlib import Path

from _workloads import Side, Sizes, arguments, say, since_start, work

from taquba import Queue
from taquba.objectstore import LocalStore
from taquba.workflow import Continue, GroupMember, Outcome, Step, Succeed, Workflow, WorkflowRuntime

LOOK = 50


class Ours(Side):
    """Runs; the fan-out is a run that submits a group and waits for it."""

    def __init__(self, queue: Queue) -> None:
        self._done = 0
        self.runtime = WorkflowRuntime(
            queue,
            self._step,
            workflows=[Workflow("parent", self._parent)],
            concurrency=1000,
        )

    async def _step(self, step: Step) -> Outcome:
        self._done += 1
        steps = int(step.payload)
        return Continue(step.payload) if step.number < steps - 1 else Succeed(step.payload)

    async def _parent(self, step: Step) -> Outcome:
        group = self.runtime.group(step.run_id, signal_when_finished="children")
        if step.number == 0:
            members = [GroupMember(str(number), b"1") for number in range(int(step.payload))]
            await group.submit(members)
            return Continue(signal="children")
        total = 0
        async for result in group.results():
            total += int(result.outcome.result or b"")
        return Succeed(str(total).encode())

    async def run(self, steps: int) -> int:
        return await self._result(None, steps)

    async def fan_out(self, children: int) -> int:
        return await self._result("parent", children)

    async def _result(self, workflow: str | None, size: int) -> int:
        run = await self.runtime.submit(str(size).encode(), workflow=workflow)
        end = await self.runtime.wait(run.run_id)
        return int(end.outcome.result or b"")

    async def steps_done(self) -> int:
        return self._done


async def raw_creates(folder: Path, times: int) -> float:
    """Mean seconds of a create of an object of a journal entry's size, one after the other."""
    store = LocalStore(folder)
    taken: list[float] = []
    for number in range(times):
        started = time.perf_counter()
        await store.create(f"raw/{number}", b"x" * 500)
        taken.append(time.perf_counter() - started)
    await store.close()
    return statistics.fmean(taken)


async def works(folder: Path, sizes: Sizes) -> None:
    async with Queue.open(folder / "store") as queue:
        side = Ours(queue)
        async with side.runtime:
            before = await raw_creates(folder / "raw1", 2 * LOOK)
            await work(side, sizes)
            after = await raw_creates(folder / "raw2", 2 * LOOK)
    say(raw_create_s=(before + after) / 2)
    say(durability="each journal entry: fsync of the file, then of the folder that names it")


async def leaves(folder: Path, sizes: Sizes) -> None:
    """Submit runs where nobody runs them."""
    async with Queue.open(folder / "store") as queue, WorkflowRuntime(queue) as runtime:
        await asyncio.gather(*(runtime.submit(b"1") for _ in range(sizes.pending)))
        say(pending=await runtime.unfinished())
        os._exit(0)  # as if it were killed: nothing is closed


async def first(folder: Path) -> None:
    ran = asyncio.Event()
    counted = 0

    async def runner(step: Step) -> Outcome:
        nonlocal counted
        if not counted:
            say(first_s=time.perf_counter() - began, since_start_s=since_start())
        counted += 1
        ran.set()
        return Succeed()

    began = time.perf_counter()
    async with (
        Queue.open(folder / "store") as queue,
        WorkflowRuntime(queue, runner, concurrency=16),
    ):
        await ran.wait()


if __name__ == "__main__":
    command, folder, sizes = arguments()
    if command == "work":
        asyncio.run(works(folder, sizes))
    elif command == "leave":
        asyncio.run(leaves(folder, sizes))
    else:
        asyncio.run(first(folder))
