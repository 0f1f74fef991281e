"""What a worker's handler can say became of its job."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from taquba._checks import shown
from taquba.clock import Duration
from taquba.errors import InvalidType, TaqubaError
from taquba.queue import _validate
from taquba.queue._calls import check_effects
from taquba.queue._effects import Effects
from taquba.queue._failure import failure_of

__all__ = ["Dead", "Done", "FailWith", "Result", "Retry", "check_result"]


@dataclass(frozen=True, slots=True)
class Done:
    """The job is done. Returning None, or the effects alone, says the same."""

    effects: Effects | None = None
    """Committed together with that."""

    def __post_init__(self) -> None:
        check_effects(self.effects)


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed: try again, or give up if it was the last one.

    Raising any exception says the same, without the wishes below.
    """

    error: BaseException | str
    """What went wrong; kept with the job."""
    after: Duration | None = None
    """The next attempt comes no sooner than this from now, and not before its backoff."""
    at: datetime | None = None
    """The next attempt comes no sooner than at this (aware) time."""
    effects: Effects | None = None
    """Committed if the job is given up now; dropped if it is tried again."""

    def __post_init__(self) -> None:
        failure_of(self.error, retry_after=self.after, retry_at=self.at)
        check_effects(self.effects)


@dataclass(frozen=True, slots=True)
class Dead:
    """Give the job up, whatever attempts are left. Raising `PermanentError` says the same."""

    reason: BaseException | str
    """Kept with the job."""
    effects: Effects | None = None
    """Committed together with that."""

    def __post_init__(self) -> None:
        _validate.error_text(self.reason)
        check_effects(self.effects)


Result = Effects | Done | Retry | Dead | None
"""What a handler returns."""


class FailWith(TaqubaError):
    """Raise it in a handler: the job fails with an error, and if it dies of it, with effects.

    It counts as the error that it wraps: a `PermanentError` ends the job at once, anything
    else is retried. The effects are committed only when the job is given up.

    Example:
        >>> from taquba.errors import PermanentError
        >>> raise FailWith(PermanentError("no such user"), Effects().delete("users/7"))
        Traceback (most recent call last):
        ...
        taquba.queue._outcomes.FailWith: no such user
    """

    def __init__(self, error: BaseException, effects: Effects) -> None:
        if not isinstance(error, BaseException):  # it is the caller's code
            raise InvalidType(f"error must be an exception, not {type(error).__name__}")
        if not isinstance(effects, Effects):
            raise InvalidType(f"effects must be an Effects, not {type(effects).__name__}")
        super().__init__(_validate.error_text(error))
        self.error = error
        self.effects = effects

    def __reduce__(self) -> tuple[Any, ...]:
        return FailWith, (self.error, self.effects)


def check_result(result: object) -> Result:
    """What a handler returned, if it is a result.

    Raises:
        InvalidType: It is something else; the message guesses what went wrong.
    """
    if result is None or isinstance(result, (Effects, Done, Retry, Dead)):
        return result
    if inspect.iscoroutine(result):
        result.close()
        hint = "it is a coroutine: declare the handler with 'async def', or await it"
    elif isinstance(result, type):
        hint = f"return an instance: {result.__name__}(…)"
    else:
        hint = "what it works out belongs in an effect, or in a store of your own"
    raise InvalidType(
        f"the handler returned {shown(result)}, which is not None, Effects, Done, Retry or Dead; "
        f"{hint}"
    )
