"""Functions that are jobs, and their calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    get_type_hints,
    overload,
)

from taquba._checks import is_async, whole
from taquba._codecs import Codec, codec_for
from taquba.errors import InvalidArgument, InvalidType, PermanentError, SerializationError
from taquba.jobs._context import BlockingJobContext, JobContext
from taquba.queue import JobView
from taquba.workflow._workflows import check_workflow

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["Call", "Classify", "Job", "job"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Classify = Callable[[Exception], bool]
"""Whether trying again can help with an exception."""


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A job and its arguments, checked and encoded: what is submitted."""

    job: Job[..., R_co]
    data: bytes
    """The arguments, as JSON."""


class Job(Generic[P, R]):
    """A function that can be run as a durable job; `job` makes it.

    Calling it makes a `Call`, to be submitted. `function` is the function itself: call that,
    with a context of your own, to test it.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        max_attempts: int | None,
        executor: str | None,
        retry_if: Classify | None,
    ) -> None:
        """Not for callers: use the decorator `job`."""
        self.name = check_workflow(name, None)[0]
        self.function: Callable[..., Any] = function
        self.max_attempts = (
            None if max_attempts is None else whole(max_attempts, "max_attempts", 1, 2**31 - 1)
        )
        self.executor = executor
        self.retry_if = retry_if
        self.is_async = is_async(function)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self.__module__ = function.__module__
        self.__qualname__ = getattr(function, "__qualname__", name)
        if self.is_async and executor is not None:
            raise InvalidArgument(
                f"job {name!r} is async, so it runs on the event loop: give an ordinary function "
                "to run it in an executor, or no executor"
            )
        self._signature = inspect.signature(function)
        parameters = list(self._signature.parameters.values())
        if not parameters or parameters[0].kind not in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise InvalidType(f"the function of job {name!r} must take a context first")
        for each in parameters[1:]:
            if each.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                raise InvalidType(
                    f"parameter {each.name!r} of job {name!r}: arguments are stored, so each needs "
                    "a parameter of its own; use a list or a dict instead of * and **"
                )
            if each.annotation is inspect.Parameter.empty:
                raise InvalidType(
                    f"parameter {each.name!r} of job {name!r} needs a type, by which it is stored"
                )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The call of this job with these arguments, to be submitted.

        Raises:
            InvalidType: They are not what the function takes.
        """
        try:
            bound = self._signature.bind(None, *args, **kwargs)
        except TypeError as error:
            raise InvalidType(f"job {self.name!r}: {error}") from None
        bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        from pydantic import ValidationError

        try:
            model = self.arguments.model_validate(given)
            return Call(self, model.model_dump_json(warnings="error").encode())
        except ValidationError as error:
            raise InvalidType(f"job {self.name!r}: {error}") from error
        except Exception as error:
            raise SerializationError(
                f"the arguments of job {self.name!r} cannot be encoded: {error}"
            ) from error

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(self.function, include_extras=True)
        except NameError as error:
            raise InvalidType(
                f"a type of job {self.name!r} is not known: {error}. Define it at the top of the "
                "module, and import it outside of 'if TYPE_CHECKING'"
            ) from error

    @cached_property
    def arguments(self) -> type[BaseModel]:
        """The model of the arguments."""
        from pydantic import ConfigDict, PydanticUserError, create_model

        fields: dict[str, Any] = {}
        for parameter in list(self._signature.parameters.values())[1:]:
            default: Any = (
                ... if parameter.default is inspect.Parameter.empty else parameter.default
            )
            fields[parameter.name] = (self._hints[parameter.name], default)
        config = ConfigDict(
            extra="forbid",
            ser_json_bytes="base64",
            val_json_bytes="base64",
            ser_json_inf_nan="constants",
            revalidate_instances="never",
        )
        try:
            return create_model(f"Arguments of {self.name}", __config__=config, **fields)
        except (PydanticUserError, NameError) as error:
            raise InvalidType(
                f"a parameter of job {self.name!r} has a type that pydantic cannot handle: {error}"
            ) from error

    @cached_property
    def result(self) -> Codec:
        """How results are stored; by the type that the function says it returns."""
        kind = self._hints.get("return", Any)
        return codec_for(None if kind is Any else type(None) if kind is None else kind)

    def decode(self, data: bytes) -> dict[str, Any]:
        """The arguments of a call that was submitted.

        Raises:
            PermanentError: They are not what the function takes now.
        """
        from pydantic import ValidationError

        try:
            model = self.arguments.model_validate_json(data)
        except ValidationError as error:
            raise PermanentError(
                f"what job {self.name!r} was submitted with is not what it takes now: {error}"
            ) from error
        return {name: getattr(model, name) for name in self.arguments.model_fields}

    def run_encoded(self, context: Any, data: bytes) -> Any:
        """Call the function with arguments that are encoded."""
        return self.function(context, **self.decode(data))

    def run_remote(self, view: JobView) -> bytes:
        """Call the function in another process; its result, encoded."""
        return self.result.encode(self.run_encoded(view, view.payload))[0]

    def __reduce__(self) -> str:
        # Another process finds it where it is defined.
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<job {self.name!r}>"


class _Decorator:
    """Makes a job of a function."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._name = name
        self._options = options

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]]
    ) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[BlockingJobContext, P], R]) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[JobView, P], R]) -> Job[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Job[..., Any]:
        if not callable(function) or inspect.isclass(function):
            raise InvalidType(f"job {self._name!r} must be a function, not {function!r}")
        return Job(self._name, function, **self._options)


def job(
    name: str,
    *,
    max_attempts: int | None = None,
    executor: str | None = None,
    retry_if: Classify | None = None,
) -> _Decorator:
    """Make a function a job: ``@job("email.send")``.

    Its first parameter is a `JobContext` for an async function, a `BlockingJobContext` for an
    ordinary one, which is called in a thread, or a `JobView` for one that runs in an executor.
    The others need types that pydantic can handle, as does the result.

    Args:
        name: By which calls find the function, also after it was renamed: 1 to 64 characters
            of ``A-Z a-z 0-9 _ . -``.
        max_attempts: Of each job; default: the queue's.
        executor: Name of one of the runner's executors, in which the function is to run.
        retry_if: Says of an exception whether trying again can help. Default: it can, unless
            it is a `PermanentError`.

    Raises:
        InvalidArgument: Something of the above is wrong.
    """
    options = {"max_attempts": max_attempts, "executor": executor, "retry_if": retry_if}
    return _Decorator(name, options)
