"""Methods that are stages."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar, get_type_hints, overload

from taquba._checks import is_async
from taquba._codecs import Codec, codec_for
from taquba.errors import InvalidType
from taquba.stages._call import Call
from taquba.workflow import Step

__all__ = ["BoundStage", "stage"]

Data = TypeVar("Data", contravariant=True)
Result = TypeVar("Result", covariant=True)


class BoundStage(Generic[Data, Result]):
    """A stage of one object: calling it makes a `Call`, and does not run it."""

    __slots__ = ("_owner", "_stage")

    def __init__(self, stage: stage[Data, Result], owner: Any) -> None:
        self._stage = stage
        self._owner = owner

    @property
    def name(self) -> str:
        """The method's name."""
        return self._stage.name

    def __call__(self, data: Data) -> Call:
        """The call of this stage with this argument, to be returned or submitted.

        Raises:
            SerializationError: The argument is not of the type that the stage takes.
        """
        encoded, _ = self._stage.codec.encode(data)
        return Call(self._stage.name, encoded)

    def run(self, step: Step, data: Data) -> Awaitable[Result]:
        """Run the stage itself, as the runtime does; for tests of it."""
        return self._stage.function(self._owner, step, data)

    def run_encoded(self, step: Step, data: bytes) -> Awaitable[Result]:
        """Run the stage with an argument that is encoded.

        Raises:
            SerializationError: It does not decode as the type that the stage takes now.
        """
        return self.run(step, self._stage.codec.decode(data))

    def __repr__(self) -> str:
        return f"<stage {type(self._owner).__name__}.{self._stage.name}>"


class stage(Generic[Data, Result]):
    """Make a method a stage: ``async def name(self, step: Step, data: Model) -> …``.

    The type of its second parameter is anything pydantic can handle. It returns the call of
    the next stage; or the workflow's result, which ends the run; or `Fail` or `Cancel`.

    Raises:
        InvalidType: The method has another shape, or no type for its argument.
    """

    def __init__(self, function: Callable[[Any, Step, Data], Awaitable[Result]]) -> None:
        self.function = function
        self.name = getattr(function, "__name__", "stage")
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        if not is_async(function):
            raise InvalidType(f"stage {self.name!r} must be an async method: use 'async def'")
        parameters = list(inspect.signature(function).parameters.values())
        if len(parameters) != 3:
            raise InvalidType(
                f"stage {self.name!r} must take self, a step and one argument: put what it needs "
                "into one model"
            )
        self._parameter = parameters[2].name
        self._annotated = parameters[2].annotation is not inspect.Parameter.empty
        # Where its class is defined inside of a function, types may be that function's own.
        body = sys._getframe(1)
        outside = body.f_back
        self._namespace: Mapping[str, Any] | None = dict(body.f_locals)
        if outside is not None and outside.f_locals is not outside.f_globals:
            self._namespace = {**outside.f_locals, **body.f_locals}
        self._codec: Codec | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def resolve(self) -> bool:
        """Look the argument's type up; False if it is not defined yet."""
        if self._codec is None:
            if not self._annotated:
                raise InvalidType(
                    f"parameter {self._parameter!r} of stage {self.name!r} needs a type, by which "
                    "it is stored"
                )
            try:
                hints = get_type_hints(self.function, localns=dict(self._namespace or {}))
            except NameError:
                return False
            self._codec = codec_for(hints[self._parameter])
            self._namespace = None
        return True

    @property
    def codec(self) -> Codec:
        """How the argument is stored."""
        if not self.resolve():
            raise InvalidType(
                f"the type of parameter {self._parameter!r} of stage {self.name!r} is not known: "
                "define it before the stage is used, at the top of a module"
            )
        assert self._codec is not None
        return self._codec

    @overload
    def __get__(self, instance: None, owner: type) -> stage[Data, Result]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> BoundStage[Data, Result]: ...
    def __get__(
        self, instance: object | None, owner: type
    ) -> stage[Data, Result] | BoundStage[Data, Result]:
        return self if instance is None else BoundStage(self, instance)
