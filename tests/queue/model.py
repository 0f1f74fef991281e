"""What a queue should do, in the fewest words: the yardstick of test_model.py.

Time is whole seconds. Everything happens at once and is never lost, except in `crash`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

State = Literal["pending", "scheduled", "claimed", "done", "dead"]
EXPIRED = "lease expired"
INTERRUPTED = "claim interrupted by process exit"


@dataclass(frozen=True)
class Rules:
    """The configuration of one queue."""

    max_attempts: int
    backoff: int
    keep_done: int | None
    keep_dead: int
    per_key: int | None = None
    most: int | None = None
    rate: tuple[int, int, int] | None = None
    """So many tokens, in so many seconds, and how many there can be."""
    depth: int | None = None


@dataclass
class ModelJob:
    id: str
    queue: str
    priority: int
    seq: int
    dedup: str | None
    max_attempts: int
    payload: bytes
    key: str | None = None
    state: State = "pending"
    due: int | None = None
    attempts: int = 0
    error: str | None = None
    cancel: bool = False
    ended: int = 0
    lease: int = 0  # when the present claim ends
    delivery: int = 0  # number of the present claim; 0 if there is none
    early: int | None = None  # when it was due, if it was claimed before
    woken: int | None = None
    wake: bytes | None = None
    outcome: Literal["done", "dead", "cancelled", ""] = ""  # how it ended
    history: tuple[tuple[int, str, str | None], ...] = ()  # attempt, its outcome, error

    def note(self, what: str, error: str | None = None) -> None:
        self.history += ((0 if what == "requeued" else self.attempts, what, error),)


@dataclass(frozen=True)
class NewJob:
    queue: str
    priority: int
    delay: int
    dedup: str | None
    id: str | None = None
    payload: bytes = b""
    key: str | None = None


@dataclass(frozen=True)
class ModelEffects:
    jobs: tuple[NewJob, ...] = ()
    puts: dict[str, bytes] = field(default_factory=dict)
    deletes: tuple[str, ...] = ()


class Model:
    def __init__(self, rules: dict[str, Rules]) -> None:
        self.rules = rules
        self.now = 0
        self.jobs: dict[str, ModelJob] = {}
        self.kv: dict[str, bytes] = {}
        self.done = dict.fromkeys(rules, 0)
        self.spent: dict[str, list[int]] = {queue: [] for queue in rules}
        """When each token of a queue was taken."""
        self._seq = 0
        self._delivery = 0

    def stats(self, queue: str) -> dict[str, int]:
        states = [job.state for job in self.jobs.values() if job.queue == queue]
        living = ("pending", "scheduled", "claimed", "dead")
        return {state: states.count(state) for state in living} | {"done": self.done[queue]}

    def holds(self, job_id: str, delivery: int) -> bool:
        """Whether a claim is still good."""
        return job_id in self.jobs and self.jobs[job_id].delivery == delivery

    def blocked(self, effects: ModelEffects) -> bool:
        """Whether a job of these effects would need an id that is taken."""
        return any(
            new.id in self.jobs and self._holder(new) is None for new in effects.jobs if new.id
        )

    def enqueue(self, new: NewJob, made: str) -> tuple[str, bool]:
        """Add a job, called `made` if it has no id of its own; its id, and whether it is new."""
        holder = self._holder(new)
        if holder is not None:
            return holder.id, False
        self._seq += 1
        job = ModelJob(
            id=new.id or made,
            queue=new.queue,
            priority=new.priority,
            seq=self._seq,
            dedup=new.dedup,
            max_attempts=self.rules[new.queue].max_attempts,
            payload=new.payload,
            key=new.key,
        )
        if new.delay:
            job.state, job.due = "scheduled", self.now + new.delay
        self.jobs[job.id] = job
        return job.id, True

    def apply(self, effects: ModelEffects, made: Iterable[str]) -> list[tuple[str, bool]]:
        results = [self.enqueue(*pair) for pair in zip(effects.jobs, made, strict=True)]
        self.kv.update(effects.puts)
        for key in effects.deletes:
            self.kv.pop(key, None)
        return results

    def claim(self, queue: str, count: int, lease: int) -> list[tuple[str, int, int]]:
        """Claim jobs; id, number of the claim, attempt."""
        pending = [x for x in self.jobs.values() if x.queue == queue and x.state == "pending"]
        claims: list[tuple[str, int, int]] = []
        for job in sorted(pending, key=lambda job: (job.priority, job.seq)):
            if len(claims) < count and self.refuses(job) is None:
                claims.append(self.claim_by_id(job.id, lease))
        return claims

    def claim_by_id(self, job_id: str, lease: int) -> tuple[str, int, int]:
        self._delivery += 1
        job = self.jobs[job_id]
        job.state, job.dedup, job.delivery = "claimed", None, self._delivery
        job.due, job.early = None, job.due
        job.attempts += 1
        job.lease = self.now + lease
        if self.rules[job.queue].rate:
            self.spent[job.queue].append(self.now)
        return job.id, job.delivery, job.attempts

    # -- limits -----------------------------------------------------------------------------

    def refuses(self, job: ModelJob) -> str | None:
        """Which limit does not let this job start."""
        rules, running = self.rules[job.queue], self.running(job.queue)
        if None not in (rules.per_key, job.key) and running.count(job.key) >= (rules.per_key or 0):
            return "concurrency_per_key"
        if rules.most is not None and len(running) >= rules.most:
            return "max_running"
        return "rate" if self.tokens(job.queue) == 0 else None

    def running(self, queue: str) -> list[str | None]:
        """The keys of what is claimed."""
        return [x.key for x in self.jobs.values() if (x.queue, x.state) == (queue, "claimed")]

    def blocked_keys(self, queue: str) -> set[str]:
        """Keys with pending jobs of which none may start."""
        pending = [x for x in self.jobs.values() if (x.queue, x.state) == (queue, "pending")]
        return {x.key for x in pending if x.key and self.refuses(x) == "concurrency_per_key"}

    def tokens(self, queue: str) -> int | None:
        """How many jobs the rate lets start: what came since, less what was taken."""
        rate = self.rules[queue].rate
        if rate is None:
            return None
        count, span, burst = rate
        parts, before = burst * span, 0  # of which a token has `span`, and `count` come a second
        for at in self.spent[queue]:
            parts = min(parts + (at - before) * count, burst * span) - span
            before = at
        return min(parts + (self.now - before) * count, burst * span) // span

    def depth(self, queue: str) -> int:
        return sum(
            job.queue == queue and job.state in ("pending", "scheduled")
            for job in self.jobs.values()
        )

    # -- ends of claims ---------------------------------------------------------------------

    def release(self, job_id: str) -> None:
        job = self.jobs[job_id]
        job.state, job.attempts, job.delivery = "pending", job.attempts - 1, 0
        if job.early is not None and job.early > self.now:
            job.state, job.due = "scheduled", job.early

    def wake(self, job_id: str, data: bytes | None) -> Literal["woken", "not scheduled"]:
        job = self.jobs[job_id]
        if job.state != "scheduled":
            return "not scheduled"
        job.state, job.due, job.woken, job.wake = "pending", None, self.now, data
        return "woken"

    def ack(self, job_id: str) -> None:
        job = self.jobs[job_id]
        self.done[job.queue] += 1
        job.state, job.ended, job.delivery, job.outcome = "done", self.now, 0, "done"
        job.note("completed")
        if self.rules[job.queue].keep_done is None:
            del self.jobs[job_id]

    def nack(self, job_id: str, error: str, retry_after: int) -> State:
        job = self.jobs[job_id]
        if job.attempts >= job.max_attempts:
            self.bury(job_id, error)
            return "dead"
        job.error, job.delivery = error, 0
        job.note("retried", error)
        delay = max(self.rules[job.queue].backoff * 2 ** (job.attempts - 1), retry_after)
        job.state = "scheduled" if delay else "pending"
        job.due = self.now + delay if delay else None
        return job.state

    def bury(self, job_id: str, error: str) -> None:
        job = self.jobs[job_id]
        job.state, job.error, job.ended, job.delivery = "dead", error, self.now, 0
        job.outcome = "dead"
        job.note("dead_lettered", error)

    def cancel(self, job_id: str) -> Literal["removed", "requested", "not found"]:
        job = self.jobs.get(job_id)
        if job is None or job.state in ("done", "dead"):
            return "not found"
        if job.state == "claimed":
            job.cancel = True
            return "requested"
        job.outcome = "cancelled"
        del self.jobs[job_id]
        return "removed"

    def requeue_dead(self, job_id: str) -> None:
        job = self.jobs[job_id]
        self.jobs[job_id] = replace(
            job, state="pending", attempts=0, error=None, cancel=False, due=None, outcome=""
        )
        self.jobs[job_id].note("requeued")

    # -- what happens by itself -------------------------------------------------------------

    def advance(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            self.settle()
        self.settle()

    def settle(self) -> None:
        """Whatever is due now."""
        for job in list(self.jobs.values()):
            rules = self.rules[job.queue]
            if job.state == "claimed" and job.lease <= self.now:
                self._take_back(job, EXPIRED)
            elif job.state == "scheduled" and job.due is not None and job.due <= self.now:
                job.state, job.due = "pending", None
            else:
                keep = {"done": rules.keep_done, "dead": rules.keep_dead}.get(job.state)
                if keep is not None and job.ended + keep <= self.now:
                    del self.jobs[job.id]

    def crash(self) -> None:
        for job in self.jobs.values():
            if job.state == "claimed":
                self._take_back(job, INTERRUPTED)

    def _take_back(self, job: ModelJob, error: str) -> None:
        if job.attempts >= job.max_attempts:
            self.bury(job.id, error)
        else:
            job.state, job.delivery = "pending", 0
            job.note("lease_expired" if error is EXPIRED else "interrupted")

    def _holder(self, new: NewJob) -> ModelJob | None:
        """The job that holds this dedup key."""
        for job in self.jobs.values():
            if new.dedup is not None and (job.queue, job.dedup) == (new.queue, new.dedup):
                return job
        return None
