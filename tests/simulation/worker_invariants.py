"""What must be true of workers, whatever happens. Each tells what is wrong, or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.simulation.shadow import COLUMNS, Step

DEAD = 4
_CLAIMED = 2
_WAITING = (0, 1)


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


@dataclass(frozen=True)
class Limits:
    """What a queue may do at a time; None: anything."""

    per_key: int | None = None
    running: int | None = None
    rate: tuple[int, float, int] | None = None
    """So many tokens, in so many seconds, and how many there can be."""
    depth: int | None = None


class FlowSeen:
    """What each entry of the log says of the limits of queues."""

    def __init__(self, steps: Sequence[Step], limits: Limits) -> None:
        jobs = COLUMNS["jobs"]
        self._state, self._queue, self._key = jobs["state"], jobs["queue"], jobs["flow_key"]
        self._id, self._claimed_at = jobs["id"], jobs["claimed_at"]
        self._limits = limits
        self._waiting: Counter[int] = Counter()
        self._running: Counter[tuple[int, str | None]] = Counter()
        self._tokens: dict[tuple[int, int], tuple[float, int]] = {}
        self.reached: Counter[str] = Counter()
        """How often a limit was used up."""
        self.wrong: list[str] = []
        for step in steps:
            self._look(step)

    def _look(self, step: Step) -> None:
        added, gone, claimed = Counter[int](), Counter[int](), list[tuple[int, int]]()
        before = self._waiting.copy()
        for change in step.changes:
            if change.table != "jobs":
                continue
            old, new = change.before, change.after
            was = None if old is None else old[self._state]
            now = None if new is None else new[self._state]
            if old is not None:
                self._move(old, -1)
                if was in _WAITING and now not in _WAITING:
                    gone[old[self._queue]] += 1
            if new is None:
                continue
            self._move(new, 1)
            if old is None and now in _WAITING and not new[self._id].endswith("-next"):
                added[new[self._queue]] += 1  # by a producer: settlements are never refused
            if now == _CLAIMED and was != _CLAIMED:
                claimed.append((new[self._claimed_at], new[self._queue]))
        self._judge_running(step.seq)
        for at_ms, queue in sorted(claimed):
            self._take_token(step, queue, at_ms)
        if self._limits.depth is not None:
            for queue, number in added.items():
                # Whatever left in the same commits may have left before.
                depth = before[queue] - gone[queue] + number
                if depth > self._limits.depth:
                    self.wrong.append(f"entry {step.seq}: {depth} jobs wait on {queue}")

    def _move(self, row: Sequence[Any], step: int) -> None:
        if row[self._state] in _WAITING:
            self._waiting[row[self._queue]] += step
        elif row[self._state] == _CLAIMED:
            self._running[row[self._queue], row[self._key] or None] += step

    def _judge_running(self, seq: int) -> None:
        limits, all_of = self._limits, Counter[int]()
        for (queue, key), number in self._running.items():
            all_of[queue] += number
            if limits.per_key is not None and key is not None and number >= limits.per_key:
                self.reached["keys at their limit"] += 1
                if number > limits.per_key:
                    self.wrong.append(f"entry {seq}: {number} jobs of {key} run on {queue}")
        for queue, number in all_of.items():
            if limits.running is not None and number >= limits.running:
                self.reached["queues at their limit"] += 1
                if number > limits.running:
                    self.wrong.append(f"entry {seq}: {number} jobs run on {queue}")

    def _take_token(self, step: Step, queue: int, at_ms: int) -> None:
        if self._limits.rate is None:
            return
        count, span, burst = self._limits.rate
        # Each process goes by a clock of its own.
        tokens, since = self._tokens.get((step.epoch, queue), (burst, at_ms))
        tokens = min(tokens + (at_ms - since) / 1000 / span * count, burst) - 1
        self._tokens[step.epoch, queue] = (tokens, at_ms)
        self.reached["rates used up"] += tokens < 1
        if tokens < -1e-6:
            self.wrong.append(f"entry {step.seq}: a job of {queue} started without a token")


def over_a_limit(flow: FlowSeen) -> str:
    """Never does a queue do more than its limits allow."""
    return "; ".join(flow.wrong[:5])


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
