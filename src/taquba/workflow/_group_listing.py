"""Members of a group, page by page, with their runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from taquba._checks import shown
from taquba.errors import InvalidArgument, InvalidType
from taquba.workflow._group_records import MemberPage, MemberSummary
from taquba.workflow._listing import SUMMARY_COLUMNS, WITH_JOBS, RunFilter, summary_of

if TYPE_CHECKING:
    from taquba.queue import QueueReader

__all__ = ["list_members", "position_in"]

_SLICE = 200
"""Members that are looked through before the event loop goes on."""
_MOST_DIGITS = 18


async def list_members(
    reader: QueueReader, number: int, wanted: RunFilter, *, limit: int, first: int
) -> MemberPage:
    """Those from this position on."""
    source = reader._source
    found: list[MemberSummary] = []
    size = min(limit + 1, _SLICE)
    while limit:
        await source.enter()
        rows: list[tuple[Any, ...]] = source.rows(
            f"SELECT m.position, m.key, {SUMMARY_COLUMNS} FROM members AS m"
            f" JOIN runs AS r ON r.life = m.life{WITH_JOBS}"
            " WHERE m.group_number = ? AND m.position >= ? ORDER BY m.position LIMIT ?",
            (number, first, size),
        )
        for position, key, *row in rows:
            run = summary_of(tuple(row))
            if wanted.matches(run):
                found.append(MemberSummary(key, position, run))
        if len(rows) < size or len(found) > limit:
            break
        first = rows[-1][0] + 1
        size = _SLICE
        await asyncio.sleep(0)
    following = str(found[limit].position) if len(found) > limit else None
    return MemberPage(tuple(found[:limit]), following)


def position_in(after: object) -> int:
    """The position that a cursor says."""
    if after is None:
        return 0
    if not isinstance(after, str):
        raise InvalidType(f"after is {shown(after)}: give the `next` of a page")
    if not (after.isascii() and after.isdigit() and len(after) <= _MOST_DIGITS):
        raise InvalidArgument(f"after is {shown(after)}: give the `next` of a page")
    return int(after)
