"""Signals: bytes under a key that one waiting run receives, exactly once.

Whatever happens to a signal happens in one transaction: it reaches the run that waits, or is
buffered; a run takes what is buffered, or waits. So there is no moment between two of these
at which one could be lost or be given twice.

The run that waits names the key in its row (`signal_key`); what it is given is in the row as
well (`signal`), so that every attempt of its step sees the same. The key stays beside it until
the step is settled, or has begun and was given back.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, cast

from taquba._msgpack import unpack
from taquba.errors import InputMismatch, SignalQueueFull
from taquba.queue import JobState
from taquba.workflow._signal import (
    MAX_BUFFERED_SIGNALS,
    SIGNAL_IDS_KEPT,
    NewSignal,
    Sent,
    Signalled,
    SignalOutcome,
)

if TYPE_CHECKING:
    from taquba.queue import QueueTransaction

__all__ = ["Signals"]

_IDS_KEPT_MS = SIGNAL_IDS_KEPT // timedelta(milliseconds=1)
_SWEPT_AT_ONCE = 100
"""Forgotten ids that one transaction removes."""

_Waiter = tuple[int, str, str, "int | None", "int | None"]
"""Life, run id and job of a run that waits, and the job's state and attempts, if it is there."""
_UNCLAIMED = (int(JobState.PENDING), int(JobState.SCHEDULED))
_OUTCOMES = (
    SignalOutcome.DELIVERED,
    SignalOutcome.BUFFERED,
    SignalOutcome.REPLACED,
    SignalOutcome.CLEARED,
)
_DELIVERED, _BUFFERED, _REPLACED, _CLEARED = range(4)


class _Buffered(NamedTuple):
    number: int
    sent: Sent

    @property
    def payload(self) -> bytes:
        return self.sent.payload


_NEVER_CLAIMED = "jobs.attempts = 0 AND jobs.state IN (0, 1)"
_CLAIMED_FIRST = "jobs.attempts = 1 AND jobs.state = 2"


class Signals:
    """The signals of one queue name: every statement on the tables `signals` and `signal_ids`."""

    def __init__(self, queue_name: str) -> None:
        self._name = queue_name

    # -- sending ----------------------------------------------------------------------------

    def send(self, tx: QueueTransaction, signal: NewSignal, *, limited: bool = True) -> Signalled:
        """Give a signal to the run that waits for it, or else buffer it.

        Without limit, it is also buffered if that is full: what it tells of cannot be refused.

        Raises:
            InputMismatch: Another payload was sent with its id.
            SignalQueueFull: As many as may be are buffered under its key.
        """
        key, signal_id = signal.key, signal.signal_id
        digest = b""
        if signal_id is not None:
            digest = hashlib.sha256(signal.payload).digest()
            known = self._known(tx, key, signal_id, digest)
            if known is not None:
                return known
        sent = Sent(signal.payload, signal_id, signal.latest, tx.now_ms)
        run_id = self._deliver(tx, key, sent)
        replaced = self._buffer(tx, key, sent, limited=limited) if run_id is None else None
        outcome = _BUFFERED if run_id is None else _DELIVERED
        if signal_id is not None:
            tx.execute(
                "INSERT OR REPLACE INTO signal_ids (queue, key, signal_id, sent_at, outcome,"
                " run_id, digest) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self._name, key, signal_id, tx.now_ms, outcome, run_id, digest),
            )
            self.forget_ids(tx)
        return Signalled(_OUTCOMES[outcome], run_id=run_id, replaced=replaced)

    def _deliver(self, tx: QueueTransaction, key: str, sent: Sent) -> str | None:
        """Give it to the run that waits, if one does; which."""
        waiter = self._registered(tx, key)
        if waiter is None:
            return None
        life, run_id, job_id, state, attempts = waiter
        if state not in _UNCLAIMED or attempts:
            # Its step has begun without a signal, and sees none on a later attempt either.
            self.begun(tx, life)
            return None
        tx.execute(
            "UPDATE runs SET signal = ?, signal_sent = ? WHERE life = ?",
            (sent.payload, sent.packed(), life),
        )
        if state == JobState.SCHEDULED:
            tx.wake(job_id)
        return run_id

    def _buffer(self, tx: QueueTransaction, key: str, sent: Sent, *, limited: bool) -> bytes | None:
        """Keep it for the next run that waits; the payload of the one that it replaced."""
        before = self._latest(tx, key) if sent.latest else None
        if before is not None:
            self._remove(tx, key, before, _REPLACED)
        count, last = tx.execute(
            "SELECT count(*), max(number) FROM signals WHERE queue = ? AND key = ?",
            (self._name, key),
        ).fetchone()
        if limited and count >= MAX_BUFFERED_SIGNALS:
            raise SignalQueueFull(
                f"{count:,} signals are buffered under key {key!r} and no more may be: wait until "
                "runs have taken some, clear them, or use several keys"
            )
        self._insert(tx, key, 1 if last is None else last + 1, sent)
        return None if before is None else before.payload

    def clear(self, tx: QueueTransaction, key: str) -> int:
        """Remove what is buffered under a key; how many signals that were."""
        removed = tx.execute(
            "DELETE FROM signals WHERE queue = ? AND key = ? RETURNING signal_id",
            (self._name, key),
        ).fetchall()
        for (signal_id,) in removed:
            self._note(tx, key, signal_id, _CLEARED)
        return len(removed)

    # -- waiting ----------------------------------------------------------------------------

    def waiting(self, tx: QueueTransaction, key: str) -> str | None:
        """The run that waits for this key, if one does. One whose time is over does not."""
        waiter = self._registered(tx, key)
        if waiter is None:
            return None
        life, run_id, _, state, attempts = waiter
        if state == JobState.SCHEDULED and not attempts:
            return run_id
        self.begun(tx, life)
        return None

    def take(self, tx: QueueTransaction, key: str, run_id: str) -> Sent | None:
        """The first signal that is buffered under a key, if one is; this run is given it."""
        buffered = self._first(tx, key)
        if buffered is not None:
            self._remove(tx, key, buffered, _DELIVERED, run_id)
            return buffered.sent
        return None

    def wait(
        self, tx: QueueTransaction, life: int, step: int, job_id: str, key: str, sent: Sent | None
    ) -> None:
        """A run goes on to a step that waits for a signal, or that has been given this one."""
        payload, packed = (None, None) if sent is None else (sent.payload, sent.packed())
        tx.execute(
            "UPDATE runs SET step = ?, job_id = ?, signal_key = ?, signal = ?, signal_sent = ?"
            " WHERE life = ?",
            (step, job_id, key, payload, packed, life),
        )

    def begun(self, tx: QueueTransaction, life: int) -> None:
        """The run's step has begun, with or without a signal: that does not change any more."""
        tx.execute("UPDATE runs SET signal_key = NULL WHERE life = ?", (life,))

    def give_back(self, tx: QueueTransaction, life: int, *, claimed: bool = False) -> None:
        """A run is cancelled: if its step has not begun, it must not keep what it was given.

        The next run that waits gets it: as if the run had been cancelled before. With `claimed`,
        the step was claimed for its first attempt, and its runner has not been called.
        """
        unbegun = _CLAIMED_FIRST if claimed else _NEVER_CLAIMED
        row = tx.execute(
            "SELECT runs.signal_key, runs.signal, runs.signal_sent"
            " FROM runs JOIN jobs ON jobs.id = runs.job_id WHERE runs.life = ? AND"
            f" runs.signal_key IS NOT NULL AND runs.signal IS NOT NULL AND {unbegun}",
            (life,),
        ).fetchone()
        if row is None:
            return
        key, sent = row[0], Sent(row[1], *unpack(row[2]))
        self.begun(tx, life)
        run_id = self._deliver(tx, key, sent)
        if run_id is None:
            first = self._first(tx, key)
            if sent.latest and self._latest(tx, key) is not None:
                sent = sent._replace(latest=False)  # both are kept
            self._insert(tx, key, 1 if first is None else first.number - 1, sent)
        self._note(tx, key, sent.signal_id, _BUFFERED if run_id is None else _DELIVERED, run_id)

    def _registered(self, tx: QueueTransaction, key: str) -> _Waiter | None:
        row = tx.execute(
            "SELECT runs.life, runs.run_id, runs.job_id, jobs.state, jobs.attempts"
            " FROM runs LEFT JOIN jobs ON jobs.id = runs.job_id WHERE runs.queue = ?"
            " AND runs.signal_key = ? AND runs.signal_key IS NOT NULL AND runs.signal IS NULL",
            (self._name, key),
        ).fetchone()
        return cast("_Waiter | None", row)

    # -- the buffer -------------------------------------------------------------------------

    def _first(self, tx: QueueTransaction, key: str) -> _Buffered | None:
        return self._buffered(tx, key, "")

    def _latest(self, tx: QueueTransaction, key: str) -> _Buffered | None:
        """The one that the next in mode "latest" replaces."""
        return self._buffered(tx, key, " AND latest = 1")

    def _buffered(self, tx: QueueTransaction, key: str, which: str) -> _Buffered | None:
        row = tx.execute(
            "SELECT number, payload, signal_id, latest, sent_at FROM signals"
            f" WHERE queue = ? AND key = ?{which} ORDER BY number LIMIT 1",
            (self._name, key),
        ).fetchone()
        return None if row is None else _Buffered(row[0], Sent(*row[1:]))

    def _insert(self, tx: QueueTransaction, key: str, number: int, sent: Sent) -> None:
        tx.execute(
            "INSERT INTO signals (queue, key, number, payload, signal_id, latest, sent_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self._name, key, number, *sent),
        )

    def _remove(
        self,
        tx: QueueTransaction,
        key: str,
        buffered: _Buffered,
        outcome: int,
        run_id: str | None = None,
    ) -> None:
        tx.execute(
            "DELETE FROM signals WHERE queue = ? AND key = ? AND number = ?",
            (self._name, key, buffered.number),
        )
        self._note(tx, key, buffered.sent.signal_id, outcome, run_id)

    # -- ids --------------------------------------------------------------------------------

    def _note(
        self,
        tx: QueueTransaction,
        key: str,
        signal_id: str | None,
        outcome: int,
        run_id: str | None = None,
    ) -> None:
        """Something became of a signal; whoever sends it again is told."""
        if signal_id is not None:
            tx.execute(
                "UPDATE signal_ids SET outcome = ?, run_id = ?"
                " WHERE queue = ? AND key = ? AND signal_id = ?",
                (outcome, run_id, self._name, key, signal_id),
            )

    def _known(
        self, tx: QueueTransaction, key: str, signal_id: str, digest: bytes
    ) -> Signalled | None:
        """What became of the signal that was sent with this id, if it is remembered."""
        row = tx.execute(
            "SELECT outcome, run_id, digest, sent_at FROM signal_ids"
            " WHERE queue = ? AND key = ? AND signal_id = ?",
            (self._name, key, signal_id),
        ).fetchone()
        if row is None:
            return None
        outcome, run_id, known_digest, sent_at = cast("tuple[int, str | None, bytes, int]", row)
        if outcome != _BUFFERED and sent_at <= tx.now_ms - _IDS_KEPT_MS:
            return None
        if known_digest != digest:
            raise InputMismatch(
                f"signal id {signal_id!r} was sent to key {key!r} with another payload: use "
                "another id for another signal"
            )
        return Signalled(_OUTCOMES[outcome], created=False, run_id=run_id)

    def forget_ids(self, tx: QueueTransaction, limit: int = _SWEPT_AT_ONCE) -> int:
        """Remove ids that were remembered for long enough, at most so many; how many.

        Those of signals that are still buffered stay.
        """
        removed = tx.execute(
            "DELETE FROM signal_ids WHERE (queue, key, signal_id) IN ("
            " SELECT queue, key, signal_id FROM signal_ids"
            f" WHERE queue = ? AND sent_at <= ? AND outcome <> {_BUFFERED} LIMIT ?) RETURNING 1",
            (self._name, tx.now_ms - _IDS_KEPT_MS, limit),
        )
        return len(removed.fetchall())
