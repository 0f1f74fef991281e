"""Classes that are jobs: their fields are the arguments."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

from taquba._checks import is_async, wrong_type
from taquba._codecs import TypedCodec, typed_codec
from taquba.errors import InvalidArgument, InvalidType, SerializationError
from taquba.jobs._context import BlockingJobContext, JobContext
from taquba.jobs._definition import Call, Definition, Options, encode_arguments
from taquba.queue import JobView

__all__ = [
    "ClassJob",
    "JobClass",
    "JobLike",
    "RunsInThread",
    "RunsOnLoop",
    "RunsRemotely",
    "Submittable",
    "call_of",
    "decorate",
    "definition_of",
    "payload_idempotency_key",
]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
_ATTRIBUTE = "__taquba_job__"


class RunsOnLoop(Protocol[R_co]):
    """An object of a class that is an async job."""

    def run(self, ctx: JobContext, /) -> Coroutine[Any, Any, R_co]:
        """Do it."""
        ...


class RunsInThread(Protocol[R_co]):
    """An object of a class that is a job for a thread."""

    def run(self, ctx: BlockingJobContext, /) -> R_co:
        """Do it."""
        ...


class RunsRemotely(Protocol[R_co]):
    """An object of a class that is a job for an executor."""

    def run(self, view: JobView, /) -> R_co:
        """Do it."""
        ...


JobClass = type[RunsOnLoop[R]] | type[RunsInThread[R]] | type[RunsRemotely[R]]
"""A class that is a job."""

JobLike = Definition[R] | JobClass[R]
"""A function or class with the decorator `job`."""

Submittable = Call[R] | RunsOnLoop[R] | RunsInThread[R] | RunsRemotely[R]
"""The call of a function that is a job, or an object of a class that is one."""


class ClassJob(Definition[R_co]):
    """A class that is a job."""

    def __init__(self, name: str, kind: type, options: Options) -> None:
        """Not for callers: use the decorator `job`."""
        run = inspect.getattr_static(kind, "run", None)
        if not inspect.isfunction(run):
            raise InvalidType(f"class {kind.__name__} of job {name!r} needs a method 'run'")
        super().__init__(name, options, is_async=is_async(run))
        parameters = list(inspect.signature(run).parameters.values())
        if len(parameters) != 2:
            raise InvalidType(
                f"method 'run' of job {name!r} must take the object and a context: what else it "
                "needs is in fields"
            )
        self.check_context(parameters[1])
        self.kind: type[Any] = kind
        if not (dataclasses.is_dataclass(kind) or hasattr(self.kind, "__pydantic_fields__")):
            raise InvalidType(
                f"class {self.kind.__name__} of job {name!r} must be a dataclass or a pydantic "
                "model; write @job above @dataclass"
            )
        self._run = run
        self._options = options
        for name in ("idempotency_key", "retry_if"):
            if getattr(options, name) is not None and self._method(name) is not None:
                raise InvalidArgument(
                    f"job {self.name!r} has a method {name!r}: do not give the decorator another"
                )

    def _method(self, name: str) -> Callable[..., Any] | None:
        method: Any = inspect.getattr_static(self.kind, name, None)
        return method if inspect.isfunction(method) else None

    @cached_property
    def _codec(self) -> TypedCodec:
        return typed_codec(self.kind, self.kind.__name__, revalidate=True)

    def _function(self) -> Callable[..., Any]:
        return self._run

    def bare_call(self, instance: Any) -> Call[R_co]:
        """The call that this object stands for, without its idempotency key."""
        return Call(self, encode_arguments(self, self._codec, instance))

    def call(self, instance: Any) -> Call[R_co]:
        """The call that this object stands for."""
        call = self.bare_call(instance)
        if self._method("idempotency_key") is not None:
            return call.under(instance.idempotency_key())
        make_key = self._options.idempotency_key
        return call if make_key is None else call.under(make_key(call))

    def _decode(self, data: bytes) -> Any:
        try:
            return self._codec.decode(data)
        except SerializationError as error:
            raise self.other_arguments(error) from error

    def arguments_of(self, data: bytes) -> Mapping[str, Any]:
        """The arguments by name."""
        instance = self._decode(data)
        fields: Iterable[str]
        if dataclasses.is_dataclass(self.kind):
            fields = [each.name for each in dataclasses.fields(self.kind)]
        else:
            fields = self.kind.__pydantic_fields__
        return {name: getattr(instance, name) for name in fields}

    def run_encoded(self, context: Any, data: bytes) -> Any:
        """Run the object that was submitted."""
        return self._decode(data).run(context)

    def retries(self, data: bytes, error: Exception) -> bool:
        """Whether trying this call again can help with an exception."""
        if self._method("retry_if") is not None:
            return bool(self._decode(data).retry_if(error))
        retry_if = self._options.retry_if
        return retry_if is None or retry_if(error)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[type[Any]]]:
        # Another process finds it by its class, where that is defined.
        return definition_of, (self.kind,)


def decorate(name: str, kind: type, options: Options) -> None:
    """Make a class a job."""
    setattr(kind, _ATTRIBUTE, ClassJob(name, kind, options))


def definition_of(job: Definition[R] | type[Any]) -> Definition[R]:
    """What a function or a class with the decorator `job` stands for.

    Raises:
        InvalidType: It is none.
    """
    if isinstance(job, Definition):
        return job
    found = vars(job).get(_ATTRIBUTE) if isinstance(job, type) else None
    if found is None:
        raise wrong_type("a job is a function or a class with the decorator @job", job)
    return cast("Definition[R]", found)


def call_of(call: Submittable[R], rule: str = "submit takes the call of a job") -> Call[R]:
    """The call that an object stands for.

    Raises:
        InvalidType: It stands for none, or its fields are not what they must be.
        SerializationError: They cannot be stored so that they come back as they are.
    """
    if isinstance(call, Call):
        return call
    return _class_of(call, rule).call(call)


def payload_idempotency_key(call: Submittable[Any]) -> str:
    """An idempotency key of a job's name and arguments: equal calls have the same.

    For `idempotency_key` of a job, or of `JobRunner.submit`.

    Raises:
        InvalidType: It is no call of a job.
        SerializationError: Its arguments cannot be stored.
    """
    if not isinstance(call, Call):
        call = _class_of(call).bare_call(call)
    return f"{call.job.name}:{hashlib.sha256(call.data).hexdigest()}"


def _class_of(call: object, rule: str = "submit takes the call of a job") -> ClassJob[Any]:
    kind = type(call)
    found = vars(kind).get(_ATTRIBUTE)
    if found is not None:
        return cast("ClassJob[Any]", found)
    hint = ""
    if isinstance(call, Definition) or (isinstance(call, type) and _ATTRIBUTE in vars(call)):
        name = getattr(cast(Any, call), "__qualname__", "…")
        hint = f": call it, with its arguments: submit({name}(…))"
    elif hasattr(kind, _ATTRIBUTE):
        hint = ": its class inherits from one that is a job, and needs a decorator of its own"
    raise wrong_type(rule, cast(Any, call), hint)
