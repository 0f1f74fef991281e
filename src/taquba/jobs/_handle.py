"""A job that was submitted."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from taquba.clock import Duration
from taquba.errors import JobFailed
from taquba.workflow import ErrorKind, RunOutcome, RunStatus, TerminalStatus

if TYPE_CHECKING:
    from taquba.jobs._definition import Definition
    from taquba.workflow import WorkflowRuntime

__all__ = ["JobHandle", "result_of"]

R = TypeVar("R")


class JobHandle(Generic[R]):
    """A job that was submitted: awaiting it waits for its result.

    It may be awaited from many tasks, and as often as you like. It holds nothing but the id:
    one made by `JobRunner.handle` after a restart is as good.
    """

    __slots__ = ("_job", "_runtime", "created", "job_id")

    job_id: str
    """The job's id."""
    created: bool
    """False if the job had been submitted before, with the same idempotency key."""

    def __init__(
        self, runtime: WorkflowRuntime, job: Definition[R], job_id: str, *, created: bool
    ) -> None:
        """Not for callers: `JobRunner.submit` and `JobRunner.handle` make it."""
        self._runtime = runtime
        self._job = job
        self.job_id = job_id
        self.created = created

    def __await__(self) -> Generator[Any, None, R]:
        return self.result().__await__()

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait until the job has ended, and give what its function returned.

        Args:
            timeout: Give up after this long; the job is not affected. None: never.

        Raises:
            JobFailed: It failed, or was cancelled.
            RunNotFound: There is no such job (any more).
            TimeoutError: It had not ended in time.
            SerializationError: What it returned does not decode as the result's type now.
        """
        return result_of(self._job, (await self._runtime.wait(self.job_id, timeout)).outcome)

    async def fetch_result(self) -> R | None:
        """What the function returned, if the job has ended.

        None while it has not, and if there is no such job: `status` tells them apart.

        Raises:
            JobFailed: It failed, or was cancelled.
            SerializationError: What it returned does not decode as the result's type now.
        """
        outcome = await self._runtime.outcome(self.job_id)
        return None if outcome is None else result_of(self._job, outcome)

    async def status(self) -> RunStatus | None:
        """Where the job is; None if there is no such job (any more)."""
        return await self._runtime.status(self.job_id)

    async def cancel(self) -> bool:
        """Cancel the job; see `WorkflowRuntime.cancel`."""
        return await self._runtime.cancel(self.job_id)

    def __repr__(self) -> str:
        return f"<JobHandle {self.job_id} of {self._job.name!r}>"


def result_of(job: Definition[R], outcome: RunOutcome) -> R:
    """The result of a job that has ended.

    Raises:
        JobFailed: It failed, or was cancelled.
        SerializationError: The result does not decode as its type now.
    """
    if outcome.status is TerminalStatus.SUCCEEDED:
        return cast(R, job.result.decode(outcome.result or b""))
    is_cancelled = outcome.status is TerminalStatus.CANCELLED
    ended = "was cancelled" if is_cancelled else "failed"
    reason = f": {outcome.error}" if outcome.error else ""
    raise JobFailed(
        f"job {outcome.run_id} ({job.name!r}) {ended}{reason}",
        job_id=outcome.run_id,
        error=outcome.error,
        cancelled=is_cancelled,
        permanent=outcome.error_kind is ErrorKind.PERMANENT,
    )
