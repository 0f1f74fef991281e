"""Waiting for a job to end."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import anyio
import pytest

from taquba import Claim, JobState, Queue, QueueConfig
from taquba.errors import Closed, CommitUnknown, Fenced, InvalidArgument, InvalidJobId, JobNotFound
from taquba.queue import (
    CancelOutcome,
    Completion,
    CompletionOutcome,
    QueueTransaction,
    Settlement,
)
from tests.queue.harness import NO_BACKOFF, World, cancelled, die, read, started, take

pytestmark = pytest.mark.anyio

DONE, DEAD, CANCELLED = CompletionOutcome


async def waiting(world: World, queue: Queue, job_id: str) -> asyncio.Future[Completion]:
    wait = await started(world, queue.wait_for_completion(job_id))
    assert not wait.done()
    return wait


async def test_an_unknown_job_is_not_found_at_once(queue: Queue) -> None:
    """O1"""
    with pytest.raises(JobNotFound):
        await queue.wait_for_completion("nothing")
    with pytest.raises(InvalidJobId):
        await queue.wait_for_completion("")
    with pytest.raises(InvalidArgument):
        await queue.wait_for_completion("nothing", -1)


async def test_a_wait_ends_when_its_time_is_over(world: World, queue: Queue) -> None:
    """O2"""
    job_id = (await queue.enqueue("q", b"x")).job_id
    wait = await started(world, queue.wait_for_completion(job_id, 5))
    await world.clock.advance(4.9)
    assert not wait.done()
    await world.clock.advance(0.1)
    with pytest.raises(TimeoutError, match="did not end in 5 s"):
        await wait
    with pytest.raises(TimeoutError):
        await queue.wait_for_completion(job_id, 0)
    assert not queue._core.watched


async def test_an_acknowledged_job_is_delivered_though_it_is_not_kept(
    world: World, queue: Queue
) -> None:
    """O3"""
    job_id = (await queue.enqueue("q", b"payload", headers={"a": "b"})).job_id
    wait = await waiting(world, queue, job_id)
    claim = await take(queue)
    await world.clock.advance(2)
    await queue.cancel(job_id)
    await queue.ack(claim)
    end = await wait
    assert end.outcome is DONE
    assert (end.job.id, end.job.payload, end.job.headers) == (job_id, b"payload", {"a": "b"})
    assert end.job.state is JobState.DONE
    assert end.job.completed_at == end.job.enqueued_at + timedelta(seconds=2)
    assert end.job.cancel_requested
    assert await queue.get_job(job_id) is None


async def test_a_job_that_ended_before_is_found_if_it_is_kept(world: World) -> None:
    """O4; and a dead one always is."""
    queue = await world.open(queues={"kept": QueueConfig(keep_done=60)})
    job_id = (await queue.enqueue("kept", b"x")).job_id
    await queue.ack(await take(queue, "kept"))
    assert await queue.wait_for_completion(job_id) == Completion(DONE, await read(queue, job_id))
    job_id = (await queue.enqueue("q", b"x")).job_id
    await queue.ack(await take(queue))
    with pytest.raises(JobNotFound):
        await queue.wait_for_completion(job_id)
    job_id = await die(queue)
    assert await queue.wait_for_completion(job_id) == Completion(DEAD, await read(queue, job_id))


async def test_a_kept_record_is_what_is_delivered(world: World) -> None:
    queue = await world.open(config=QueueConfig(keep_done=60))
    job_id = (await queue.enqueue("q", b"x")).job_id
    wait = await waiting(world, queue, job_id)
    await queue.ack(await take(queue))
    assert (await wait).job == await read(queue, job_id)


@pytest.mark.parametrize("how", ["nack", "dead_letter", "lease"])
async def test_a_job_that_dies_is_delivered_with_its_error(world: World, how: str) -> None:
    """O5"""
    queue = await world.open()
    job_id = (await queue.enqueue("q", b"x", max_attempts=1)).job_id
    wait = await waiting(world, queue, job_id)
    claim = await take(queue, "q", 10)
    if how == "nack":
        await queue.nack(claim, "too bad")
    elif how == "dead_letter":
        await queue.dead_letter(claim, "too bad")
    else:
        await world.clock.advance(10)
    end = await wait
    assert end == Completion(DEAD, await read(queue, job_id))
    assert end.job.last_error == ("lease expired" if how == "lease" else "too bad")
    assert end.job.failed_at is not None
    assert end.job.payload == b"x"


async def test_a_removed_job_is_cancelled(world: World, queue: Queue) -> None:
    """O6"""
    job_id = (await queue.enqueue("q", b"x", delay=60)).job_id
    before = await read(queue, job_id)
    wait = await waiting(world, queue, job_id)
    await queue.cancel(job_id)
    assert await wait == Completion(CANCELLED, before)


async def test_a_requested_cancellation_is_no_end(world: World, queue: Queue) -> None:
    """O7"""
    job_id = (await queue.enqueue("q", b"x")).job_id
    wait = await waiting(world, queue, job_id)
    claim = await take(queue)
    assert (await queue.cancel(job_id)).outcome is CancelOutcome.REQUESTED
    await world.clock.advance(1)
    assert not wait.done()
    await queue.ack(claim)
    assert (await wait).outcome is DONE


async def test_a_job_that_comes_back_has_not_ended(world: World) -> None:
    """O8"""
    queue = await world.open(config=NO_BACKOFF)
    job_id = (await queue.enqueue("q", b"x", delay=5)).job_id
    wait = await waiting(world, queue, job_id)
    await world.clock.advance(5)
    await queue.nack(await take(queue), "again")
    await take(queue, "q", 10)
    await world.clock.advance(10)
    claim = await take(queue)
    assert (claim.job.id, claim.job.attempts) == (job_id, 3)
    assert not wait.done()
    await queue.ack(claim)
    assert (await wait).job.attempts == 3


async def test_all_who_wait_for_a_job_get_the_same(world: World, queue: Queue) -> None:
    """O9"""
    job_id = (await queue.enqueue("q", b"x")).job_id
    waits = [await waiting(world, queue, job_id) for _ in range(4)]
    await queue.ack(await take(queue))
    ends = await asyncio.gather(*waits)
    assert ends == [ends[0]] * 4
    assert ends[0].outcome is DONE


async def test_only_those_who_wait_for_this_job_are_told(world: World, queue: Queue) -> None:
    """O10"""
    first = await waiting(world, queue, (await queue.enqueue("q", b"1")).job_id)
    second = await waiting(world, queue, (await queue.enqueue("q", b"2")).job_id)
    await queue.ack(await take(queue))
    assert (await first).job.payload == b"1"
    assert not second.done()
    await queue.ack(await take(queue))
    assert (await second).job.payload == b"2"


async def test_an_end_is_told_only_when_it_is_durable(world: World, queue: Queue) -> None:
    job_id = (await queue.enqueue("q", b"x")).job_id
    early = await waiting(world, queue, job_id)
    claim = await take(queue)
    world.wire.hold()
    ack = await started(world, queue.ack(claim))
    late = await waiting(world, queue, job_id)
    assert not early.done()
    assert not ack.done()
    world.wire.release()
    assert (await early).outcome is DONE
    with pytest.raises(JobNotFound):  # it came after the end
        await late


async def test_a_removal_that_races_the_wait_is_told_as_what_it_is(
    world: World, queue: Queue
) -> None:
    """O12"""
    job_id = (await queue.enqueue("q", b"x")).job_id
    wait = asyncio.ensure_future(queue.wait_for_completion(job_id))
    removal = asyncio.ensure_future(queue.cancel(job_id))
    assert (await wait).outcome is CANCELLED
    await removal


async def test_an_abandoned_wait_leaves_nothing_behind(world: World, queue: Queue) -> None:
    """O13"""
    job_id = (await queue.enqueue("q", b"x")).job_id
    first = await waiting(world, queue, job_id)
    second = await waiting(world, queue, job_id)
    await cancelled(world, first)
    assert queue._core.watched
    await cancelled(world, second)
    assert not queue._core.watched
    await queue.ack(await take(queue))
    third = (await queue.enqueue("q", b"x")).job_id
    wait = await waiting(world, queue, third)
    await queue.ack(await take(queue))
    await wait
    assert not queue._core.watched


async def test_a_wait_abandoned_while_its_end_is_stored_is_no_error(
    world: World, queue: Queue
) -> None:
    job_id = (await queue.enqueue("q", b"x")).job_id
    first, second = [await waiting(world, queue, job_id) for _ in range(2)]
    claim = await take(queue)
    world.wire.hold()
    ack = await started(world, queue.ack(claim))
    await cancelled(world, first)
    world.wire.release()
    await ack
    assert (await second).outcome is DONE


async def test_a_refused_settlement_ends_no_wait(world: World, queue: Queue) -> None:
    job_id = (await queue.enqueue("q", b"x")).job_id
    wait = await waiting(world, queue, job_id)
    claim = await take(queue)
    with pytest.raises(ZeroDivisionError), queue.transaction() as tx:
        tx.ack(claim)
        raise ZeroDivisionError
    await world.clock.advance(1)
    assert not wait.done()
    await queue.dead_letter(claim, "no")
    assert (await wait).outcome is DEAD


async def test_jobs_of_a_worker_end_waits(world: World, queue: Queue) -> None:
    ids = [
        enqueued.job_id
        for enqueued in await queue.enqueue_many("q", [b"ok", b"bad"] * 20, max_attempts=1)
    ]
    waits = [await waiting(world, queue, job_id) for job_id in ids]

    async def handle(claim: Claim) -> Settlement:
        if claim.job.payload == b"bad":
            raise ValueError("bad")

        def settle(tx: QueueTransaction) -> None:
            tx.ack(claim)

        return settle

    worker = queue.engine("q", handle, concurrency=7)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        ends = await asyncio.gather(*waits)
        worker.stop()
    assert [end.outcome for end in ends] == [DONE, DEAD] * 20
    assert [end.job.id for end in ends] == ids
    assert not queue._core.watched


async def test_a_job_that_died_with_its_process_is_found_by_the_next(world: World) -> None:
    queue = await world.open()
    job_id = (await queue.enqueue("q", b"x", max_attempts=1)).job_id
    await take(queue)
    queue = await world.crash()
    end = await queue.wait_for_completion(job_id)
    assert end.outcome is DEAD
    assert end.job.last_error == "claim interrupted by process exit"


async def test_closing_and_losing_the_store_end_waits(world: World) -> None:
    queue = await world.open()
    job_id = (await queue.enqueue("q", b"x")).job_id
    wait = await waiting(world, queue, job_id)
    await queue.close()
    with pytest.raises(Closed):
        await wait
    with pytest.raises(Closed):
        await queue.wait_for_completion(job_id)

    fenced = await world.open()
    wait = await waiting(world, fenced, job_id)
    ending = await waiting(world, fenced, job_id)
    claim = await take(fenced)
    await world.open()
    with pytest.raises(Fenced):
        await fenced.ack(claim)
    for lost in (wait, ending):
        with pytest.raises(Fenced):
            await lost


async def test_an_end_that_cannot_be_stored_in_time_is_not_told(world: World) -> None:
    queue = await world.open(close_timeout=1)
    job_id = (await queue.enqueue("q", b"x")).job_id
    wait = await waiting(world, queue, job_id)
    claim = await take(queue)
    world.wire.hold()
    ack = await started(world, queue.ack(claim))
    closing = await started(world, queue.close())
    await world.clock.advance(1)
    for lost in (ack, closing, wait):
        with pytest.raises(CommitUnknown):
            await lost


@pytest.mark.parametrize("how", ["ack", "dead_letter", "lease", "before"])
async def test_a_payload_that_is_an_object_comes_with_the_record(world: World, how: str) -> None:
    """O11"""
    queue = await world.open(offload_payloads_above=4)
    job_id = (await queue.enqueue("q", b"payload", max_attempts=1)).job_id
    if how == "before":
        await queue.dead_letter(await take(queue), "no")
        end = await queue.wait_for_completion(job_id)
    else:
        wait = await waiting(world, queue, job_id)
        claim = await take(queue, "q", 10)
        if how == "ack":
            await queue.ack(claim)
        elif how == "dead_letter":
            await queue.dead_letter(claim, "no")
        else:
            await world.clock.advance(10)
        end = await wait
    assert end.job.payload == b"payload"
    assert end.job.is_offloaded


async def test_a_payload_that_cannot_be_read_does_not_hide_the_end(
    world: World, queue: Queue
) -> None:
    await queue.close()
    queue = await world.open(offload_payloads_above=4)
    job_id = (await queue.enqueue("q", b"payload", max_attempts=1)).job_id
    wait = await waiting(world, queue, job_id)
    await take(queue, "q", 10)
    payloads = [info.key async for info in world.store.list("payloads/")]
    await world.store.delete(payloads)
    await world.clock.advance(10)
    end = await wait
    assert (end.outcome, end.job.payload_fetched) == (DEAD, False)
