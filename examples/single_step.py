"""The smallest workflow: one step, whose result is what it was given, in capitals.

    $ python examples/single_step.py
    run hello-1 succeeded: HELLO, WORLD

Its state is in memory. With a folder or a bucket instead, the run would survive a crash.
"""

from __future__ import annotations

import asyncio

from taquba import Queue
from taquba.workflow import Outcome, Step, Succeed, WorkflowRuntime


async def runner(step: Step) -> Outcome:
    return Succeed(step.payload.upper())


async def main() -> None:
    async with Queue.open("memory://") as queue, WorkflowRuntime(queue, runner) as runtime:
        run = await runtime.submit(b"hello, world", run_id="hello-1")
        end = await runtime.wait(run.run_id)
        result = (end.outcome.result or b"").decode()
        print(f"run {run.run_id} {end.termination.status.value}: {result}")


if __name__ == "__main__":
    asyncio.run(main())
