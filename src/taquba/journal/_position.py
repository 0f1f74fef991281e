"""Places in the log, and the rules by which one entry leads to the next."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from taquba.errors import CorruptStore
from taquba.journal._entry import Entry, Kind

__all__ = [
    "JOURNAL_PREFIX",
    "START",
    "EpochMark",
    "JournalGap",
    "Position",
    "advance",
    "entry_key",
    "seq_of_key",
]

JOURNAL_PREFIX = "journal/"
_DIGITS = 20


class JournalGap(CorruptStore):
    """An entry is absent though later ones prove that it was stored.

    Collection may have overtaken the reader: then there is a newer checkpoint to start
    from. If there is none, the store is damaged.

    Attributes:
        seq: The absent entry.
    """

    def __init__(self, message: str, seq: int) -> None:
        super().__init__(message, key=entry_key(seq))
        self.seq = seq

    def __reduce__(self) -> tuple[type[JournalGap], tuple[str, int]]:
        return type(self), (str(self), self.seq)


@dataclass(frozen=True, slots=True)
class EpochMark:
    """An epoch entry, which is never collected.

    Attributes:
        seq: Where it is.
        epoch: The epoch it began.
        resume_at: Where the log goes on; what lies between was left by older writers.
    """

    seq: int
    epoch: int
    resume_at: int


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the log: everything before `seq` is included.

    Attributes:
        seq: The next entry to read or write.
        epoch: The epoch at this place; 0 at the start of an empty store.
        digest: sha256 of the last valid entry before `seq`; 32 zero bytes at the start. After
            an epoch entry that was created ahead: sha256 of the digest before it and its own.
        window: Entries that a writer of this store may have in flight; 0 while the store is new.
        epochs: Every epoch entry before `seq`, oldest first.
    """

    seq: int
    epoch: int
    digest: bytes
    window: int
    epochs: tuple[EpochMark, ...]


START = Position(seq=0, epoch=0, digest=bytes(32), window=0, epochs=())
"""The place before the first entry of a store."""


def entry_key(seq: int) -> str:
    """The key of entry `seq`."""
    return f"{JOURNAL_PREFIX}{seq:0{_DIGITS}d}"


def seq_of_key(key: str, prefix: str = JOURNAL_PREFIX, suffix: str = "") -> int | None:
    """The number in a key, or `None` if the key is not one of ours."""
    digits = key[len(prefix) : len(key) - len(suffix)]
    ours = (
        key.startswith(prefix)
        and key.endswith(suffix)
        and len(digits) == _DIGITS
        and digits.isascii()
        and digits.isdecimal()
    )
    return int(digits) if ours else None


def advance(position: Position, entry: Entry) -> Position:
    """The place after `entry`, which was found at `position`.

    Raises:
        CorruptStore: The entry cannot stand there.
    """
    key = entry_key(position.seq)
    if entry.seq != position.seq:
        raise _misplaced(key, f"it says that it is number {entry.seq}")
    if position.window and entry.window != position.window:
        raise _misplaced(key, f"its window is {entry.window}, the store's is {position.window}")
    takes_over = entry.kind is Kind.EPOCH
    expected = position.epoch + takes_over
    if entry.epoch != expected:
        raise _misplaced(key, f"its epoch is {entry.epoch} where only {expected} can stand")
    if entry.previous != (bytes(32) if entry.ahead else position.digest):
        raise _misplaced(
            key,
            f"it follows an entry with digest {entry.previous.hex()}, the one before it has "
            f"{position.digest.hex()}",
        )
    if takes_over:
        mark = EpochMark(entry.seq, entry.epoch, entry.seq + entry.window)
        digest = entry.digest
        if entry.ahead:
            # It does not name what came before, so the entry after it has to name both.
            digest = sha256(position.digest + digest).digest()
        return Position(mark.resume_at, entry.epoch, digest, entry.window, (*position.epochs, mark))
    if expected == 0:
        raise _misplaced(key, "no writer had opened the store")
    return Position(position.seq + 1, entry.epoch, entry.digest, position.window, position.epochs)


def _misplaced(key: str, reason: str) -> CorruptStore:
    return CorruptStore(
        f"journal entry {key!r} does not continue the log: {reason}. Something other than "
        f"taquba changed the store; restore it from a backup",
        key=key,
    )
