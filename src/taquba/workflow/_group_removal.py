"""Removing what belongs to groups that are forgotten, and finding those whose time is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from taquba.workflow._clearing import Clearing

if TYPE_CHECKING:
    from taquba.queue import Queue

__all__ = ["expired_groups", "forgotten_group", "remove_some"]

_REMOVED = 100
"""Members that one transaction removes, so that the event loop is never held up."""
_BYTES_REMOVED = 512 * 1024
"""Of their inputs and results, likewise."""


def forgotten_group(queue: Queue, name: str) -> int | None:
    """A group that is forgotten, and not removed yet."""
    rows = queue.peek(
        "SELECT number FROM groups WHERE queue = ? AND group_id IS NULL LIMIT 1", (name,)
    )
    return rows[0][0] if rows else None


def remove_some(queue: Queue, number: int) -> bool:
    """Remove some of the members of a forgotten group, and at last the group; whether it is
    gone.
    """
    rows = queue.peek(
        "SELECT members.position, members.life, members.ref, result_ref,"
        " coalesce(length(input), 0), coalesce(length(result), 0) FROM members"
        " LEFT JOIN runs ON runs.life = members.life AND runs.group_number = ?"
        " WHERE members.group_number = ? ORDER BY members.position LIMIT ?",
        (number, number, _REMOVED),
    )
    clearing = Clearing.of(queue)
    size = 0
    with queue.transaction() as tx:
        for position, life, ref, result_ref, *lengths in rows:
            tx.execute(
                "DELETE FROM members WHERE group_number = ? AND position = ?",
                (number, position),
            )
            if tx.execute(
                "DELETE FROM runs WHERE life = ? AND group_number = ? RETURNING 1",
                (life, number),
            ).fetchall():
                clearing.forget(tx, life)
            for name in (ref, result_ref):
                if name is not None:
                    tx.forget_value(name)
            size += sum(lengths)
            if size >= _BYTES_REMOVED:
                break
        if not rows:
            tx.execute("DELETE FROM groups WHERE number = ?", (number,))
    return not rows


def expired_groups(
    queue: Queue, name: str, window_ms: float | None, is_submitting: Callable[[str], bool]
) -> tuple[list[str], float]:
    """Groups whose retention is over, and when the next one's will be, in milliseconds.

    The window is that of the groups that have none of their own.
    """
    now = queue.clock.now_ms()
    due: list[str] = []
    following = float("inf")
    for group_id, finished_at, own in queue.peek(
        "SELECT group_id, finished_at, retention FROM groups"
        " WHERE queue = ? AND group_id IS NOT NULL AND finished_at IS NOT NULL",
        (name,),
    ):
        if is_submitting(group_id):
            continue
        window = window_ms if own is None else own
        if window is None:
            continue
        if finished_at + window <= now:
            due.append(group_id)
        else:
            following = min(following, finished_at + window)
    return due, following
