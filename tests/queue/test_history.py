"""What is kept of the attempts of a job."""

from __future__ import annotations

from typing import Any

import pytest

from taquba import Follower, JobState, Queue, QueueConfig
from taquba.queue import MAX_HISTORY, AttemptOutcome
from tests.queue.harness import NO_BACKOFF, World, die, take

pytestmark = pytest.mark.anyio

KEEPING = QueueConfig(backoff_base=0, keep_done=60)


async def outcomes(queue: Queue, job_id: str) -> list[tuple[int, str, str | None]]:
    history = await queue.attempt_history(job_id)
    return [(each.attempt, each.outcome.name, each.error) for each in history]


def rows(queue: Queue) -> int:
    [(count,)] = queue.peek("SELECT count(*) FROM attempts")
    return int(count)


async def test_retries_and_a_success(world: World) -> None:
    """Q8, H14"""
    queue = await world.open(config=KEEPING)
    job_id = (await queue.enqueue("q", b"")).job_id
    assert await queue.attempt_history(job_id) == ()
    await queue.nack(await take(queue), "one")
    await world.clock.advance(1)
    await queue.nack(await take(queue), ValueError("two"))
    await queue.ack(await take(queue))
    assert await outcomes(queue, job_id) == [
        (1, "RETRIED", "one"),
        (2, "RETRIED", "two"),
        (3, "COMPLETED", None),
    ]
    done = await queue.get_job(job_id)
    assert done is not None and done.state is JobState.DONE and done.last_error == "two"


async def test_times_of_an_attempt(world: World, queue: Queue) -> None:
    """H15, Q10"""
    job_id = (await queue.enqueue("q", b"", max_attempts=1)).job_id
    claim = await take(queue)
    await world.clock.advance(3)
    await queue.nack(claim, "no")
    [attempt] = await queue.attempt_history(job_id)
    dead = await queue.get_job(job_id)
    assert dead is not None
    assert attempt.outcome is AttemptOutcome.DEAD_LETTERED
    assert attempt.claimed_at == claim.job.claimed_at
    assert attempt.recorded_at == dead.failed_at


async def test_a_finished_job_that_is_not_kept_leaves_nothing(world: World) -> None:
    """Q9, A9"""
    queue = await world.open(config=NO_BACKOFF)
    job_id = (await queue.enqueue("q", b"", job_id="x")).job_id
    await queue.nack(await take(queue), "one")
    await queue.ack(await take(queue))
    assert await queue.attempt_history(job_id) == ()
    assert rows(queue) == 0
    await queue.enqueue("q", b"", job_id="x")
    assert await queue.attempt_history(job_id) == ()


async def test_a_new_life_of_a_dead_job(world: World) -> None:
    """Q11"""
    queue = await world.open()
    job_id = await die(queue)
    await queue.requeue_dead(job_id)
    [_, requeued] = await queue.attempt_history(job_id)
    assert (requeued.attempt, requeued.claimed_at) == (0, None)
    await queue.dead_letter(await take(queue), "again")
    assert await outcomes(queue, job_id) == [
        (1, "DEAD_LETTERED", "given up"),
        (0, "REQUEUED", None),
        (1, "DEAD_LETTERED", "again"),
    ]


async def test_expired_leases(queue: Queue) -> None:
    """Q12, F22"""
    job_id = (await queue.enqueue("q", b"", max_attempts=2)).job_id
    for _ in range(2):
        await take(queue, lease=0)
        assert queue.reap_due() == 1
    assert await outcomes(queue, job_id) == [
        (1, "LEASE_EXPIRED", None),
        (2, "DEAD_LETTERED", "lease expired"),
    ]


async def test_interrupted_attempts(world: World, queue: Queue) -> None:
    """G1, G2"""
    job_id = (await queue.enqueue("q", b"", max_attempts=2)).job_id
    await take(queue)
    queue = await world.crash()
    await take(queue)
    queue = await world.crash()
    assert await outcomes(queue, job_id) == [
        (1, "INTERRUPTED", None),
        (2, "DEAD_LETTERED", "claim interrupted by process exit"),
    ]


@pytest.mark.parametrize("end", ["cancel", "sweep dead", "sweep done"])
async def test_history_goes_with_its_job(world: World, end: str) -> None:
    """N13, Q3: whichever way the job goes."""
    queue = await world.open(config=QueueConfig(jitter=False, keep_dead=60, keep_done=60))
    job_id = (await queue.enqueue("q", b"")).job_id
    await queue.nack(await take(queue), "no")
    if end == "cancel":
        await queue.cancel(job_id)
    else:
        await world.clock.advance(1)
        claim = await take(queue)
        settle: Any = queue.ack if end == "sweep done" else queue.dead_letter
        await (settle(claim) if end == "sweep done" else settle(claim, "no"))
        assert rows(queue) == 2
        await world.clock.advance(61)
    assert await queue.get_job(job_id) is None
    assert await queue.attempt_history(job_id) == ()
    assert rows(queue) == 0


async def test_a_job_that_is_given_back_has_no_attempt(world: World, queue: Queue) -> None:
    job_id = (await queue.enqueue("q", b"")).job_id
    claim = await take(queue)
    with queue.transaction() as tx:
        tx.release(claim)
    assert await queue.attempt_history(job_id) == ()


async def test_it_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_HISTORY == 1000
    monkeypatch.setattr("taquba.queue._transaction._history.MAX_HISTORY", 10)
    queue = await world.open(config=NO_BACKOFF)
    job_id = (await queue.enqueue("q", b"", max_attempts=50)).job_id
    for number in range(15):
        await queue.nack(await take(queue), str(number))
    history = await queue.attempt_history(job_id)
    assert [each.attempt for each in history] == list(range(6, 16))
    assert history[-1].error == "14"


async def test_an_unknown_job_has_none(queue: Queue) -> None:
    """Q13"""
    assert await queue.attempt_history("nobody") == ()


async def test_a_success_costs_no_statement_more(world: World) -> None:
    queue = await world.open()
    await queue.enqueue("q", b"")
    claim = await take(queue)
    seen: list[str] = []
    with queue.transaction() as tx:
        connection = queue._core.database._state.connection
        connection.exec_trace = lambda _, sql, __: not seen.append(sql)
        tx.ack(claim)
        connection.exec_trace = None
    assert [sql.split()[0] for sql in seen] == ["DELETE"]


async def test_a_follower_tells_it_too(world: World) -> None:
    queue = await world.open(config=NO_BACKOFF)
    job_id = (await queue.enqueue("q", b"")).job_id
    await queue.nack(await take(queue), "no")
    async with Follower.open(world.store, clock=world.clock) as follower:
        assert await follower.attempt_history(job_id) == await queue.attempt_history(job_id)
