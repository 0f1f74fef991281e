"""What the queue hands out: jobs, claims, and the answers of its calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, final

from taquba._checks import as_datetime
from taquba._msgpack import unpack
from taquba.clock import Duration, seconds
from taquba.errors import InvalidState
from taquba.queue._columns import (
    ATTEMPTS,
    CANCEL_REQUESTED,
    CLAIMED_AT,
    DEDUP_KEY,
    ENDED_AT,
    ENQUEUED_AT,
    ERROR_TYPE,
    FLOW_KEY,
    HEADERS,
    HISTORY,
    ID,
    LAST_ERROR,
    MAX_ATTEMPTS,
    PAYLOAD,
    PAYLOAD_REF,
    PRIORITY,
    RETRY,
    RUN_AT,
    STATE,
    TRACEBACK,
    WAKE_PAYLOAD,
    WOKEN_AT,
)
from taquba.queue._payload_objects import PayloadRef
from taquba.queue._retry import RetryPolicy

if TYPE_CHECKING:
    from taquba.queue._leases import CancelToken, Lease

__all__ = [
    "Attempt",
    "AttemptOutcome",
    "Claim",
    "Heartbeat",
    "Job",
    "JobPage",
    "JobState",
    "KeyValuePage",
    "QueueStats",
]


class JobState(IntEnum):
    """Where a job is. Every job is in exactly one of these."""

    PENDING = 0
    """Waiting for a worker."""
    SCHEDULED = 1
    """Waiting for its time: enqueued for later, or backing off after a failure."""
    CLAIMED = 2
    """In the hands of a worker."""
    DONE = 3
    """Finished; kept only where the queue's `keep_done` says so."""
    DEAD = 4
    """Given up: out of attempts, or failed for good."""


@final
class Job:
    """A job as it was when it was read.

    It is a view of one stored row, decoded where it is looked at: a worker takes thousands
    of jobs a second and reads two or three fields of each.
    """

    __slots__ = ("_headers", "_queue", "_row")

    def __init__(self, row: tuple[Any, ...], queue: str) -> None:
        self._row = row
        self._queue = queue
        self._headers: dict[str, str] | None = None

    @property
    def id(self) -> str:
        """The job's id, unique in the whole store."""
        return self._row[ID]  # type: ignore[no-any-return]

    @property
    def queue(self) -> str:
        """Name of its queue."""
        return self._queue

    @property
    def state(self) -> JobState:
        """Where the job is."""
        return JobState(self._row[STATE])

    @property
    def priority(self) -> int:
        """Lower is served first."""
        return self._row[PRIORITY]  # type: ignore[no-any-return]

    @property
    def attempts(self) -> int:
        """Deliveries so far, this one included."""
        return self._row[ATTEMPTS]  # type: ignore[no-any-return]

    @property
    def max_attempts(self) -> int:
        """Deliveries after which the job is dead."""
        return self._row[MAX_ATTEMPTS]  # type: ignore[no-any-return]

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure now is final."""
        return self._row[ATTEMPTS] >= self._row[MAX_ATTEMPTS]  # type: ignore[no-any-return]

    @property
    def enqueued_at(self) -> datetime:
        """When it was first enqueued."""
        at = as_datetime(self._row[ENQUEUED_AT])
        assert at is not None
        return at

    @property
    def run_at(self) -> datetime | None:
        """When it becomes due, while it is scheduled."""
        return as_datetime(self._row[RUN_AT])

    @property
    def claimed_at(self) -> datetime | None:
        """When the current (or, for a finished job, the last) claim was made."""
        return as_datetime(self._row[CLAIMED_AT])

    @property
    def completed_at(self) -> datetime | None:
        """When it was acknowledged."""
        return as_datetime(self._row[ENDED_AT]) if self._row[STATE] == JobState.DONE else None

    @property
    def failed_at(self) -> datetime | None:
        """When it was given up."""
        return as_datetime(self._row[ENDED_AT]) if self._row[STATE] == JobState.DEAD else None

    @property
    def woken_at(self) -> datetime | None:
        """When `Queue.wake` last made it claimable before its time; stays with the job."""
        return as_datetime(self._row[WOKEN_AT])

    @property
    def wake_payload(self) -> bytes | None:
        """The bytes that the last wake attached, or None; they stay with the job."""
        return self._row[WAKE_PAYLOAD]  # type: ignore[no-any-return]

    @property
    def cancel_requested(self) -> bool:
        """Whether its cancellation was asked for while a worker had it."""
        return bool(self._row[CANCEL_REQUESTED])

    @property
    def dedup_key(self) -> str | None:
        """The key that keeps equal jobs out; given up at the first claim."""
        return self._row[DEDUP_KEY]  # type: ignore[no-any-return]

    @property
    def concurrency_key(self) -> str | None:
        """The key of which its queue may let only so many jobs run at a time."""
        return self._row[FLOW_KEY] or None

    @property
    def last_error(self) -> str | None:
        """Text of the last failure; of a long one the first 8,192 characters."""
        return self._row[LAST_ERROR]  # type: ignore[no-any-return]

    @property
    def error_type(self) -> str | None:
        """Type of the exception that the last failure was, such as ``httpx.ReadTimeout``."""
        return self._row[ERROR_TYPE]  # type: ignore[no-any-return]

    @property
    def traceback(self) -> str | None:
        """Traceback of that exception; of a long one the last 16,384 characters."""
        return self._row[TRACEBACK]  # type: ignore[no-any-return]

    @property
    def retry(self) -> RetryPolicy | None:
        """The policy that the job was enqueued with, if it has one of its own."""
        stored = self._row[RETRY]
        return None if stored is None else RetryPolicy._read(stored)

    @property
    def headers(self) -> dict[str, str]:
        """The caller's headers."""
        if self._headers is None:
            packed = self._row[HEADERS]
            if packed is None:
                self._headers = {}
            else:
                self._headers = unpack(packed)
        assert self._headers is not None
        return self._headers

    @property
    def payload(self) -> bytes:
        """The job's bytes.

        Claims and `get_job` come with them. A listing does not fetch those that are objects of
        their own (`is_offloaded`), and nothing fetches more than 16 MiB.

        Raises:
            InvalidState: They were not fetched: see `Queue.read_payload` and
                `Queue.stream_payload`.
        """
        data: bytes = self._row[PAYLOAD]
        if not data and self._row[PAYLOAD_REF] is not None:
            raise InvalidState(
                f"the {self.payload_size:,} bytes of job {self.id} were not fetched: "
                "await read_payload(job), or iterate over stream_payload(job)"
            )
        return data

    @property
    def payload_size(self) -> int:
        """How many bytes the payload has, fetched or not."""
        ref = self._row[PAYLOAD_REF]
        return len(self._row[PAYLOAD]) if ref is None else PayloadRef.parse(ref).size

    @property
    def is_offloaded(self) -> bool:
        """Whether the payload is an object of its own, instead of a part of the state."""
        return self._row[PAYLOAD_REF] is not None

    @property
    def payload_fetched(self) -> bool:
        """Whether `payload` has the bytes."""
        return self._row[PAYLOAD_REF] is None or bool(self._row[PAYLOAD])

    def _with_payload(self, data: bytes) -> Job:
        return Job((*self._row[:PAYLOAD], data, *self._row[PAYLOAD + 1 :]), self._queue)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Job):
            return NotImplemented
        # Not how often it was tried in earlier lives, and what a claimed job's row has behind that.
        return self._row[:HISTORY] == other._row[:HISTORY] and self._queue == other._queue

    def __hash__(self) -> int:
        return hash(self._row[ID])

    def __repr__(self) -> str:
        return (
            f"Job(id={self.id!r}, queue={self.queue!r}, state={self.state.name}, "
            f"attempts={self.attempts}/{self.max_attempts}, payload=<{self.payload_size} bytes>)"
        )


class AttemptOutcome(IntEnum):
    """How an attempt ended."""

    COMPLETED = 0
    """The job was acknowledged; noted only where finished jobs are kept."""
    RETRIED = 1
    """It failed, and there were attempts left."""
    DEAD_LETTERED = 2
    """The job was given up."""
    LEASE_EXPIRED = 3
    """The lease ended before the job was settled, and the job was delivered again."""
    INTERRUPTED = 4
    """The process that had the job went away, and the job was delivered again."""
    REQUEUED = 5
    """No attempt: the dead job was given a fresh start."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The end of one attempt of a job."""

    attempt: int
    """Which one it was, from 1; 0 for `AttemptOutcome.REQUEUED`."""
    outcome: AttemptOutcome
    claimed_at: datetime | None
    """When the attempt was claimed; None for `AttemptOutcome.REQUEUED`."""
    recorded_at: datetime
    """When it ended."""
    error: str | None
    """Text of the failure, if it was one that says something."""


@final
class Claim:
    """The right to settle one delivery of a job, until its lease expires.

    Only a claim can settle a job; a `Job` that was read cannot. A claim that is dropped
    settles nothing: the job comes back when the lease expires.
    """

    __slots__ = ("_annex", "_lease", "job")

    job: Job
    """The job as delivered."""
    _annex: Any
    """What a layer above keeps with the claim; absent, unless one does."""

    def __init__(self, job: Job, lease: Lease) -> None:
        self.job = job
        self._lease = lease

    @property
    def cancel_token(self) -> CancelToken:
        """Says whether cancellation of the job was asked for."""
        return self._lease.cancel_token

    def renew(self, lease: Duration) -> None:
        """Let the lease end this long from now; that can also shorten it.

        Raises:
            ClaimLost: The claim ended before.
            CancelRequested: Cancellation of the job was asked for.
        """
        self._lease.renew(seconds(lease, name="lease"))

    def ensure_at_least(self, remaining: Duration) -> None:
        """Extend the lease, if it would end sooner than this (plus 5 s to settle) from now.

        Raises:
            ClaimLost: The claim ended before.
            CancelRequested: Cancellation of the job was asked for.
        """
        self._lease.ensure_at_least(seconds(remaining, name="remaining"))

    @property
    def is_live(self) -> bool:
        """Whether this claim can still settle its job."""
        return self._lease.live

    def __repr__(self) -> str:
        return f"Claim({self.job!r}, {'live' if self.is_live else 'ended'})"


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many jobs of a queue are where."""

    pending: int
    scheduled: int
    """Waiting for their time; includes those backing off after a failure."""
    claimed: int
    done: int
    """Acknowledged since the queue exists, whether or not their records are kept."""
    dead: int
    oldest_ready_age: float | None = field(default=None, compare=False)
    """Seconds since the job that would be claimed next was enqueued; None: no job is pending.

    It need not be the oldest one: priorities count. The time that a job was scheduled for, or
    that its attempts and their backoff took, is part of its age. Two `QueueStats` with the same
    counts are equal, whatever this is.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A sign of life of the process that owns the store: see `Queue.open(heartbeat=…)`.

    A recent one shows that the process was alive then. It does not show that workers run.
    """

    counter: int
    """Counts the beats of a store, over all of its owners; always increases. Some may be
    missing: those that could not be stored.
    """
    at: datetime
    """When it was made, by the owner's clock."""
    interval: float
    """Seconds to the next one; and that takes as long as the store takes to commit it."""
    epoch: int
    """Counts the openings of the store. One that is less than that of what was committed last
    is of a former owner.
    """
    closed: bool
    """Whether the owner closed the store, and this was its last one."""


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs of a listing."""

    jobs: tuple[Job, ...]
    next: str | None
    """Where the next page begins: the `after` of its call. None: this is the last one."""


@dataclass(frozen=True, slots=True)
class KeyValuePage:
    """Some keys of a scan, with their values."""

    entries: tuple[tuple[bytes, bytes], ...]
    more: bool
    """Whether there are further keys after the last one of these."""
