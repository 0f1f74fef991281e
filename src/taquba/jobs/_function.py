"""Functions that are jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Generic, NotRequired, ParamSpec, TypeVar, cast

from taquba._checks import is_async
from taquba._codecs import EXACT, TypedCodec, typed_codec
from taquba.errors import InvalidType, SerializationError
from taquba.jobs._definition import Call, Definition, Options, encode_arguments

__all__ = ["FunctionJob", "Job"]

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Job(Definition[R], Generic[P, R]):
    """A function that can be run as a durable job; `job` makes it.

    Calling it makes a `Call`, to be submitted. `function` is the function itself: call that,
    with a context of your own, to test it.
    """

    def __init__(self, name: str, function: Callable[..., Any], options: Options) -> None:
        """Not for callers: use the decorator `job`."""
        super().__init__(name, options, is_async=is_async(function))
        self._call = function
        self._options = options
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self.__module__ = function.__module__
        self.__qualname__ = getattr(function, "__qualname__", name)
        self._signature = inspect.signature(function)
        parameters = list(self._signature.parameters.values())
        if not parameters or parameters[0].kind not in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise InvalidType(f"the function of job {name!r} must take a context first")
        self.check_context(parameters[0])
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
        self._parameters = tuple(parameters[1:])
        self._positional = [
            each.name for each in parameters[1:] if each.kind is inspect.Parameter.POSITIONAL_ONLY
        ]

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        return self._call

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The call of this job with these arguments, to be submitted.

        Raises:
            InvalidType: They are not what the function takes.
            SerializationError: They cannot be stored so that they come back as they are.
        """
        try:
            bound = self._signature.bind(None, *args, **kwargs)
        except TypeError as error:
            raise InvalidType(f"job {self.name!r}: {error}") from None
        bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        call = Call(self, encode_arguments(self, self._codec, given))
        make_key = self._options.idempotency_key
        return call if make_key is None else call.under(make_key(call))

    @cached_property
    def _codec(self) -> TypedCodec:
        from typing_extensions import TypedDict  # pydantic takes this one only

        fields: dict[str, Any] = {}
        for each in self._parameters:
            kind = self.hints[each.name]
            # One that is new may be missing in calls that were submitted before.
            is_required = each.default is inspect.Parameter.empty
            fields[each.name] = kind if is_required else NotRequired[kind]
        model: Any = cast(Any, TypedDict)(f"arguments of {self.name}", fields)
        model.__pydantic_config__ = {"extra": "forbid", **EXACT}
        return typed_codec(model, f"arguments of job {self.name!r}")

    def _function(self) -> Callable[..., Any]:
        return self._call

    def arguments_of(self, data: bytes) -> Mapping[str, Any]:
        """The arguments by name."""
        try:
            return cast("dict[str, Any]", self._codec.decode(data))
        except SerializationError as error:
            raise self.other_arguments(error) from error

    def run_encoded(self, context: Any, data: bytes) -> Any:
        """Call the function with arguments that are encoded."""
        arguments = dict(self.arguments_of(data))
        first = [arguments.pop(name) for name in self._positional if name in arguments]
        return self._call(context, *first, **arguments)

    def retries(self, data: bytes, error: Exception) -> bool:
        """Whether trying this call again can help with an exception."""
        retry_if = self._options.retry_if
        return retry_if is None or retry_if(error)

    def __reduce__(self) -> str:
        # Another process finds it where it is defined.
        return self.__qualname__


class FunctionJob(Job[P, R], Generic[P, R, F]):
    """The same, with the function's own type."""

    @property
    def function(self) -> F:
        """The function itself: call that, with a context of your own, to test it."""
        return cast(F, self._call)
