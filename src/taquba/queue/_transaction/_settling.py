"""Ending claims."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from taquba.errors import ClaimLost
from taquba.logs import fields
from taquba.metrics import NACKED, REAPED, RELEASED
from taquba.queue import _validate
from taquba.queue._columns import (
    ATTEMPTS,
    CANCEL_REQUESTED,
    ENDED_AT,
    FLOW_KEY,
    HEADERS,
    HISTORY,
    ID,
    MAX_ATTEMPTS,
    PAYLOAD,
    PAYLOAD_REF,
    PRIORITY,
    RETRY,
    SEQ,
    STATE,
    WIDTH,
)
from taquba.queue._core import Lane, logger
from taquba.queue._effects import Effects
from taquba.queue._failure import Failure, failure_of
from taquba.queue._leases import Lease
from taquba.queue._records import AttemptOutcome, Claim, Job, JobState
from taquba.queue._results import CompletionOutcome, Settled
from taquba.queue._retry import RetryPolicy
from taquba.queue._transaction._base import CLAIMED, DEAD, DONE, NOWHERE, PENDING, SCHEDULED
from taquba.queue._transaction._claiming import Claiming, Successor

if TYPE_CHECKING:
    from taquba.clock import Duration
    from taquba.queue._payloads import StoredValue
    from taquba.queue._transaction import QueueTransaction

__all__ = ["Settling"]

_REMOVE_CLAIMED = "DELETE FROM jobs WHERE seq = ? AND state = 2"
_KEEP_DONE = "UPDATE jobs SET state = 3, ended_at = ?, history = ? WHERE seq = ?"
_BURY = (
    "UPDATE jobs SET state = 4, ended_at = ?, claimed_at = NULL, last_error = ?, error_type = ?,"
    " traceback = ?, history = ? WHERE seq = ?"
)
_RETRY = (
    "UPDATE jobs SET state = ?, run_at = ?, claimed_at = NULL, last_error = ?, error_type = ?,"
    " traceback = ?, history = ? WHERE seq = ?"
)


class Settling(Claiming):
    """Ends claims: as their holders say, or because they expired."""

    __slots__ = ()

    def succeed_with_next(
        self,
        claim: Claim,
        payload: bytes,
        *,
        delay: Duration | None = None,
        due_ms: int | None = None,
        stored: StoredValue | None = None,
    ) -> str:
        """Acknowledge a job and enqueue its successor; returns the successor's id.

        The successor has the same queue, priority, headers and number of attempts, and
        waits behind what is pending already; or until a time, `delay` from now or `due_ms`
        in the future. With `stored`, its payload is that object.

        Raises:
            ClaimLost: The claim ended before.
        """
        row = claim.job._row
        lane = self._settle(claim)
        self._finish(lane, row)
        ref = None
        if stored is not None:
            ref = stored.ref
            stored.use(cast("QueueTransaction", self))
        if due_ms is None and delay is not None:
            due_ms = _validate.due_ms(None, delay, self._now_ms)
        if self._defer and due_ms is None and lane.flow is None and row[FLOW_KEY] is None:
            job_id = self._core.ids.next(self._now_ms)
            seq = self._core.take_seq()
            self._deferred.append(Successor(lane, seq, job_id, claim, payload, ref))
            return job_id
        return self._insert(
            lane,
            self._core.ids.next(self._now_ms),
            row[PRIORITY],
            row[MAX_ATTEMPTS],
            due_ms,
            None,
            row[HEADERS],
            payload,
            ref,
            row[FLOW_KEY],
        )

    def release(self, claim: Claim) -> None:
        """Give a job back untouched: its attempt does not count.

        Raises:
            ClaimLost: The claim ended before.
        """
        lane = self._settle(claim)
        if lane.abandoned_hook is not None and claim._lease.is_cancelled:
            self._abandon(lane, claim._lease.seq)
            return
        row = claim.job._row
        state, due = PENDING, claim._lease.run_at
        if due is not None:  # it was claimed before it was due, by its id
            state, due = (SCHEDULED, due) if due > self._now_ms else (PENDING, None)
        self.execute(
            "UPDATE jobs SET state = ?, run_at = ?, attempts = ?, claimed_at = NULL WHERE seq = ?",
            (state, due, row[ATTEMPTS] - 1, row[SEQ]),
        )
        self._count(RELEASED, lane)
        self._entered(lane, CLAIMED, state, due, row[FLOW_KEY])

    def postpone(self, claim: Claim, error: str, delay_ms: int) -> None:
        """Give a job back untouched, but not before some time: its attempt does not count.

        Raises:
            ClaimLost: The claim ended before.
        """
        lane = self._settle(claim)
        if lane.abandoned_hook is not None and claim._lease.is_cancelled:
            self._abandon(lane, claim._lease.seq)
            return
        row = claim.job._row
        run_at = max(self._now_ms + delay_ms, claim._lease.run_at or 0)
        self.execute(
            "UPDATE jobs SET state = 1, attempts = ?, run_at = ?, claimed_at = NULL,"
            " last_error = ? WHERE seq = ?",
            (row[ATTEMPTS] - 1, run_at, error, row[SEQ]),
        )
        self._count(RELEASED, lane)
        self._entered(lane, CLAIMED, SCHEDULED, run_at, row[FLOW_KEY])

    def ack(self, claim: Claim, effects: Effects | None = None) -> Settled:
        """The job is done.

        Raises:
            ClaimLost: The claim ended before.
        """
        lane = self._settle(claim)
        results = self.apply(effects)
        self._finish(lane, claim.job._row)
        return Settled(JobState.DONE, results)

    def nack(
        self,
        claim: Claim,
        error: BaseException | str | Failure,
        effects: Effects | None = None,
        *,
        retry_after: Duration | None = None,
        retry_at: datetime | None = None,
    ) -> Settled:
        """The attempt failed: retry with backoff, or give up if it was the last.

        Effects apply only if the job is given up. `retry_after` and `retry_at` are lower
        bounds of the next attempt's time.

        Raises:
            ClaimLost: The claim ended before.
        """
        row = claim.job._row
        if row[ATTEMPTS] >= row[MAX_ATTEMPTS]:
            return self.dead_letter(claim, error, effects)
        failure = failure_of(error, retry_after=retry_after, retry_at=retry_at)
        return self._retry(self._settle(claim), row, failure)

    def _retry(self, lane: Lane, row: Sequence[Any], failure: Failure) -> Settled:
        stored = row[RETRY]
        policy = lane.retry if stored is None else RetryPolicy._read(stored)
        delay = policy.delay_ms(row[ATTEMPTS], self._core.clock.random())
        run_at = max(self._now_ms + delay, failure.earliest_ms(self._now_ms))
        state, due = PENDING, None
        if run_at > self._now_ms:
            state, due = SCHEDULED, run_at
        history = self._note(row, AttemptOutcome.RETRIED, failure.text)
        self.execute(
            _RETRY,
            (state, due, failure.text, failure.kind, failure.traceback, history, row[SEQ]),
        )
        self._count(NACKED, lane)
        self._entered(lane, CLAIMED, state, due, row[FLOW_KEY])
        return Settled(JobState(state))

    def dead_letter(
        self, claim: Claim, error: BaseException | str | Failure, effects: Effects | None = None
    ) -> Settled:
        """Give the job up, whatever attempts are left.

        Raises:
            ClaimLost: The claim ended before.
        """
        failure = failure_of(error)
        lane = self._settle(claim)
        results = self.apply(effects)
        self._bury(lane, claim.job._row, failure)
        return Settled(JobState.DEAD, results)

    def take_back(
        self,
        lease: Lease,
        error: str,
        outcome: AttemptOutcome = AttemptOutcome.LEASE_EXPIRED,
        *,
        timed_out: bool = False,
    ) -> None:
        """End a claim whose lease expired or whose process is gone: redeliver, or give up.

        If it `timed_out`, it is a failed attempt: the next one comes after the backoff.
        """
        failure = Failure(error, "TimeoutError" if timed_out else None)
        row = self._get(lease.seq)
        self._ended[lease] = None
        lane = self._core.lanes_by_number[lease.queue_number]
        if lane.flow is not None:
            self._frees(lane, lane.flow, lease.seq)
        if row is None or row[STATE] != CLAIMED:
            return
        if row[CANCEL_REQUESTED] and lane.abandoned_hook is not None:
            self._abandon(lane, lease.seq)
            return
        if row[ATTEMPTS] >= row[MAX_ATTEMPTS]:
            self._bury(lane, row, failure)
            logger.warning(
                "job %s on queue %s is dead: %s, on attempt %d of %d",
                row[ID],
                lane.name,
                error,
                row[ATTEMPTS],
                row[MAX_ATTEMPTS],
                extra=fields(row[ID], lane.name, row[ATTEMPTS]),
            )
            if lane.dead_letter_hook is not None:
                dead = tuple(self._get(lease.seq) or ())
                lane.dead_letter_hook(cast("QueueTransaction", self), Job(dead, lane.name))
            return
        if timed_out:
            self._retry(lane, row, failure)
            return
        self.execute(
            "UPDATE jobs SET state = 0, claimed_at = NULL, history = ? WHERE seq = ?",
            (self._note(row, outcome), lease.seq),
        )
        self._count(REAPED, lane)
        self._entered(lane, CLAIMED, PENDING, None, row[FLOW_KEY])

    def remove(self, claim: Claim) -> None:
        """The job's cancellation was requested, and its holder has stopped: remove it.

        Raises:
            ClaimLost: The claim ended before.
        """
        self._remove_claimed(self._settle(claim), claim._lease.seq)

    def _abandon(self, lane: Lane, seq: int) -> None:
        """A claim ended unsettled whose job's cancellation was requested: nobody wants it."""
        assert lane.abandoned_hook is not None
        row = tuple(self._get(seq) or ())
        lane.abandoned_hook(cast("QueueTransaction", self), Job(row, lane.name))
        self._remove_claimed(lane, seq)

    def _remove_claimed(self, lane: Lane, seq: int) -> None:
        row = self._get(seq)
        assert row is not None
        self.execute(_REMOVE_CLAIMED, (seq,))
        self._removed(seq, row[HISTORY], row[PAYLOAD_REF])
        self._moves.append((lane, CLAIMED, NOWHERE))
        if self._core.watched:
            self._completes(seq, CompletionOutcome.CANCELLED, Job(tuple(row), lane.name))

    def _settle(self, claim: Claim) -> Lane:
        """Check that the claim still holds its job, and end it."""
        lease = claim._lease
        if not self._core.leases.holds(lease) or lease in self._ended:
            raise ClaimLost(
                f"the claim on job {claim.job.id} has ended: it was settled, its lease expired, or "
                "the job was given to another worker. Nothing of this settlement was applied"
            )
        self._ended[lease] = None
        lane = self._core.lanes_by_number[lease.queue_number]
        if lane.flow is not None:
            self._frees(lane, lane.flow, lease.seq)
        return lane

    def _finish(self, lane: Lane, row: Sequence[Any]) -> None:
        if self._core.watched:
            self._note_end(lane, row, CompletionOutcome.DONE)
        if lane.config.keep_done is None:
            self._write(_REMOVE_CLAIMED, (row[SEQ],))
            self._moves.append((lane, CLAIMED, DONE))
            if row[HISTORY] is not None or row[PAYLOAD_REF] is not None:
                self._removed(row[SEQ], row[HISTORY], row[PAYLOAD_REF])
            return
        history = self._note(row, AttemptOutcome.COMPLETED)
        self.execute(_KEEP_DONE, (self._now_ms, history, row[SEQ]))
        self._moves.append((lane, CLAIMED, DONE))
        self._core.on_kept(self._now_ms + lane.keep_ms[DONE])

    def _bury(self, lane: Lane, row: Sequence[Any], failure: Failure) -> None:
        history = self._note(row, AttemptOutcome.DEAD_LETTERED, failure.text)
        self.execute(
            _BURY,
            (self._now_ms, failure.text, failure.kind, failure.traceback, history, row[SEQ]),
        )
        if self._core.watched:
            self._note_end(lane, row, CompletionOutcome.DEAD)
        self._moves.append((lane, CLAIMED, DEAD))
        self._core.on_kept(self._now_ms + lane.keep_ms[DEAD])

    def _note_end(self, lane: Lane, row: Sequence[Any], outcome: CompletionOutcome) -> None:
        """Somebody waits for the ends of jobs: this one's final record may be wanted."""
        stored = list(self._get(row[SEQ]) or row[:WIDTH])
        if outcome is CompletionOutcome.DONE:
            stored[STATE], stored[ENDED_AT] = DONE, self._now_ms
        stored[PAYLOAD] = row[PAYLOAD]  # with the bytes, if they were fetched for the claim
        self._completes(row[SEQ], outcome, Job(tuple(stored), lane.name))
