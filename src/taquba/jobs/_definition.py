"""What functions and classes that are jobs have in common, and their calls."""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar, get_type_hints

from taquba._checks import shown, utf8, whole
from taquba._codecs import Codec, TypedCodec, codec_for, same
from taquba.errors import InvalidArgument, InvalidType, PermanentError, SerializationError
from taquba.queue import JobView
from taquba.workflow._workflows import check_workflow

__all__ = ["Call", "Classify", "Definition", "MakeKey", "Options", "encode_arguments", "job_id_of"]

R_co = TypeVar("R_co", covariant=True)

Classify = Callable[[Exception], bool]
"""Whether trying again can help with an exception."""


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A job and its arguments, checked and encoded: what is submitted."""

    job: Definition[R_co]
    data: bytes
    """The arguments, as JSON."""
    idempotency_key: str | None = field(default=None, compare=False)
    """What the job itself says that this call is submitted once under."""

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments by name, as the job will get them."""
        return self.job.arguments_of(self.data)

    def under(self, key: str | None) -> Call[R_co]:
        """The same with another idempotency key."""
        return Call(self.job, self.data, None if key is None else check_key(key))


MakeKey = Callable[[Call[Any]], str | None]
"""Says under which idempotency key a call is submitted."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the decorator was told."""

    max_attempts: int | None
    executor: str | None
    retry_if: Classify | None
    idempotency_key: MakeKey | None


class Definition(ABC, Generic[R_co]):
    """What is run as a job, by its name."""

    def __init__(self, name: str, options: Options, *, is_async: bool) -> None:
        """Not for callers: use the decorator `job`."""
        self.name = check_workflow(name, None)[0]
        self.max_attempts = (
            None
            if options.max_attempts is None
            else whole(options.max_attempts, "max_attempts", 1, 2**31 - 1)
        )
        self.executor = options.executor
        self.is_async = is_async
        if is_async and options.executor is not None:
            raise InvalidArgument(
                f"job {name!r} is async, so it runs on the event loop: give an ordinary function "
                "to run it in an executor, or no executor"
            )

    def check_context(self, first: inspect.Parameter) -> None:
        """What the function says that it is given first must be what it will be.

        Raises:
            InvalidType: It is another of the three.
        """
        if self.is_async:
            right, where = "JobContext", "is async"
        elif self.executor is not None:
            right, where = "JobView", f"runs in executor {self.executor!r}"
        else:
            right, where = "BlockingJobContext", "is an ordinary function, called in a thread"
        kind: Any = first.annotation
        given = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
        given = given.rpartition(".")[2]
        if given != right and given in ("JobContext", "BlockingJobContext", "JobView"):
            raise InvalidType(f"job {self.name!r} {where}: it is given a {right}, not a {given}")

    @abstractmethod
    def _function(self) -> Callable[..., Any]:
        """The function whose types count."""

    @abstractmethod
    def retries(self, data: bytes, error: Exception) -> bool:
        """Whether trying this call again can help with an exception."""

    @abstractmethod
    def arguments_of(self, data: bytes) -> Mapping[str, Any]:
        """The arguments by name."""

    @abstractmethod
    def run_encoded(self, context: Any, data: bytes) -> Any:
        """Run it with arguments that are encoded.

        Raises:
            PermanentError: They are not what the job takes now.
        """

    def run_remote(self, view: JobView) -> bytes:
        """Run it in another process; its result, encoded."""
        return self.result.encode(self.run_encoded(view, view.payload))[0]

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The types of the function."""
        try:
            return get_type_hints(self._function(), include_extras=True)
        except NameError as error:
            raise InvalidType(
                f"a type of job {self.name!r} is not known: {error}. Define it at the top of the "
                "module, and import it outside of 'if TYPE_CHECKING'"
            ) from error

    @cached_property
    def result(self) -> Codec:
        """How results are stored; by the type that the function says it returns."""
        kind = self.hints.get("return", Any)
        return codec_for(None if kind is Any else type(None) if kind is None else kind)

    def other_arguments(self, error: Exception) -> PermanentError:
        """The error for stored arguments that do not fit."""
        return PermanentError(
            f"what job {self.name!r} was submitted with is not what it takes now: {error}"
        )

    def __repr__(self) -> str:
        return f"<job {self.name!r}>"


def encode_arguments(job: Definition[Any], codec: TypedCodec, given: Any) -> bytes:
    """The arguments of a call, checked and encoded.

    Raises:
        InvalidType: They are not what the job takes.
        SerializationError: They cannot be stored so that they come back as they are.
    """
    from pydantic import ValidationError

    try:
        checked = codec.check(given)
    except ValidationError as error:
        raise InvalidType(f"job {job.name!r}: {error}") from error
    data, decoded = codec.encode(checked)
    if not same(checked, decoded):
        raise SerializationError(
            f"the arguments of job {job.name!r} would not come back as they are: {shown(checked)} "
            f"is stored as JSON, and read as {shown(decoded)}. Give parameters types that JSON "
            "can tell apart, and no secrets"
        )
    return data


def check_key(key: object, what: str = "idempotency_key") -> str:
    """An idempotency key, if it is one."""
    if not isinstance(key, str):
        raise InvalidType(f"{what} must be a str, not {shown(key)}")
    return key


def job_id_of(idempotency_key: object) -> str:
    """The id of the job with this idempotency key: its SHA-256, in hexadecimal."""
    return hashlib.sha256(utf8(check_key(idempotency_key), "idempotency_key")).hexdigest()
