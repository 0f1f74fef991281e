"""Jobs that are made claimable before their time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from taquba import Queue, QueueConfig
from taquba.errors import InvalidType, ValueTooLarge
from taquba.queue import MAX_WAKE_PAYLOAD_SIZE, CancelOutcome, WakeOutcome, Woken
from tests.queue.harness import NO_BACKOFF, World, counts, die, read, started, take

pytestmark = pytest.mark.anyio

WOKEN, NOT_SCHEDULED, NOT_FOUND = map(Woken, WakeOutcome)


async def test_a_scheduled_job_is_woken_with_bytes(world: World, queue: Queue) -> None:
    """D8"""
    job_id = (await queue.enqueue("q", b"x", delay=3600)).job_id
    await world.clock.advance(5)
    assert await queue.wake(job_id, b"reply") == WOKEN
    assert await queue.stats("q") == counts(pending=1)
    claim = await take(queue)
    assert claim.job.id == job_id
    assert claim.job.wake_payload == b"reply"
    assert claim.job.woken_at == claim.job.enqueued_at + timedelta(seconds=5)
    assert claim.job.run_at is None
    assert await read(queue, job_id) == claim.job


async def test_a_wake_without_bytes(queue: Queue) -> None:
    """D9; and empty bytes are bytes."""
    job_id = (await queue.enqueue("q", b"x", delay=3600)).job_id
    other = (await queue.enqueue("q", b"x", delay=3600)).job_id
    assert await queue.wake(job_id) == WOKEN
    assert await queue.wake(other, b"") == WOKEN
    first, second = await queue.claim_many("q", 2)
    assert first.job.woken_at is not None
    assert first.job.wake_payload is None
    assert second.job.wake_payload == b""


async def test_only_a_scheduled_job_is_woken(world: World) -> None:
    """D10"""
    queue = await world.open(config=QueueConfig(keep_done=60))
    dead = await die(queue)
    done = (await queue.enqueue("q", b"x")).job_id
    await queue.ack(await take(queue))
    claimed = (await queue.enqueue("q", b"x")).job_id
    await take(queue)
    pending = (await queue.enqueue("q", b"x")).job_id
    for job_id in (dead, done, claimed, pending):
        before = await read(queue, job_id)
        assert await queue.wake(job_id, b"late") == NOT_SCHEDULED
        assert await read(queue, job_id) == before


async def test_a_job_that_is_not_there_is_not_found(queue: Queue) -> None:
    """D11"""
    assert await queue.wake("nothing") == NOT_FOUND
    job_id = (await queue.enqueue("q", b"x", delay=3600)).job_id
    assert (await queue.cancel(job_id)).outcome is CancelOutcome.REMOVED
    assert await queue.wake(job_id) == NOT_FOUND


async def test_a_job_that_became_due_was_not_woken(world: World, queue: Queue) -> None:
    """D12"""
    job_id = (await queue.enqueue("q", b"x", delay=10)).job_id
    await world.clock.advance(10)
    assert await queue.wake(job_id, b"late") == NOT_SCHEDULED
    claim = await take(queue)
    assert (claim.job.woken_at, claim.job.wake_payload) == (None, None)


async def test_what_a_wake_attached_survives_retries_and_crashes(world: World) -> None:
    """D13"""
    queue = await world.open(config=NO_BACKOFF)
    job_id = (await queue.enqueue("q", b"x", delay=3600)).job_id
    await queue.wake(job_id, b"reply")
    woken_at = (await read(queue, job_id)).woken_at
    await queue.nack(await take(queue), "again")
    claim = await take(queue)
    assert (claim.job.woken_at, claim.job.wake_payload) == (woken_at, b"reply")
    assert claim.job.attempts == 2
    queue = await world.crash()
    claim = await take(queue)
    assert (claim.job.woken_at, claim.job.wake_payload) == (woken_at, b"reply")
    await queue.dead_letter(claim, "no")
    await queue.requeue_dead(job_id)
    claim = await take(queue)
    assert (claim.job.woken_at, claim.job.wake_payload) == (woken_at, b"reply")


async def test_a_wake_cuts_a_backoff_short_and_replaces_an_earlier_one(
    world: World, queue: Queue
) -> None:
    """D14, D15"""
    job_id = (await queue.enqueue("q", b"x", delay=3600)).job_id
    await queue.wake(job_id, b"reply")
    await queue.nack(await take(queue), "again", retry_after=600)
    assert await queue.claim("q") is None
    await world.clock.advance(1)
    assert await queue.wake(job_id) == WOKEN
    claim = await take(queue)
    assert claim.job.wake_payload is None
    assert claim.job.woken_at == claim.job.enqueued_at + timedelta(seconds=1)


async def test_a_wake_and_the_due_time_race_and_the_job_moves_once(
    world: World, queue: Queue
) -> None:
    """D16"""
    job_id = (await queue.enqueue("q", b"x", delay=10)).job_id
    waking = []
    for _ in range(3):
        await world.clock.advance(10 / 3)
        waking.append(asyncio.ensure_future(queue.wake(job_id)))
    outcomes = await asyncio.gather(*waking)
    assert outcomes.count(WOKEN) <= 1
    assert await queue.stats("q") == counts(pending=1)
    assert len(await queue.claim_many("q", 10)) == 1


async def test_a_woken_job_keeps_its_place_and_its_dedup_key(queue: Queue) -> None:
    """C4"""
    job_id = (await queue.enqueue("q", b"first", delay=3600, dedup_key="k")).job_id
    await queue.enqueue("q", b"second")
    await queue.wake(job_id)
    again = await queue.enqueue("q", b"third", dedup_key="k")
    assert (again.job_id, again.created) == (job_id, False)
    assert [claim.job.payload for claim in await queue.claim_many("q", 9)] == [b"first", b"second"]


async def test_a_wake_is_durable_when_it_returns(world: World, queue: Queue) -> None:
    job_id = (await queue.enqueue("q", b"x", delay=3600)).job_id
    world.wire.hold()
    waking = await started(world, queue.wake(job_id, b"reply"))
    asking = await started(world, queue.wake(job_id, b"reply"))
    assert not waking.done()
    assert not asking.done(), "that the job is not scheduled any more can still be lost"
    world.wire.release()
    assert await waking == WOKEN
    assert await asking == NOT_SCHEDULED
    queue = await world.crash()
    assert (await take(queue)).job.wake_payload == b"reply"


async def test_the_bytes_of_a_wake_have_their_limit(queue: Queue) -> None:
    job_id = (await queue.enqueue("q", b"x", delay=3600)).job_id
    with pytest.raises(ValueTooLarge, match="262,145"):
        await queue.wake(job_id, bytes(MAX_WAKE_PAYLOAD_SIZE + 1))
    with pytest.raises(InvalidType):
        await queue.wake(job_id, "text")  # type: ignore[arg-type]
    assert await queue.stats("q") == counts(scheduled=1)
    assert await queue.wake(job_id, bytes(MAX_WAKE_PAYLOAD_SIZE)) == WOKEN
