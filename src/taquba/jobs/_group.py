"""Groups of jobs that are submitted, watched, cancelled and forgotten together."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast, final

from taquba._checks import wrong_type
from taquba.clock import Duration
from taquba.errors import InvalidType, JobFailed, UnknownWorkflow
from taquba.jobs._class import Submittable, call_of
from taquba.jobs._definition import Call, Definition
from taquba.jobs._handle import result_of
from taquba.workflow import (
    GroupMember,
    GroupStatus,
    MemberResult,
    RunGroup,
    RunOutcome,
    TerminalStatus,
)

__all__ = ["Calls", "JobGroup", "JobResult", "each_of"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

Calls = Iterable[Submittable[R]] | AsyncIterable[Submittable[R]]
"""Calls of a group, in their order."""


@final
@dataclass(frozen=True, slots=True)
class JobResult(Generic[R_co]):
    """The end of a job of a group: its value, or its failure."""

    key: str
    job_id: str
    position: int
    """Of the job in its group, from 0."""
    job: Definition[R_co]
    outcome: RunOutcome
    """The end of the run below."""

    @property
    def ok(self) -> bool:
        """Whether the job has succeeded."""
        return self.outcome.status is TerminalStatus.SUCCEEDED

    @property
    def error(self) -> JobFailed | None:
        """How it failed, or was cancelled; None if it has succeeded."""
        if self.ok:
            return None
        try:
            result_of(self.job, self.outcome)
        except JobFailed as error:
            return error
        raise AssertionError("not reached")

    @property
    def value(self) -> R_co:
        """What the job returned.

        Raises:
            JobFailed: It failed, or was cancelled.
            SerializationError: What it returned does not decode as the result's type now.
        """
        return result_of(self.job, self.outcome)

    def __repr__(self) -> str:
        return f"<JobResult {self.key!r} of {self.job.name!r}: {self.outcome.status.value}>"


@final
class JobGroup(Generic[R]):
    """Jobs that are submitted, watched, cancelled and forgotten together.

    Made by `JobRunner.group`. It holds nothing but its id: another one with the same id, also
    after a restart, is as good.

    Example:
        >>> import asyncio
        >>> from taquba import Queue
        >>> from taquba.jobs import JobContext, JobRunner, job
        >>> @job("double")
        ... async def double(ctx: JobContext, number: int) -> int:
        ...     return 2 * number
        >>> async def main() -> list[int]:
        ...     async with Queue.open("memory://") as queue, JobRunner(queue, [double]) as jobs:
        ...         group = jobs.group("numbers", double)
        ...         await group.submit(double(number) for number in range(5))
        ...         return [result.value for result in await group.join()]
        >>> asyncio.run(main())
        [0, 2, 4, 6, 8]
    """

    __slots__ = ("_known", "_runs")

    def __init__(self, runs: RunGroup, known: Mapping[str, Definition[Any]]) -> None:
        """Not for callers: use `JobRunner.group`."""
        self._runs = runs
        self._known = dict(known)
        runs._limits = _Limits(self._known)

    @property
    def group_id(self) -> str:
        """The group's id."""
        return self._runs.group_id

    async def submit(
        self,
        calls: Calls[R],
        *,
        key: Callable[[Call[R]], str] | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
    ) -> GroupStatus:
        """Submit the calls, and run those again that have failed or were cancelled before.

        See `RunGroup.submit`, also for what is taken when from the iterator, and what happens when
        it is broken off.

        Args:
            calls: Calls of functions, or objects of classes, that are jobs, in their order.
            key: Says the key of a call in the group. Default: the call's idempotency key, or else
                ``item-0``, ``item-1`` and so on. Jobs of a group are not those that were
                submitted alone with the same idempotency key.
            headers: Text that each job's function sees.
            priority: Lower is served first.
            max_attempts: Of each; default: the job's, or else the queue's.

        Raises:
            GroupMismatch: The group was submitted before with other calls, or in another order.
            DuplicateMemberKey: Two calls have the same key.
            GroupStopped: It was cancelled, or had as many failures as it may, meanwhile.
            UnknownWorkflow: Runners of this process run jobs, and none runs one of these.
            InvalidArgument: Something of the above is wrong.
            SerializationError: Arguments cannot be stored so that they come back as they are.
            Fenced: Another process took the store over.
        """
        return await self._runs.submit(
            self._members(calls, key), headers=headers, priority=priority, max_attempts=max_attempts
        )

    def _members(
        self, calls: Calls[R], key: Callable[[Call[R]], str] | None
    ) -> list[GroupMember] | AsyncIterator[GroupMember]:
        if isinstance(calls, (list, tuple)):
            # All of them are there, so what is wrong is found before anything is written.
            return [self._member(call, key, n) for n, call in enumerate(calls)]
        return self._stream(calls, key)

    async def _stream(
        self, calls: Calls[R], key: Callable[[Call[R]], str] | None
    ) -> AsyncIterator[GroupMember]:
        position = 0
        async for call in each_of(calls, "calls"):
            yield self._member(call, key, position)
            position += 1

    def _member(
        self, call: Submittable[R], key: Callable[[Call[R]], str] | None, position: int
    ) -> GroupMember:
        made = call_of(call)
        self._known.setdefault(made.job.name, made.job)
        name = made.idempotency_key if key is None else key(made)
        if name is None:
            if key is not None:
                raise InvalidType("the key of a call in a group must be a str, not None")
            name = f"item-{position}"
        return GroupMember(name, made.data, made.job.name)

    async def resume(
        self,
        *,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
    ) -> GroupStatus:
        """Run the jobs again that have failed or were cancelled; see `RunGroup.resume`.

        Raises:
            GroupNotFound: There is no such group.
            GroupIncomplete: Its submission was broken off: submit the same calls again.
            InvalidArgument: Something of the above is wrong; nothing was written.
            Fenced: Another process took the store over.
        """
        return await self._runs.resume(
            headers=headers, priority=priority, max_attempts=max_attempts
        )

    async def results(
        self,
        *,
        order: Literal["completion", "submission"] = "completion",
        concurrency_hint: int = 16,
        progress: Callable[[GroupStatus], object] | None = None,
    ) -> AsyncIterator[JobResult[R]]:
        """The ends of all jobs, as they come; see `RunGroup.results`.

        A job that failed is a result too, whose `value` raises.

        Raises:
            GroupNotFound: There is no such group; or it was forgotten meanwhile.
            GroupIncomplete: Its submission was broken off; all that is known has been told.
            UnknownWorkflow: It has a job that neither the runner nor the group was told of.
            Fenced: Another process took the store over.
        """
        async for result in self._runs.results(
            order=order, concurrency_hint=concurrency_hint, progress=progress
        ):
            yield self._result(result)

    async def join(
        self, *, progress: Callable[[GroupStatus], object] | None = None
    ) -> list[JobResult[R]]:
        """The ends of all jobs, in the order of their submission; see `results`."""
        return [self._result(result) for result in await self._runs.gather(progress=progress)]

    def _result(self, result: MemberResult) -> JobResult[R]:
        job = self._known.get(result.outcome.workflow or "")
        if job is None:
            raise UnknownWorkflow(
                f"group {self.group_id!r} has a job {result.outcome.workflow!r}: give it to the "
                "runner, or to group(…), so that its result can be decoded"
            )
        return JobResult(result.key, result.run_id, result.position, job, result.outcome)

    async def status(self) -> GroupStatus:
        """How many jobs have ended how.

        Raises:
            GroupNotFound: There is no such group.
            Fenced: Another process took the store over.
        """
        return await self._runs.status()

    async def wait(self, timeout: Duration | None = None) -> GroupStatus:
        """Wait until all jobs have ended; see `RunGroup.wait`."""
        return await self._runs.wait(timeout)

    async def cancel(self) -> int:
        """Cancel all jobs that have not ended; how many these were. See `RunGroup.cancel`."""
        return await self._runs.cancel()

    async def forget(self) -> None:
        """Remove the group with all its jobs; see `RunGroup.forget`.

        Raises:
            GroupActive: Some jobs have not ended, or are being submitted; nothing was removed.
            Fenced: Another process took the store over.
        """
        await self._runs.forget()

    def __repr__(self) -> str:
        return f"<JobGroup {self.group_id!r}>"


class _Limits(Mapping["str | None", "int | None"]):
    """The attempts of jobs, by name."""

    def __init__(self, known: dict[str, Definition[Any]]) -> None:
        self._known = known

    def __getitem__(self, name: str | None) -> int | None:
        return self._known[name or ""].max_attempts

    def __iter__(self) -> Any:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


async def each_of(items: Iterable[T] | AsyncIterable[T], what: str) -> AsyncIterator[T]:
    """The items of an iterable, or of one that is asynchronous."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    elif isinstance(items, Iterable) and not isinstance(items, (str, bytes, Mapping)):
        for item in items:
            yield item
    else:
        raise wrong_type(f"{what} must be an iterable or async iterable", cast(Any, items))
