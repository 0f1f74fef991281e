"""Adding jobs, and applying effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from taquba.errors import DuplicateJobId, QueueFull
from taquba.queue import _validate
from taquba.queue._core import Lane
from taquba.queue._effects import Effects, NewJob
from taquba.queue._measuring import stamp
from taquba.queue._results import Enqueued
from taquba.queue._transaction._base import NOWHERE, PENDING, SCHEDULED
from taquba.queue._transaction._history import Recording

if TYPE_CHECKING:
    from taquba.queue._transaction import QueueTransaction

__all__ = ["INSERT_JOB", "INSERT_STORED", "Enqueueing"]

_WAITING = (PENDING, SCHEDULED)
INSERT_JOB = (
    "INSERT INTO jobs (seq, id, queue, state, priority, attempts, max_attempts, enqueued_at,"
    " run_at, claimed_at, ended_at, cancel_requested, dedup_key, last_error, headers, payload)"
    " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
)
INSERT_STORED = INSERT_JOB.replace("payload)", "payload, payload_ref)").replace("?)", "?,?)")

_INSERT_KEYED = INSERT_JOB.replace("payload)", "payload, flow_key)").replace("?)", "?,?)")


class Enqueueing(Recording):
    """Adds jobs; writes and deletes keys."""

    __slots__ = ()

    def enqueue(self, job: NewJob) -> Enqueued:
        """Add a job.

        Raises:
            DuplicateJobId: A job with the chosen id exists, on whatever queue.
        """
        lane = self._core.lane(job.queue)
        tracing = self._core.tracing
        if job.dedup_key is not None:
            row = self.execute(
                "SELECT id FROM jobs WHERE queue = ? AND dedup_key = ?",
                (lane.number, job.dedup_key),
            ).fetchone()
            if row is not None:
                return Enqueued(row[0], created=False)
        if job.job_id is not None and self._find(job.job_id) is not None:
            raise DuplicateJobId(
                f"job id {job.job_id!r} is taken: choose another, or leave it to taquba"
            )
        config = lane.config
        seq = self._core.next_seq
        job_id = self._insert(
            lane,
            job.job_id or self._core.ids.next(self._now_ms),
            config.default_priority if job.priority is None else job.priority,
            config.max_attempts if job.max_attempts is None else job.max_attempts,
            _validate.due_ms(job.run_at, job.delay, self._now_ms),
            job.dedup_key,
            job.headers if tracing is None else stamp(tracing, job.headers),
            job.payload,
            # An object belongs to one job: if this is enqueued again, its payload is in the row.
            None if self._stored is None else self._stored.pop(id(job), None),
            job.concurrency_key,
        )
        if job.retry is not None:
            self.execute("UPDATE jobs SET retry = ? WHERE seq = ?", (job.retry, seq))
        return Enqueued(job_id, created=True)

    def _insert(
        self,
        lane: Lane,
        job_id: str,
        priority: int,
        max_attempts: int,
        run_at: int | None,
        dedup_key: str | None,
        headers: bytes | None,
        payload: bytes,
        stored: str | None = None,
        key: str | None = None,
    ) -> str:
        state = PENDING if run_at is None else SCHEDULED
        row = (
            self._core.take_seq(),
            job_id,
            lane.number,
            state,
            priority,
            0,
            max_attempts,
            self._now_ms,
            run_at,
            None,
            None,
            None,
            dedup_key,
            None,
            headers,
        )
        held = None if lane.flow is None else lane.flow.held
        if key is None and held is not None:
            key = ""
        if stored is not None:
            self.execute(INSERT_STORED, (*row, b"", stored))
            if key is not None:
                self.execute("UPDATE jobs SET flow_key = ? WHERE seq = ?", (key, row[0]))
        elif key is None:
            self._write(INSERT_JOB, (*row, payload))
        else:
            self._write(_INSERT_KEYED, (*row, payload, key))
        self._entered(lane, NOWHERE, state, run_at, key)
        if held is not None and held.passed is not None and state == PENDING:
            held.arrived(key or "", priority, row[0])
        return job_id

    def apply(self, effects: Effects | None) -> tuple[Enqueued, ...]:
        """Apply effects; what became of their enqueues, in order."""
        if not effects:
            return ()
        results = tuple([self.enqueue(job) for job in effects.jobs])
        for key, value in effects.puts.items():
            self.put(key, value)
        for key in effects.deletes:
            self.delete(key)
        for part in effects.parts:
            part.apply(cast("QueueTransaction", self))
        return results

    def check_depth(self) -> None:
        """Refuse everything, if a queue would have more waiting jobs than it may.

        Raises:
            QueueFull: One would.
        """
        if len(self._moves) == 1:  # one job more is what this is asked most often
            lane = self._moves[0][0]
            limit = lane.config.max_depth
            if limit is None or lane.counts[PENDING] + lane.counts[SCHEDULED] < limit:
                return
        more: dict[Lane, int] = {}
        for lane, left, entered in self._moves:
            if lane.config.max_depth is not None:
                step = (entered in _WAITING) - (left in _WAITING)
                more[lane] = more.get(lane, 0) + step
        for lane, number in more.items():
            limit = lane.config.max_depth
            depth = lane.counts[PENDING] + lane.counts[SCHEDULED]
            if limit is not None and number > 0 and depth + number > limit:
                raise QueueFull(
                    f"queue {lane.name!r} has {depth:,} jobs waiting and may have {limit:,}, so "
                    f"{number:,} more were refused: try again when some are done, add workers, "
                    "or raise max_depth in its QueueConfig",
                    queue=lane.name,
                    depth=depth,
                    limit=limit,
                )

    def holds(self, key: bytes, expected: bytes | None) -> bool:
        """Whether a key of the key-value store has this value; None: whether it is absent."""
        row = self.execute("SELECT value FROM kv WHERE key = ?", (key,)).fetchone()
        return (None if row is None else row[0]) == expected

    def contains(self, key: bytes) -> bool:
        """Whether a key of the key-value store is there."""
        return self.execute("SELECT 1 FROM kv WHERE key = ?", (key,)).fetchone() is not None

    def put(self, key: bytes, value: bytes) -> None:
        """Write a key of the key-value store."""
        self.execute(
            "INSERT INTO kv VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (key, value),
        )

    def delete(self, key: bytes) -> None:
        """Delete a key of the key-value store."""
        self.execute("DELETE FROM kv WHERE key = ?", (key,))
