"""How the function of a job is run as the one step of a run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from taquba.clock import Clock
from taquba.errors import PermanentError
from taquba.jobs._context import BlockingJobContext, JobContext, State
from taquba.jobs._definition import Definition
from taquba.queue import Delivery
from taquba.queue._calling import InExecutor
from taquba.workflow import BlockingStep, Outcome, Runner, Step, Succeed

__all__ = ["runner_of"]

_GRACE = 30.0
"""Seconds that a function in an executor may take to end when its worker must."""


def runner_of(
    job: Definition[Any],
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
            with _classified(job, step.payload):
                returned = await job.run_encoded(JobContext(step, state), step.payload)
            return Succeed(job.result.encode(returned)[0])

        return on_loop

    def in_thread(step: BlockingStep) -> Outcome:
        with _classified(job, step.payload):
            returned = job.run_encoded(BlockingJobContext(step, state), step.payload)
        return Succeed(job.result.encode(returned)[0])

    return in_thread


def _in_executor(
    job: Definition[Any], executor: Executor, clock: Clock, must_end: Callable[[], bool]
) -> Runner:
    calling = InExecutor(job.run_remote, executor, clock=clock, grace=_GRACE)
    calling.open(must_end)

    async def run(step: Step) -> Outcome:
        with _classified(job, step.payload):
            encoded: Any = await calling.call(Delivery(step._claim))
        return Succeed(encoded)

    return run


class _classified:
    """What is raised inside fails the job for good, if the job says that nothing else helps."""

    def __init__(self, job: Definition[Any], data: bytes) -> None:
        self._job = job
        self._data = data

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, PermanentError):
            return
        if not self._job.retries(self._data, error):
            raise PermanentError(str(error) or type(error).__name__) from error
