"""Every change of the queue's state, as synchronous calls inside one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, final

from taquba.errors import ClaimLost, DuplicateJobId, InvalidState, JobNotFound
from taquba.queue import _validate
from taquba.queue._core import Core, Lane, logger
from taquba.queue._effects import Effects, NewJob
from taquba.queue._leases import Lease
from taquba.queue._records import (
    JOB_COLUMNS,
    Cancelled,
    CancelOutcome,
    Claim,
    Enqueued,
    Job,
    JobState,
    Settled,
)

if TYPE_CHECKING:
    from taquba.clock import Duration
    from taquba.database import Execute, Transaction

__all__ = ["QueueTransaction"]

_PENDING, _SCHEDULED, _CLAIMED, _DONE, _DEAD = (int(state) for state in JobState)
_NOWHERE = -1

_INSERT = f"INSERT INTO jobs ({JOB_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
# The rows as they are once they are claimed, and, behind them, the dedup key that is given up.
_NEXT = (
    "SELECT seq, id, queue, 2, priority, attempts + 1, max_attempts, enqueued_at, NULL, ?,"
    " NULL, cancel_requested, NULL, last_error, headers, payload, dedup_key"
    " FROM jobs WHERE queue = ? AND state = 0 ORDER BY priority, seq LIMIT ?"
)
_CLAIM = "UPDATE jobs SET state = 2, attempts = ?, claimed_at = ? WHERE seq = ?"
_CLAIM_AND_DROP_KEY = (
    "UPDATE jobs SET state = 2, attempts = ?, claimed_at = ?, dedup_key = NULL WHERE seq = ?"
)
_REMOVE_CLAIMED = "DELETE FROM jobs WHERE seq = ? AND state = 2"
_END = "UPDATE jobs SET state = ?, ended_at = ?, last_error = ?, claimed_at = ? WHERE seq = ?"
_RETRY = "UPDATE jobs SET state = ?, run_at = ?, claimed_at = NULL, last_error = ? WHERE seq = ?"
_BY_SEQ = f"SELECT {JOB_COLUMNS} FROM jobs WHERE seq = ?"
_BY_ID = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?"


class _Successor(NamedTuple):
    """A successor that is not written yet."""

    lane: Lane
    seq: int
    job_id: str
    claim: Claim
    payload: bytes

    def row(self, state: int, now_ms: int) -> tuple[Any, ...]:
        claimed = state == _CLAIMED
        before = self.claim.job._row
        return (
            self.seq,
            self.job_id,
            self.lane.number,
            state,
            before[4],
            int(claimed),
            before[6],
            now_ms,
            None,
            now_ms if claimed else None,
            None,
            None,
            None,
            None,
            before[14],
            self.payload,
        )


@final
class QueueTransaction:
    """A set of changes that are committed together, or not at all.

    Made by `Queue.transaction()`. The body of the ``with`` block is synchronous; leaving it
    by an exception rolls everything back. Leaving it normally applies the changes in this
    process at once; they are durable when `durable()` returns.

    Example:
        >>> with queue.transaction() as tx:                          # doctest: +SKIP
        ...     tx.ack(claim)
        ...     tx.enqueue(new_job("mail", b"receipt"))
        >>> await tx.durable()                                       # doctest: +SKIP
    """

    __slots__ = (
        "_after",
        "_claimed",
        "_core",
        "_defer",
        "_deferred",
        "_ended",
        "_moves",
        "_now_ms",
        "_tx",
        "_woken",
        "execute",
    )

    def __init__(self, core: Core, *, defer_successors: bool = False) -> None:
        """Not for callers: use `Queue.transaction`.

        With `defer_successors`, a successor is written when it is known whether `claim`
        takes it at once: one statement instead of three.
        """
        self._core = core
        self._defer = defer_successors
        self._deferred: list[_Successor] = []
        self._tx: Transaction = core.database.transaction()
        self._moves: list[tuple[Lane, int, int]] = []
        self._claimed: list[Lease] = []
        self._ended: list[Lease] = []
        self._woken: list[Lane] = []
        self._after: list[Callable[[], None]] = []
        self._now_ms = core.clock.now_ms()
        self.execute: Execute = self._tx.execute
        """Run SQL on tables that are the caller's own, in the same transaction."""

    @property
    def now_ms(self) -> int:
        """The one moment at which everything in this transaction happens."""
        return self._now_ms

    def __enter__(self) -> QueueTransaction:
        self.execute = self._tx.__enter__().execute
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._deferred:
            try:
                self._write_deferred()
            except BaseException as failure:
                self._tx.__exit__(type(failure), failure, failure.__traceback__)
                raise
        self._tx.__exit__(kind, error, trace)
        if kind is not None:
            return
        core = self._core
        for lane, left, entered in self._moves:
            core.moved(lane, left, entered)
        for lease in self._ended:
            core.leases.end(lease)
        for lease in self._claimed:
            core.leases.add(lease)
        for lane in self._woken:
            for listener in lane.listeners:
                listener()
        for callback in self._after:
            callback()

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call this when the changes are applied in this process; not if they are rolled back."""
        self._after.append(callback)

    async def durable(self) -> None:
        """Return when the changes are stored and will survive any crash.

        The leases of what was claimed begin to run then.

        Raises:
            Fenced: Another process took the store over, and the changes are lost.
        """
        await self._tx.durable()
        for lease in self._claimed:
            lease.start()

    async def confirmed(self) -> None:
        """As `durable`; when nothing was changed, return when what was found is durable.

        So that nobody is told of what others did while that can still be lost.
        """
        if self._tx.ticket:
            await self.durable()
        else:
            await self._core.database.barrier()

    # -- enqueueing -------------------------------------------------------------------------

    def enqueue(self, job: NewJob) -> Enqueued:
        """Add a job.

        Raises:
            DuplicateJobId: A job with the chosen id exists, on whatever queue.
        """
        lane = self._core.lane(job.queue)
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
        return Enqueued(
            self._insert(
                lane,
                job.job_id or self._core.ids.next(),
                config.default_priority if job.priority is None else job.priority,
                config.max_attempts if job.max_attempts is None else job.max_attempts,
                _validate.due_ms(job.run_at, job.delay, self._now_ms),
                job.dedup_key,
                job.headers,
                job.payload,
            ),
            created=True,
        )

    def succeed_with_next(
        self, claim: Claim, payload: bytes, *, delay: Duration | None = None
    ) -> str:
        """Acknowledge a job and enqueue its successor; returns the successor's id.

        The successor has the same queue, priority, headers and number of attempts, and
        waits behind what is pending already.

        Raises:
            ClaimLost: The claim ended before.
        """
        row = claim.job._row
        lane = self._settle(claim)
        self._finish(lane, row[0])
        if self._defer and delay is None:
            job_id = self._core.ids.next()
            self._deferred.append(_Successor(lane, self._core.take_seq(), job_id, claim, payload))
            return job_id
        return self._insert(
            lane,
            self._core.ids.next(),
            row[4],
            row[6],
            _validate.due_ms(None, delay, self._now_ms),
            None,
            row[14],
            payload,
        )

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
    ) -> str:
        state = _PENDING if run_at is None else _SCHEDULED
        self.execute(
            _INSERT,
            (
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
                payload,
            ),
        )
        self._entered(lane, _NOWHERE, state, run_at)
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
        return results

    def put(self, key: bytes, value: bytes) -> None:
        """Write a key of the key-value store."""
        self.execute(
            "INSERT INTO kv VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (key, value),
        )

    def delete(self, key: bytes) -> None:
        """Delete a key of the key-value store."""
        self.execute("DELETE FROM kv WHERE key = ?", (key,))

    # -- claiming ---------------------------------------------------------------------------

    def claim(self, lane: Lane, count: int, lease_seconds: float) -> list[Claim]:
        """Claim up to `count` pending jobs, first by priority, then in order of enqueueing."""
        if self._deferred:
            if lane.counts[_PENDING] == 0 and not self._woken:
                # Nothing else is pending, so these are what the claim order puts first.
                return self._claim_deferred(lane, count, lease_seconds)
            self._write_deferred()
        if lane.counts[_PENDING] <= 0 and not self._moves:
            return []
        now_ms = self._now_ms
        rows = self.execute(_NEXT, (now_ms, lane.number, count)).fetchall()
        leases = self._core.leases
        claims: list[Claim] = []
        for row in rows:
            seq = row[0]
            self.execute(_CLAIM if row[16] is None else _CLAIM_AND_DROP_KEY, (row[5], now_ms, seq))
            self._moves.append((lane, _PENDING, _CLAIMED))
            lease = Lease(seq, lane.number, lease_seconds, leases)
            if row[11]:
                lease.cancel_token._fire()
            self._claimed.append(lease)
            claims.append(Claim(Job(row, lane.name), lease))
        return claims

    def _claim_deferred(self, lane: Lane, count: int, lease_seconds: float) -> list[Claim]:
        now_ms = self._now_ms
        leases = self._core.leases
        ready = [x for x in self._deferred if x.lane is lane]
        ready.sort(key=lambda x: x.claim.job._row[4])  # stable: by priority, then by seq
        taken = ready[:count]
        claims: list[Claim] = []
        for successor in taken:
            row = successor.row(_CLAIMED, now_ms)
            self.execute(_INSERT, row)
            self._moves.append((lane, _NOWHERE, _CLAIMED))
            lease = Lease(successor.seq, lane.number, lease_seconds, leases)
            self._claimed.append(lease)
            claims.append(Claim(Job(row, lane.name), lease))
        if len(taken) < len(self._deferred):
            for successor in taken:
                self._deferred.remove(successor)
            self._write_deferred()
        self._deferred = []
        return claims

    def _write_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for successor in deferred:
            self.execute(_INSERT, successor.row(_PENDING, self._now_ms))
            self._entered(successor.lane, _NOWHERE, _PENDING, None)

    def release(self, claim: Claim) -> None:
        """Give a job back untouched: its attempt does not count.

        Raises:
            ClaimLost: The claim ended before.
        """
        lane = self._settle(claim)
        row = claim.job._row
        self.execute(
            "UPDATE jobs SET state = 0, attempts = ?, claimed_at = NULL WHERE seq = ?",
            (row[5] - 1, row[0]),
        )
        self._entered(lane, _CLAIMED, _PENDING, None)

    # -- settling ---------------------------------------------------------------------------

    def ack(self, claim: Claim, effects: Effects | None = None) -> Settled:
        """The job is done.

        Raises:
            ClaimLost: The claim ended before.
        """
        lane = self._settle(claim)
        results = self.apply(effects)
        self._finish(lane, claim.job._row[0])
        return Settled(JobState.DONE, results)

    def nack(
        self,
        claim: Claim,
        error: str,
        effects: Effects | None = None,
        *,
        retry_after: Duration | None = None,
    ) -> Settled:
        """The attempt failed: retry with backoff, or give up if it was the last.

        Effects apply only if the job is given up. `retry_after` is a lower bound of the
        delay.

        Raises:
            ClaimLost: The claim ended before.
        """
        row = claim.job._row
        if row[5] >= row[6]:
            return self.dead_letter(claim, error, effects)
        error = _validate.error_text(error)
        lane = self._settle(claim)
        run_at = self._now_ms + lane.config.backoff_ms(row[5])
        if retry_after is not None:
            run_at = max(run_at, _validate.due_ms(None, retry_after, self._now_ms) or 0)
        state, due = _PENDING, None
        if run_at > self._now_ms:
            state, due = _SCHEDULED, run_at
        self.execute(_RETRY, (state, due, error, row[0]))
        self._entered(lane, _CLAIMED, state, due)
        return Settled(JobState(state))

    def dead_letter(self, claim: Claim, error: str, effects: Effects | None = None) -> Settled:
        """Give the job up, whatever attempts are left.

        Raises:
            ClaimLost: The claim ended before.
        """
        error = _validate.error_text(error)
        lane = self._settle(claim)
        results = self.apply(effects)
        self._bury(lane, claim.job._row[0], error)
        return Settled(JobState.DEAD, results)

    def take_back(self, lease: Lease, error: str) -> None:
        """End a claim whose lease expired or whose process is gone: redeliver, or give up."""
        row = self.execute(_BY_SEQ, (lease.seq,)).fetchone()
        self._ended.append(lease)
        lane = self._core.lanes_by_number[lease.queue_number]
        if row is None or row[3] != _CLAIMED:
            return
        if row[5] >= row[6]:
            self._bury(lane, lease.seq, error)
            logger.warning(
                "job %s on queue %s is dead: %s, on attempt %d of %d",
                row[1],
                lane.name,
                error,
                row[5],
                row[6],
            )
            if lane.dead_letter_hook is not None:
                dead = self.execute(_BY_SEQ, (lease.seq,)).fetchone()
                lane.dead_letter_hook(self, Job(dead, lane.name))
            return
        self.execute("UPDATE jobs SET state = 0, claimed_at = NULL WHERE seq = ?", (lease.seq,))
        self._entered(lane, _CLAIMED, _PENDING, None)

    def _settle(self, claim: Claim) -> Lane:
        """Check that the claim still holds its job, and end it."""
        lease = claim._lease
        if not self._core.leases.holds(lease) or lease in self._ended:
            raise ClaimLost(
                f"the claim on job {claim.job.id} has ended: it was settled, its lease expired, or "
                "the job was given to another worker. Nothing of this settlement was applied"
            )
        self._ended.append(lease)
        return self._core.lanes_by_number[lease.queue_number]

    def _finish(self, lane: Lane, seq: int) -> None:
        if lane.config.keep_done is None:
            self.execute(_REMOVE_CLAIMED, (seq,))
            self._moves.append((lane, _CLAIMED, _DONE))
            return
        self.execute("UPDATE jobs SET state = 3, ended_at = ? WHERE seq = ?", (self._now_ms, seq))
        self._moves.append((lane, _CLAIMED, _DONE))
        self._core.on_kept(self._now_ms + lane.keep_ms[_DONE])

    def _bury(self, lane: Lane, seq: int, error: str) -> None:
        self.execute(_END, (_DEAD, self._now_ms, error, None, seq))
        self._moves.append((lane, _CLAIMED, _DEAD))
        self._core.on_kept(self._now_ms + lane.keep_ms[_DEAD])

    # -- jobs that nobody holds -------------------------------------------------------------

    def promote(self, limit: int) -> int:
        """Make due scheduled jobs pending, in the order of their due times; how many."""
        rows = self.execute(
            "SELECT seq, queue FROM jobs WHERE state = 1 AND run_at <= ? ORDER BY run_at LIMIT ?",
            (self._now_ms, limit),
        ).fetchall()
        for seq, number in rows:
            self.execute("UPDATE jobs SET state = 0, run_at = NULL WHERE seq = ?", (seq,))
            self._entered(self._core.lanes_by_number[number], _SCHEDULED, _PENDING, None)
        return len(rows)

    def cancel(self, job_id: str, effects: Effects | None = None) -> Cancelled:
        """Remove a waiting job, or ask the worker that has it to stop.

        Effects apply only if the job was removed.
        """
        row = self._find(job_id)
        if row is None or row[3] >= _DONE:
            return Cancelled(CancelOutcome.NOT_FOUND)
        lane = self._core.lanes_by_number[row[2]]
        if row[3] == _CLAIMED:
            if not row[11]:
                self.execute("UPDATE jobs SET cancel_requested = 1 WHERE seq = ?", (row[0],))
            lease = self._core.leases.get(row[0])
            if lease is not None:
                self._after.append(lease.cancel_token._fire)
            return Cancelled(CancelOutcome.REQUESTED)
        self.execute("DELETE FROM jobs WHERE seq = ?", (row[0],))
        self._moves.append((lane, row[3], _NOWHERE))
        return Cancelled(CancelOutcome.REMOVED, self.apply(effects))

    def requeue_dead(self, job_id: str) -> None:
        """Give a dead job a fresh start, at its old place in the queue.

        Raises:
            JobNotFound: There is no such job.
            InvalidState: The job is not dead.
        """
        row = self._find(job_id)
        if row is None:
            raise JobNotFound(f"there is no job {job_id!r}")
        if row[3] != _DEAD:
            raise InvalidState(
                f"job {job_id!r} is {JobState(row[3]).name.lower()}: only dead jobs are requeued"
            )
        self.execute(
            "UPDATE jobs SET state = 0, attempts = 0, last_error = NULL, ended_at = NULL,"
            " claimed_at = NULL, cancel_requested = NULL WHERE seq = ?",
            (row[0],),
        )
        self._entered(self._core.lanes_by_number[row[2]], _DEAD, _PENDING, None)

    def remove_ended(self, lane: Lane, state: JobState, before_ms: float, limit: int) -> int:
        """Remove kept records that ended at or before a time; how many."""
        rows = self.execute(
            "SELECT seq FROM jobs WHERE queue = ? AND state = ? AND state >= 3 AND ended_at <= ?"
            " LIMIT ?",
            (lane.number, int(state), before_ms, limit),
        ).fetchall()
        for (seq,) in rows:
            self.execute("DELETE FROM jobs WHERE seq = ?", (seq,))
            if state is JobState.DEAD:
                self._moves.append((lane, _DEAD, _NOWHERE))
        return len(rows)

    def _find(self, job_id: str) -> Sequence[Any] | None:
        return self.execute(_BY_ID, (job_id,)).fetchone()  # type: ignore[no-any-return]

    def _entered(self, lane: Lane, left: int, state: int, run_at: int | None) -> None:
        """A job became pending or scheduled: count it, and wake whoever waits for that."""
        self._moves.append((lane, left, state))
        if run_at is not None:
            self._core.on_scheduled(run_at)
        elif lane not in self._woken:
            self._woken.append(lane)


def recover(core: Core) -> int:
    """Take back every claim that an earlier process left behind; how many there were.

    Their leases were in that process's memory and are void, however much was left.
    """
    rows = core.database.execute("SELECT seq, queue FROM jobs WHERE state = 2").fetchall()
    found = 0
    with QueueTransaction(core) as tx:
        for seq, number in rows:
            tx.take_back(Lease(seq, number, 0.0, core.leases), "claim interrupted by process exit")
            found += 1
    return found
