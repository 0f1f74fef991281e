"""What a worker's handler gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, final

from taquba.clock import Duration, seconds
from taquba.queue._effects import Effects

if TYPE_CHECKING:
    from taquba.queue._leases import CancelToken
    from taquba.queue._records import Claim, Job

__all__ = ["Delivery", "JobView"]


@final
class Delivery:
    """One attempt at a job: the job, and what its handler can do meanwhile.

    All but `cancel_token.wait` can be used in the thread that the handler runs in, too.
    """

    __slots__ = ("_claim", "_effects", "_stopping", "job")

    job: Job
    """The job as delivered."""

    def __init__(self, claim: Claim) -> None:
        """Not for callers: workers make it, and `detached` does for tests."""
        self.job = claim.job
        self._claim = claim
        self._effects: Effects | None = None
        self._stopping = False

    @classmethod
    def detached(
        cls,
        payload: bytes = b"",
        *,
        queue: str = "detached",
        job_id: str = "detached",
        headers: Mapping[str, str] | None = None,
        attempt: int = 1,
        max_attempts: int = 3,
        priority: int = 1000,
    ) -> Delivery:
        """A delivery that no queue knows of, to call a handler with in a test.

        Its lease never ends and can always be extended, and nothing is done with its
        effects, which can be inspected. `taquba.testing.request_cancel` fires its token.

        Raises:
            InvalidType, InvalidArgument, ValueTooLarge: It could not be a job's delivery.

        Example:
            >>> async def handler(delivery: Delivery) -> None:
            ...     delivery.effects.put("seen", delivery.payload)
            >>> import asyncio
            >>> delivery = Delivery.detached(b"hello", attempt=2)
            >>> asyncio.run(handler(delivery))
            >>> delivery.effects.puts
            {b'seen': b'hello'}
        """
        from taquba.queue._detached import detached_claim

        claim = detached_claim(
            payload,
            queue=queue,
            job_id=job_id,
            headers=headers,
            attempt=attempt,
            max_attempts=max_attempts,
            priority=priority,
        )
        return cls(claim)

    @property
    def id(self) -> str:
        """The job's id: the same in each attempt, and so a good key for what must happen once."""
        return self.job.id

    @property
    def queue(self) -> str:
        """Name of the job's queue."""
        return self.job.queue

    @property
    def payload(self) -> bytes:
        """The job's bytes."""
        return self.job.payload

    @property
    def headers(self) -> dict[str, str]:
        """The caller's headers."""
        return self.job.headers

    @property
    def attempt(self) -> int:
        """Which attempt this is; the first is 1."""
        return self.job.attempts

    @property
    def max_attempts(self) -> int:
        """After so many attempts the job is dead."""
        return self.job.max_attempts

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure now is final."""
        return self.job.is_last_attempt

    @property
    def effects(self) -> Effects:
        """Stage here what is to be committed when the job is done; dropped if it is not."""
        if self._effects is None:
            self._effects = Effects()
        return self._effects

    @property
    def cancel_token(self) -> CancelToken:
        """Says whether cancellation of the job was asked for. It is up to the handler to heed it.

        The lease is not extended from then on.
        """
        return self._claim.cancel_token

    @property
    def is_live(self) -> bool:
        """Whether what the handler returns still counts."""
        return self._claim.is_live

    @property
    def should_stop(self) -> bool:
        """Whether the handler should end soon, for whatever reason.

        For code that blocks, and so cannot be cancelled: cancellation of the job was asked
        for, its lease or time has ended, or the worker must end.
        """
        lease = self._claim._lease
        return self._stopping or lease.is_cancelled or not lease.live

    @property
    def remaining(self) -> float:
        """Seconds until the lease or `job_timeout` ends this attempt; infinite if neither does."""
        return self._claim._lease.remaining()

    def ensure_at_least(self, remaining: Duration) -> None:
        """Extend the lease, if it would end sooner than this (plus 5 s to settle) from now.

        Needed only by workers with ``renew=None``. Never longer than `job_timeout`.

        Raises:
            ClaimLost: The attempt has ended.
            CancelRequested: Cancellation of the job was asked for.
        """
        self._claim._lease.ensure_at_least(seconds(remaining, name="remaining"))

    def __repr__(self) -> str:
        return f"Delivery({self.job!r})"


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as a handler in another process gets it: it can be pickled.

    Example:
        >>> def handler(view: JobView) -> int:
        ...     return len(view.payload)
        >>> handler(JobView.detached(b"hello"))
        5
    """

    id: str
    queue: str
    payload: bytes
    headers: Mapping[str, str]
    priority: int
    attempt: int
    """Which attempt this is; the first is 1."""
    max_attempts: int
    enqueued_at: datetime

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure now is final."""
        return self.attempt >= self.max_attempts

    @classmethod
    def detached(
        cls,
        payload: bytes = b"",
        *,
        queue: str = "detached",
        job_id: str = "detached",
        headers: Mapping[str, str] | None = None,
        attempt: int = 1,
        max_attempts: int = 3,
        priority: int = 1000,
    ) -> JobView:
        """A view of a job that no queue knows of, to call a function with in a test.

        Raises:
            InvalidType, InvalidArgument, ValueTooLarge: It could not be a job.
        """
        delivery = Delivery.detached(
            payload,
            queue=queue,
            job_id=job_id,
            headers=headers,
            attempt=attempt,
            max_attempts=max_attempts,
            priority=priority,
        )
        return cls.of(delivery.job)

    @classmethod
    def of(cls, job: Job) -> JobView:
        """The view of a job that was claimed."""
        return cls(
            id=job.id,
            queue=job.queue,
            payload=job.payload,
            headers=dict(job.headers),
            priority=job.priority,
            attempt=job.attempts,
            max_attempts=job.max_attempts,
            enqueued_at=job.enqueued_at,
        )
