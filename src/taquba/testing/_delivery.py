"""Deliveries for tests of handlers."""

from __future__ import annotations

from collections.abc import Mapping

from taquba.clock import ManualClock
from taquba.ids import IdFactory
from taquba.queue import Claim, Delivery, Job, new_job
from taquba.queue._columns import JOB_COLUMNS
from taquba.queue._leases import Lease, LeaseRegistry

__all__ = ["delivery"]


def delivery(
    payload: bytes = b"",
    *,
    queue: str = "test",
    job_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    attempt: int = 1,
    max_attempts: int = 3,
) -> Delivery:
    """A delivery that no queue knows of, to call a handler with in a test.

    Its lease never ends, `ensure_at_least` always succeeds, and nobody asks for its
    cancellation.

    Example:
        >>> async def handler(delivery):
        ...     delivery.effects.put("seen", delivery.payload)
        >>> import asyncio
        >>> one = delivery(b"hello", attempt=2)
        >>> asyncio.run(handler(one))
        >>> one.effects.puts
        {b'seen': b'hello'}
    """
    job = new_job(queue, payload, headers=headers, job_id=job_id, max_attempts=max_attempts)
    clock = ManualClock()
    stored = {
        "seq": 1,
        "id": job.job_id or IdFactory(clock).next(),
        "state": 2,
        "priority": 1000,
        "attempts": attempt,
        "max_attempts": max_attempts,
        "enqueued_at": clock.now_ms(),
        "claimed_at": clock.now_ms(),
        "headers": job.headers,
        "payload": job.payload,
    }
    row = tuple(stored.get(column) for column in JOB_COLUMNS.split(", "))
    leases = LeaseRegistry(clock)
    lease = Lease(1, 1, float("inf"), leases)
    leases.add(lease)
    return Delivery(Claim(Job(row, queue), lease))
