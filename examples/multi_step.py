"""A run of several steps, each committed before the next one starts.

The payload goes from step to step, and the headers that the run was submitted with go along to
every step and to the outcome. A transient error in the middle is retried: the steps before it
are not run again.

    $ python examples/multi_step.py
    step 0, attempt 1: 0 of 4
    step 1, attempt 1: 1 of 4
    step 2, attempt 1: 2 of 4
    step 2, attempt 2: 2 of 4
    step 3, attempt 1: 3 of 4
    succeeded after step 4: reached 4, traced as demo-trace
"""

from __future__ import annotations

import asyncio

from taquba import Queue, QueueConfig
from taquba.workflow import Continue, Outcome, Step, Succeed, TransientError, WorkflowRuntime


async def runner(step: Step) -> Outcome:
    count, goal = (int(number) for number in step.payload.split(b"/"))
    if count == goal:
        return Succeed(f"reached {goal}".encode())
    print(f"step {step.number}, attempt {step.attempt}: {count} of {goal}")
    if count == 2 and step.attempt == 1:
        raise TransientError("a service was not there")
    return Continue(f"{count + 1}/{goal}".encode())


async def main() -> None:
    config = QueueConfig(backoff_base=0.01)
    async with (
        Queue.open("memory://", config=config) as queue,
        WorkflowRuntime(queue, runner) as runtime,
    ):
        run = await runtime.submit(b"0/4", headers={"trace": "demo-trace"})
        end = await runtime.wait(run.run_id)
    result = (end.outcome.result or b"").decode()
    print(
        f"{end.termination.status.value} after step {end.termination.final_step}: {result}, "
        f"traced as {end.outcome.headers['trace']}"
    )


if __name__ == "__main__":
    asyncio.run(main())
