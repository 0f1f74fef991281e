"""Following a queue from a process that does not own it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taquba import Follower, Job, JobState, Queue
from taquba.errors import (
    BucketNotFound,
    Closed,
    CorruptStore,
    Fenced,
    InvalidArgument,
    InvalidState,
    InvalidType,
    InvalidUrl,
    StoreAccessDenied,
)
from taquba.objectstore import MemoryStore
from taquba.testing import FaultyStore
from taquba.workflow import Continue, Outcome, Step, Succeed, WorkflowRuntime
from tests.queue.harness import World, counts, take

pytestmark = pytest.mark.anyio


class NoWrites(FaultyStore):
    """A store whose credentials allow reading and listing only."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.fail("write", times=10**9, error=StoreAccessDenied("these credentials only read"))


def writes(store: FaultyStore) -> list[str]:
    return [
        request.operation
        for request in store.requests
        if request.operation not in ("get", "get_range", "list")
    ]


async def test_it_does_not_disturb_the_owner_and_never_tries_to_write(world: World) -> None:
    """R10"""
    store = NoWrites(world.store)
    queue = await world.open()
    async with Follower.open(store, clock=world.clock) as follower:
        for number in range(30):
            await queue.enqueue("q", b"%d" % number)
            await world.clock.advance(1)
            assert (await follower.stats("q")).pending == number + 1
        await queue.ack(await take(queue))
        await world.clock.advance(600)
        await follower.refresh()
    assert writes(store) == []
    assert queue.failure is None


async def test_read_only_is_asked_of_a_store_that_is_opened_by_url(tmp_path: Path) -> None:
    async with Queue.open(tmp_path / "state") as queue:
        await queue.enqueue("q", b"")
        async with Follower.open(tmp_path / "state", poll_interval=100) as follower:
            assert await follower.stats("q") == counts(pending=1)
            await queue.enqueue("q", b"")
            await follower.refresh()
            assert await follower.stats("q") == counts(pending=2)
            with pytest.raises(StoreAccessDenied):
                await follower._owned_store.put("x", b"")  # type: ignore[union-attr]


async def test_it_may_come_before_the_owner(tmp_path: Path) -> None:
    with pytest.raises(BucketNotFound):
        await Follower.open(tmp_path / "state")
    (tmp_path / "state").mkdir()
    async with Follower.open(tmp_path / "state", poll_interval=100) as follower:
        assert await follower.list_queues() == []
        assert follower.lag.committed_at is None
        async with Queue.open(tmp_path / "state") as queue:
            await queue.enqueue("q", b"")
            await follower.wait_for(queue.position)
            assert await follower.stats("q") == counts(pending=1)


async def test_what_was_committed_before_is_shown_when_its_position_is(world: World) -> None:
    """R17: a position that moves on shows that the owner commits."""
    queue = await world.open()
    async with Follower.open(world.store, clock=world.clock) as follower:
        await world.clock.advance(600)
        enqueued = await queue.enqueue("q", b"data")
        await follower.wait_for(queue.position)
        assert isinstance(await follower.get_job(enqueued.job_id), Job)
        before = follower.position
        assert before == queue.position
        await queue.enqueue("q", b"more")
        await follower.wait_for(queue.position)
        assert follower.position > before


async def test_waiting_until_a_job_is_dead(world: World) -> None:
    queue = await world.open()
    enqueued = await queue.enqueue("q", b"data")
    async with Follower.open(world.store, clock=world.clock) as follower:

        async def dead() -> bool:
            job = await follower.get_job(enqueued.job_id)
            return job is not None and job.state is JobState.DEAD

        waiting = asyncio.ensure_future(follower.wait_until(dead))
        claim = await take(queue)
        await world.clock.advance(10)
        assert not waiting.done()
        await queue.dead_letter(claim, "no")
        await world.clock.advance(10)
        assert waiting.done()


async def test_changes_are_told(world: World) -> None:
    queue = await world.open()
    seen: list[int] = []
    async with Follower.open(world.store, clock=world.clock) as follower:

        async def watch() -> None:
            async for _ in follower.changes():
                seen.append((await follower.stats("q")).pending)

        watching = asyncio.ensure_future(watch())
        for _ in range(3):
            await world.clock.advance(10)
            await queue.enqueue("q", b"")
        await world.clock.advance(10)
        assert seen == [0, 1, 2, 3]
        watching.cancel()


async def test_the_lag_says_how_old_the_state_is(world: World) -> None:
    queue = await world.open()
    store = FaultyStore(world.store)
    async with Follower.open(store, clock=world.clock, poll_interval=1) as follower:
        await queue.enqueue("q", b"")
        committed = world.clock.now_ms()
        await world.clock.advance(3)
        lag = follower.lag
        assert lag.committed_at is not None
        assert round(lag.committed_at.timestamp() * 1000) == committed
        assert (lag.behind, lag.last_error) == (0, None)
        assert lag.age <= 1
        assert lag.position == queue.position
        store.fail("read", times=10**9)
        await world.clock.advance(50)
        assert follower.lag.age >= 50
        assert follower.lag.last_error is not None
        assert await follower.stats("q") == counts(pending=1)  # the old state is still served


async def test_it_follows_from_owner_to_owner(world: World) -> None:
    queue = await world.open()
    async with Follower.open(world.store, clock=world.clock) as follower:
        await queue.enqueue("q", b"first")
        second = await world.crash()
        await second.enqueue("q", b"second")
        await follower.refresh()
        page = await follower.list_jobs("q")
        assert [job.payload for job in page.jobs] == [b"first", b"second"]
        third = await world.open()
        with pytest.raises(Fenced):
            await second.enqueue("q", b"lost")
        await third.ack(await take(third))
        await follower.refresh()
        page = await follower.list_jobs("q")
        assert [job.payload for job in page.jobs] == [b"second"]


async def test_it_follows_through_checkpoints_and_collection(world: World) -> None:
    queue = await world.open()
    async with Follower.open(world.store, clock=world.clock) as follower:
        for number in range(6):
            await queue.enqueue("q", b"%d" % number)
            await queue._core.database.checkpoint()
        await follower.refresh()
        assert (await follower.stats("q")).pending == 6
        assert await follower.read("SELECT * FROM jobs") == await queue.read("SELECT * FROM jobs")


@pytest.mark.parametrize("state", ["memory", "disk"])
async def test_its_copy_may_lie_on_disk(world: World, tmp_path: Path, state: Any) -> None:
    queue = await world.open()
    await queue.enqueue_many("q", [b"%d" % number for number in range(2000)])
    async with Follower.open(
        world.store, clock=world.clock, state=state, scratch=tmp_path
    ) as follower:
        for _ in range(3):
            await queue.enqueue_many("q", [b"x" * 100] * 1000)
            await queue._core.database.checkpoint()
        await queue.ack(await take(queue))
        await follower.refresh()
        assert await follower.stats("q") == counts(pending=4999, done=1)
        sql = "SELECT * FROM jobs"
        assert await follower.read(sql) == await queue.read(sql)
        with pytest.raises(InvalidState):
            await follower.read("DELETE FROM jobs")
    assert list(tmp_path.iterdir()) == []


async def test_runs_are_in_its_tables(world: World) -> None:
    queue = await world.open()

    async def runner(step: Step) -> Outcome:
        return Continue(b"next") if step.number == 0 else Succeed(b"result")

    async with (
        Follower.open(world.store, clock=world.clock) as follower,
        WorkflowRuntime(queue, runner) as runtime,
    ):
        run = await runtime.submit(b"input")
        await runtime.wait(run.run_id)
        await follower.refresh()
        sql = "SELECT * FROM runs"
        assert await follower.read(sql) == await queue.read(sql) != []


async def test_it_cannot_change_anything(world: World) -> None:
    queue = await world.open()
    await queue.enqueue("q", b"")
    async with Follower.open(world.store, clock=world.clock) as follower:
        with pytest.raises(InvalidState, match="only reads"):
            await follower.read("DELETE FROM jobs")
        assert not hasattr(follower, "enqueue")
        assert not hasattr(follower.kv, "put")
        await queue.enqueue("q", b"")
        await follower.refresh()
        assert (await follower.stats("q")).pending == 2


async def test_damage_is_named_by_every_read(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await world.open()
    async with Follower.open(world.store, clock=world.clock) as follower:
        await queue.enqueue("q", b"")
        key = f"journal/{queue.position - 1:020d}"
        await world.store.put(key, b"TAQUBAJ\n\0\1 this is no entry")
        await world.clock.advance(2)
        assert isinstance(follower.failure, CorruptStore)
        for call in (
            lambda: follower.stats("q"),
            lambda: follower.list_jobs("q"),
            lambda: follower.kv.get("key"),
            lambda: follower.refresh(),
            lambda: follower.wait_for(10**9),
        ):
            with pytest.raises(CorruptStore, match=key):
                await call()
        with pytest.raises(CorruptStore, match=key):
            follower.peek("SELECT 1")
    assert "a follower stopped" in caplog.text
    caplog.clear()


async def test_nothing_works_once_it_is_closed(world: World) -> None:
    queue = await world.open()
    follower = await Follower.open(world.store, clock=world.clock)
    waiting = asyncio.ensure_future(follower.wait_for(10**9))
    await world.clock.advance(1)
    await follower.close()
    await follower.close()
    calls: list[Any] = [waiting, follower.get_job("x"), follower.refresh(), follower.kv.scan()]
    for call in calls:
        with pytest.raises(Closed, match="follower was closed"):
            await call
    assert follower.failure is None
    await queue.enqueue("q", b"")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"poll_interval": 0}, InvalidArgument),
        ({"poll_interval": -1}, InvalidArgument),
        ({"poll_interval": "1"}, InvalidType),
        ({"poll_interval": 2, "max_poll_interval": 1}, InvalidArgument),
        ({"max_poll_interval": float("inf")}, InvalidArgument),
        ({"state": "cloud"}, InvalidArgument),
        ({"scratch": 5}, InvalidType),
        ({"clock": 5}, InvalidType),
        ({"storage_options": 5}, InvalidType),
    ],
)
def test_nonsense_is_refused_at_the_call(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Follower.open(MemoryStore(), **options)


def test_the_memory_of_nobody_is_not_followed() -> None:
    with pytest.raises(InvalidUrl, match="MemoryStore"):
        Follower.open("memory://")


def test_intervals_may_be_timedeltas_and_long() -> None:
    Follower.open(MemoryStore(), poll_interval=timedelta(minutes=1))


async def test_a_target_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(InvalidUrl):
        await Follower.open("nowhere://x")
    with pytest.raises(InvalidType):
        await Follower.open(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="storage_options"):
        await Follower.open(MemoryStore(), storage_options={"key": "x"})


def test_a_follower_that_is_not_open_says_so() -> None:
    opening = Follower.open(MemoryStore())
    with pytest.raises(AttributeError, match="await Follower.open"):
        opening.stats("q")
    with pytest.raises(InvalidType, match="async with Follower"):
        with opening:
            pass
