"""Claims that no queue knows of, for tests of what is given one."""

from __future__ import annotations

from collections.abc import Mapping

from taquba._checks import blob, whole
from taquba.clock import ManualClock
from taquba.errors import InvalidArgument
from taquba.queue import _validate
from taquba.queue._columns import JOB_COLUMNS
from taquba.queue._config import MAX_PAYLOAD_SIZE
from taquba.queue._leases import Lease, LeaseRegistry
from taquba.queue._records import Claim, Job, JobState

__all__ = ["detached_claim"]


class _InertLease(Lease):
    """A lease that never ends, and that can always be extended."""

    __slots__ = ()

    def check(self) -> None:
        pass


def detached_claim(
    payload: bytes,
    *,
    queue: str,
    job_id: str,
    headers: Mapping[str, str] | None,
    attempt: int,
    max_attempts: int,
    priority: int = 1000,
    wake_payload: bytes | None = None,
) -> Claim:
    """A claim whose lease never ends; everything is checked as an enqueue would check it.

    Raises:
        InvalidType, InvalidArgument, ValueTooLarge: Something of it could not be enqueued, or
            it is an attempt that cannot be.
    """
    limit = _validate.attempts(max_attempts)
    if whole(attempt, "attempt", 1, 2**31) > limit:
        raise InvalidArgument(f"attempt is {attempt}, and max_attempts is {limit}")
    clock = ManualClock(seed=0)
    stored: dict[str, object] = {
        "seq": 1,
        "id": _validate.job_id(job_id),
        "state": int(JobState.CLAIMED),
        "priority": _validate.priority(priority),
        "attempts": attempt,
        "max_attempts": limit,
        "enqueued_at": clock.now_ms(),
        "claimed_at": clock.now_ms(),
        "cancel_requested": 0,
        "headers": _validate.headers(headers),
        "payload": _validate.payload(payload),
    }
    if wake_payload is not None:
        stored["wake_payload"] = blob(wake_payload, name="signal", limit=MAX_PAYLOAD_SIZE)
        stored["woken_at"] = clock.now_ms()
    row = tuple(stored.get(column) for column in JOB_COLUMNS.split(", "))
    leases = LeaseRegistry(clock)
    lease = _InertLease(1, 1, float("inf"), leases)
    leases.replace((), (lease,))
    return Claim(Job(row, _validate.queue_name(queue)), lease)
