"""Jobs that nobody holds."""

from __future__ import annotations

from taquba.errors import InvalidState, JobNotFound
from taquba.queue import _validate
from taquba.queue._columns import (
    CANCEL_REQUESTED,
    FLOW_KEY,
    HISTORY,
    PAYLOAD_REF,
    QUEUE,
    RUN_AT,
    SEQ,
    STATE,
    WITHOUT_PAYLOADS,
)
from taquba.queue._core import Lane
from taquba.queue._effects import Effects
from taquba.queue._leases import Lease
from taquba.queue._records import AttemptOutcome, Claim, Job, JobState
from taquba.queue._results import Cancelled, CancelOutcome, CompletionOutcome, WakeOutcome, Woken
from taquba.queue._transaction._base import CLAIMED, DEAD, DONE, NOWHERE, PENDING, SCHEDULED
from taquba.queue._transaction._settling import Settling

__all__ = ["Unclaimed"]

_LEAN_BY_ID = f"SELECT {WITHOUT_PAYLOADS} FROM jobs WHERE id = ?"


class Unclaimed(Settling):
    """Moves and removes jobs that are in nobody's hands."""

    __slots__ = ()

    def promote(self, limit: int) -> int:
        """Make due scheduled jobs pending, in the order of their due times; how many."""
        rows = self.execute(
            "SELECT seq, queue FROM jobs WHERE state = 1 AND run_at <= ? ORDER BY run_at LIMIT ?",
            (self._now_ms, limit),
        ).fetchall()
        for seq, number in rows:
            self.execute("UPDATE jobs SET state = 0, run_at = NULL WHERE seq = ?", (seq,))
            lane = self._core.lanes_by_number[number]
            key = None
            if lane.flow is not None:
                (key,) = self.execute("SELECT flow_key FROM jobs WHERE seq = ?", (seq,)).fetchone()
            self._entered(lane, SCHEDULED, PENDING, None, key)
        return len(rows)

    def wake(self, job_id: str, payload: bytes | None = None) -> Woken:
        """Make a scheduled job pending before its time, and attach bytes to it."""
        row = self._find(job_id)
        if row is None:
            return Woken(WakeOutcome.NOT_FOUND)
        if row[STATE] != SCHEDULED:
            return Woken(WakeOutcome.NOT_SCHEDULED)
        self.execute(
            "UPDATE jobs SET state = 0, run_at = NULL, woken_at = ?, wake_payload = ?"
            " WHERE seq = ?",
            (self._now_ms, payload, row[SEQ]),
        )
        lane = self._core.lanes_by_number[row[QUEUE]]
        self._entered(lane, SCHEDULED, PENDING, None, row[FLOW_KEY])
        return Woken(WakeOutcome.WOKEN)

    def claim_by_id(self, job_id: str, lease_seconds: float | None = None) -> Claim:
        """Claim one waiting job, whatever comes before it and whenever it is due.

        The lease is the queue's, unless another is given.

        Raises:
            JobNotFound: There is no such job.
            InvalidState: The job is claimed, done or dead, or a limit of its queue is used up.
        """
        if self._deferred:
            self._write_deferred()
        row = self._find(job_id)
        if row is None:
            raise JobNotFound(f"there is no job {job_id!r}")
        before = row[STATE]
        if before not in (PENDING, SCHEDULED):
            state = JobState(before).name.lower()
            raise InvalidState(f"job {job_id!r} is {state}: only a job that waits can be claimed")
        lane = self._core.lanes_by_number[row[QUEUE]]
        flow = lane.flow
        if flow is not None:
            limit = flow.refuses(row[FLOW_KEY] or "", self._now_ms)
            if limit is not None:
                raise InvalidState(
                    f"job {job_id!r} cannot be claimed now: {limit} of queue {lane.name!r} is used "
                    "up. Try again when a claim of it has ended, or with the next token"
                )
            self._undo += (flow.put_back, [row], flow.tokens)
            flow.started(row[SEQ], row[FLOW_KEY] or "")
            flow.take_tokens(1, self._now_ms)
        self.execute(
            "UPDATE jobs SET state = 2, attempts = attempts + 1, claimed_at = ?, run_at = NULL,"
            " dedup_key = NULL WHERE seq = ?",
            (self._now_ms, row[SEQ]),
        )
        self._moves.append((lane, before, CLAIMED))
        if lease_seconds is None:
            lease_seconds = _validate.lease_seconds(lane.config.lease)
        lease = Lease(row[SEQ], lane.number, lease_seconds, self._core.leases)
        lease.run_at = row[RUN_AT]
        claimed = tuple(self._get(row[SEQ]) or ())
        if row[CANCEL_REQUESTED]:
            lease.cancel_token._fire()
        self._claimed.append(lease)
        return Claim(Job(claimed, lane.name), lease)

    def cancel(self, job_id: str, effects: Effects | None = None) -> Cancelled:
        """Remove a waiting job, or ask the worker that has it to stop.

        Effects apply only if the job was removed.
        """
        row = self._find(job_id)
        if row is None or row[STATE] >= DONE:
            return Cancelled(CancelOutcome.NOT_FOUND)
        lane = self._core.lanes_by_number[row[QUEUE]]
        if row[STATE] == CLAIMED:
            if not row[CANCEL_REQUESTED]:
                self.execute("UPDATE jobs SET cancel_requested = 1 WHERE seq = ?", (row[SEQ],))
            lease = self._core.leases.get(row[SEQ])
            if lease is not None:
                self._after.append(lease.request_cancel)
            return Cancelled(CancelOutcome.REQUESTED)
        self.execute("DELETE FROM jobs WHERE seq = ?", (row[SEQ],))
        self._removed(row[SEQ], row[HISTORY], row[PAYLOAD_REF])
        self._moves.append((lane, row[STATE], NOWHERE))
        if self._core.watched:
            self._completes(row[SEQ], CompletionOutcome.CANCELLED, Job(tuple(row), lane.name))
        return Cancelled(CancelOutcome.REMOVED, self.apply(effects))

    def requeue_dead(self, job_id: str) -> None:
        """Give a dead job a fresh start, at its old place in the queue.

        Raises:
            JobNotFound: There is no such job.
            InvalidState: The job is not dead.
        """
        row = self.execute(_LEAN_BY_ID, (job_id,)).fetchone()
        if row is None:
            raise JobNotFound(f"there is no job {job_id!r}")
        if row[STATE] != DEAD:
            state = JobState(row[STATE]).name.lower()
            raise InvalidState(f"job {job_id!r} is {state}: only dead jobs are requeued")
        self.execute(
            "UPDATE jobs SET state = 0, attempts = 0, last_error = NULL, ended_at = NULL,"
            " claimed_at = NULL, cancel_requested = NULL, error_type = NULL, traceback = NULL,"
            " history = ? WHERE seq = ?",
            (self._note(row, AttemptOutcome.REQUEUED), row[SEQ]),
        )
        lane = self._core.lanes_by_number[row[QUEUE]]
        self._entered(lane, DEAD, PENDING, None, row[FLOW_KEY])

    def remove_ended(self, lane: Lane, state: JobState, before_ms: float, limit: int) -> int:
        """Remove kept records that ended at or before a time; how many."""
        rows = self.execute(
            "SELECT seq, history, payload_ref FROM jobs"
            " WHERE queue = ? AND state = ? AND state >= 3 AND ended_at <= ? LIMIT ?",
            (lane.number, int(state), before_ms, limit),
        ).fetchall()
        for seq, history, payload_ref in rows:
            self.execute("DELETE FROM jobs WHERE seq = ?", (seq,))
            self._removed(seq, history, payload_ref)
            if state is JobState.DEAD:
                self._moves.append((lane, DEAD, NOWHERE))
        return len(rows)
