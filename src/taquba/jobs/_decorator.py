"""The decorator that makes jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, overload

from taquba._checks import shown
from taquba.errors import InvalidType
from taquba.jobs._class import RunsInThread, RunsOnLoop, RunsRemotely, decorate
from taquba.jobs._context import BlockingJobContext, JobContext
from taquba.jobs._definition import Classify, MakeKey, Options
from taquba.jobs._function import FunctionJob
from taquba.queue import JobView

__all__ = ["job"]

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=RunsOnLoop[Any] | RunsInThread[Any] | RunsRemotely[Any])


class _Decorator:
    """Makes a job of a function or a class."""

    def __init__(self, name: str, options: Options) -> None:
        self._name = name
        self._options = options

    @overload
    def __call__(self, function: type[C]) -> type[C]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]]
    ) -> FunctionJob[P, R, Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[BlockingJobContext, P], R]
    ) -> FunctionJob[P, R, Callable[Concatenate[BlockingJobContext, P], R]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[JobView, P], R]
    ) -> FunctionJob[P, R, Callable[Concatenate[JobView, P], R]]: ...
    def __call__(self, function: Any) -> Any:
        if inspect.isclass(function):
            decorate(self._name, function, self._options)
            return cast(Any, function)
        if not callable(function):
            raise InvalidType(f"job {self._name!r} must be a function or class, not {function!r}")
        return cast(Any, FunctionJob(self._name, function, self._options))


def job(
    name: str,
    *,
    max_attempts: int | None = None,
    executor: str | None = None,
    retry_if: Classify | None = None,
    idempotency_key: MakeKey | None = None,
) -> _Decorator:
    """Make a function or a class a job: ``@job("email.send")``.

    A function's first parameter is a `JobContext` for an async function, a `BlockingJobContext`
    for an ordinary one, which is called in a thread, or a `JobView` for one that runs in an
    executor. The others need types that pydantic can handle, as does the result.

    A class is a dataclass or a pydantic model: its fields are the arguments, its method ``run``
    is the function and takes the context only. It may have methods ``idempotency_key(self)``
    and ``retry_if(self, error)`` instead of the options.

    Args:
        name: By which calls find the function, also after it was renamed: 1 to 64 characters
            of ``A-Z a-z 0-9 _ . -``.
        max_attempts: Of each job; default: the queue's.
        executor: Name of one of the runner's executors, in which the function is to run.
        retry_if: Says of an exception whether trying again can help. Default: it can, unless
            it is a `PermanentError`.
        idempotency_key: Says under which key a call is submitted once, or None:
            ``lambda call: f"order {call.arguments['order']}"``, or `payload_idempotency_key`.

    Raises:
        InvalidArgument: Something of the above is wrong.
    """
    if not isinstance(name, str):
        raise InvalidType(f'a job has a name: write @job("…"), with its name, not {shown(name)}')
    return _Decorator(name, Options(max_attempts, executor, retry_if, idempotency_key))
