"""The queue against a model of it: thousands of steps in any order, crashes included."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from taquba import Claim, Enqueued, Follower, Queue, QueueConfig, RateLimit
from taquba.errors import (
    CancelRequested,
    ClaimLost,
    DuplicateJobId,
    InvalidState,
    JobNotFound,
    QueueFull,
)
from taquba.queue import Completion, Effects
from tests.queue.harness import World, started
from tests.queue.model import Model, ModelEffects, ModelJob, NewJob, Rules

T = TypeVar("T")

RULES = {
    "q": Rules(max_attempts=3, backoff=1, keep_done=None, keep_dead=40),
    "r": Rules(max_attempts=2, backoff=0, keep_done=20, keep_dead=15),
}
LIMITS = {
    "q": replace(RULES["q"], per_key=1, rate=(2, 5, 3), depth=5),
    "r": replace(RULES["r"], per_key=2, most=3, depth=6),
}


def configs(rules: dict[str, Rules]) -> dict[str, QueueConfig]:
    return {
        name: QueueConfig(
            max_attempts=each.max_attempts,
            backoff_base=each.backoff,
            keep_done=each.keep_done,
            keep_dead=each.keep_dead,
            jitter=False,
            concurrency_per_key=each.per_key,
            max_running=each.most,
            rate=RateLimit(*each.rate) if each.rate else None,
            max_depth=each.depth,
        )
        for name, each in rules.items()
    }


queues = st.sampled_from(sorted(RULES))
keys = st.sampled_from(["k1", "k2", "k3"])
values = st.binary(max_size=3)
new_jobs = st.builds(
    NewJob,
    queue=queues,
    priority=st.sampled_from([0, 5, 1000]),
    delay=st.sampled_from([0, 0, 0, 1, 7]),
    dedup=st.sampled_from([None, None, "a", "b"]),
    id=st.sampled_from([None, None, None, "x", "y"]),
    payload=st.sampled_from([b"", b"small", b"an object" * 9]),
    key=st.sampled_from([None, "k", "k", "l"]),
)


@st.composite
def some_effects(draw: st.DrawFn) -> ModelEffects:
    touched = draw(st.lists(keys, unique=True, max_size=2))
    deleted = draw(st.lists(st.booleans(), min_size=len(touched), max_size=len(touched)))
    pairs = list(zip(touched, deleted, strict=True))
    return ModelEffects(
        jobs=tuple(draw(st.lists(new_jobs, max_size=2))),
        puts={key: draw(values) for key, gone in pairs if not gone},
        deletes=tuple(key for key, gone in pairs if gone),
    )


effects_or_none = st.one_of(st.none(), some_effects())
Held = tuple[Claim, int]
"""A claim, and its number in the model."""


def options_of(new: NewJob) -> dict[str, Any]:
    return {
        "priority": new.priority,
        "delay": new.delay or None,
        "dedup_key": new.dedup,
        "job_id": new.id,
        "concurrency_key": new.key,
    }


def real(effects: ModelEffects | None) -> Effects | None:
    if effects is None:
        return None
    staged = Effects()
    for new in effects.jobs:
        staged.enqueue(new.queue, new.payload, **options_of(new))
    for key, value in effects.puts.items():
        staged.put(key, value)
    for key in effects.deletes:
        staged.delete(key)
    return staged


class QueueMachine(RuleBasedStateMachine):
    state = "memory"
    setup = RULES
    jobs = Bundle("jobs")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.world = World()
        self.start_ms = self.world.clock.now_ms()
        self.model = Model(self.setup)
        self.options: dict[str, Any] = {
            "queues": configs(self.setup),
            "state": self.state,
            "offload_payloads_above": 64,
        }
        self.steps = 0
        self.waiting: list[tuple[asyncio.Future[Completion], ModelJob]] = []
        self.queue: Queue = self.run(self.world.open(**self.options))

    def run(self, awaitable: Awaitable[T]) -> T:
        """Do something, and let all that follows from it happen."""

        async def main() -> T:
            try:
                return await awaitable
            finally:
                await self.world.clock.advance(0)

        return self.runner.run(main())

    def teardown(self) -> None:
        self.leave()
        self.run(self.world.close())
        self.runner.close()

    def leave(self) -> None:
        """Whoever waits gives up, or is gone with the process."""

        async def main() -> None:
            for waiting, _ in self.waiting:
                waiting.cancel()
            await asyncio.gather(*(waiting for waiting, _ in self.waiting), return_exceptions=True)

        self.run(main())
        self.waiting = []

    # -- enqueueing -------------------------------------------------------------------------

    @rule(target=jobs, new=new_jobs, effects=effects_or_none)
    def enqueue(self, new: NewJob, effects: ModelEffects | None) -> Any:
        call = self.queue.enqueue(new.queue, new.payload, **options_of(new), effects=real(effects))
        alone = ModelEffects(jobs=(new,))
        if self.model.blocked(alone):
            with pytest.raises(DuplicateJobId):
                self.run(call)
            return multiple()
        if self.clashes(alone, effects):
            with contextlib.suppress(DuplicateJobId):
                self.run(call)
                raise AssertionError("a taken id was accepted")
            return multiple()
        if self.overfills((new,), effects):
            with pytest.raises(QueueFull):
                self.run(call)
            return multiple()
        enqueued = self.run(call)
        expected = self.model.enqueue(new, enqueued.job_id)
        assert (enqueued.job_id, enqueued.created) == expected
        ids = [enqueued.job_id]
        if enqueued.created:
            ids += self.applied(effects, enqueued.effects)
        else:
            assert enqueued.effects == ()
        return multiple(*ids)

    @rule(target=jobs, new=new_jobs, count=st.integers(0, 3))
    def enqueue_many(self, new: NewJob, count: int) -> Any:
        return multiple(*self.enqueue_all(new, count))

    def enqueue_all(self, new: NewJob, count: int) -> list[str]:
        plain = replace(new, dedup=None, id=None)
        options = options_of(plain)
        del options["dedup_key"], options["job_id"]
        call = self.queue.enqueue_many(new.queue, [new.payload] * count, **options)
        if self.overfills((plain,) * count, None):
            with pytest.raises(QueueFull):
                self.run(call)
            return []
        made = self.run(call)
        for each in made:
            assert self.model.enqueue(plain, each.job_id) == (each.job_id, each.created)
        return [each.job_id for each in made]

    # -- claiming and settling --------------------------------------------------------------

    @rule(target=claims, queue=queues, count=st.integers(0, 3), lease=st.sampled_from([0, 3, 30]))
    def claim(self, queue: str, count: int, lease: int) -> Any:
        return multiple(*self.claim_some(queue, count, lease))

    def claim_some(self, queue: str, count: int, lease: int) -> list[Held]:
        claimed = self.run(self.queue.claim_many(queue, count, lease))
        expected = self.model.claim(queue, count, lease)
        found = [(claim.job.id, claim.job.attempts) for claim in claimed]
        assert found == [(job_id, attempts) for job_id, _, attempts in expected]
        for claim in claimed:
            job = self.model.jobs[claim.job.id]
            assert claim.cancel_token.is_cancelled == job.cancel
            assert claim.job.payload == job.payload
        numbers = [number for _, number, _ in expected]
        return list(zip(claimed, numbers, strict=True))

    @rule(
        target=jobs,
        held=consumes(claims),
        how=st.sampled_from(["ack", "ack", "nack", "nack", "dead_letter", "release"]),
        effects=effects_or_none,
        retry_after=st.sampled_from([None, 0, 4]),
    )
    def settle(
        self, held: Held, how: str, effects: ModelEffects | None, retry_after: int | None
    ) -> Any:
        return self.settle_as(how, held, effects, retry_after)

    def settle_as(
        self, how: str, held: Held, effects: ModelEffects | None, retry_after: int | None
    ) -> Any:
        if how == "ack":
            return self.ack(held, effects)
        if how == "nack":
            return self.nack(held, effects, retry_after)
        if how == "dead_letter":
            return self.dead_letter(held, effects)
        self.release(held)
        return multiple()

    @rule(
        target=jobs,
        queue=queues,
        how=st.sampled_from(["ack", "nack", "nack", "dead_letter", "release"]),
        effects=effects_or_none,
    )
    def work(self, queue: str, how: str, effects: ModelEffects | None) -> Any:
        """Claim a job, if there is one, and settle it at once."""
        claim = self.run(self.queue.claim(queue, 30))
        expected = self.model.claim(queue, 1, 30)
        assert (claim is None) == (not expected)
        if claim is None:
            return multiple()
        [(job_id, number, attempts)] = expected
        assert (claim.job.id, claim.job.attempts) == (job_id, attempts)
        return self.settle_as(how, (claim, number), effects, None)

    def ack(self, held: Held, effects: ModelEffects | None) -> Any:
        claim, _ = held
        if not self.settles(held, self.queue.ack(claim, real(effects)), effects, True):
            return multiple()
        # The effects come first: the job is there until its settlement is complete.
        ids = self.applied(effects, self.settled.effects)
        self.model.ack(claim.job.id)
        assert self.settled.state.name == "DONE"
        return multiple(*ids)

    def nack(self, held: Held, effects: ModelEffects | None, retry_after: int | None) -> Any:
        claim, _ = held
        final = claim.job.is_last_attempt
        call = self.queue.nack(claim, "nacked", real(effects), retry_after=retry_after)
        if not self.settles(held, call, effects, final):
            return multiple()
        ids = self.applied(effects, self.settled.effects) if final else []
        state = self.model.nack(claim.job.id, "nacked", retry_after or 0)
        assert self.settled.state.name.lower() == state
        if not final:
            assert self.settled.effects == ()
        return multiple(*ids)

    def dead_letter(self, held: Held, effects: ModelEffects | None) -> Any:
        claim, _ = held
        call = self.queue.dead_letter(claim, "given up", real(effects))
        if not self.settles(held, call, effects, True):
            return multiple()
        ids = self.applied(effects, self.settled.effects)
        self.model.bury(claim.job.id, "given up")
        assert self.settled.state.name == "DEAD"
        return multiple(*ids)

    @rule(held=claims, lease=st.sampled_from([0, 2, 50]))
    def renew(self, held: Held, lease: int) -> None:
        claim, number = held

        async def renew() -> None:
            claim.renew(lease)

        if claim.cancel_token.is_cancelled:
            with pytest.raises(CancelRequested):
                self.run(renew())
        elif not self.model.holds(claim.job.id, number):
            with pytest.raises(ClaimLost):
                self.run(renew())
        else:
            self.run(renew())
            self.model.jobs[claim.job.id].lease = self.model.now + lease

    def release(self, held: Held) -> None:
        claim, number = held

        async def release() -> None:
            with self.queue.transaction() as tx:
                tx.release(claim)
            await tx.durable()

        if not self.model.holds(claim.job.id, number):
            with pytest.raises(ClaimLost):
                self.run(release())
        else:
            self.run(release())
            self.model.release(claim.job.id)

    @rule(target=claims, job_id=jobs, lease=st.sampled_from([0, 3, 30]))
    def claim_by_id(self, job_id: str, lease: int) -> Any:
        job = self.model.jobs.get(job_id)
        call = self.queue.claim_by_id(job_id, lease)
        if job is None or job.state not in ("pending", "scheduled"):
            with pytest.raises(JobNotFound if job is None else InvalidState):
                self.run(call)
            return multiple()
        limit = self.model.refuses(job)
        if limit is not None:
            with pytest.raises(InvalidState, match=limit):
                self.run(call)
            return multiple()
        claim = self.run(call)
        _, number, attempts = self.model.claim_by_id(job_id, lease)
        assert (claim.job.id, claim.job.attempts) == (job_id, attempts)
        assert (claim.job.payload, claim.job.wake_payload) == (job.payload, job.wake)
        return multiple((claim, number))

    # -- jobs that nobody holds -------------------------------------------------------------

    @rule(target=jobs, job_id=jobs, effects=effects_or_none)
    def cancel(self, job_id: str, effects: ModelEffects | None) -> Any:
        call = self.queue.cancel(job_id, real(effects))
        job = self.model.jobs.get(job_id)
        if job is not None and job.state in ("pending", "scheduled"):
            del self.model.jobs[job_id]
            clash = self.clashes(ModelEffects(), effects)
            self.model.jobs[job_id] = job
            if clash:
                with pytest.raises(DuplicateJobId):
                    self.run(call)
                return multiple()
        result = self.run(call)
        assert result.outcome.value == self.model.cancel(job_id)
        if result.outcome.value == "removed":
            return multiple(*self.applied(effects, result.effects))
        assert result.effects == ()
        return multiple()

    @rule(job_id=jobs)
    def requeue_dead(self, job_id: str) -> None:
        job = self.model.jobs.get(job_id)
        if job is None:
            with pytest.raises(JobNotFound):
                self.run(self.queue.requeue_dead(job_id))
        elif job.state != "dead":
            with pytest.raises(InvalidState):
                self.run(self.queue.requeue_dead(job_id))
        else:
            self.run(self.queue.requeue_dead(job_id))
            self.model.requeue_dead(job_id)

    @rule(job_id=jobs, data=st.sampled_from([None, b"", b"news"]))
    def wake(self, job_id: str, data: bytes | None) -> None:
        woken = self.run(self.queue.wake(job_id, data))
        found = job_id in self.model.jobs
        assert woken.outcome.value == (self.model.wake(job_id, data) if found else "not found")

    @rule(job_id=jobs)
    def wait(self, job_id: str) -> None:
        """From now on somebody waits for the end of this job."""
        job = self.model.jobs.get(job_id)
        if job is None:
            with pytest.raises(JobNotFound):
                self.run(self.queue.wait_for_completion(job_id))
        elif job.outcome:
            ended = self.run(self.queue.wait_for_completion(job_id))
            assert ended.outcome.value == job.outcome
        else:
            call = self.queue.wait_for_completion(job_id)
            self.waiting.append((self.run(started(self.world, call)), job))

    # -- the rest ---------------------------------------------------------------------------

    @rule(key=keys, value=st.one_of(st.none(), values))
    def write(self, key: str, value: bytes | None) -> None:
        if value is None:
            self.run(self.queue.kv.delete(key))
            self.model.kv.pop(key, None)
        else:
            self.run(self.queue.kv.put(key, value))
            self.model.kv[key] = value

    @rule(key=keys, expected=st.one_of(st.none(), values), value=st.one_of(st.none(), values))
    def compare_and_write(self, key: str, expected: bytes | None, value: bytes | None) -> None:
        matches = self.model.kv.get(key) == expected
        if value is not None:
            assert self.run(self.queue.kv.compare_put(key, expected, value)) == matches
        elif expected is not None:
            assert self.run(self.queue.kv.compare_delete(key, expected)) == matches
        if matches and value is not None:
            self.model.kv[key] = value
        elif matches:
            self.model.kv.pop(key, None)

    @rule(
        target=jobs,
        compares=st.dictionaries(keys, st.one_of(st.none(), st.just(b""), values), max_size=2),
        right=st.booleans(),
        effects=some_effects(),
    )
    def commit(self, compares: dict[str, bytes | None], right: bool, effects: ModelEffects) -> Any:
        if right:
            compares = {key: self.model.kv.get(key) for key in compares}
        call = self.queue.compare_and_commit(compares, real(effects) or Effects())
        if not compares:
            call.close()
            call = self.queue.commit(real(effects) or Effects())
        matches = all(self.model.kv.get(key) == value for key, value in compares.items())
        if matches and self.clashes(ModelEffects(), effects):
            with pytest.raises(DuplicateJobId):
                self.run(call)
            return multiple()
        if matches and self.overfills((), effects):
            with pytest.raises(QueueFull):
                self.run(call)
            return multiple()
        committed = self.run(call)
        assert (committed is not None) == matches
        if committed is None:
            return multiple()
        return multiple(*self.applied(effects, committed.effects))

    @rule(seconds=st.sampled_from([1, 2, 5, 20]))
    def advance(self, seconds: int) -> None:
        self.run(self.world.clock.advance(seconds))
        self.model.advance(seconds)

    @rule(cleanly=st.booleans())
    def end(self, cleanly: bool) -> None:
        """The process ends, and another one goes on."""
        self.leave()
        if cleanly:
            self.run(self.queue.close())
            self.queue = self.run(self.world.open(**self.options))
        else:
            self.queue = self.run(self.world.crash(**self.options))
        self.run(self.world.bury())
        self.model.crash()

    @rule(new=new_jobs, held=st.one_of(st.none(), claims), effects=some_effects(), queue=queues)
    def crash_before_anything_is_stored(
        self, new: NewJob, held: Held | None, effects: ModelEffects, queue: str
    ) -> None:
        self.leave()

        async def main() -> None:
            self.world.wire.hold()
            calls: list[Awaitable[Any]] = [
                self.queue.enqueue(
                    new.queue, new.payload, **options_of(new), effects=real(effects)
                ),
                self.queue.claim_many(queue, 2),
                self.queue.kv.put("k1", b"lost"),
            ]
            if held is not None:
                calls.insert(1, self.queue.ack(held[0], real(effects)))
            tasks = [await started(self.world, call) for call in calls]
            self.queue = await self.world.crash(**self.options)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.world.bury()

        self.run(main())
        self.model.crash()

    async def follow(self) -> None:
        """Another process sees the same."""
        await self.queue.barrier()
        async with Follower.open(self.world.store, clock=self.world.clock) as follower:
            await self.compare(follower)

    @invariant()
    def agrees(self) -> None:
        self.model.settle()
        self.run(self.compare(self.queue))
        self.run(self.compare_limits())
        self.steps += 1
        if self.steps % 10 == 0:
            self.run(self.follow())
        claimed = sum(job.state == "claimed" for job in self.model.jobs.values())
        assert len(self.queue._core.leases) == claimed
        for waiting, job in self.waiting:
            assert waiting.done() == bool(job.outcome)
            if waiting.done():
                ended = waiting.result()
                assert (ended.outcome.value, ended.job.id) == (job.outcome, job.id)
        self.waiting = [(waiting, job) for waiting, job in self.waiting if not waiting.done()]

    # -- helpers ----------------------------------------------------------------------------

    async def compare(self, reader: Queue | Follower) -> None:
        for name in RULES:
            stats = await reader.stats(name)
            expected = self.model.stats(name)
            found = {state: getattr(stats, state) for state in expected}
            assert found == expected, name
        for key in ("k1", "k2", "k3"):
            assert await reader.kv.get(key) == self.model.kv.get(key), key
        ids = {job_id for (job_id,) in await reader.read("SELECT id FROM jobs")}
        assert ids == set(self.model.jobs)
        for expected_job in self.model.jobs.values():
            job = await reader.get_job(expected_job.id)
            assert job is not None
            history = await reader.attempt_history(expected_job.id)
            ends = tuple((each.attempt, each.outcome.name.lower(), each.error) for each in history)
            assert ends == expected_job.history
            due = None if job.run_at is None else job.run_at.timestamp() - self.start_ms / 1000
            assert (
                job.state.name.lower(),
                due,
                job.attempts,
                job.last_error,
                job.cancel_requested,
                job.dedup_key,
                job.priority,
                job.payload,
                job.wake_payload,
                job.woken_at is None,
            ) == (
                expected_job.state,
                expected_job.due,
                expected_job.attempts,
                expected_job.error,
                expected_job.cancel,
                expected_job.dedup,
                expected_job.priority,
                expected_job.payload,
                expected_job.wake,
                expected_job.woken is None,
            )

    async def compare_limits(self) -> None:
        for name, rules in self.model.rules.items():
            flow = await self.queue.flow(name)
            running = self.model.running(name)
            if flow.max_running is not None:
                assert flow.running <= flow.max_running
            if flow.concurrency_per_key is not None:
                assert all(n <= flow.concurrency_per_key for n in flow.running_by_key.values())
            by_key = Counter(key for key in running if key)
            limited = rules.per_key or rules.most or rules.rate
            assert (flow.running, flow.running_by_key, flow.tokens, flow.depth) == (
                len(running),
                by_key if limited else {},
                self.model.tokens(name),
                self.model.depth(name),
            )
            assert set(flow.blocked_keys) == self.model.blocked_keys(name)

    def applied(self, effects: ModelEffects | None, results: tuple[Enqueued, ...]) -> list[str]:
        """Apply effects to the model too; the ids of their jobs."""
        if effects is None:
            assert results == ()
            return []
        made = [result.job_id for result in results]
        expected = self.model.apply(effects, made)
        assert [(result.job_id, result.created) for result in results] == expected
        return made

    def clashes(self, first: ModelEffects, effects: ModelEffects | None) -> bool:
        """Whether applying both would need an id that is taken by then."""
        trial = self.trial()
        names = (f"trial-{n}" for n in itertools.count())
        for new in (*first.jobs, *(effects.jobs if effects else ())):
            if trial.blocked(ModelEffects(jobs=(new,))):
                return True
            _, created = trial.enqueue(new, next(names))
            if new in first.jobs and not created:
                return False  # and the effects are dropped
        return False

    def overfills(self, first: tuple[NewJob, ...], effects: ModelEffects | None) -> bool:
        """Whether all these jobs would make some queue deeper than it may be."""
        trial = self.trial()
        names = (f"trial-{n}" for n in itertools.count())
        created = [trial.enqueue(new, next(names))[1] for new in first]
        if effects and all(created):  # effects of an enqueue that hits are dropped
            for new in effects.jobs:
                trial.enqueue(new, next(names))
        return any(
            rules.depth is not None and max(rules.depth, self.model.depth(name)) < trial.depth(name)
            for name, rules in self.model.rules.items()
        )

    def trial(self) -> Model:
        """A copy in which jobs may be enqueued."""
        trial = Model(self.model.rules)
        trial.now = self.model.now
        trial.jobs = dict(self.model.jobs)
        return trial

    def settles(
        self, held: Held, call: Awaitable[Any], effects: ModelEffects | None, applies: bool
    ) -> bool:
        """Settle a claim, if it can be; `self.settled` has the answer."""
        claim, number = held
        if not self.model.holds(claim.job.id, number):
            with pytest.raises(ClaimLost):
                self.run(call)
            return False
        if applies and self.clashes(ModelEffects(), effects):
            with pytest.raises(DuplicateJobId):
                self.run(call)
            assert claim.is_live
            return False
        self.settled = self.run(call)
        assert not claim.is_live
        return True


_SETTINGS = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestQueue = pytest.mark.timeout(120)(QueueMachine.TestCase)
TestQueue.settings = _SETTINGS


class DiskQueueMachine(QueueMachine):
    state = "disk"


TestQueueOnDisk = pytest.mark.timeout(120)(DiskQueueMachine.TestCase)
TestQueueOnDisk.settings = settings(_SETTINGS, max_examples=40)


class LimitedQueueMachine(QueueMachine):
    setup = LIMITS

    @initialize(target=QueueMachine.jobs, delay=st.sampled_from([0, 0, 2]))
    def crowd(self, delay: int) -> Any:
        """There is more to do than may be done at once."""
        made: list[str] = []
        for queue in self.setup:
            for key in ("k", "k", None, "l"):
                made += self.enqueue_all(NewJob(queue, 5, delay, None, key=key), 1)
        return multiple(*made)

    @rule(queue=queues, rounds=st.integers(1, 4))
    def work(self, queue: str, rounds: int) -> None:
        """Claim whatever may run, and be done with it."""
        for _ in range(rounds):
            for held in self.claim_some(queue, 10, 30):
                self.ack(held, None)

    @rule(target=QueueMachine.claims, queue=queues)
    def claim_all(self, queue: str) -> Any:
        return multiple(*self.claim_some(queue, 10, 30))

    @rule(target=QueueMachine.jobs, new=new_jobs)
    def enqueue_without_limits(self, new: NewJob) -> Any:
        """A process without limits comes and goes."""
        made: list[str] = []
        for rules in (RULES, LIMITS):
            self.model.rules, self.options["queues"] = rules, configs(rules)
            self.end(True)
            if rules is RULES:
                made += self.enqueue_all(new, 1) + self.enqueue_all(replace(new, key=None), 1)
        return multiple(*made)


TestQueueWithLimits = pytest.mark.timeout(120)(LimitedQueueMachine.TestCase)
TestQueueWithLimits.settings = settings(_SETTINGS, max_examples=40)
