"""What must be true of workers, whatever happens. Each tells what is wrong, or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.simulation.shadow import COLUMNS, Step

DEAD = 4
_CLAIMED = 2


@dataclass(frozen=True)
class End:
    """What was there when everything had been worked off."""

    jobs: Mapping[str, tuple[Any, ...]]
    """By id: state, attempts, the most there may be, and the last error."""
    notes: Mapping[str, str]
    """What settlements and cancellations noted, in the same commit."""
    done: Mapping[str, int]
    """By queue, what its statistics say."""

    def under(self, prefix: str) -> dict[str, list[str]]:
        """By job, what was noted of it: each time in a key of its own, or more in one."""
        found: dict[str, list[str]] = {}
        for key, value in self.notes.items():
            if key.startswith(prefix):
                job = key.removeprefix(prefix).split("#")[0]
                found.setdefault(job, []).extend(value.split(",")[:-1])
        return found

    def ends(self) -> dict[tuple[str, str], str]:
        """How each job ended: once, that is to say."""
        dead = {job for job, row in self.jobs.items() if row[0] == DEAD}
        return (
            {(job, "done"): "done" for job in self.under("done/")}
            | {(job, "dead"): "dead" for job in dead}
            | {(job, "cancelled"): "cancelled" for job in self.under("cancelled/")}
        )


def too_many_attempts(job: str, attempts: int, most: int) -> str:
    """No job is delivered more often than it may be."""
    return "" if attempts <= most else f"job {job} is on attempt {attempts} of {most}"


def runs_twice(job: str, running: Collection[str]) -> str:
    """No process works on a job in two tasks at once."""
    return f"job {job} is started while it still runs here" if job in running else ""


def wrong_payload(job: str, found: bytes, expected: bytes) -> str:
    """What a handler gets is what was enqueued."""
    return "" if found == expected else f"job {job} came with {found!r}"


def not_worked_off(left: Mapping[str, int]) -> str:
    """Whoever has the time works off everything."""
    return f"still there: {dict(left)}" if any(left.values()) else ""


def not_one_end(acknowledged: Iterable[str], end: End) -> str:
    """Every job that was acknowledged came to one end, and no other did to two."""
    ends = Counter(job for job, _ in end.ends())
    followers = [f"{job}-next" for job in end.under("next/")]
    wrong = {job: ends[job] for job in (*acknowledged, *followers) if ends[job] != 1}
    wrong |= {job: count for job, count in ends.items() if count > 1}
    return f"ends of jobs that should have one: {wrong}" if wrong else ""


def done_twice(end: End) -> str:
    """No job is settled for good twice, and its effects are applied once."""
    wrong = [
        f"{kind}{job}: {attempts}"
        for kind in ("done/", "next/", "buried/", "cancelled/")
        for job, attempts in end.under(kind).items()
        if len(attempts) > 1
    ]
    return f"more than once: {wrong}" if wrong else ""


def miscounted(end: End) -> str:
    """What settlements counted is how many there were, and what the statistics say."""
    counted = {lane: len(ones) for lane, ones in end.under("count/").items()}
    said = {lane: done for lane, done in end.done.items() if done}
    settled = len(end.under("done/"))
    if counted != said or sum(said.values()) != settled:
        return f"counted {counted}, {said} in the statistics, {settled} settled"
    return ""


def dead_too_late(end: End) -> str:
    """No job dies of more attempts than it may have."""
    late = {job: row for job, row in end.jobs.items() if row[1] > row[2]}
    return f"too many attempts: {late}" if late else ""


def lost_payload(end: End) -> str:
    """No job dies because its payload is gone."""
    lost = {job: row[3] for job, row in end.jobs.items() if "is gone" in (row[3] or "")}
    return f"died without payload: {lost}" if lost else ""


def started_early(started: Iterable[tuple[str, int, float]], steps: Sequence[Step]) -> str:
    """A handler starts when its claim is stored; job, attempt and time of each start."""
    jobs = COLUMNS["jobs"]
    identity, state, attempts = (jobs[name] for name in ("id", "state", "attempts"))
    stored: dict[tuple[str, int], float] = {}
    for step in steps:
        for change in step.changes:
            row = change.after
            if change.table == "jobs" and row is not None and row[state] == _CLAIMED:
                stored.setdefault((row[identity], row[attempts]), step.landed_at)
    for job, attempt, at in started:
        if (job, attempt) not in stored or stored[job, attempt] > at:
            when = stored.get((job, attempt))
            return f"attempt {attempt} of {job} began at {at:.4f}, and was stored at {when}"
    return ""
