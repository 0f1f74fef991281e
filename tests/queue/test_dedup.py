"""Dedup keys: held from the enqueue to the first claim."""

from __future__ import annotations

import asyncio

import pytest

from taquba import Queue
from taquba.queue import Effects
from tests.queue.harness import NO_BACKOFF, World, cancelled, counts, drain, read, started, take

pytestmark = pytest.mark.anyio


async def test_a_second_job_with_the_key_of_a_waiting_one_is_not_added(queue: Queue) -> None:
    """C1, C2"""
    first = await queue.enqueue("q", b"first", dedup_key="K")
    second = await queue.enqueue("q", b"second", dedup_key="K", priority=1, headers={"a": "b"})
    assert (first.created, second.created) == (True, False)
    assert second.job_id == first.job_id
    assert await queue.stats("q") == counts(pending=1)
    job = (await take(queue)).job
    assert (job.payload, job.priority, job.headers) == (b"first", 1000, {})


async def test_a_scheduled_job_holds_its_key(queue: Queue) -> None:
    """C3"""
    first = await queue.enqueue("q", b"", dedup_key="K", delay=60)
    assert (await queue.enqueue("q", b"", dedup_key="K")).job_id == first.job_id
    assert await queue.claim("q") is None
    assert await queue.stats("q") == counts(scheduled=1)


async def test_a_job_that_became_due_still_holds_its_key(world: World, queue: Queue) -> None:
    """C4"""
    first = await queue.enqueue("q", b"", dedup_key="K", delay=60)
    await world.clock.advance(60)
    assert await queue.stats("q") == counts(pending=1)
    assert (await queue.enqueue("q", b"", dedup_key="K")).job_id == first.job_id


async def test_the_first_claim_frees_the_key(queue: Queue) -> None:
    """C5, C11"""
    first = await queue.enqueue("q", b"", dedup_key="K")
    claim = await take(queue)
    assert claim.job.dedup_key is None
    assert (await read(queue, first.job_id)).dedup_key is None
    second = await queue.enqueue("q", b"", dedup_key="K")
    assert second.created
    assert second.job_id != first.job_id
    assert (await read(queue, second.job_id)).dedup_key == "K"


async def test_cancelling_frees_the_key(queue: Queue) -> None:
    """C7"""
    for delay in (None, 60):
        first = await queue.enqueue("q", b"", dedup_key="K", delay=delay)
        await queue.cancel(first.job_id)
    assert (await queue.enqueue("q", b"", dedup_key="K")).created


async def test_a_retried_job_does_not_free_the_key_of_a_newer_one(world: World) -> None:
    """C8"""
    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue("q", b"1", dedup_key="K")
    await queue.nack(await take(queue), "again")
    second = await queue.enqueue("q", b"2", dedup_key="K")
    again = await take(queue)
    assert again.job.payload == b"1"
    third = await queue.enqueue("q", b"3", dedup_key="K")
    assert (third.job_id, third.created) == (second.job_id, False)


async def test_a_job_that_backs_off_holds_no_key(queue: Queue) -> None:
    """C9"""
    await queue.enqueue("q", b"", dedup_key="K")
    await queue.nack(await take(queue), "again")
    assert await queue.stats("q") == counts(scheduled=1)
    assert (await queue.enqueue("q", b"", dedup_key="K")).created


async def test_cancelling_a_retried_job_leaves_the_key_to_the_newer_one(world: World) -> None:
    """C10"""
    queue = await world.open(config=NO_BACKOFF)
    first = await queue.enqueue("q", b"1", dedup_key="K")
    await queue.nack(await take(queue), "again")
    second = await queue.enqueue("q", b"2", dedup_key="K")
    await queue.cancel(first.job_id)
    assert (await queue.enqueue("q", b"3", dedup_key="K")).job_id == second.job_id


async def test_a_key_belongs_to_one_queue(queue: Queue) -> None:
    """C12"""
    assert (await queue.enqueue("a", b"", dedup_key="K")).created
    assert (await queue.enqueue("b", b"", dedup_key="K")).created


async def test_a_revived_job_holds_no_key(queue: Queue) -> None:
    """C13"""
    first = await queue.enqueue("q", b"", dedup_key="K")
    await queue.dead_letter(await take(queue), "no")
    await queue.requeue_dead(first.job_id)
    assert (await queue.enqueue("q", b"", dedup_key="K")).created


async def test_a_reaped_job_holds_no_key(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"", dedup_key="K")
    await take(queue)
    await world.clock.advance(30)
    assert await queue.stats("q") == counts(pending=1)
    assert (await queue.enqueue("q", b"", dedup_key="K")).created


async def test_the_key_is_looked_at_before_the_id(queue: Queue) -> None:
    """C14"""
    first = await queue.enqueue("q", b"", dedup_key="K", job_id="X")
    assert (await queue.enqueue("q", b"", dedup_key="K", job_id="X")).job_id == first.job_id


async def test_concurrent_enqueues_with_one_key_make_one_job(queue: Queue) -> None:
    """C15"""
    results = await asyncio.gather(
        *(queue.enqueue("q", b"%d" % n, dedup_key="K") for n in range(10))
    )
    assert len({each.job_id for each in results}) == 1
    assert [each.created for each in results].count(True) == 1
    assert await queue.stats("q") == counts(pending=1)


async def test_a_claim_that_was_not_stored_frees_no_key(world: World, queue: Queue) -> None:
    """C16"""
    first = await queue.enqueue("q", b"", dedup_key="K")
    world.wire.hold()
    claiming = await started(world, queue.claim("q"))
    queue = await world.crash()
    assert (await queue.enqueue("q", b"", dedup_key="K")).job_id == first.job_id
    claiming.cancel()


async def test_a_hit_is_reported_only_when_the_first_job_is_stored(
    world: World, queue: Queue
) -> None:
    world.wire.hold()
    first = await started(world, queue.enqueue("q", b"", dedup_key="K"))
    second = await started(world, queue.enqueue("q", b"", dedup_key="K"))
    assert not second.done()
    await cancelled(world, first)
    world.wire.release()
    assert not (await second).created
    queue = await world.crash()
    assert await queue.stats("q") == counts(pending=1)


async def test_an_empty_key_is_a_key(queue: Queue) -> None:
    await queue.enqueue("q", b"", dedup_key="")
    assert not (await queue.enqueue("q", b"", dedup_key="")).created


async def test_keys_that_change_hands_within_one_commit_survive_a_crash(
    world: World, queue: Queue
) -> None:
    await queue.enqueue("q", b"1", dedup_key="K")
    await queue.enqueue("q", b"2", dedup_key="L")
    before = world.wire.entries
    with queue.transaction() as tx:
        lane = queue._core.lane("q")
        tx.claim(lane, 2, 30)
        tx.apply(Effects().enqueue("q", b"3", dedup_key="L").enqueue("q", b"4", dedup_key="K"))
    await tx.durable()
    assert world.wire.entries == before + 1
    queue = await world.crash()
    assert not (await queue.enqueue("q", b"", dedup_key="K")).created
    assert not (await queue.enqueue("q", b"", dedup_key="L")).created
    assert await drain(queue) == [b"1", b"2", b"3", b"4"]
