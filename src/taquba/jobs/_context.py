"""What the function of a job is given first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar, cast, final

from taquba._checks import shown
from taquba.errors import InvalidArgument, InvalidType
from taquba.queue import CancelToken, Effects
from taquba.workflow import BlockingMemo, BlockingStep, Memo, Step, StepLease

__all__ = ["BlockingJobContext", "JobContext", "State"]

T = TypeVar("T")
AnyStep = TypeVar("AnyStep", Step, BlockingStep)


class State:
    """Objects that jobs share, by their type."""

    def __init__(self, objects: Iterable[object]) -> None:
        if not isinstance(objects, Iterable):
            raise InvalidType(
                f"state must be a list of objects, not {shown(objects)}: put it in [ ]"
            )
        self._objects: dict[type, object] = {type(each): each for each in objects}

    def find(self, kind: type[T]) -> T | None:
        """The object of this type, or of a subclass of it; None if there is none."""
        if not isinstance(kind, type):
            raise InvalidType(f"ask for state by its type, not by {kind!r}")
        if kind in self._objects:
            return cast(T, self._objects[kind])
        found: list[Any] = [each for each in self._objects.values() if isinstance(each, kind)]
        if len(found) > 1:
            names = ", ".join(type(each).__name__ for each in found)
            raise InvalidArgument(f"several objects of state are a {kind.__name__}: {names}")
        return found[0] if found else None


class _Context(Generic[AnyStep]):
    """One attempt at a job."""

    __slots__ = ("_state", "_step")

    _step: AnyStep

    def __init__(self, step: AnyStep, state: State) -> None:
        self._step = step
        self._state = state

    @property
    def job_id(self) -> str:
        """The job's id; the same on every attempt."""
        return self._step.run_id

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._step.attempt

    @property
    def max_attempts(self) -> int:
        """Attempts before the job fails for good."""
        return self._step.max_attempts

    @property
    def is_last_attempt(self) -> bool:
        """Whether an error now is final."""
        return self._step.is_last_attempt

    @property
    def headers(self) -> Mapping[str, str]:
        """The submitter's headers."""
        return self._step.headers

    @property
    def effects(self) -> Effects:
        """Jobs to enqueue and keys to write, committed together with the job's success.

        Dropped if the function raises, or is run again.
        """
        return self._step.effects

    @property
    def lease(self) -> StepLease:
        """How long this attempt may still take."""
        return self._step.lease

    @property
    def cancel_token(self) -> CancelToken:
        """Says whether the job was cancelled meanwhile."""
        return self._step.cancel_token

    def state(self, kind: type[T]) -> T:
        """The object of this type among the runner's `state`.

        Raises:
            InvalidArgument: There is none.
        """
        found = self._state.find(kind)
        if found is None:
            raise InvalidArgument(
                f"there is no state of type {kind.__name__}: pass one to the runner, "
                f"JobRunner(…, state=[{kind.__name__}(…)])"
            )
        return found

    def try_state(self, kind: type[T]) -> T | None:
        """The same, or None."""
        return self._state.find(kind)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(job_id={self.job_id!r}, "
            f"attempt={self.attempt}/{self.max_attempts})"
        )


@final
class JobContext(_Context[Step]):
    """One attempt at a job, as an async function sees it."""

    __slots__ = ()

    @classmethod
    def detached(cls, *, state: Iterable[object] = (), attempt: int = 1) -> JobContext:
        """A context that no runner knows of, to call a job's function with in a test.

        Example:
            >>> import asyncio
            >>> from taquba.jobs import JobContext, job
            >>> @job("double")
            ... async def double(ctx: JobContext, number: int) -> int:
            ...     return 2 * number
            >>> asyncio.run(double.function(JobContext.detached(), 21))
            42
        """
        return cls(Step.detached(attempt=attempt), State(state))

    @property
    def memo(self) -> Memo:
        """Values kept for this job, over all its attempts."""
        return self._step.memo


@final
class BlockingJobContext(_Context[BlockingStep]):
    """One attempt at a job, as an ordinary function sees it, which is called in a thread."""

    __slots__ = ()

    @classmethod
    def detached(cls, *, state: Iterable[object] = (), attempt: int = 1) -> BlockingJobContext:
        """A context that no runner knows of, to call a job's function with in a test."""
        return cls(BlockingStep.detached(attempt=attempt), State(state))

    @property
    def memo(self) -> BlockingMemo:
        """Values kept for this job, over all its attempts."""
        return self._step.memo
