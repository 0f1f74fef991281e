"""Every statement on the `memos` table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from taquba.queue import Queue, QueueTransaction, StoredValue

__all__ = ["MemoRow", "remove_some", "row_of", "write_row"]

_ROWS_PER_SLICE = 250
_BYTES_PER_SLICE = 512 * 1024
"""Of values that one transaction removes, so that the event loop is never held up."""


class MemoRow(NamedTuple):
    """What is stored of one value."""

    value: bytes
    """The value, unless it is an object."""
    ref: str | None
    """The object that holds it."""


def row_of(queue: Queue, life: int, step: int, key: str) -> MemoRow | None:
    """What is stored under this key."""
    rows = queue.peek(
        "SELECT value, ref FROM memos WHERE life = ? AND step = ? AND key = ?", (life, step, key)
    )
    return MemoRow(*rows[0]) if rows else None


def write_row(
    tx: QueueTransaction,
    life: int,
    step: int,
    key: str,
    value: bytes,
    stored: StoredValue | None = None,
) -> None:
    """Store a value, or the name of the object that it is in, in place of what was there."""
    old = tx.execute(
        "SELECT ref FROM memos WHERE life = ? AND step = ? AND key = ? AND ref IS NOT NULL",
        (life, step, key),
    ).fetchone()
    if old is not None:
        tx.forget_value(old[0])
    ref = None
    if stored is not None:
        value, ref = b"", stored.ref
        stored.use(tx)
    tx.execute(
        "INSERT INTO memos (life, step, key, value, ref) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (life, step, key) DO UPDATE SET value = excluded.value, ref = excluded.ref",
        (life, step, key, value, ref),
    )


def remove_some(tx: QueueTransaction, life: int) -> bool:
    """Remove what a life has stored, up to a bound; whether there may be more."""
    # `ref` lies behind the value, and is looked for only where there is none.
    rows = tx.execute(
        "SELECT step, key, length(value), CASE WHEN length(value) = 0 THEN ref END"
        " FROM memos WHERE life = ? ORDER BY step, key LIMIT ?",
        (life, _ROWS_PER_SLICE),
    ).fetchall()
    if not rows:
        return False
    count = size = 0
    for _, key, length, ref in rows:
        count, size = count + 1, size + length + len(key)
        if ref is not None:
            tx.forget_value(ref)
        if size >= _BYTES_PER_SLICE:
            break
    step, key, *_ = rows[count - 1]
    tx.execute("DELETE FROM memos WHERE life = ? AND (step, key) <= (?, ?)", (life, step, key))
    return count < len(rows) or count == _ROWS_PER_SLICE
