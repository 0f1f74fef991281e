"""How long it takes until interrupted work goes on.

    python benchmarks/reopen.py [--smoke] [--check]

A child process begins thousands of runs in a local folder, and is killed in the middle of
their second steps; then this one opens the folder and waits for the first step. Prints one
JSON line.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time

from _common import Report, options, run
from taquba import Queue
from taquba.workflow import Continue, Outcome, Step, Succeed, WorkflowRuntime


async def leave_interrupted(folder: str, runs: int) -> None:
    """Begin runs, and say so when all are in the middle of their second steps."""
    stuck = asyncio.Event()
    begun = 0
    all_begun = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        nonlocal begun
        if step.number == 0:
            return Continue(step.payload)
        begun += 1
        if begun == runs:
            all_begun.set()
        await stuck.wait()
        return Succeed()

    async with (
        Queue.open(folder) as queue,
        WorkflowRuntime(queue, runner, concurrency=runs) as runtime,
    ):
        await asyncio.gather(*(runtime.submit(b"x" * 200) for _ in range(runs)))
        await all_begun.wait()
        print("begun", flush=True)
        await stuck.wait()


def kill_a_child_that_works(folder: str, runs: int) -> None:
    """Let a child process begin the runs, and kill it."""
    command = [sys.executable, __file__, "--leave", folder, str(runs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        if child.stdout.readline() != "begun\n":
            raise RuntimeError("the child process failed; see above")
        child.kill()


async def time_to_first_step(folder: str) -> tuple[float, float, int]:
    """Seconds to open, and to the first step; and how many runs were there."""
    first = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        first.set()
        return Succeed()

    started = time.perf_counter()
    async with Queue.open(folder) as queue:
        opened = time.perf_counter() - started
        async with WorkflowRuntime(queue, runner, concurrency=16) as runtime:
            await first.wait()
            stepped = time.perf_counter() - started
            unfinished = await runtime.unfinished()
    return opened, stepped, unfinished


async def main() -> int:
    chosen = options("From opening a store to the first step of an interrupted run.")
    report = Report(chosen)
    runs = 200 if chosen.smoke else 5000
    with tempfile.TemporaryDirectory() as folder:
        kill_a_child_that_works(folder, runs)
        opened, stepped, unfinished = await time_to_first_step(folder)
    report.line(
        f"{runs} interrupted runs in a local folder",
        {"open_s": opened, "first_step_s": stepped, "unfinished": unfinished},
        [("a first step within 1 s", lambda f: f["first_step_s"] < 1.0)],
    )
    return report.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--leave"]:
        asyncio.run(leave_interrupted(sys.argv[2], int(sys.argv[3])))
    else:
        run(main)
