"""What a signal is made of, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Literal, NamedTuple

from taquba._checks import blob, shown, utf8, wrong_type
from taquba._msgpack import pack
from taquba.errors import InvalidArgument, ValueTooLarge

__all__ = [
    "FOR_EVER_MS",
    "MAX_BUFFERED_SIGNALS",
    "MAX_SIGNAL_KEY_SIZE",
    "MAX_SIGNAL_SIZE",
    "SIGNAL_IDS_KEPT",
    "Given",
    "NewSignal",
    "Sent",
    "SignalMode",
    "SignalOutcome",
    "Signalled",
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
SignalMode = Literal["latest", "queue"]


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


class NewSignal(NamedTuple):
    """A checked request to signal."""

    key: str
    payload: bytes
    signal_id: str | None
    latest: bool


class Sent(NamedTuple):
    """A signal that was sent, apart from its key."""

    payload: bytes
    signal_id: str | None
    latest: bool
    """Whether the next one that is sent so replaces it."""
    sent_at: int

    def packed(self) -> bytes:
        """All but the payload."""
        return pack([self.signal_id, bool(self.latest), self.sent_at])


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
