"""What limits the jobs that run: per key, per queue, by rate and by depth."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from random import Random
from typing import Any

import pytest

from taquba import Effects, Queue, QueueConfig, RateLimit
from taquba.errors import InvalidArgument, InvalidState, QueueFull, ValueTooLarge
from tests.queue.harness import World, drain, started, take

pytestmark = pytest.mark.anyio


async def limited(world: World, **limits: Any) -> Queue:
    return await world.open(config=QueueConfig(backoff_base=0, **limits))


async def keyed(queue: Queue, *keys: str | None) -> None:
    """Enqueue a job for each key; its payload says which, and the how manieth it is."""
    for number, key in enumerate(keys):
        await queue.enqueue("q", f"{key or ''}{number}".encode(), concurrency_key=key)


async def payloads(queue: Queue, n: int = 100) -> list[str]:
    return [claim.job.payload.decode() for claim in await queue.claim_many("q", n)]


# -- per key --------------------------------------------------------------------------------


async def test_jobs_of_one_key_wait_for_each_other_and_hold_up_nobody(world: World) -> None:
    queue = await limited(world, concurrency_per_key=1)
    await keyed(queue, "a", "a", "b", None, "a", None, "b")
    first = await queue.claim_many("q", 100)
    assert [x.job.payload for x in first] == [b"a0", b"b2", b"3", b"5"]
    assert first[0].job.concurrency_key == "a" and first[2].job.concurrency_key is None
    assert await queue.claim("q") is None
    await queue.ack(first[0])
    assert await payloads(queue) == ["a1"]


async def test_priority_decides_among_those_that_may_run(world: World) -> None:
    queue = await limited(world, concurrency_per_key=1)
    for key, priority in (("a", 5), ("a", 1), ("b", 3), (None, 4)):
        await queue.enqueue("q", (key or "-").encode(), concurrency_key=key, priority=priority)
    assert await payloads(queue) == ["a", "b", "-"]


@pytest.mark.parametrize("end", ["ack", "nack", "dead_letter", "expiry", "release", "crash"])
async def test_every_end_of_a_claim_frees_its_key(world: World, end: str) -> None:
    queue = await limited(world, concurrency_per_key=1)
    await keyed(queue, "a", "a")
    claim = await take(queue, lease=5)
    assert await queue.claim("q") is None
    match end:
        case "ack":
            await queue.ack(claim)
        case "nack":
            await queue.nack(claim, "no")
        case "dead_letter":
            await queue.dead_letter(claim, "no")
        case "expiry":
            await world.clock.advance(6)
        case "release":
            with queue.transaction() as tx:
                tx.release(claim)
        case _:
            queue = await world.crash(config=QueueConfig(concurrency_per_key=1))
    assert len(await queue.claim_many("q", 10)) == 1


async def test_what_is_rolled_back_does_not_count(world: World) -> None:
    queue = await limited(world, concurrency_per_key=1, max_running=2, rate=RateLimit(2, 10))
    await keyed(queue, "a", "b")
    lane = queue._core.lane("q")
    with pytest.raises(ZeroDivisionError), queue.transaction() as tx:
        assert len(tx.claim(lane, 10, 30)) == 2
        raise ZeroDivisionError
    claims = await queue.claim_many("q", 10)
    assert len(claims) == 2
    with pytest.raises(ZeroDivisionError), queue.transaction() as tx:
        tx.ack(claims[0])
        raise ZeroDivisionError
    status = await queue.flow("q")
    assert (status.running_by_key, status.tokens) == ({"a": 1, "b": 1}, 0)


async def test_a_limit_that_is_new_holds_for_jobs_that_were_there(world: World) -> None:
    queue = await world.open()
    await keyed(queue, "a", None, "a")
    queue = await world.crash(config=QueueConfig(concurrency_per_key=1))
    assert await payloads(queue) == ["a0", "1"]
    queue = await world.crash()
    await keyed(queue, None, "a")
    queue = await world.crash(config=QueueConfig(concurrency_per_key=2))
    assert await payloads(queue) == ["a0", "1", "a2", "0"]


async def test_every_way_into_a_queue_takes_a_key(world: World) -> None:
    queue = await limited(world, concurrency_per_key=1)
    effects = Effects().enqueue("q", b"a", concurrency_key="a").enqueue("q", b"-")
    await queue.enqueue("q", b"a", concurrency_key="a", effects=effects)
    await queue.enqueue_many("q", [b"b", b"b"], concurrency_key="b")
    later = await queue.enqueue("q", b"b", concurrency_key="b", delay=60)
    assert await payloads(queue) == ["a", "-", "b"]
    await queue.wake(later.job_id)
    assert await queue.claim("q") is None


@pytest.mark.parametrize(
    ("key", "error"), [("", InvalidArgument), (5, InvalidArgument), ("é" * 128, ValueTooLarge)]
)
async def test_a_key_that_is_none(queue: Queue, key: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="concurrency_key"):
        await queue.enqueue("q", b"", concurrency_key=key)
    await queue.enqueue("q", b"", concurrency_key="é" * 127 + "a")


async def test_blocked_jobs_cost_nothing(world: World) -> None:
    """Counted in steps of SQLite's machine, of which looking through them would take many."""

    async def steps(blocked: int) -> int:
        fresh = World()
        queue = await limited(fresh, concurrency_per_key=1)
        await queue.enqueue_many("q", [b""] * blocked, concurrency_key="a", priority=1)
        await keyed(queue, *[f"k{n}" for n in range(20)])
        await take(queue)
        connection = queue._core.database._state.connection
        count = 0

        def step() -> bool:
            nonlocal count
            count += 1
            return False

        connection.set_progress_handler(step, 1)
        for _ in range(20):
            await queue.ack(await take(queue))
        connection.set_progress_handler(None)
        await fresh.close()
        return count

    few, many = await steps(10), await steps(2000)
    assert many < few * 1.5, (few, many)


async def test_a_worker_goes_on_when_a_key_is_free(world: World) -> None:
    queue = await limited(world, concurrency_per_key=2)
    await keyed(queue, *["a"] * 5, *["b"] * 3, None, None)
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    seen: list[bytes] = []

    async def handler(delivery: Any) -> None:
        key = delivery.payload[:1].decode()
        running[key] += 1
        most[key] = max(most[key], running[key])
        await world.clock.sleep(1)
        running[key] -= 1
        seen.append(delivery.payload)

    worker = queue.worker("q", handler, concurrency=20)
    work = await started(world, worker.run())
    await world.clock.advance(10)
    assert len(seen) == 10
    assert most["a"] == 2 and most["b"] == 2
    worker.stop()
    await work


# -- per queue ------------------------------------------------------------------------------


async def test_so_many_run_and_no_more(world: World) -> None:
    queue = await limited(world, max_running=2)
    await keyed(queue, None, "a", None)
    claims = await queue.claim_many("q", 10)
    assert len(claims) == 2
    assert await queue.claim("q") is None
    assert (await queue.flow("q")).reached == ("max_running",)
    waiting = await started(world, queue.claim("q", wait=60))
    await queue.ack(claims[1])
    claim = await waiting
    assert claim is not None and claim.job.payload == b"2"


async def test_a_job_by_its_id_is_limited_too(world: World) -> None:
    queue = await limited(world, max_running=1)
    one, two = await queue.enqueue_many("q", [b"", b""])
    claim = await queue.claim_by_id(two.job_id)
    with pytest.raises(InvalidState, match="max_running"):
        await queue.claim_by_id(one.job_id)
    await queue.ack(claim)
    await queue.claim_by_id(one.job_id)


# -- rate -----------------------------------------------------------------------------------


async def test_a_rate_with_its_burst(world: World) -> None:
    queue = await limited(world, rate=RateLimit(2, per=1, burst=3))
    await queue.enqueue_many("q", [b""] * 20)
    assert len(await queue.claim_many("q", 10)) == 3
    for _ in range(50):
        assert await queue.claim("q") is None  # burns nothing
    await world.clock.advance(0.499)
    assert await queue.claim("q") is None
    await world.clock.advance(0.001)
    assert len(await queue.claim_many("q", 10)) == 1
    await world.clock.advance(3600)
    assert len(await queue.claim_many("q", 10)) == 3


async def test_tokens_survive_a_crash(world: World) -> None:
    config = QueueConfig(rate=RateLimit(1, per=3600))
    queue = await world.open(config=config)
    await queue.enqueue_many("q", [b"", b""])
    await queue.ack(await take(queue))
    queue = await world.crash(config=config)
    assert await queue.claim("q") is None
    status = await queue.flow("q")
    assert (status.tokens, status.reached) == (0, ("rate",))
    assert status.next_token_at is not None
    await world.clock.advance(3600)
    await take(queue)


async def test_a_worker_and_a_waiter_sleep_until_there_is_a_token(world: World) -> None:
    queue = await limited(world, rate=RateLimit(1, per=60))
    await queue.enqueue_many("q", [b""] * 4)
    at: list[float] = []
    start = world.clock.monotonic()

    async def handler(_: Any) -> None:
        at.append(world.clock.monotonic() - start)

    worker = queue.worker("q", handler, concurrency=9)
    work = await started(world, worker.run())
    await world.clock.advance(121)
    worker.stop()
    await work
    assert at == [0, 60, 120]
    waiting = await started(world, queue.claim("q", wait=600))
    await world.clock.advance(58)
    assert not waiting.done()
    await world.clock.advance(1)
    assert (await waiting) is not None


@pytest.mark.parametrize(
    "options", [{"count": 0}, {"count": 1.5}, {"count": 1, "per": 0}, {"count": 1, "burst": 0}]
)
def test_a_rate_that_is_none(options: Any) -> None:
    with pytest.raises(InvalidArgument):
        RateLimit(**options)


# -- depth ----------------------------------------------------------------------------------


async def test_a_full_queue_refuses_more(world: World) -> None:
    queue = await limited(world, max_depth=3)
    await queue.enqueue("q", b"0", dedup_key="k")
    await queue.enqueue("q", b"1", delay=60)
    entries = world.wire.entries
    with pytest.raises(QueueFull) as caught:
        await queue.enqueue_many("q", [b"2", b"3"])
    assert world.wire.entries == entries
    assert (caught.value.queue, caught.value.depth, caught.value.limit) == ("q", 2, 3)
    await queue.enqueue("q", b"2")
    with pytest.raises(QueueFull, match="add workers"):
        await queue.enqueue("q", b"3", effects=Effects().put("key", b"x"))
    assert await queue.kv.get("key") is None
    assert not (await queue.enqueue("q", b"again", dedup_key="k")).created
    await queue.enqueue("other", b"")
    with pytest.raises(QueueFull):
        await queue.commit(Effects().enqueue("q", b"3").put("key", b"x"))
    claim = await take(queue)
    await queue.enqueue("q", b"3")
    await queue.nack(claim, "no")  # a retry must not be refused
    assert (await queue.flow("q")).depth == 4
    with pytest.raises(QueueFull):
        await queue.enqueue("q", b"4")


async def test_a_settlement_is_not_refused(world: World) -> None:
    queue = await limited(world, max_depth=1)
    await queue.enqueue("q", b"0")
    claim = await take(queue)
    await queue.enqueue("q", b"1")
    await queue.ack(claim, Effects().enqueue("q", b"2"))
    assert await drain(queue) == [b"1", b"2"]


def test_the_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(QueueFull("full", queue="q", depth=3, limit=2)))
    assert (str(error), error.queue, error.depth, error.limit) == ("full", "q", 3, 2)


@pytest.mark.parametrize("limit", ["concurrency_per_key", "max_running", "max_depth"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5])
def test_a_limit_that_is_none(limit: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=limit):
        QueueConfig(**{limit: value})


# -- at random ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
async def test_what_is_claimed_is_what_a_simple_model_says(seed: int) -> None:
    """The model sorts all that is pending and takes what the limits let through."""
    random, world = Random(seed), World()
    per_key, most = random.choice([1, 2, 3]), random.choice([None, 4])
    rate = random.choice([None, RateLimit(3, per=1, burst=2)])
    config = QueueConfig(
        backoff_base=0, concurrency_per_key=per_key, max_running=most, rate=rate, max_attempts=99
    )
    queue = await world.open(config=config)
    pending: list[tuple[int, int, str | None]] = []
    claims: dict[int, Any] = {}
    keys: dict[int, tuple[int, str | None]] = {}
    tokens, at = 2.0, world.clock.now_ms()
    number = 0
    for _ in range(120):
        match random.choice(["enqueue", "enqueue", "claim", "ack", "nack", "time", "crash"]):
            case "enqueue":
                key, priority = random.choice([None, "a", "b", "c"]), random.choice([1, 2])
                await queue.enqueue(
                    "q", str(number).encode(), concurrency_key=key, priority=priority
                )
                pending.append((priority, number, key))
                keys[number] = (priority, key)
                number += 1
            case "claim":
                wanted = random.choice([1, 3, 10])
                now = world.clock.now_ms()
                tokens, at = min(2.0, tokens + (now - at) * 3 / 1000), now
                expected: list[int] = []
                running = Counter(keys[n][1] for n in claims)
                for item in sorted(pending):
                    full = item[2] is not None and running[item[2]] >= per_key
                    if full or len(expected) == wanted:
                        continue
                    if most is not None and len(claims) + len(expected) >= most:
                        break
                    if rate is not None and tokens - len(expected) < 1 - 1e-9:
                        break
                    expected.append(item[1])
                    running[item[2]] += 1
                got = await queue.claim_many("q", wanted)
                assert [int(x.job.payload) for x in got] == expected
                tokens -= len(expected)
                pending = [item for item in pending if item[1] not in expected]
                claims |= {int(x.job.payload): x for x in got}
            case "ack" if claims:
                await queue.ack(claims.pop(random.choice(list(claims))))
            case "nack" if claims:
                n = random.choice(list(claims))
                await queue.nack(claims.pop(n), "no")
                pending.append((keys[n][0], n, keys[n][1]))
            case "time":
                await world.clock.advance(random.choice([0.1, 0.35, 1]))
            case "crash" if random.random() < 0.3:
                queue = await world.crash(config=config)
                pending += [(keys[n][0], n, keys[n][1]) for n in claims]
                claims.clear()
            case _:
                pass
    await world.close()
    await asyncio.sleep(0)
