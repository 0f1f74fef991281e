"""ack, nack, dead_letter, backoff."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taquba import JobState, Queue, QueueConfig
from taquba.errors import ClaimLost, InvalidArgument
from taquba.queue import RetryPolicy
from tests.queue.harness import NO_BACKOFF, World, counts, read, started, take

pytestmark = pytest.mark.anyio


async def test_an_acknowledged_job_is_gone(queue: Queue) -> None:
    """H1"""
    await queue.enqueue("q", b"")
    claim = await take(queue)
    settled = await queue.ack(claim)
    assert (settled.state, settled.effects) == (JobState.DONE, ())
    assert await queue.get_job(claim.job.id) is None
    assert await queue.stats("q") == counts(done=1)
    assert not claim.is_live


async def test_the_record_of_a_done_job_can_be_kept(world: World) -> None:
    """H2"""
    queue = await world.open(config=QueueConfig(keep_done=60))
    await queue.enqueue("q", b"data", headers={"a": "b"})
    claim = await take(queue)
    await world.clock.advance(5)
    await queue.ack(claim)
    job = await read(queue, claim.job.id)
    assert (job.state, job.payload, job.headers) == (JobState.DONE, b"data", {"a": "b"})
    assert job.completed_at is not None
    assert job.completed_at.timestamp() * 1000 == world.clock.now_ms()
    assert job.claimed_at == claim.job.claimed_at
    assert job.failed_at is None


async def test_a_claim_settles_once(queue: Queue) -> None:
    """H3"""
    await queue.enqueue("q", b"")
    claim = await take(queue)
    await queue.ack(claim)
    with pytest.raises(ClaimLost):
        await queue.ack(claim)
    assert await queue.stats("q") == counts(done=1)


async def test_a_failed_attempt_is_followed_by_another(world: World) -> None:
    """H4"""
    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue("q", b"")
    claim = await take(queue)
    settled = await queue.nack(claim, ValueError("broken"))
    assert settled.state is JobState.PENDING
    assert not claim.is_live
    again = await take(queue)
    assert (again.job.attempts, again.job.last_error) == (2, "broken")
    assert again.job.id == claim.job.id


async def test_the_last_failed_attempt_makes_the_job_dead(world: World, queue: Queue) -> None:
    """H5"""
    await queue.enqueue("q", b"", max_attempts=1)
    claim = await take(queue)
    settled = await queue.nack(claim, "broken")
    assert settled.state is JobState.DEAD
    job = await read(queue, claim.job.id)
    assert (job.state, job.last_error, job.claimed_at) == (JobState.DEAD, "broken", None)
    assert job.failed_at is not None
    assert job.failed_at.timestamp() * 1000 == world.clock.now_ms()
    assert job.completed_at is None
    assert await queue.stats("q") == counts(dead=1)


async def test_a_failed_job_backs_off(queue: Queue) -> None:
    """H6"""
    await queue.enqueue("q", b"")
    settled = await queue.nack(await take(queue), "broken")
    assert settled.state is JobState.SCHEDULED
    assert await queue.stats("q") == counts(scheduled=1)
    assert await queue.claim("q") is None


async def test_a_job_comes_back_after_its_backoff(world: World) -> None:
    """H7"""
    queue = await world.open(config=QueueConfig(backoff_base=0.01, backoff_max=0.01, jitter=False))
    await queue.enqueue("q", b"")
    await queue.nack(await take(queue), "broken")
    await world.clock.advance(0.009)
    assert await queue.claim("q") is None
    await world.clock.advance(0.002)
    assert (await take(queue)).job.attempts == 2


def backoff(attempts: int, base: float | timedelta, most: float | timedelta) -> int:
    return RetryPolicy(base=base, max=most).longest_ms(attempts)


def test_a_backoff_doubles_up_to_its_maximum() -> None:
    """H8"""
    minute = timedelta(minutes=1)
    found = [backoff(n, timedelta(seconds=1), minute) for n in (1, 2, 3, 4, 20)]
    assert found == [1000, 2000, 4000, 8000, 60_000]


def test_no_base_means_no_backoff() -> None:
    """H9"""
    assert [backoff(n, 0, 60) for n in (1, 5, 100)] == [0, 0, 0]


def test_a_maximum_below_the_base_is_the_backoff() -> None:
    """H10"""
    assert [backoff(n, 10, 5) for n in (1, 2)] == [5000, 5000]
    assert backoff(1, 10, 0) == 0


def test_a_huge_number_of_attempts_is_fine() -> None:
    """H11"""
    for attempts in (100, 5000, 2**31 - 1):
        assert backoff(attempts, 1, 300) == 300_000


async def test_a_backoff_without_a_maximum_ends_some_day(world: World) -> None:
    endless = float("inf")
    queue = await world.open(
        config=QueueConfig(backoff_base=endless, backoff_max=endless, jitter=False)
    )
    job_id = (await queue.enqueue("q", b"")).job_id
    await queue.nack(await take(queue), "broken")
    job = await read(queue, job_id)
    assert job.run_at is not None
    assert job.run_at.year > 2100


async def test_a_job_can_be_given_up_early(queue: Queue) -> None:
    """H12"""
    await queue.enqueue("q", b"", max_attempts=5)
    claim = await take(queue)
    settled = await queue.dead_letter(claim, "hopeless")
    assert settled.state is JobState.DEAD
    job = await read(queue, claim.job.id)
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 1, "hopeless")


async def test_a_job_has_at_least_one_attempt(queue: Queue) -> None:
    """H13. Ours refuses what cannot be meant: see docs/decisions.md."""
    with pytest.raises(InvalidArgument):
        await queue.enqueue("q", b"", max_attempts=0)
    with pytest.raises(InvalidArgument):
        QueueConfig(max_attempts=0)
    assert await queue.stats("q") == counts()


async def test_a_done_record_keeps_the_last_error(world: World) -> None:
    """H14"""
    queue = await world.open(config=QueueConfig(keep_done=60, backoff_base=0))
    job_id = (await queue.enqueue("q", b"")).job_id
    await queue.nack(await take(queue), "first")
    await queue.nack(await take(queue), "second")
    await queue.ack(await take(queue))
    job = await read(queue, job_id)
    assert (job.state, job.last_error, job.attempts) == (JobState.DONE, "second", 3)


async def test_a_settlement_happens_at_one_moment(world: World, queue: Queue) -> None:
    """H15"""
    job_id = (await queue.enqueue("q", b"")).job_id
    claim = await take(queue)
    await world.clock.advance(3)
    at = world.clock.now_ms()
    world.wire.hold()
    nacking = await started(world, queue.nack(claim, "broken"))
    await world.clock.advance(0.5)
    world.wire.release()
    await nacking
    job = await read(queue, job_id)
    assert job.run_at is not None
    assert job.run_at.timestamp() * 1000 == at + 1000


@pytest.mark.parametrize("reap_first", [True, False])
async def test_a_settlement_and_an_expiry_do_not_both_happen(
    world: World, reap_first: bool
) -> None:
    """H16"""
    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue("q", b"")
    claim = await take(queue, lease=1)
    world.clock.stall(60)
    if reap_first:
        assert queue.reap_due() == 1
        with pytest.raises(ClaimLost):
            await queue.nack(claim, "broken")
    else:
        nacking = await started(world, queue.nack(claim, "broken"))
        assert queue.reap_due() == 0
        await nacking
    assert await queue.stats("q") == counts(pending=1)


@pytest.mark.parametrize(
    ("retry_after", "comes_after"), [(None, 1), (0, 1), (0.5, 1), (timedelta(seconds=7), 7)]
)
async def test_a_retry_can_be_asked_to_come_later(
    world: World, queue: Queue, retry_after: float | None, comes_after: float
) -> None:
    await queue.enqueue("q", b"")
    await queue.nack(await take(queue), "busy", retry_after=retry_after)
    await world.clock.advance(comes_after - 0.5)
    assert await queue.stats("q") == counts(scheduled=1)
    await world.clock.advance(0.5)
    assert await queue.stats("q") == counts(pending=1)


async def test_a_retry_can_be_asked_to_come_later_without_backoff(world: World) -> None:
    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue("q", b"")
    assert (await queue.nack(await take(queue), "busy", retry_after=2)).state is JobState.SCHEDULED
    await world.clock.advance(2)
    assert (await take(queue)).job.attempts == 2


async def test_a_job_that_is_out_of_attempts_is_dead_whatever_it_asks(queue: Queue) -> None:
    await queue.enqueue("q", b"", max_attempts=1)
    settled = await queue.nack(await take(queue), "busy", retry_after=60)
    assert settled.state is JobState.DEAD


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        (ValueError("why"), "why"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "'k'"),
        ("bad \udcff name", "bad \\udcff name"),
        (OSError("cannot read \udcff"), "cannot read \\udcff"),
        ("a\0b ä \U0001f600", "a\0b ä \U0001f600"),
        (Unprintable(), "Unprintable"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
async def test_the_text_of_an_error_is_kept(
    world: World, queue: Queue, error: BaseException | str, text: str
) -> None:
    for settle in (queue.nack, queue.dead_letter):
        job_id = (await queue.enqueue("q", b"")).job_id
        await settle(await take(queue), error)
        assert (await read(queue, job_id)).last_error == text
    queue = await world.crash()
    assert (await read(queue, job_id)).last_error == text


async def test_settling_returns_only_when_it_is_stored(world: World, queue: Queue) -> None:
    await queue.enqueue_many("q", [b""] * 3)
    first, second, third = await queue.claim_many("q", 3)
    world.wire.hold()
    waiting = [
        await started(world, queue.ack(first)),
        await started(world, queue.nack(second, "no")),
        await started(world, queue.dead_letter(third, "no")),
    ]
    assert not any(task.done() for task in waiting)
    world.wire.release()
    for task in waiting:
        await task
    assert await queue.stats("q") == counts(scheduled=1, done=1, dead=1)


async def test_a_retried_job_can_be_claimed_before_the_nack_returns(world: World) -> None:
    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue("q", b"")
    claim = await take(queue)
    world.wire.hold()
    nacking = await started(world, queue.nack(claim, "again"))
    claiming = await started(world, queue.claim("q"))
    assert not nacking.done()
    world.wire.release()
    again = await claiming
    assert again is not None
    assert again.job.attempts == 2
    await nacking


async def test_stats_follow_a_job(queue: Queue) -> None:
    """R1"""
    await queue.enqueue("q", b"")
    assert await queue.stats("q") == counts(pending=1)
    claim = await take(queue)
    assert await queue.stats("q") == counts(claimed=1)
    await queue.ack(claim)
    assert await queue.stats("q") == counts(done=1)
    assert await queue.stats("never used") == counts()


async def test_one_transaction_settles_a_claim_once(queue: Queue) -> None:
    await queue.enqueue_many("q", [b"1", b"2"])
    first, second = await queue.claim_many("q", 2)
    with pytest.raises(ClaimLost), queue.transaction() as tx:
        tx.ack(second)
        tx.ack(first)
        tx.nack(first, "too late")
    assert first.is_live
    assert second.is_live
    assert await queue.stats("q") == counts(claimed=2)
