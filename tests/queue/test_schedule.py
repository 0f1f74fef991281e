"""Jobs for later."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from taquba import JobState, Queue, QueueConfig
from taquba.clock import ManualClock
from tests.queue.harness import World, counts, drain, read, take

pytestmark = pytest.mark.anyio


def now(clock: ManualClock) -> datetime:
    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC)


async def test_a_job_for_later_is_not_claimable(world: World, queue: Queue) -> None:
    """D1"""
    due = now(world.clock) + timedelta(hours=1)
    enqueued = await queue.enqueue("q", b"", run_at=due)
    assert await queue.claim("q") is None
    assert await queue.stats("q") == counts(scheduled=1)
    job = await read(queue, enqueued.job_id)
    assert (job.state, job.run_at) == (JobState.SCHEDULED, due)


@pytest.mark.parametrize("ago", [0, 0.001, 3600, 100 * 365 * 86400])
async def test_a_time_that_has_come_means_at_once(world: World, queue: Queue, ago: float) -> None:
    """D2"""
    enqueued = await queue.enqueue("q", b"", run_at=now(world.clock) - timedelta(seconds=ago))
    job = await read(queue, enqueued.job_id)
    assert (job.state, job.run_at) == (JobState.PENDING, None)


async def test_the_earliest_and_latest_times_are_fine(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"", run_at=datetime.min.replace(tzinfo=UTC))
    await queue.enqueue("q", b"", run_at=datetime.min.replace(tzinfo=timezone(timedelta(hours=14))))
    assert await queue.stats("q") == counts(pending=2)
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    enqueued = await queue.enqueue("q", b"", run_at=last)
    assert (await read(queue, enqueued.job_id)).run_at == last


async def test_no_delay_means_at_once(queue: Queue) -> None:
    await queue.enqueue("q", b"", delay=0)
    await queue.enqueue("q", b"", delay=timedelta(0))
    assert await queue.stats("q") == counts(pending=2)


@pytest.mark.parametrize("how", ["run_at", "delay", "timedelta"])
async def test_a_job_becomes_pending_when_it_is_due(world: World, queue: Queue, how: str) -> None:
    """D3, D7"""
    options = {
        "run_at": {"run_at": now(world.clock) + timedelta(milliseconds=100)},
        "delay": {"delay": 0.1},
        "timedelta": {"delay": timedelta(milliseconds=100)},
    }[how]
    enqueued = await queue.enqueue("q", b"", **options)
    await world.clock.advance(0.099)
    assert await queue.stats("q") == counts(scheduled=1)
    await world.clock.advance(0.001)
    assert await queue.stats("q") == counts(pending=1)
    assert (await read(queue, enqueued.job_id)).run_at is None


async def test_a_job_is_never_early_by_a_rounding(world: World, queue: Queue) -> None:
    start = now(world.clock)
    dues = [start + timedelta(milliseconds=n) for n in range(1, 1000, 7)]
    for due in dues:
        enqueued = await queue.enqueue("q", b"", run_at=due)
        assert (await read(queue, enqueued.job_id)).run_at == due


async def test_a_time_between_two_milliseconds_is_the_later_one(world: World, queue: Queue) -> None:
    due = now(world.clock) + timedelta(microseconds=1500)
    enqueued = await queue.enqueue("q", b"", run_at=due)
    assert (await read(queue, enqueued.job_id)).run_at == due + timedelta(microseconds=500)


async def test_a_time_of_another_zone_is_the_same_moment(world: World, queue: Queue) -> None:
    due = now(world.clock) + timedelta(hours=1)
    enqueued = await queue.enqueue(
        "q", b"", run_at=due.astimezone(timezone(timedelta(hours=5, minutes=30)))
    )
    assert (await read(queue, enqueued.job_id)).run_at == due


async def test_nothing_to_schedule_means_no_timer(world: World, queue: Queue) -> None:
    """D4"""
    await world.clock.advance(timedelta(days=365))
    assert world.clock.sleeping == 0
    before = world.wire.entries
    await world.clock.advance(timedelta(days=365))
    assert world.wire.entries == before


async def test_an_idle_scheduler_notices_a_new_job(world: World, queue: Queue) -> None:
    """D5"""
    await world.clock.advance(timedelta(days=1))
    await queue.enqueue("q", b"", delay=2)
    await world.clock.advance(2)
    assert await queue.stats("q") == counts(pending=1)


async def test_an_idle_scheduler_notices_a_retry(world: World, queue: Queue) -> None:
    """D6"""
    await queue.enqueue("q", b"")
    await world.clock.advance(timedelta(days=1))
    await queue.nack(await take(queue), "again")
    await world.clock.advance(1)
    assert await queue.stats("q") == counts(pending=1)


async def test_a_job_due_sooner_is_noticed_while_waiting_for_a_later_one(
    world: World, queue: Queue
) -> None:
    await queue.enqueue("q", b"late", delay=100)
    await world.clock.advance(1)
    await queue.enqueue("q", b"soon", delay=1)
    await world.clock.advance(1)
    assert await queue.stats("q") == counts(pending=1, scheduled=1)
    assert await drain(queue) == [b"soon"]
    await world.clock.advance(98)
    assert await drain(queue) == [b"late"]


async def test_due_jobs_of_all_queues_become_pending(world: World, queue: Queue) -> None:
    """D18"""
    for name in ("a", "b", "c"):
        await queue.enqueue(name, b"", delay=5)
    await world.clock.advance(5)
    for name in ("a", "b", "c"):
        assert await queue.stats(name) == counts(pending=1)


async def test_a_crowd_of_due_jobs_becomes_pending(world: World, queue: Queue) -> None:
    await queue.enqueue_many("q", [b"%d" % n for n in range(1234)], delay=5)
    await world.clock.advance(5)
    assert await queue.stats("q") == counts(pending=1234)


async def test_the_order_is_that_of_enqueueing_and_not_that_of_the_due_times(
    world: World, queue: Queue
) -> None:
    await queue.enqueue("q", b"1", delay=3)
    await queue.enqueue("q", b"2", delay=1)
    await world.clock.advance(3)
    assert await drain(queue) == [b"1", b"2"]


async def test_a_schedule_survives_a_crash(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"", delay=10)
    queue = await world.crash()
    assert await queue.stats("q") == counts(scheduled=1)
    await world.clock.advance(9)
    assert await queue.stats("q") == counts(scheduled=1)
    await world.clock.advance(1)
    assert await queue.stats("q") == counts(pending=1)


async def test_a_job_that_became_due_while_nobody_was_there_is_pending_at_open(
    world: World, queue: Queue
) -> None:
    await queue.enqueue("q", b"", delay=10)
    world.kill()
    await world.clock.advance(20)
    queue = await world.open()
    await world.clock.advance(0)
    assert await queue.stats("q") == counts(pending=1)


async def test_a_wall_clock_that_steps_forward_is_noticed_within_an_hour(
    world: World, queue: Queue
) -> None:
    await queue.enqueue("q", b"", delay=timedelta(days=10))
    await world.clock.advance(1)
    world.clock.shift_wall_clock(timedelta(days=11))
    await world.clock.advance(timedelta(hours=1))
    assert await queue.stats("q") == counts(pending=1)


async def test_a_wall_clock_that_steps_back_makes_jobs_due_later(
    world: World, queue: Queue
) -> None:
    await queue.enqueue("q", b"", delay=10)
    world.clock.shift_wall_clock(-5)
    await world.clock.advance(10)
    assert await queue.stats("q") == counts(scheduled=1)
    await world.clock.advance(5)
    assert await queue.stats("q") == counts(pending=1)


async def test_the_queue_s_clock_is_the_one_it_was_given(world: World, queue: Queue) -> None:
    """R18"""
    assert queue.clock is world.clock
    before = queue.clock.now_ms()
    await world.clock.advance(60)
    assert queue.clock.now_ms() == before + 60_000


async def test_a_backoff_of_other_queues_does_not_matter(world: World) -> None:
    """H17"""
    queue = await world.open(
        queues={
            "slow": QueueConfig(backoff_base=60, jitter=False),
            "fast": QueueConfig(backoff_base=2, jitter=False),
        }
    )
    for name in ("slow", "fast"):
        await queue.enqueue(name, b"")
        await queue.nack(await take(queue, name), "again")
    await world.clock.advance(2)
    assert await queue.stats("fast") == counts(pending=1)
    assert await queue.stats("slow") == counts(scheduled=1)
    await world.clock.advance(58)
    assert await queue.stats("slow") == counts(pending=1)
