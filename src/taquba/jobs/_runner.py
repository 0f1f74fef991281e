"""Runs typed jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, TypeVar, final

from taquba.clock import Duration
from taquba.errors import InvalidArgument
from taquba.jobs._class import JobLike, Submittable, call_of, definition_of
from taquba.jobs._context import State
from taquba.jobs._definition import job_id_of
from taquba.jobs._handle import JobHandle
from taquba.jobs._running import runner_of
from taquba.queue import Effects, Queue
from taquba.workflow import Workflow, WorkflowRuntime

__all__ = ["JobRunner"]

R = TypeVar("R")


@final
class JobRunner:
    """Runs functions and classes as durable jobs, in ``async with``; submits them, gives results.

    Each job is a run of one step: it survives crashes, is retried with backoff, and its result
    is kept. A call of a job that no runner knows waits until one does.

    Example:
        >>> import asyncio
        >>> from taquba import Queue
        >>> from taquba.jobs import JobContext, JobRunner, job
        >>> class Mailer:
        ...     async def send(self, to: str, subject: str) -> str:
        ...         return f"sent {subject!r} to {to}"
        >>> @job("email.send", max_attempts=5)
        ... async def send_email(ctx: JobContext, to: str, subject: str) -> str:
        ...     return await ctx.state(Mailer).send(to, subject)
        >>> async def main() -> str:
        ...     async with Queue.open("memory://") as queue:
        ...         async with JobRunner(queue, [send_email], state=[Mailer()]) as jobs:
        ...             handle = await jobs.submit(send_email(to="a@example.com", subject="hi"))
        ...             return await handle
        >>> asyncio.run(main())
        "sent 'hi' to a@example.com"
    """

    def __init__(
        self,
        queue: Queue,
        jobs: Iterable[JobLike[Any]],
        *,
        state: Iterable[object] = (),
        executors: Mapping[str, Executor] | None = None,
        queue_name: str = "jobs",
        concurrency: int = 16,
        renew: Literal["auto"] | None = "auto",
        job_timeout: Duration | None = None,
        retention: Duration | None = None,
        drain_timeout: Duration | None = None,
    ) -> None:
        """Prepare a runner.

        Args:
            queue: An open queue.
            jobs: The jobs that it runs; without any it submits and looks, and runs nothing.
            state: Objects that jobs get by their type, from `JobContext.state`.
            executors: By name, what the jobs run in that name one. They are the caller's: they
                must be open as long as the runner, and are not shut down.
            queue_name: What the jobs belong to; two runners with different names do not see
                each other's jobs.
            concurrency: Jobs at the same time, at least 1.
            renew: ``"auto"``: a job is held for as long as its function runs. None: for as long
                as the lease of its queue's configuration, 30 s by default, unless it asks for
                more with `JobContext.lease`; then it is cancelled, and run again.
            job_timeout: How long a function may run: one that takes longer is cancelled, and has
                failed an attempt. None: no such limit.
            retention: Jobs are forgotten this long after their end. None: they are kept.
            drain_timeout: How long leaving the block waits for jobs under way, before they are
                cancelled and given back. None: as long as they take.

        Raises:
            InvalidArgument: Something of the above is wrong.
        """
        shared = State(state)
        pools = dict(executors or {})
        workflows: list[Workflow] = []
        for each in map(definition_of, jobs):
            if each.executor is not None and each.executor not in pools:
                raise InvalidArgument(
                    f"job {each.name!r} runs in executor {each.executor!r}: pass it, "
                    f"JobRunner(…, executors={{{each.executor!r}: …}})"
                )
            executor = None if each.executor is None else pools[each.executor]
            runner = runner_of(each, shared, executor, queue.clock, self._must_end)
            workflows.append(Workflow(each.name, runner))
        self._runtime = WorkflowRuntime(
            queue,
            workflows=workflows,
            queue_name=queue_name,
            concurrency=concurrency,
            drain_timeout=drain_timeout,
            retention=retention,
            renew=renew,
            step_timeout=job_timeout,
        )

    def _must_end(self) -> bool:
        return self._runtime.must_end()

    @property
    def runtime(self) -> WorkflowRuntime:
        """The workflow runtime below: jobs are its runs."""
        return self._runtime

    async def __aenter__(self) -> JobRunner:
        await self._runtime.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._runtime.__aexit__(kind, error, trace)

    async def submit(
        self,
        call: Submittable[R],
        *,
        idempotency_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        run_at: datetime | None = None,
        effects: Effects | None = None,
    ) -> JobHandle[R]:
        """Submit a call of a job. When this returns, it survives any crash.

        Args:
            call: What calling a job gives: ``send_email(to="a@example.com", subject="hi")``.
            idempotency_key: Any text; a job that was submitted with it before is not submitted
                again, also if it has ended, as long as it is kept. Default: what the job says,
                or else a new job.
            headers: Text that the job's function sees.
            priority: Lower is served first.
            max_attempts: Default: the job's, or else the queue's.
            run_at: It runs not before this (aware) time.
            effects: More to commit with the submission; dropped if it was submitted before.

        Raises:
            InputMismatch: The idempotency key was used for other arguments or another job.
            UnknownWorkflow: Runners of this process run jobs, and none runs this one.
            InvalidArgument: Something of the above is wrong; nothing was written.
            SerializationError: The arguments cannot be stored so that they come back as they are.
            Fenced: Another process took the store over.
        """
        made = call_of(call)
        key = made.idempotency_key if idempotency_key is None else idempotency_key
        submitted = await self._runtime.submit(
            made.data,
            run_id=None if key is None else job_id_of(key),
            once=True,
            workflow=made.job.name,
            headers=headers,
            priority=priority,
            max_attempts=made.job.max_attempts if max_attempts is None else max_attempts,
            run_at=run_at,
            effects=effects,
        )
        return JobHandle(self._runtime, made.job, submitted.run_id, created=submitted.created)

    def handle(self, job: JobLike[R], job_id: str) -> JobHandle[R]:
        """A handle of a job that was submitted before, by its id; nothing is looked up."""
        return JobHandle(self._runtime, definition_of(job), job_id, created=False)

    def handle_of_key(self, job: JobLike[R], idempotency_key: str) -> JobHandle[R]:
        """The same, by the idempotency key."""
        return self.handle(job, job_id_of(idempotency_key))
