"""Dead jobs and their revival."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from taquba import JobState, Queue, QueueConfig
from taquba.errors import InvalidState, JobNotFound
from tests.queue.harness import World, counts, die, drain, read, take

pytestmark = pytest.mark.anyio


async def test_a_revived_job_starts_afresh(world: World, queue: Queue) -> None:
    """I1, I5"""
    enqueued = await queue.enqueue("q", b"data", priority=7, headers={"a": "b"})
    before = await read(queue, enqueued.job_id)
    await queue.nack(await take(queue), "no")
    await world.clock.advance(10)
    await queue.dead_letter(await take(queue), "no")
    await queue.requeue_dead(enqueued.job_id)
    assert await read(queue, enqueued.job_id) == before
    claim = await take(queue)
    assert (claim.job.attempts, claim.job.last_error, claim.job.failed_at) == (1, None, None)
    assert await queue.stats("q") == counts(claimed=1)


async def test_a_revived_job_has_its_old_place(queue: Queue) -> None:
    job_id = await die(queue, payload=b"old")
    await queue.enqueue("q", b"new")
    await queue.requeue_dead(job_id)
    assert await drain(queue) == [b"old", b"new"]


@pytest.mark.parametrize("state", ["pending", "claimed", "scheduled", "done"])
async def test_only_a_dead_job_can_be_revived(world: World, state: str) -> None:
    """I2"""
    queue = await world.open(config=QueueConfig(keep_done=60))
    delay = 60 if state == "scheduled" else None
    job_id = (await queue.enqueue("q", b"", delay=delay)).job_id
    if state in ("claimed", "done"):
        claim = await take(queue)
        if state == "done":
            await queue.ack(claim)
    before = await queue.stats("q"), await queue.get_job(job_id)
    with pytest.raises(InvalidState, match=state):
        await queue.requeue_dead(job_id)
    assert (await queue.stats("q"), await queue.get_job(job_id)) == before


async def test_a_job_that_is_not_there_cannot_be_revived(world: World) -> None:
    """I3"""
    queue = await world.open(config=QueueConfig(keep_dead=60))
    job_id = await die(queue)
    await world.clock.advance(60)
    for unknown in (job_id, "never-was"):
        with pytest.raises(JobNotFound, match=unknown):
            await queue.requeue_dead(unknown)
    assert await queue.stats("q") == counts()


async def test_a_revival_and_a_sweep_do_not_both_happen(world: World) -> None:
    """I4"""
    queue = await world.open(config=QueueConfig(keep_dead=60))
    job_id = await die(queue)
    await world.clock.advance(59)
    _, result = await asyncio.gather(
        world.clock.advance(1), queue.requeue_dead(job_id), return_exceptions=True
    )
    if result is None:
        assert await queue.stats("q") == counts(pending=1)
    else:
        assert isinstance(result, JobNotFound)
        assert await queue.stats("q") == counts()


async def test_a_job_that_dies_again_is_kept_for_a_whole_window_again(world: World) -> None:
    """I6"""
    queue = await world.open(config=QueueConfig(keep_dead=timedelta(minutes=1)))
    job_id = await die(queue)
    await world.clock.advance(50)
    await queue.requeue_dead(job_id)
    await queue.dead_letter(await take(queue), "again")
    await world.clock.advance(59)
    assert (await read(queue, job_id)).state is JobState.DEAD
    await world.clock.advance(1)
    assert await queue.get_job(job_id) is None


async def test_of_two_concurrent_revivals_one_succeeds(queue: Queue) -> None:
    """I8"""
    job_id = await die(queue)
    results = await asyncio.gather(
        queue.requeue_dead(job_id), queue.requeue_dead(job_id), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["InvalidState", "NoneType"]
    assert await queue.stats("q") == counts(pending=1)


async def test_the_hook_is_told_of_jobs_that_die_without_a_worker_s_doing(world: World) -> None:
    queue = await world.open(config=QueueConfig(max_attempts=1))
    told: list[tuple[str, str | None]] = []

    queue.set_dead_letter_hook("q", lambda tx, job: told.append((job.id, job.last_error)))
    await die(queue)
    expired = (await queue.enqueue("q", b"")).job_id
    await take(queue, lease=1)
    await world.clock.advance(1)
    assert told == [(expired, "lease expired")]
    queue.set_dead_letter_hook("q", None)
    await queue.enqueue("q", b"")
    await take(queue, lease=1)
    await world.clock.advance(1)
    assert len(told) == 1
