"""Commits that depend on what keys hold, and commits of effects alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from taquba import Effects, Queue
from taquba.errors import DuplicateJobId, InvalidArgument, InvalidType, ValueTooLarge
from taquba.queue import MAX_KV_VALUE_SIZE, Committed, Enqueued
from tests.queue.harness import World, counts, drain, started

pytestmark = pytest.mark.anyio


async def test_a_key_is_deleted_if_it_has_the_value(queue: Queue) -> None:
    """K2"""
    await queue.kv.put("key", b"1")
    assert not await queue.kv.compare_delete("key", b"2")
    assert not await queue.kv.compare_delete("key", b"")
    assert await queue.kv.get("key") == b"1"
    assert await queue.kv.compare_delete("key", b"1")
    assert await queue.kv.get("key") is None
    assert not await queue.kv.compare_delete("key", b"1")
    assert not await queue.kv.compare_delete("key", b""), "absent is not empty"


async def test_a_key_is_put_if_it_is_absent(queue: Queue) -> None:
    """K3"""
    assert not await queue.kv.compare_put("key", b"", b"1")
    assert await queue.kv.get("key") is None
    assert await queue.kv.compare_put("key", None, b"1")
    assert await queue.kv.get("key") == b"1"


async def test_a_key_is_put_if_it_has_the_value(queue: Queue) -> None:
    """K4"""
    await queue.kv.put("key", b"1")
    assert not await queue.kv.compare_put("key", None, b"2")
    assert not await queue.kv.compare_put("key", b"3", b"2")
    assert await queue.kv.get("key") == b"1"
    assert await queue.kv.compare_put("key", b"1", b"1")
    assert await queue.kv.compare_put("key", b"1", b"2")
    assert await queue.kv.get("key") == b"2"


async def test_compared_values_have_their_limits(queue: Queue) -> None:
    """K5"""
    largest, larger = bytes(MAX_KV_VALUE_SIZE), bytes(MAX_KV_VALUE_SIZE + 1)
    assert await queue.kv.compare_put("key", None, largest)
    assert await queue.kv.compare_put("key", largest, largest)
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: queue.kv.compare_put("key", None, larger),
        lambda: queue.kv.compare_put("key", larger, b""),
        lambda: queue.kv.compare_delete("key", larger),
        lambda: queue.compare_and_commit({"key": larger}, Effects()),
        lambda: queue.compare_and_commit({b"x" * 4097: b""}, Effects()),
    ]
    for call in calls:
        with pytest.raises(ValueTooLarge):
            await call()
    assert await queue.compare_and_commit({"key": largest}, Effects()) is not None
    assert await queue.kv.compare_delete("key", largest)


async def test_a_compare_wants_bytes(queue: Queue) -> None:
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: queue.kv.compare_delete("key", None),  # type: ignore[arg-type]
        lambda: queue.kv.compare_put("key", "text", b""),  # type: ignore[arg-type]
        lambda: queue.compare_and_commit({"key": "text"}, Effects()),  # type: ignore[dict-item]
        lambda: queue.compare_and_commit([("key", b"")], Effects()),  # type: ignore[arg-type]
        lambda: queue.compare_and_commit({}, None),  # type: ignore[arg-type]
        lambda: queue.compare_and_commit({7: None}, Effects()),  # type: ignore[dict-item]
        lambda: queue.commit(None),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(InvalidType):
            await call()
    with pytest.raises(InvalidArgument, match="twice"):
        await queue.compare_and_commit({"key": None, b"key": b""}, Effects())


async def test_concurrent_additions_all_count(queue: Queue) -> None:
    """K6"""

    async def add() -> None:
        for _ in range(25):
            while True:
                before = await queue.kv.get("total")
                after = b"%d" % (int(before or b"0") + 1)
                if await queue.kv.compare_put("total", before, after):
                    break

    await asyncio.gather(*(add() for _ in range(4)))
    assert await queue.kv.get("total") == b"100"


@pytest.mark.parametrize("expected", [b"2", b"", None])
async def test_a_mismatch_commits_nothing(queue: Queue, expected: bytes | None) -> None:
    """K7"""
    await queue.kv.put("key", b"1")
    effects = Effects().enqueue("q", b"x").put("key", b"2").put("other", b"")
    assert await queue.compare_and_commit({"key": expected}, effects) is None
    assert await queue.compare_and_commit({"absent": b""}, effects) is None
    assert await queue.kv.get("key") == b"1"
    assert await queue.kv.get("other") is None
    assert await queue.stats("q") == counts()


async def test_a_match_commits_everything_also_the_compared_key(queue: Queue) -> None:
    """K8"""
    await queue.kv.put("key", b"1")
    effects = Effects().enqueue("q", b"x", job_id="j").put("key", b"2").delete("other")
    done = await queue.compare_and_commit({"key": b"1", "other": None}, effects)
    assert done == Committed((Enqueued("j", created=True),))
    assert await queue.kv.get("key") == b"2"
    assert await drain(queue) == [b"x"]


async def test_a_match_without_enqueues_is_no_mismatch(queue: Queue) -> None:
    """K9"""
    done = await queue.compare_and_commit({"key": None}, Effects().put("key", b"1"))
    assert done == Committed(())
    assert done, "it can be used as a condition"
    assert await queue.compare_and_commit({"key": b"1"}, Effects()) == Committed(())
    assert await queue.compare_and_commit({}, Effects().delete("key")) == Committed(())
    assert await queue.kv.get("key") is None


async def test_one_mismatch_of_several_commits_nothing(queue: Queue) -> None:
    """K10"""
    await queue.kv.put("a", b"1")
    await queue.kv.put("b", b"2")
    effects = Effects().put("c", b"3")
    assert await queue.compare_and_commit({"a": b"1", "b": b"1"}, effects) is None
    assert await queue.compare_and_commit({"a": b"0", "b": b"2"}, effects) is None
    assert await queue.kv.get("c") is None
    assert await queue.compare_and_commit({"a": b"1", "b": b"2"}, effects) is not None
    assert await queue.kv.get("c") == b"3"


async def test_a_key_that_is_only_compared_is_not_overtaken(queue: Queue) -> None:
    """K11"""

    def commit() -> Awaitable[Committed | None]:
        return queue.compare_and_commit({"lock": b"free"}, Effects().put("done", b""))

    await queue.kv.put("lock", b"free")
    _, done = await asyncio.gather(queue.kv.put("lock", b"taken"), commit())
    assert done is None
    assert await queue.kv.get("done") is None
    await queue.kv.put("lock", b"free")
    done, _ = await asyncio.gather(commit(), queue.kv.put("lock", b"taken"))
    assert done is not None
    assert await queue.kv.get("done") == b""


async def test_an_answer_rests_on_what_is_durable(world: World, queue: Queue) -> None:
    """K21"""
    await queue.kv.put("key", b"old")
    world.wire.hold()
    assert not await queue.kv.compare_put("key", b"other", b"new"), "nothing is in doubt"
    assert await queue.compare_and_commit({"key": b"other"}, Effects().put("key", b"")) is None
    matching = await started(world, queue.kv.compare_put("key", b"old", b"new"))
    mismatches = [
        await started(world, queue.kv.compare_put("key", b"old", b"newer")),
        await started(world, queue.kv.compare_delete("key", b"old")),
        await started(world, queue.compare_and_commit({"key": b"old"}, Effects())),
    ]
    assert not matching.done()
    assert not any(mismatch.done() for mismatch in mismatches), "they rest on what may be lost"
    queue = await world.crash()
    assert await queue.kv.get("key") == b"old"
    for call in (matching, *mismatches):
        call.cancel()


async def test_effects_are_committed_alone(queue: Queue) -> None:
    """J16; the way to enqueue jobs that differ in their options."""
    waiting = (await queue.enqueue("q", b"x", dedup_key="k")).job_id
    effects = (
        Effects()
        .enqueue("q", b"y", dedup_key="k")
        .enqueue("other", b"z", priority=1, job_id="mine")
        .enqueue("q", b"later", delay=60)
        .put("key", b"1")
    )
    done = await queue.commit(effects)
    assert done.effects[:2] == (Enqueued(waiting, False), Enqueued("mine", True))
    assert await queue.kv.get("key") == b"1"
    assert await queue.stats("q") == counts(pending=1, scheduled=1)
    assert await queue.stats("other") == counts(pending=1)
    assert await queue.commit(Effects()) == Committed(())


async def test_a_taken_job_id_commits_nothing(queue: Queue) -> None:
    await queue.enqueue("q", b"x", job_id="mine")
    effects = Effects().put("key", b"1").enqueue("q", b"y").enqueue("other", b"z", job_id="mine")
    with pytest.raises(DuplicateJobId):
        await queue.commit(effects)
    with pytest.raises(DuplicateJobId):
        await queue.compare_and_commit({"key": None}, effects)
    assert await queue.kv.get("key") is None
    assert await drain(queue) == [b"x"]


async def test_a_commit_is_durable_when_it_returns(world: World, queue: Queue) -> None:
    world.wire.hold()
    commit = await started(world, queue.commit(Effects().enqueue("q", b"x").put("key", b"1")))
    assert not commit.done()
    world.wire.release()
    await commit
    queue = await world.crash()
    assert await queue.kv.get("key") == b"1"
    assert await drain(queue) == [b"x"]
