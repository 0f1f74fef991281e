"""Whether what the sessions told, and what they left, keeps every promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.simulation import worker_invariants as must
from tests.stress.session import Work


@dataclass
class Verdict:
    """What is wrong, and how much of what happened."""

    wrong: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])


def judge(work: Work, lines: Iterable[str], end: must.End) -> Verdict:
    """Compare what was acknowledged on the way with what there is in the end."""
    verdict = Verdict()
    wrong, counts = verdict.wrong, verdict.counts
    enqueued: set[str] = set()
    settled: set[str] = set()
    started: set[tuple[str, int]] = set()
    for line in lines:
        what, job, *numbers = line.split()
        counts[what] += 1
        if what == "enqueued":
            if job in enqueued:
                wrong.append(f"{job} was enqueued again")
            enqueued.add(job)
        elif what == "settled":
            settled.add(job)
        else:
            attempt, most = map(int, numbers)
            if job in settled:
                wrong.append(f"{job} started, and its settlement was acknowledged before")
            if (job, attempt) in started:
                wrong.append(f"attempt {attempt} of {job} started twice")
            started.add((job, attempt))
            complaint = must.too_many_attempts(job, attempt, most)
            if complaint:
                wrong.append(complaint)
    # Whoever was killed may not have heard of what it enqueued last.
    all_jobs = {f"j{number}" for number in range(work.jobs)}
    wrong += [f"{job} was never to be" for job in enqueued - all_jobs]
    for complaint in (
        must.not_one_end(all_jobs, end),
        must.done_twice(end),
        must.dead_too_late(end),
        _miscounted(end),
        _unsettled(settled, end),
    ):
        if complaint:
            wrong.append(complaint[:500])
    counts.update(f"ended {what}" for what in end.ends().values())
    counts["redelivered"] = sum(attempt > 1 for _, attempt in started)
    return verdict


def _miscounted(end: must.End) -> str:
    totals = {
        key.removeprefix("total/"): int(value)
        for key, value in end.notes.items()
        if key.startswith("total/")
    }
    done = {name: number for name, number in end.done.items() if number}
    if totals != done or sum(done.values()) != len(end.under("done/")):
        return f"handlers counted {sum(totals.values())}, the statistics {sum(done.values())}"
    return ""


def _unsettled(settled: set[str], end: must.End) -> str:
    missing = settled - set(end.under("done/"))
    return f"acknowledged settlements that are not there: {sorted(missing)[:10]}" if missing else ""
