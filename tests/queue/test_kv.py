"""The caller's key-value store."""

from __future__ import annotations

import asyncio

import pytest

from taquba import Queue
from taquba.errors import ValueTooLarge
from taquba.queue import MAX_KV_KEY_SIZE, MAX_KV_VALUE_SIZE
from tests.queue.harness import World, drain, started

pytestmark = pytest.mark.anyio


async def test_what_is_put_is_got_until_it_is_deleted(queue: Queue) -> None:
    """K1"""
    assert await queue.kv.get("key") is None
    await queue.kv.put("key", b"1")
    assert await queue.kv.get("key") == b"1"
    await queue.kv.put("key", b"2")
    assert await queue.kv.get("key") == b"2"
    await queue.kv.delete("key")
    assert await queue.kv.get("key") is None
    await queue.kv.delete("key")


async def test_a_value_has_its_limit(queue: Queue) -> None:
    """K5"""
    await queue.kv.put("key", bytes(MAX_KV_VALUE_SIZE))
    with pytest.raises(ValueTooLarge, match="262,145"):
        await queue.kv.put("key", bytes(MAX_KV_VALUE_SIZE + 1))
    assert await queue.kv.get("key") == bytes(MAX_KV_VALUE_SIZE)


async def test_a_key_has_its_limit(queue: Queue) -> None:
    for longest in (b"\xff" * MAX_KV_KEY_SIZE, "x" * MAX_KV_KEY_SIZE, "é" * 2048):
        await queue.kv.put(longest, b"1")
        assert await queue.kv.get(longest) == b"1"
    for too_long in (b"x" * (MAX_KV_KEY_SIZE + 1), "é" * 2049):
        for call in (
            queue.kv.put(too_long, b""),
            queue.kv.get(too_long),
            queue.kv.delete(too_long),
        ):
            with pytest.raises(ValueTooLarge):
                await call


@pytest.mark.parametrize("key", ["", "jobs", "queues", b"\0", b"\xff\xfe", "ä\0b", "'; --"])
async def test_any_key_is_fine_and_touches_no_job(
    world: World, queue: Queue, key: str | bytes
) -> None:
    """K13"""
    await queue.enqueue("q", b"data")
    await queue.kv.put(key, b"mine")
    queue = await world.crash()
    assert await queue.kv.get(key) == b"mine"
    await queue.kv.delete(key)
    assert await queue.kv.get(key) is None
    assert await drain(queue) == [b"data"]


async def test_a_text_key_is_its_utf_8(queue: Queue) -> None:
    await queue.kv.put("ä", b"1")
    assert await queue.kv.get("ä".encode()) == b"1"


async def test_an_empty_value_is_a_value(world: World, queue: Queue) -> None:
    """K22"""
    await queue.kv.put("key", b"")
    assert await queue.kv.get("key") == b""
    queue = await world.crash()
    assert await queue.kv.get("key") == b""


async def test_a_write_returns_only_when_it_is_stored(world: World, queue: Queue) -> None:
    """K21, as far as it goes without compare_put"""
    await queue.kv.put("key", b"old")
    world.wire.hold()
    putting = await started(world, queue.kv.put("key", b"new"))
    reading = await started(world, queue.kv.get("key"))
    assert not putting.done()
    assert not reading.done()
    queue = await world.crash()
    assert await queue.kv.get("key") == b"old"
    putting.cancel()
    reading.cancel()


async def test_deleting_what_somebody_is_deleting_waits_for_it(world: World, queue: Queue) -> None:
    await queue.kv.put("key", b"1")
    world.wire.hold()
    first = await started(world, queue.kv.delete("key"))
    second = await started(world, queue.kv.delete("key"))
    assert not second.done()
    world.wire.release()
    await asyncio.gather(first, second)


async def test_concurrent_writes_share_a_commit_and_the_last_one_counts(
    world: World, queue: Queue
) -> None:
    before = world.wire.entries
    await asyncio.gather(*(queue.kv.put("key", b"%d" % n) for n in range(50)))
    assert world.wire.entries - before <= 2
    assert await queue.kv.get("key") == b"49"


async def test_a_value_is_copied(queue: Queue) -> None:
    value = bytearray(b"abc")
    await queue.kv.put("key", value)
    value[:] = b"xyz"
    assert await queue.kv.get("key") == b"abc"
