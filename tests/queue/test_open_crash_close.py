"""Opening, crashing, closing, being fenced."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from taquba import JobState, Queue, QueueConfig
from taquba.errors import ClaimLost, Closed, Fenced, TaqubaError
from taquba.objectstore import MemoryStore
from taquba.queue import PRIORITY_HIGH, CancelOutcome, Effects
from tests.queue.harness import NO_BACKOFF, World, counts, die, drain, read, started, take

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("how", ["close", "crash"])
async def test_a_claim_that_the_last_process_had_is_given_back(
    world: World, queue: Queue, how: str
) -> None:
    """G1, G15"""
    job_id = (await queue.enqueue("q", b"data")).job_id
    await take(queue)
    if how == "close":
        await queue.close()
    queue = await world.crash()
    assert await queue.stats("q") == counts(pending=1)
    job = await read(queue, job_id)
    assert (job.state, job.attempts, job.claimed_at, job.last_error) == (
        JobState.PENDING,
        1,
        None,
        None,
    )
    assert (await take(queue)).job.attempts == 2


async def test_an_interrupted_last_attempt_makes_the_job_dead(world: World, queue: Queue) -> None:
    """G2"""
    job_id = (await queue.enqueue("q", b"", max_attempts=2)).job_id
    for _ in range(2):
        await take(queue)
        queue = await world.crash()
    assert await queue.stats("q") == counts(dead=1)
    job = await read(queue, job_id)
    assert (job.state, job.attempts) == (JobState.DEAD, 2)
    assert job.last_error == "claim interrupted by process exit"
    assert job.failed_at is not None


async def test_a_claim_that_was_not_stored_counts_no_attempt(world: World, queue: Queue) -> None:
    """G3"""
    job_id = (await queue.enqueue("q", b"")).job_id
    world.wire.hold()
    claiming = await started(world, queue.claim("q"))
    queue = await world.crash()
    job = await read(queue, job_id)
    assert (job.state, job.attempts) == (JobState.PENDING, 0)
    claiming.cancel()


async def test_what_was_answered_survives_a_crash(world: World) -> None:
    """G4, K20"""
    queue = await world.open(config=NO_BACKOFF)
    dead = await die(queue)
    await queue.requeue_dead(dead)
    queue = await world.crash(config=NO_BACKOFF)
    assert (await read(queue, dead)).state is JobState.PENDING

    await queue.cancel(dead)
    queue = await world.crash(config=NO_BACKOFF)
    assert await queue.get_job(dead) is None

    await queue.enqueue("q", b"")
    claim = await take(queue)
    await queue.nack(claim, "why")
    queue = await world.crash(config=NO_BACKOFF)
    job = await read(queue, claim.job.id)
    assert (job.state, job.attempts, job.last_error) == (JobState.PENDING, 1, "why")

    await queue.ack(await take(queue), Effects().put("coupled", b"1").enqueue("next", b""))
    queue = await world.crash(config=NO_BACKOFF)
    assert await queue.get_job(claim.job.id) is None
    assert await queue.stats("q") == counts(done=1)
    assert await queue.stats("next") == counts(pending=1)

    await queue.kv.put("alone", b"2")
    await queue.kv.put("gone", b"3")
    await queue.kv.delete("gone")
    queue = await world.crash(config=NO_BACKOFF)
    found = [await queue.kv.get(key) for key in ("coupled", "alone", "gone")]
    assert found == [b"1", b"2", None]


async def test_interrupted_claims_of_all_queues_are_given_back(world: World, queue: Queue) -> None:
    """G5"""
    for name in ("a", "b", "c"):
        await queue.enqueue_many(name, [b""] * 3)
        await queue.claim_many(name, 2)
    queue = await world.crash()
    for name in ("a", "b", "c"):
        assert await queue.stats(name) == counts(pending=3)
        assert [claim.job.attempts for claim in await queue.claim_many(name, 3)] == [2, 2, 1]


async def test_jobs_keep_their_order_across_a_close(world: World, queue: Queue) -> None:
    """G6, G9"""
    await queue.enqueue_many("q", [b"1", b"2", b"3", b"4"])
    for claim in await queue.claim_many("q", 2):
        await queue.ack(claim)
    await queue.close()
    queue = await world.open()
    await queue.enqueue("q", b"5")
    queue = await world.crash()
    await queue.enqueue("q", b"6")
    assert await drain(queue) == [b"3", b"4", b"5", b"6"]


async def test_a_drained_queue_goes_on_after_a_close(world: World, queue: Queue) -> None:
    """G7"""
    await queue.enqueue("q", b"1")
    await drain(queue)
    await queue.close()
    queue = await world.open()
    await queue.enqueue("q", b"2")
    assert await drain(queue) == [b"2"]
    assert await queue.stats("q") == counts(done=2)


async def test_an_urgent_job_comes_first_after_a_close(world: World, queue: Queue) -> None:
    """G8"""
    await queue.enqueue_many("q", [b"1", b"2", b"3"])
    await queue.ack(await take(queue))
    await queue.close()
    queue = await world.open()
    await queue.enqueue("q", b"urgent", priority=PRIORITY_HIGH)
    assert await drain(queue) == [b"urgent", b"2", b"3"]


async def test_the_first_owner_is_fenced(world: World, queue: Queue) -> None:
    """G12"""
    await queue.enqueue("q", b"1")
    claim = await take(queue)
    second = await world.open()
    told: list[TaqubaError] = []
    queue.on_failure(told.append)
    with pytest.raises(Fenced):
        await queue.enqueue("q", b"2")
    assert isinstance(queue.failure, Fenced)
    assert [type(error) for error in told] == [Fenced]
    for call in (
        queue.enqueue("q", b""),
        queue.claim("q"),
        queue.ack(claim),
        queue.cancel("x"),
        queue.kv.put("a", b""),
        queue.kv.get("a"),
        queue.stats("q"),
        queue.get_job("x"),
    ):
        with pytest.raises(Fenced):
            await call
    await queue.close()
    assert second.failure is None
    assert await drain(second, "q") == [b"1"]


async def test_all_who_wait_are_told_of_the_fencing(world: World, queue: Queue) -> None:
    first = world.wire
    first.hold()
    waiting = [await started(world, queue.enqueue("q", b"")) for _ in range(5)]
    second = await world.open()
    first.release()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [Fenced] * 5
    assert await second.stats("q") == counts()


@pytest.mark.parametrize("how", ["fenced", "closed"])
async def test_claims_of_a_queue_that_stopped_are_not_live(
    world: World, queue: Queue, how: str
) -> None:
    await queue.enqueue("q", b"")
    claim = await take(queue)
    if how == "closed":
        await queue.close()
    else:
        await world.open()
        with pytest.raises(Fenced):
            await queue.kv.put("key", b"")
    assert not claim.is_live
    with pytest.raises(ClaimLost):
        claim.renew(60)
    with pytest.raises(ClaimLost):
        claim.ensure_at_least(60)


async def test_an_ack_that_was_not_stored_is_nothing_at_all(world: World) -> None:
    """G13, J23"""
    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue("q", b"")
    claim = await take(queue)
    world.wire.hold()
    effects = Effects().enqueue("next", b"").put("key", b"1")
    acking = await started(world, queue.ack(claim, effects))
    queue = await world.crash(config=NO_BACKOFF)
    assert await queue.stats("q") == counts(pending=1)
    assert await queue.stats("next") == counts()
    assert await queue.kv.get("key") is None
    await queue.ack(await take(queue), effects)
    assert await queue.stats("q") == counts(done=1)
    assert await queue.stats("next") == counts(pending=1)
    acking.cancel()


async def test_a_read_reports_only_what_is_stored(world: World, queue: Queue) -> None:
    world.wire.hold()
    writes = [
        await started(world, queue.enqueue("q", b"", job_id="X")),
        await started(world, queue.kv.put("key", b"1")),
    ]
    reads = [
        await started(world, queue.get_job("X")),
        await started(world, queue.stats("q")),
        await started(world, queue.kv.get("key")),
        await started(world, queue.read("SELECT id FROM jobs")),
    ]
    assert not any(read.done() for read in reads)
    assert queue.peek("SELECT id FROM jobs") == [("X",)]
    world.wire.release()
    await asyncio.gather(*writes)
    job, stats, value, rows = await asyncio.gather(*reads)
    assert job is not None
    assert (job.id, stats, value, rows) == ("X", counts(pending=1), b"1", [("X",)])


async def test_a_read_waits_for_nobody_when_all_is_stored(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"", job_id="X")
    world.wire.hold()
    assert await queue.get_job("X") is not None
    assert await queue.stats("q") == counts(pending=1)


async def test_closing_stores_what_is_committed(world: World, queue: Queue) -> None:
    enqueueing = asyncio.ensure_future(queue.enqueue("q", b"data"))
    await asyncio.sleep(0)
    await queue.close()
    await enqueueing
    queue = await world.open()
    assert await drain(queue) == [b"data"]


async def test_closing_twice_is_fine(queue: Queue) -> None:
    await asyncio.gather(queue.close(), queue.close())
    await queue.close()


async def test_a_closed_queue_says_so(queue: Queue) -> None:
    await queue.close()
    for call in (
        queue.enqueue("q", b""),
        queue.claim("q"),
        queue.stats("q"),
        queue.get_job("x"),
        queue.kv.get("x"),
        queue.kv.put("x", b""),
        queue.cancel("x"),
        queue.requeue_dead("x"),
    ):
        with pytest.raises(Closed):
            await call


async def test_closing_ends_although_the_store_does_not_answer(world: World) -> None:
    queue = await world.open(close_timeout=5)
    world.wire.hold()
    enqueueing = await started(world, queue.enqueue("q", b""))
    closing = await started(world, queue.close())
    assert not closing.done()
    await world.clock.advance(5)
    with pytest.raises(TaqubaError):
        await closing
    with pytest.raises(TaqubaError):
        await enqueueing


async def test_an_idle_queue_writes_nothing(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"")
    await queue.ack(await take(queue))
    before = len(world.wire.created)
    await world.clock.advance(100_000)
    assert len(world.wire.created) == before


async def test_opening_again_and_again_keeps_everything(world: World, queue: Queue) -> None:
    for n in range(20):
        await queue.enqueue("q", b"%d" % n)
        queue = await world.crash()
    assert await drain(queue) == [b"%d" % n for n in range(20)]


async def test_an_abandoned_queue_leaves_no_trouble_behind() -> None:
    store = MemoryStore()
    queue = await Queue.open(store)
    await queue.enqueue("q", b"")
    background = queue._background_task
    del queue
    gc.collect()
    again = await Queue.open(store)
    assert await drain(again) == [b""]
    await again.close()
    background.cancel()


async def test_the_block_closes_the_queue(world: World) -> None:
    async with Queue.open(world.store) as queue:
        await queue.enqueue("q", b"")
    with pytest.raises(Closed):
        await queue.enqueue("q", b"")
    async with await Queue.open(world.store) as queue:
        assert await queue.stats("q") == counts(pending=1)
    with pytest.raises(Closed):
        await queue.stats("q")


async def test_a_folder_keeps_everything(tmp_path: Path) -> None:
    async with Queue.open(tmp_path / "store") as queue:
        await queue.enqueue("q", b"data")
    async with Queue.open(f"file://{tmp_path}/store") as queue:
        assert await drain(queue) == [b"data"]


async def test_a_memory_url_is_a_fresh_store() -> None:
    async with Queue.open("memory://") as queue:
        await queue.enqueue("q", b"data")
    async with Queue.open("memory://") as queue:
        assert await queue.stats("q") == counts()


async def test_a_given_store_is_not_closed(world: World) -> None:
    class Store(MemoryStore):
        closed = False

        async def close(self) -> None:
            self.closed = True

    store = Store()
    async with Queue.open(store):
        pass
    assert not store.closed


async def test_counters_survive_a_crash(world: World) -> None:
    queue = await world.open(config=QueueConfig(backoff_base=60, keep_done=None))
    await queue.enqueue_many("q", [b""] * 4)
    first, second, third = await queue.claim_many("q", 3)
    await queue.ack(first)
    await queue.nack(second, "again")
    await queue.dead_letter(third, "no")
    expected = counts(pending=1, scheduled=1, done=1, dead=1)
    assert await queue.stats("q") == expected
    queue = await world.crash()
    assert await queue.stats("q") == expected


async def test_cancelling_what_is_being_stored_changes_nothing(world: World, queue: Queue) -> None:
    job_id = (await queue.enqueue("q", b"")).job_id
    world.wire.hold()
    cancelling = await started(world, queue.cancel(job_id))
    cancelling.cancel()
    await world.clock.advance(0)
    world.wire.release()
    assert (await queue.cancel(job_id)).outcome is CancelOutcome.NOT_FOUND
