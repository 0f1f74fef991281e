"""Workers as users see them: what handlers get, what they say, and how workers end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from taquba import (
    Dead,
    Delivery,
    Done,
    Effects,
    FailWith,
    JobState,
    PermanentError,
    Queue,
    QueueConfig,
    Retry,
)
from taquba.errors import ConflictingEffects, EffectsSealed, Fenced, InvalidArgument, InvalidType
from tests.queue.harness import NO_BACKOFF, World, counts, read

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(15)]


async def test_a_worker_works_inside_its_block(world: World, queue: Queue) -> None:
    """P1, P17"""
    seen: list[bytes] = []

    async def handler(delivery: Delivery) -> None:
        seen.append(delivery.payload)

    await queue.enqueue_many("q", [b"1", b"2"])
    async with queue.worker("q", handler) as worker:
        await world.clock.advance(0)
        assert seen == [b"1", b"2"]
        await queue.enqueue("q", b"3")
        assert worker.busy == 0 or await settled(world)
    assert seen == [b"1", b"2", b"3"]
    await queue.enqueue("q", b"after")
    await world.clock.advance(1)
    assert await queue.stats("q") == counts(done=3, pending=1)


async def settled(world: World) -> bool:
    await world.clock.advance(0)
    return True


async def test_what_a_delivery_tells(world: World, queue: Queue) -> None:
    told: list[Any] = []

    async def handler(delivery: Delivery) -> None:
        told.append(
            (
                delivery.id,
                delivery.queue,
                delivery.payload,
                delivery.headers,
                delivery.attempt,
                delivery.max_attempts,
                delivery.is_last_attempt,
                delivery.is_live,
                delivery.should_stop,
                delivery.cancel_token.is_cancelled,
                delivery.remaining,
            )
        )

    job_id = (await queue.enqueue("q", b"x", headers={"to": "ann"}, max_attempts=1)).job_id
    async with queue.worker("q", handler):
        pass
    inf = float("inf")
    assert told == [(job_id, "q", b"x", {"to": "ann"}, 1, 1, True, True, False, False, inf)]


async def test_effects_are_committed_with_the_job(world: World, queue: Queue) -> None:
    """P4: those that are staged, and those that are returned, in one transaction."""
    deliveries: list[Delivery] = []

    async def handler(delivery: Delivery) -> Effects | Done | None:
        deliveries.append(delivery)
        match delivery.payload:
            case b"staged":
                delivery.effects.put("staged", b"1").enqueue("q", b"follow-up")
                return None
            case b"returned":
                return Effects().put("returned", b"1")
            case b"done":
                return Done(Effects().put("done", b"1"))
            case b"both":
                delivery.effects.put("one", b"1")
                return Effects().put("two", b"1")
            case _:
                return Done()

    await queue.enqueue_many("q", [b"staged", b"returned", b"done", b"both"])
    async with queue.worker("q", handler):
        await world.clock.advance(0)
    for key in ("staged", "returned", "done", "one", "two"):
        assert await queue.kv.get(key) == b"1", key
    assert await queue.stats("q") == counts(done=5)
    with pytest.raises(EffectsSealed):
        deliveries[0].effects.put("late", b"1")


async def test_effects_that_conflict_fail_the_attempt(world: World, queue: Queue) -> None:
    async def handler(delivery: Delivery) -> Effects:
        delivery.effects.put("key", b"1")
        return Effects().delete("key")

    job_id = (await queue.enqueue("q", b"", max_attempts=1)).job_id
    async with queue.worker("q", handler):
        pass
    job = await read(queue, job_id)
    assert job.state is JobState.DEAD
    assert "'key'" in (job.last_error or "")
    assert await queue.kv.get("key") is None


async def test_staged_effects_are_dropped_if_the_attempt_fails(world: World, queue: Queue) -> None:
    async def handler(delivery: Delivery) -> Retry | Dead:
        delivery.effects.put("staged", b"1")
        if delivery.payload == b"retry":
            return Retry("later")
        if delivery.payload == b"dead":
            return Dead("never", Effects().put("dead", b"1"))
        raise ValueError("no")

    await queue.enqueue_many("q", [b"retry", b"dead", b"raise"], max_attempts=1)
    async with queue.worker("q", handler):
        pass
    assert await queue.stats("q") == counts(dead=3)
    assert await queue.kv.get("staged") is None
    assert await queue.kv.get("dead") == b"1"


@pytest.mark.parametrize("how", ["raises", "returns"])
async def test_a_job_is_given_up_at_once(world: World, queue: Queue, how: str) -> None:
    """P2"""

    async def handler(delivery: Delivery) -> Dead:
        if how == "raises":
            raise PermanentError("hopeless")
        return Dead("hopeless")

    job_id = (await queue.enqueue("q", b"")).job_id
    async with queue.worker("q", handler):
        pass
    job = await read(queue, job_id)
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 1, "hopeless")


@pytest.mark.parametrize("how", ["raises", "returns"])
async def test_an_attempt_fails(world: World, how: str) -> None:
    """P3"""
    queue = await world.open(config=NO_BACKOFF)

    async def handler(delivery: Delivery) -> Retry:
        if how == "raises":
            raise ValueError("busy")
        return Retry(ValueError("busy"), after=60)

    job_id = (await queue.enqueue("q", b"", max_attempts=2)).job_id
    async with queue.worker("q", handler):
        await world.clock.advance(59)
        job = await read(queue, job_id)
        assert job.attempts == (2 if how == "raises" else 1)
        await world.clock.advance(1)
    job = await read(queue, job_id)
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 2, "busy")


async def test_an_error_with_effects(world: World, queue: Queue) -> None:
    """P5, P6"""

    async def handler(delivery: Delivery) -> None:
        effects = Effects().put(delivery.payload, b"%d" % delivery.attempt)
        if delivery.payload == b"permanent":
            raise FailWith(PermanentError("no such user"), effects)
        raise FailWith(ValueError("busy"), effects)

    permanent = (await queue.enqueue("q", b"permanent")).job_id
    transient = (await queue.enqueue("q", b"transient", max_attempts=2)).job_id
    async with queue.worker("q", handler):
        await world.clock.advance(0)
        assert await queue.kv.get("transient") is None
        await world.clock.advance(10)
    job = await read(queue, permanent)
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 1, "no such user")
    assert await queue.kv.get("permanent") == b"1"
    job = await read(queue, transient)
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 2, "busy")
    assert await queue.kv.get("transient") == b"2"


@pytest.mark.parametrize(
    ("result", "hint"),
    [
        (7, "store of your own"),
        ("text", "store of your own"),
        (b"bytes", "store of your own"),
        (Done, "return an instance"),
    ],
)
async def test_an_odd_result_is_a_failed_attempt(
    world: World, queue: Queue, result: Any, hint: str
) -> None:
    async def handler(delivery: Delivery) -> Any:
        return result

    job_id = (await queue.enqueue("q", b"")).job_id
    async with queue.worker("q", handler):
        pass
    job = await read(queue, job_id)
    assert (job.state, job.attempts) == (JobState.SCHEDULED, 1)
    assert hint in (job.last_error or "")


async def test_a_worker_whose_store_is_taken_over_cancels_its_block(
    world: World, queue: Queue
) -> None:
    async def handler(delivery: Delivery) -> None: ...

    with pytest.raises(Fenced):
        async with queue.worker("q", handler):
            await world.open()
            await queue.enqueue("q", b"")


async def test_what_the_block_raises_goes_on(world: World, queue: Queue) -> None:
    began = asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        began.set()
        await asyncio.Event().wait()

    job_id = (await queue.enqueue("q", b"")).job_id
    with pytest.raises(KeyError, match="mine"):
        async with queue.worker("q", handler):
            await began.wait()
            raise KeyError("mine")
    job = await read(queue, job_id)
    assert (job.state, job.attempts) == (JobState.PENDING, 0)


async def test_a_worker_is_used_once(world: World, queue: Queue) -> None:
    async def handler(delivery: Delivery) -> None: ...

    worker = queue.worker("q", handler)
    async with worker:
        pass
    with pytest.raises(InvalidArgument, match="used already"):
        await worker.run()
    with pytest.raises(InvalidArgument, match="used already"):
        async with worker:
            pass


# -- leases ---------------------------------------------------------------------------------


async def test_a_job_is_held_as_long_as_its_handler_runs(world: World) -> None:
    queue = await world.open(config=QueueConfig(lease=1))

    async def handler(delivery: Delivery) -> None:
        await world.clock.sleep(3600)

    await queue.enqueue("q", b"")
    async with queue.worker("q", handler):
        await world.clock.advance(3599)
        assert await queue.stats("q") == counts(claimed=1)
        await world.clock.advance(1)
        assert await queue.stats("q") == counts(done=1)


async def test_a_handler_that_takes_too_long_has_failed(world: World, queue: Queue) -> None:
    ends: list[str] = []

    async def handler(delivery: Delivery) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    job_id = (await queue.enqueue("q", b"", max_attempts=2)).job_id
    async with queue.worker("q", handler, job_timeout=60):
        await world.clock.advance(59.9)
        assert ends == []
        await world.clock.advance(0.1)
        assert ends == ["cancelled"]
        job = await read(queue, job_id)
        assert (job.state, job.attempts) == (JobState.SCHEDULED, 1)
        assert job.last_error == "the handler did not end within its job_timeout"
        assert job.error_type == "TimeoutError"
        await world.clock.advance(62)
    job = await read(queue, job_id)
    assert (job.state, job.attempts, job.error_type) == (JobState.DEAD, 2, "TimeoutError")


async def test_what_a_handler_says_after_its_time_does_not_count(
    world: World, queue: Queue
) -> None:
    async def handler(delivery: Delivery) -> Effects | None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert not delivery.is_live
            assert delivery.should_stop
        return Effects().put("late", b"1")

    job_id = (await queue.enqueue("q", b"", max_attempts=1)).job_id
    async with queue.worker("q", handler, job_timeout=60):
        await world.clock.advance(60)
    assert (await read(queue, job_id)).state is JobState.DEAD
    assert await queue.kv.get("late") is None


async def test_a_job_is_delivered_again_only_when_its_handler_has_stopped(world: World) -> None:
    queue = await world.open(config=QueueConfig(lease=10))
    running: list[int] = []
    most = 0

    async def handler(delivery: Delivery) -> None:
        nonlocal most
        running.append(delivery.attempt)
        most = max(most, len(running))
        try:
            if delivery.attempt == 1:
                await asyncio.Event().wait()
        finally:
            await world.clock.sleep(20 if delivery.attempt == 1 else 5)  # cleans up
            running.remove(delivery.attempt)

    job_id = (await queue.enqueue("q", b"")).job_id
    async with queue.worker("q", handler, renew=None, concurrency=4, cancel_grace=25):
        await world.clock.advance(29)
        assert running == [1]
        assert (await read(queue, job_id)).state is JobState.CLAIMED
        await world.clock.advance(2)
        assert running == [2]
        await world.clock.advance(20)
    assert most == 1


async def test_a_handler_that_does_not_stop_is_waited_for_only_so_long(world: World) -> None:
    queue = await world.open(config=QueueConfig(lease=10))
    running: list[int] = []
    may_end = asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        running.append(delivery.attempt)
        if delivery.attempt == 1:
            for _ in range(100):  # heeds no cancellation, but lets a test that failed end
                with contextlib.suppress(asyncio.CancelledError):
                    await may_end.wait()
                    return

    await queue.enqueue("q", b"")
    async with queue.worker("q", handler, renew=None, concurrency=4, cancel_grace=25):
        await world.clock.advance(34)
        assert running == [1]
        await world.clock.advance(1)
        assert running == [1, 2]
        assert await queue.stats("q") == counts(done=1)
        may_end.set()
    assert await queue.stats("q") == counts(done=1)


async def test_a_cancelled_job_is_held_no_longer_than_its_lease(world: World) -> None:
    queue = await world.open(config=QueueConfig(lease=10))
    ends: list[float] = []

    async def handler(delivery: Delivery) -> None:
        try:
            if delivery.attempt == 1:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert delivery.cancel_token.is_cancelled
            ends.append(world.clock.monotonic())
            raise

    job_id = (await queue.enqueue("q", b"")).job_id
    async with queue.worker("q", handler):
        await world.clock.advance(100)
        await queue.cancel(job_id)
        began = world.clock.monotonic()
        await world.clock.advance(10)
        assert ends == [began + 10]


@pytest.mark.parametrize(
    "options",
    [{}, {"renew": None}, {"job_timeout": 10}, {"renew": None, "job_timeout": 10}],
    ids=str,
)
async def test_no_job_is_run_twice_because_every_handler_blocks_the_loop(
    world: World, options: dict[str, Any]
) -> None:
    queue = await world.open(config=QueueConfig(lease=5, max_attempts=1))
    runs: list[bytes] = []

    async def handler(delivery: Delivery) -> None:
        for _ in range(3):
            world.clock.stall(100)
            await world.clock.sleep(1)
        runs.append(delivery.payload)

    payloads = [b"%d" % n for n in range(50)]
    await queue.enqueue_many("q", payloads)
    async with queue.worker("q", handler, concurrency=8, **options):
        for _ in range(500):
            await world.clock.advance(1)
        assert await queue.stats("q") == counts(done=50)
    assert sorted(runs) == sorted(payloads)


# -- draining -------------------------------------------------------------------------------


async def test_a_stopped_worker_gives_back_what_is_not_done_in_time(
    world: World, queue: Queue
) -> None:
    async def handler(delivery: Delivery) -> None:
        await world.clock.sleep(float(delivery.payload))

    await queue.enqueue_many("q", [b"5", b"50", b"1"])
    worker = queue.worker("q", handler, concurrency=2, drain_timeout=20)
    running = asyncio.ensure_future(worker.run())
    await world.clock.advance(0)
    worker.stop()
    await world.clock.advance(19)
    assert await queue.stats("q") == counts(done=1, claimed=1, pending=1)
    assert not running.done()
    await world.clock.advance(1)
    assert running.done()
    await running
    assert await queue.stats("q") == counts(done=1, pending=2)
    jobs = await queue.list_jobs("q")
    assert [job.attempts for job in jobs.jobs] == [0, 0]


async def test_a_handler_is_cancelled_once_and_may_clean_up(world: World, queue: Queue) -> None:
    cancelled = 0
    cleaned: list[bytes] = []

    async def handler(delivery: Delivery) -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
            raise
        finally:
            await world.clock.sleep(3)
            cleaned.append(delivery.payload)

    await queue.enqueue("q", b"x")
    worker = queue.worker("q", handler, drain_timeout=5, cancel_grace=10)
    running = asyncio.ensure_future(worker.run())
    await world.clock.advance(0)
    worker.stop()
    await world.clock.advance(7)
    assert (cancelled, cleaned, running.done()) == (1, [], False)
    assert await queue.stats("q") == counts(claimed=1)
    await world.clock.advance(1)
    await running
    assert (cancelled, cleaned) == (1, [b"x"])
    [job] = (await queue.list_jobs("q")).jobs
    assert (job.state, job.attempts) == (JobState.PENDING, 0)
    assert world.clock.sleeping <= 1  # the reaper's


async def test_what_a_handler_says_though_it_is_cancelled_counts(
    world: World, queue: Queue
) -> None:
    async def handler(delivery: Delivery) -> Effects:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return Effects().put("done", b"yes")

    await queue.enqueue("q", b"x")
    worker = queue.worker("q", handler, drain_timeout=5)
    running = asyncio.ensure_future(worker.run())
    await world.clock.advance(0)
    worker.stop()
    await world.clock.advance(5)
    await running
    assert await queue.stats("q") == counts(done=1)
    assert await queue.kv.get("done") == b"yes"


async def test_clean_up_that_never_ends_is_cut_off_after_the_grace(
    world: World, queue: Queue
) -> None:
    async def handler(delivery: Delivery) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()

    await queue.enqueue("q", b"x")
    worker = queue.worker("q", handler, drain_timeout=5, cancel_grace=10)
    running = asyncio.ensure_future(worker.run())
    await world.clock.advance(0)
    worker.stop()
    await world.clock.advance(14)
    assert not running.done()
    await world.clock.advance(1)
    await running
    assert await queue.stats("q") == counts(pending=1)


async def test_a_claim_that_arrives_after_the_deadline_is_not_begun(world: World) -> None:
    queue = await world.open()
    seen: list[bytes] = []

    async def handler(delivery: Delivery) -> None:
        seen.append(delivery.payload)

    await queue.enqueue("q", b"x")
    world.wire.hold()  # the claim is not durable
    worker = queue.worker("q", handler, drain_timeout=5)
    running = asyncio.ensure_future(worker.run())
    await world.clock.advance(0)
    worker.stop()
    await world.clock.advance(6)
    world.wire.release()
    await world.clock.advance(10)
    await running
    assert seen == []
    [job] = (await queue.list_jobs("q")).jobs
    assert (job.state, job.attempts) == (JobState.PENDING, 0)


async def test_leaving_the_block_drains(world: World, queue: Queue) -> None:
    async def handler(delivery: Delivery) -> None:
        await asyncio.Event().wait()

    async def work() -> None:
        async with queue.worker("q", handler, drain_timeout=20):
            await asyncio.sleep(0)

    await queue.enqueue("q", b"")
    working = asyncio.ensure_future(work())
    await world.clock.advance(19)
    assert not working.done()
    await world.clock.advance(1)
    await working
    assert await queue.stats("q") == counts(pending=1)


# -- several queues -------------------------------------------------------------------------


async def test_queues_get_their_shares(world: World, queue: Queue) -> None:
    seen: list[bytes] = []

    async def handler(delivery: Delivery) -> None:
        seen.append(delivery.payload)

    await queue.enqueue_many("high", [b"h%d" % n for n in range(30)])
    await queue.enqueue_many("low", [b"l%d" % n for n in range(30)])
    async with queue.worker({"high": 3, "low": 1}, handler, concurrency=1):
        await world.clock.advance(10)
    assert len(seen) == 60
    for n in range(4, 40, 4):
        assert sum(payload.startswith(b"h") for payload in seen[:n]) == n * 3 / 4
    for prefix in (b"h", b"l"):
        assert [x for x in seen if x.startswith(prefix)] == [prefix + b"%d" % n for n in range(30)]


async def test_an_idle_queue_saves_nothing_up_and_blocks_nobody(world: World, queue: Queue) -> None:
    seen: list[bytes] = []

    async def handler(delivery: Delivery) -> None:
        seen.append(delivery.payload)

    async with queue.worker(["a", "b", "never"], handler, concurrency=2):
        await queue.enqueue_many("a", [b"a"] * 20)
        await world.clock.advance(5)
        assert seen == [b"a"] * 20
        await queue.enqueue_many("a", [b"a"] * 10)
        await world.clock.advance(5)
        seen.clear()
        async with asyncio.TaskGroup() as group:
            group.create_task(queue.enqueue_many("a", [b"a"] * 10))
            group.create_task(queue.enqueue_many("b", [b"b"] * 10))
        await world.clock.advance(5)
        assert abs(seen[:10].count(b"a") - 5) <= 2
        assert len(seen) == 20


# -- testing handlers ------------------------------------------------------------------------


async def test_a_delivery_for_tests() -> None:
    """F18"""
    one = Delivery.detached(b"x", queue="q", job_id="job-1", headers={"to": "ann"}, attempt=2)
    assert (one.payload, one.queue, one.id, one.headers) == (b"x", "q", "job-1", {"to": "ann"})
    assert (one.attempt, one.max_attempts, one.is_last_attempt) == (2, 3, False)
    one.ensure_at_least(1_000_000)
    assert one.is_live
    assert not one.should_stop
    assert not one.cancel_token.is_cancelled
    assert one.remaining == float("inf")
    one.effects.put("a", b"1")


# -- what cannot be -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"queues": []}, InvalidArgument, "at least one"),
        ({"queues": {}}, InvalidArgument, "at least one"),
        ({"queues": ["q", "q"]}, InvalidArgument, "twice"),
        ({"queues": {"q": 0}}, InvalidArgument, "weight"),
        ({"queues": {"q": 1_000_001}}, InvalidArgument, "weight"),
        ({"queues": {"q": 0.5}}, InvalidType, "weight"),
        ({"queues": {"q": True}}, InvalidType, "weight"),
        ({"queues": [7]}, InvalidType, "queue name"),
        ({"queues": b"q"}, InvalidType, "queues"),
        ({"queues": 7}, InvalidType, "queues"),
        ({"queues": ""}, InvalidArgument, "queue name"),
        ({"handler": None}, InvalidType, "handler"),
        ({"handler": 7}, InvalidType, "handler"),
        ({"handler": World}, InvalidType, "handler"),
        ({"concurrency": 0}, InvalidArgument, "concurrency"),
        ({"concurrency": 100_001}, InvalidArgument, "concurrency"),
        ({"concurrency": 1.0}, InvalidType, "concurrency"),
        ({"renew": "always"}, InvalidArgument, "renew"),
        ({"renew": True}, InvalidArgument, "renew"),
        ({"job_timeout": 0}, InvalidArgument, "job_timeout"),
        ({"job_timeout": -1}, InvalidArgument, "job_timeout"),
        ({"job_timeout": "1"}, InvalidType, "job_timeout"),
        ({"cancel_grace": -1}, InvalidArgument, "cancel_grace"),
        ({"cancel_grace": None}, InvalidType, "cancel_grace"),
        ({"drain_timeout": -1}, InvalidArgument, "drain_timeout"),
        ({"executor": 7}, InvalidType, "executor"),
        ({"executor": list}, InvalidArgument, "async handler"),
    ],
    ids=str,
)
async def test_a_bad_argument_is_refused(
    queue: Queue, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    """P12 among them."""

    async def handler(delivery: Delivery) -> None: ...

    with pytest.raises(error, match=text):
        queue.worker(**{"queues": "q", "handler": handler, **arguments})


async def test_the_edges_are_accepted(queue: Queue) -> None:
    async def handler(delivery: Delivery) -> None: ...

    queue.worker({"a": 1, "b": 1_000_000}, handler, concurrency=100_000, job_timeout=0.001)
    queue.worker("a", handler, concurrency=1, cancel_grace=0, drain_timeout=0)


def test_conflicting_effects_are_an_error_of_their_own() -> None:
    from taquba.queue._effects import merged

    with pytest.raises(ConflictingEffects):
        merged(Effects().put("a", b""), Effects().delete("a"))
    with pytest.raises(ConflictingEffects):
        merged(Effects().delete("a"), Effects().put("a", b""))
    assert merged(None, None) is None
