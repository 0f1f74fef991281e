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
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from taquba._checks import blob, shown, utf8, wrong_type
from taquba.errors import InputMismatch, InvalidArgument, SignalQueueFull, ValueTooLarge
from taquba.queue import JobState

if TYPE_CHECKING:
    from taquba.queue import Queue, QueueTransaction

__all__ = [
    "FOR_EVER_MS",
    "MAX_BUFFERED_SIGNALS",
    "MAX_SIGNAL_KEY_SIZE",
    "MAX_SIGNAL_SIZE",
    "SIGNAL_IDS_KEPT",
    "Given",
    "NewSignal",
    "SignalMode",
    "SignalOutcome",
    "Signalled",
    "Signals",
    "check_signal_key",
    "due_at",
    "new_signal",
]

MAX_SIGNAL_SIZE = 256 * 1024
"""Bytes of one signal's payload, 256 KiB."""
MAX_BUFFERED_SIGNALS = 1000
"""Signals that can be buffered under one key."""
SIGNAL_IDS_KEPT = timedelta(days=7)
"""How long the id of a signal is remembered, and as long as it is buffered."""
MAX_SIGNAL_KEY_SIZE = 1024
"""Bytes of UTF-8 in a signal's key, or in its id."""
FOR_EVER_MS = 253_402_300_799_000
"""When the job of a step is due that waits without a timeout: at the end of the year 9999."""
_IDS_KEPT_MS = SIGNAL_IDS_KEPT // timedelta(milliseconds=1)
_SWEPT_AT_ONCE = 100
"""Forgotten ids that one transaction removes."""

SignalMode = Literal["latest", "queue"]

_Waiter = tuple[int, str, str, "int | None", "int | None"]
_UNBEGUN = (int(JobState.PENDING), int(JobState.SCHEDULED))


class SignalOutcome(Enum):
    """What became of a signal."""

    DELIVERED = "delivered"
    """A run was given it."""
    BUFFERED = "buffered"
    """Nobody waits for its key: it is kept for the next run that does."""
    REPLACED = "replaced"
    """It was buffered, and a later one took its place."""
    CLEARED = "cleared"
    """It was buffered, and `clear_signal` removed it."""


_OUTCOMES = (
    SignalOutcome.DELIVERED,
    SignalOutcome.BUFFERED,
    SignalOutcome.REPLACED,
    SignalOutcome.CLEARED,
)
_DELIVERED, _BUFFERED, _REPLACED, _CLEARED = range(4)


@dataclass(frozen=True, slots=True)
class Signalled:
    """What became of a signal; it is durable."""

    outcome: SignalOutcome
    """Of a signal that was sent before with the same id: what has become of that one by now."""
    created: bool = True
    """False if one was sent with the same id before: nothing was written."""
    run_id: str | None = None
    """The run that was given it."""
    replaced: bytes | None = None
    """The payload of the buffered signal whose place it took, which nobody will receive."""


@dataclass(frozen=True, slots=True)
class BufferedSignal:
    """A signal that nobody has waited for yet."""

    key: str
    payload: bytes
    sent_at: datetime
    signal_id: str | None


class NewSignal(NamedTuple):
    """A checked request to signal."""

    key: str
    payload: bytes
    signal_id: str | None
    latest: bool


class Given(NamedTuple):
    """What the row of a run says about signals while one of its steps waits, or has waited."""

    key: str | None
    """None if the step has begun, and was given back."""
    payload: bytes | None
    """None if there is none: no signal came in time."""


def new_signal(key: object, payload: object, signal_id: object, mode: object) -> NewSignal:
    """Check every argument of a signal.

    Raises:
        InvalidArgument: One is wrong.
    """
    if mode not in ("latest", "queue"):
        raise InvalidArgument(f"mode is {shown(mode)}: use 'latest' or 'queue'")
    if signal_id is not None:
        signal_id = _text(signal_id, "a signal_id")
        if not signal_id:
            raise InvalidArgument("the signal_id is empty: leave it out, or give one")
    return NewSignal(
        check_signal_key(key),
        blob(payload, name="the payload of a signal", limit=MAX_SIGNAL_SIZE),
        signal_id,
        mode == "latest",
    )


def check_signal_key(key: object) -> str:
    """The key, if it is one.

    Raises:
        InvalidType: It is no str.
        InvalidArgument: It cannot be encoded.
        ValueTooLarge: It has more than 1,024 bytes.
    """
    return _text(key, "the key of a signal")


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(f"{name} must be a str", value)
    size = len(utf8(value, name))
    if size > MAX_SIGNAL_KEY_SIZE:
        raise ValueTooLarge(
            f"{name} has {size:,} bytes and may have {MAX_SIGNAL_KEY_SIZE:,}: use a hash of it"
        )
    return value


def due_at(now_ms: int, timeout: float | None) -> int | None:
    """When a step is due that waits for a signal for so many seconds from now; None: at once."""
    if timeout is None:
        return FOR_EVER_MS
    due = now_ms + round(min(timeout, 2**40) * 1000)
    return min(due, FOR_EVER_MS) if due > now_ms else None


class Signals:
    """The signals of one queue name: every statement on the tables `signals` and `signal_ids`."""

    def __init__(self, queue: Queue, queue_name: str) -> None:
        self._queue = queue
        self._name = queue_name

    # -- sending ----------------------------------------------------------------------------

    def send(self, tx: QueueTransaction, signal: NewSignal) -> Signalled:
        """Give a signal to the run that waits for it, or else buffer it.

        Raises:
            InputMismatch: Another payload was sent with its id.
            SignalQueueFull: As many as may be are buffered under its key.
        """
        key, payload, signal_id, _ = signal
        digest = b"" if signal_id is None else hashlib.sha256(payload).digest()
        if signal_id is not None:
            known = self._known(tx, key, signal_id)
            if known is not None:
                outcome, run_id, known_digest = known
                if known_digest != digest:
                    raise InputMismatch(
                        f"signal id {signal_id!r} was sent to key {key!r} with another payload: "
                        "use another id for another signal"
                    )
                return Signalled(_OUTCOMES[outcome], created=False, run_id=run_id)
        run_id = self._deliver(tx, key, payload)
        replaced = None
        if run_id is None:
            replaced = self._buffer(tx, signal)
        if signal_id is not None:
            outcome = _BUFFERED if run_id is None else _DELIVERED
            tx.execute(
                "INSERT OR REPLACE INTO signal_ids (queue, key, signal_id, sent_at, outcome,"
                " run_id, digest) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self._name, key, signal_id, tx.now_ms, outcome, run_id, digest),
            )
            self.forget_ids(tx)
        if run_id is None:
            return Signalled(SignalOutcome.BUFFERED, replaced=replaced)
        return Signalled(SignalOutcome.DELIVERED, run_id=run_id)

    def _deliver(self, tx: QueueTransaction, key: str, payload: bytes) -> str | None:
        """Give it to the run that waits, if one does; which."""
        waiter = self._registered(tx, key)
        if waiter is None:
            return None
        life, run_id, job_id, state, attempts = waiter
        if state not in _UNBEGUN or attempts:
            # Its step has begun without a signal, and sees none on a later attempt either.
            self.begun(tx, life)
            return None
        tx.execute("UPDATE runs SET signal = ? WHERE life = ?", (payload, life))
        if state == JobState.SCHEDULED:
            tx.wake(job_id)
        return run_id

    def _buffer(self, tx: QueueTransaction, signal: NewSignal) -> bytes | None:
        """Keep it for the next run that waits; the payload that it replaced."""
        key, payload, signal_id, latest = signal
        replaced = None
        if latest:
            row = tx.execute(
                "SELECT number, payload, signal_id FROM signals"
                " WHERE queue = ? AND key = ? AND latest = 1",
                (self._name, key),
            ).fetchone()
            if row is not None:
                replaced = row[1]
                self._remove(tx, key, row[0], row[2], _REPLACED)
        count, last = tx.execute(
            "SELECT count(*), max(number) FROM signals WHERE queue = ? AND key = ?",
            (self._name, key),
        ).fetchone()
        if count >= MAX_BUFFERED_SIGNALS:
            raise SignalQueueFull(
                f"{count:,} signals are buffered under key {key!r} and no more may be: wait until "
                "runs have taken some, clear them, or use several keys"
            )
        tx.execute(
            "INSERT INTO signals (queue, key, number, payload, sent_at, latest, signal_id)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self._name, key, (last or 0) + 1, payload, tx.now_ms, int(latest), signal_id),
        )
        return cast("bytes | None", replaced)

    def clear(self, tx: QueueTransaction, key: str) -> int:
        """Remove what is buffered under a key; how many signals that were."""
        tx.execute(
            "UPDATE signal_ids SET outcome = ? WHERE queue = ? AND key = ? AND outcome = ?",
            (_CLEARED, self._name, key, _BUFFERED),
        )
        removed = tx.execute(
            "DELETE FROM signals WHERE queue = ? AND key = ? RETURNING 1", (self._name, key)
        )
        return len(removed.fetchall())

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

    def take(self, tx: QueueTransaction, key: str, run_id: str) -> bytes | None:
        """The first signal that is buffered under a key, if one is; this run is given it."""
        row = tx.execute(
            "SELECT number, payload, signal_id FROM signals WHERE queue = ? AND key = ?"
            " ORDER BY number LIMIT 1",
            (self._name, key),
        ).fetchone()
        if row is None:
            return None
        self._remove(tx, key, row[0], row[2], _DELIVERED, run_id)
        return cast("bytes", row[1])

    def wait(
        self,
        tx: QueueTransaction,
        life: int,
        step: int,
        job_id: str,
        key: str,
        payload: bytes | None,
    ) -> None:
        """A run goes on to a step that waits for a signal, or that has been given this one."""
        tx.execute(
            "UPDATE runs SET step = ?, job_id = ?, signal_key = ?, signal = ? WHERE life = ?",
            (step, job_id, key, payload, life),
        )

    def begun(self, tx: QueueTransaction, life: int) -> None:
        """The run's step has begun, with or without a signal: that does not change any more."""
        tx.execute("UPDATE runs SET signal_key = NULL WHERE life = ?", (life,))

    def _registered(self, tx: QueueTransaction, key: str) -> _Waiter | None:
        row = tx.execute(
            "SELECT runs.life, runs.run_id, runs.job_id, jobs.state, jobs.attempts"
            " FROM runs LEFT JOIN jobs ON jobs.id = runs.job_id WHERE runs.queue = ?"
            " AND runs.signal_key = ? AND runs.signal_key IS NOT NULL AND runs.signal IS NULL",
            (self._name, key),
        ).fetchone()
        return cast("_Waiter | None", row)

    # -- what was sent ----------------------------------------------------------------------

    def _remove(
        self,
        tx: QueueTransaction,
        key: str,
        number: int,
        signal_id: str | None,
        outcome: int,
        run_id: str | None = None,
    ) -> None:
        tx.execute(
            "DELETE FROM signals WHERE queue = ? AND key = ? AND number = ?",
            (self._name, key, number),
        )
        if signal_id is not None:
            tx.execute(
                "UPDATE signal_ids SET outcome = ?, run_id = ?"
                " WHERE queue = ? AND key = ? AND signal_id = ?",
                (outcome, run_id, self._name, key, signal_id),
            )

    def _known(
        self, tx: QueueTransaction, key: str, signal_id: str
    ) -> tuple[int, str | None, bytes] | None:
        """Outcome, run and digest of the signal that was sent with this id, if it is remembered."""
        row = tx.execute(
            "SELECT outcome, run_id, digest, sent_at FROM signal_ids"
            " WHERE queue = ? AND key = ? AND signal_id = ?",
            (self._name, key, signal_id),
        ).fetchone()
        if row is None or (row[0] != _BUFFERED and row[3] <= tx.now_ms - _IDS_KEPT_MS):
            return None
        return cast("tuple[int, str | None, bytes]", row[:3])

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
