"""``taquba runs timeline``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from taquba.cli._arguments import Usage
from taquba.cli._following import following
from taquba.cli._text import amount, json_text, one_line, table, time

if TYPE_CHECKING:
    from datetime import datetime

    from taquba.clock import Clock
    from taquba.workflow import StepAttempt

__all__ = ["timeline_command"]


async def timeline_command(options: argparse.Namespace, clock: Clock) -> int:
    """Show the attempts of a run."""
    from taquba.workflow import WorkflowView

    async with following(options, clock) as follower:
        view = WorkflowView(follower, queue_name=options.queue)
        page = await view.timeline(options.run, limit=options.limit, after=options.after)
    if page is None:
        raise Usage(
            f"there is no run {options.run!r} of the runtime {options.queue!r}: it never was, "
            "or it has been forgotten"
        )
    if options.json:
        found = [_as_json(each) for each in page.attempts]
        print(
            json_text(
                {
                    "run_id": page.run_id,
                    "attempts": found,
                    "next": page.next,
                    "dropped": page.dropped,
                }
            )
        )
        return 0
    if page.dropped:
        print(f"{amount(page.dropped, 'earlier attempt')} of this run are not kept\n")
    if not page.attempts:
        print("nothing is known of its attempts: is its runtime opened with keep_history=True?")
        return 0
    rows = [["step", "attempt", "claimed", "took", "outcome", "memo", "what"]]
    rows += [_row(each) for each in page.attempts]
    print(table(rows, right=(0, 1, 3)))
    if page.next is not None:
        print(f"\nmore: --after {page.next}")
    return 0


def _row(each: StepAttempt) -> list[str]:
    took = memo = ""
    begun = each.started_at or each.claimed_at
    if begun is not None and each.recorded_at is not None:
        took = f"{(each.recorded_at - begun).total_seconds():,.3f} s"
    if each.memo_hits or each.memo_misses:
        memo = f"{each.memo_hits} of {(each.memo_hits or 0) + (each.memo_misses or 0)}"
    return [
        str(each.step),
        str(each.attempt),
        "never" if each.claimed_at is None else time(_ms(each.claimed_at)),
        took,
        "under way" if each.outcome is None else each.outcome.value.replace("_", " "),
        memo,
        one_line(_what(each)),
    ]


def _what(each: StepAttempt) -> str:
    """What else is worth a look."""
    parts: list[str] = []
    if each.woken_by is not None:
        parts.append(f"woken by signal {each.woken_by!r}")
    if each.error is not None:
        parts.append(each.error if each.error_type is None else f"{each.error_type}: {each.error}")
    if each.waits_for is not None:
        parts.append(f"waits for signal {each.waits_for!r}")
    if each.due is not None:
        word = "until" if each.waits_for is not None else "next at"
        parts.append(f"{word} {time(_ms(each.due))}")
    return "; ".join(parts)


def _as_json(each: StepAttempt) -> dict[str, Any]:
    return {
        "step": each.step,
        "attempt": each.attempt,
        "outcome": each.outcome and each.outcome.value,
        "claimed_at": each.claimed_at and each.claimed_at.isoformat(),
        "started_at": each.started_at and each.started_at.isoformat(),
        "recorded_at": each.recorded_at and each.recorded_at.isoformat(),
        "due": each.due and each.due.isoformat(),
        "error": each.error,
        "error_type": each.error_type,
        "woken_by": each.woken_by,
        "waits_for": each.waits_for,
        "memo_hits": each.memo_hits,
        "memo_misses": each.memo_misses,
    }


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
