"""Calls that add jobs."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime

from taquba._checks import wrong_type
from taquba.clock import Duration
from taquba.errors import InvalidArgument
from taquba.metrics import ENQUEUE_DURATION
from taquba.queue import _validate
from taquba.queue._calls import Calls, Committing, check_effects
from taquba.queue._config import MAX_BATCH_SIZE
from taquba.queue._effects import Effects, NewJob, new_job
from taquba.queue._measuring import measured
from taquba.queue._payloads import PayloadSource, ReadablePayload, Staged
from taquba.queue._results import Committed, Enqueued
from taquba.queue._retry import RetryPolicy
from taquba.queue._transaction import QueueTransaction
from taquba.tracing import Operation

__all__ = ["Producing"]


class Producing(Calls):
    """Adds jobs."""

    def next_job_id(self) -> str:
        """An id for `enqueue(job_id=…)`; ids ascend in the order in which they are made."""
        return self._core.ids.next()

    async def enqueue(
        self,
        queue: str,
        payload: bytes | PayloadSource,
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
        effects: Effects | None = None,
    ) -> Enqueued:
        """Add a job. When this returns, the job survives any crash.

        If the caller is cancelled while it waits, the job may or may not have been added.

        Args:
            queue: Name of the queue, 1 to 255 bytes; it comes into being with its first job.
            payload: The job's bytes, at most 16 MiB. Or an async iterable of bytes, or a file
                opened for reading bytes, of at most 5 GiB, which is not held in memory; whoever
                claims such a job reads it with `stream_payload`, if it has more than 16 MiB.
            headers: Text for the handler; never looked at by taquba. At most 64 KiB.
            priority: Lower is served first; default: the queue's.
            run_at: Not before this (aware) time.
            delay: Not before this much time has passed.
            dedup_key: While a job with this key waits on this queue for its first claim, no
                second one is added.
            max_attempts: Deliveries before the job is dead; default: the queue's.
            job_id: The job's id, if it should not be a fresh one; see `next_job_id`.
            retry: When it is tried again after failures; default: as the queue's
                configuration says when it fails.
            concurrency_key: At most `QueueConfig.concurrency_per_key` jobs of this queue with the
                same key are claimed at a time. 1 to 255 bytes.
            effects: More to commit with the job; dropped if the job is not created.

        Returns:
            The job's id, and whether it is new.

        Raises:
            InvalidArgument: Something of the above is wrong; nothing was written.
            DuplicateJobId: `job_id` is taken.
            QueueFull: The queue has `max_depth` jobs waiting; nothing was written.
            StoreError: A large payload could not be stored; nothing was committed.
            Fenced: Another process took the store over.
        """
        staged: Staged | None = None
        stream: PayloadSource | None = None
        if not isinstance(payload, bytes) and isinstance(payload, (AsyncIterable, ReadablePayload)):
            stream, payload = payload, b""
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
        check_effects(effects)
        payloads = self._core.payloads
        large: tuple[NewJob, ...] = ()
        if stream is not None:
            job, staged = await payloads.stage_stream(job, stream)
        elif len(job.payload) > payloads.above:
            large = (job,)
        committing = self._committing(effects, large, staged)
        async with self._enqueueing(committing, job.queue, job_id) as tx:
            enqueued = tx.enqueue(job)
            if effects and enqueued.created:
                enqueued = Enqueued(enqueued.job_id, True, tx.apply(effects))
            if self._core.capped:
                tx.check_depth()
        return enqueued

    async def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[bytes],
        *,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        run_at: datetime | None = None,
        delay: Duration | None = None,
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        concurrency_key: str | None = None,
    ) -> list[Enqueued]:
        """Add up to 10,000 jobs, all or none, in the order of their payloads.

        The options apply to every one of them; see `enqueue`. Jobs that differ in more than
        their payloads, or go to several queues, are added with `commit`.

        Raises:
            InvalidArgument: Too many, or something is wrong with one; nothing was written.
            QueueFull: The queue has no room for all of them; nothing was written.
            StoreError: A large payload could not be stored; nothing was committed.
            Fenced: Another process took the store over.
        """
        single = isinstance(payloads, (bytes, bytearray, memoryview, str))
        if single or not isinstance(payloads, Iterable):
            raise wrong_type("payloads must be an iterable of bytes", payloads)
        jobs: list[NewJob] = []
        for payload in payloads:
            if len(jobs) == MAX_BATCH_SIZE:
                raise InvalidArgument(
                    f"one call takes {MAX_BATCH_SIZE:,} jobs: split them over several calls"
                )
            jobs.append(
                new_job(
                    queue,
                    payload,
                    headers=headers,
                    priority=priority,
                    run_at=run_at,
                    delay=delay,
                    max_attempts=max_attempts,
                    retry=retry,
                    concurrency_key=concurrency_key,
                )
            )
        if not jobs:
            return []
        above = self._core.payloads.above
        large = [x for x in jobs if len(x.payload) > above]
        committing = self._committing(None, large)
        async with self._enqueueing(committing, jobs[0].queue, None, len(jobs)) as tx:
            added = [tx.enqueue(job) for job in jobs]
            if self._core.capped:
                tx.check_depth()
        return added

    def _enqueueing(
        self, committing: Committing, queue: str, job_id: str | None, count: int | None = None
    ) -> AbstractAsyncContextManager[QueueTransaction]:
        core = self._core
        if core.observer is None and core.tracing is None:
            return committing
        operation = Operation(kind="enqueue", queue=queue, job_id=job_id, count=count)
        return measured(core, ENQUEUE_DURATION, operation, queue, committing)

    async def commit(self, effects: Effects) -> Committed:
        """Enqueue jobs, each with its own options, and write and delete keys: all or nothing.

        Raises:
            DuplicateJobId: A job id is taken; nothing was applied.
            QueueFull: A queue would be deeper than its `max_depth`; nothing was applied.
            Fenced: Another process took the store over.
        """
        _check_some_effects(effects)
        async with self._committing(effects) as tx:
            committed = Committed(tx.apply(effects))
            if self._core.capped:
                tx.check_depth()
        return committed

    async def compare_and_commit(
        self, compares: Mapping[str | bytes, bytes | None], effects: Effects
    ) -> Committed | None:
        """Commit effects if keys hold what they are expected to hold.

        Nothing can come between the comparison and the commit, whether or not the effects
        write the keys that are compared. Without compares it is `commit`.

        Args:
            compares: By key, the value it must have, byte for byte; None: it must be absent.
            effects: Committed if every key matches.

        Returns:
            What became of the enqueues, or None if some key did not match and nothing was
            changed. Either answer is durable.

        Raises:
            DuplicateJobId: A job id is taken; nothing was applied.
            QueueFull: A queue would be deeper than its `max_depth`; nothing was applied.
            Fenced: Another process took the store over.
        """
        checked = _validate.compares(compares)
        _check_some_effects(effects)
        async with self._committing(effects) as tx:
            if not all(tx.holds(key, expected) for key, expected in checked.items()):
                return None
            committed = Committed(tx.apply(effects))
            if self._core.capped:
                tx.check_depth()
        return committed


def _check_some_effects(effects: object) -> None:
    if effects is None:
        raise wrong_type("effects must be an Effects", effects)
    check_effects(effects)
