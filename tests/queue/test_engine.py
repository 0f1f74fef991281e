"""Workers: claim, handle, settle, and do all of it again after anything that can go wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from taquba import Claim, JobState, PermanentError, Queue, QueueConfig, TransientError
from taquba.errors import ClaimLost, Closed, Fenced
from taquba.queue import Effects, Engine, QueueTransaction, Settlement
from taquba.queue._shares import FairShares
from tests.queue.harness import (
    NO_BACKOFF,
    World,
    counts,
    drain,
    read,
    started,
    take,
)

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def working(world: World, worker: Engine) -> AsyncIterator[asyncio.Future[None]]:
    """Inside, the worker runs; at the end it is stopped, and finishes what it has."""
    task = await started(world, worker.run())
    try:
        yield task
    except BaseException:
        task.cancel()
        raise
    worker.stop()
    await task


def ack(claim: Claim) -> Settlement:
    return lambda tx: tx.ack(claim)


class Recorder:
    """A handler that acknowledges, and that can be made to wait."""

    def __init__(self) -> None:
        self.began: list[bytes] = []
        self.ended: list[bytes] = []
        self.cancelled: list[bytes] = []
        self.running = 0
        self.most_running = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, claim: Claim) -> Settlement:
        payload = claim.job.payload
        self.began.append(payload)
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            await asyncio.sleep(0)
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled.append(payload)
            raise
        finally:
            self.running -= 1
        self.ended.append(payload)
        return ack(claim)


async def test_a_worker_empties_its_queue(world: World, queue: Queue) -> None:
    """P1"""
    handler = Recorder()
    await queue.enqueue_many("q", [b"1", b"2", b"3"])
    await queue.enqueue("other", b"not mine")
    async with working(world, queue.engine("q", handler)):
        pass
    assert handler.ended == [b"1", b"2", b"3"]
    assert await queue.stats("q") == counts(done=3)
    assert await queue.stats("other") == counts(pending=1)


async def test_a_permanent_error_is_final(world: World, queue: Queue) -> None:
    """P2"""

    async def handler(claim: Claim) -> Settlement:
        raise PermanentError("hopeless")

    job_id = (await queue.enqueue("q", b"")).job_id
    async with working(world, queue.engine("q", handler)):
        pass
    job = await read(queue, job_id)
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 1, "hopeless")


@pytest.mark.parametrize("error", [TransientError("busy"), ValueError("busy")])
async def test_any_other_error_is_followed_by_a_retry(
    world: World, queue: Queue, error: Exception
) -> None:
    """P3"""

    async def handler(claim: Claim) -> Settlement:
        raise error

    job_id = (await queue.enqueue("q", b"")).job_id
    async with working(world, queue.engine("q", handler)):
        pass
    job = await read(queue, job_id)
    assert (job.state, job.attempts, job.last_error) == (JobState.SCHEDULED, 1, "busy")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [ValueError("\udcff"), Unprintable()])
async def test_an_error_that_is_hard_to_store_harms_nobody_else(
    world: World, queue: Queue, error: Exception
) -> None:
    async def handler(claim: Claim) -> Settlement:
        if claim.job.payload == b"bad":
            raise error
        return ack(claim)

    await queue.enqueue_many("q", [b"bad", b"good"], max_attempts=1)
    async with working(world, queue.engine("q", handler)):
        pass
    assert await queue.stats("q") == counts(done=1, dead=1)


async def test_effects_are_applied_and_a_follow_up_is_worked_on(world: World, queue: Queue) -> None:
    """P4, J15"""
    seen: list[bytes] = []

    async def handler(claim: Claim) -> Settlement:
        seen.append(claim.job.payload)
        effects = Effects().put("last", claim.job.payload)
        if claim.job.payload == b"1":
            effects.enqueue("q", b"2")
        return lambda tx: tx.ack(claim, effects)

    await queue.enqueue("q", b"1")
    async with working(world, queue.engine("q", handler)):
        pass
    assert seen == [b"1", b"2"]
    assert await queue.kv.get("last") == b"2"
    assert await queue.stats("q") == counts(done=2)


async def test_a_handler_can_give_up_with_effects(world: World, queue: Queue) -> None:
    """P5, P6"""

    async def handler(claim: Claim) -> Settlement:
        effects = Effects().put("dead", claim.job.payload)
        if claim.job.payload == b"for good":
            return lambda tx: tx.dead_letter(claim, "hopeless", effects)
        return lambda tx: tx.nack(claim, "busy", effects)

    await queue.enqueue("q", b"for good")
    async with working(world, queue.engine("q", handler)):
        pass
    assert await queue.stats("q") == counts(dead=1)
    assert await queue.kv.get("dead") == b"for good"
    await queue.enqueue("q", b"transient", max_attempts=2)
    async with working(world, queue.engine("q", handler)):
        assert await queue.kv.get("dead") == b"for good"
        await world.clock.advance(1)
        assert await queue.kv.get("dead") == b"transient"


async def test_an_expired_lease_cancels_the_handler(world: World, queue: Queue) -> None:
    """P7"""
    handler = Recorder()
    handler.may_end.clear()
    job_id = (await queue.enqueue("q", b"1")).job_id
    async with working(world, queue.engine("q", handler)):
        assert handler.began == [b"1"]
        await world.clock.advance(30)
        assert handler.cancelled == [b"1"]
        assert handler.began == [b"1", b"1"]
        assert (await read(queue, job_id)).attempts == 2
        handler.may_end.set()
    assert await queue.stats("q") == counts(done=1)


@pytest.mark.parametrize("how", ["returns", "raises"])
async def test_what_a_handler_says_after_its_lease_expired_is_refused(
    world: World, queue: Queue, how: str
) -> None:
    """P7"""

    async def handler(claim: Claim) -> Settlement:
        if claim.job.payload == b"1" and claim.job.attempts == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if how == "raises":
                    raise ValueError("late") from None
                return lambda tx: tx.ack(claim, Effects().put("late", b"1"))
        async with asyncio.timeout(None):  # does not see the cancellation of the one before
            await asyncio.sleep(0)
        return ack(claim)

    job_id = (await queue.enqueue("q", b"1", max_attempts=5)).job_id
    await queue.enqueue("q", b"2")
    async with working(world, queue.engine("q", handler)):
        await world.clock.advance(30)
        assert await queue.get_job(job_id) is None
    assert await queue.kv.get("late") is None
    assert await queue.stats("q") == counts(done=2)


async def test_a_slot_whose_lease_expired_goes_on_undisturbed(world: World) -> None:
    queue = await world.open(config=QueueConfig(lease=1, max_attempts=1))
    ends: list[str] = []

    async def handler(claim: Claim) -> Settlement:
        try:
            if claim.job.payload == b"stuck":
                await asyncio.Event().wait()
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))
            async with asyncio.timeout(None):
                await asyncio.sleep(0)
            assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        ends.append("done")
        return ack(claim)

    await queue.enqueue_many("q", [b"stuck", b"fine", b"stuck", b"fine"])
    async with working(world, queue.engine("q", handler)):
        await world.clock.advance(5)
    assert ends == ["cancelled", "done", "cancelled", "done"]
    assert await queue.stats("q") == counts(done=2, dead=2)


async def test_a_handler_can_extend_its_lease(world: World, queue: Queue) -> None:
    """P8"""

    async def handler(claim: Claim) -> Settlement:
        for _ in range(4):
            claim.ensure_at_least(25)
            await world.clock.sleep(20)
        return ack(claim)

    await queue.enqueue("q", b"")
    async with working(world, queue.engine("q", handler)):
        await world.clock.advance(79)
        assert await queue.stats("q") == counts(claimed=1)
        await world.clock.advance(1)
        assert await queue.stats("q") == counts(done=1)


async def test_a_handler_learns_that_its_job_was_cancelled(world: World, queue: Queue) -> None:
    async def handler(claim: Claim) -> Settlement:
        await claim.cancel_token.wait()
        return lambda tx: tx.dead_letter(claim, "cancelled")

    job_id = (await queue.enqueue("q", b"")).job_id
    async with working(world, queue.engine("q", handler)):
        await queue.cancel(job_id)
    assert (await read(queue, job_id)).last_error == "cancelled"


async def test_nobody_s_handler_is_cancelled_because_the_loop_stood_still(
    world: World, queue: Queue
) -> None:
    handler = Recorder()
    handler.may_end.clear()
    await queue.enqueue_many("q", [b"1", b"2"])
    async with working(world, queue.engine("q", handler, concurrency=2)):
        await world.clock.advance(10)
        world.clock.stall(3600)
        await world.clock.advance(10)
        handler.may_end.set()
    assert handler.cancelled == []
    assert await queue.stats("q") == counts(done=2)


# -- stopping -------------------------------------------------------------------------------


async def test_a_stopped_worker_finishes_its_job(world: World, queue: Queue) -> None:
    """P9"""
    handler = Recorder()
    handler.may_end.clear()
    await queue.enqueue_many("q", [b"1", b"2"])
    worker = queue.engine("q", handler)
    task = await started(world, worker.run())
    worker.stop()
    await world.clock.advance(0)
    assert not task.done()
    handler.may_end.set()
    await task
    assert handler.ended == [b"1"]
    assert await queue.stats("q") == counts(pending=1, done=1)


async def test_a_worker_ends_only_when_its_last_settlement_is_stored(
    world: World, queue: Queue
) -> None:
    handler = Recorder()
    handler.may_end.clear()
    await queue.enqueue("q", b"1")
    worker = queue.engine("q", handler)
    task = await started(world, worker.run())
    world.wire.hold()
    worker.stop()
    handler.may_end.set()
    await world.clock.advance(1)
    assert handler.ended == [b"1"]
    assert not task.done()
    world.wire.release()
    await task


async def test_a_worker_that_was_stopped_before_it_ran_takes_nothing(
    world: World, queue: Queue
) -> None:
    """P10. The original takes one more job: see docs/decisions.md."""
    handler = Recorder()
    await queue.enqueue("q", b"1")
    worker = queue.engine("q", handler)
    worker.stop()
    await worker.run()
    assert handler.began == []


async def test_an_idle_worker_stops_at_once(world: World, queue: Queue) -> None:
    worker = queue.engine("q", Recorder())
    task = await started(world, worker.run())
    assert not task.done()
    worker.stop()
    await task


async def test_a_stopped_worker_finishes_all_its_jobs_and_takes_no_more(
    world: World, queue: Queue
) -> None:
    """P13"""
    handler = Recorder()
    handler.may_end.clear()
    await queue.enqueue_many("q", [b"%d" % n for n in range(6)])
    worker = queue.engine("q", handler, concurrency=4)
    task = await started(world, worker.run())
    worker.stop()
    await queue.enqueue("q", b"new")
    handler.may_end.set()
    await task
    assert handler.ended == [b"0", b"1", b"2", b"3"]
    assert await queue.stats("q") == counts(pending=3, done=4)


@pytest.mark.parametrize("concurrency", [1, 2, 5])
async def test_a_cancelled_worker_gives_its_jobs_back_and_counts_no_attempt(
    world: World, queue: Queue, concurrency: int
) -> None:
    handler = Recorder()
    handler.may_end.clear()
    await queue.enqueue_many("q", [b"1", b"2", b"3"])
    task = await started(world, queue.engine("q", handler, concurrency=concurrency).run())
    task.cancel()
    await world.clock.advance(0)
    assert task.cancelled()
    assert sorted(handler.cancelled) == sorted(handler.began)
    assert await queue.stats("q") == counts(pending=3)
    assert [claim.job.attempts for claim in await queue.claim_many("q", 3)] == [1, 1, 1]


async def test_a_worker_in_a_cancelled_scope_gives_its_jobs_back(
    world: World, queue: Queue
) -> None:
    handler = Recorder()
    handler.may_end.clear()
    await queue.enqueue_many("q", [b"1", b"2", b"3"])
    async with anyio.create_task_group() as group:
        await group.start(queue.engine("q", handler, concurrency=5).run)
        await world.clock.advance(0)
        group.cancel_scope.cancel()
    assert sorted(handler.cancelled) == [b"1", b"2", b"3"]
    assert await queue.stats("q") == counts(pending=3)


@pytest.mark.parametrize("steps", range(0, 16))
async def test_a_worker_cancelled_at_any_moment_strands_nothing(
    world: World, queue: Queue, steps: int
) -> None:
    handler = Recorder()
    await queue.enqueue_many("q", [b"1", b"2", b"3"])
    task = asyncio.ensure_future(queue.engine("q", handler, concurrency=2).run())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await world.clock.advance(0)
    assert task.cancelled()
    stats = await queue.stats("q")
    assert stats.claimed == 0
    assert stats.pending + stats.done == 3
    assert stats.done == len(handler.ended)
    assert len(queue._core.leases) == 0
    assert len(await drain(queue)) == stats.pending


async def test_a_worker_cancelled_while_its_claims_are_on_their_way_gives_them_back(
    world: World, queue: Queue
) -> None:
    handler = Recorder()
    await queue.enqueue_many("q", [b"1", b"2"])
    world.wire.hold()
    task = await started(world, queue.engine("q", handler, concurrency=2).run())
    task.cancel()
    await world.clock.advance(0)
    assert task.cancelled()
    world.wire.release()
    assert handler.began == []
    assert await queue.stats("q") == counts(pending=2)
    queue = await world.crash()
    assert [claim.job.attempts for claim in await queue.claim_many("q", 2)] == [1, 1]


def test_the_end_of_the_loop_gives_jobs_back() -> None:
    """As `asyncio.run` does it: every task is cancelled at once, in no order."""

    async def main(world: World) -> None:
        queue = await world.open()
        await queue.enqueue_many("q", [b"1", b"2"])

        async def handler(claim: Claim) -> Settlement:
            await asyncio.Event().wait()
            raise AssertionError

        tasks.append(await started(world, queue.engine("q", handler, concurrency=2).run()))
        assert await queue.stats("q") == counts(claimed=2)

    async def afterwards(world: World) -> None:
        queue = await world.crash()
        jobs = [claim.job for claim in await queue.claim_many("q", 2)]
        assert {job.last_error for job in jobs} == {None}
        await queue.close()

    tasks: list[Any] = []
    world = World()
    asyncio.run(main(world))
    asyncio.run(afterwards(world))


# -- concurrency and order ------------------------------------------------------------------


async def test_as_many_run_at_once_as_may(world: World, queue: Queue) -> None:
    """P11"""
    handler = Recorder()
    handler.may_end.clear()
    await queue.enqueue_many("q", [b"%d" % n for n in range(10)])
    async with working(world, queue.engine("q", handler, concurrency=4)) as task:
        assert handler.running == 4
        assert await queue.stats("q") == counts(pending=6, claimed=4)
        handler.may_end.set()
        await world.clock.advance(0)
        assert not task.done()
        assert await queue.stats("q") == counts(done=10)
    assert handler.most_running == 4
    assert sorted(handler.ended) == [b"%d" % n for n in range(10)]


async def test_a_worker_follows_the_claim_order(world: World, queue: Queue) -> None:
    handler = Recorder()
    for n, priority in enumerate((5, 9, 5, 1)):
        await queue.enqueue("q", b"%d" % n, priority=priority)
    async with working(world, queue.engine("q", handler)):
        pass
    assert handler.ended == [b"3", b"0", b"2", b"1"]


async def test_an_urgent_job_is_next(world: World, queue: Queue) -> None:
    handler = Recorder()
    handler.may_end.clear()
    await queue.enqueue_many("q", [b"1", b"2"])
    async with working(world, queue.engine("q", handler)):
        await queue.enqueue("q", b"urgent", priority=1)
        handler.may_end.set()
        await world.clock.advance(0)
    assert handler.ended == [b"1", b"urgent", b"2"]


async def test_two_workers_share_a_queue(world: World, queue: Queue) -> None:
    handlers = [Recorder(), Recorder()]
    for handler in handlers:
        handler.may_end.clear()
    await queue.enqueue_many("q", [b"%d" % n for n in range(6)])
    async with (
        working(world, queue.engine("q", handlers[0], concurrency=2)),
        working(world, queue.engine("q", handlers[1], concurrency=3)),
    ):
        assert [handler.running for handler in handlers] == [2, 3]
        for handler in handlers:
            handler.may_end.set()
        await world.clock.advance(0)
    ended = handlers[0].ended + handlers[1].ended
    assert Counter(ended) == Counter(b"%d" % n for n in range(6))


async def test_one_handler_s_crash_harms_no_other(world: World) -> None:
    """P14"""
    queue = await world.open(config=NO_BACKOFF)
    failed = False

    async def handler(claim: Claim) -> Settlement:
        nonlocal failed
        if claim.job.payload == b"3" and not failed:
            failed = True
            raise RuntimeError("crash")
        await asyncio.sleep(0)
        return ack(claim)

    await queue.enqueue_many("q", [b"%d" % n for n in range(8)])
    async with working(world, queue.engine("q", handler, concurrency=3)):
        pass
    assert failed
    assert (await queue.stats("q")).claimed == 0
    assert (await queue.stats("q")).done >= 7


async def test_an_idle_worker_is_woken_by_an_enqueue(world: World, queue: Queue) -> None:
    """P16"""
    handler = Recorder()
    async with working(world, queue.engine("q", handler)):
        await queue.enqueue("q", b"1")
        await world.clock.advance(0)
        assert handler.ended == [b"1"]
        await queue.enqueue("other", b"2")
        await world.clock.advance(0)
        assert handler.ended == [b"1"]


@pytest.mark.parametrize("how", ["due", "reaped", "revived", "nacked", "effect", "released"])
async def test_an_idle_worker_is_woken_by_whatever_makes_a_job_pending(
    world: World, how: str
) -> None:
    queue = await world.open(config=NO_BACKOFF)
    if how == "reaped":
        await queue.enqueue("q", b"x")
        await take(queue, lease=5)
    elif how == "revived":
        await queue.enqueue("q", b"x", job_id="X")
        await queue.dead_letter(await take(queue), "no")
    elif how in ("nacked", "released"):
        await queue.enqueue("q", b"x")
        claim = await take(queue)
    handler = Recorder()
    async with working(world, queue.engine("q", handler)):
        if how == "due":
            await queue.enqueue("q", b"x", delay=5)
        assert handler.ended == []
        if how in ("due", "reaped"):
            await world.clock.advance(5)
        elif how == "revived":
            await queue.requeue_dead("X")
        elif how == "nacked":
            await queue.nack(claim, "again")
        elif how == "effect":
            await queue.enqueue("other", b"", effects=Effects().enqueue("q", b"x"))
        else:
            with queue.transaction() as tx:
                tx.release(claim)
        await world.clock.advance(0)
        assert handler.ended == [b"x"]


async def test_an_idle_worker_holds_no_timer(world: World, queue: Queue) -> None:
    async with working(world, queue.engine("q", Recorder(), concurrency=8)):
        before = world.wire.entries
        await world.clock.advance(100_000)
        assert world.clock.sleeping == 0
        assert world.wire.entries == before


# -- what it costs --------------------------------------------------------------------------


async def test_a_chain_of_jobs_costs_one_put_a_job(world: World, queue: Queue) -> None:
    length = 50

    async def handler(claim: Claim) -> Settlement:
        number = int(claim.job.payload)
        await asyncio.sleep(0)
        if number == length:
            return ack(claim)
        return lambda tx: tx.succeed_with_next(claim, b"%d" % (number + 1))

    async with working(world, queue.engine("q", handler)):
        before = world.wire.entries
        await queue.enqueue("q", b"1")
        await world.clock.advance(0)
        assert await queue.stats("q") == counts(done=length)
        assert world.wire.entries - before <= length + 1


async def test_a_chain_of_effects_costs_one_put_a_job(world: World, queue: Queue) -> None:
    length = 50

    async def handler(claim: Claim) -> Settlement:
        number = int(claim.job.payload)
        effects = Effects()
        if number < length:
            effects.enqueue("q", b"%d" % (number + 1))
        return lambda tx: tx.ack(claim, effects)

    async with working(world, queue.engine("q", handler)):
        before = world.wire.entries
        await queue.enqueue("q", b"1")
        await world.clock.advance(0)
        assert await queue.stats("q") == counts(done=length)
        assert world.wire.entries - before <= length + 1


async def test_a_waiting_worker_claims_in_the_put_of_the_enqueue(
    world: World, queue: Queue
) -> None:
    handler = Recorder()
    handler.may_end.clear()
    async with working(world, queue.engine("q", handler)):
        before = world.wire.entries
        await queue.enqueue("q", b"1")
        await world.clock.advance(0)
        assert handler.began == [b"1"]
        assert world.wire.entries == before + 1
        handler.may_end.set()


async def test_a_handler_starts_only_when_its_claim_is_stored(world: World, queue: Queue) -> None:
    handler = Recorder()
    async with working(world, queue.engine("q", handler)):
        world.wire.hold()
        enqueueing = await started(world, queue.enqueue("q", b"1"))
        await world.clock.advance(10)
        assert handler.began == []
        world.wire.release()
        await enqueueing
        await world.clock.advance(0)
        assert handler.ended == [b"1"]


async def test_the_next_handler_starts_only_when_the_settlement_before_it_is_stored(
    world: World, queue: Queue
) -> None:
    handler = Recorder()
    handler.may_end.clear()
    await queue.enqueue_many("q", [b"1", b"2"])
    async with working(world, queue.engine("q", handler)):
        world.wire.hold()
        handler.may_end.set()
        await world.clock.advance(10)
        assert handler.ended == [b"1"]
        assert handler.began == [b"1"]
        world.wire.release()


async def test_a_busy_worker_shares_its_puts(world: World, queue: Queue) -> None:
    async def handler(claim: Claim) -> Settlement:
        await asyncio.sleep(0)
        return ack(claim)

    await queue.enqueue_many("q", [b""] * 1000)
    before = world.wire.entries
    async with working(world, queue.engine("q", handler, concurrency=100)):
        pass
    assert await queue.stats("q") == counts(done=1000)
    assert world.wire.entries - before <= 50


async def test_what_comes_in_one_round_is_claimed_in_one_transaction(
    world: World, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: list[int] = []
    claim = FairShares.claim

    def counted(shares: FairShares, tx: QueueTransaction, count: int) -> list[Claim]:
        taken = claim(shares, tx, count)
        claims.append(len(taken))
        return taken

    monkeypatch.setattr(FairShares, "claim", counted)
    handler = Recorder()
    handler.may_end.clear()
    async with working(world, queue.engine("q", handler, concurrency=100)):
        before = world.wire.entries
        await asyncio.gather(*(queue.enqueue("q", b"1") for _ in range(100)))
        assert world.wire.entries - before == 1
        assert claims == [100]
        handler.may_end.set()


# -- a store that does not answer -----------------------------------------------------------


async def test_a_store_that_never_answers_makes_producers_wait(world: World) -> None:
    queue = await world.open()
    world.wire.hold()
    payload = bytes(2**20)
    committed = 0

    async def produce() -> None:
        nonlocal committed
        for _ in range(4):
            with contextlib.suppress(asyncio.CancelledError):
                await queue.ready()
                with queue.transaction() as tx:
                    tx.apply(Effects().enqueue("q", payload))
                committed += 1
                await world.clock.sleep(1)

    tasks = [asyncio.ensure_future(produce()) for _ in range(60)]
    await world.clock.advance(100)
    assert 64 <= committed < 140, committed
    pending = await started(world, queue.enqueue("q", b"one more"))
    assert not pending.done()
    world.wire.release()
    await pending
    await world.clock.advance(100)
    await asyncio.gather(*tasks)
    assert (await queue.stats("q")).pending == 241


async def test_a_worker_waits_with_the_producers(world: World) -> None:
    queue = await world.open()
    handler = Recorder()
    await queue.enqueue("q", b"first")
    async with working(world, queue.engine("q", handler, concurrency=4)):
        world.wire.hold()
        tasks = []
        for _ in range(100):
            tasks.append(await started(world, queue.enqueue("other", bytes(2**20))))
            await world.clock.advance(0.02)
        small = await started(world, queue.enqueue("q", b"second"))
        await world.clock.advance(20)
        assert handler.began == [b"first"]
        world.wire.release()
        await asyncio.gather(*tasks, small)
        await world.clock.advance(1)
        assert handler.ended == [b"first", b"second"]
    assert await queue.stats("q") == counts(done=2)


async def test_a_worker_cancelled_while_the_store_does_not_answer_ends_at_once(
    world: World, queue: Queue
) -> None:
    handler = Recorder()
    handler.may_end.clear()
    await queue.enqueue_many("q", [b"1", b"2", b"3"])
    task = await started(world, queue.engine("q", handler, concurrency=2).run())
    world.wire.hold()
    handler.may_end.set()
    await world.clock.advance(1)
    task.cancel()
    await world.clock.advance(0)
    assert task.cancelled()
    world.wire.release()
    assert await queue.stats("q") == counts(pending=1, done=2)


# -- being fenced ---------------------------------------------------------------------------


async def test_a_fenced_worker_says_so_and_settles_nothing(world: World, queue: Queue) -> None:
    handler = Recorder()
    handler.may_end.clear()
    await queue.enqueue_many("q", [b"1", b"2"])
    task = await started(world, queue.engine("q", handler, concurrency=2).run())
    second = await world.open()
    handler.may_end.set()
    with pytest.raises(Fenced):
        await task
    assert await second.stats("q") == counts(pending=2)
    assert await drain(second) == [b"1", b"2"]


@pytest.mark.parametrize("busy", [False, True])
async def test_a_worker_that_waits_is_told_of_the_fencing(
    world: World, queue: Queue, busy: bool
) -> None:
    handler = Recorder()
    handler.may_end.clear()
    if busy:
        await queue.enqueue("q", b"1")
    task = await started(world, queue.engine("q", handler).run())
    await world.open()
    with pytest.raises(Fenced):
        await queue.enqueue("other", b"")
    with pytest.raises(Fenced):
        await task
    assert handler.cancelled == handler.began


async def test_a_worker_of_a_fenced_queue_says_so_at_once(world: World, queue: Queue) -> None:
    await world.open()
    with pytest.raises(Fenced):
        await queue.enqueue("q", b"")
    with pytest.raises(Fenced):
        await queue.engine("q", Recorder()).run()


@pytest.mark.parametrize("busy", [False, True])
async def test_a_worker_of_a_closed_queue_says_so(world: World, queue: Queue, busy: bool) -> None:
    handler = Recorder()
    handler.may_end.clear()
    if busy:
        await queue.enqueue("q", b"1")
    task = await started(world, queue.engine("q", handler).run())
    await queue.close()
    with pytest.raises(Closed):
        await task
    assert handler.cancelled == handler.began
    assert queue._core.on_stop == []
    with pytest.raises(Closed):
        await queue.engine("q", handler).run()


# -- handlers that misbehave ----------------------------------------------------------------


async def test_a_handler_that_cancels_itself_has_failed(world: World, queue: Queue) -> None:
    async def handler(claim: Claim) -> Settlement:
        if claim.job.payload == b"bad":
            raise asyncio.CancelledError
        return ack(claim)

    await queue.enqueue_many("q", [b"bad", b"good"])
    async with working(world, queue.engine("q", handler)):
        pass
    assert await queue.stats("q") == counts(scheduled=1, done=1)


async def test_a_handler_that_awaits_something_cancelled_has_failed(
    world: World, queue: Queue
) -> None:
    async def handler(claim: Claim) -> Settlement:
        future: asyncio.Future[Settlement] = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    job_id = (await queue.enqueue("q", b"")).job_id
    async with working(world, queue.engine("q", handler)):
        pass
    job = await read(queue, job_id)
    assert (job.state, job.last_error) == (JobState.SCHEDULED, "CancelledError")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_handler_that_ends_the_process_gives_its_job_back(error: BaseException) -> None:
    async def main(world: World) -> None:
        queue = await world.open()
        job_ids.append((await queue.enqueue("q", b"")).job_id)

        async def handler(claim: Claim) -> Settlement:
            raise error

        await queue.engine("q", handler).run()

    async def afterwards(world: World) -> None:
        queue = await world.crash()
        job = await read(queue, job_ids[0])
        assert (job.state, job.last_error) == (JobState.PENDING, None)
        await queue.close()

    job_ids: list[str] = []
    world = World()
    with pytest.raises(type(error)):
        asyncio.run(main(world))
    asyncio.run(afterwards(world))


async def nothing() -> None: ...


@pytest.mark.parametrize(
    "make",
    [lambda: None, lambda: 7, lambda: "done", lambda: Effects(), nothing],
    ids=["None", "int", "str", "effects", "coroutine"],
)
async def test_a_handler_that_returns_no_settlement_has_failed(
    world: World, queue: Queue, make: Callable[[], Any]
) -> None:
    async def handler(claim: Claim) -> Settlement:
        if claim.job.payload == b"bad":
            return make()  # type: ignore[no-any-return]
        return ack(claim)

    bad, _ = await queue.enqueue_many("q", [b"bad", b"good"])
    async with working(world, queue.engine("q", handler)):
        pass
    job = await read(queue, bad.job_id)
    assert job.state is JobState.SCHEDULED
    assert job.last_error is not None
    assert "handler" in job.last_error
    assert await queue.stats("q") == counts(scheduled=1, done=1)


async def test_a_settlement_that_raises_has_failed(world: World, queue: Queue) -> None:
    async def handler(claim: Claim) -> Settlement:
        def settle(tx: Any) -> None:
            tx.put(b"half", b"done")
            raise ValueError("mine")

        return settle if claim.job.payload == b"bad" else ack(claim)

    await queue.enqueue_many("q", [b"1", b"bad", b"2"])
    async with working(world, queue.engine("q", handler, concurrency=3)):
        pass
    assert await queue.kv.get("half") is None
    assert await queue.stats("q") == counts(scheduled=1, done=2)


async def test_an_effect_that_cannot_be_applied_fails_only_its_own_job(
    world: World, queue: Queue
) -> None:
    async def handler(claim: Claim) -> Settlement:
        effects = Effects().put(b"key-" + claim.job.payload, b"1")
        if claim.job.payload == b"bad":
            effects.enqueue("other", b"", job_id="taken")
        return lambda tx: tx.ack(claim, effects)

    await queue.enqueue("other", b"", job_id="taken")
    await queue.enqueue_many("q", [b"1", b"bad", b"2"])
    async with working(world, queue.engine("q", handler, concurrency=3)):
        pass
    assert await queue.stats("q") == counts(scheduled=1, done=2)
    found = [await queue.kv.get(b"key-" + name) for name in (b"1", b"bad", b"2")]
    assert found == [b"1", None, b"1"]


async def test_a_handler_that_settles_by_itself_is_refused_later(
    world: World, queue: Queue
) -> None:
    async def handler(claim: Claim) -> Settlement:
        await queue.ack(claim)
        return ack(claim)

    await queue.enqueue_many("q", [b"1", b"2"])
    async with working(world, queue.engine("q", handler)):
        pass
    assert await queue.stats("q") == counts(done=2)


async def test_a_claim_of_a_worker_cannot_be_settled_twice(world: World, queue: Queue) -> None:
    claims: list[Claim] = []

    async def handler(claim: Claim) -> Settlement:
        claims.append(claim)
        return ack(claim)

    await queue.enqueue("q", b"")
    async with working(world, queue.engine("q", handler)):
        pass
    with pytest.raises(ClaimLost):
        await queue.ack(claims[0])


async def test_a_handler_can_use_the_queue(world: World, queue: Queue) -> None:
    async def handler(claim: Claim) -> Settlement:
        if claim.job.payload == b"parent":
            await queue.enqueue("q", b"child")
            await queue.kv.put("seen", claim.job.payload)
        return ack(claim)

    await queue.enqueue("q", b"parent")
    async with working(world, queue.engine("q", handler)):
        pass
    assert await queue.stats("q") == counts(done=2)
