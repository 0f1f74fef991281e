"""Calls about jobs that nobody holds."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from datetime import datetime

from taquba._checks import whole
from taquba.clock import Duration
from taquba.errors import InvalidState, JobNotFound, TaqubaError
from taquba.logs import about
from taquba.queue import _validate
from taquba.queue._calls import Calls, check_effects
from taquba.queue._columns import JOB_COLUMNS, QUEUE, SEQ, STATE
from taquba.queue._completions import wait_for_future
from taquba.queue._config import MAX_PAYLOAD_SIZE
from taquba.queue._core import logger
from taquba.queue._effects import Effects
from taquba.queue._filter import job_filter
from taquba.queue._flow_status import FlowStatus, status
from taquba.queue._records import Job, JobState
from taquba.queue._results import Cancelled, Completion, CompletionOutcome, Redriven, Woken

__all__ = ["Managing"]

_REDRIVE_SLICE = 50
"""Dead jobs that one transaction requeues."""


class Managing(Calls):
    """Moves and removes jobs."""

    async def cancel(self, job_id: str, effects: Effects | None = None) -> Cancelled:
        """Remove a waiting job, or ask the worker that has it to stop.

        A worker that has the job learns it from `Claim.cancel_token`; it may still settle
        the job in any way. Effects are applied only if the job was removed.

        Raises:
            Fenced: Another process took the store over.
        """
        checked = _validate.job_id(job_id)
        check_effects(effects)
        async with self._committing(effects) as tx:
            return tx.cancel(checked, effects)

    async def wake(self, job_id: str, payload: bytes | None = None) -> Woken:
        """Make a scheduled job claimable now, also one that backs off after a failure.

        The job keeps its place in the queue. `Job.woken_at` tells its handler that it was woken
        and did not become due; that and the bytes stay with the job through every retry, until
        another wake replaces both. Of any other job nothing is changed.

        Args:
            job_id: Id of the job.
            payload: Bytes for the handler, at most 256 KiB: `Job.wake_payload`. None: none,
                also if an earlier wake attached some.

        Raises:
            ValueTooLarge: The bytes are over their limit.
            Fenced: Another process took the store over.
        """
        checked = _validate.job_id(job_id)
        data = None if payload is None else _validate.wake_payload(payload)
        async with self._committing() as tx:
            return tx.wake(checked, data)

    async def wait_for_completion(self, job_id: str, timeout: Duration | None = None) -> Completion:
        """Return when a job has ended, with its final record, also if the queue keeps none.

        A retry, an expired lease or a requested cancellation is no end. What it reports is
        durable. A job that ended before the call is found only while its record is kept.
        The record comes with its payload, if that can be read and has at most 16 MiB; that of
        a cancelled job does not if it was an object of its own.

        Args:
            job_id: Id of the job.
            timeout: Give up after this long; the job is not affected. None: never.

        Raises:
            JobNotFound: There is no such job.
            TimeoutError: The job had not ended in time.
            Fenced: Another process took the store over.
            Closed: The queue was closed while this waited.
        """
        checked = _validate.job_id(job_id)
        patience = _validate.wait_seconds(timeout, "timeout")
        core = self._core
        row = core.database.execute(
            f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?", (checked,)
        ).fetchone()
        if row is None:
            await core.database.barrier()
            raise JobNotFound(f"there is no job {job_id!r}")
        if row[STATE] >= JobState.DONE:
            await core.database.barrier()
            done = row[STATE] == JobState.DONE
            ended = CompletionOutcome.DONE if done else CompletionOutcome.DEAD
            job = Job(row, core.lanes_by_number[row[QUEUE]].name)
            return await self._with_payload(Completion(ended, job))
        if core.database.stopped is not None:
            raise copy(core.database.stopped)
        end = core.completions.add(row[SEQ])
        try:
            if await wait_for_future(end, patience, core.clock):
                return await self._with_payload(end.result())
        finally:
            core.completions.remove(row[SEQ], end)
        raise TimeoutError(f"job {job_id!r} did not end in {patience:g} s; it goes on")

    async def _with_payload(self, completion: Completion) -> Completion:
        job = completion.job
        cancelled = completion.outcome is CompletionOutcome.CANCELLED
        if cancelled or job.payload_fetched or job.payload_size > MAX_PAYLOAD_SIZE:
            return completion
        try:
            data = await self.read_payload(job)
        except TaqubaError as error:
            logger.warning(
                "job %s ended, and its payload cannot be read: %s", job.id, error, extra=about(job)
            )
            return completion
        return Completion(completion.outcome, job._with_payload(data))

    async def flow(self, queue: str) -> FlowStatus:
        """What the limits of a queue let through now, and what they hold back.

        Args:
            queue: Name of the queue.
        """
        core = self._core
        lane = core.lane(_validate.queue_name(queue))
        return status(core.database.execute, lane, core.clock.now_ms())

    async def requeue_dead(self, job_id: str) -> None:
        """Give a dead job a fresh start: all its attempts, at its old place in the queue.

        Raises:
            JobNotFound: There is no such job.
            InvalidState: The job is not dead.
            Fenced: Another process took the store over.
        """
        checked = _validate.job_id(job_id)
        async with self._committing() as tx:
            tx.requeue_dead(checked)

    async def requeue_dead_many(
        self,
        queue: str,
        *,
        headers: Mapping[str, str] | None = None,
        error: str | None = None,
        enqueued_after: datetime | None = None,
        enqueued_before: datetime | None = None,
        limit: int | None = None,
    ) -> Redriven:
        """Give the dead jobs of a queue a fresh start, all of them or those that match.

        They go in transactions of 50, in the order in which they were enqueued, and each job
        once, also if it dies again meanwhile. What a call that failed or was cancelled had
        done so far stays done: call it again for the rest.

        Args:
            queue: Name of the queue.
            headers: Only jobs that have all of these headers.
            error: Only jobs whose `last_error` contains this text.
            enqueued_after: Only jobs enqueued at this time or later.
            enqueued_before: Only jobs enqueued earlier than this.
            limit: Jobs at most, of at least 1; None: no limit.

        Raises:
            Fenced: Another process took the store over.
        """
        name = _validate.queue_name(queue)
        wanted = job_filter(headers, error, enqueued_after, enqueued_before)
        left = 2**62 if limit is None else whole(limit, "limit", 1, 2**62)
        count = 0
        after: str | None = None
        while True:
            size = min(left, _REDRIVE_SLICE)
            page = await self._list(name, JobState.DEAD, wanted, size, after, payloads=False)
            done = 0
            if page.jobs:
                async with self._committing() as tx:
                    for job in page.jobs:
                        try:
                            tx.requeue_dead(job.id)
                        except (JobNotFound, InvalidState):
                            continue  # somebody else requeued it since it was listed, or it expired
                        done += 1
            count += done
            left -= done
            if page.next is None or left == 0:
                return Redriven(count, page.next is not None)
            after = page.next
