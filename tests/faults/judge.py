"""What the processes of the fault matrix noted, against what the store holds in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from taquba import Queue
from taquba.queue import JobState

from .workload import CONFIG, payload_of

__all__ = ["Contents", "Fact", "broken_promises", "parse_log", "read_contents"]


class Fact(NamedTuple):
    """A line of the log."""

    life: str
    what: str
    of: str = ""
    """A job, or a key."""
    number: int = 0
    """Attempt, or number written."""
    how: str = ""


class StoredJob(NamedTuple):
    queue: str
    state: JobState
    attempts: int
    payload: bytes


@dataclass(slots=True)
class Contents:
    """What a store holds."""

    jobs: dict[str, StoredJob]
    kv: dict[str, bytes]
    counters: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """By queue, jobs in each state, as the queue counts them."""


_JOB_FACTS = {"trying", "enqueued"}
_NUMBERED = {"claimed", "settling", "settled", "refused", "putting", "put"}


def parse_log(text: str) -> list[Fact]:
    """The facts that a log holds; what it says besides is left out."""
    facts: list[Fact] = []
    for line in text.splitlines():
        life, what, *rest = line.split(" ")
        if what in _JOB_FACTS:
            facts.append(Fact(life, what, rest[0]))
        elif what in _NUMBERED:
            facts.append(Fact(life, what, rest[0], int(rest[1]), *rest[2:3]))
        else:
            facts.append(Fact(life, what))
    return facts


async def read_contents(queue: Queue) -> Contents:
    """All jobs, keys and counters of an open queue."""
    jobs: dict[str, StoredJob] = {}
    for (job_id,) in await queue.read("SELECT id FROM jobs"):
        job = await queue.get_job(job_id)
        assert job is not None
        assert job_id not in jobs, f"{job_id} is there twice"
        jobs[job_id] = StoredJob(job.queue, job.state, job.attempts, job.payload)
    kv = {
        bytes(key).decode(): bytes(value)
        for key, value in await queue.read("SELECT key, value FROM kv")
    }
    counters: dict[str, list[int]] = {}
    for (name,) in await queue.read("SELECT name FROM queues"):
        stats = await queue.stats(name)
        counters[name] = [stats.pending, stats.scheduled, stats.claimed, stats.done, stats.dead]
    return Contents(jobs, kv, counters)


async def open_and_read(target: object, options: dict[str, object] | None = None) -> Contents:
    """The contents of a store, as a fresh owner of it sees them."""
    async with Queue.open(target, storage_options=options, config=CONFIG) as queue:  # type: ignore[arg-type]
        return await read_contents(queue)


def broken_promises(facts: Sequence[Fact], contents: Contents, *, payload: int = 100) -> list[str]:
    """Everything that must not be, given what was acknowledged.

    The order of lines of different processes proves nothing, since one that was replaced may
    come to note late what was acknowledged before. So no rule here looks at it.
    """
    return [
        *_of_jobs(facts, contents, payload),
        *_of_claims(facts, contents),
        *_of_settlements(facts, contents),
        *_of_keys(facts, contents),
        *_of_counters(contents),
    ]


def _of_jobs(facts: Iterable[Fact], contents: Contents, payload: int) -> Iterable[str]:
    tried = [fact.of for fact in facts if fact.what == "trying"]
    wanted = {fact.of for fact in facts if fact.what == "settling" and fact.how == "done"}
    for job, count in Counter(x.of for x in facts if x.what == "enqueued").items():
        if job not in contents.jobs:
            yield f"{job} was enqueued, and is lost"
        if count > 1:
            yield f"{job} was enqueued {count} times"
    possible = {*tried, *(f"{job}-next" for job in wanted)}
    for job, stored in contents.jobs.items():
        if job not in possible:
            yield f"{job} comes from nowhere"
        size = 50 if stored.queue == "next" else payload
        if stored.payload != payload_of(job, size):
            yield f"{job} has another payload"


def _of_claims(facts: Iterable[Fact], contents: Contents) -> Iterable[str]:
    claimed = Counter((x.of, x.number) for x in facts if x.what == "claimed")
    for (job, attempt), count in claimed.items():
        stored = contents.jobs.get(job)
        if count > 1:
            yield f"attempt {attempt} of {job} was given out {count} times"
        if stored is None:
            yield f"{job} was claimed, and is lost"
        elif stored.attempts < attempt:
            yield f"attempt {attempt} of {job} is forgotten: {stored.attempts} are stored"


def _of_settlements(facts: Sequence[Fact], contents: Contents) -> Iterable[str]:
    settled = [x for x in facts if x.what == "settled"]
    final = Counter(x.of for x in settled if x.how in ("done", "dead"))
    wanted = {(x.of, x.number, x.how) for x in facts if x.what == "settling"}
    last = {x.of: x.number for x in settled if x.how in ("done", "dead")}
    for job, count in final.items():
        if count > 1:
            yield f"{job} was settled {count} times"
    for fact in facts:
        if fact.what == "claimed" and fact.number > last.get(fact.of, fact.number):
            yield f"{fact.of} was given out again, after it was settled"
    for fact in settled:
        stored = contents.jobs.get(fact.of)
        if stored is None:
            yield f"{fact.of} was settled, and is lost"
            continue
        expected = {"done": JobState.DONE, "dead": JobState.DEAD}.get(fact.how)
        if expected is not None and stored.state is not expected:
            yield f"{fact.of} was settled as {fact.how}, and is {stored.state.name}"
        if fact.how == "retry" and (fact.of, stored.attempts) == (fact.of, 0):
            yield f"{fact.of} has forgotten its failure"
    for job, stored in contents.jobs.items():
        effect = contents.kv.get(f"done/{job}")
        follow_up = f"{job}-next" in contents.jobs
        if stored.state is JobState.DONE:
            if effect is None:
                yield f"{job} is done, without its key"
            elif (job, int(effect), "done") not in wanted:
                yield f"{job} is done by nobody"
            if follow_up != (stored.queue == "work"):
                yield f"{job} is done, and its follow-up is {'' if follow_up else 'not '}there"
        elif effect is not None or follow_up:
            yield f"{job} is {stored.state.name}, and has effects"
        if stored.state is JobState.DEAD and (job, stored.attempts, "dead") not in wanted:
            yield f"{job} is dead by nobody's doing"


def _of_keys(facts: Iterable[Fact], contents: Contents) -> Iterable[str]:
    tried: dict[str, int] = {}
    put: dict[str, int] = {}
    for fact in facts:
        if fact.what in ("putting", "put"):
            numbers = tried if fact.what == "putting" else put
            numbers[fact.of] = max(fact.number, numbers.get(fact.of, -1))
    for name, number in put.items():
        stored = contents.kv.get(f"count/{name}")
        if stored is None or not number <= int(stored) <= tried.get(name, -1):
            yield f"{name} was {number} when acknowledged, and is {stored!r}"
    for key in contents.kv:
        kind, _, name = key.partition("/")
        known = name in tried if kind == "count" else name in contents.jobs
        if not known:
            yield f"key {key!r} comes from nowhere"


def _of_counters(contents: Contents) -> Iterable[str]:
    counts: dict[str, list[int]] = {name: [0] * len(JobState) for name in contents.counters}
    for job, stored in contents.jobs.items():
        if stored.queue not in counts:
            yield f"{job} is in a queue that is not there"
        else:
            counts[stored.queue][stored.state] += 1
    for name, counted in contents.counters.items():
        if counted != counts[name]:
            yield f"queue {name!r} has {counts[name]}, and counts {counted}"
