"""The index by time over keys."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from taquba import Effects, Queue
from taquba.errors import DuplicateJobId, InvalidArgument, InvalidType, ValueTooLarge
from taquba.queue import DeleteEntry, ExpiryIndex, KeepEntry
from tests.queue.harness import NO_BACKOFF, World, take

pytestmark = pytest.mark.anyio

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INDEX = ExpiryIndex("expiry/")


def at(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


async def write(queue: Queue, *times: int) -> None:
    effects = Effects()
    for time in times:
        INDEX.add(effects, at(time), f"{time}")
    await queue.commit(effects)


async def sweep(
    queue: Queue, now: int, decide: Callable[[bytes], DeleteEntry | KeepEntry] | None = None
) -> list[bytes]:
    """Sweep what is a second old; the suffixes that were offered."""
    offered: list[bytes] = []

    def on_expired(time: datetime, suffix: bytes) -> DeleteEntry | KeepEntry:
        assert time == at(int(suffix))
        offered.append(suffix)
        return DeleteEntry() if decide is None else decide(suffix)

    deleted = await INDEX.sweep(queue, on_expired, age=1, now=at(now))
    assert deleted <= len(offered)
    return offered


async def left(queue: Queue) -> list[int]:
    return [
        round((parsed[0] - EPOCH).total_seconds() * 1000)
        async for key, _ in queue.kv.entries(INDEX.prefix)
        if (parsed := INDEX.parse(key)) is not None
    ]


async def test_due_entries_are_offered_oldest_first(queue: Queue) -> None:
    """L1"""
    await write(queue, 3000, 1000, 2000)
    assert await sweep(queue, 3000) == [b"1000", b"2000"]
    assert await left(queue) == [3000]
    assert await sweep(queue, 3999) == []
    assert await sweep(queue, 4000) == [b"3000"]


async def test_an_entry_goes_together_with_effects(world: World, queue: Queue) -> None:
    """L2"""
    await write(queue, 1000)
    await queue.kv.put("data/1000", b"x")
    before = world.wire.entries

    def decide(suffix: bytes) -> DeleteEntry:
        return DeleteEntry(Effects().delete(b"data/" + suffix).enqueue("q", b"gone"))

    assert await sweep(queue, 2000, decide) == [b"1000"]
    assert world.wire.entries - before == 1
    assert await queue.kv.get("data/1000") is None
    assert (await take(queue)).job.payload == b"gone"
    assert await left(queue) == []


@pytest.mark.parametrize(("value", "applies"), [(b"old", True), (b"new", False), (None, False)])
async def test_effects_can_depend_on_a_value(
    queue: Queue, value: bytes | None, applies: bool
) -> None:
    """L3"""
    await write(queue, 1000)
    if value is not None:
        await queue.kv.put("data", value)
    decision = DeleteEntry(Effects().put("log", b"").delete("data"), provided={"data": b"old"})
    deleted = await INDEX.sweep(queue, lambda *_: decision, age=1, now=at(2000))
    assert deleted == 1
    assert await left(queue) == []
    assert (await queue.kv.get("log") is not None) == applies
    assert await queue.kv.get("data") == (None if applies else value)


async def test_a_kept_entry_is_offered_again(queue: Queue) -> None:
    """L4"""
    await write(queue, 1000, 2000)
    for _ in range(3):
        kept = await sweep(queue, 9000, lambda _: KeepEntry())
        assert kept == [b"1000", b"2000"]
    assert await left(queue) == [1000, 2000]


async def test_effects_that_fail_leave_their_entry(queue: Queue) -> None:
    """L5"""
    await queue.enqueue("q", b"x", job_id="taken")
    await write(queue, 1000, 2000)
    taken = DeleteEntry(Effects().put("key", b"").enqueue("q", b"y", job_id="taken"))
    with pytest.raises(DuplicateJobId):
        await sweep(queue, 9000, lambda _: taken)
    assert await queue.kv.get("key") is None
    assert await sweep(queue, 9000) == [b"1000", b"2000"]


async def test_a_sweep_that_was_left_midway_is_resumed(queue: Queue) -> None:
    """L6"""
    await write(queue, 1000, 2000, 3000)

    def decide(suffix: bytes) -> DeleteEntry:
        if suffix == b"2000":
            raise ZeroDivisionError
        return DeleteEntry()

    with pytest.raises(ZeroDivisionError):
        await sweep(queue, 9000, decide)

    async def endless(time: datetime, suffix: bytes) -> DeleteEntry:
        await asyncio.Event().wait()
        return DeleteEntry()

    task = asyncio.ensure_future(INDEX.sweep(queue, endless, age=1, now=at(9000)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert await sweep(queue, 9000) == [b"2000", b"3000"]


async def test_nothing_that_is_due_costs_no_request(world: World, queue: Queue) -> None:
    """L7. There is no bound in memory: the look is one step in an index."""
    await write(queue, 5000)
    before = len(world.wire.created)
    world.wire.hold()
    assert await sweep(queue, 5999) == []
    assert await INDEX.sweep(queue, lambda *_: DeleteEntry(), age=float("inf")) == 0
    assert await ExpiryIndex("other/").sweep(queue, lambda *_: DeleteEntry(), age=0) == 0
    assert len(world.wire.created) == before
    world.wire.release()


async def test_an_entry_that_comes_during_a_sweep_is_found_by_the_next(queue: Queue) -> None:
    """L8"""
    await write(queue, 1000, 2000)

    async def on_expired(time: datetime, suffix: bytes) -> DeleteEntry:
        if suffix == b"1000":
            await write(queue, 500)
        return DeleteEntry()

    assert await INDEX.sweep(queue, on_expired, age=1, now=at(9000)) == 2
    assert await sweep(queue, 9000) == [b"500"]


async def test_an_entry_among_dropped_effects_was_never_written(world: World) -> None:
    """L9"""
    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue("q", b"x")
    await queue.nack(await take(queue), "again", INDEX.add(Effects(), at(1), "1"))
    assert await sweep(queue, 9000) == []


async def test_an_entry_is_found_however_it_was_written(queue: Queue) -> None:
    """L10. There is no bound in memory that could hide it."""
    await write(queue, 5000)
    assert await sweep(queue, 6000) == [b"5000"]
    await queue.kv.put(INDEX.key(at(1000), "1000"), b"")
    assert await sweep(queue, 6000) == [b"1000"]


async def test_a_malformed_key_is_deleted(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """L11"""
    await write(queue, 1000)
    await queue.kv.put(INDEX.prefix + bytes(7), b"")
    await queue.kv.put(INDEX.prefix, b"")
    with caplog.at_level(logging.WARNING, "taquba.queue"):
        assert await sweep(queue, 9000) == [b"1000"]
    assert sum("no entry of the index" in x.getMessage() for x in caplog.records) == 2
    assert [entry async for entry in queue.kv.entries(INDEX.prefix)] == []


async def test_keys_and_what_they_say() -> None:
    """L12"""
    key = INDEX.key(at(1000), "ä")
    assert key == b"expiry/" + (1000).to_bytes(8, "big") + "ä".encode()
    assert INDEX.parse(key) == (at(1000), "ä".encode())
    assert INDEX.parse(INDEX.key(at(0))) == (at(0), b"")
    for foreign in (b"", b"other/" + bytes(8), b"expiry/" + bytes(7), b"expiry/" + b"\xff" * 8):
        assert INDEX.parse(foreign) is None
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert INDEX.parse(INDEX.key(last)) == (last, b"")
    assert repr(INDEX) == "ExpiryIndex(b'expiry/')"


async def test_a_time_beyond_all_times_is_never_due(queue: Queue) -> None:
    await queue.kv.put(INDEX.prefix + b"\xff" * 8, b"")
    assert await INDEX.sweep(queue, lambda *_: DeleteEntry(), age=0) == 0
    assert len((await queue.kv.scan(INDEX.prefix)).entries) == 1


async def test_the_clock_of_the_queue_says_what_is_due(world: World, queue: Queue) -> None:
    now = at(world.clock.now_ms())
    await queue.commit(INDEX.add(Effects(), now))
    await world.clock.advance(9.999)
    assert await INDEX.sweep(queue, lambda *_: DeleteEntry(), age=10) == 0
    await world.clock.advance(0.001)
    assert await INDEX.sweep(queue, lambda *_: DeleteEntry(), age=10) == 1


async def test_two_sweeps_at_once_apply_effects_once(queue: Queue) -> None:
    await write(queue, *range(1, 20))

    async def on_expired(time: datetime, suffix: bytes) -> DeleteEntry:
        await asyncio.sleep(0)
        return DeleteEntry(Effects().enqueue("q", suffix))

    sweeps = [INDEX.sweep(queue, on_expired, age=0, now=at(9000)) for _ in range(3)]
    assert sum(await asyncio.gather(*sweeps)) == 19
    assert (await queue.stats("q")).pending == 19


async def test_more_entries_than_a_page(queue: Queue) -> None:
    await write(queue, *range(1000))
    assert len(await sweep(queue, 1700)) == 701
    assert len(await left(queue)) == 299


async def test_bad_input(queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="empty"):
        ExpiryIndex("")
    with pytest.raises(InvalidArgument, match="1970"):
        INDEX.key(at(-1))
    with pytest.raises(InvalidArgument, match="time zone"):
        INDEX.key(datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidType):
        INDEX.key(5.0)  # type: ignore[arg-type]
    with pytest.raises(ValueTooLarge):
        INDEX.key(at(1), b"x" * (4096 - 8 - len(INDEX.prefix) + 1))
    assert len(INDEX.key(at(1), b"x" * (4096 - 8 - len(INDEX.prefix)))) == 4096
    with pytest.raises(InvalidType):
        INDEX.add(None, at(1))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        await INDEX.sweep(queue, lambda *_: DeleteEntry(), age=-1)
    with pytest.raises(InvalidArgument):
        await INDEX.sweep(
            queue,
            lambda *_: DeleteEntry(),
            age=1,
            now=datetime(2026, 1, 1),  # noqa: DTZ001
        )
    with pytest.raises(InvalidType):
        await INDEX.sweep(queue, None, age=1)  # type: ignore[arg-type]
    await write(queue, 1000)
    with pytest.raises(InvalidType, match="DeleteEntry"):
        await INDEX.sweep(queue, lambda *_: None, age=0)  # type: ignore[arg-type,return-value]
    assert await left(queue) == [1000]
