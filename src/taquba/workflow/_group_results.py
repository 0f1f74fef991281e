"""The ends of a group's members, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from taquba.workflow._group_records import MemberResult
from taquba.workflow._large import outcome_of_run
from taquba.workflow._run import ACTIVE, Run

if TYPE_CHECKING:
    from taquba.queue import Queue
    from taquba.workflow._group_table import GroupTable

__all__ = ["page_by_completion", "page_by_submission", "told_in_order"]

_PAGE = 250
"""Results that are looked up and told at once; others have their turn between two pages."""
_PAGE_BYTES = 4 * 1024 * 1024


async def told_in_order(
    queue: Queue, page: list[tuple[str, int, Run]], concurrency: int
) -> AsyncIterator[MemberResult]:
    """The ends of these members; what it reports is durable."""
    await queue.barrier()
    await asyncio.sleep(0)
    for begin in range(0, len(page), concurrency):
        part = page[begin : begin + concurrency]
        outcomes = await asyncio.gather(
            *(outcome_of_run(queue, run) for _, _, run in part if run.result_ref is not None)
        )
        large = iter(outcomes)
        for key, position, run in part:
            outcome = run.outcome() if run.result_ref is None else next(large)
            if outcome is not None:  # or else it was forgotten, or begins anew
                yield MemberResult(key, run.run_id, run.termination(), outcome, position)


def page_by_completion(
    table: GroupTable, number: int, after: int
) -> tuple[list[tuple[str, int, Run]], int]:
    """Key, position and run of the members that ended next after that end, and the last end."""
    page: list[tuple[str, int, Run]] = []
    size = 0
    for ended, life, length in table.ended_after(number, after, _PAGE):
        page.append(table.member_of_life(life))
        after = ended
        size += length
        if size >= _PAGE_BYTES:
            break
    return page, after


def page_by_submission(
    table: GroupTable, number: int, first: int
) -> tuple[list[tuple[str, int, Run]], int]:
    """The same of the members that come next, up to one that is active; and who follows them."""
    page: list[tuple[str, int, Run]] = []
    size = 0
    for member in table.members(number, first, _PAGE):
        if member.run.status == ACTIVE or size >= _PAGE_BYTES:
            break
        page.append((member.key, member.position, member.run))
        size += len(member.run.result or b"")
    return page, first + len(page)
