"""Leases: expiry, renewal, cancellation of what is claimed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from taquba import Claim, JobState, Queue, QueueConfig
from taquba.errors import CancelRequested, ClaimLost
from taquba.queue import CancelOutcome, Effects
from tests.queue.harness import NO_BACKOFF, World, counts, read, started, take

pytestmark = pytest.mark.anyio

SETTLEMENTS: dict[str, Callable[[Queue, Claim], Awaitable[Any]]] = {
    "ack": lambda queue, claim: queue.ack(claim, Effects().put("effect", b"1")),
    "nack": lambda queue, claim: queue.nack(claim, "no", Effects().put("effect", b"1")),
    "dead_letter": lambda queue, claim: queue.dead_letter(
        claim, "no", Effects().put("effect", b"1")
    ),
}


async def test_no_lease_expires_at_once(world: World, queue: Queue) -> None:
    """F1"""
    await queue.enqueue("q", b"")
    await take(queue, lease=0)
    await world.clock.advance(0)
    assert await queue.stats("q") == counts(pending=1)
    assert (await take(queue)).job.attempts == 2


async def test_a_live_lease_is_left_alone(queue: Queue) -> None:
    """F2"""
    await queue.enqueue("q", b"")
    await take(queue)
    assert queue.reap_due() == 0
    assert await queue.stats("q") == counts(claimed=1)


async def test_a_settled_job_is_not_reaped(world: World, queue: Queue) -> None:
    """F3"""
    await queue.enqueue("q", b"")
    await queue.ack(await take(queue, lease=1))
    await world.clock.advance(60)
    assert await queue.stats("q") == counts(done=1)
    assert len(queue._core.leases) == 0


async def test_a_lease_has_expired_at_its_very_end(world: World, queue: Queue) -> None:
    """F4"""
    await queue.enqueue("q", b"")
    claim = await take(queue, lease=10)
    await world.clock.advance(9.5)
    assert claim.is_live
    await world.clock.advance(0.5)
    assert not claim.is_live
    assert await queue.stats("q") == counts(pending=1)


async def test_the_last_expired_lease_makes_the_job_dead(world: World, queue: Queue) -> None:
    """F5, J20"""
    job_id = (await queue.enqueue("q", b"", max_attempts=2)).job_id
    await take(queue, lease=1)
    await world.clock.advance(1)
    await take(queue, lease=1)
    await world.clock.advance(1)
    assert await queue.stats("q") == counts(dead=1)
    job = await read(queue, job_id)
    assert (job.state, job.last_error, job.attempts) == (JobState.DEAD, "lease expired", 2)
    assert job.failed_at is not None
    assert job.failed_at.timestamp() * 1000 == world.clock.now_ms()
    assert job.claimed_at is None


async def test_several_leases_expire_together(world: World, queue: Queue) -> None:
    """F6"""
    await queue.enqueue("q", b"", max_attempts=1)
    await queue.enqueue("q", b"")
    await queue.claim_many("q", 2, lease=1)
    await world.clock.advance(1)
    assert await queue.stats("q") == counts(pending=1, dead=1)
    assert len(queue._core.leases) == 0


@pytest.mark.parametrize("how", [*SETTLEMENTS, "renew", "ensure_at_least"])
@pytest.mark.parametrize("then", ["pending", "dead", "claimed again", "gone"])
async def test_a_claim_that_ended_can_do_nothing(
    world: World, queue: Queue, how: str, then: str
) -> None:
    """F7, F8, F9, F16, F19, J2"""
    await queue.enqueue("q", b"", max_attempts=1 if then == "dead" else 3)
    claim = await take(queue, lease=1)
    await world.clock.advance(1)
    newer = await take(queue) if then in ("claimed again", "gone") else None
    if then == "gone":
        assert newer is not None
        await queue.ack(newer)
    before = await queue.stats("q"), await queue.get_job(claim.job.id)
    if how in SETTLEMENTS:
        with pytest.raises(ClaimLost, match=claim.job.id):
            await SETTLEMENTS[how](queue, claim)
    else:
        with pytest.raises(ClaimLost):
            getattr(claim, how)(60)
    assert (await queue.stats("q"), await queue.get_job(claim.job.id)) == before
    assert await queue.kv.get("effect") is None
    if then == "claimed again":
        assert newer is not None
        await queue.ack(newer)
        assert await queue.stats("q") == counts(done=1)


@pytest.mark.parametrize("how", SETTLEMENTS)
async def test_an_overdue_claim_can_be_settled_until_it_is_taken_back(
    world: World, queue: Queue, how: str
) -> None:
    """F10"""
    await queue.enqueue("q", b"")
    claim = await take(queue, lease=1)
    world.clock.stall(60)  # nobody had a chance to reap
    await SETTLEMENTS[how](queue, claim)
    assert (await queue.stats("q")).claimed == 0


async def test_a_renewed_lease_outlives_its_first_end(world: World, queue: Queue) -> None:
    """F11, F12"""
    await queue.enqueue("q", b"")
    claim = await take(queue, lease=10)
    await world.clock.advance(5)
    claim.renew(10)
    await world.clock.advance(9)
    assert await queue.stats("q") == counts(claimed=1)
    await queue.ack(claim)
    await world.clock.advance(60)
    assert await queue.stats("q") == counts(done=1)
    assert len(queue._core.leases) == 0


async def test_a_renewal_can_shorten_a_lease(world: World, queue: Queue) -> None:
    """F13"""
    await queue.enqueue("q", b"")
    claim = await take(queue, lease=60)
    await world.clock.advance(1)
    claim.renew(timedelta(seconds=2))
    await world.clock.advance(1.5)
    assert claim.is_live
    await world.clock.advance(0.5)
    assert not claim.is_live


async def test_a_renewal_writes_nothing(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"")
    claim = await take(queue, lease=60)
    before = world.wire.entries
    for _ in range(10):
        claim.renew(60)
        await world.clock.advance(1)
    assert world.wire.entries == before


@pytest.mark.parametrize(("wanted", "lives_for"), [(10, 30), (25, 30), (26, 31), (60, 65)])
async def test_a_lease_is_extended_with_a_margin_and_only_if_it_has_to_be(
    world: World, queue: Queue, wanted: float, lives_for: float
) -> None:
    """F14"""
    await queue.enqueue("q", b"")
    claim = await take(queue, lease=30)
    claim.ensure_at_least(wanted)
    await world.clock.advance(lives_for - 0.5)
    assert claim.is_live
    await world.clock.advance(0.5)
    assert not claim.is_live


async def test_the_margin_counts(world: World, queue: Queue) -> None:
    """F15"""
    await queue.enqueue("q", b"")
    claim = await take(queue, lease=30)
    await world.clock.advance(18)
    claim.ensure_at_least(timedelta(seconds=10))
    await world.clock.advance(14.5)
    assert claim.is_live
    await world.clock.advance(0.5)
    assert not claim.is_live


async def test_a_lease_that_never_ends(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"")
    claim = await take(queue, lease=float("inf"))
    await world.clock.advance(timedelta(days=1000))
    assert claim.is_live
    claim.renew(1)
    await world.clock.advance(1)
    assert not claim.is_live


@pytest.mark.parametrize("extend", ["renew", "ensure_at_least"])
async def test_a_cancelled_claim_is_not_extended_but_can_be_settled(
    world: World, queue: Queue, extend: str
) -> None:
    """F17"""
    job_id = (await queue.enqueue("q", b"")).job_id
    claim = await take(queue, lease=10)
    await queue.cancel(job_id)
    with pytest.raises(CancelRequested):
        getattr(claim, extend)(60)
    await world.clock.advance(9)
    assert claim.is_live
    await queue.nack(claim, "stopped")
    assert await queue.stats("q") == counts(scheduled=1)


async def test_a_cancelled_claim_lives_to_the_end_of_its_lease(world: World, queue: Queue) -> None:
    job_id = (await queue.enqueue("q", b"")).job_id
    claim = await take(queue, lease=10)
    await queue.cancel(job_id)
    await world.clock.advance(10)
    assert not claim.is_live


async def test_an_expired_lease_leaves_the_last_error_and_clears_the_claim(
    world: World,
) -> None:
    """F22, F25"""
    queue = await world.open()  # with backoff
    job_id = (await queue.enqueue("q", b"")).job_id
    await queue.nack(await take(queue), "the first error")
    await world.clock.advance(1)
    await take(queue, lease=1)
    await world.clock.advance(1)
    job = await read(queue, job_id)
    assert job.state is JobState.PENDING
    assert (job.last_error, job.claimed_at, job.run_at) == ("the first error", None, None)


async def test_every_claim_has_one_lease(world: World) -> None:
    """F23"""
    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue_many("q", [b""] * 5)
    claims = await queue.claim_many("q", 4)
    claims[0].renew(60)
    await queue.nack(claims[1], "again")
    await queue.ack(claims[2])
    again = await take(queue)
    assert again.job.id == claims[1].job.id
    assert len(queue._core.leases) == (await queue.stats("q")).claimed == 3


async def test_two_claims_of_one_job_after_another_are_told_apart(world: World) -> None:
    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue("q", b"")
    first = await take(queue)
    await queue.nack(first, "again")
    second = await take(queue)
    with pytest.raises(ClaimLost):
        await queue.ack(first)
    await queue.ack(second)


async def test_nobody_s_time_runs_while_the_event_loop_stands_still(
    world: World, queue: Queue
) -> None:
    await queue.enqueue("q", b"")
    claim = await take(queue, lease=10)
    await world.clock.advance(4)
    world.clock.stall(3600)
    await world.clock.advance(4.5)  # a stall is measured to within a second
    assert claim.is_live
    await queue.ack(claim)
    assert await queue.stats("q") == counts(done=1)


async def test_a_stall_does_not_take_what_was_left_of_a_lease_that_was_about_to_end(
    world: World, queue: Queue
) -> None:
    await queue.enqueue("q", b"")
    claim = await take(queue, lease=1.5)
    await world.clock.advance(1)
    world.clock.stall(60)
    await world.clock.advance(0.4)  # of the half second that was left
    assert claim.is_live
    await world.clock.advance(2)
    assert not claim.is_live


async def test_a_stall_does_not_extend_a_lease_for_ever(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"")
    claim = await take(queue, lease=10)
    world.clock.stall(3600)
    await world.clock.advance(11)
    assert not claim.is_live


async def test_a_stall_is_noticed_although_somebody_renews_right_after_it(
    world: World, queue: Queue
) -> None:
    await queue.enqueue_many("q", [b"1", b"2"])
    first, second = await queue.claim_many("q", 2, lease=3610)
    await world.clock.advance(1)
    world.clock.stall(3600)
    second.renew(5)  # before the reaper had its turn; moves the earliest expiry
    await world.clock.advance(60)
    assert first.is_live
    await queue.ack(first)


async def test_leases_follow_the_steady_clock(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"")
    claim = await take(queue, lease=10)
    world.clock.shift_wall_clock(timedelta(days=1))
    await world.clock.advance(9)
    assert claim.is_live
    world.clock.shift_wall_clock(timedelta(days=-2))
    await world.clock.advance(1)
    assert not claim.is_live


async def test_no_lease_means_no_timer(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"")
    await queue.ack(await take(queue))
    await world.clock.advance(60)
    assert world.clock.sleeping == 0


# -- cancellation ---------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [None, 60])
async def test_a_waiting_job_is_removed(world: World, queue: Queue, delay: float | None) -> None:
    """N1"""
    job_id = (await queue.enqueue("q", b"", delay=delay)).job_id
    assert (await queue.cancel(job_id)).outcome is CancelOutcome.REMOVED
    assert await queue.get_job(job_id) is None
    assert await queue.stats("q") == counts()
    await world.clock.advance(60)
    assert await queue.claim("q") is None
    queue = await world.crash()
    assert await queue.get_job(job_id) is None


async def test_a_claimed_job_is_asked_to_stop(world: World, queue: Queue) -> None:
    """N2"""
    job_id = (await queue.enqueue("q", b"")).job_id
    claim = await take(queue)
    assert not claim.cancel_token.is_cancelled
    assert (await queue.cancel(job_id)).outcome is CancelOutcome.REQUESTED
    assert claim.cancel_token.is_cancelled
    assert (await read(queue, job_id)).cancel_requested
    await queue.ack(claim)
    assert await queue.stats("q") == counts(done=1)


async def test_whoever_waits_for_the_token_is_woken(world: World, queue: Queue) -> None:
    """N3"""
    job_id = (await queue.enqueue("q", b"")).job_id
    claim = await take(queue)
    waiting = await started(world, claim.cancel_token.wait())
    assert not waiting.done()
    await queue.cancel(job_id)
    await waiting
    await claim.cancel_token.wait()


async def test_a_job_that_ended_is_not_found(world: World) -> None:
    """N4"""
    queue = await world.open(config=QueueConfig(keep_done=60))
    for job_id in ("done", "dead"):
        await queue.enqueue("q", b"", job_id=job_id)
    await queue.ack(await take(queue))
    await queue.dead_letter(await take(queue), "no")
    for job_id in ("done", "dead", "unknown"):
        assert (await queue.cancel(job_id)).outcome is CancelOutcome.NOT_FOUND
    assert await queue.stats("q") == counts(done=1, dead=1)


@pytest.mark.parametrize("how", ["expires", "nack", "crash"])
async def test_a_cancellation_outlives_the_claim(world: World, how: str) -> None:
    """N5, N6"""
    queue = await world.open(config=NO_BACKOFF)
    job_id = (await queue.enqueue("q", b"")).job_id
    claim = await take(queue, lease=1)
    await queue.cancel(job_id)
    if how == "expires":
        await world.clock.advance(1)
    elif how == "nack":
        await queue.nack(claim, "again")
    else:
        queue = await world.crash()
    again = await take(queue)
    assert again.job.cancel_requested
    assert again.cancel_token.is_cancelled
    await again.cancel_token.wait()
    with pytest.raises(CancelRequested):
        again.renew(60)


async def test_the_record_of_a_cancelled_job_says_so(world: World) -> None:
    """N7, N8"""
    queue = await world.open(config=QueueConfig(keep_done=60))
    for job_id in ("done", "dead"):
        await queue.enqueue("q", b"", job_id=job_id)
    done, dead = await queue.claim_many("q", 2)
    await queue.cancel("done")
    await queue.cancel("dead")
    await queue.ack(done)
    await queue.dead_letter(dead, "no")
    assert (await read(queue, "done")).cancel_requested
    assert (await read(queue, "dead")).cancel_requested
    await queue.requeue_dead("dead")
    assert not (await read(queue, "dead")).cancel_requested
    assert not (await take(queue)).cancel_token.is_cancelled


async def test_only_the_current_claim_is_told(world: World) -> None:
    """N9"""
    queue = await world.open(config=NO_BACKOFF)
    job_id = (await queue.enqueue("q", b"")).job_id
    first = await take(queue)
    await queue.nack(first, "again")
    second = await take(queue)
    await queue.cancel(job_id)
    assert not first.cancel_token.is_cancelled
    assert second.cancel_token.is_cancelled


async def test_cancelling_twice_writes_once(world: World, queue: Queue) -> None:
    """N10"""
    job_id = (await queue.enqueue("q", b"")).job_id
    await take(queue)
    await queue.cancel(job_id)
    before = world.wire.entries
    assert (await queue.cancel(job_id)).outcome is CancelOutcome.REQUESTED
    assert world.wire.entries == before


async def test_a_reaped_job_can_be_removed(world: World, queue: Queue) -> None:
    """N11"""
    job_id = (await queue.enqueue("q", b"")).job_id
    await take(queue, lease=1)
    await world.clock.advance(1)
    assert (await queue.cancel(job_id)).outcome is CancelOutcome.REMOVED
    assert len(queue._core.leases) == 0


async def test_a_cancellation_is_kept_by_a_retry_at_the_same_time(world: World) -> None:
    """N12"""
    queue = await world.open(config=NO_BACKOFF)
    job_id = (await queue.enqueue("q", b"")).job_id
    claim = await take(queue)
    world.wire.hold()
    cancelling = await started(world, queue.cancel(job_id))
    nacking = await started(world, queue.nack(claim, "again"))
    world.wire.release()
    assert (await cancelling).outcome is CancelOutcome.REQUESTED
    await nacking
    assert (await read(queue, job_id)).cancel_requested


async def test_a_job_that_backs_off_can_be_removed(queue: Queue) -> None:
    """N13"""
    job_id = (await queue.enqueue("q", b"")).job_id
    await queue.nack(await take(queue), "again")
    assert (await queue.cancel(job_id)).outcome is CancelOutcome.REMOVED
    assert await queue.get_job(job_id) is None
    assert await queue.stats("q") == counts()


async def test_a_second_request_waits_for_the_first_to_be_stored(
    world: World, queue: Queue
) -> None:
    job_id = (await queue.enqueue("q", b"")).job_id
    await take(queue)
    world.wire.hold()
    first = await started(world, queue.cancel(job_id))
    second = await started(world, queue.cancel(job_id))
    assert not second.done()
    world.wire.release()
    await first
    await second


async def test_a_removal_is_reported_as_such_only_when_it_is_stored(
    world: World, queue: Queue
) -> None:
    job_id = (await queue.enqueue("q", b"")).job_id
    world.wire.hold()
    first = await started(world, queue.cancel(job_id))
    second = await started(world, queue.cancel(job_id))
    assert not first.done()
    assert not second.done()
    world.wire.release()
    assert (await first).outcome is CancelOutcome.REMOVED
    assert (await second).outcome is CancelOutcome.NOT_FOUND


async def test_a_lease_runs_from_the_moment_at_which_its_claim_is_handed_out(
    world: World, queue: Queue
) -> None:
    await queue.enqueue("q", b"")
    world.wire.hold()
    claiming = await started(world, queue.claim("q", 10))
    await world.clock.advance(3600)
    assert not claiming.done()
    world.wire.release()
    claim = await claiming
    assert claim is not None
    assert claim.job.attempts == 1
    await world.clock.advance(9)
    assert claim.is_live
    await world.clock.advance(1)
    assert not claim.is_live
