"""Reads the timelines of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taquba._checks import as_datetime, shown
from taquba.errors import InvalidArgument, InvalidType
from taquba.queue import JobState
from taquba.workflow._history import COLUMNS, OUTCOMES, ended_elsewhere
from taquba.workflow._run import ACTIVE
from taquba.workflow._timeline_records import StepAttempt, TimelinePage

if TYPE_CHECKING:
    from taquba.workflow._run import Rows, Run

__all__ = ["place_in", "timeline_of"]

_BEFORE_ALL = -1


def timeline_of(rows: Rows, run: Run, *, limit: int, place: tuple[int, int] | None) -> TimelinePage:
    """One page: what is in the table, and then what is not in it yet of the step that the run is
    at. That will be copied in the same order, so its numbers are known.
    """
    life, after = (run.life, _BEFORE_ALL) if place is None else place
    if life != run.life:
        return TimelinePage(run.run_id, (), None, 0)
    stored = rows(
        f"SELECT {COLUMNS} FROM timeline WHERE life = ? AND number > ? ORDER BY number LIMIT ?",
        (life, after, limit + 1),
    )
    found = [(number, _attempt(*row)) for number, *row in stored]
    if len(found) <= limit and run.status == ACTIVE:
        [(first, last)] = rows(
            "SELECT min(number), max(number) FROM timeline WHERE life = ?", (life,)
        )
        following = 0 if last is None else last + 1
        for number, attempt in enumerate(_of_current_step(rows, run, last), following):
            if number > after:
                found.append((number, attempt))
    else:
        [(first,)] = rows("SELECT min(number) FROM timeline WHERE life = ?", (life,))
    page = found[:limit]
    cursor = None
    if len(found) > limit:
        cursor = f"{life}.{page[-1][0] if page else after}"
    return TimelinePage(run.run_id, tuple(each for _, each in page), cursor, first or 0)


def _of_current_step(rows: Rows, run: Run, last: int | None) -> list[StepAttempt]:
    """The attempts of the current step that nobody has noted, and the one that is under way."""
    noted = 0
    if last is not None:
        [(step, attempt)] = rows(
            "SELECT step, attempt FROM timeline WHERE life = ? AND number = ?", (run.life, last)
        )
        noted = attempt if step == run.step else 0
    jobs = rows("SELECT seq, state, attempts, claimed_at FROM jobs WHERE id = ?", (run.job_id,))
    if not jobs:
        return []
    [(seq, state, attempts, claimed_at)] = jobs
    found = [_attempt(*ended) for ended in ended_elsewhere(rows, run.step, seq, noted)]
    if state == JobState.CLAIMED:
        nothing = (None,) * 8
        found.append(StepAttempt(run.step, attempts, None, as_datetime(claimed_at), None, *nothing))
    return found


def place_in(after: object) -> tuple[int, int] | None:
    """The place that a cursor says: a life, and a number in its timeline."""
    if after is None:
        return None
    if not isinstance(after, str):
        raise InvalidType(f"after is {shown(after)}: give the `next` of a page")
    life, dot, number = after.partition(".")
    for text in (life, number.removeprefix("-")):
        if not (dot and text.isascii() and text.isdigit() and len(text) <= 18):
            raise InvalidArgument(f"after is {shown(after)}: give the `next` of a page")
    return int(life), int(number)


def _attempt(
    step: int,
    attempt: int,
    outcome: int,
    claimed_at: int | None,
    started_at: int | None,
    recorded_at: int,
    due: int | None,
    *more: Any,
) -> StepAttempt:
    return StepAttempt(
        step,
        attempt,
        OUTCOMES[outcome],
        as_datetime(claimed_at),
        as_datetime(started_at),
        as_datetime(recorded_at),
        as_datetime(due),
        *more,
    )
