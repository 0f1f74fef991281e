"""Payloads that are objects of their own: stored before the commit, deleted after another one."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import math
import threading
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import timedelta
from typing import Any

import pytest

from taquba import Effects, Follower, JobState, ManualClock, Queue, QueueConfig
from taquba.errors import (
    ClaimLost,
    CorruptStore,
    DuplicateJobId,
    InvalidArgument,
    InvalidState,
    InvalidType,
    PayloadMissing,
    StoreUnavailable,
    ValueTooLarge,
)
from taquba.objectstore import MemoryStore
from taquba.queue import (
    PAYLOAD_PREFIX,
    CancelOutcome,
    _payload_objects,
    _payloads,
    _reading,
    new_job,
)
from taquba.testing import FaultyStore

from .harness import World, die, read, take

pytestmark = pytest.mark.anyio

LARGE = bytes(range(256)) * 4
OTHER = LARGE[::-1]
KEPT = QueueConfig(keep_done=60.0, keep_dead=120.0, max_attempts=1)


class Offload(World):
    """A world whose processes put payloads of more than 64 bytes into objects."""

    def __init__(self) -> None:
        super().__init__()
        self.faulty = FaultyStore(self.store)

    async def open(self, **options: Any) -> Queue:
        return await super().open(**{"offload_payloads_above": 64, **options})

    async def objects(self) -> list[str]:
        """The payload objects, once everybody has done what there is to do."""
        await self.clock.advance(0)
        await self.clock.advance(0)
        return [info.key async for info in self.store.list(PAYLOAD_PREFIX)]


@pytest.fixture
async def world() -> AsyncIterator[Offload]:
    world = Offload()
    yield world
    await world.close()


@pytest.fixture
async def queue(world: Offload) -> Queue:
    return await world.open()


@contextlib.asynccontextmanager
async def faulty_queue(**options: Any) -> AsyncIterator[tuple[Queue, FaultyStore, ManualClock]]:
    """A queue on a store that fails as the test says."""
    store, clock = FaultyStore(MemoryStore()), ManualClock()
    options = {"offload_payloads_above": 64, **options}
    async with Queue.open(store, clock=clock, **options) as queue:
        yield queue, store, clock


async def objects_of(store: FaultyStore, clock: ManualClock) -> int:
    await clock.advance(0)
    await clock.advance(0)
    return len([info async for info in store.store.list(PAYLOAD_PREFIX)])


# -- writing and reading ----------------------------------------------------------------------


async def test_a_large_payload_is_one_object_and_delivered_whole(
    world: Offload, queue: Queue
) -> None:
    """M1."""
    enqueued = await queue.enqueue("q", LARGE)
    [key] = await world.objects()
    assert LARGE in await world.store.get(key)
    job = await read(queue, enqueued.job_id)
    assert job.payload == LARGE and job.is_offloaded and job.payload_size == 1024
    claim = await take(queue)
    assert claim.job.payload == LARGE and claim.job.is_offloaded and claim.job.payload_fetched
    assert "payload=<1024 bytes>" in repr(job)


@pytest.mark.parametrize(("size", "objects"), [(0, 0), (63, 0), (64, 0), (65, 1)])
async def test_the_threshold_itself_is_part_of_the_state(
    world: Offload, queue: Queue, size: int, objects: int
) -> None:
    """M2."""
    await queue.enqueue("q", b"x" * size)
    assert len(await world.objects()) == objects
    claim = await take(queue)
    assert claim.job.payload == b"x" * size
    assert (claim.job.is_offloaded, claim.job.payload_size) == (bool(objects), size)


async def test_a_threshold_of_zero_leaves_only_empty_payloads_in_the_state(world: Offload) -> None:
    queue = await world.open(offload_payloads_above=0)
    for payload in (b"", b"x"):
        await queue.enqueue("q", payload)
    assert len(await world.objects()) == 1
    assert [(await take(queue)).job.payload for _ in range(2)] == [b"", b"x"]


async def test_without_a_threshold_all_is_part_of_the_state(world: Offload) -> None:
    """M3."""
    queue = await world.open(offload_payloads_above=None)
    await queue.enqueue("q", bytes(1024 * 1024))
    assert await world.objects() == []
    assert (await take(queue)).job.payload == bytes(1024 * 1024)


async def test_the_default_threshold_is_256_kib(world: Offload) -> None:
    async with Queue.open(world.store, clock=world.clock) as queue:
        await queue.enqueue("q", bytes(256 * 1024))
        assert await world.objects() == []
        await queue.enqueue("q", bytes(256 * 1024 + 1))
        assert len(await world.objects()) == 1


async def test_another_threshold_finds_what_an_earlier_one_stored(world: Offload) -> None:
    queue = await world.open()
    await queue.enqueue("q", LARGE)
    queue = await world.crash(offload_payloads_above=None)
    claim = await take(queue)
    assert claim.job.payload == LARGE
    await queue.ack(claim)
    assert await world.objects() == []


async def test_a_batch_stores_each_large_payload(world: Offload, queue: Queue) -> None:
    """M15."""
    payloads = [bytes(256), bytes(16), bytes(256)]
    await queue.enqueue_many("q", payloads)
    assert len(await world.objects()) == 2
    claims = await queue.claim_many("q", 3)
    assert [claim.job.payload for claim in claims] == payloads


async def test_a_scheduled_job_has_its_object_from_the_start(world: Offload, queue: Queue) -> None:
    """M16."""
    await queue.enqueue("q", LARGE, delay=60)
    keys = await world.objects()
    assert len(keys) == 1
    await world.clock.advance(61)
    assert await world.objects() == keys
    assert (await take(queue)).job.payload == LARGE


async def test_a_listing_says_where_the_payload_is_and_does_not_fetch_it(
    world: Offload, queue: Queue
) -> None:
    """M21."""
    await queue.enqueue("q", LARGE)
    await queue.enqueue("q", b"small")
    large, small = (await queue.list_jobs("q")).jobs
    assert large.is_offloaded and large.payload_size == 1024 and not large.payload_fetched
    with pytest.raises(InvalidState, match="read_payload"):
        _ = large.payload
    assert await queue.read_payload(large) == LARGE
    assert await queue.read_payload(small) == small.payload == b"small"
    assert [part async for part in queue.stream_payload(large)] == [LARGE]
    assert [part async for part in queue.stream_payload(small)] == [b"small"]
    assert await queue.get_job("unknown") is None
    with pytest.raises(InvalidType, match="a Job or a Claim"):
        await queue.read_payload(b"x")  # type: ignore[arg-type]


async def test_a_follower_reads_payload_objects(world: Offload, queue: Queue) -> None:
    enqueued = await queue.enqueue("q", LARGE)
    async with Follower.open(world.store, clock=world.clock) as follower:
        await follower.refresh()
        job = await follower.get_job(enqueued.job_id)
        assert job is not None and job.payload == LARGE
        [listed] = (await follower.list_jobs("q")).jobs
        assert await follower.read_payload(listed) == LARGE
        # Behind the owner, the job seems to be there; its payload tells that it is not.
        await queue.cancel(enqueued.job_id)
        assert await world.objects() == []
        assert await follower.get_job(enqueued.job_id) is None


# -- its life ---------------------------------------------------------------------------------


async def test_a_failed_attempt_keeps_the_object(world: Offload, queue: Queue) -> None:
    """M4."""
    await queue.enqueue("q", LARGE)
    before = await world.objects()
    await queue.nack(await take(queue), "no")
    await world.clock.advance(10)
    assert (await take(queue)).job.payload == LARGE
    assert await world.objects() == before


async def test_acknowledging_deletes_it(world: Offload, queue: Queue) -> None:
    """M5."""
    await queue.enqueue("q", LARGE)
    await queue.ack(await take(queue))
    assert await world.objects() == []


async def test_it_is_not_deleted_before_the_end_of_the_job_is_durable(
    world: Offload, queue: Queue
) -> None:
    await queue.enqueue("q", LARGE)
    claim = await take(queue)
    world.kill()
    ending = asyncio.ensure_future(queue.ack(claim))
    assert len(await world.objects()) == 1
    successor = await world.open()
    assert (await take(successor)).job.payload == LARGE
    await world.bury()
    assert len(await world.objects()) == 1
    with contextlib.suppress(Exception):
        await ending


async def test_a_kept_record_keeps_it_until_it_is_swept(world: Offload) -> None:
    """M6."""
    queue = await world.open(config=KEPT)
    enqueued = await queue.enqueue("q", LARGE)
    await queue.ack(await take(queue))
    assert (await read(queue, enqueued.job_id)).payload == LARGE
    assert len(await world.objects()) == 1
    await world.clock.advance(61)
    assert await world.objects() == []
    assert await queue.get_job(enqueued.job_id) is None


async def test_it_survives_death_and_revival(world: Offload, queue: Queue) -> None:
    """M7."""
    job_id = await die(queue, payload=LARGE)
    assert (await read(queue, job_id)).payload == LARGE
    await queue.requeue_dead(job_id)
    claim = await take(queue)
    assert claim.job.payload == LARGE
    assert len(await world.objects()) == 1
    await queue.ack(claim)
    assert await world.objects() == []


async def test_a_job_that_died_of_its_lease_keeps_it_until_it_is_swept(world: Offload) -> None:
    """M8."""
    queue = await world.open(config=KEPT)
    enqueued = await queue.enqueue("q", LARGE)
    await take(queue, lease=10)
    await world.clock.advance(11)
    job = await read(queue, enqueued.job_id)
    assert job.state is JobState.DEAD and job.payload == LARGE
    await world.clock.advance(121)
    assert await world.objects() == []


async def test_cancelling_a_waiting_job_deletes_it(world: Offload, queue: Queue) -> None:
    """M9."""
    enqueued = await queue.enqueue("q", LARGE)
    await queue.cancel(enqueued.job_id)
    assert await world.objects() == []


async def test_a_dedup_hit_leaves_no_second_object(world: Offload, queue: Queue) -> None:
    """M10."""
    first = await queue.enqueue("q", LARGE, dedup_key="k")
    before = await world.objects()
    second = await queue.enqueue("q", OTHER, dedup_key="k")
    assert second.job_id == first.job_id and not second.created
    assert await world.objects() == before
    assert (await take(queue)).job.payload == LARGE


async def test_a_duplicate_id_leaves_the_first_payload_alone(world: Offload, queue: Queue) -> None:
    """M11."""
    await queue.enqueue("q", LARGE, job_id="mine")
    before = await world.objects()
    with pytest.raises(DuplicateJobId):
        await queue.enqueue("q", OTHER, job_id="mine")
    assert await world.objects() == before
    assert (await take(queue)).job.payload == LARGE


async def test_with_history_it_stays_as_long_as_the_history_names_it(world: Offload) -> None:
    queue = await world.open(retain_history=timedelta(days=30))
    await queue.enqueue("q", LARGE)
    await queue.ack(await take(queue))
    assert len(await world.objects()) == 1


async def test_many_deletions_take_few_requests() -> None:
    async with faulty_queue() as (queue, store, clock):
        await queue.enqueue_many("q", [LARGE] * 200)
        claims = await queue.claim_many("q", 200)
        await asyncio.gather(*(queue.ack(claim) for claim in claims))
        assert await objects_of(store, clock) == 0
        assert store.count("delete", PAYLOAD_PREFIX) <= 3


# -- failures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
async def test_a_payload_that_cannot_be_stored_enqueues_nothing(after: bool) -> None:
    """M12."""
    async with faulty_queue() as (queue, store, clock):
        store.fail("put", PAYLOAD_PREFIX, after=after)
        with pytest.raises(StoreUnavailable):
            await queue.enqueue("q", LARGE)
        assert (await queue.stats("q")).pending == 0
        assert await objects_of(store, clock) == 0


@pytest.mark.parametrize("after", [False, True])
async def test_a_batch_is_stored_whole_or_not_at_all(after: bool) -> None:
    """M13."""
    async with faulty_queue() as (queue, store, clock):
        store.fail("put", PAYLOAD_PREFIX, after=after, skip=2)
        with pytest.raises(StoreUnavailable):
            await queue.enqueue_many("q", [LARGE] * 3)
        assert (await queue.stats("q")).pending == 0
        assert await objects_of(store, clock) == 0


async def test_a_payload_that_cannot_be_deleted_does_not_disturb_its_job() -> None:
    """M14."""
    async with faulty_queue() as (queue, store, clock):
        enqueued = await queue.enqueue("q", LARGE)
        store.fail("delete", PAYLOAD_PREFIX)
        await queue.ack(await take(queue))
        assert await queue.get_job(enqueued.job_id) is None
        assert await objects_of(store, clock) == 1


async def test_a_missing_payload_is_said_and_its_job_given_up(world: Offload, queue: Queue) -> None:
    """M18, but the rest of the batch is delivered, and the job does not seem to be worked on."""
    lost = await queue.enqueue("q", LARGE)
    await world.store.delete(await world.objects())
    await queue.enqueue("q", OTHER)
    with pytest.raises(PayloadMissing, match="deleted it"):
        await queue.get_job(lost.job_id)
    [claim] = await queue.claim_many("q", 10)
    assert claim.job.payload == OTHER
    [dead] = (await queue.list_jobs("q", JobState.DEAD)).jobs
    assert dead.id == lost.job_id and "is gone" in str(dead.last_error)
    await queue.requeue_dead(dead.id)
    with pytest.raises(PayloadMissing):
        await queue.claim("q")


async def test_a_follower_says_that_a_payload_is_missing(world: Offload, queue: Queue) -> None:
    """R13"""
    lost = await queue.enqueue("q", LARGE)
    async with Follower.open(world.store, clock=world.clock) as follower:
        await world.store.delete(await world.objects())
        with pytest.raises(PayloadMissing):
            await follower.get_job(lost.job_id)
        [job] = (await follower.list_jobs("q")).jobs
        assert job.payload_size == len(LARGE)


async def test_a_damaged_payload_is_not_delivered(world: Offload, queue: Queue) -> None:
    await queue.enqueue("q", LARGE)
    [key] = await world.objects()
    stored = await world.store.get(key)
    for damaged in (stored[:-1], stored[:-1] + b"!", b"", b"x" * len(stored)):
        await world.store.put(key, damaged)
        with pytest.raises(CorruptStore, match="damaged") as caught:
            await queue.claim("q")
        assert caught.value.key == key
        [dead] = (await queue.list_jobs("q", JobState.DEAD)).jobs
        await queue.requeue_dead(dead.id)


async def test_an_object_of_another_payload_is_not_taken_for_it(
    world: Offload, queue: Queue
) -> None:
    await queue.enqueue_many("q", [LARGE, OTHER])
    first, second = await world.objects()
    await world.store.put(first, await world.store.get(second))
    [claim] = await queue.claim_many("q", 2)
    assert (await queue.stats("q")).dead == 1
    assert claim.job.payload in (LARGE, OTHER)


async def test_a_store_that_fails_postpones_the_job_without_an_attempt() -> None:
    async with faulty_queue() as (queue, store, clock):
        await queue.enqueue("q", LARGE)
        for _ in range(5):
            store.fail("get", PAYLOAD_PREFIX)
            with pytest.raises(StoreUnavailable):
                await queue.claim("q")
            assert (await queue.stats("q")).scheduled == 1
            await clock.advance(2)
        claim = await take(queue)
        assert claim.job.payload == LARGE and claim.job.attempts == 1


async def test_a_slow_fetch_does_not_use_the_lease_up() -> None:
    async with faulty_queue() as (queue, store, clock):
        await queue.enqueue("q", LARGE)
        held = store.hold("get", PAYLOAD_PREFIX)
        claiming = asyncio.ensure_future(queue.claim("q", 10))
        await held.arrived()
        await clock.advance(100)
        assert (await queue.stats("q")).claimed == 1
        held.release()
        claim = await claiming
        assert claim is not None
        await clock.advance(9)
        assert claim.is_live
        await clock.advance(2)
        assert not claim.is_live


async def test_a_claim_that_is_cancelled_while_it_fetches_gives_the_jobs_back() -> None:
    async with faulty_queue() as (queue, store, _):
        await queue.enqueue_many("q", [LARGE, b"small"])
        held = store.hold("get", PAYLOAD_PREFIX, times=math.inf)
        claiming = asyncio.ensure_future(queue.claim_many("q", 2))
        await held.arrived()
        claiming.cancel()
        await asyncio.wait([claiming])
        assert (await queue.stats("q")).pending == 2
        held.release()
        first = await take(queue)
        assert first.job.attempts == 1


async def test_what_a_crash_leaves_between_object_and_commit_is_collected() -> None:
    store, clock = FaultyStore(MemoryStore()), ManualClock()
    queue = await Queue.open(store, clock=clock, offload_payloads_above=64)
    kept = await queue.enqueue("q", OTHER)
    held = store.hold("create", "journal/", times=math.inf)
    enqueueing = asyncio.ensure_future(queue.enqueue("q", LARGE))
    await held.arrived()
    assert await objects_of(store, clock) == 2
    # Another process takes over, without the commit.
    async with Queue.open(store.store, clock=clock, offload_payloads_above=64) as successor:
        held.release()
        with contextlib.suppress(Exception):
            await enqueueing
        with contextlib.suppress(Exception):
            await queue.close()
        assert await objects_of(store, clock) == 2
        await collected(successor, clock)
        assert await objects_of(store, clock) == 1
        assert (await read(successor, kept.job_id)).payload == OTHER


async def collected(queue: Queue, clock: ManualClock, days: int = 4) -> None:
    """Checkpoints and collections over some days."""
    database = queue._core.database
    for number in range(2 * days):
        await queue.kv.put("k", b"%d" % number)
        await database.checkpoint()
        await database.collect()
        await clock.advance(86400 / 2)


async def test_what_a_crash_leaves_between_commit_and_deletion_is_collected() -> None:
    store, clock = FaultyStore(MemoryStore()), ManualClock()
    queue = await Queue.open(store, clock=clock, offload_payloads_above=64)
    await queue.enqueue("q", LARGE)
    held = store.hold("delete", PAYLOAD_PREFIX)
    await queue.ack(await take(queue))
    await held.arrived()
    async with Queue.open(store.store, clock=clock) as successor:
        assert (await successor.stats("q")).pending == 0
        assert await objects_of(store, clock) == 1
        await collected(successor, clock)
        assert await objects_of(store, clock) == 0
        held.release()
        with contextlib.suppress(Exception):
            await queue.close()


async def test_what_is_stored_for_a_commit_to_come_is_no_orphan() -> None:
    """However long the commit takes, since its other payloads are slow."""
    async with faulty_queue() as (queue, store, clock):
        held = store.hold("put", PAYLOAD_PREFIX, skip=1)
        enqueueing = asyncio.ensure_future(queue.enqueue_many("q", [LARGE, OTHER]))
        await held.arrived()
        await collected(queue, clock)
        assert await objects_of(store, clock) == 1
        held.release()
        await enqueueing
        claims = await queue.claim_many("q", 2)
        assert [claim.job.payload for claim in claims] == [LARGE, OTHER]


async def test_closing_waits_for_deletions_but_not_for_long() -> None:
    store, clock = FaultyStore(MemoryStore()), ManualClock()
    queue = await Queue.open(store, clock=clock, offload_payloads_above=64)
    await queue.enqueue_many("q", [LARGE, OTHER])
    first, second = await queue.claim_many("q", 2)
    await queue.ack(first)
    await objects_of(store, clock)
    held = store.hold("delete", PAYLOAD_PREFIX)
    await queue.ack(second)
    closing = asyncio.ensure_future(queue.close())
    await held.arrived()
    await clock.advance(4)
    assert not closing.done()
    await clock.advance(2)
    await closing
    held.release()


async def test_closing_lets_deletions_go_through(world: Offload, queue: Queue) -> None:
    await queue.enqueue("q", LARGE)
    await queue.ack(await take(queue))
    await queue.close()
    assert [info async for info in world.store.list(PAYLOAD_PREFIX)] == []


# -- effects ----------------------------------------------------------------------------------


async def test_large_effects_are_stored_by_every_settlement(world: Offload, queue: Queue) -> None:
    for number in range(4):
        await queue.enqueue("q", b"x")
        claim = await take(queue)
        effects = Effects().enqueue("next", LARGE + bytes([number]))
        if number == 0:
            await queue.ack(claim, effects)
        elif number == 1:
            await queue.dead_letter(claim, "no", effects)
        elif number == 2:
            await queue.requeue_dead((await queue.list_jobs("q", JobState.DEAD)).jobs[0].id)
            await queue.cancel((await queue.list_jobs("q", JobState.PENDING)).jobs[0].id, effects)
            await queue.ack(claim)
        else:
            await queue.enqueue("other", b"y", effects=effects)
            await queue.ack(claim)
    assert len(await world.objects()) == 4
    claims = await queue.claim_many("next", 10)
    assert [claim.job.payload[-1] for claim in claims] == [0, 1, 2, 3]
    assert all(claim.job.is_offloaded for claim in claims)


async def test_effects_that_are_discarded_leave_no_object(world: Offload, queue: Queue) -> None:
    """M19."""
    effects = Effects().enqueue("next", LARGE)
    await queue.enqueue("q", b"x", job_id="x")
    claim = await take(queue)
    requested = await queue.cancel("x", effects)
    assert requested.outcome is CancelOutcome.REQUESTED and await world.objects() == []
    absent = await queue.cancel("y", effects)
    assert absent.outcome is CancelOutcome.NOT_FOUND and await world.objects() == []
    await queue.nack(claim, "no", effects)
    assert await world.objects() == []
    with pytest.raises(ClaimLost):
        await queue.ack(claim, effects)
    assert await world.objects() == []
    await queue.enqueue("q", b"z", dedup_key="k")
    await queue.enqueue("q", b"z", dedup_key="k", effects=effects)
    assert await world.objects() == []
    # They can still be used.
    await queue.enqueue("q", b"z", effects=effects)
    assert (await take(queue, "next")).job.payload == LARGE


async def test_a_commit_whose_condition_fails_leaves_no_object(
    world: Offload, queue: Queue
) -> None:
    """M19."""
    effects = Effects().enqueue("next", LARGE)
    await queue.commit(effects)
    assert len(await world.objects()) == 1
    await queue.compare_and_commit({"k": b"absent"}, effects)
    assert len(await world.objects()) == 1
    assert (await queue.stats("next")).pending == 1
    await queue.compare_and_commit({"k": None}, effects)
    assert len(await world.objects()) == 2


async def test_a_transaction_of_ones_own_names_what_was_stored_before(
    world: Offload, queue: Queue
) -> None:
    job, unused = new_job("q", LARGE), new_job("q", OTHER)
    async with queue.committing(job, unused) as tx:
        tx.enqueue(job)
    assert len(await world.objects()) == 1
    with pytest.raises(ZeroDivisionError):
        async with queue.committing(job):
            raise ZeroDivisionError
    assert len(await world.objects()) == 1
    with queue.transaction() as tx:
        tx.enqueue(job)
    await tx.durable()
    stored, inline = await queue.claim_many("q", 2)
    assert (stored.job.is_offloaded, inline.job.is_offloaded) == (True, False)
    assert stored.job.payload == inline.job.payload == LARGE


async def test_only_what_became_a_job_keeps_its_object(world: Offload, queue: Queue) -> None:
    """M20."""
    first = await queue.enqueue("next", LARGE, dedup_key="k")
    before = await world.objects()
    await queue.enqueue("q", b"x")
    effects = Effects().enqueue("next", OTHER, dedup_key="k").enqueue("next", OTHER + b"!")
    settled = await queue.ack(await take(queue), effects)
    assert [result.created for result in settled.effects] == [False, True]
    assert settled.effects[0].job_id == first.job_id
    after = await world.objects()
    assert len(after) == 2 and set(before) < set(after)


async def test_a_worker_stores_large_effects_and_gets_large_payloads(
    world: Offload, queue: Queue
) -> None:
    seen: list[bytes] = []

    async def handle(claim: Any) -> Any:
        seen.append(claim.job.payload)
        effects = Effects()
        if len(seen) < 3:
            effects.enqueue("q", claim.job.payload + b"!")
        return await queue.prepare(lambda tx: tx.ack(claim, effects), effects)

    await queue.enqueue("q", LARGE)
    worker = queue.engine("q", handle)
    running = asyncio.ensure_future(worker.run())
    while len(seen) < 3:
        await world.clock.advance(0.1)
    worker.stop()
    await running
    assert seen == [LARGE, LARGE + b"!", LARGE + b"!!"]
    assert await world.objects() == []


async def test_what_a_handler_returns_is_stored_before_it_is_committed(
    world: Offload, queue: Queue
) -> None:
    async def handle(_: Any) -> Effects:
        return Effects().enqueue("next", LARGE)

    await queue.enqueue("q", b"x")
    running = asyncio.ensure_future(queue.worker("q", handle).run())
    while not (await queue.stats("next")).pending:
        await world.clock.advance(0.1)
    running.cancel()
    await asyncio.wait([running])
    claim = await take(queue, "next")
    assert claim.job.is_offloaded and claim.job.payload == LARGE


async def test_a_prepared_settlement_that_is_not_used_leaves_no_object(
    world: Offload, queue: Queue
) -> None:
    effects = Effects().enqueue("q", LARGE)
    settlement = await queue.prepare(lambda tx: tx.apply(effects), effects)
    assert len(await world.objects()) == 1
    del settlement
    assert await world.objects() == []


async def test_a_worker_goes_on_when_a_payload_is_missing(world: Offload, queue: Queue) -> None:
    seen: list[bytes] = []

    async def handle(claim: Any) -> Any:
        seen.append(claim.job.payload)
        return lambda tx: tx.ack(claim)

    await queue.enqueue("q", LARGE)
    await world.store.delete(await world.objects())
    await queue.enqueue_many("q", [OTHER, b"small"])
    worker = queue.engine("q", handle, concurrency=2)
    running = asyncio.ensure_future(worker.run())
    while len(seen) < 2:
        await world.clock.advance(0.1)
    worker.stop()
    await running
    assert sorted(map(len, seen)) == [5, 1024]
    assert (await queue.stats("q")).dead == 1


async def test_a_worker_that_is_cancelled_while_it_fetches_gives_the_job_back() -> None:
    async def handle(claim: Any) -> Any:
        raise AssertionError

    async with faulty_queue() as (queue, store, _):
        await queue.enqueue("q", LARGE)
        held = store.hold("get", PAYLOAD_PREFIX)
        running = asyncio.ensure_future(queue.engine("q", handle).run())
        await held.arrived()
        running.cancel()
        await asyncio.wait([running])
        assert (await queue.stats("q")).pending == 1
        held.release()
        claim = await take(queue)
        assert (claim.job.payload, claim.job.attempts) == (LARGE, 1)


# -- streams ----------------------------------------------------------------------------------


async def pieces(*sizes: int) -> AsyncIterator[bytes]:
    for number, size in enumerate(sizes):
        yield bytes([number]) * size


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_payloads, "PART_SIZE", 1000)
    monkeypatch.setattr(_payloads, "MAX_STREAMED_PAYLOAD_SIZE", 10_000)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("sizes", "objects"),
    [
        ((), 0),
        ((64,), 0),
        ((65,), 1),
        ((1000,), 1),
        ((1001,), 2),
        ((500, 500, 1), 2),
        ((3000,), 3),
        ((0, 2500, 0, 2499), 5),
        ((10_000,), 10),
    ],
)
async def test_a_stream_becomes_as_many_objects_as_it_needs(
    world: Offload, queue: Queue, sizes: tuple[int, ...], objects: int
) -> None:
    whole = b"".join([piece async for piece in pieces(*sizes)])
    for payload in (pieces(*sizes), io.BytesIO(whole)):
        enqueued = await queue.enqueue("q", payload)
        assert len(await world.objects()) == objects
        assert (await read(queue, enqueued.job_id)).payload == whole
        claim = await take(queue)
        assert claim.job.payload == whole and claim.job.payload_size == len(whole)
        assert b"".join([part async for part in queue.stream_payload(claim)]) == whole
        await queue.ack(claim)
        assert await world.objects() == []


@pytest.mark.usefixtures("small_parts")
async def test_what_is_too_large_for_memory_is_streamed(
    world: Offload, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taquba.queue import _delivering

    for module in (_delivering, _reading):
        monkeypatch.setattr(module, "MAX_PAYLOAD_SIZE", 2000)
    enqueued = await queue.enqueue("q", pieces(2500))
    claim = await take(queue)
    job = await read(queue, enqueued.job_id)
    for unfetched in (claim.job, job):
        assert not unfetched.payload_fetched and unfetched.payload_size == 2500
        with pytest.raises(InvalidState, match="stream_payload"):
            _ = unfetched.payload
        with pytest.raises(ValueTooLarge, match="stream_payload"):
            await queue.read_payload(unfetched)
        sizes = [len(part) async for part in queue.stream_payload(unfetched)]
        assert sizes == [1000, 1000, 500]


@pytest.mark.usefixtures("small_parts")
async def test_a_stream_that_is_refused_leaves_nothing(world: Offload, queue: Queue) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield bytes(2500)
        raise OSError("the disk is gone")

    async def text() -> AsyncIterator[Any]:
        yield bytes(2500)
        yield "text"

    for payload, error in (
        (pieces(10_001), ValueTooLarge),
        (failing(), OSError),
        (text(), InvalidType),
        (io.StringIO("text"), InvalidType),
    ):
        with pytest.raises(error):
            await queue.enqueue("q", payload)  # type: ignore[arg-type]
        assert await world.objects() == []
    await queue.enqueue("q", b"x", job_id="mine")
    with pytest.raises(DuplicateJobId):
        await queue.enqueue("q", pieces(2500), job_id="mine")
    assert await world.objects() == []
    assert (await queue.stats("q")).pending == 1


@pytest.mark.usefixtures("small_parts")
async def test_a_stream_whose_store_fails_leaves_nothing() -> None:
    async with faulty_queue() as (queue, store, clock):
        for skip in range(3):
            store.fail("put", PAYLOAD_PREFIX, after=True, skip=skip)
            with pytest.raises(StoreUnavailable):
                await queue.enqueue("q", pieces(2500))
            assert await objects_of(store, clock) == 0


async def test_a_stream_needs_a_threshold(world: Offload) -> None:
    queue = await world.open(offload_payloads_above=None)
    with pytest.raises(InvalidArgument, match="offload_payloads_above"):
        await queue.enqueue("q", pieces(1))


async def test_a_stream_takes_the_memory_of_a_part(world: Offload, queue: Queue) -> None:
    """However long it is, one part and its object are in memory at a time."""
    import tracemalloc

    class Discarding(MemoryStore):
        async def put(self, key: str, data: bytes) -> None:
            await super().put(key, data if not key.startswith(PAYLOAD_PREFIX) else b"")

    async def long() -> AsyncIterator[bytes]:
        piece = bytes(1024 * 1024)
        for _ in range(100):
            yield piece

    part = _payload_objects.PART_SIZE
    async with Queue.open(Discarding(), clock=world.clock) as queue:
        tracemalloc.start()
        try:
            await queue.enqueue("q", long())
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 4 * part
        assert (await queue.list_jobs("q")).jobs[0].payload_size == 100 * 1024 * 1024


# -- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize("above", [-1, 16 * 1024 * 1024 + 1, 1.5, "64", True])
async def test_a_wrong_threshold_is_refused(above: Any) -> None:
    with pytest.raises(InvalidArgument, match="offload_payloads_above"):
        await Queue.open(MemoryStore(), offload_payloads_above=above)


async def test_what_a_thread_happens_to_collect_is_let_go_by_the_loop(
    world: Offload, queue: Queue
) -> None:
    payloads = queue._core.payloads
    cycle: list[Any] = [await payloads.stage([new_job("q", LARGE)])]
    cycle.append(cycle)
    assert len(await world.objects()) == 1
    threads: list[int] = []
    named = payloads.named

    def looked(keys: Sequence[str]) -> Collection[str]:
        threads.append(threading.get_ident())
        return named(keys)

    payloads.named = looked  # type: ignore[method-assign]
    del cycle
    await asyncio.to_thread(gc.collect)
    await world.clock.advance(0)
    await world.clock.advance(0)
    assert threads == [threading.get_ident()]
    assert await world.objects() == []
