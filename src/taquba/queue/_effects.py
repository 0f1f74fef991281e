"""Effects: what is to be committed together with something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, Self

from taquba._checks import wrong_type
from taquba.clock import Duration
from taquba.errors import ConflictingEffects, EffectsSealed
from taquba.queue import _validate
from taquba.queue._retry import RetryPolicy

if TYPE_CHECKING:
    from taquba.queue._transaction import QueueTransaction

__all__ = ["EffectPart", "Effects", "NewJob", "merged", "new_job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A checked request to enqueue one job."""

    queue: str
    payload: bytes
    headers: bytes | None
    priority: int | None
    run_at: datetime | None
    delay: Duration | None
    dedup_key: str | None
    max_attempts: int | None
    job_id: str | None
    retry: bytes | None = None
    concurrency_key: str | None = None


def new_job(
    queue: str,
    payload: bytes,
    *,
    headers: Mapping[str, str] | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
    delay: Duration | None = None,
    dedup_key: str | None = None,
    max_attempts: int | None = None,
    job_id: str | None = None,
    retry: RetryPolicy | None = None,
    concurrency_key: str | None = None,
) -> NewJob:
    """Check every argument of an enqueue."""
    _validate.due_ms(run_at, delay, 0)
    return NewJob(
        queue=_validate.queue_name(queue),
        payload=_validate.payload(payload),
        headers=_validate.headers(headers),
        priority=None if priority is None else _validate.priority(priority),
        run_at=run_at,
        delay=delay,
        dedup_key=None if dedup_key is None else _validate.dedup_key(dedup_key),
        max_attempts=None if max_attempts is None else _validate.attempts(max_attempts),
        job_id=None if job_id is None else _validate.job_id(job_id),
        retry=None if retry is None else _validate.retry_policy(retry),
        concurrency_key=(
            None if concurrency_key is None else _validate.concurrency_key(concurrency_key)
        ),
    )


class EffectPart(Protocol):
    """Something that a layer above commits with effects, such as a run that is submitted."""

    @property
    def jobs(self) -> Sequence[NewJob]:
        """The jobs that it may enqueue; their payloads may be large."""
        ...

    def apply(self, tx: QueueTransaction) -> object:
        """Do it, in this transaction. What it raises undoes all that the transaction did."""
        ...


class Effects:
    """Jobs to enqueue and keys to write or delete, atomic with what they are passed to.

    Either all of it is committed together with the settlement (or enqueue, or run) that it
    is passed to, or none of it. Each call checks its arguments at once and returns the same
    object, so calls can be chained. A key that is put twice keeps the last value; a key
    cannot be both put and deleted.

    Example:
        >>> effects = Effects().enqueue("mail", b"receipt 7").put("orders/7", b"paid")
        >>> effects.delete("carts/7")
        Effects(jobs=1, puts=1, deletes=1)
    """

    __slots__ = ("_sealed", "deletes", "jobs", "largest", "parts", "puts")

    jobs: list[NewJob]
    puts: dict[bytes, bytes]
    deletes: dict[bytes, None]
    largest: int
    """Bytes of the largest payload among the jobs."""
    parts: list[EffectPart]
    """What layers above commit with these."""

    def __init__(self) -> None:
        self.jobs = []
        self.puts = {}
        self.deletes = {}
        self.largest = 0
        self.parts = []
        self._sealed = False

    def _seal(self) -> None:
        """Refuse everything from now on: what these go with is being committed."""
        self._sealed = True

    def _check_open(self) -> None:
        if self._sealed:
            raise EffectsSealed(
                "these effects are committed already: stage them before the step returns, "
                "and await every task that stages any"
            )

    def enqueue(
        self,
        queue: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        run_at: datetime | None = None,
        delay: Duration | None = None,
        dedup_key: str | None = None,
        max_attempts: int | None = None,
        job_id: str | None = None,
        retry: RetryPolicy | None = None,
        concurrency_key: str | None = None,
    ) -> Self:
        """Enqueue a job, on any queue; see `Queue.enqueue` for the options."""
        self._check_open()
        job = new_job(
            queue,
            payload,
            headers=headers,
            priority=priority,
            run_at=run_at,
            delay=delay,
            dedup_key=dedup_key,
            max_attempts=max_attempts,
            job_id=job_id,
            retry=retry,
            concurrency_key=concurrency_key,
        )
        self.jobs.append(job)
        if len(job.payload) > self.largest:
            self.largest = len(job.payload)
        return self

    def put(self, key: str | bytes, value: bytes) -> Self:
        """Write a key of the key-value store.

        Raises:
            ConflictingEffects: The same effects delete the key.
            ValueTooLarge: The key or the value is over its limit.
        """
        self._check_open()
        stored = _validate.kv_key(key)
        data = _validate.kv_value(value)
        if stored in self.deletes:
            raise _conflict(key)
        self.puts[stored] = data
        return self

    def delete(self, key: str | bytes) -> Self:
        """Delete a key of the key-value store; an absent one is fine.

        Raises:
            ConflictingEffects: The same effects write the key.
        """
        self._check_open()
        stored = _validate.kv_key(key)
        if stored in self.puts:
            raise _conflict(key)
        self.deletes[stored] = None
        return self

    def add(self, part: EffectPart) -> Self:
        """Commit something of a layer above with these, such as ``runtime.submission(…)``."""
        self._check_open()
        if isinstance(part, type) or not callable(getattr(part, "apply", None)):
            raise wrong_type("what is added to effects must be a submission or the like", part)
        self.parts.append(part)
        for job in part.jobs:
            self.largest = max(self.largest, len(job.payload))
        return self

    def all_jobs(self) -> list[NewJob]:
        """The jobs that may be enqueued with these, for storing their large payloads before."""
        if not self.parts:
            return self.jobs
        return [*self.jobs, *(job for part in self.parts for job in part.jobs)]

    def __bool__(self) -> bool:
        return bool(self.jobs or self.puts or self.deletes or self.parts)

    def __repr__(self) -> str:
        parts = f", parts={len(self.parts)}" if self.parts else ""
        return (
            f"Effects(jobs={len(self.jobs)}, puts={len(self.puts)}, "
            f"deletes={len(self.deletes)}{parts})"
        )


def _conflict(key: str | bytes) -> ConflictingEffects:
    return ConflictingEffects(
        f"key {key!r} is both written and deleted by the same effects: keep one of the two"
    )


def merged(first: Effects | None, second: Effects | None) -> Effects | None:
    """The effects of both, in that order; once, if they are the same object.

    Raises:
        ConflictingEffects: One writes a key that the other deletes.
    """
    if not first or not second or first is second:
        return second or first
    for key in (*(first.puts.keys() & second.deletes), *(first.deletes.keys() & second.puts)):
        raise _conflict(key)
    effects = Effects()
    effects.jobs = [*first.jobs, *second.jobs]
    effects.puts = {**first.puts, **second.puts}
    effects.deletes = {**first.deletes, **second.deletes}
    effects.parts = [*first.parts, *second.parts]
    effects.largest = max(first.largest, second.largest)
    return effects
