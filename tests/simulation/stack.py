"""One seeded world of journal, database and queue: rival owners, followers, and misfortune."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest import mock

import apsw

from taquba.database import DatabaseConfig
from taquba.database._chunks import ChunkStore, Contents
from taquba.errors import TaqubaError
from taquba.journal import JournalConfig
from taquba.objectstore import MemoryStore
from taquba.queue import Queue
from tests.simulation import stack_invariants as must
from tests.simulation.network import FAIR, Process, Weather, at_once
from tests.simulation.owner import Owner
from tests.simulation.reader import Reader, audit
from tests.simulation.shadow import COLUMNS, History, ShadowStore, Tables, content_of, replay_all
from tests.simulation.stack_invariants import Op, Seen, Step
from tests.simulation.virtual_loop import Stuck, run

HOURS = 3600.0
_AWHILE = 120.0
"""Seconds after which the ordinary part of a world is over."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a world consists of; smaller ones are tried to explain a broken one."""

    slots: int
    """Places where processes live, one after the other."""
    lives: int
    """Processes in each of them at most."""
    users: int
    """Users of each process."""
    budget: int
    """What each of them asks for."""
    worker: bool
    followers: int
    audits: int
    """How often the store is verified, the last time at the end."""
    weather: Weather
    deaths: float
    """Share of processes that die."""
    freezes: float
    """Share of processes that stand still for a while."""
    zombies: float
    """Share of processes that stand still for hours."""
    checkpoint_bytes: int
    keep_checkpoints: int
    retain_history: float | None
    """Seconds."""
    collection_rate: float

    @classmethod
    def of(cls, seed: int) -> Plan:
        random = Random(f"{seed}/plan")
        large = random.random() < 0.05
        return cls(
            slots=random.choice((3, 4)) if large else random.choice((1, 2, 2, 3)),
            lives=3 if large else random.choice((1, 2, 2)),
            users=random.choice((2, 4)) if large else random.choice((1, 2, 2)),
            budget=random.choice((15, 25)) if large else random.choice((6, 9, 12)),
            worker=random.random() < 0.4,
            followers=random.choice((0, 1, 1, 2)) if large else random.choice((0, 0, 1)),
            audits=random.choice((0, 0, 0, 0, 1, 2)),
            weather=Weather(
                latency=random.choice((0.002, 0.01, 0.03)),
                slow=random.choice((0.0, 0.02, 0.1)),
                slowest=random.choice((0.5, 3.0)),
                lost=random.choice((0.0, 0.05, 0.12)),
                twice=random.choice((0.0, 0.05, 0.15)),
            ),
            deaths=random.choice((0.0, 0.3, 0.6)),
            freezes=random.choice((0.0, 0.3, 0.6)),
            zombies=random.choice((0.0, 0.25, 0.5)),
            checkpoint_bytes=random.choice((700, 1500, 4000)),
            keep_checkpoints=random.choice((1, 2)),
            retain_history=random.choice((None, None, None, 2.0)),
            collection_rate=random.choice((5.0, 1000.0, 1000.0)),
        )


@dataclass
class StackWorld:
    """Everything that is recorded of a world, to judge it."""

    seed: int
    plan: Plan
    scratch: str
    store: ShadowStore = field(default_factory=ShadowStore)
    trace: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    violations: list[str] = field(default_factory=list[str])
    ops: dict[int, Op] = field(default_factory=dict[int, Op])
    claims: list[tuple[str, int, float]] = field(default_factory=list[tuple[str, int, float]])
    """Job, attempt and time of each claim that was handed out."""
    reads: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """Commits that were read, and when."""
    requeued: set[str] = field(default_factory=set[str])
    jobs_seen: list[str] = field(default_factory=list[str])
    seen: list[Seen] = field(default_factory=list[Seen])
    """What followers showed."""
    final: Seen | None = None
    counts: Counter[str] = field(default_factory=Counter[str])
    newest_epoch: int = 0
    owners: list[Owner] = field(default_factory=list[Owner])

    @property
    def weather(self) -> Weather:
        return self.plan.weather

    def database_config(self, **given: Any) -> DatabaseConfig:
        return database_config(self.plan, self.scratch, **given)

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

    def opened(self, epoch: int) -> None:
        self.count("openings")
        if epoch > 1:
            self.count("takeovers")
        self.newest_epoch = max(self.newest_epoch, epoch)

    def op(self, owner: Owner, kind: str, *, jobs: int = 0, job: str = "", attempt: int = 0) -> Op:
        """A commit that is about to be asked for."""
        number = len(self.ops) + 1
        op = Op(
            number=number,
            owner=owner.name,
            epoch=owner.epoch,
            kind=kind,
            job=job,
            attempt=attempt,
            payloads=tuple(b"%d:%d" % (number, index) for index in range(jobs)),
        )
        self.ops[number] = op
        return op

    def readable(self) -> str:
        return "\n".join(
            f"{event[0]:10.4f}  {' '.join(str(part) for part in event[1:])}" for event in self.trace
        )


def database_config(plan: Plan, folder: str, **given: Any) -> DatabaseConfig:
    """Settings with which even a small world takes checkpoints and collects."""
    return dataclasses.replace(
        DatabaseConfig(**given),
        checkpoint_share=0.001,
        checkpoint_bytes=plan.checkpoint_bytes,
        checkpoint_entries=20,
        keep_checkpoints=plan.keep_checkpoints,
        collection_rate=plan.collection_rate,
        chunk_size=32 * 1024,
        pages_per_step=4 if plan.checkpoint_bytes < 1000 else 64,
        transfers=3,
        cache_bytes=256 * 1024,
        scratch=folder,
    )


def journal_config(**given: Any) -> JournalConfig:
    return JournalConfig(window=4, first_retry_delay=0.02, max_retry_delay=0.5, prefetch=4, **given)


# -- what happens --------------------------------------------------------------------------------


async def _misfortune(world: StackWorld, owner: Owner, random: Random) -> None:
    """What befalls a process: a death at some request, standing still, or nothing."""
    plan, process = world.plan, owner.process
    if random.random() < plan.deaths:
        process.requests_left = random.choice((8, 20, 60, 150)) + random.randrange(20)
    if random.random() < plan.zombies:
        await asyncio.sleep(random.random() * 2)
        process.freeze(HOURS * random.choice((1, 2, 5)) + random.random() * 0.5)
        world.count("zombies")
        await asyncio.sleep(process.frozen_until - process.loop.time())
        if not process.dead:
            world.note(process.name, "wakes")
            world.count("zombies waking" if owner.epoch < world.newest_epoch else "late risers")
        return
    while random.random() < plan.freezes:
        await asyncio.sleep(random.random() * 2)
        process.freeze(random.choice((0.3, 1.0, 4.0, 30.0)) * random.random())
        world.count("freezes")


async def _slot(world: StackWorld, number: int) -> None:
    """One place in the cluster: a process lives there, ends, and is replaced."""
    random = Random(f"{world.seed}/slot {number}")
    await asyncio.sleep(random.choice((0.0, 0.3, 1.0)) * random.random())
    for life in range(random.randint(1, world.plan.lives)):
        owner = Owner(world, f"p{number}.{life}")
        world.owners.append(owner)
        owner.start(_misfortune(world, owner, Random(f"{world.seed}/{owner.name}/fate")))
        living = owner.start(owner.live())
        # Somebody else may think that it is dead, and replace it, long before it is.
        await asyncio.wait([living], timeout=random.choice((0.5, 2.0, 5.0, 20.0)))
        await asyncio.sleep(random.random() * 0.3)
    if random.random() < world.plan.zombies:
        # Just when the others wake, somebody opens.
        hours = HOURS * random.choice((1, 2, 5))
        await asyncio.sleep(max(hours - asyncio.get_running_loop().time(), 0.0))
        owner = Owner(world, f"p{number}.late")
        world.owners.append(owner)
        living = owner.start(owner.live())
        await asyncio.wait([living], timeout=20.0)


async def _history(world: StackWorld) -> None:
    plan = world.plan
    world.note("plan", plan)
    audits = [
        asyncio.ensure_future(audit(world, f"v{number}", at_the_end=False))
        for number in range(1, plan.audits)
    ]
    readers = [Reader(world, number) for number in range(plan.followers)]
    await asyncio.gather(*(_slot(world, number) for number in range(plan.slots)))
    await asyncio.sleep(1.0)
    world.note("everything heals")
    for owner in world.owners:
        owner.heal()
    processes = [life.process for life in (*world.owners, *readers)]
    thaw = max((process.frozen_until for process in processes), default=0.0)
    now = asyncio.get_running_loop().time()
    await asyncio.sleep(max(thaw - now, 0.0) + 20.0)  # whatever is still under way lands
    for owner in world.owners:
        await owner.close()
    for reader in readers:
        await reader.finish()
    await _look_at_the_end(world)
    if audits:
        await asyncio.wait(audits)
    if plan.audits:
        await asyncio.ensure_future(audit(world, "v0", at_the_end=True))


async def _look_at_the_end(world: StackWorld) -> None:
    """Open once more, as a new process would: everything is there, and it works."""
    process = Process("last", world.store, Random(world.seed), FAIR, world.note)
    process.live_here()
    try:
        async with Queue.open(process.store, clock=process.clock) as queue:
            database = queue._core.database
            seq = database.journal.seal_now().seq
            content = content_of(database._state.connection)
            await database.journal.wait_stored(seq)
            world.final = Seen("last", process.loop.time(), seq, content)
            await queue.enqueue("end", b"last")
            claim = await queue.claim("end")
            if claim is None or claim.job.payload != b"last":
                world.violate(f"does_not_work_at_the_end: {claim}")
            else:
                await queue.ack(claim)
    except TaqubaError as error:
        world.violate(f"cannot_open_at_the_end: {error!r}")


# -- judging -------------------------------------------------------------------------------------


def _judge(world: StackWorld) -> None:
    store = world.store
    wanted = {published.checkpoint.position.seq for published in store.published}
    wanted |= {seen.seq for seen in world.seen}
    if world.final is not None:
        wanted.add(world.final.seq)
    # What was done to look at the end comes after the last of the owners.
    history = replay_all(store.entries, wanted)
    complaints: list[str] = [f"log_broken: {trouble}" for trouble in history.trouble]

    def check(predicate: Callable[..., str], *evidence: Any) -> None:
        complaint = predicate(*evidence)
        if complaint:
            complaints.append(f"{predicate.__name__}: {complaint}")

    end = world.final.seq if world.final is not None else history.tail.seq
    steps = [step for step in history.steps if step.seq < end]
    log = {number: step for step in steps for number in must.markers(step)}
    ops = world.ops
    check(must.lost, ops.values(), log)
    check(must.early, ops.values(), log, steps)
    check(must.read_early, world.reads, log)
    check(must.doubled, steps)
    check(must.invented, log, ops)
    check(must.reordered, steps, ops.values())
    for step in steps:
        check(must.foreign, step, ops)
        check(must.torn, step, ops)
        check(must.unfounded, step, ops)
        check(must.settled_by_another, step, ops)
    _judge_jobs(world, steps, check)
    _judge_checkpoints(world, history, check)
    check(must.fence_removed, store.deleted, history.tail.epochs)
    check(must.chunks_missing, store.missing_chunks)
    for seen in world.seen:
        check(must.not_a_prefix, seen, history, store.entries)
    check(must.went_back, world.seen)
    if world.final is not None:
        final = world.final
        check(must.not_a_prefix, final, history, store.entries)
    world.violations += complaints
    world.counts.update(store.counts)
    world.counts["acknowledged"] += sum(op.acknowledged_at is not None for op in ops.values())


def _judge_jobs(world: StackWorld, steps: list[Step], check: Callable[..., None]) -> None:
    jobs = COLUMNS["jobs"]
    identity, queue, state, attempts = (jobs[name] for name in ("id", "queue", "state", "attempts"))
    counts: Counter[tuple[int, int]] = Counter()
    queues: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    taken: dict[tuple[str, int], float] = {}
    taken_in: dict[str, int] = {}
    for step in steps:
        queue_of: dict[str, int] = {}
        ended: set[str] = set()
        settled = {world.ops[n].job for n in must.markers(step) if n in world.ops}
        for change in step.changes:
            if change.table == "queues" and change.after is not None:
                queues[change.key] = change.after
            if change.table != "jobs":
                continue
            check(must.misshapen, change)
            before, after = change.before, change.after
            if before is not None:
                queue_of[before[identity]] = before[queue]
                if before[state] != must.DONE:
                    counts[before[queue], before[state]] -= 1
            if after is not None:
                if after[state] != must.DONE:
                    counts[after[queue], after[state]] += 1
                if after[state] == must.CLAIMED:
                    taken.setdefault((after[identity], after[attempts]), step.landed_at)
                    if before is None or before[state] != must.CLAIMED:
                        taken_in[after[identity]] = step.epoch
            if (
                before is not None
                and before[state] == must.CLAIMED
                and (after is None or after[state] != must.CLAIMED)
                and before[identity] not in settled
            ):
                same = taken_in.get(before[identity]) == step.epoch
                world.count("leases expired" if same else "claims recovered")
        for number in must.markers(step):
            op = world.ops.get(number)
            if op is not None and op.kind == "ack" and op.job in queue_of:
                ended.add(op.job)
                counts[queue_of[op.job], must.DONE] += 1
        check(must.miscounted, step, counts, queues)
    check(must.claim_not_stored, world.claims, taken)
    plain = [(job, attempt) for job, attempt, _ in world.claims if job not in world.requeued]
    check(must.handed_out_twice, plain)


def _judge_checkpoints(world: StackWorld, history: History, check: Callable[..., None]) -> None:
    for published in world.store.published:
        position = published.checkpoint.position
        check(must.checkpoint_early, published, history.steps)
        check(must.checkpoint_misplaced, position, history.positions)
    for seq, content in _contents(world).items():
        check(must.checkpoint_differs, seq, content, history)


def _contents(world: StackWorld) -> dict[int, Tables | TaqubaError]:
    """What each checkpoint that was ever published has, by its place."""
    store = MemoryStore()
    for key, data in world.store.chunks.items():
        at_once(store.put(key, data))
    chunks = ChunkStore(store, transfers=1)
    path = os.path.join(world.scratch, "judged.db")
    found: dict[int, Tables | TaqubaError] = {}

    async def load() -> None:
        for published in world.store.published:
            seq = published.checkpoint.position.seq
            if seq in found:
                continue
            try:
                contents = Contents.from_json(str(seq), published.checkpoint.content)
                await chunks.download(contents, path)
                connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
                found[seq] = content_of(connection)
                connection.close()
                os.remove(path)
            except TaqubaError as error:
                found[seq] = error

    if world.store.published:
        run(load(), None)
    return found


def in_memory() -> str | None:
    """A folder that costs no disk access, where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def simulate(seed: int, plan: Plan | None = None) -> StackWorld:
    """Live through the world of this seed. Same seed and plan, same trace."""
    plan = plan or Plan.of(seed)
    with tempfile.TemporaryDirectory(prefix="taquba-world-", dir=in_memory()) as scratch:
        world = StackWorld(seed, plan, scratch)

        def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            world.violations.append(f"loop_reports: {context.get('message')} {context!r}")

        with (
            mock.patch(
                "taquba.queue._queue.DatabaseConfig",
                world.database_config,
            ),
            mock.patch("taquba.database._replica.DatabaseConfig", world.database_config),
            mock.patch("taquba.queue._queue.JournalConfig", journal_config),
        ):
            try:
                run(_history(world), on_error)
            except Stuck as error:
                world.violations.append(f"stuck: {error}")
            except Exception as error:
                world.violations.append(f"crashed: {error!r}")
        _judge(world)
    return world
