"""Jobs that a limit per key holds back: what comes next all the same, and what looking costs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from taquba import Claim, Queue, QueueConfig, RateLimit
from taquba.queue import QueueTransaction, _flow_keys, _held, new_job
from taquba.queue._effects import NewJob
from tests.queue.harness import World, started, take

pytestmark = pytest.mark.anyio


class _RolledBack(Exception):
    pass


class _Modelled:
    """A queue, and a model of it: a list that is sorted at every claim."""

    def __init__(self, queue: Queue, per_key: int, exact: bool) -> None:
        self.queue = queue
        self.per_key = per_key
        self.exact = exact
        self.keys: list[tuple[int, str | None]] = []  # priority and key of each job
        self.ids: list[str] = []
        self.pending: set[int] = set()
        self.scheduled: set[int] = set()
        self.claims: dict[int, Claim] = {}

    def expected(self, wanted: int) -> list[int]:
        running = Counter(self.keys[n][1] for n in self.claims)
        found: list[int] = []
        for n in sorted(self.pending, key=lambda n: (self.keys[n][0], n)):
            key = self.keys[n][1]
            if len(found) < wanted and (key is None or running[key] < self.per_key):
                found.append(n)
                running[key] += 1
        return found

    async def enqueue(self, key: str | None, priority: int, *, later: bool) -> None:
        n = len(self.keys)
        added = await self.queue.enqueue(
            "q",
            str(n).encode(),
            concurrency_key=key,
            priority=priority,
            delay=1e6 if later else None,
        )
        self.keys.append((priority, key))
        self.ids.append(added.job_id)
        (self.scheduled if later else self.pending).add(n)

    def check(self, claims: list[Claim], wanted: int) -> None:
        expected = self.expected(wanted)
        got = [int(claim.job.payload) for claim in claims]
        assert got == (expected if self.exact else expected[: len(got)])
        assert bool(got) == bool(expected)
        self.claims |= dict(zip(got, claims, strict=True))
        self.pending -= set(got)

    async def roll_back(self, random: Random) -> None:
        """Change a lot in a transaction that comes to nothing."""
        lane = self.queue._core.lane("q")
        with contextlib.suppress(_RolledBack), self.queue.transaction() as tx:
            for n in self.some(random, self.claims):
                (tx.ack if n % 2 else tx.release)(self.claims[n])
            for n in self.some(random, self.pending):
                tx.cancel(self.ids[n])
            for n in self.some(random, self.scheduled):
                tx.wake(self.ids[n])
            for _ in range(2):
                tx.claim(lane, 3, 30)
            raise _RolledBack

    def some(self, random: Random, numbers: Any) -> list[int]:
        return random.sample(sorted(numbers), min(len(numbers), 3))

    async def step(self, random: Random, keys: list[str | None]) -> None:
        pending, claims, queue = self.pending, self.claims, self.queue
        what = random.choice(
            ["enqueue", "enqueue", "enqueue", "claim", "claim", "settle", "settle", "other"]
        )
        if what == "enqueue":
            for _ in range(random.randrange(8)):
                await self.enqueue(
                    random.choice(keys), random.choice([1, 2, 2, 2]), later=random.random() < 0.2
                )
        elif what == "claim":
            wanted = random.choice([1, 2, 5, 20])
            self.check(await queue.claim_many("q", wanted), wanted)
        elif what == "settle":
            for n in self.some(random, claims):
                claim = claims.pop(n)
                how = random.choice(["ack", "nack", "release"])
                if how == "ack":
                    await queue.ack(claim)
                    continue
                if how == "nack":
                    await queue.nack(claim, "no")
                else:
                    with queue.transaction() as tx:
                        tx.release(claim)
                pending.add(n)
        else:
            how = random.choice(["cancel", "by_id", "wake", "roll_back"])
            if how == "cancel":
                for n in self.some(random, pending):
                    await queue.cancel(self.ids[n])
                    pending.discard(n)
            elif how == "wake":
                for n in self.some(random, self.scheduled):
                    await queue.wake(self.ids[n])
                    self.scheduled.discard(n)
                    pending.add(n)
            elif how == "by_id":
                running = Counter(self.keys[n][1] for n in claims)
                for n in self.some(random, pending)[:1]:
                    key = self.keys[n][1]
                    if key is None or running[key] < self.per_key:
                        claims[n] = await queue.claim_by_id(self.ids[n])
                        pending.discard(n)
            else:
                await self.roll_back(random)


@pytest.mark.parametrize("seed", range(40))
async def test_what_comes_next_is_what_a_list_says(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, world = Random(seed), World()
    exact = seed % 2 == 0
    if not exact:  # a claim looks at so little that it must be continued
        monkeypatch.setattr(_held, "_CHUNK", random.choice([1, 2, 4]))
        monkeypatch.setattr(_held, "_AT_ONCE", random.choice([1, 3, 6]))
        monkeypatch.setattr(_held, "_SLACK", 0)
    keys = [None, *(f"k{n}" for n in range(random.choice([2, 5, 12])))]
    per_key = random.choice([1, 1, 2])
    config = QueueConfig(backoff_base=0, concurrency_per_key=per_key, max_attempts=10_000)
    modelled = _Modelled(await world.open(config=config), per_key, exact)
    for _ in range(120):
        await modelled.step(random, keys)
    while modelled.pending or modelled.claims:
        modelled.check(await modelled.queue.claim_many("q", 7), 7)
        n = random.choice(sorted(modelled.claims))
        await modelled.queue.ack(modelled.claims.pop(n))
    await world.close()


@pytest.mark.parametrize("how", ["cancel", "by_id"])
async def test_a_head_that_is_gone_is_not_counted(world: World, how: str) -> None:
    queue = await limited(world)
    ids = [
        (await queue.enqueue("q", f"{key}{n}".encode(), concurrency_key=key)).job_id
        for n in (0, 1)
        for key in ("a", "b")
    ]
    for claim in await queue.claim_many("q", 10):
        await queue.ack(claim)
    assert (await take(queue)).job.payload == b"a1"  # and b1 is known to come next
    if how == "cancel":
        await queue.cancel(ids[3])
    else:
        claim = await queue.claim_by_id(ids[3])
    await queue.enqueue("q", b"b2", concurrency_key="b")
    if how == "by_id":
        assert await queue.claim("q") is None
        await queue.ack(claim)
    assert (await take(queue)).job.payload == b"b2"


# -- what it costs --------------------------------------------------------------------------


def steps_of(queue: Queue) -> list[int]:
    """A list in which the steps of SQLite's machine are counted from now on."""
    count = [0]

    def step() -> bool:
        count[0] += 1
        return False

    queue._core.database._state.connection.set_progress_handler(step, 1)
    return count


def job(key: str) -> NewJob:
    return new_job("q", b"", concurrency_key=key)


async def limited(world: World, per_key: int = 1) -> Queue:
    return await world.open(config=QueueConfig(backoff_base=0, concurrency_per_key=per_key))


async def in_worlds(measure: Callable[[World, int], Awaitable[int]], *sizes: int) -> list[int]:
    found: list[int] = []
    for size in sizes:
        world = World()
        found.append(await measure(world, size))
        await world.close()
    return found


async def test_a_first_claim_does_not_look_at_every_key() -> None:
    """Also when the process is new, and even when its first jobs block each other."""

    async def measure(world: World, keys: int) -> int:
        queue = await limited(world)
        with queue.transaction() as tx:
            for n in range(keys):
                for _ in range(2):
                    tx.enqueue(job(f"k{n}"))
        await tx.durable()
        queue = await world.crash(config=QueueConfig(concurrency_per_key=1))
        steps = steps_of(queue)
        assert len(await queue.claim_many("q", 10)) == 10
        return steps[0]

    few, many = await in_worlds(measure, 100, 1500)
    assert many < few * 1.5, (few, many)


async def test_a_flood_of_few_keys_is_not_looked_through() -> None:
    async def measure(world: World, blocked: int) -> int:
        queue = await limited(world)
        await queue.enqueue_many("q", [b"blocked"] * blocked, concurrency_key="a")
        await queue.enqueue("q", b"free", concurrency_key="b")
        await take(queue)
        steps = steps_of(queue)
        assert (await take(queue)).job.payload == b"free"
        return steps[0]

    few, many = await in_worlds(measure, 200, 4000)
    assert many < few * 1.5, (few, many)


async def test_no_claim_looks_at_many_jobs_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the way is passed over in parts, between which the event loop goes on."""
    monkeypatch.setattr(_held, "_CHUNK", 8)
    monkeypatch.setattr(_held, "_AT_ONCE", 32)
    claim = QueueTransaction.claim
    most = [0]
    steps = [0]

    def counted(self: QueueTransaction, *arguments: Any) -> list[Claim]:
        before = steps[0]
        try:
            return claim(self, *arguments)
        finally:
            most[0] = max(most[0], steps[0] - before)

    monkeypatch.setattr(QueueTransaction, "claim", counted)

    async def measure(world: World, blocked: int) -> int:
        nonlocal steps
        queue = await limited(world)
        with queue.transaction() as tx:
            for _ in range(blocked):
                for n in range(3):
                    tx.enqueue(job(f"k{n}"))
            for n in range(40):  # so many keys that they are not listed
                tx.enqueue(job(f"z{n}"))
                tx.enqueue(job(f"z{n}"))
        for _ in range(3):
            await take(queue)
        steps = steps_of(queue)
        most[0] = 0
        for _ in range(40):
            await take(queue)
        assert await queue.claim("q") is None
        return most[0]

    few, many = await in_worlds(measure, 30, 600)
    assert many < few * 1.5, (few, many)


@pytest.mark.parametrize("who", ["worker", "waiter"])
async def test_whoever_waits_is_served_when_all_in_the_way_is_passed_over(
    world: World, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.setattr(_held, "_CHUNK", 1)
    monkeypatch.setattr(_held, "_AT_ONCE", 2)
    queue = await limited(world)
    await queue.enqueue_many("q", [b"blocked"] * 50, concurrency_key="a")
    for n in range(4):
        await queue.enqueue("q", b"blocked", concurrency_key=f"k{n}", delay=1e6)
    await take(queue)
    done: list[bytes] = []
    if who == "waiter":
        waiting = await started(world, queue.claim("q", wait=10))
        await queue.enqueue("q", b"free", concurrency_key="b")
        await queue.enqueue("q", b"free", concurrency_key="c")
        await queue.enqueue("q", b"free", concurrency_key="d")
        claim = await waiting
        assert claim is not None and claim.job.payload == b"free"
        return

    async def handler(delivery: Any) -> None:
        done.append(delivery.payload)

    for key in ("b", "c", "d"):
        await queue.enqueue("q", b"free", concurrency_key=key)
    worker = queue.worker("q", handler, concurrency=5)
    work = await started(world, worker.run())
    for _ in range(200):
        await asyncio.sleep(0)
    assert done == [b"free"] * 3
    worker.stop()
    await work


async def test_the_event_loop_goes_on_while_a_backlog_gets_keys(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_flow_keys, "_AT_ONCE", 10)
    queue = await world.open()
    await queue.enqueue_many("q", [b""] * 500)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    found: list[int] = []
    for config in (QueueConfig(), QueueConfig(concurrency_per_key=1)):
        task = asyncio.ensure_future(turn())
        turns = 0
        await world.crash(config=config)
        found.append(turns)
        task.cancel()
    assert found[1] - found[0] >= 49


async def work_off(world: World, config: QueueConfig) -> tuple[int, int]:
    """Statements and calls of Python functions of jobs that are enqueued and worked off."""
    queue = await world.open(config=config)
    left = jobs = 300
    handled = asyncio.Event()
    keyed = config.concurrency_per_key is not None

    async def handler(_: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            handled.set()

    async def producer(number: int) -> None:
        for _ in range(jobs // 30):
            await queue.enqueue("q", b"", concurrency_key=f"k{number}" if keyed else None)

    statements = calls = 0

    def traced(*_: Any) -> bool:
        nonlocal statements
        statements += 1
        return True

    def profiled(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event == "call"

    queue._core.database._state.connection.exec_trace = traced
    async with queue.worker("q", handler, concurrency=30):
        sys.setprofile(profiled)
        await asyncio.gather(*(producer(number) for number in range(30)))
        await handled.wait()
        sys.setprofile(None)
    queue._core.database._state.connection.exec_trace = None
    return statements, calls


async def test_limits_that_hold_nothing_back_cost_next_to_nothing() -> None:
    limits = QueueConfig(
        concurrency_per_key=1000,
        max_running=1000,
        rate=RateLimit(1_000_000),
        max_depth=1_000_000,
    )
    found: list[tuple[int, int]] = []
    for config in (QueueConfig(), limits):
        world = World()
        found.append(await work_off(world, config))
        await world.close()
    (statements, calls), (limited_statements, limited_calls) = found
    assert limited_statements < statements * 1.02, found
    assert limited_calls < calls * 1.1, found
