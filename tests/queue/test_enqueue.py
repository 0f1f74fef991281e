"""Enqueueing: ids, options, durability."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from taquba import JobState, Queue, QueueConfig
from taquba.errors import DuplicateJobId, InvalidJobId, InvalidQueueName
from taquba.queue import Effects
from tests.queue.harness import World, counts, die, drain, read, started, take

pytestmark = pytest.mark.anyio


async def test_an_empty_queue_gives_nothing(queue: Queue) -> None:
    """A1"""
    assert await queue.claim("q") is None
    assert await queue.claim_many("q", 10) == []
    assert await queue.stats("q") == counts()


async def test_a_job_is_delivered_as_it_was_enqueued(world: World, queue: Queue) -> None:
    """A2"""
    enqueued = await queue.enqueue("q", b"data")
    claim = await take(queue)
    assert enqueued.created
    job = claim.job
    assert (job.id, job.queue, job.payload) == (enqueued.job_id, "q", b"data")
    assert (job.state, job.attempts) == (JobState.CLAIMED, 1)
    assert job.claimed_at is not None
    assert job.claimed_at.timestamp() * 1000 == world.clock.now_ms()
    assert claim.is_live
    assert job == await queue.get_job(job.id)


async def test_a_default_id_is_a_ulid(queue: Queue) -> None:
    """A3"""
    from ulid import ULID

    job_id = (await queue.enqueue("q", b"")).job_id
    assert len(job_id) == 26
    assert str(ULID.from_str(job_id)) == job_id


async def test_a_chosen_id_is_kept(queue: Queue) -> None:
    """A4"""
    assert (await queue.enqueue("q", b"", job_id="Order_7-a")).job_id == "Order_7-a"
    assert (await take(queue)).job.id == "Order_7-a"


@pytest.mark.parametrize("job_id", ["", "a:b", "a b", "a/b", "ä", "a\n", "a\0"])
async def test_an_id_of_other_characters_is_refused(queue: Queue, job_id: str) -> None:
    """A5"""
    with pytest.raises(InvalidJobId):
        await queue.enqueue("q", b"", job_id=job_id)
    assert await queue.stats("q") == counts()


async def test_an_id_has_at_most_128_characters(queue: Queue) -> None:
    """A6"""
    await queue.enqueue("q", b"", job_id="x" * 128)
    with pytest.raises(InvalidJobId):
        await queue.enqueue("q", b"", job_id="x" * 129)
    assert await queue.stats("q") == counts(pending=1)


@pytest.mark.parametrize("other_queue", ["q", "elsewhere"])
async def test_an_id_is_unique_in_the_whole_store(queue: Queue, other_queue: str) -> None:
    """A7, A8"""
    await queue.enqueue("q", b"first", job_id="X")
    with pytest.raises(DuplicateJobId, match="'X'"):
        await queue.enqueue(other_queue, b"second", job_id="X")
    assert (await read(queue, "X")).payload == b"first"
    assert await queue.stats("q") == counts(pending=1)
    assert await queue.stats("elsewhere") == counts()


async def test_the_id_of_a_job_that_is_gone_can_be_used_again(queue: Queue) -> None:
    """A9"""
    await queue.enqueue("q", b"first", job_id="X")
    await queue.ack(await take(queue))
    await queue.enqueue("q", b"second", job_id="X")
    job = (await take(queue)).job
    assert (job.payload, job.attempts, job.last_error) == (b"second", 1, None)


async def test_the_id_of_a_kept_record_is_taken(world: World) -> None:
    """A10"""
    queue = await world.open(config=QueueConfig(keep_done=60))
    await queue.enqueue("q", b"", job_id="done")
    await queue.ack(await take(queue))
    await queue.enqueue("q", b"", job_id="dead")
    await queue.dead_letter(await take(queue), "no")
    for job_id in ("done", "dead"):
        with pytest.raises(DuplicateJobId):
            await queue.enqueue("q", b"", job_id=job_id)


async def test_a_duplicate_id_takes_the_effects_down_with_it(queue: Queue) -> None:
    """A11"""
    await queue.enqueue("q", b"", job_id="X")
    with pytest.raises(DuplicateJobId):
        await queue.enqueue(
            "q", b"", job_id="X", effects=Effects().put("key", b"1").enqueue("other", b"")
        )
    assert await queue.kv.get("key") is None
    assert await queue.stats("other") == counts()


async def test_of_two_concurrent_enqueues_with_one_id_one_succeeds(queue: Queue) -> None:
    """A12"""
    results = await asyncio.gather(
        *(queue.enqueue("q", data, job_id="X") for data in (b"1", b"2")), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["DuplicateJobId", "Enqueued"]
    assert await queue.stats("q") == counts(pending=1)


async def test_an_id_is_reported_as_taken_only_when_its_job_is_stored(
    world: World, queue: Queue
) -> None:
    """So that 'taken' can be read as 'enqueued already'."""
    world.wire.hold()
    first = await started(world, queue.enqueue("q", b"", job_id="X"))
    second = await started(world, queue.enqueue("q", b"", job_id="X"))
    assert not second.done()
    world.wire.release()
    await first
    with pytest.raises(DuplicateJobId):
        await second


async def test_ids_ascend_while_the_clock_stands_still(queue: Queue) -> None:
    """A13"""
    ids = [queue.next_job_id() for _ in range(10)]
    assert ids == sorted(set(ids))
    assert len({job_id[:10] for job_id in ids}) == 1


async def test_ids_ascend_while_the_clock_steps_back(world: World, queue: Queue) -> None:
    """A14"""
    before = [queue.next_job_id() for _ in range(3)]
    world.clock.shift_wall_clock(timedelta(hours=-1))
    after = [queue.next_job_id() for _ in range(3)]
    assert before + after == sorted({*before, *after})


async def test_ids_ascend_with_time(world: World, queue: Queue) -> None:
    first = queue.next_job_id()
    await world.clock.advance(0.001)
    second = queue.next_job_id()
    assert first[:10] < second[:10]


async def test_a_drawn_id_can_be_used(queue: Queue) -> None:
    """A15. The order is that of the enqueues, whatever their ids are: see docs/decisions.md."""
    drawn = queue.next_job_id()
    await queue.enqueue("q", b"first")
    assert (await queue.enqueue("q", b"second", job_id=drawn)).job_id == drawn
    await queue.enqueue("q", b"third")
    assert await drain(queue) == [b"first", b"second", b"third"]


async def test_a_queue_name_has_at_most_255_bytes(queue: Queue) -> None:
    """A16"""
    await queue.enqueue("x" * 255, b"")
    assert await queue.claim("x" * 255) is not None
    for call in (queue.enqueue("x" * 256, b""), queue.claim("x" * 256), queue.stats("x" * 256)):
        with pytest.raises(InvalidQueueName, match="256 bytes"):
            await call


async def test_a_queue_name_is_measured_in_bytes(queue: Queue) -> None:
    """A17"""
    await queue.enqueue("é" * 127, b"")
    with pytest.raises(InvalidQueueName, match="400 bytes"):
        await queue.enqueue("é" * 200, b"")


async def test_a_configured_queue_has_a_valid_name(world: World) -> None:
    """A18"""
    with pytest.raises(InvalidQueueName):
        await world.open(queues={"x" * 256: QueueConfig()})
    assert len(world.store) == 0


async def test_headers_are_delivered(queue: Queue) -> None:
    """A19"""
    headers = {"trace": "1", "ä": "", "": "€ \0"}
    await queue.enqueue("q", b"", headers=headers)
    await queue.enqueue("q", b"")
    await queue.enqueue("q", b"", headers={})
    jobs = [claim.job for claim in await queue.claim_many("q", 3)]
    assert [job.headers for job in jobs] == [headers, {}, {}]


async def test_an_empty_payload_is_a_payload(queue: Queue) -> None:
    """A20"""
    await queue.enqueue("q", b"")
    assert (await take(queue)).job.payload == b""


@pytest.mark.parametrize("payload", [bytearray(b"abc"), memoryview(b"abc")])
async def test_other_byte_strings_are_copied(
    queue: Queue, payload: bytearray | memoryview[int]
) -> None:
    await queue.enqueue("q", payload)
    if isinstance(payload, bytearray):
        payload[:] = b"xyz"
    claim = await take(queue)
    assert type(claim.job.payload) is bytes
    assert claim.job.payload == b"abc"


async def test_max_attempts_of_the_call_beats_that_of_the_queue(world: World) -> None:
    """A21"""
    queue = await world.open(queues={"q": QueueConfig(max_attempts=7)})
    await queue.enqueue("q", b"", max_attempts=2)
    await queue.enqueue("q", b"")
    await queue.enqueue("other", b"")
    first, second = await queue.claim_many("q", 2)
    assert (first.job.max_attempts, second.job.max_attempts) == (2, 7)
    assert (await take(queue, "other")).job.max_attempts == 3


async def test_max_attempts_is_frozen_at_enqueue(world: World) -> None:
    queue = await world.open(config=QueueConfig(max_attempts=7, default_priority=5))
    job_id = (await queue.enqueue("q", b"")).job_id
    queue = await world.crash(config=QueueConfig(max_attempts=1, default_priority=6))
    job = await read(queue, job_id)
    assert (job.max_attempts, job.priority) == (7, 5)


async def test_an_enqueued_job_survives_a_crash(world: World, queue: Queue) -> None:
    """A22"""
    enqueued = await queue.enqueue("q", b"data", headers={"a": "b"}, priority=7)
    before = await read(queue, enqueued.job_id)
    queue = await world.crash()
    after = await read(queue, enqueued.job_id)
    assert after == before
    assert after.state is JobState.PENDING
    assert await queue.stats("q") == counts(pending=1)


async def test_an_enqueue_returns_only_when_it_is_stored(world: World, queue: Queue) -> None:
    world.wire.hold()
    enqueueing = await started(world, queue.enqueue("q", b"data"))
    assert not enqueueing.done()
    world.wire.release()
    await enqueueing
    assert await queue.stats("q") == counts(pending=1)


async def test_an_enqueue_that_was_not_stored_never_was(world: World, queue: Queue) -> None:
    world.wire.hold()
    enqueueing = await started(world, queue.enqueue("q", b"data"))
    queue = await world.crash()
    assert not enqueueing.done()
    assert await queue.stats("q") == counts()
    enqueueing.cancel()


async def test_many_jobs_are_enqueued_in_order_and_in_one_commit(
    world: World, queue: Queue
) -> None:
    before = world.wire.entries
    payloads = [b"%d" % n for n in range(100)]
    enqueued = await queue.enqueue_many(
        "q", (payload for payload in payloads), headers={"a": "b"}, priority=5, max_attempts=9
    )
    assert world.wire.entries == before + 1
    ids = [each.job_id for each in enqueued]
    assert ids == sorted(set(ids))
    claims = await queue.claim_many("q", 1000)
    assert [claim.job.id for claim in claims] == ids
    assert [claim.job.payload for claim in claims] == payloads
    assert {(c.job.priority, c.job.max_attempts, c.job.headers["a"]) for c in claims} == {
        (5, 9, "b")
    }


async def test_many_jobs_can_be_enqueued_for_later(world: World, queue: Queue) -> None:
    await queue.enqueue_many("q", [b"1", b"2"], delay=5)
    assert await queue.stats("q") == counts(scheduled=2)
    await world.clock.advance(5)
    assert await drain(queue) == [b"1", b"2"]


async def test_enqueueing_no_jobs_does_nothing(world: World, queue: Queue) -> None:
    before = world.wire.entries
    assert await queue.enqueue_many("q", []) == []
    assert world.wire.entries == before


async def test_concurrent_enqueues_share_a_commit(world: World, queue: Queue) -> None:
    before = world.wire.entries
    await asyncio.gather(*(queue.enqueue("q", b"%d" % n) for n in range(300)))
    assert world.wire.entries - before <= 2
    assert await queue.stats("q") == counts(pending=300)


async def test_names_of_any_characters_survive_a_crash(world: World, queue: Queue) -> None:
    names = [" ", "a\0b", "a\0c", "a", "ä/ö", "'\"; DROP TABLE jobs", "\U0001f600"]
    for name in names:
        await queue.enqueue(name, name.encode(), dedup_key=name)
    queue = await world.crash()
    for name in names:
        assert not (await queue.enqueue(name, b"", dedup_key=name)).created
        assert await drain(queue, name) == [name.encode()]


async def test_times_of_a_job_are_those_of_the_clock(world: World, queue: Queue) -> None:
    now = world.clock.now_ms()
    job = await read(queue, (await queue.enqueue("q", b"")).job_id)
    assert job.enqueued_at.timestamp() * 1000 == now
    assert job.enqueued_at.tzinfo is not None
    assert (job.run_at, job.claimed_at, job.completed_at, job.failed_at) == (None,) * 4
    dead = await read(queue, await die(queue, "other"))
    assert dead.failed_at == job.enqueued_at
