"""What is kept of a failure: text, type and traceback; and when to try again."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from taquba._checks import error_text, wrong_type
from taquba.errors import InvalidArgument, TransientError
from taquba.queue import _validate
from taquba.queue._config import MAX_ERROR_LENGTH, MAX_TRACEBACK_LENGTH
from taquba.queue._core import logger

if TYPE_CHECKING:
    from taquba.clock import Duration

__all__ = ["GONE", "OVERDUE", "TIMED_OUT", "Failure", "failure_of", "short_text"]

OVERDUE = "lease expired"
"""Text of the error of an attempt whose lease expired."""
GONE = "claim interrupted by process exit"
"""Of one whose process went away."""
TIMED_OUT = "the handler did not end within its job_timeout"
"""Of one that took longer than any may."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt, as it is stored; made by `failure_of`."""

    text: str
    kind: str | None = None
    """The exception's type, with its module; None if there was only a text."""
    traceback: str | None = None
    retry_after: Duration | None = None
    """The next attempt comes no sooner than this after the failure."""
    retry_at: datetime | None = None
    """The next attempt comes no sooner than at this time."""

    def earliest_ms(self, now_ms: int) -> int:
        """Before this time there is no next attempt."""
        after = _validate.due_ms(None, self.retry_after, now_ms)
        at = _validate.due_ms(self.retry_at, None, now_ms)
        return max(after or now_ms, at or now_ms)


def failure_of(
    error: BaseException | str | Failure,
    *,
    retry_after: Duration | None = None,
    retry_at: datetime | None = None,
) -> Failure:
    """What is to be stored of an error.

    A `TransientError` may say itself when to try again; what is given here wins.

    Raises:
        InvalidArgument: A time is none.
    """
    if isinstance(error, Failure):
        return error
    if not isinstance(error, (BaseException, str)):
        raise wrong_type("error must be an exception or a str", error)
    if isinstance(error, TransientError) and retry_after is None and retry_at is None:
        retry_after, retry_at = _wished(error)
    text = short_text(error)
    kind = trace = None
    if isinstance(error, BaseException):
        kind = _storable(_name(type(error)))
        trace = _cut_start(_storable(_formatted(error)), MAX_TRACEBACK_LENGTH)
    failure = Failure(text, kind, trace, retry_after, retry_at)
    failure.earliest_ms(0)  # a time that is none is refused now
    return failure


def _wished(error: TransientError) -> tuple[Duration | None, datetime | None]:
    """When the error says to try again; what is no time is left out, with a warning."""
    try:
        Failure("", retry_after=error.retry_after, retry_at=error.retry_at).earliest_ms(0)
    except InvalidArgument as mistake:
        logger.warning("a TransientError says when to try again, but %s", mistake)
        return None, None
    return error.retry_after, error.retry_at


def _name(kind: type[BaseException]) -> str:
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _formatted(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # it is the caller's exception, and its __str__ may raise
        return "".join(traceback.format_tb(error.__traceback__)) + _name(type(error)) + "\n"


def _storable(text: str) -> str:
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def short_text(error: BaseException | str) -> str:
    """What is kept of an error's text: all of it, unless it is very long."""
    text = error_text(error)
    more = len(text) - MAX_ERROR_LENGTH
    return text if more <= 0 else f"{text[:MAX_ERROR_LENGTH]}… ({more:,} characters more)"


def _cut_start(text: str, longest: int) -> str:
    """The end of a text: of a traceback it says more than the beginning."""
    if len(text) <= longest:
        return text
    return f"({len(text) - longest:,} characters more) …{text[-longest:]}"
