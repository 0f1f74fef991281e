"""Claiming: one job for one claim, durable before it is handed out."""

from __future__ import annotations

import asyncio

import pytest

from taquba import Claim, JobState, Queue, QueueConfig
from taquba.errors import InvalidType
from taquba.queue import CancelOutcome
from tests.queue.harness import (
    NO_BACKOFF,
    World,
    cancel_after,
    cancelled,
    counts,
    drain,
    read,
    started,
    take,
)

pytestmark = pytest.mark.anyio


async def test_a_batch_takes_what_there_is(world: World, queue: Queue) -> None:
    """E1"""
    await queue.enqueue_many("q", [b"1", b"2", b"3", b"4", b"5"])
    first = await queue.claim_many("q", 3, lease=10)
    await world.clock.advance(1)
    second = await queue.claim_many("q", 3, lease=10)
    assert [claim.job.payload for claim in first] == [b"1", b"2", b"3"]
    assert [claim.job.payload for claim in second] == [b"4", b"5"]
    assert {claim.job.attempts for claim in first + second} == {1}
    assert len({claim.job.claimed_at for claim in first}) == 1
    await world.clock.advance(9)
    assert [claim.is_live for claim in first] == [False] * 3
    assert [claim.is_live for claim in second] == [True] * 2


async def test_a_batch_of_none_takes_nothing(world: World, queue: Queue) -> None:
    """E2"""
    await queue.enqueue("q", b"")
    before = world.wire.entries
    assert await queue.claim_many("q", 0) == []
    assert world.wire.entries == before
    assert await queue.stats("q") == counts(pending=1)


async def test_a_job_is_found_after_many_empty_polls(world: World, queue: Queue) -> None:
    """E3, E4"""
    before = world.wire.entries
    for _ in range(5):
        assert await queue.claim("q") is None
    assert world.wire.entries == before
    await queue.enqueue_many("q", [b"1", b"2"])
    assert await drain(queue) == [b"1", b"2"]
    assert await queue.claim("q") is None
    await queue.enqueue_many("q", [b"3", b"4"])
    assert await drain(queue) == [b"3", b"4"]


async def test_a_job_is_found_after_a_batch_ran_dry(queue: Queue) -> None:
    """E5"""
    await queue.enqueue("q", b"1")
    assert len(await queue.claim_many("q", 10)) == 1
    await queue.enqueue("q", b"2")
    assert (await take(queue)).job.payload == b"2"


async def test_a_retried_job_is_found_after_an_empty_poll(world: World) -> None:
    """E6"""
    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue("q", b"1")
    claim = await take(queue)
    assert await queue.claim("q") is None
    await queue.nack(claim, "again")
    assert (await take(queue)).job.payload == b"1"


async def test_a_reaped_job_is_found_behind_later_ones(world: World, queue: Queue) -> None:
    """E7"""
    await queue.enqueue_many("q", [b"1", b"2", b"3"])
    await take(queue, lease=5)
    await queue.claim_many("q", 1, lease=60)
    await world.clock.advance(5)
    assert (await take(queue)).job.payload == b"1"


async def test_producers_and_consumers_strand_nothing(world: World) -> None:
    """E8"""
    queue = await world.open(config=NO_BACKOFF)
    seen: list[bytes] = []

    async def produce(number: int) -> None:
        for n in range(25):
            await queue.enqueue("q", b"%d.%d" % (number, n), priority=n % 3)

    async def consume() -> None:
        while len(seen) < 200:
            claim = await queue.claim("q")
            if claim is None:
                await asyncio.sleep(0)
            elif claim.job.attempts == 1 and claim.job.payload.endswith(b"7"):
                await queue.nack(claim, "again")
            else:
                await queue.ack(claim)
                seen.append(claim.job.payload)

    await asyncio.gather(*map(produce, range(8)), *(consume() for _ in range(8)))
    assert len(set(seen)) == len(seen) == 200
    assert await queue.stats("q") == counts(done=200)


async def test_a_job_that_arrives_during_a_claim_comes_next(world: World, queue: Queue) -> None:
    """E9"""
    await queue.enqueue_many("q", [b"1", b"2"])
    world.wire.hold()
    claiming = await started(world, queue.claim("q"))
    urgent = await started(world, queue.enqueue("q", b"urgent", priority=1))
    world.wire.release()
    assert (await claiming) is not None
    await urgent
    assert await drain(queue) == [b"urgent", b"2"]


async def test_of_two_concurrent_claims_one_has_the_job(queue: Queue) -> None:
    """E10"""
    await queue.enqueue("q", b"")
    claims = await asyncio.gather(queue.claim("q"), queue.claim("q"))
    assert [type(claim) for claim in claims].count(Claim) == 1
    assert await queue.stats("q") == counts(claimed=1)


async def test_claims_on_different_queues_do_not_wait_for_each_other(
    world: World, queue: Queue
) -> None:
    """E11"""
    for name in ("a", "b", "c"):
        await queue.enqueue(name, name.encode())
    before = world.wire.entries
    claims = await asyncio.gather(*(take(queue, name) for name in ("a", "b", "c")))
    assert [claim.job.payload for claim in claims] == [b"a", b"b", b"c"]
    assert world.wire.entries - before <= 2


async def test_the_lease_is_that_of_the_queue(world: World) -> None:
    """E16"""
    queue = await world.open(queues={"q": QueueConfig(lease=5)})
    await queue.enqueue("q", b"")
    claim = await take(queue)
    await world.clock.advance(4.75)
    assert claim.is_live
    await world.clock.advance(0.25)
    assert not claim.is_live


async def test_a_dropped_claim_holds_its_job(world: World, queue: Queue) -> None:
    """E17"""
    await queue.enqueue("q", b"")
    await queue.claim("q")
    await world.clock.advance(29)
    assert await queue.stats("q") == counts(claimed=1)


async def test_a_job_that_was_read_is_no_claim(queue: Queue) -> None:
    """E23"""
    enqueued = await queue.enqueue("q", b"")
    await take(queue)
    job = await read(queue, enqueued.job_id)
    for settle in (queue.ack, lambda x: queue.nack(x, ""), lambda x: queue.dead_letter(x, "")):
        with pytest.raises(InvalidType, match="cannot be settled"):
            await settle(job)  # type: ignore[arg-type]
    assert await queue.stats("q") == counts(claimed=1)


@pytest.mark.parametrize("claim_first", [True, False])
async def test_a_cancel_and_a_claim_agree_on_who_was_first(queue: Queue, claim_first: bool) -> None:
    """E24"""
    job_id = (await queue.enqueue("q", b"")).job_id
    calls = [queue.claim("q"), queue.cancel(job_id)]
    if claim_first:
        claim, cancel = await asyncio.gather(*calls)
        assert isinstance(claim, Claim)
        assert claim.cancel_token.is_cancelled
        assert cancel.outcome is CancelOutcome.REQUESTED  # type: ignore[union-attr]
        assert await queue.stats("q") == counts(claimed=1)
    else:
        cancel, claim = await asyncio.gather(*reversed(calls))
        assert claim is None
        assert cancel.outcome is CancelOutcome.REMOVED  # type: ignore[union-attr]
        assert await queue.stats("q") == counts()


async def test_a_claim_is_handed_out_only_when_it_is_stored(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"")
    world.wire.hold()
    claiming = await started(world, queue.claim("q"))
    assert not claiming.done()
    world.wire.release()
    claim = await claiming
    assert claim is not None
    queue = await world.crash()
    assert (await read(queue, claim.job.id)).attempts == 1


async def test_an_attempt_is_counted_by_every_claim(world: World) -> None:
    queue = await world.open(config=QueueConfig(backoff_base=0, max_attempts=5))
    await queue.enqueue("q", b"")
    for attempt in range(1, 5):
        claim = await take(queue)
        assert claim.job.attempts == attempt
        assert not claim.job.is_last_attempt
        await queue.nack(claim, "again")
    assert (await take(queue)).job.is_last_attempt


async def test_a_cancelled_claim_gives_its_job_back(world: World, queue: Queue) -> None:
    job_id = (await queue.enqueue("q", b"")).job_id
    world.wire.hold()
    claiming = await started(world, queue.claim("q"))
    await cancelled(world, claiming)
    world.wire.release()
    assert await queue.stats("q") == counts(pending=1)
    job = await read(queue, job_id)
    assert (job.state, job.attempts, job.claimed_at) == (JobState.PENDING, 0, None)
    queue = await world.crash()
    assert (await read(queue, job_id)).attempts == 0
    assert (await take(queue)).job.attempts == 1


@pytest.mark.parametrize("steps", range(12))
async def test_a_claim_cancelled_at_any_moment_strands_nothing(
    world: World, queue: Queue, steps: int
) -> None:
    await queue.enqueue_many("q", [b"1", b"2", b"3"])
    task = await cancel_after(steps, lambda: queue.claim_many("q", 2))
    if task.cancelled():
        assert await queue.stats("q") == counts(pending=3)
        assert await drain(queue) == [b"1", b"2", b"3"]
    else:
        assert [claim.job.payload for claim in task.result()] == [b"1", b"2"]
        assert await queue.stats("q") == counts(pending=1, claimed=2)
    await world.clock.advance(60)
    queue = await world.crash()
    stats = await queue.stats("q")
    assert stats.claimed == 0
    assert stats.pending + stats.done == 3


@pytest.mark.parametrize("steps", range(12))
async def test_an_enqueue_cancelled_at_any_moment_is_whole_or_not_at_all(
    world: World, queue: Queue, steps: int
) -> None:
    await cancel_after(steps, lambda: queue.enqueue_many("q", [b"1", b"2"]))
    before = await queue.stats("q")
    assert before in (counts(), counts(pending=2))
    queue = await world.crash()
    assert await queue.stats("q") == before
    assert await drain(queue) == [b"1", b"2"][: before.pending]


@pytest.mark.parametrize("steps", range(12))
async def test_an_ack_cancelled_at_any_moment_leaves_nothing_half_done(
    world: World, queue: Queue, steps: int
) -> None:
    from taquba.queue import Effects

    await queue.enqueue("q", b"")
    claim = await take(queue)
    effects = Effects().enqueue("next", b"").put("key", b"1")
    await cancel_after(steps, lambda: queue.ack(claim, effects))
    stats = await queue.stats("q")
    if stats == counts(done=1):
        assert not claim.is_live
        assert await queue.stats("next") == counts(pending=1)
        assert await queue.kv.get("key") == b"1"
    else:
        assert stats == counts(claimed=1)
        assert await queue.stats("next") == counts()
        assert await queue.kv.get("key") is None
        await queue.ack(claim, effects)
    queue = await world.crash()
    assert await queue.stats("q") == counts(done=1)
    assert await queue.stats("next") == counts(pending=1)


async def test_callers_that_are_cancelled_do_not_disturb_others(world: World, queue: Queue) -> None:
    world.wire.hold()
    tasks = [await started(world, queue.enqueue("q", b"%d" % n)) for n in range(4)]
    await cancelled(world, tasks[0])
    await cancelled(world, tasks[2])
    assert not tasks[1].done()
    assert not tasks[3].done()
    world.wire.release()
    await asyncio.gather(tasks[1], tasks[3])
    # A cancelled caller does not know whether its job was added. Here all were.
    assert await queue.stats("q") == counts(pending=4)
