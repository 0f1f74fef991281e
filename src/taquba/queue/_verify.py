"""What must hold in the tables of a queue, whatever happened to its store."""

from __future__ import annotations

from collections.abc import Iterator

from taquba.database import Check, Execute
from taquba.queue._records import JobState

__all__ = ["QUEUE_CHECKS", "check_counters", "check_jobs"]

_COLUMNS = tuple(state.name.lower() for state in JobState)


def _has_queues(execute: Execute) -> bool:
    row = execute(
        "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('queues', 'jobs')"
    ).fetchone()
    return bool(row[0] == 2)


def check_jobs(execute: Execute) -> Iterator[str]:
    """Every job is in exactly one state that there is, of a queue that there is."""
    if not _has_queues(execute):
        return
    states = ", ".join(str(int(state)) for state in JobState)
    for job_id, state in execute(
        f"SELECT id, state FROM jobs WHERE state NOT IN ({states}) ORDER BY seq LIMIT 3"
    ).fetchall():
        yield f"job {job_id!r} is in state {state}, which there is not"
    for job_id, queue in execute(
        "SELECT id, queue FROM jobs WHERE queue NOT IN (SELECT number FROM queues)"
        " ORDER BY seq LIMIT 3"
    ).fetchall():
        yield f"job {job_id!r} is in queue number {queue}, which there is not"
    for name, count in execute(
        "SELECT name, count(*) FROM queues GROUP BY name HAVING count(*) > 1 LIMIT 3"
    ).fetchall():
        yield f"there are {count} queues named {name!r}"
    scheduled, claimed = int(JobState.SCHEDULED), int(JobState.CLAIMED)
    for job_id, state in execute(
        f"SELECT id, state FROM jobs WHERE (state = {scheduled} AND run_at IS NULL)"
        f" OR (state = {claimed} AND claimed_at IS NULL)"
        f" OR (state > {claimed} AND ended_at IS NULL) ORDER BY seq LIMIT 3"
    ).fetchall():
        yield f"job {job_id!r} is {JobState(state).name.lower()}, but no time says since when"


def check_counters(execute: Execute) -> Iterator[str]:
    """The counters of each queue are the numbers of its jobs.

    That of finished ones counts since the queue exists, so it is at least as large.
    """
    if not _has_queues(execute):
        return
    counted: dict[tuple[int, int], int] = {
        (queue, state): count
        for queue, state, count in execute(
            "SELECT queue, state, count(*) FROM jobs GROUP BY queue, state"
        ).fetchall()
    }
    for number, name, *counters in execute(
        f"SELECT number, name, {', '.join(_COLUMNS)} FROM queues ORDER BY number"
    ).fetchall():
        for state, counter in zip(JobState, counters, strict=True):
            count = counted.get((number, int(state)), 0)
            if counter < count or (counter > count and state is not JobState.DONE):
                yield (
                    f"queue {name!r} counts {counter} {state.name.lower()} jobs, and has {count}"
                )


QUEUE_CHECKS: tuple[Check, ...] = (check_jobs, check_counters)
"""For `taquba.database.verify`."""
