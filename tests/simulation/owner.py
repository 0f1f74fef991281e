"""A simulated process that owns a store: it opens a queue, uses it in every way, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from taquba.errors import (
    ClaimLost,
    Closed,
    CommitUnknown,
    DuplicateJobId,
    Fenced,
    InvalidState,
    JobNotFound,
    StoreError,
    TaqubaError,
)
from taquba.objectstore import ObjectStore, RetryingStore
from taquba.objectstore._retry import RetryPolicy
from taquba.queue import Claim, Effects, Queue, QueueConfig, QueueTransaction, new_job
from tests.simulation import stack_invariants as must
from tests.simulation.network import FAIR, Process
from tests.simulation.stack_invariants import Op

if TYPE_CHECKING:
    from tests.simulation.stack import StackWorld

_STOPPED = (Fenced, Closed, CommitUnknown)
_RETRIES = RetryPolicy(attempts=4, first_delay=0.02, max_delay=0.5, total=20.0)


class _RolledBack(Exception):
    """Raised to leave a transaction."""


class Owner:
    """One life of a process: at most one open queue, its users and its worker."""

    def __init__(self, world: StackWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.random = Random(f"{world.seed}/{name}/users")
        self.process = Process(
            name,
            world.store,
            Random(f"{world.seed}/{name}/network"),
            world.weather,
            world.note,
            world.count,
        )
        self.process.store.page = self.random.choice((7, 100, 100))
        self.queue: Queue | None = None
        self.epoch = 0
        self.failed_at: float | None = None
        self.stopping = False
        self.order = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.claims: list[tuple[Claim, float, float]] = []
        """Claims that are held, when they were handed out, and their leases."""

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self.tasks.append(task)
        return task

    # -- life -------------------------------------------------------------------------------

    async def live(self) -> None:
        """Open, be used, and close; however that ends."""
        self.process.live_here()
        world, random = self.world, self.random
        if not await self.open():
            return
        users = [self.start(self.use(world.plan.budget)) for _ in range(world.plan.users)]
        if world.plan.worker:
            users.append(self.start(self.run_worker()))
        await asyncio.wait(users[: world.plan.users])
        await self.process.sleep(random.choice((0.0, 0.2, 1.5)))
        await self.close()

    async def open(self) -> bool:
        world, random = self.world, self.random
        world.note(self.name, "opens")
        if random.random() < 0.2:
            # Long enough for the tail that it read to be passed, and collected.
            self.process.creates_take = random.uniform(0.3, 1.5)
        known = [op.number for op in world.ops.values() if op.acknowledged_at is not None]
        store: ObjectStore = self.process.store
        if random.random() < 0.5:
            store = RetryingStore(store, clock=self.process.clock, policy=_RETRIES)
        config = QueueConfig(
            max_attempts=random.choice((1, 2, 3)),
            lease=random.choice((0.3, 2.0, 30.0)),
            backoff_base=random.choice((0.0, 0.2)),
            keep_done=random.choice((None, None, 1.0)),
            keep_dead=random.choice((None, 2.0)),
        )
        for _ in range(20):
            try:
                self.queue = await Queue.open(
                    store,
                    config=config,
                    clock=self.process.clock,
                    retain_history=world.plan.retain_history,
                    state=random.choice(("memory", "memory", "memory", "disk")),
                    scratch=world.scratch,
                    commit_interval=random.choice((0.0, 0.005, 0.05)),
                    close_timeout=random.choice((0.05, 1.0, 30.0)),
                )
            except StoreError:
                await self.process.sleep(0.2)
                continue
            except Fenced:
                # Somebody took over before the first tables were stored.
                world.note(self.name, "was fenced before it was open")
                continue
            except Exception as error:
                if not self.process.dead:
                    world.violate(f"cannot_open: {self.name}: {error!r}")
                return False
            break
        else:
            return False
        self.process.creates_take = 0.0
        if self.process.dead:
            return False
        queue = self.queue
        self.epoch = queue._core.database.position.epoch
        world.opened(self.epoch)
        world.note(self.name, "owns epoch", self.epoch, "at", queue._core.database.position.seq)
        queue.on_failure(self.failed)
        rows = queue.peek("SELECT key FROM kv")
        world.check(must.lost_at_open, known, [must.number_of(row[0]) for row in rows])
        return True

    def failed(self, error: TaqubaError) -> None:
        if self.process.dead or isinstance(error, Closed):
            return
        self.failed_at = self.process.loop.time()
        self.world.note(self.name, "stopped:", type(error).__name__)
        if isinstance(error, Fenced):
            self.world.count("fencings")
            self.world.check(must.fenced_without_rival, self.epoch, self.world.store.epoch)
        elif not isinstance(error, CommitUnknown):
            self.world.violate(f"stopped_without_reason: {self.name}: {error!r}")

    async def close(self) -> None:
        """Close as long as the process lives; however often it is asked to."""
        self.stopping = True
        if self.queue is None or self.process.dead:
            return
        self.world.note(self.name, "closes")
        with suppress(Fenced, CommitUnknown):
            await self.queue.close()

    def heal(self) -> None:
        """The network gets well, and nothing is asked for any more."""
        self.process.weather = FAIR
        self.process.requests_left = -1
        self.stopping = True

    # -- users ------------------------------------------------------------------------------

    async def use(self, budget: int) -> None:
        """Ask for one thing after the other."""
        random = self.random
        actions: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (20, self.enqueue),
            (6, self.enqueue_several),
            (22, self.claim),
            (24, self.settle),
            (5, self.put),
            (3, self.put_pair),
            (3, self.roll_back),
            (4, self.cancel),
            (4, self.requeue),
            (5, self.read),
        ]
        weights = [weight for weight, _ in actions]
        try:
            for _ in range(budget):
                if self.stopping or self.process.dead:
                    return
                [(_, action)] = random.choices(actions, weights)
                await action()
                await self.process.sleep(random.choice((0.0, 0.001, 0.01, 0.05, 0.3)))
        except _STOPPED:
            return
        except Exception as error:
            if not self.process.dead:
                self.world.violate(f"unexpected_error: {self.name}: {error!r}")

    async def commit(self, op: Op, call: Callable[[], Awaitable[Any]], *, give_up: bool) -> Any:
        """Ask for a commit, and note what comes of it; perhaps without waiting for that."""

        async def ask() -> Any:
            assert self.queue is not None
            await self.queue.ready()
            self.world.note(self.name, "asks for", op.number, op.kind, op.job)
            self.place(op)
            return await call()

        if give_up:
            waiting = asyncio.ensure_future(ask())
            await self.process.sleep(self.random.random() * 0.02)
            waiting.cancel()
            await asyncio.wait([waiting])
            if waiting.cancelled() or self.process.dead:
                return None
            result = waiting.result()
        else:
            result = await ask()
        self.acknowledged(op)
        return result

    def place(self, op: Op) -> None:
        self.order += 1
        op.order = self.order

    def acknowledged(self, op: Op) -> None:
        if self.process.dead or op.refused:
            return
        op.acknowledged_at = self.process.loop.time()
        self.world.note(self.name, "hears of", op.number)
        self.world.check(must.acknowledged_after_failure, op, self.failed_at)

    def giving_up(self) -> bool:
        return self.random.random() < 0.1

    def effects(self, op: Op) -> Effects:
        effects = Effects().put(op.marker, op.kind.encode())
        for payload in op.payloads:
            effects.enqueue(self.random.choice(("a", "b")), payload)
        return effects

    async def enqueue(self) -> None:
        world, random, queue = self.world, self.random, self.queue
        assert queue is not None
        op = world.op(self, "enqueue", jobs=1)
        dedup = random.choice((None, None, None, "x", "y"))
        op.conditional = dedup is not None
        job_id = f"job-{op.number}" if random.random() < 0.5 else None

        async def call() -> None:
            enqueued = await queue.enqueue(
                random.choice(("a", "a", "b", "w")),
                op.payloads[0],
                priority=random.choice((None, None, 5)),
                delay=random.choice((None, None, 0.05, 1.0)),
                dedup_key=dedup,
                job_id=job_id,
                effects=Effects().put(op.marker, b"enqueue"),
            )
            op.refused = not enqueued.created
            world.jobs_seen.append(enqueued.job_id)

        # Whoever gives up does not learn whether a job with its key was there already.
        await self.commit(op, call, give_up=dedup is None and self.giving_up())

    async def enqueue_several(self) -> None:
        queue = self.queue
        assert queue is not None
        op = self.world.op(self, "enqueue", jobs=self.random.randint(2, 4))
        lane = self.random.choice(("a", "b", "w"))

        async def call() -> None:
            with queue.transaction() as tx:
                for payload in op.payloads:
                    self.world.jobs_seen.append(tx.enqueue(new_job(lane, payload)).job_id)
                tx.put(op.marker, b"several")
            await tx.durable()

        await self.commit(op, call, give_up=self.giving_up())

    async def put(self) -> None:
        queue = self.queue
        assert queue is not None
        op = self.world.op(self, "put")
        await self.commit(op, lambda: queue.kv.put(op.marker, b""), give_up=self.giving_up())

    async def put_pair(self) -> None:
        queue = self.queue
        assert queue is not None
        op = self.world.op(self, "put")

        async def call() -> None:
            with queue.transaction() as tx:
                tx.put(op.marker, b"")
                tx.put(b"pair/left", b"%d" % op.number)
                tx.put(b"pair/right", b"%d" % op.number)
            await tx.durable()

        await self.commit(op, call, give_up=False)

    async def roll_back(self) -> None:
        queue = self.queue
        assert queue is not None
        op = self.world.op(self, "put")
        op.rolled_back = True
        await queue.ready()
        with suppress(_RolledBack):
            with queue.transaction() as tx:
                tx.put(op.marker, b"")
                tx.enqueue(new_job("a", b"rolled back"))
                raise _RolledBack

    async def claim(self) -> None:
        random, queue = self.random, self.queue
        assert queue is not None
        lane = random.choice(("a", "a", "b"))
        lease = random.choice((0.1, 0.5, 5.0, 60.0))
        count = random.choice((1, 1, 3))

        async def ask() -> None:
            for claim in await queue.claim_many(lane, count, lease):
                if not self.process.dead:
                    self.handed_out(claim, lease)
                    self.claims.append((claim, self.process.loop.time(), lease))

        asking = asyncio.ensure_future(ask())
        if self.giving_up():
            await self.process.sleep(random.random() * 0.02)
            asking.cancel()
            await asyncio.wait([asking])
            if asking.cancelled():
                return
        await asking

    def handed_out(self, claim: Claim, lease: float) -> None:
        job = claim.job
        self.world.note(self.name, "has", job.id, "attempt", job.attempts, "for", lease)
        self.world.claims.append((job.id, job.attempts, self.process.loop.time()))

    async def settle(self) -> None:
        random, queue = self.random, self.queue
        if not self.claims:
            return await self.claim()
        assert queue is not None
        claim, began, lease = self.claims.pop(random.randrange(len(self.claims)))
        job = claim.job
        how = random.choice(("ack", "ack", "ack", "nack", "nack", "bury", "drop", "sleep"))
        if how == "drop":
            return None
        if how == "sleep":
            await self.process.sleep(lease * random.random() * 2)
            how = "ack"
        op = self.world.op(
            self,
            how,
            job=job.id,
            attempt=job.attempts,
            jobs=0 if how == "nack" else random.choice((0, 1)),
        )
        effects = self.effects(op)

        async def call() -> None:
            was_live = claim.is_live
            try:
                if how == "ack":
                    await queue.ack(claim, effects)
                elif how == "bury":
                    await queue.dead_letter(claim, "no use", effects)
                else:
                    with queue.transaction() as tx:
                        tx.nack(claim, "not yet")
                        tx.put(op.marker, b"nack")
                    await tx.durable()
            except ClaimLost:
                self.claim_lost(op, began, lease)
                return
            self.world.check(must.settled_after_its_end, op, was_live)

        await self.commit(op, call, give_up=False)

    def claim_lost(self, op: Op, began: float, lease: float) -> None:
        op.refused = True
        if self.process.dead:
            return
        self.world.count("settlements refused")
        held = self.process.loop.time() - began
        self.world.check(must.claim_lost_early, held, lease, self.failed_at is not None)

    async def cancel(self) -> None:
        queue = self.queue
        assert queue is not None
        if not self.world.jobs_seen:
            return
        job_id = self.random.choice(self.world.jobs_seen)
        op = self.world.op(self, "cancel", job=job_id)
        op.conditional = True

        async def call() -> None:
            cancelled = await queue.cancel(job_id, self.effects(op))
            op.refused = cancelled.outcome.value != "removed"

        await self.commit(op, call, give_up=False)

    async def requeue(self) -> None:
        queue = self.queue
        assert queue is not None
        if not self.world.jobs_seen:
            return
        rows = queue.peek("SELECT id FROM jobs WHERE state = 4 ORDER BY seq LIMIT 1")
        job_id = rows[0][0] if rows else self.random.choice(self.world.jobs_seen)
        op = self.world.op(self, "requeue", job=job_id)

        async def call() -> None:
            try:
                with queue.transaction() as tx:
                    tx.requeue_dead(job_id)
                    tx.put(op.marker, b"requeue")
                self.world.requeued.add(job_id)
                await tx.durable()
            except (JobNotFound, InvalidState):
                op.refused = True

        await self.commit(op, call, give_up=False)

    async def read(self) -> None:
        """Read what was perhaps not stored yet: the answer has to wait until it is."""
        queue, world = self.queue, self.world
        assert queue is not None
        numbers = list(world.ops)[-5:]
        if not numbers:
            return
        op = world.ops[self.random.choice(numbers)]
        value = await queue.kv.get(op.marker)
        if value is not None and not self.process.dead:
            world.reads.append((op.number, self.process.loop.time()))
        stats = await queue.stats(self.random.choice(("a", "b", "w")))
        if min(stats.pending, stats.scheduled, stats.claimed, stats.done, stats.dead) < 0:
            world.violate(f"negative_counter: {self.name}: {stats}")

    # -- a worker ---------------------------------------------------------------------------

    async def run_worker(self) -> None:
        queue, random = self.queue, self.random
        assert queue is not None
        lease = 2.0

        async def handle(claim: Claim) -> Callable[[QueueTransaction], object]:
            job = claim.job
            if not self.process.dead:
                self.handed_out(claim, lease)
            await self.process.sleep(random.choice((0.0, 0.01, 0.2, 3.0)))
            if random.random() < 0.2:
                raise RuntimeError("the handler fails")
            chain = random.random() < 0.4
            op = self.world.op(
                self, "ack", job=job.id, attempt=job.attempts, jobs=1 if chain else 0
            )

            def settlement(tx: QueueTransaction) -> None:
                was_live = claim.is_live
                self.place(op)
                try:
                    if chain:
                        tx.succeed_with_next(claim, op.payloads[0])
                    else:
                        tx.ack(claim)
                except ClaimLost:
                    op.refused = True
                    raise
                tx.put(op.marker, b"ack")
                self.world.check(must.settled_after_its_end, op, was_live)

            return settlement

        def on_error(claim: Claim, error: BaseException) -> Callable[[QueueTransaction], object]:
            op = self.world.op(self, "nack", job=claim.job.id, attempt=claim.job.attempts)

            def settlement(tx: QueueTransaction) -> None:
                self.place(op)
                try:
                    tx.nack(claim, str(error))
                except ClaimLost:
                    op.refused = True
                    raise
                tx.put(op.marker, b"nack")

            return settlement

        worker = queue.engine("w", handle, concurrency=random.choice((1, 3)), on_error=on_error)
        try:
            await worker.run()
        except _STOPPED:
            return
        except DuplicateJobId as error:
            self.world.violate(f"unexpected_error: {self.name}: {error!r}")
