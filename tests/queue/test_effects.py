"""Effects: committed with what they are passed to, or not at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from taquba import Claim, JobState, Queue
from taquba.errors import (
    ConflictingEffects,
    DuplicateJobId,
    InvalidJobId,
    InvalidQueueName,
    ValueTooLarge,
)
from taquba.queue import MAX_KV_VALUE_SIZE, CancelOutcome, Effects
from tests.queue.harness import NO_BACKOFF, World, counts, die, drain, read, take

pytestmark = pytest.mark.anyio


def some() -> Effects:
    return Effects().enqueue("next", b"follow-up").put("written", b"1").delete("deleted")


async def applied(queue: Queue) -> bool:
    """Whether `some()` took effect; it must be all of it or nothing."""
    found = (
        (await queue.stats("next")).pending,
        await queue.kv.get("written"),
        await queue.kv.get("deleted"),
    )
    assert found in ((1, b"1", None), (0, None, b"0")), found
    return found[0] == 1


@pytest.fixture
async def ready(world: World) -> Queue:
    """A queue where `some()` can take effect."""
    queue = await world.open(config=NO_BACKOFF)
    await queue.kv.put("deleted", b"0")
    return queue


async def test_an_ack_applies_its_effects(ready: Queue) -> None:
    """J1"""
    await ready.enqueue("q", b"")
    settled = await ready.ack(await take(ready), some())
    assert [each.created for each in settled.effects] == [True]
    assert (await read(ready, settled.effects[0].job_id)).payload == b"follow-up"
    assert await ready.stats("q") == counts(done=1)
    assert await applied(ready)


async def test_an_ack_and_its_effects_are_one_commit(world: World, ready: Queue) -> None:
    await ready.enqueue("q", b"")
    claim = await take(ready)
    before = world.wire.entries
    await ready.ack(claim, some())
    assert world.wire.entries == before + 1


async def test_the_results_are_in_the_order_of_the_enqueues(queue: Queue) -> None:
    """J3"""
    holder = await queue.enqueue("next", b"", dedup_key="K")
    await queue.enqueue("q", b"")
    effects = Effects().enqueue("next", b"", dedup_key="K").enqueue("next", b"new")
    settled = await queue.ack(await take(queue), effects)
    hit, new = settled.effects
    assert (hit.job_id, hit.created, new.created) == (holder.job_id, False, True)
    assert await queue.stats("q") == counts(done=1)
    assert await queue.stats("next") == counts(pending=2)


async def test_giving_up_applies_the_effects(ready: Queue) -> None:
    """J4"""
    await ready.enqueue("q", b"")
    settled = await ready.dead_letter(await take(ready), "no", some())
    assert (settled.state, len(settled.effects)) == (JobState.DEAD, 1)
    assert await applied(ready)


async def test_a_retry_drops_the_effects(ready: Queue) -> None:
    """J5"""
    await ready.enqueue("q", b"")
    settled = await ready.nack(await take(ready), "no", some())
    assert (settled.state, settled.effects) == (JobState.PENDING, ())
    assert not await applied(ready)


async def test_the_last_failure_applies_the_effects(ready: Queue) -> None:
    """J6"""
    await ready.enqueue("q", b"", max_attempts=1)
    settled = await ready.nack(await take(ready), "no", some())
    assert (settled.state, len(settled.effects)) == (JobState.DEAD, 1)
    assert await applied(ready)


async def test_a_removal_applies_the_effects(ready: Queue) -> None:
    """J7"""
    job_id = (await ready.enqueue("q", b"")).job_id
    result = await ready.cancel(job_id, some())
    assert (result.outcome, len(result.effects)) == (CancelOutcome.REMOVED, 1)
    assert await applied(ready)


async def test_a_cancellation_that_is_only_requested_drops_the_effects(ready: Queue) -> None:
    """J8"""
    job_id = (await ready.enqueue("q", b"")).job_id
    await take(ready)
    result = await ready.cancel(job_id, some())
    assert (result.outcome, result.effects) == (CancelOutcome.REQUESTED, ())
    assert not await applied(ready)


async def test_a_cancellation_of_nothing_drops_the_effects(ready: Queue) -> None:
    """J9"""
    for job_id in (await die(ready), "unknown"):
        result = await ready.cancel(job_id, some())
        assert (result.outcome, result.effects) == (CancelOutcome.NOT_FOUND, ())
    assert not await applied(ready)


@pytest.mark.parametrize("key", ["key", b"key", b"\xff\0", ""])
def test_a_key_is_not_both_written_and_deleted(key: str | bytes) -> None:
    """J10. Refused when it is staged, so no call ever sees it."""
    effects = Effects().put(key, b"1")
    with pytest.raises(ConflictingEffects):
        effects.delete(key)
    assert (effects.puts, effects.deletes) == ({as_bytes(key): b"1"}, {})
    effects = Effects().delete(key)
    with pytest.raises(ConflictingEffects):
        effects.put(key, b"1")
    assert (effects.puts, effects.deletes) == ({}, {as_bytes(key): None})


def as_bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key


def test_a_conflict_names_the_key() -> None:
    with pytest.raises(ConflictingEffects, match="orders/7"):
        Effects().put("orders/7", b"").delete(b"orders/7")


async def test_the_last_put_of_a_key_counts(queue: Queue) -> None:
    effects = Effects().put("key", b"1").put(b"key", b"2").delete("other").delete("other")
    await queue.enqueue("q", b"", effects=effects)
    assert await queue.kv.get("key") == b"2"


async def test_a_value_has_its_limit(queue: Queue) -> None:
    """J11, J19"""
    await queue.enqueue("q", b"")
    claim = await take(queue)
    effects = Effects()
    with pytest.raises(ValueTooLarge):
        effects.put("key", bytes(MAX_KV_VALUE_SIZE + 1))
    assert not effects
    effects.put("key", bytes(MAX_KV_VALUE_SIZE))
    await queue.ack(claim, effects)
    assert await queue.kv.get("key") == bytes(MAX_KV_VALUE_SIZE)


def test_a_follow_up_is_checked_when_it_is_staged() -> None:
    """J12"""
    effects = Effects()
    with pytest.raises(InvalidJobId):
        effects.enqueue("q", b"", job_id="a b")
    with pytest.raises(InvalidQueueName):
        effects.enqueue("x" * 256, b"")
    assert not effects


SETTLEMENTS: dict[str, Callable[[Queue, Claim, Effects], Awaitable[Any]]] = {
    "ack": lambda queue, claim, effects: queue.ack(claim, effects),
    "nack": lambda queue, claim, effects: queue.nack(claim, "no", effects),
    "dead_letter": lambda queue, claim, effects: queue.dead_letter(claim, "no", effects),
}


@pytest.mark.parametrize("how", SETTLEMENTS)
async def test_a_follow_up_whose_id_is_taken_refuses_the_whole_settlement(
    ready: Queue, how: str
) -> None:
    """J13"""
    await ready.enqueue("elsewhere", b"", job_id="X")
    await ready.enqueue("q", b"", max_attempts=1)
    claim = await take(ready)
    with pytest.raises(DuplicateJobId, match="'X'"):
        await SETTLEMENTS[how](ready, claim, some().enqueue("next", b"", job_id="X"))
    assert not await applied(ready)
    assert await ready.stats("q") == counts(claimed=1)
    assert claim.is_live
    await SETTLEMENTS[how](ready, claim, some())
    assert await applied(ready)


async def test_a_follow_up_can_be_for_later(world: World, queue: Queue) -> None:
    """J14"""
    await queue.enqueue("q", b"")
    await world.clock.advance(5)
    await queue.ack(await take(queue), Effects().enqueue("next", b"", delay=10))
    assert await queue.stats("next") == counts(scheduled=1)
    await world.clock.advance(10)
    assert await queue.stats("next") == counts(pending=1)


async def test_a_follow_up_can_have_every_option(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"")
    effects = Effects().enqueue(
        "q",
        b"data",
        headers={"a": "b"},
        priority=5,
        delay=1,
        dedup_key="K",
        max_attempts=9,
        job_id="X",
    )
    await queue.ack(await take(queue), effects)
    job = await read(queue, "X")
    assert (job.payload, job.headers, job.priority) == (b"data", {"a": "b"}, 5)
    assert (job.dedup_key, job.max_attempts, job.state) == ("K", 9, JobState.SCHEDULED)


async def test_a_delay_counts_from_the_commit(world: World, queue: Queue) -> None:
    effects = Effects().enqueue("next", b"", delay=10)
    await queue.enqueue("q", b"")
    claim = await take(queue)
    await world.clock.advance(20)
    await queue.ack(claim, effects)
    assert await queue.stats("next") == counts(scheduled=1)


async def test_an_enqueue_that_creates_nothing_drops_its_effects(ready: Queue) -> None:
    """J17"""
    first = await ready.enqueue("q", b"", dedup_key="K")
    second = await ready.enqueue("q", b"", dedup_key="K", effects=some())
    assert (second.job_id, second.created, second.effects) == (first.job_id, False, ())
    assert not await applied(ready)


async def test_an_enqueue_applies_its_effects(ready: Queue) -> None:
    """J18"""
    enqueued = await ready.enqueue("q", b"", dedup_key="K", effects=some())
    assert enqueued.created
    assert len(enqueued.effects) == 1
    assert await ready.stats("q") == counts(pending=1)
    assert await applied(ready)


async def test_the_same_key_twice_in_one_set_makes_one_job(queue: Queue) -> None:
    """J21"""
    await queue.enqueue("q", b"")
    effects = Effects().enqueue("n", b"1", dedup_key="K").enqueue("n", b"2", dedup_key="K")
    first, second = (await queue.ack(await take(queue), effects)).effects
    assert (first.created, second.created) == (True, False)
    assert first.job_id == second.job_id
    assert await drain(queue, "n") == [b"1"]


async def test_a_job_can_be_replaced_by_another_with_its_key(world: World, queue: Queue) -> None:
    """J22"""
    old = await queue.enqueue("q", b"old", dedup_key="K")
    result = await queue.cancel(old.job_id, Effects().enqueue("q", b"new", dedup_key="K"))
    assert (result.outcome, result.effects[0].created) == (CancelOutcome.REMOVED, True)
    queue = await world.crash()
    assert not (await queue.enqueue("q", b"", dedup_key="K")).created
    assert await drain(queue) == [b"new"]


async def test_a_job_can_be_replaced_by_another_with_its_id(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"old", job_id="X")
    await queue.cancel("X", Effects().enqueue("q", b"new", job_id="X"))
    queue = await world.crash()
    assert await drain(queue) == [b"new"]


async def test_a_job_cannot_be_followed_by_another_with_its_own_id(queue: Queue) -> None:
    """Effects come first: the job is there until the very end of its settlement."""
    await queue.enqueue("q", b"old", job_id="X")
    claim = await take(queue)
    with pytest.raises(DuplicateJobId):
        await queue.ack(claim, Effects().enqueue("q", b"new", job_id="X"))
    assert claim.is_live


async def test_effects_can_be_used_again(queue: Queue) -> None:
    effects = Effects().enqueue("next", b"")
    for _ in range(3):
        await queue.enqueue("q", b"", effects=effects)
    assert await queue.stats("next") == counts(pending=3)


async def test_no_effects_are_fine(world: World, queue: Queue) -> None:
    await queue.enqueue("q", b"", effects=Effects())
    assert (await queue.ack(await take(queue), Effects())).effects == ()


def test_effects_say_what_they_are() -> None:
    effects = Effects()
    assert not effects
    assert effects.enqueue("q", b"") is effects
    assert effects.put("a", b"") is effects
    assert effects.delete("b") is effects
    assert effects
    assert repr(effects) == "Effects(jobs=1, puts=1, deletes=1)"
