"""`succeed_with_next`: a job that ends by becoming the next one."""

from __future__ import annotations

import asyncio

import pytest

from taquba import Claim, JobState, Queue
from taquba.errors import ClaimLost
from taquba.queue import Settlement
from tests.queue.harness import World, counts, drain, read, started, take

pytestmark = pytest.mark.anyio


async def succeed(queue: Queue, claim: Claim, payload: bytes, *, delay: float | None = None) -> str:
    with queue.transaction() as tx:
        job_id = tx.succeed_with_next(claim, payload, delay=delay)
    await tx.durable()
    return job_id


async def test_a_successor_inherits_and_waits_behind_the_others(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"1", headers={"a": "b"}, priority=5, max_attempts=9)
    claim = await take(queue)
    await queue.enqueue("q", b"other", priority=5)
    await world.clock.advance(1)
    job_id = await succeed(queue, claim, b"2")
    assert not claim.is_live
    assert await queue.get_job(claim.job.id) is None
    job = await read(queue, job_id)
    assert (job.state, job.payload, job.headers) == (JobState.PENDING, b"2", {"a": "b"})
    assert (job.priority, job.max_attempts, job.attempts) == (5, 9, 0)
    assert job.enqueued_at.timestamp() * 1000 == world.clock.now_ms()
    assert await queue.stats("q") == counts(pending=2, done=1)
    queue = await world.crash()
    assert await drain(queue) == [b"other", b"2"]


async def test_a_successor_can_be_for_later(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"1")
    await succeed(queue, await take(queue), b"2", delay=5)
    assert await queue.stats("q") == counts(scheduled=1, done=1)
    await world.clock.advance(5)
    assert await drain(queue) == [b"2"]


async def test_a_claim_that_ended_has_no_successor(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"1")
    claim = await take(queue, lease=1)
    await world.clock.advance(1)
    with pytest.raises(ClaimLost):
        await succeed(queue, claim, b"2")
    assert await drain(queue) == [b"1"]


class Chains:
    """A handler whose jobs have a successor each, and which a test lets go on one by one."""

    def __init__(self, length: int = 2) -> None:
        self.length = length
        self.began: list[bytes] = []
        self.attempts: list[int] = []
        self.gates: dict[bytes, asyncio.Event] = {}

    async def __call__(self, claim: Claim) -> Settlement:
        payload = claim.job.payload
        self.began.append(payload)
        self.attempts.append(claim.job.attempts)
        gate = self.gates.get(payload)
        if gate is not None:
            await gate.wait()
        if len(payload) == self.length:
            return lambda tx: tx.ack(claim)
        return lambda tx: tx.succeed_with_next(claim, payload + b"+")


async def test_a_worker_goes_on_with_the_successor(world: World, queue: Queue) -> None:
    handler = Chains(length=5)
    await queue.enqueue("q", b"a")
    worker = queue.engine("q", handler)
    task = await started(world, worker.run())
    worker.stop()
    await task
    assert handler.began == [b"a", b"a+", b"a++", b"a+++", b"a++++"]
    assert handler.attempts == [1] * 5
    assert await queue.stats("q") == counts(done=5)


async def test_a_successor_does_not_overtake_a_job_that_waits(world: World, queue: Queue) -> None:
    handler = Chains()
    await queue.enqueue_many("q", [b"a", b"b", b"c"])
    worker = queue.engine("q", handler)
    task = await started(world, worker.run())
    worker.stop()
    await task
    assert handler.began == [b"a", b"b", b"c", b"a+", b"b+", b"c+"]


async def test_successors_of_one_moment_come_in_the_claim_order(world: World, queue: Queue) -> None:
    handler = Chains()
    handler.gates = {b"a": asyncio.Event(), b"b": asyncio.Event()}
    await queue.enqueue("q", b"a", priority=9)
    await queue.enqueue("q", b"b", priority=1)
    worker = queue.engine("q", handler, concurrency=2)
    task = await started(world, worker.run())
    assert handler.began == [b"b", b"a"]
    before = world.wire.entries
    handler.gates[b"a"].set()  # this one is settled first
    handler.gates[b"b"].set()
    await world.clock.advance(0)
    worker.stop()
    await task
    assert handler.began == [b"b", b"a", b"b+", b"a+"]
    assert world.wire.entries == before + 2


async def test_a_job_that_a_settlement_made_pending_comes_before_a_later_successor(
    world: World, queue: Queue
) -> None:
    handler = Chains()
    handler.gates = {b"a": asyncio.Event()}
    await queue.enqueue("q", b"a")
    worker = queue.engine("q", handler)
    task = await started(world, worker.run())
    urgent = await started(world, queue.enqueue("q", b"u", priority=1))
    handler.gates[b"a"].set()
    await urgent
    await world.clock.advance(0)
    worker.stop()
    await task
    assert handler.began == [b"a", b"u", b"u+", b"a+"]


async def test_the_successor_of_a_stopped_worker_waits_for_the_next_one(
    world: World, queue: Queue
) -> None:
    handler = Chains()
    handler.gates = {b"a": asyncio.Event()}
    await queue.enqueue("q", b"a")
    worker = queue.engine("q", handler)
    task = await started(world, worker.run())
    worker.stop()
    handler.gates[b"a"].set()
    await task
    assert await queue.stats("q") == counts(pending=1, done=1)
    queue = await world.crash()
    claim = await take(queue)
    assert (claim.job.payload, claim.job.attempts) == (b"a+", 1)


async def test_a_successor_that_was_claimed_at_once_survives_a_crash(
    world: World, queue: Queue
) -> None:
    handler = Chains()
    handler.gates = {b"a+": asyncio.Event()}
    await queue.enqueue("q", b"a", headers={"a": "b"}, priority=5)
    task = await started(world, queue.engine("q", handler).run())
    assert handler.began == [b"a", b"a+"]
    queue = await world.crash()
    task.cancel()
    claim = await take(queue)
    assert (claim.job.payload, claim.job.attempts) == (b"a+", 2)
    assert (claim.job.headers, claim.job.priority) == ({"a": "b"}, 5)
    assert await queue.stats("q") == counts(claimed=1, done=1)
