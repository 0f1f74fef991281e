"""Taking jobs."""

from __future__ import annotations

from typing import Any, NamedTuple

from taquba.queue._columns import (
    ATTEMPTS,
    CANCEL_REQUESTED,
    HEADERS,
    MAX_ATTEMPTS,
    NEXT_CLAIMED,
    PAYLOAD,
    PAYLOAD_REF,
    PRIORITY,
    SEQ,
    WIDTH,
)
from taquba.queue._core import Core, Lane
from taquba.queue._flow import Flow
from taquba.queue._leases import Lease
from taquba.queue._records import Claim, Job
from taquba.queue._transaction._base import CLAIMED, NOWHERE, PENDING
from taquba.queue._transaction._enqueueing import INSERT_JOB, INSERT_STORED, Enqueueing

__all__ = ["Claiming", "Successor"]

_CLAIM = "UPDATE jobs SET state = 2, attempts = ?, claimed_at = ? WHERE seq = ?"
_CLAIM_AND_DROP_KEY = (
    "UPDATE jobs SET state = 2, attempts = ?, claimed_at = ?, dedup_key = NULL WHERE seq = ?"
)
_NOTHING_MORE = (None,) * (WIDTH - PAYLOAD - 1)
_UNTIL_REF = (None,) * (PAYLOAD_REF - PAYLOAD - 1)
_BEHIND_REF = (None,) * (WIDTH - PAYLOAD_REF - 1)


class Successor(NamedTuple):
    """A successor that is not written yet."""

    lane: Lane
    seq: int
    job_id: str
    claim: Claim
    payload: bytes
    ref: str | None
    """The object that holds the payload."""

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
        rows = self.execute(NEXT_CLAIMED, (now_ms, lane.number, count)).fetchall()
        return self._take(lane, rows, lease_seconds)

    def _take(self, lane: Lane, rows: list[tuple[Any, ...]], lease_seconds: float) -> list[Claim]:
        now_ms, write = self._now_ms, self._write
        leases = self._core.leases
        claims: list[Claim] = []
        for row in rows:
            seq = row[SEQ]
            update = _CLAIM if row[WIDTH] is None else _CLAIM_AND_DROP_KEY
            write(update, (row[ATTEMPTS], now_ms, seq))
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
        flow.more = False
        if self._deferred:
            self._write_deferred()
        if lane.counts[PENDING] <= 0 and not self._moves:
            return []
        now_ms = self._now_ms
        allowed = flow.allowed(count, now_ms)
        rows: list[tuple[Any, ...]] = []
        if allowed:
            self._undo += (flow.put_back, rows, flow.tokens)
            flow.start_next(self.execute, lane.number, now_ms, allowed, rows)
            flow.take_tokens(len(rows), now_ms)
        if len(rows) < count:
            if flow.bucket is not None and not flow.bucket.available(now_ms):
                self._core.on_dry(lane, flow.bucket.next_at_ms(now_ms))
            elif flow.more:
                self._core.on_dry(lane, now_ms)  # to go on when others have had their turn
        return self._take(lane, rows, lease_seconds)

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
            more: tuple[Any, ...] = _NOTHING_MORE
            if successor.ref is None:
                self._write(INSERT_JOB, row)
            else:
                self.execute(INSERT_STORED, (*row[:PAYLOAD], b"", successor.ref))
                more = (*_UNTIL_REF, successor.ref, *_BEHIND_REF)
            self._moves.append((lane, NOWHERE, CLAIMED))
            lease = Lease(successor.seq, lane.number, lease_seconds, leases)
            self._claimed.append(lease)
            claims.append(Claim(Job(row + more, lane.name), lease))
        if len(taken) < len(self._deferred):
            for successor in taken:
                self._deferred.remove(successor)
            self._write_deferred()
        self._deferred = []
        return claims

    def _write_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for successor in deferred:
            row = successor.row(PENDING, self._now_ms)
            if successor.ref is None:
                self._write(INSERT_JOB, row)
            else:
                self.execute(INSERT_STORED, (*row[:PAYLOAD], b"", successor.ref))
            self._entered(successor.lane, NOWHERE, PENDING, None, None)
