"""Which job comes next."""

from __future__ import annotations

import pytest

from taquba import Queue, QueueConfig
from taquba.queue import MAX_PRIORITY, PRIORITY_HIGH, PRIORITY_LOW, PRIORITY_NORMAL
from tests.queue.harness import NO_BACKOFF, World, drain, read, take

pytestmark = pytest.mark.anyio


async def test_jobs_come_in_the_order_of_enqueueing(queue: Queue) -> None:
    """B1"""
    for payload in (b"1", b"2", b"3"):
        await queue.enqueue("q", payload)
    assert await drain(queue) == [b"1", b"2", b"3"]


async def test_a_batch_comes_in_the_order_of_enqueueing(queue: Queue) -> None:
    """B2"""
    payloads = [b"%d" % n for n in range(20)]
    for payload in payloads:
        await queue.enqueue("q", payload)
    assert [claim.job.payload for claim in await queue.claim_many("q", 20)] == payloads


async def test_a_lower_number_comes_first(queue: Queue) -> None:
    """B3"""
    for priority in (PRIORITY_LOW, PRIORITY_NORMAL, PRIORITY_HIGH):
        await queue.enqueue("q", b"%d" % priority, priority=priority)
    assert await drain(queue) == [b"100", b"1000", b"10000"]


async def test_one_priority_keeps_its_order_among_others(queue: Queue) -> None:
    """B4"""
    for n, priority in enumerate((5, 9, 5, 1, 5, 9)):
        await queue.enqueue("q", b"%d" % n, priority=priority)
    assert await drain(queue) == [b"3", b"0", b"2", b"4", b"1", b"5"]


async def test_priorities_go_from_0_to_the_largest(queue: Queue) -> None:
    """B5"""
    await queue.enqueue("q", b"last", priority=MAX_PRIORITY)
    await queue.enqueue("q", b"middle")
    await queue.enqueue("q", b"first", priority=0)
    assert await drain(queue) == [b"first", b"middle", b"last"]


@pytest.mark.parametrize("other", ["b", "aa"])
async def test_queues_are_apart(queue: Queue, other: str) -> None:
    """B6, B7"""
    await queue.enqueue(other, b"other")
    await queue.enqueue("a", b"mine")
    assert await drain(queue, "a") == [b"mine"]
    assert await drain(queue, other) == [b"other"]


async def test_a_retried_urgent_job_comes_first_again(world: World) -> None:
    """B8"""
    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue("q", b"urgent", priority=PRIORITY_HIGH)
    await queue.enqueue("q", b"normal")
    await queue.nack(await take(queue), "again")
    assert await drain(queue) == [b"urgent", b"normal"]


async def test_a_retried_job_keeps_its_place(world: World) -> None:
    """B9"""
    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue("q", b"1")
    claim = await take(queue)
    await queue.enqueue("q", b"2")
    await queue.nack(claim, "again")
    assert await drain(queue) == [b"1", b"2"]


async def test_a_priority_is_stored(world: World) -> None:
    """B10, B13"""
    queue = await world.open(queues={"mine": QueueConfig(default_priority=42)})
    chosen = await queue.enqueue("q", b"", priority=7)
    default = await queue.enqueue("q", b"")
    configured = await queue.enqueue("mine", b"")
    found = [(await read(queue, each.job_id)).priority for each in (chosen, default, configured)]
    assert found == [7, 1000, 42]


async def test_a_job_that_became_due_waits_behind_a_more_urgent_one(
    world: World, queue: Queue
) -> None:
    """B11"""
    await queue.enqueue("q", b"due", delay=1)
    await queue.enqueue("q", b"urgent", priority=PRIORITY_HIGH)
    await world.clock.advance(1)
    assert await drain(queue) == [b"urgent", b"due"]


async def test_an_urgent_job_overtakes_those_that_wait(queue: Queue) -> None:
    """B12"""
    await queue.enqueue_many("q", [b"1", b"2", b"3", b"4"])
    await queue.claim_many("q", 2)
    await queue.enqueue("q", b"urgent", priority=PRIORITY_HIGH)
    assert await drain(queue) == [b"urgent", b"3", b"4"]
