"""What can be measured, and the seam to whatever does: names, units and labels in one place.

Give an object with the methods of `Metrics` to `Queue.open(metrics=…)`:
`taquba.opentelemetry.OpenTelemetryMetrics`, `taquba.testing.InMemoryMetrics`, or your own.

Counters count what was committed in this process, once it was, and never what was rolled
back. A process that is fenced may have counted its very last commits in vain. Labels are
names of queues and of store operations, and never ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = ["INSTRUMENTS", "Instrument", "Kind", "Measurement", "Metrics", "Sample"]


class Kind(Enum):
    """What kind of number an instrument gives."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True, eq=False)
class Instrument:
    """One thing that is measured. There is one object of it, to be compared by identity."""

    name: str
    kind: Kind
    unit: str
    """As UCUM has it: ``s``, ``By``, or ``{job}`` for what is counted."""
    labels: tuple[str, ...]
    """Names of the labels that each of its values has."""
    description: str


class Measurement(NamedTuple):
    """The present value of a gauge."""

    instrument: Instrument
    value: float
    labels: Mapping[str, str]


Sample = Callable[[], Iterable[Measurement]]
"""Gives the present values of all gauges; may be called in any thread."""


@runtime_checkable
class Metrics(Protocol):
    """Where measurements go. An exception that one of these raises is logged, once.

    They are called on the event loop, and must not block.
    """

    def add(self, instrument: Instrument, amount: float, labels: Mapping[str, str]) -> None:
        """Add to a counter."""
        ...

    def record(self, instrument: Instrument, value: float, labels: Mapping[str, str]) -> None:
        """Add one value to a histogram."""
        ...

    def set(self, instrument: Instrument, value: float, labels: Mapping[str, str]) -> None:
        """Tell a gauge's value; every `metrics_interval`, if `Queue.open` was given one."""
        ...

    def observe(self, sample: Sample) -> None:
        """A queue was opened: call `sample` whenever values of gauges are wanted."""
        ...

    def forget(self, sample: Sample) -> None:
        """The queue was closed: `sample` gives nothing any more."""
        ...


_ALL: list[Instrument] = []


def _new(name: str, kind: Kind, unit: str, labels: tuple[str, ...], text: str) -> Instrument:
    instrument = Instrument(f"taquba_{name}", kind, unit, labels, text)
    _ALL.append(instrument)
    return instrument


_QUEUE = ("queue",)


def _jobs(name: str, text: str) -> Instrument:
    return _new(f"jobs_{name}_total", Kind.COUNTER, "{job}", _QUEUE, text)


ENQUEUED = _jobs("enqueued", "New jobs, in whichever way; not what a dedup key kept out.")
CLAIMED = _jobs("claimed", "Jobs handed out.")
COMPLETED = _jobs("completed", "Jobs that were acknowledged.")
NACKED = _jobs("nacked", "Failed attempts after which the job is retried.")
DEAD_LETTERED = _jobs("dead_lettered", "Jobs given up, for whatever reason.")
REAPED = _jobs("reaped", "Jobs back on their queue because a lease expired.")
REQUEUED = _jobs("requeued", "Dead jobs that were given a fresh start.")
REMOVED = _jobs("removed", "Jobs that were cancelled.")
RELEASED = _jobs("released", "Jobs given back untouched: the attempt does not count.")
LEASES_EXPIRED = _new(
    "leases_expired_total", Kind.COUNTER, "{lease}", _QUEUE, "Leases, or times, that ran out."
)
LEASE_RENEWALS = _new(
    "lease_renewals_total", Kind.COUNTER, "{lease}", _QUEUE, "Renewals that moved the expiry."
)
HEARTBEAT_FAILURES = _new(
    "heartbeat_failures_total", Kind.COUNTER, "{beat}", (), "Beats that were not stored in time."
)
ENQUEUE_DURATION = _new(
    "enqueue_duration_seconds",
    Kind.HISTOGRAM,
    "s",
    _QUEUE,
    "Calls of enqueue and enqueue_many, until durable.",
)
CLAIM_DURATION = _new(
    "claim_duration_seconds",
    Kind.HISTOGRAM,
    "s",
    _QUEUE,
    "Calls of claim and claim_many that got a job, until durable; without waiting for one, "
    "and without fetching payloads.",
)
ACK_DURATION = _new(
    "ack_duration_seconds", Kind.HISTOGRAM, "s", _QUEUE, "Calls of ack, until durable."
)
COMMIT_DURATION = _new(
    "commit_duration_seconds",
    Kind.HISTOGRAM,
    "s",
    (),
    "From the sealing of a journal entry until it is stored, and all before it.",
)
COMMIT_BYTES = _new(
    "commit_bytes_total", Kind.COUNTER, "By", (), "Bytes of journal entries that were stored."
)
CHECKPOINT_DURATION = _new(
    "checkpoint_duration_seconds", Kind.HISTOGRAM, "s", (), "Checkpoints, until published."
)
CHECKPOINT_BYTES = _new(
    "checkpoint_bytes_total", Kind.COUNTER, "By", (), "Bytes stored for checkpoints."
)
STORE_REQUESTS = _new(
    "store_requests_total",
    Kind.COUNTER,
    "{request}",
    ("operation", "result"),
    "Requests to the object store: get, get_range, create, put, delete, list; ok or error.",
)
STORE_BYTES_WRITTEN = _new(
    "store_bytes_written_total", Kind.COUNTER, "By", (), "Bytes of objects sent to the store."
)
STORE_BYTES_READ = _new(
    "store_bytes_read_total", Kind.COUNTER, "By", (), "Bytes of objects got from the store."
)
STORE_RETRIES = _new(
    "store_retries_total",
    Kind.COUNTER,
    "{request}",
    (),
    "Requests that are made again, since the store did not take them.",
)
LOOP_LAG = _new(
    "event_loop_lag_seconds",
    Kind.HISTOGRAM,
    "s",
    (),
    "How late the event loop is; measured every metrics_interval, and when gauges are asked "
    "for in another thread.",
)
PENDING = _new("pending_jobs", Kind.GAUGE, "{job}", _QUEUE, "Jobs ready to be claimed.")
SCHEDULED = _new("scheduled_jobs", Kind.GAUGE, "{job}", _QUEUE, "Jobs that are not due yet.")
CLAIMED_NOW = _new("claimed_jobs", Kind.GAUGE, "{job}", _QUEUE, "Jobs that are worked on.")
DEAD = _new("dead_jobs", Kind.GAUGE, "{job}", _QUEUE, "Jobs that were given up, and are kept.")
OLDEST_PENDING_AGE = _new(
    "oldest_pending_age_seconds",
    Kind.GAUGE,
    "s",
    _QUEUE,
    "Age of the job that would be claimed next; 0 if there is none.",
)

INSTRUMENTS: tuple[Instrument, ...] = tuple(_ALL)
"""All there are."""
