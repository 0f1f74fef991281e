"""One seeded world of workers: handlers of every kind, over processes and a store that fail.

Each life of a process opens the queue, enqueues jobs, and runs a worker on each lane. What a
handler does is drawn from the job and the attempt. At the end a process that nothing befalls
works off what is left, and every job must have come to exactly one end.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest import mock

from taquba.errors import (
    ClaimLost,
    Closed,
    CommitUnknown,
    Fenced,
    PermanentError,
    QueueFull,
    StoreError,
)
from taquba.queue import (
    Claim,
    Dead,
    Delivery,
    Effects,
    Engine,
    Queue,
    QueueConfig,
    QueueTransaction,
    RateLimit,
    Result,
    Retry,
    Worker,
    new_job,
)
from tests.simulation import worker_invariants as must
from tests.simulation.network import FAIR, Process, Weather
from tests.simulation.shadow import ShadowStore, replay_all
from tests.simulation.stack import Plan as StackPlan
from tests.simulation.stack import database_config, in_memory, journal_config
from tests.simulation.virtual_loop import Stuck, run

LANES = ("a", "b")
_STOPPED = (Fenced, Closed, CommitUnknown)
_PATIENCE = 900.0
"""Seconds that the last process has to work off what is left."""

Settle = Callable[[QueueTransaction], object]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a world consists of."""

    slots: int
    """Places where processes live, one after the other."""
    lives: int
    jobs: int
    """What each life enqueues."""
    concurrency: int
    max_attempts: int
    lease: float
    backoff: float
    public: bool
    """Whether its workers are those that users run."""
    keep_done: float | None
    offload_above: int | None
    """Bytes of payload above which it is an object."""
    restarts: float
    """Share of lives whose workers end, one way or the other, and are replaced."""
    cancels: int
    weather: Weather
    deaths: float
    freezes: float
    limits: must.Limits
    """What each lane may do at a time."""

    @classmethod
    def of(cls, seed: int) -> Plan:
        random = Random(f"{seed}/worker plan")
        return cls(
            slots=random.choice((1, 2, 2, 3)),
            lives=random.choice((1, 2, 2)),
            jobs=random.choice((5, 10, 20)),
            concurrency=random.choice((1, 2, 5)),
            max_attempts=random.choice((1, 2, 3, 3)),
            lease=random.choice((0.4, 2.0, 30.0)),
            backoff=random.choice((0.0, 0.0, 0.2)),
            public=seed % 2 == 0,
            keep_done=random.choice((None, None, 1.0)),
            offload_above=random.choice((None, 20, 20)),
            restarts=random.choice((0.0, 0.5)),
            cancels=random.choice((0, 3)),
            weather=Weather(
                latency=random.choice((0.002, 0.01, 0.03)),
                slow=random.choice((0.0, 0.02, 0.1)),
                slowest=random.choice((0.5, 3.0)),
                lost=random.choice((0.0, 0.05, 0.12)),
                twice=random.choice((0.0, 0.05, 0.15)),
            ),
            deaths=random.choice((0.0, 0.4, 0.7)),
            freezes=random.choice((0.0, 0.3, 0.6)),
            limits=must.Limits(
                per_key=random.choice((None, None, 1, 2)),
                running=random.choice((None, None, 2)),
                rate=random.choice((None, None, (5, 1.0, 2))),
                depth=random.choice((None, None, 3)),
            ),
        )


@dataclass
class WorkerWorld:
    """Everything that is recorded of a world, to judge it."""

    seed: int
    plan: Plan
    scratch: str
    store: ShadowStore = field(default_factory=ShadowStore)
    trace: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    violations: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    acknowledged: set[str] = field(default_factory=set[str])
    """Jobs whose enqueueing was acknowledged."""
    started: list[tuple[str, int, float]] = field(default_factory=list[tuple[str, int, float]])
    """Job, attempt and time of each start of a handler."""
    made: int = 0
    lives: list[Life] = field(default_factory=list["Life"])
    fates: list[asyncio.Task[None]] = field(default_factory=list["asyncio.Task[None]"])
    """What befalls them; until everything heals."""
    final: must.End | None = None

    def note(self, *event: Any) -> None:
        self.trace.append((asyncio.get_running_loop().time(), *event))

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def violate(self, what: str) -> None:
        self.note("VIOLATION", what)
        self.violations.append(what)

    def check(self, predicate: Callable[..., str], *evidence: Any) -> None:
        complaint = predicate(*evidence)
        if complaint:
            self.violate(f"{predicate.__name__}: {complaint}")

    def readable(self) -> str:
        return "\n".join(
            f"{event[0]:10.4f}  {' '.join(str(part) for part in event[1:])}" for event in self.trace
        )


class Life:
    """One life of a process, with its queue, its producer and its workers."""

    def __init__(self, world: WorkerWorld, name: str, weather: Weather) -> None:
        self.world = world
        self.name = name
        self.random = Random(f"{world.seed}/{name}")
        self.process = Process(
            name,
            world.store,
            Random(f"{world.seed}/{name}/network"),
            weather,
            world.note,
            world.count,
        )
        self.running: set[str] = set()
        """Jobs that a handler of this process works on."""
        self.tasks: list[asyncio.Task[None]] = []
        self.queue: Queue | None = None
        self.healed = weather is FAIR

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self.tasks.append(task)
        return task

    async def open(self) -> bool:
        plan = self.world.plan
        config = QueueConfig(
            max_attempts=plan.max_attempts,
            lease=plan.lease,
            backoff_base=plan.backoff,
            keep_done=plan.keep_done,
            keep_dead=None,
            concurrency_per_key=plan.limits.per_key,
            max_running=plan.limits.running,
            rate=RateLimit(*plan.limits.rate) if plan.limits.rate else None,
            max_depth=plan.limits.depth,
        )
        for _ in range(20):
            try:
                self.queue = await Queue.open(
                    self.process.store,
                    config=config,
                    clock=self.process.clock,
                    scratch=self.world.scratch,
                    close_timeout=1.0,
                    offload_payloads_above=plan.offload_above,
                )
            except StoreError:
                await self.process.sleep(0.2)
                continue
            except Fenced:
                continue
            if self.queue._core.database.position.epoch > 1:
                self.world.count("takeovers")
            return not self.process.dead
        return False

    async def live(self) -> None:
        """Open, produce, work, and end; however that goes."""
        self.process.live_here()
        if not await self.open():
            return
        self.start(self.produce())
        if self.world.plan.cancels:
            self.start(self.cancel_some())
        workers = [self.start(self.work(lane)) for lane in LANES]
        await self.process.sleep(self.random.choice((1.0, 3.0, 8.0)))
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)
        await self.close()

    async def close(self) -> None:
        if self.queue is not None and not self.process.dead:
            with suppress(*_STOPPED):
                await self.queue.close()

    # -- producing --------------------------------------------------------------------------

    async def produce(self) -> None:
        world, random, queue = self.world, self.random, self.queue
        assert queue is not None
        try:
            for _ in range(world.plan.jobs):
                world.made += 1
                job_id = f"j{world.made}"
                try:
                    await queue.enqueue(
                        random.choice(LANES),
                        payload_of(job_id),
                        job_id=job_id,
                        priority=random.choice((None, None, 5)),
                        delay=random.choice((None, None, None, 0.05, 1.0)),
                        concurrency_key=key_of(job_id),
                    )
                except QueueFull:
                    world.count("enqueues refused")
                else:
                    if not self.process.dead:
                        world.acknowledged.add(job_id)
                        world.count("jobs")
                await self.process.sleep(random.choice((0.0, 0.001, 0.05, 0.3)))
        except _STOPPED:
            return

    async def cancel_some(self) -> None:
        world, random, queue = self.world, self.random, self.queue
        assert queue is not None
        try:
            for _ in range(world.plan.cancels):
                await self.process.sleep(random.random() * 2)
                job_id = f"j{random.randint(1, max(world.made, 1))}"
                effects = Effects().put(f"cancelled/{job_id}", b"")
                cancelled = await queue.cancel(job_id, effects)
                world.count(f"cancellations {cancelled.outcome.value}")
        except _STOPPED:
            return

    # -- working ----------------------------------------------------------------------------

    async def work(self, lane: str) -> None:
        """Run a worker on a lane, and another one after it was stopped or cancelled."""
        queue, random = self.queue, self.random
        assert queue is not None
        with suppress(*_STOPPED):
            while random.random() < self.world.plan.restarts:
                worker = self.worker(lane)
                running = self.start(worker.run())
                await self.process.sleep(random.random())
                if random.random() < 0.5:
                    worker.stop()
                    self.world.count("workers drained")
                else:
                    running.cancel()
                    self.world.count("workers cancelled")
                await asyncio.wait([running])
                if not running.cancelled():
                    running.result()
            worker = self.worker(lane)
            await worker.run()

    def worker(self, lane: str) -> Engine | Worker:
        """A worker as users run it, or what it and the layers above stand on."""
        plan, queue, random = self.world.plan, self.queue, self.random
        assert queue is not None
        if not plan.public:
            return queue.engine(lane, self.handle, concurrency=plan.concurrency)
        return queue.worker(
            {lane: 2, "nobody's": 1},
            self.deliver,
            concurrency=plan.concurrency,
            renew=random.choice(("auto", None)),
            job_timeout=None if self.healed else random.choice((None, plan.lease, 10.0)),
            cancel_grace=3600.0,
            drain_timeout=random.choice((None, 0.05)),
        )

    async def handle(self, claim: Claim) -> Settle:
        return self.settlement(claim, await self.attempt(claim))

    async def deliver(self, delivery: Delivery) -> Result:
        kind = await self.attempt(delivery)
        return self.result(delivery, kind, len(self.world.started))

    async def attempt(self, claim: Claim | Delivery) -> str:
        """Handle a job; how it is to be settled."""
        job = claim.job
        world, process = self.world, self.process
        if process.dead:
            raise RuntimeError("not any more")
        world.note(self.name, "starts", job.id, "attempt", job.attempts)
        world.started.append((job.id, job.attempts, process.loop.time()))
        world.check(must.too_many_attempts, job.id, job.attempts, job.max_attempts)
        world.check(must.runs_twice, job.id, self.running)
        world.check(must.wrong_payload, job.id, job.payload, payload_of(job.id))
        self.running.add(job.id)
        try:
            return await self.behave(claim)
        finally:
            self.running.discard(job.id)

    async def behave(self, claim: Claim | Delivery) -> str:
        """What the handler does with this attempt of this job."""
        job, world, process = claim.job, self.world, self.process
        random = Random(f"{world.seed}/{job.id}/{len(world.started)}")
        kinds = (
            ["ok"] * 6
            if self.healed
            else [
                "ok",
                "ok",
                "ok",
                "ok",
                "chain",
                "chain",
                "fail",
                "fail",
                "no use",
                "slow",
                "stubborn",
                "tidy",
                "blocks",
                "gives up",
                "bury",
                "release",
                "heeds",
            ]
        )
        kind = random.choice(kinds)
        world.count(f"handlers: {kind}")
        await process.sleep(random.choice((0.0, 0.01, 0.1)))
        match kind:
            case "fail":
                raise RuntimeError("not this time")
            case "no use":
                raise PermanentError("never")
            case "slow":
                await process.sleep(world.plan.lease * random.choice((0.9, 1.5, 3.0)))
            case "tidy":  # takes a while to clean up when it is cancelled
                try:
                    await process.sleep(world.plan.lease * 2)
                finally:
                    await process.sleep(0.2 if world.plan.public else 0.0)
            case "stubborn":  # and settles when it was told to stop
                with suppress(asyncio.CancelledError):
                    await process.sleep(world.plan.lease * 2)
            case "blocks":
                process.freeze(random.choice((0.3, 2.0, 40.0)))
                await process.sleep(0.01)
            case "gives up":
                raise asyncio.CancelledError
            case "heeds":
                with suppress(TimeoutError):
                    heeded = asyncio.ensure_future(claim.cancel_token.wait())
                    asleep = asyncio.ensure_future(process.sleep(0.5))
                    try:
                        await asyncio.wait([heeded, asleep], return_when="FIRST_COMPLETED")
                    finally:
                        heeded.cancel()
                        asleep.cancel()
            case _:
                pass
        return kind

    def result(self, delivery: Delivery, kind: str, number: int) -> Result:
        """What the handler of a worker returns; no two use the same keys."""
        job = delivery.job
        if kind == "release":
            return Retry("again", after=0.05)
        if kind == "bury" or (kind == "heeds" and delivery.cancel_token.is_cancelled):
            return Dead("buried", Effects().put(f"buried/{job.id}#{number}", b"1,"))
        effects = Effects().put(f"done/{job.id}#{number}", b"1,")
        effects.put(f"count/{job.queue}#{job.id}/{number}", b"1,")
        if kind == "chain":
            follower = f"{job.id}-next"
            effects.enqueue(
                job.queue,
                payload_of(follower),
                job_id=follower,
                concurrency_key=job.concurrency_key,
            )
            effects.put(f"next/{job.id}#{number}", b"1,")
        return effects

    def settlement(self, claim: Claim, kind: str) -> Settle:
        job, world = claim.job, self.world

        def settle(tx: QueueTransaction) -> None:
            try:
                if kind == "release":
                    tx.release(claim)
                    return
                if kind == "bury" or (kind == "heeds" and claim.cancel_token.is_cancelled):
                    tx.dead_letter(claim, "buried")
                    note(tx, f"buried/{job.id}", job.attempts)
                    return
                tx.ack(claim)
            except ClaimLost:
                world.count("settlements refused")
                raise
            note(tx, f"done/{job.id}", job.attempts)
            note(tx, f"count/{job.queue}", 1)
            if kind == "chain":
                follower = f"{job.id}-next"
                tx.enqueue(
                    new_job(
                        job.queue,
                        payload_of(follower),
                        job_id=follower,
                        concurrency_key=job.concurrency_key,
                    )
                )
                note(tx, f"next/{job.id}", 1)

        return settle


def payload_of(job_id: str) -> bytes:
    """What a job carries: as much as an object is made for, or not."""
    return job_id.encode() * (10 if hash_of(job_id) % 2 else 1)


def key_of(job_id: str) -> str | None:
    """What a job shares with others that may not all run at once."""
    return (None, "k", "k", "l")[hash_of(job_id) // 2 % 4]


def hash_of(job_id: str) -> int:
    return sum(job_id.encode())


def note(tx: QueueTransaction, key: str, number: int) -> None:
    """Add a number to the list under a key, so that what is done twice is seen twice."""
    row = tx.execute("SELECT value FROM kv WHERE key = ?", (key.encode(),)).fetchone()
    tx.put(key.encode(), (row[0] if row else b"") + b"%d," % number)


# -- what happens --------------------------------------------------------------------------------


async def _misfortune(world: WorkerWorld, life: Life, random: Random) -> None:
    plan, process = world.plan, life.process
    if random.random() < plan.deaths:
        process.requests_left = random.choice((8, 20, 60, 100)) + random.randrange(20)
    while random.random() < plan.freezes:
        await asyncio.sleep(random.random() * 2)
        process.freeze(random.choice((0.3, 1.0, 4.0, 60.0)) * random.random())
        world.count("freezes")


async def _slot(world: WorkerWorld, number: int, make: Callable[..., Life]) -> None:
    random = Random(f"{world.seed}/slot {number}")
    await asyncio.sleep(random.choice((0.0, 0.3, 1.0)) * random.random())
    for count in range(random.randint(1, world.plan.lives)):
        life = make(world, f"p{number}.{count}", world.plan.weather)
        world.lives.append(life)
        fate = _misfortune(world, life, Random(f"{world.seed}/{life.name}/fate"))
        world.fates.append(life.start(fate))
        living = life.start(life.live())
        await asyncio.wait([living], timeout=random.choice((1.0, 3.0, 10.0)))
        await asyncio.sleep(random.random() * 0.3)


async def live_through(
    world: WorkerWorld,
    make: Callable[..., Life],
    finish: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Let processes live and die until everything heals, and then finish."""
    world.note("plan", world.plan)
    await asyncio.gather(*(_slot(world, number, make) for number in range(world.plan.slots)))
    await asyncio.sleep(1.0)
    world.note("everything heals")
    for fate in world.fates:
        fate.cancel()
    for life in world.lives:
        life.process.weather = FAIR
        life.process.requests_left = -1
    thaw = max((life.process.frozen_until for life in world.lives), default=0.0)
    await asyncio.sleep(max(thaw - asyncio.get_running_loop().time(), 0.0) + 20.0)
    for life in world.lives:
        if life.process.dead:
            world.count("deaths")
    await finish()


async def _finish(world: WorkerWorld) -> None:
    """Work off what is left, and look at what came of everything."""
    last = Life(world, "last", FAIR)
    world.lives.append(last)
    last.process.live_here()
    assert await last.open()
    queue = last.queue
    assert queue is not None
    workers = [asyncio.ensure_future(last.work(lane)) for lane in LANES]
    deadline = last.process.loop.time() + _PATIENCE
    left = Counter[str]()
    while last.process.loop.time() < deadline:
        stats = [await queue.stats(lane) for lane in LANES]
        left = Counter(
            {
                lane: s.pending + s.scheduled + s.claimed
                for lane, s in zip(LANES, stats, strict=True)
            }
        )
        if not left.total():
            break
        await last.process.sleep(1.0)
    world.check(must.not_worked_off, left)
    rows = await queue.read("SELECT id, state, attempts, max_attempts, last_error FROM jobs")
    pairs = await queue.read("SELECT key, value FROM kv")
    done = {lane: (await queue.stats(lane)).done for lane in LANES}
    world.final = must.End(
        jobs={row[0]: row[1:] for row in rows},
        notes={key.decode(): value.decode() for key, value in pairs},
        done=done,
    )
    for worker in workers:
        worker.cancel()
    await asyncio.wait(workers)
    await last.close()
    world.counts.update(f"ended {what}" for what in world.final.ends().values())


def _judge(world: WorkerWorld) -> None:
    if world.final is None:
        return
    history = replay_all(world.store.entries, set())
    complaints: list[str] = [f"log_broken: {trouble}" for trouble in history.trouble]
    flow = must.FlowSeen(history.steps, world.plan.limits)
    world.counts.update(flow.reached)
    for predicate, evidence in (
        (must.not_one_end, (world.acknowledged, world.final)),
        (must.miscounted, (world.final,)),
        (must.done_twice, (world.final,)),
        (must.dead_too_late, (world.final,)),
        (must.lost_payload, (world.final,)),
        (must.started_early, (world.started, history.steps)),
        (must.over_a_limit, (flow,)),
    ):
        complaint = predicate(*evidence)  # type: ignore[operator]
        if complaint:
            complaints.append(f"{predicate.__name__}: {complaint}")
    world.violations += complaints


def simulate(seed: int, plan: Plan | None = None) -> WorkerWorld:
    """Live through the world of this seed. Same seed and plan, same trace."""
    plan = plan or Plan.of(seed)
    with tempfile.TemporaryDirectory(prefix="taquba-world-", dir=in_memory()) as scratch:
        world = WorkerWorld(seed, plan, scratch)
        settings = StackPlan.of(seed)

        def config(**given: Any) -> Any:
            return database_config(settings, scratch, **given)

        async def finish() -> None:
            await asyncio.ensure_future(_finish(world))

        def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            world.violations.append(f"loop_reports: {context.get('message')} {context!r}")

        with (
            mock.patch("taquba.queue._queue.DatabaseConfig", config),
            mock.patch("taquba.queue._queue.JournalConfig", journal_config),
        ):
            try:
                run(live_through(world, Life, finish), on_error)
            except Stuck as error:
                world.violations.append(f"stuck: {error}")
            except Exception as error:
                world.violations.append(f"crashed: {error!r}")
        _judge(world)
    return world
