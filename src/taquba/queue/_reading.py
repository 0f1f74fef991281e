"""What can be read of queues: the same by their owner and by a follower."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from taquba._checks import as_datetime, whole, wrong_type
from taquba.errors import PayloadMissing, ValueTooLarge
from taquba.queue import _validate
from taquba.queue._columns import JOB_COLUMNS, PAYLOAD_REF
from taquba.queue._config import MAX_BATCH_SIZE, MAX_PAYLOAD_SIZE
from taquba.queue._filter import JobFilter, job_filter
from taquba.queue._listing import Listing
from taquba.queue._payload_objects import PayloadRef
from taquba.queue._records import (
    Attempt,
    AttemptOutcome,
    Claim,
    Heartbeat,
    Job,
    JobPage,
    JobState,
    QueueStats,
)
from taquba.queue._source import Source

__all__ = ["QueueReader"]


class QueueReader:
    """What `Queue` and `Follower` have in common: everything that reads."""

    _source: Source

    async def get_job(self, job_id: str, *, fetch_payload: bool = True) -> Job | None:
        """The job as it is now, or None. What it reports is durable.

        It comes with its payload, if that has at most 16 MiB.

        Args:
            job_id: The job's id.
            fetch_payload: False: as in a listing, without a payload that is an object of its own.

        Raises:
            PayloadMissing, CorruptStore: The object that holds the payload is gone, or damaged.
            StoreError: It cannot be read now.
        """
        checked = _validate.job_id(job_id)
        job = await self._stored_job(checked)
        if job is None or job.payload_fetched or not fetch_payload:
            return job
        if job.payload_size > MAX_PAYLOAD_SIZE:
            return job
        ref = job._row[PAYLOAD_REF]
        try:
            return job._with_payload(await self._source.payloads.fetch(PayloadRef.parse(ref)))
        except PayloadMissing:
            await self._source.catch_up()
            again = await self._stored_job(checked)
            if again is None or again._row[PAYLOAD_REF] != ref:
                return again  # it was removed meanwhile, and its payload with it
            raise

    async def _stored_job(self, checked: str) -> Job | None:
        source = self._source
        await source.enter()
        rows = source.rows(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?", (checked,))
        job = Job(rows[0], source.queue_name(rows[0][2])) if rows else None
        await source.leave()
        return job

    async def read_payload(self, job: Job | Claim) -> bytes:
        """The whole payload of a job, wherever it is.

        Raises:
            ValueTooLarge: It has more than 16 MiB: use `stream_payload`.
            PayloadMissing: It is gone, maybe since the job is.
            CorruptStore, StoreError: It is damaged, or cannot be read now.
        """
        job = _as_job(job)
        if job.payload_fetched:
            return job.payload
        if job.payload_size > MAX_PAYLOAD_SIZE:
            raise ValueTooLarge(
                f"the payload of job {job.id} has {job.payload_size:,} bytes: read it with "
                "'async for part in stream_payload(job)'"
            )
        return await self._source.payloads.fetch(PayloadRef.parse(job._row[PAYLOAD_REF]))

    async def fetch_value(self, ref: str) -> bytes:
        """The bytes of a large value of a layer above, which a row names like this.

        Raises:
            PayloadMissing, CorruptStore: The object that holds it is gone, or damaged. That it
                is gone may also be because the row is by now.
            StoreError: The store failed.
        """
        return await self._source.payloads.fetch(PayloadRef.parse(ref))

    def stream_payload(self, job: Job | Claim) -> AsyncGenerator[bytes, None]:
        """``async for part in queue.stream_payload(claim)``: the payload in parts of up to
        16 MiB, of which no more than one is in memory at a time.

        Raises:
            PayloadMissing: It is gone, maybe since the job is.
            CorruptStore, StoreError: It is damaged, or cannot be read now.
        """
        job = _as_job(job)
        if job.payload_fetched:
            return _single(job.payload)
        return self._source.payloads.stream(PayloadRef.parse(job._row[PAYLOAD_REF]))

    async def attempt_history(self, job_id: str) -> tuple[Attempt, ...]:
        """How the earlier attempts of a job ended, oldest first. What it reports is durable.

        It is kept as long as the job can be found: a finished job that is not kept has none, and
        neither has an unknown one. Of one job the last 1,000 are kept.
        """
        checked = _validate.job_id(job_id)
        await self._source.enter()
        rows = self._source.rows(
            "SELECT attempt, outcome, claimed_at, recorded_at, error FROM attempts"
            " WHERE seq = (SELECT seq FROM jobs WHERE id = ?) ORDER BY number",
            (checked,),
        )
        await self._source.leave()
        return tuple(
            Attempt(number, AttemptOutcome(outcome), as_datetime(claimed_at), at, error)
            for number, outcome, claimed_at, recorded_at, error in rows
            if (at := as_datetime(recorded_at)) is not None
        )

    async def list_queues(self) -> list[str]:
        """The names of all queues that ever had a job, sorted. What it reports is durable."""
        await self._source.enter()
        names = sorted(self._source.queue_names())
        await self._source.leave()
        return names

    async def list_jobs(
        self,
        queue: str,
        state: JobState | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        error: str | None = None,
        enqueued_after: datetime | None = None,
        enqueued_before: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> JobPage:
        """Some jobs of a queue, page by page. What it reports is durable.

        A job that changes its state between two pages can be missed, or seen twice. Filters
        have no index: jobs are looked through, some at a time, and the event loop goes on
        between. All filters that are given must hold.

        =============  =====================================
        state          order
        =============  =====================================
        ``PENDING``    in which they are going to be claimed
        ``SCHEDULED``  by the time at which they become due
        ``DONE``       in which they were acknowledged
        others, None   in which they were enqueued
        =============  =====================================

        Args:
            queue: Name of the queue.
            state: Only jobs in this state; None: in any.
            headers: Only jobs that have all of these headers.
            error: Only jobs whose `last_error` contains this text.
            enqueued_after: Only jobs enqueued at this time or later.
            enqueued_before: Only jobs enqueued earlier than this.
            limit: Jobs on the page at most, up to 10,000.
            after: The `next` of the page before, with the same filters. One of another queue or
                state gives an empty page.
        """
        return await self._list(
            _validate.queue_name(queue),
            _validate.job_state(state),
            job_filter(headers, error, enqueued_after, enqueued_before),
            _validate.limit(limit, MAX_BATCH_SIZE),
            after,
        )

    async def _list(
        self,
        queue: str,
        state: JobState | None,
        wanted: JobFilter | None,
        limit: int,
        after: str | None,
        *,
        payloads: bool = True,
    ) -> JobPage:
        page = await Listing(
            self._source, queue, state, limit=limit, after=after, wanted=wanted, payloads=payloads
        ).page()
        await self._source.leave()
        return page

    def jobs(
        self,
        queue: str,
        state: JobState | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        error: str | None = None,
        enqueued_after: datetime | None = None,
        enqueued_before: datetime | None = None,
        page_size: int = 100,
    ) -> AsyncGenerator[Job, None]:
        """``async for job in queue.jobs("mail", JobState.DEAD)``: all that `list_jobs` would give.

        It reads a page at a time, and the next one only when you go on, so that jobs may be
        changed meanwhile.

        Args:
            queue: Name of the queue.
            state: Only jobs in this state; None: in any.
            headers: See `list_jobs`, as for the other filters.
            error: Only jobs whose `last_error` contains this text.
            enqueued_after: Only jobs enqueued at this time or later.
            enqueued_before: Only jobs enqueued earlier than this.
            page_size: Jobs to read at once, 1 to 10,000.
        """
        return self._jobs(
            _validate.queue_name(queue),
            _validate.job_state(state),
            job_filter(headers, error, enqueued_after, enqueued_before),
            whole(page_size, "page_size", 1, MAX_BATCH_SIZE),
        )

    async def _jobs(
        self, queue: str, state: JobState | None, wanted: JobFilter | None, size: int
    ) -> AsyncGenerator[Job, None]:
        after: str | None = None
        while True:
            page = await self._list(queue, state, wanted, size, after)
            for job in page.jobs:
                yield job
            if page.next is None:
                return
            after = page.next

    async def stats(self, queue: str) -> QueueStats:
        """How many jobs of a queue are where, and the age of the job that comes next.

        All is zero for a queue that nobody used. What it reports is durable. The age goes by
        the clock of the process that asks.
        """
        name = _validate.queue_name(queue)
        source = self._source
        await source.enter()
        stats = QueueStats(*(source.counts(name) or [0] * 5))
        if stats.pending:
            stats = replace(stats, oldest_ready_age=_age_of_next(source, name))
        await source.leave()
        return stats

    async def heartbeat(self) -> Heartbeat | None:
        """The owner's last sign of life; None if it gives none. What it reports is durable.

        To see that an owner is alive, without comparing clocks, read it twice, a little more
        than its interval apart: the counter increases. See `Queue.open(heartbeat=…)`.
        """
        await self._source.enter()
        rows = self._source.rows(
            "SELECT counter, at, interval, epoch, closed FROM heartbeat WHERE interval > 0"
        )
        await self._source.leave()
        for counter, at_ms, interval_ms, epoch, closed in rows:
            at = as_datetime(at_ms)
            assert at is not None
            return Heartbeat(
                counter=counter,
                at=at,
                interval=interval_ms / 1000,
                epoch=epoch,
                closed=bool(closed),
            )
        return None

    async def read(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Rows of the state (SQLite). What it reports is durable.

        Raises:
            InvalidState: A statement would change something.
        """
        await self._source.enter()
        rows = self._source.select(sql, parameters)
        await self._source.leave()
        return rows

    def peek(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Rows of the state as this process sees it; an owner's may not be durable yet."""
        return self._source.rows(sql, parameters)


def _age_of_next(source: Source, name: str) -> float | None:
    rows = source.rows(
        "SELECT enqueued_at FROM jobs WHERE queue = ? AND state = 0 ORDER BY priority, seq LIMIT 1",
        (source.queue_number(name),),
    )
    return max(0, source.now_ms() - rows[0][0]) / 1000 if rows else None


def _as_job(job: object) -> Job:
    if isinstance(job, Claim):
        return job.job
    if not isinstance(job, Job):
        raise wrong_type("expected a Job or a Claim", job)
    return job


async def _single(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data
