"""How long records of finished and dead jobs are kept."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taquba import JobState, Queue, QueueConfig
from tests.queue.harness import World, counts, die, read, take

pytestmark = pytest.mark.anyio


async def finish(queue: Queue, name: str, **options: float) -> str:
    """Enqueue and acknowledge a job; its id."""
    await queue.enqueue(name, b"", **options)  # type: ignore[arg-type]
    claim = await take(queue, name)
    await queue.ack(claim)
    return claim.job.id


async def test_a_done_record_is_kept_where_that_is_configured(world: World) -> None:
    """Q1, Q6"""
    queue = await world.open(queues={"keeping": QueueConfig(keep_done=60)})
    kept = await finish(queue, "keeping")
    gone = await finish(queue, "q")
    assert await queue.get_job(gone) is None
    await world.clock.advance(59)
    assert (await read(queue, kept)).state is JobState.DONE
    await world.clock.advance(1)
    assert await queue.get_job(kept) is None
    assert await queue.stats("keeping") == counts(done=1)


async def test_age_counts_from_the_end_and_not_from_the_enqueue(world: World) -> None:
    """Q2"""
    queue = await world.open(config=QueueConfig(keep_done=60))
    await queue.enqueue("q", b"", delay=timedelta(days=7))
    await world.clock.advance(timedelta(days=7))
    claim = await take(queue)
    await queue.ack(claim)
    await world.clock.advance(59)
    assert await queue.get_job(claim.job.id) is not None
    await world.clock.advance(1)
    assert await queue.get_job(claim.job.id) is None


async def test_a_dead_record_is_kept_for_its_window(world: World) -> None:
    """Q3"""
    queue = await world.open(config=QueueConfig(keep_dead=60))
    job_id = await die(queue)
    await world.clock.advance(59)
    assert await queue.stats("q") == counts(dead=1)
    await world.clock.advance(1)
    assert await queue.get_job(job_id) is None
    assert await queue.stats("q") == counts()


async def test_a_dead_job_is_kept_for_a_week_by_default(world: World, queue: Queue) -> None:
    job_id = await die(queue)
    await world.clock.advance(timedelta(days=7) - timedelta(seconds=1))
    assert await queue.get_job(job_id) is not None
    await world.clock.advance(1)
    assert await queue.get_job(job_id) is None


@pytest.mark.parametrize("long_first", [True, False])
async def test_every_queue_has_its_own_window_for_the_dead(world: World, long_first: bool) -> None:
    """Q4"""
    queue = await world.open(
        queues={"short": QueueConfig(keep_dead=60), "long": QueueConfig(keep_dead=86_400)}
    )
    jobs: dict[str, str] = {}
    for name in ("long", "short") if long_first else ("short", "long"):
        jobs[name] = await die(queue, name)
        await world.clock.advance(1)
    await world.clock.advance(60)
    assert await queue.get_job(jobs["short"]) is None
    assert await queue.get_job(jobs["long"]) is not None
    await world.clock.advance(86_400)
    assert await queue.get_job(jobs["long"]) is None


@pytest.mark.parametrize("long_first", [True, False])
async def test_every_queue_has_its_own_window_for_the_done(world: World, long_first: bool) -> None:
    """Q5"""
    queue = await world.open(
        queues={"short": QueueConfig(keep_done=60), "long": QueueConfig(keep_done=86_400)}
    )
    jobs: dict[str, str] = {}
    for name in ("long", "short") if long_first else ("short", "long"):
        jobs[name] = await finish(queue, name)
        await world.clock.advance(1)
    await world.clock.advance(60)
    assert await queue.get_job(jobs["short"]) is None
    assert await queue.get_job(jobs["long"]) is not None


async def test_the_dead_can_be_kept_for_ever(world: World) -> None:
    """Q7"""
    queue = await world.open(config=QueueConfig(keep_dead=None))
    job_id = await die(queue)
    await world.clock.advance(timedelta(days=10_000))
    assert await queue.get_job(job_id) is not None
    assert world.clock.sleeping == 0


async def test_records_can_be_kept_for_an_endless_time(world: World) -> None:
    queue = await world.open(config=QueueConfig(keep_dead=float("inf"), keep_done=float("inf")))
    jobs = [await die(queue), await finish(queue, "q")]
    await world.clock.advance(timedelta(days=1000))
    for job_id in jobs:
        assert await queue.get_job(job_id) is not None


async def test_records_can_be_kept_for_no_time(world: World) -> None:
    queue = await world.open(config=QueueConfig(keep_dead=0, keep_done=0))
    jobs = [await die(queue), await finish(queue, "q")]
    await world.clock.advance(0)
    for job_id in jobs:
        assert await queue.get_job(job_id) is None
    assert await queue.stats("q") == counts(done=1)


async def test_windows_are_those_of_the_present_configuration(world: World) -> None:
    queue = await world.open(config=QueueConfig(keep_dead=None))
    job_id = await die(queue)
    await world.clock.advance(100)
    queue = await world.crash(config=QueueConfig(keep_dead=60))
    await world.clock.advance(0)
    assert await queue.get_job(job_id) is None


async def test_a_crowd_of_old_records_goes(world: World) -> None:
    queue = await world.open(config=QueueConfig(keep_done=60, keep_dead=60))
    await queue.enqueue_many("q", [b""] * 1300)
    claims = await queue.claim_many("q", 1300)
    with queue.transaction() as tx:
        for n, claim in enumerate(claims):
            if n % 2:
                tx.ack(claim)
            else:
                tx.dead_letter(claim, "no")
    await tx.durable()
    await world.clock.advance(60)
    assert await queue.stats("q") == counts(done=650)
    assert await queue.read("SELECT count(*) FROM jobs") == [(0,)]


async def test_a_revived_job_is_not_swept(world: World) -> None:
    queue = await world.open(config=QueueConfig(keep_dead=60))
    job_id = await die(queue)
    await queue.requeue_dead(job_id)
    await world.clock.advance(60)
    assert await queue.stats("q") == counts(pending=1)
