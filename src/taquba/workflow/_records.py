"""What the runtime says about runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

__all__ = [
    "ErrorKind",
    "RunCounts",
    "RunEnd",
    "RunOutcome",
    "RunPage",
    "RunState",
    "RunStatus",
    "RunSummary",
    "RunTermination",
    "Submitted",
    "TerminalStatus",
]


class RunState(Enum):
    """Where a run is."""

    PENDING = "pending"
    """Its next step waits: for a worker, for its time, or for a retry."""
    RUNNING = "running"
    """A worker has its current step."""
    CANCELLING = "cancelling"
    """It was cancelled, and its current step has not ended yet."""
    TERMINATED = "terminated"
    """It has ended."""


class TerminalStatus(Enum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ErrorKind(Enum):
    """Whether trying again could have helped."""

    TRANSIENT = "transient"
    """It was tried as often as allowed."""
    PERMANENT = "permanent"
    """It was known that it would not help."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a submission."""

    run_id: str
    job_id: str
    """The queue job that stands for the run right now."""
    created: bool
    """False when the run was active already: nothing was written."""


@dataclass(frozen=True, slots=True)
class RunTermination:
    """How and when a run ended."""

    status: TerminalStatus
    error: str | None
    """Reason of a failure or cancellation."""
    error_kind: ErrorKind | None
    """None unless it failed; also None if its last step died outside a worker."""
    final_step: int
    terminated_at: datetime


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Where a run is."""

    run_id: str
    state: RunState
    current_step: int
    """Number of the current step, from 0; of an ended run, the last one."""
    termination: RunTermination | None = None
    """How it ended, if it has."""
    workflow: str | None = None
    """The workflow that it was submitted for, if that has a name."""
    revision: str | None = None
    """The revision of that workflow."""
    waiting_for: str | None = None
    """Key of the signal that it waits for."""
    due: datetime | None = None
    """When its step is due, at the latest, if it waits for a time, a retry or a signal. None
    for one that waits for its signal for ever."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What a run came to."""

    run_id: str
    status: TerminalStatus
    result: bytes | None
    """What `Succeed` carried."""
    error: str | None
    """Reason of a failure or cancellation."""
    error_kind: ErrorKind | None
    """None unless it failed; also None if its last step died outside a worker."""
    final_step: int
    terminated_at: datetime
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """The submitter's headers."""
    workflow: str | None = None
    """The workflow that it was submitted for, if that has a name."""
    revision: str | None = None
    """The revision of that workflow."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run that was waited for."""

    termination: RunTermination
    outcome: RunOutcome


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run of a list: all that is known of it, without its result."""

    run_id: str
    state: RunState
    status: TerminalStatus | None
    """How it ended, if it has."""
    current_step: int
    """Number of the current step, from 0; of an ended run, the last one."""
    submitted_at: datetime
    ended_at: datetime | None
    error: str | None
    """Reason of a failure or cancellation."""
    error_kind: ErrorKind | None
    """None unless it failed; also None if its last step died outside a worker."""
    error_type: str | None
    """Name of the exception that ended it, if one did."""
    headers: dict[str, str]
    """The submitter's headers."""
    workflow: str | None
    """The workflow that it was submitted for, if that has a name."""
    revision: str | None
    """The revision of that workflow."""
    waiting_for: str | None
    """Key of the signal that it waits for."""
    due: datetime | None
    """When its step is due, at the latest, if it waits for a time, a retry or a signal. None
    for one that waits for its signal for ever."""


@dataclass(frozen=True, slots=True)
class RunPage:
    """Some runs of a list."""

    runs: tuple[RunSummary, ...]
    next: str | None
    """Where the next page begins: the `after` of its call. None: this is the last one."""


@dataclass(frozen=True, slots=True)
class RunCounts:
    """How many runs are where."""

    pending: int = 0
    running: int = 0
    cancelling: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
