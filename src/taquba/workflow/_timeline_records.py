"""What a timeline tells."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

__all__ = ["MAX_TIMELINE", "StepAttempt", "StepAttemptOutcome", "TimelinePage"]

MAX_TIMELINE = 1000
"""Attempts that are kept in the timeline of one run; older ones go."""


class StepAttemptOutcome(Enum):
    """How an attempt of a step ended."""

    CONTINUED = "continued"
    """The run went on to its next step."""
    WAITING = "waiting"
    """The run went on to its next step, which waits for a signal."""
    SUCCEEDED = "succeeded"
    """The run ended with this."""
    FAILED = "failed"
    """The run ended with this: by `Fail`, by an error that is permanent, or with its last
    attempt."""
    CANCELLED = "cancelled"
    """The run ended with this: the step returned `Cancel`, or somebody cancelled the run."""
    RETRIED = "retried"
    """It failed, and there were attempts left."""
    LEASE_EXPIRED = "lease_expired"
    """The lease ended before the step did; it was run again, unless this was its last attempt."""
    INTERRUPTED = "interrupted"
    """The process that had the step went away; it was run again, unless this was its last
    attempt."""


@dataclass(frozen=True, slots=True)
class StepAttempt:
    """One attempt of one step of a run."""

    step: int
    """Number of the step, from 0."""
    attempt: int
    """Which attempt of the step, from 1."""
    outcome: StepAttemptOutcome | None
    """How it ended; None while it is under way."""
    claimed_at: datetime | None
    """When a worker took the step. None: none did, since the run was cancelled before."""
    started_at: datetime | None
    """When the runner was called. None if that is not known, as the attempt has not ended, or
    not by what its runner said."""
    recorded_at: datetime | None
    """When it ended; None while it is under way."""
    due: datetime | None
    """When the next attempt, or the next step, was due; or until when it waits for its signal.
    None: at once; or for ever, with `StepAttemptOutcome.WAITING`."""
    error: str | None
    """Text of the error, or the reason of `Fail` or `Cancel`."""
    error_type: str | None
    """Name of the exception, with its module."""
    woken_by: str | None
    """Key of the signal that the step was given. None: it waited for none, or none came in
    time."""
    waits_for: str | None
    """Key of the signal that the next step waits for, or found there."""
    memo_hits: int | None
    """Values that were found, in both of the step's memos; None if that is not known."""
    memo_misses: int | None
    """Values that had to be computed."""


@dataclass(frozen=True, slots=True)
class TimelinePage:
    """Some attempts of one run, in the order of their ends."""

    run_id: str
    attempts: tuple[StepAttempt, ...]
    next: str | None
    """Where the next page begins: the `after` of its call. None: this is the last one."""
    dropped: int
    """How many attempts there were before the first that is kept."""
