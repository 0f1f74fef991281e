"""The owner's sign of life, as it and its readers see it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from taquba import Follower, Queue
from taquba.errors import InvalidArgument, StateFull
from taquba.queue import Heartbeat
from tests.queue.harness import World

pytestmark = pytest.mark.anyio

EVERY = 10


@pytest.fixture
async def follower(world: World) -> AsyncIterator[Follower]:
    async with Follower.open(world.store, clock=world.clock) as follower:
        yield follower


async def seen(follower: Follower) -> Heartbeat | None:
    await follower.refresh()
    return await follower.heartbeat()


async def beat(follower: Follower) -> Heartbeat:
    found = await seen(follower)
    assert found is not None
    return found


async def test_the_first_beat_is_there_when_the_queue_is_open(
    world: World, follower: Follower
) -> None:
    """R14"""
    queue = await world.open(heartbeat=EVERY)
    found = await beat(follower)
    assert (found.counter, found.interval, found.closed) == (1, 10.0, False)
    assert round(found.at.timestamp() * 1000) == world.clock.now_ms()
    assert found.epoch == follower.lag.epoch == 1
    assert await queue.heartbeat() == found


async def test_one_beat_an_interval_and_one_write_a_beat(world: World, follower: Follower) -> None:
    await world.open(heartbeat=timedelta(seconds=EVERY))
    before = world.wire.entries
    await world.clock.advance(EVERY - 1)
    assert (await beat(follower)).counter == 1
    await world.clock.advance(EVERY * 100 + 1)
    assert (await beat(follower)).counter == 102
    assert world.wire.entries - before == 101


async def test_a_clean_close_says_so_and_the_counter_goes_on(
    world: World, follower: Follower
) -> None:
    """R15"""
    queue = await world.open(heartbeat=EVERY)
    await queue.close()
    closed = await beat(follower)
    assert (closed.counter, closed.closed) == (2, True)
    await world.open(heartbeat=EVERY)
    again = await beat(follower)
    assert (again.counter, again.closed) == (3, False)
    assert again.epoch > closed.epoch


async def test_no_beat_says_that_a_killed_owner_closed(world: World, follower: Follower) -> None:
    """What a crash leaves is a beat that is not closed, and an epoch that is over."""
    await world.open(heartbeat=EVERY)
    await world.clock.advance(EVERY)
    world.kill()
    await world.clock.advance(EVERY * 5)
    assert (await beat(follower)).counter == 2
    assert not (await beat(follower)).closed
    queue = await world.open(heartbeat=EVERY)
    assert (await beat(follower)).counter == 3
    await world.bury()  # the one before finds that it is fenced, and says nothing more
    found = await beat(follower)
    assert (found.counter, found.closed, found.epoch) == (3, False, 2)
    assert await queue.heartbeat() == found


async def test_without_it_there_is_none_and_nothing_is_written(
    world: World, follower: Follower
) -> None:
    """R16"""
    queue = await world.open()
    before = world.wire.entries
    await world.clock.advance(10_000)
    assert world.wire.entries == before
    assert await queue.heartbeat() is None
    assert await seen(follower) is None
    await queue.close()
    assert await seen(follower) is None


async def test_an_owner_without_it_hides_that_one_before_closed(
    world: World, follower: Follower
) -> None:
    """R16: its readers must not take a store that is owned for one that was closed."""
    await (await world.open(heartbeat=EVERY)).close()
    assert (await beat(follower)).closed
    silent = await world.open()
    assert await seen(follower) is None
    await silent.close()
    assert await seen(follower) is None
    before = len(world.store)
    await (await world.open()).close()  # there is nothing left to hide
    assert len(world.store) - before == 1
    await world.open(heartbeat=EVERY)
    assert (await beat(follower)).counter == 3


async def test_beats_that_cannot_be_stored_are_told_once(
    world: World, follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    await world.open(heartbeat=EVERY)
    world.wire.hold()
    with caplog.at_level(logging.INFO, "taquba.queue"):
        await world.clock.advance(EVERY * 4.5)
        assert [record.getMessage() for record in caplog.records] == [
            "a heartbeat was not stored within 10 s; the next ones follow"
        ]
        assert (await beat(follower)).counter == 1
        world.wire.release()
        await world.clock.advance(EVERY)
    assert [record.getMessage() for record in caplog.records[1:]] == ["heartbeats are stored again"]
    found = await beat(follower)
    assert found.counter > 4
    await world.clock.advance(EVERY)
    assert (await beat(follower)).counter == found.counter + 1


async def test_a_beat_that_cannot_be_made_is_missing(
    world: World,
    follower: Follower,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R15: the counter has a gap, and those after it are there."""
    queue = await world.open(heartbeat=EVERY)

    def full() -> None:
        raise StateFull("no room")

    with monkeypatch.context() as lately:
        lately.setattr(queue._core.database, "transaction", full)
        await world.clock.advance(EVERY * 2)
        assert (await beat(follower)).counter == 1
    assert "no room" in caplog.text
    await world.clock.advance(EVERY)
    assert (await beat(follower)).counter == 4


async def test_closing_does_not_wait_for_a_beat_that_a_dead_store_does_not_take(
    world: World,
) -> None:
    queue = await world.open(heartbeat=EVERY, close_timeout=5)
    world.wire.hold()
    closing = asyncio.ensure_future(queue.close())
    await world.clock.advance(6)
    assert closing.done()
    assert closing.exception() is not None
    assert world.clock.sleeping == 0


async def test_intervals_at_their_limits(world: World) -> None:
    for bad in (0, 0.09, -1, float("nan"), float("inf"), 86_401, "1 s"):
        with pytest.raises(InvalidArgument):
            Queue.open(world.store, heartbeat=bad)  # type: ignore[arg-type]
    for good in (0.1, timedelta(days=1)):
        queue = await world.open(heartbeat=good)
        found = await queue.heartbeat()
        assert found is not None
        assert timedelta(seconds=found.interval) == (
            good if isinstance(good, timedelta) else timedelta(seconds=good)
        )
        await queue.close()


async def test_activity_of_an_owner_without_heartbeat(world: World, follower: Follower) -> None:
    """R17: its position moves on while its epoch stays; another owner has another epoch."""
    queue = await world.open()
    await queue.enqueue("q", b"")
    first = await follower.refresh()
    await world.clock.advance(5)
    await queue.enqueue("q", b"")
    second = await follower.refresh()
    assert second.position > first.position
    assert second.epoch == first.epoch
    assert second.committed_at is not None
    assert round(second.committed_at.timestamp() * 1000) == world.clock.now_ms()
    await world.crash()
    assert (await follower.refresh()).epoch == first.epoch + 1
