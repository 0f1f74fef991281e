"""Runs typed jobs."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Executor
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, TypeVar, final, overload

from taquba._blocks import AsyncBlock
from taquba._checks import shown, whole
from taquba.clock import Duration
from taquba.errors import InputMismatch, InvalidArgument, InvalidType
from taquba.ids import IdFactory
from taquba.jobs._class import JobLike, Submittable, call_of, definition_of
from taquba.jobs._context import State
from taquba.jobs._definition import Definition, job_id_of
from taquba.jobs._group import JobGroup
from taquba.jobs._handle import JobHandle
from taquba.jobs._mapping import values
from taquba.jobs._running import runner_of
from taquba.queue import Effects, Queue
from taquba.workflow import Workflow, WorkflowRuntime

__all__ = ["JobRunner"]

R = TypeVar("R")
T = TypeVar("T")


@final
class JobRunner(AsyncBlock):
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
        keep_history: bool = False,
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
            keep_history: Every attempt of every job is noted, to be read with
                `WorkflowRuntime.timeline`.

        Raises:
            InvalidArgument: Something of the above is wrong.
        """
        shared = State(state)
        self._ids = IdFactory(queue.clock)
        pools = dict(executors or {})
        if not isinstance(jobs, Iterable):
            raise InvalidType(f"jobs must be a list of jobs, not {shown(jobs)}: put it in [ ]")
        workflows: list[Workflow] = []
        self._known: dict[str, Definition[Any]] = {}
        for each in map(definition_of, jobs):
            if each.name in self._known:
                raise InvalidArgument(f"two of the jobs have the name {each.name!r}")
            self._known[each.name] = each
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
            keep_history=keep_history,
        )
        self._runtime._entered_by = "JobRunner(…) as jobs"

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
        delay: Duration | None = None,
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
            delay: It runs not before this much time has passed.
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
        try:
            submitted = await self._runtime.submit(
                made.data,
                run_id=None if key is None else job_id_of(key),
                once=True,
                workflow=made.job.name,
                headers=headers,
                priority=priority,
                max_attempts=made.job.max_attempts if max_attempts is None else max_attempts,
                run_at=run_at,
                delay=delay,
                effects=effects,
            )
        except InputMismatch as error:
            if key is None:
                raise
            raise InputMismatch(
                f"idempotency_key {shown(key)} was used for another job, or for other arguments "
                f"(it is job {job_id_of(key)}): choose another key, or submit the same again"
            ) from error
        return JobHandle(self._runtime, made.job, submitted.run_id, created=submitted.created)

    def handle(self, job: JobLike[R], job_id: str) -> JobHandle[R]:
        """A handle of a job that was submitted before, by its id; nothing is looked up."""
        return JobHandle(self._runtime, definition_of(job), job_id, created=False)

    def handle_of_key(self, job: JobLike[R], idempotency_key: str) -> JobHandle[R]:
        """The same, by the idempotency key."""
        return self.handle(job, job_id_of(idempotency_key))

    @overload
    def group(
        self,
        group_id: str,
        /,
        *,
        stop_after_failures: int | None = None,
        signal_when_finished: str | None = None,
        retention: Duration | None = None,
    ) -> JobGroup[Any]: ...
    @overload
    def group(
        self,
        group_id: str,
        /,
        *jobs: JobLike[R],
        stop_after_failures: int | None = None,
        signal_when_finished: str | None = None,
        retention: Duration | None = None,
    ) -> JobGroup[R]: ...
    def group(
        self,
        group_id: str,
        /,
        *jobs: JobLike[Any],
        stop_after_failures: int | None = None,
        signal_when_finished: str | None = None,
        retention: Duration | None = None,
    ) -> JobGroup[Any]:
        """A group of jobs, by its id; nothing is looked up or written.

        Args:
            group_id: 1 to 128 characters of ``A-Z a-z 0-9 _ -``; it belongs to this runner's
                queue name.
            jobs: What it consists of, so that type checkers know its results.
            stop_after_failures: When so many jobs have failed, the group stops: those that have
                not begun never begin, and the others are cancelled. None: it never does.
            signal_when_finished: Key of a signal that is sent when the last job has ended, to a
                run of this runner's `queue_name`: a workflow runtime's must be the same.
            retention: The group is forgotten this long after its last job's end. None: after the
                runner's retention, or never, if that has none.

        Raises:
            InvalidArgument: Something of the above is wrong.
        """
        runs = self._runtime.group(
            group_id,
            stop_after_failures=stop_after_failures,
            signal_when_finished=signal_when_finished,
            retention=retention,
        )
        given = {each.name: each for each in map(definition_of, jobs)}
        return JobGroup(runs, {**self._known, **given})

    def map(
        self,
        function: Callable[[T], Submittable[R]],
        items: Iterable[T] | AsyncIterable[T],
        *,
        key: Callable[[T], str] | None = None,
        group_id: str | None = None,
        order: Literal["completion", "submission"] = "submission",
        ahead: int = 1000,
        stop_after_failures: int | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
    ) -> AsyncIterator[R]:
        """Run a job for each item: ``async for value in jobs.map(double, range(10))``.

        Items are taken, and jobs submitted, while values are read: no more than `ahead` of them.

        Args:
            function: A job that takes one argument, or anything that makes a call of an item.
            items: What it is called with; also from an async iterator.
            key: The key of an item's job in the group. Default: as for `JobGroup.submit`.
            group_id: With one, the jobs are a group that is kept: after a crash, the same call goes
                on where it was, runs those again that failed, and gives the values of the others.
                Default: a new group, which is forgotten when all values were read. If they are
                not, or the process dies, its jobs are cancelled, and forgotten.
            order: ``"submission"``: values come in the order of the items. ``"completion"``: in
                that in which the jobs end.
            ahead: So many items may be taken beyond the values that were read, at least 1.
            stop_after_failures: As for `group`.
            headers: Text that each job's function sees.
            priority: Lower is served first.
            max_attempts: Of each; default: the job's, or else the queue's.

        Raises:
            JobFailed: A job failed, or was cancelled. Use `group` to get the values of the others.
            InvalidArgument: Something of the above is wrong.
            GroupMismatch: The group was submitted before with other items, or in another order.
        """
        group: JobGroup[R] = self.group(
            self._ids.next() if group_id is None else group_id,
            stop_after_failures=stop_after_failures,
        )
        if group_id is None:
            group._runs._be_temporary()
        options = {"headers": headers, "priority": priority, "max_attempts": max_attempts}
        return values(
            group,
            function,
            items,
            key=key,
            order=order,
            ahead=whole(ahead, "ahead", 1, 2**31 - 1),
            is_nameless=group_id is None,
            options=options,
        )
