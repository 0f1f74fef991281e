"""Claims that wait for a job, and claims of one job."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from taquba import Claim, Effects, Queue, QueueConfig
from taquba.errors import (
    ClaimLost,
    Closed,
    Fenced,
    InvalidArgument,
    InvalidJobId,
    InvalidState,
    InvalidType,
    JobNotFound,
)
from taquba.queue import new_job
from tests.queue.harness import (
    NO_BACKOFF,
    World,
    cancelled,
    counts,
    die,
    drain,
    read,
    started,
    take,
)

pytestmark = pytest.mark.anyio

FOREVER = float("inf")


def payload(task: asyncio.Future[Claim | None]) -> bytes | None:
    claim = task.result()
    return None if claim is None else claim.job.payload


# -- waiting ---------------------------------------------------------------------------------


async def test_one_job_ends_one_wait(world: World, queue: Queue) -> None:
    """E18"""
    waits = [await started(world, queue.claim("q", wait=10)) for _ in range(3)]
    await queue.enqueue("q", b"x")
    await world.clock.advance(9)
    assert [wait.done() for wait in waits] == [True, False, False]
    await world.clock.advance(1)
    assert [payload(wait) for wait in waits] == [b"x", None, None]
    assert await queue.stats("q") == counts(claimed=1)


async def test_two_jobs_end_two_waits_in_one_write(world: World, queue: Queue) -> None:
    """E19"""
    await queue.enqueue("other", b"")
    before = world.wire.entries
    waits = [await started(world, queue.claim("q", wait=10)) for _ in range(3)]
    await queue.enqueue_many("q", [b"1", b"2"])
    await world.clock.advance(0)
    assert [wait.done() for wait in waits] == [True, True, False]
    assert [payload(wait) for wait in waits[:2]] == [b"1", b"2"]
    assert world.wire.entries - before == 1
    await world.clock.advance(10)
    assert payload(waits[2]) is None


async def test_a_job_that_is_there_ends_a_wait_at_once(world: World, queue: Queue) -> None:
    """E20"""
    await queue.enqueue("q", b"x")
    wait = await started(world, queue.claim("q", wait=FOREVER))
    assert payload(wait) == b"x"


async def test_a_job_that_came_and_went_ends_no_later_wait(world: World, queue: Queue) -> None:
    """E21"""
    await queue.enqueue("q", b"x")
    await queue.ack(await take(queue))
    wait = await started(world, queue.claim("q", wait=5))
    await world.clock.advance(4.99)
    assert not wait.done()
    await world.clock.advance(0.01)
    assert payload(wait) is None


async def test_a_wait_ends_when_its_time_is_over(world: World, queue: Queue) -> None:
    """E22"""
    wait = await started(world, queue.claim("q", wait=0.05))
    await world.clock.advance(0.049)
    assert not wait.done()
    await world.clock.advance(0.001)
    assert payload(wait) is None
    assert await queue.claim("q", wait=0) is None
    await queue.enqueue("q", b"x")
    assert await drain(queue) == [b"x"], "nobody claims it for a wait that is over"


async def test_many_are_claimed_as_soon_as_there_is_one(world: World, queue: Queue) -> None:
    wait = await started(world, queue.claim_many("q", 5, wait=FOREVER))
    await queue.enqueue_many("q", [b"1", b"2"])
    assert [claim.job.payload for claim in await wait] == [b"1", b"2"]
    assert await queue.claim_many("q", 0, wait=FOREVER) == []


async def test_a_woken_and_a_due_job_end_waits(world: World, queue: Queue) -> None:
    """D17"""
    job_id = (await queue.enqueue("q", b"woken", delay=3600)).job_id
    await queue.enqueue("q", b"due", delay=10)
    waits = [await started(world, queue.claim("q", wait=FOREVER)) for _ in range(2)]
    await queue.wake(job_id)
    await world.clock.advance(0)
    assert payload(waits[0]) == b"woken"
    await world.clock.advance(10)
    assert payload(waits[1]) == b"due"


async def test_every_way_to_become_pending_ends_a_wait(world: World) -> None:
    queue = await world.open(config=NO_BACKOFF)
    dead = await die(queue)

    async def becomes_pending(change: asyncio.Future[object]) -> Claim:
        await change
        await world.clock.advance(0)
        claim = wait.result()
        assert claim is not None
        return claim

    async def start() -> asyncio.Future[Claim | None]:
        return await started(world, queue.claim("q", 10, wait=FOREVER))

    wait = await start()
    claim = await becomes_pending(asyncio.ensure_future(queue.requeue_dead(dead)))
    wait = await start()
    claim = await becomes_pending(asyncio.ensure_future(queue.nack(claim, "again")))
    assert claim.job.attempts == 2
    wait = await start()
    await world.clock.advance(10)  # its lease expires
    claim = await becomes_pending(asyncio.ensure_future(asyncio.sleep(0)))
    assert claim.job.attempts == 3
    await queue.enqueue("other", b"")
    other = await take(queue, "other")
    wait = await start()
    claim = await becomes_pending(
        asyncio.ensure_future(queue.ack(other, Effects().enqueue("q", b"follow-up")))
    )
    assert claim.job.payload == b"follow-up"


async def test_a_cancelled_wait_passes_its_job_on(world: World, queue: Queue) -> None:
    await queue.enqueue("other", b"")
    first, second = [await started(world, queue.claim("q", wait=FOREVER)) for _ in range(2)]
    world.wire.hold()
    enqueue = await started(world, queue.enqueue("q", b"x"))
    assert not first.done()
    await cancelled(world, first)
    world.wire.release()
    await enqueue
    claim = await second
    assert claim is not None
    assert claim.job.attempts == 1, "the attempt that was given back does not count"
    assert (await read(queue, claim.job.id)).attempts == 1


async def test_a_wait_that_is_cancelled_as_it_is_served_passes_its_job_on(
    world: World, queue: Queue
) -> None:
    first, second = [await started(world, queue.claim("q", wait=FOREVER)) for _ in range(2)]
    with queue.transaction() as tx:
        tx.enqueue(new_job("q", b"x"))
    await cancelled(world, first)
    claim = second.result()
    assert claim is not None
    assert (claim.job.payload, claim.job.attempts) == (b"x", 1)


async def test_a_cancelled_wait_leaves_nothing_behind(world: World, queue: Queue) -> None:
    first, second = [await started(world, queue.claim("q", wait=FOREVER)) for _ in range(2)]
    await cancelled(world, first)
    await queue.enqueue("q", b"x")
    await world.clock.advance(0)
    assert payload(second) == b"x"
    await queue.enqueue("q", b"y")
    assert await drain(queue) == [b"y"]


async def test_waits_for_different_queues_do_not_meet(world: World, queue: Queue) -> None:
    a = await started(world, queue.claim("a", wait=FOREVER))
    b = await started(world, queue.claim("b", wait=FOREVER))
    await queue.enqueue("b", b"x")
    await world.clock.advance(0)
    assert not a.done()
    assert payload(b) == b"x"
    await cancelled(world, a)


async def test_a_job_handed_to_a_wait_is_durable_and_its_lease_begins_then(
    world: World, queue: Queue
) -> None:
    wait = await started(world, queue.claim("q", 10, wait=FOREVER))
    world.wire.hold()
    enqueue = await started(world, queue.enqueue("q", b"x"))
    await world.clock.advance(60)
    assert not wait.done()
    world.wire.release()
    await enqueue
    claim = await wait
    assert claim is not None
    await world.clock.advance(9)
    assert claim.is_live
    await world.clock.advance(1)
    assert not claim.is_live


async def test_closing_and_losing_the_store_end_waits(world: World) -> None:
    queue = await world.open()
    wait = await started(world, queue.claim("q", wait=FOREVER))
    await queue.close()
    with pytest.raises(Closed):
        await wait
    fenced = await world.open()
    wait = await started(world, fenced.claim("q", wait=FOREVER))
    await world.open()
    with pytest.raises(Fenced):
        await fenced.enqueue("q", b"x")
    with pytest.raises(Fenced):
        await wait


async def test_many_waits_and_many_jobs_meet_in_order(world: World, queue: Queue) -> None:
    got: list[tuple[int, bytes]] = []

    async def consume(number: int) -> None:
        claim = await queue.claim("q", wait=FOREVER)
        assert claim is not None
        got.append((number, claim.job.payload))
        await queue.ack(claim)

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(consume, number)
        await world.clock.advance(0)
        for number in range(50):
            await queue.enqueue("q", b"%d" % number)
    assert sorted(got) == [(number, b"%d" % number) for number in range(50)]
    assert await queue.stats("q") == counts(done=50)


# -- one job ---------------------------------------------------------------------------------


async def test_a_job_is_claimed_by_its_id_out_of_turn(queue: Queue) -> None:
    """E12"""
    first = (await queue.enqueue("q", b"first")).job_id
    second = (await queue.enqueue("q", b"second")).job_id
    claim = await queue.claim_by_id(second)
    assert (claim.job.id, claim.job.attempts) == (second, 1)
    assert claim.job.claimed_at == claim.job.enqueued_at
    assert claim.job == await read(queue, second)
    assert (await take(queue)).job.id == first
    assert await queue.claim("q") is None
    await queue.ack(claim)


async def test_a_scheduled_job_is_claimed_by_its_id(world: World, queue: Queue) -> None:
    """E13"""
    job_id = (await queue.enqueue("q", b"x", delay=60)).job_id
    claim = await queue.claim_by_id(job_id)
    assert claim.job.run_at is None
    assert await queue.stats("q") == counts(claimed=1)
    await queue.ack(claim)
    await world.clock.advance(60)
    assert await queue.stats("q") == counts(done=1)


async def test_only_a_waiting_job_is_claimed_by_its_id(world: World) -> None:
    """E14"""
    queue = await world.open(config=QueueConfig(keep_done=60))
    dead = await die(queue)
    done = (await queue.enqueue("q", b"x")).job_id
    await queue.ack(await take(queue))
    claimed = (await queue.enqueue("q", b"x")).job_id
    await take(queue)
    for job_id, state in ((dead, "dead"), (done, "done"), (claimed, "claimed")):
        before = await read(queue, job_id)
        with pytest.raises(InvalidState, match=f"is {state}"):
            await queue.claim_by_id(job_id)
        assert await read(queue, job_id) == before
    with pytest.raises(JobNotFound):
        await queue.claim_by_id("nothing")


async def test_the_lease_of_a_job_claimed_by_its_id(world: World) -> None:
    """E15"""
    queue = await world.open(config=QueueConfig(lease=5))
    job_id = (await queue.enqueue("q", b"x")).job_id
    claim = await queue.claim_by_id(job_id, 10)
    await world.clock.advance(9.9)
    assert claim.is_live
    await world.clock.advance(1.1)
    assert await queue.stats("q") == counts(pending=1)
    with pytest.raises(ClaimLost):
        await queue.ack(claim)
    claim = await queue.claim_by_id(job_id)
    await world.clock.advance(5)
    assert not claim.is_live, "by default, the queue's lease"


async def test_a_claim_by_id_gives_up_the_dedup_key(queue: Queue) -> None:
    """C6"""
    job_id = (await queue.enqueue("q", b"x", dedup_key="k")).job_id
    claim = await queue.claim_by_id(job_id)
    assert claim.job.dedup_key is None
    assert (await queue.enqueue("q", b"y", dedup_key="k")).created


async def test_a_claim_by_id_of_a_job_to_be_cancelled_says_so(world: World) -> None:
    queue = await world.open(config=NO_BACKOFF)
    job_id = (await queue.enqueue("q", b"x")).job_id
    claim = await take(queue)
    await queue.cancel(job_id)
    await queue.nack(claim, "again")
    claim = await queue.claim_by_id(job_id)
    assert claim.cancel_token.is_cancelled
    assert claim.job.cancel_requested


async def test_a_cancelled_claim_by_id_gives_the_job_back(world: World, queue: Queue) -> None:
    job_id = (await queue.enqueue("q", b"x")).job_id
    world.wire.hold()
    await cancelled(world, await started(world, queue.claim_by_id(job_id)))
    world.wire.release()
    job = await read(queue, job_id)
    assert (job.attempts, job.state.name) == (0, "PENDING")


async def test_a_claim_by_id_is_durable_when_it_returns(world: World, queue: Queue) -> None:
    job_id = (await queue.enqueue("q", b"x")).job_id
    world.wire.hold()
    first = await started(world, queue.claim_by_id(job_id))
    second = await started(world, queue.claim_by_id(job_id))
    assert not first.done()
    assert not second.done()
    world.wire.release()
    assert (await first).job.id == job_id
    with pytest.raises(InvalidState):
        await second
    queue = await world.crash()
    assert (await take(queue)).job.attempts == 2


async def test_a_wait_is_a_duration(queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="wait"):
        await queue.claim("q", wait=-1)
    with pytest.raises(InvalidType, match="wait"):
        await queue.claim_many("q", 1, wait="long")  # type: ignore[arg-type]
    with pytest.raises(InvalidJobId):
        await queue.claim_by_id("")
    with pytest.raises(InvalidArgument, match="lease"):
        await queue.claim_by_id("x", -1)
    assert not queue._core.waiting, "nothing is kept for calls that do not wait"


async def test_a_large_payload_comes_with_a_claim_that_waited(world: World) -> None:
    queue = await world.open(offload_payloads_above=4)
    wait = await started(world, queue.claim("q", wait=FOREVER))
    await queue.enqueue("q", b"payload")
    claim = await wait
    assert claim is not None
    assert claim.job.payload == b"payload"
    job_id = (await queue.enqueue("q", b"another", delay=60)).job_id
    assert (await queue.claim_by_id(job_id)).job.payload == b"another"
