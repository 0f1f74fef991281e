"""What can be configured per queue, and every limit in one place."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from taquba._checks import whole, wrong_type
from taquba.clock import Duration, seconds
from taquba.queue._rate import RateLimit
from taquba.queue._retry import RetryPolicy

__all__ = [
    "MAX_BATCH_SIZE",
    "MAX_CONCURRENCY_KEY_LENGTH",
    "MAX_DEDUP_KEY_LENGTH",
    "MAX_ERROR_LENGTH",
    "MAX_HEADERS_SIZE",
    "MAX_HISTORY",
    "MAX_JOB_ID_LENGTH",
    "MAX_KV_KEY_SIZE",
    "MAX_KV_VALUE_SIZE",
    "MAX_PAYLOAD_SIZE",
    "MAX_PRIORITY",
    "MAX_QUEUE_NAME_LENGTH",
    "MAX_STREAMED_PAYLOAD_SIZE",
    "MAX_TRACEBACK_LENGTH",
    "MAX_WAKE_PAYLOAD_SIZE",
    "OFFLOAD_PAYLOADS_ABOVE",
    "PRIORITY_HIGH",
    "PRIORITY_LOW",
    "PRIORITY_NORMAL",
    "QueueConfig",
]

PRIORITY_HIGH = 100
PRIORITY_NORMAL = 1000
PRIORITY_LOW = 10_000
MAX_PRIORITY = 2**32 - 1
"""Priorities are 0 to this; a lower number is served first."""

MAX_QUEUE_NAME_LENGTH = 255
"""Bytes of UTF-8 in a queue's name."""
MAX_JOB_ID_LENGTH = 128
"""Characters of a job id that the caller chose."""
MAX_CONCURRENCY_KEY_LENGTH = 255
"""Bytes of UTF-8 in a concurrency key."""
MAX_DEDUP_KEY_LENGTH = 1024
"""Bytes of UTF-8 in a dedup key."""
MAX_PAYLOAD_SIZE = 16 * 1024 * 1024
"""Bytes of a job's payload that is given, and delivered, as `bytes`: 16 MiB."""
MAX_STREAMED_PAYLOAD_SIZE = 5 * 1024 * 1024 * 1024
"""Bytes of a job's payload that is given as a stream, 5 GiB."""
OFFLOAD_PAYLOADS_ABOVE = 256 * 1024
"""Bytes up to which payloads are part of the state, unless `Queue.open` is told otherwise."""
MAX_WAKE_PAYLOAD_SIZE = 256 * 1024
"""Bytes that a wake attaches to its job, 256 KiB; they are always part of the state."""
MAX_HEADERS_SIZE = 64 * 1024
"""Bytes of all of a job's header names and values together, in UTF-8."""
MAX_KV_KEY_SIZE = 4096
"""Bytes of a key in the caller's key-value store."""
MAX_KV_VALUE_SIZE = 256 * 1024
"""Bytes of a value in the caller's key-value store, 256 KiB."""
MAX_BATCH_SIZE = 10_000
"""Jobs in one `enqueue_many` or `claim_many`: one transaction never stalls the loop for long."""
MAX_ERROR_LENGTH = 8 * 1024
"""Characters of an error's text that are kept; the rest is cut off."""
MAX_TRACEBACK_LENGTH = 16 * 1024
"""Characters of a traceback that are kept, from its end."""
MAX_HISTORY = 1000
"""Ends of attempts that are kept of one job; older ones go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """How one queue treats its jobs.

    `max_attempts` and `default_priority` are frozen into a job when it is enqueued; the
    rest is looked up when it is needed, so a restart with another configuration changes
    it for the jobs that wait.
    """

    max_attempts: int = 3
    """Deliveries of a job before it is dead, at least 1. Interrupted ones count."""
    lease: Duration = timedelta(seconds=30)
    """How long a claim holds a job, unless it is renewed. Zero expires at once."""
    default_priority: int = PRIORITY_NORMAL
    """Priority of jobs enqueued without one."""
    backoff_base: Duration = timedelta(seconds=1)
    """Largest delay before the second attempt; doubles with each further one. Zero: retry at
    once. See `RetryPolicy`, which jobs may have of their own.
    """
    backoff_max: Duration = timedelta(minutes=5)
    """Largest delay between attempts."""
    jitter: bool = True
    """Whether delays are drawn evenly from zero to the largest; False: they are the largest."""
    keep_done: Duration | None = None
    """How long the record of a finished job is kept; None removes it when it is acknowledged."""
    keep_dead: Duration | None = timedelta(days=7)
    """How long a dead job is kept; None keeps it for ever."""
    concurrency_per_key: int | None = None
    """How many jobs of one `concurrency_key` are claimed at a time; None: any number. Jobs
    without a key are not limited by it. Blocked jobs cost nothing, and hold up no others.
    """
    max_running: int | None = None
    """How many jobs of the queue are claimed at a time; None: any number."""
    rate: RateLimit | None = None
    """How many jobs of the queue are claimed in a span of time; None: any number."""
    max_depth: int | None = None
    """How many jobs may be pending or scheduled; None: any number. See `QueueFull`."""

    def __post_init__(self) -> None:
        whole(self.max_attempts, "max_attempts", 1, 2**31 - 1)
        whole(self.default_priority, "default_priority", 0, MAX_PRIORITY)
        seconds(self.lease, name="lease")
        for name in ("backoff_base", "backoff_max"):
            seconds(getattr(self, name), name=name)
        self.retry_policy()
        for name in ("keep_done", "keep_dead"):
            if getattr(self, name) is not None:
                seconds(getattr(self, name), name=name)
        for name in ("concurrency_per_key", "max_running", "max_depth"):
            if getattr(self, name) is not None:
                whole(getattr(self, name), name, 1, 2**31 - 1)
        if self.rate is not None and not isinstance(self.rate, RateLimit):
            raise wrong_type("rate must be a RateLimit", self.rate)

    def retry_policy(self) -> RetryPolicy:
        """How jobs without a policy of their own are retried."""
        return RetryPolicy(base=self.backoff_base, max=self.backoff_max, jitter=self.jitter)


def milliseconds(duration: Duration | None) -> float:
    """A duration in milliseconds; None is without end."""
    return float("inf") if duration is None else seconds(duration, name="duration") * 1000
