"""What a step returns."""

from __future__ import annotations

from dataclasses import dataclass

from taquba.clock import Duration

__all__ = ["Cancel", "Continue", "Fail", "Outcome", "Succeed"]


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on with the next step.

    Attributes:
        payload: The next step's bytes, at most 16 MiB.
        after: The next step waits this long; None starts it at once.
        signal: The next step waits for a signal with this key, and gets it as `Step.signal`.
            One that is buffered starts it at once. If another run waits for this key, this run
            fails. Not together with `after`.
        timeout: The next step waits this long for the signal, and then starts without; 0 takes
            a buffered one or none. None: it waits for ever.
    """

    payload: bytes = b""
    after: Duration | None = None
    signal: str | None = None
    timeout: Duration | None = None


@dataclass(frozen=True, slots=True)
class Succeed:
    """End the run; it succeeded.

    Attributes:
        result: The run's result, at most 16 MiB, or None.
    """

    result: bytes | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """End the run; it failed, and trying again would not help.

    Attributes:
        reason: Why, for people; of more than 8,192 characters, the first are kept.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the run; it is not wanted any more.

    Attributes:
        reason: Why, for people; of more than 8,192 characters, the first are kept.
    """

    reason: str


Outcome = Continue | Succeed | Fail | Cancel
