"""How the function of a job is run as the one step of a run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from taquba.clock import Clock
from taquba.errors import PermanentError
from taquba.jobs._context import BlockingJobContext, JobContext, State
from taquba.jobs._job import Job
from taquba.queue import Delivery
from taquba.queue._calling import InExecutor
from taquba.workflow import BlockingStep, Outcome, Runner, Step, Succeed

__all__ = ["runner_of"]

_GRACE = 30.0
"""Seconds that a function in an executor may take to end when its worker must."""


def runner_of(
    job: Job[..., Any],
    state: State,
    executor: Executor | None,
    clock: Clock,
    must_end: Callable[[], bool],
) -> Runner:
    """What runs this job: on the event loop, in a thread, or in an executor."""
    if executor is not None:
        return _in_executor(job, executor, clock, must_end)
    if job.is_async:

        async def on_loop(step: Step) -> Outcome:
            with _classified(job):
                returned = await job.run_encoded(JobContext(step, state), step.payload)
            return Succeed(job.result.encode(returned)[0])

        return on_loop

    def in_thread(step: BlockingStep) -> Outcome:
        with _classified(job):
            returned = job.run_encoded(BlockingJobContext(step, state), step.payload)
        return Succeed(job.result.encode(returned)[0])

    return in_thread


def _in_executor(
    job: Job[..., Any], executor: Executor, clock: Clock, must_end: Callable[[], bool]
) -> Runner:
    calling = InExecutor(job.run_remote, executor, clock=clock, grace=_GRACE)
    calling.open(must_end)

    async def run(step: Step) -> Outcome:
        with _classified(job):
            encoded: Any = await calling.call(Delivery(step._claim))
        return Succeed(encoded)

    return run


class _classified:
    """What is raised inside fails the job for good, if the job says that nothing else helps."""

    def __init__(self, job: Job[..., Any]) -> None:
        self._job = job

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        retry_if = self._job.retry_if
        if retry_if is None or not isinstance(error, Exception):
            return
        if not isinstance(error, PermanentError) and not retry_if(error):
            raise PermanentError(str(error) or type(error).__name__) from error
