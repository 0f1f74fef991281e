"""A process dies in the middle of a step, and the next one goes on where it stopped.

The state is in a folder. Each of three stages is a step of two units of work, and each finished
unit is memoized. With --crash-at the process kills itself (as kill -9 would) in the middle of
that stage, between its two units; started again, it neither repeats the stages before nor the
unit that was finished.

    $ python examples/crash_and_resume.py --store state --crash-at transform
    fetch, attempt 1
      worked on fetch 1
      worked on fetch 2
    transform, attempt 1
      worked on transform 1
    (killed)
    $ python examples/crash_and_resume.py --store state
    transform, attempt 2
      worked on transform 2
    publish, attempt 1
      worked on publish 1
      worked on publish 2
    succeeded: fetch 1, fetch 2, transform 1, transform 2, publish 1, publish 2
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from functools import partial

from taquba import Queue
from taquba.workflow import Continue, Outcome, Step, Succeed, WorkflowRuntime

STAGES = ("fetch", "transform", "publish")


class Pipeline:
    """The runner; it knows at which stage to die."""

    def __init__(self, crash_at: str | None) -> None:
        self.crash_at = crash_at

    async def run_step(self, step: Step) -> Outcome:
        stage = STAGES[step.number]
        print(f"{stage}, attempt {step.attempt}", flush=True)
        done: list[str] = []
        for unit in (1, 2):
            if unit == 2 and stage == self.crash_at:
                os.kill(os.getpid(), signal.SIGKILL)
            done.append(await step.memo.memoized(f"unit {unit}", partial(work, f"{stage} {unit}")))
        everything = ", ".join([*filter(None, [step.payload.decode()]), *done]).encode()
        return Continue(everything) if step.number + 1 < len(STAGES) else Succeed(everything)


async def work(unit: str) -> str:
    await asyncio.sleep(0.05)  # stands for something slow and expensive
    print(f"  worked on {unit}", flush=True)
    return unit


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", default="pipeline-state", help="folder or URL of the state")
    parser.add_argument("--crash-at", choices=STAGES, help="die in the middle of this stage")
    options = parser.parse_args()
    pipeline = Pipeline(options.crash_at)
    async with Queue.open(options.store) as queue, WorkflowRuntime(queue, pipeline) as runtime:
        # If it is under way already, this changes nothing.
        run = await runtime.submit(b"", run_id="pipeline-1")
        end = await runtime.wait(run.run_id)
        print(f"{end.termination.status.value}: {(end.outcome.result or b'').decode()}")


if __name__ == "__main__":
    if "--crash-at" in sys.argv and os.environ.get("CHILD") is None:
        # Somebody must be left to say that it was killed.
        child = subprocess.run([sys.executable, *sys.argv], env={**os.environ, "CHILD": "1"})
        print("(killed)" if child.returncode == -signal.SIGKILL else child.returncode)
    else:
        asyncio.run(main())
