"""Taking jobs."""

from __future__ import annotations

from typing import Any, NamedTuple

from taquba.queue._columns import (
    ATTEMPTS,
    CANCEL_REQUESTED,
    FLOW_KEY,
    HEADERS,
    MAX_ATTEMPTS,
    PAYLOAD,
    PRIORITY,
    SEQ,
    WIDTH,
)
from taquba.queue._core import Core, Lane
from taquba.queue._flow import Flow
from taquba.queue._leases import Lease
from taquba.queue._records import Claim, Job
from taquba.queue._transaction._base import CLAIMED, NOWHERE, PENDING
from taquba.queue._transaction._enqueueing import INSERT_JOB, Enqueueing

__all__ = ["Claiming", "Successor"]

# The rows as they are once they are claimed, and, behind them, the dedup key that is given up.
_AS_CLAIMED = (
    "SELECT seq, id, queue, 2, priority, attempts + 1, max_attempts, enqueued_at, NULL, ?,"
    " NULL, cancel_requested, NULL, last_error, headers, payload, woken_at, wake_payload,"
    " payload_ref, retry, error_type, traceback, flow_key, history, dedup_key"
    " FROM jobs WHERE "
)
_NEXT = f"{_AS_CLAIMED} queue = ? AND state = 0 ORDER BY priority, seq LIMIT ?"
_IF_PENDING = f"{_AS_CLAIMED} seq = ? AND state = 0"
_THOSE_PENDING = f"{_AS_CLAIMED} seq IN (SELECT value FROM json_each(?)) AND state = 0"
_CLAIM = "UPDATE jobs SET state = 2, attempts = ?, claimed_at = ? WHERE seq = ?"
_CLAIM_AND_DROP_KEY = (
    "UPDATE jobs SET state = 2, attempts = ?, claimed_at = ?, dedup_key = NULL WHERE seq = ?"
)
_NOTHING_MORE = (None,) * (WIDTH - PAYLOAD - 1)


class Successor(NamedTuple):
    """A successor that is not written yet."""

    lane: Lane
    seq: int
    job_id: str
    claim: Claim
    payload: bytes

    def row(self, state: int, now_ms: int) -> tuple[Any, ...]:
        claimed = state == CLAIMED
        before = self.claim.job._row
        return (
            self.seq,
            self.job_id,
            self.lane.number,
            state,
            before[PRIORITY],
            int(claimed),
            before[MAX_ATTEMPTS],
            now_ms,
            None,
            now_ms if claimed else None,
            None,
            None,
            None,
            None,
            before[HEADERS],
            self.payload,
        )


class Claiming(Enqueueing):
    """Takes jobs."""

    __slots__ = ("_defer", "_deferred")

    def __init__(self, core: Core, *, defer_successors: bool = False) -> None:
        """Not for callers: use `Queue.transaction`.

        With `defer_successors`, a successor is written when it is known whether `claim`
        takes it at once: one statement instead of three.
        """
        super().__init__(core)
        self._defer = defer_successors
        self._deferred: list[Successor] = []

    def _before_commit(self) -> None:
        if self._deferred:
            self._write_deferred()

    def claimable(self, lane: Lane) -> int:
        """At least as many as are pending on that queue, and 0 only if none is."""
        return max(lane.counts[PENDING] + len(self._moves) + len(self._deferred), 0)

    def claim(self, lane: Lane, count: int, lease_seconds: float) -> list[Claim]:
        """Claim up to `count` pending jobs, first by priority, then in order of enqueueing."""
        if lane.flow is not None:
            return self._claim_limited(lane, lane.flow, count, lease_seconds)
        if self._deferred:
            if lane.counts[PENDING] == 0 and not self._woken:
                # Nothing else is pending, so these are what the claim order puts first.
                return self._claim_deferred(lane, count, lease_seconds)
            self._write_deferred()
        if lane.counts[PENDING] <= 0 and not self._moves:
            return []
        now_ms = self._now_ms
        rows = self.execute(_NEXT, (now_ms, lane.number, count)).fetchall()
        return self._take(lane, rows, lease_seconds)

    def _take(self, lane: Lane, rows: list[tuple[Any, ...]], lease_seconds: float) -> list[Claim]:
        now_ms = self._now_ms
        leases = self._core.leases
        claims: list[Claim] = []
        for row in rows:
            seq = row[SEQ]
            update = _CLAIM if row[WIDTH] is None else _CLAIM_AND_DROP_KEY
            self.execute(update, (row[ATTEMPTS], now_ms, seq))
            self._moves.append((lane, PENDING, CLAIMED))
            lease = Lease(seq, lane.number, lease_seconds, leases)
            if row[CANCEL_REQUESTED]:
                lease.cancel_token._fire()
            self._claimed.append(lease)
            claims.append(Claim(Job(row, lane.name), lease))
        return claims

    def _claim_limited(
        self, lane: Lane, flow: Flow, count: int, lease_seconds: float
    ) -> list[Claim]:
        """Claim what the queue's limits let through."""
        if self._deferred:
            self._write_deferred()
        if lane.counts[PENDING] <= 0 and not self._moves:
            return []
        now_ms = self._now_ms
        allowed = flow.allowed(count, now_ms)
        claims: list[Claim] = []
        if not flow.keyed:
            if allowed:
                rows = self.execute(_NEXT, (now_ms, lane.number, allowed)).fetchall()
                claims = self._take(lane, rows, lease_seconds)
                taken = [(row[SEQ], row[FLOW_KEY] or "") for row in rows]
                self._undo += (flow.put_back, taken, flow.tokens)
                flow.start_taken(taken)
        else:
            while (wanted := allowed - len(claims)) > 0:
                taken = flow.take_next(self.execute, lane.number, wanted)
                if not taken:
                    break
                self._undo += (flow.put_back, taken, flow.tokens)
                if len(taken) == 1:
                    rows = self.execute(_IF_PENDING, (now_ms, taken[0][0])).fetchall()
                    found = {taken[0][0]: rows[0]} if rows else {}
                else:
                    numbers = f"[{','.join([str(seq) for seq, _ in taken])}]"
                    rows = self.execute(_THOSE_PENDING, (now_ms, numbers)).fetchall()
                    found = {row[SEQ]: row for row in rows}
                    rows = [found[seq] for seq, _ in taken if seq in found]
                flow.start_taken(taken, found)
                claims += self._take(lane, rows, lease_seconds)
        flow.take_tokens(len(claims), now_ms)
        if flow.bucket is not None and len(claims) < count and not flow.bucket.available(now_ms):
            self._core.on_dry(lane, flow.bucket.next_at_ms(now_ms))
        return claims

    def _frees(self, lane: Lane, flow: Flow, seq: int) -> None:
        """A claim ended, so another job may run."""
        key = flow.ended(seq)
        if key is not None:
            self._undo += (flow.restart, seq, key)
            if lane not in self._woken:
                self._woken.append(lane)

    def _claim_deferred(self, lane: Lane, count: int, lease_seconds: float) -> list[Claim]:
        now_ms = self._now_ms
        leases = self._core.leases
        ready = [x for x in self._deferred if x.lane is lane]
        ready.sort(key=lambda x: x.claim.job._row[PRIORITY])  # stable: by priority, then by seq
        taken = ready[:count]
        claims: list[Claim] = []
        for successor in taken:
            row = successor.row(CLAIMED, now_ms)
            self.execute(INSERT_JOB, row)
            self._moves.append((lane, NOWHERE, CLAIMED))
            lease = Lease(successor.seq, lane.number, lease_seconds, leases)
            self._claimed.append(lease)
            claims.append(Claim(Job(row + _NOTHING_MORE, lane.name), lease))
        if len(taken) < len(self._deferred):
            for successor in taken:
                self._deferred.remove(successor)
            self._write_deferred()
        self._deferred = []
        return claims

    def _write_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for successor in deferred:
            self.execute(INSERT_JOB, successor.row(PENDING, self._now_ms))
            self._entered(successor.lane, NOWHERE, PENDING, None, None)
