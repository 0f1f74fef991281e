"""What calls that change something report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from taquba.queue._records import Job, JobState

__all__ = [
    "CancelOutcome",
    "Cancelled",
    "Committed",
    "Completion",
    "CompletionOutcome",
    "Enqueued",
    "Redriven",
    "Settled",
    "WakeOutcome",
    "Woken",
]


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of one enqueue."""

    job_id: str
    """Id of the job: the new one, or the one that holds the dedup key."""
    created: bool
    """False when a job with the same dedup key was waiting already."""
    effects: tuple[Enqueued, ...] = ()
    """What became of the enqueues among its effects, in their order."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What a settlement did."""

    state: JobState
    """The job's new state."""
    effects: tuple[Enqueued, ...] = ()
    """What became of the enqueues among the effects, in their order; empty if not applied."""


class CancelOutcome(Enum):
    """What a cancellation came to."""

    REMOVED = "removed"
    """The job was waiting, and is gone."""
    REQUESTED = "requested"
    """A worker has the job; it was asked to stop, and its lease cannot be extended any more."""
    NOT_FOUND = "not found"
    """There is no such job, or it has ended."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancellation did."""

    outcome: CancelOutcome
    effects: tuple[Enqueued, ...] = ()
    """What became of the enqueues among the effects; empty unless the job was removed."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit of effects did."""

    effects: tuple[Enqueued, ...] = ()
    """What became of the enqueues, in their order."""


class WakeOutcome(Enum):
    """What a wake came to."""

    WOKEN = "woken"
    """The job waited for its time, and is claimable now."""
    NOT_SCHEDULED = "not scheduled"
    """There is such a job, but it does not wait for its time; nothing was changed."""
    NOT_FOUND = "not found"
    """There is no such job."""


@dataclass(frozen=True, slots=True)
class Woken:
    """What a wake did."""

    outcome: WakeOutcome


class CompletionOutcome(Enum):
    """How a job ended."""

    DONE = "done"
    """It was acknowledged."""
    DEAD = "dead"
    """It was given up: see `Job.last_error`."""
    CANCELLED = "cancelled"
    """It was removed before a worker had it."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of a job."""

    outcome: CompletionOutcome
    job: Job
    """Its final record, also if the queue keeps none; a cancelled job as it was before."""


@dataclass(frozen=True, slots=True)
class Redriven:
    """What `Queue.requeue_dead_many` did."""

    count: int
    """Jobs that have a fresh start."""
    more: bool
    """Whether jobs that match are left, beyond the limit."""
