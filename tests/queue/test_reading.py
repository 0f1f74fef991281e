"""What can be read, by the owner and by a follower: the same tests for both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest

from taquba import Follower, JobPage, JobState, Queue, QueueConfig, QueueStats
from taquba.errors import InvalidArgument, InvalidState, InvalidType, ValueTooLarge
from taquba.queue import QueueReader, _listing
from tests.queue.harness import World, counts, die, drain, read, take

pytestmark = pytest.mark.anyio


class Readers:
    """The owner, and somebody who reads what it wrote."""

    def __init__(self, kind: str, world: World) -> None:
        self.kind = kind
        self.world = world
        self.followers: list[Follower] = []

    async def of(self, queue: Queue) -> Any:
        """A reader that sees what the owner has committed by now."""
        if self.kind == "owner":
            return queue
        if self.kind == "late follower" or not self.followers:
            follower = await Follower.open(self.world.store, clock=self.world.clock)
            self.followers.append(follower)
        await self.followers[-1].refresh()
        return self.followers[-1]


@pytest.fixture(params=["owner", "follower", "late follower"])
async def readers(request: pytest.FixtureRequest, world: World) -> AsyncIterator[Readers]:
    readers = Readers(request.param, world)
    if request.param == "follower":
        readers.followers.append(await Follower.open(world.store, clock=world.clock))
    yield readers
    for follower in readers.followers:
        await follower.close()


def ids(page: JobPage) -> list[str]:
    return [job.id for job in page.jobs]


async def all_pages(reader: QueueReader, state: JobState | None, limit: int) -> list[list[str]]:
    pages: list[list[str]] = []
    after: str | None = None
    while True:
        page = await reader.list_jobs("q", state, limit=limit, after=after)
        pages.append(ids(page))
        after = page.next
        if after is None:
            return pages


async def test_jobs_and_counters(readers: Readers, queue: Queue) -> None:
    """R9"""
    enqueued = await queue.enqueue("q", b"data", headers={"a": "b"}, priority=7, dedup_key="once")
    reader = await readers.of(queue)
    job = await reader.get_job(enqueued.job_id)
    assert job is not None
    assert (job.id, job.queue, job.payload) == (enqueued.job_id, "q", b"data")
    assert (job.headers, job.priority, job.dedup_key) == ({"a": "b"}, 7, "once")
    assert job.state is JobState.PENDING
    assert await reader.get_job("nobody") is None
    assert await reader.stats("q") == counts(pending=1)
    claim = await take(queue)
    reader = await readers.of(queue)
    assert (await reader.get_job(job.id)).state is JobState.CLAIMED
    assert await reader.stats("q") == counts(claimed=1)
    await queue.ack(claim)
    reader = await readers.of(queue)
    assert await reader.get_job(job.id) is None
    assert await reader.stats("q") == counts(done=1)
    assert await reader.stats("nobody") == QueueStats(0, 0, 0, 0, 0)


async def test_the_age_of_the_job_that_comes_next(
    readers: Readers, world: World, queue: Queue
) -> None:
    async def age() -> float | None:
        return (await (await readers.of(queue)).stats("q")).oldest_ready_age

    # With QueueConfig(jitter=False), as in this world, the retry comes after a second.
    assert await age() is None
    await queue.enqueue("q", b"late", delay=5)
    assert await age() is None  # it waits for its time
    await world.clock.advance(7.5)
    assert await age() == 7.5  # and that counts
    await queue.enqueue("q", b"")
    assert await age() == 7.5
    await queue.enqueue("q", b"first", priority=1)
    await world.clock.advance(2)
    assert await age() == 2
    claim = await take(queue)
    assert (await read(queue, claim.job.id)).payload == b"first"
    assert await age() == 9.5
    await world.clock.advance(1)
    await queue.nack(claim, "no")
    await world.clock.advance(1)
    assert await age() == 4  # after a retry it is as old as before
    world.clock.shift_wall_clock(-3600)
    assert await age() == 0
    await drain(queue)
    assert await age() is None


async def test_the_age_of_the_next_job_is_found_by_the_index(queue: Queue) -> None:
    seen: list[str] = []
    rows = queue._source.rows

    def noting(sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        seen.extend(row[3] for row in rows(f"EXPLAIN QUERY PLAN {sql}", parameters))
        return rows(sql, parameters)

    queue._source.rows = noting  # type: ignore[method-assign]
    await queue.enqueue("q", b"")
    await queue.stats("q")
    assert seen == ["SEARCH jobs USING INDEX jobs_pending (queue=?)"]


async def test_every_queue_that_had_a_job_is_listed(readers: Readers, queue: Queue) -> None:
    """R2"""
    for name in ("b", "a", "ü"):
        await queue.enqueue(name, b"")
    assert await queue.claim("never used") is None
    await queue.ack(await take(queue, "b"))
    reader = await readers.of(queue)
    assert await reader.list_queues() == ["a", "b", "ü"]


async def test_an_empty_store_has_nothing(readers: Readers, queue: Queue) -> None:
    reader = await readers.of(queue)
    assert await reader.list_queues() == []
    assert await reader.list_jobs("q") == JobPage((), None)
    assert (await reader.kv.scan()).entries == ()
    assert await reader.kv.get("key") is None
    assert await reader.read("SELECT * FROM jobs") == []


async def test_pending_jobs_are_listed_in_claim_order(readers: Readers, queue: Queue) -> None:
    """R3"""
    made = [
        (priority, (await queue.enqueue("q", b"", priority=priority)).job_id)
        for priority in (5, 3, 5, 3, 9)
    ]
    await queue.enqueue("other", b"", priority=1)
    wanted = [job_id for _, job_id in sorted(made, key=lambda one: one[0])]
    reader = await readers.of(queue)
    assert await all_pages(reader, JobState.PENDING, 2) == [wanted[:2], wanted[2:4], wanted[4:]]
    claims = await queue.claim_many("q", 5)
    assert [claim.job.id for claim in claims] == wanted


async def test_scheduled_jobs_are_listed_soonest_first(readers: Readers, queue: Queue) -> None:
    """R4"""
    made = [
        (delay, (await queue.enqueue("q", b"", delay=delay)).job_id) for delay in (60, 20, 60, 90)
    ]
    await queue.enqueue("other", b"", delay=30)
    wanted = [job_id for _, job_id in sorted(made, key=lambda one: one[0])]
    reader = await readers.of(queue)
    assert await all_pages(reader, JobState.SCHEDULED, 3) == [wanted[:3], wanted[3:]]
    page = await reader.list_jobs("q", JobState.SCHEDULED, limit=4)
    assert (ids(page), page.next) == (wanted, None)


async def test_claimed_jobs_are_listed_in_order_of_enqueueing(
    readers: Readers, queue: Queue
) -> None:
    """R5, F24: by enqueueing, not by when their leases end."""
    for _ in range(4):
        await queue.enqueue("q", b"", priority=1)
        await queue.enqueue("other", b"")
    claims = [await take(queue, name) for _ in range(3) for name in ("q", "other")]
    wanted = [claim.job.id for claim in claims if claim.job.queue == "q"]
    claims[0].renew(600)
    claims[2].renew(1)
    reader = await readers.of(queue)
    assert await all_pages(reader, JobState.CLAIMED, 1) == [[job_id] for job_id in wanted]


async def test_dead_jobs_are_listed_in_order_of_enqueueing(readers: Readers, queue: Queue) -> None:
    """I7, R7"""
    made = [(await queue.enqueue("q", b"%d" % number)).job_id for number in range(5)]
    claims = await queue.claim_many("q", 5)
    for claim in reversed(claims):
        await queue.dead_letter(claim, "given up")
        await readers.world.clock.advance(1)
    await die(queue, "other")
    reader = await readers.of(queue)
    assert await all_pages(reader, JobState.DEAD, 2) == [made[:2], made[2:4], made[4:]]
    assert (await reader.list_jobs("q", JobState.DEAD, limit=0)).jobs == ()
    assert (await reader.list_jobs("q", JobState.DEAD)).jobs[0].last_error == "given up"


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_done_jobs_are_listed_as_they_ended(world: World, limit: int) -> None:
    queue = await world.open(config=QueueConfig(keep_done=timedelta(days=1)))
    await queue.enqueue_many("q", [b""] * 5)
    claims = await queue.claim_many("q", 5)
    for claim in (claims[3], claims[0]):
        await queue.ack(claim)
        await world.clock.advance(1)
    await asyncio.gather(*[queue.ack(claims[index]) for index in (4, 1, 2)])  # at once
    wanted = [claims[index].job.id for index in (3, 0, 1, 2, 4)]
    async with Follower.open(world.store, clock=world.clock) as follower:
        for reader in (queue, follower):
            pages = await all_pages(reader, JobState.DONE, limit)
            assert list(chain(*pages)) == wanted


async def test_jobs_of_all_states_are_listed_in_order_of_enqueueing(
    readers: Readers, queue: Queue
) -> None:
    dead = await die(queue)
    claimed = (await queue.enqueue("q", b"")).job_id
    await take(queue)
    pending = (await queue.enqueue("q", b"")).job_id
    scheduled = (await queue.enqueue("q", b"", delay=10)).job_id
    await queue.enqueue("other", b"")
    reader = await readers.of(queue)
    pages = await all_pages(reader, None, 3)
    assert pages == [[dead, claimed, pending], [scheduled]]


async def test_a_listing_goes_on_though_its_last_job_moved(readers: Readers, queue: Queue) -> None:
    """R8"""
    made = [enqueued.job_id for enqueued in await queue.enqueue_many("q", [b""] * 4)]
    page = await (await readers.of(queue)).list_jobs("q", JobState.PENDING, limit=2)
    for claim in await queue.claim_many("q", 2):
        await queue.ack(claim)
    reader = await readers.of(queue)
    assert ids(await reader.list_jobs("q", JobState.PENDING, after=page.next)) == made[2:]


async def test_a_place_in_another_listing_gives_nothing(readers: Readers, queue: Queue) -> None:
    """R6"""
    for name in ("q", "other"):
        await queue.enqueue_many(name, [b""] * 3)
    reader = await readers.of(queue)
    page = await reader.list_jobs("q", JobState.PENDING, limit=1)
    nothing = JobPage((), None)
    assert await reader.list_jobs("other", JobState.PENDING, after=page.next) == nothing
    assert await reader.list_jobs("nobody", JobState.PENDING, after=page.next) == nothing
    assert await reader.list_jobs("q", JobState.DEAD, after=page.next) == nothing
    assert await reader.list_jobs("q", after=page.next) == nothing
    assert await reader.list_jobs("q", limit=0) == nothing


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"limit": -1}, InvalidArgument),
        ({"limit": 10_001}, InvalidArgument),
        ({"limit": 1.5}, InvalidType),
        ({"state": 0}, InvalidType),
        ({"after": 7}, InvalidType),
        ({"after": "what"}, InvalidArgument),
        ({"after": "1.9.0.0"}, InvalidArgument),
    ],
)
async def test_a_listing_refuses_nonsense(
    readers: Readers, queue: Queue, options: dict[str, Any], error: type[Exception]
) -> None:
    reader = await readers.of(queue)
    with pytest.raises(error):
        await reader.list_jobs("q", **options)


@pytest.mark.parametrize("state", [None, *JobState])
async def test_a_listing_looks_through_many_jobs_of_others(
    world: World, state: JobState | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In slices, however they fall."""
    monkeypatch.setattr(_listing, "_SLICE", 3)
    queue = await world.open(config=QueueConfig(keep_done=timedelta(days=1)))
    mine: list[str] = []
    for number in range(40):
        name = "q" if number % 7 == 0 else "other"
        delay = 10 + number % 4 if state is JobState.SCHEDULED else None
        enqueued = await queue.enqueue(name, b"", delay=delay)
        if name == "q":
            mine.append(enqueued.job_id)
    if state not in (None, JobState.PENDING, JobState.SCHEDULED):
        for name in ("q", "other"):
            for claim in await queue.claim_many(name, 40):
                if state is JobState.DONE:
                    await queue.ack(claim)
                elif state is JobState.DEAD:
                    await queue.dead_letter(claim, "no")
    async with Follower.open(world.store, clock=world.clock) as follower:
        for reader in (queue, follower):
            for limit in (1, 2, 5, 6, 100):
                listed = list(chain(*await all_pages(reader, state, limit)))
                assert sorted(listed) == sorted(mine)
                if state is not JobState.SCHEDULED:
                    assert listed == mine


# -- key-value ----------------------------------------------------------------------------------


async def keys(reader: Any, *arguments: Any, **options: Any) -> list[bytes]:
    page = await reader.kv.scan(*arguments, **options)
    return [key for key, _ in page.entries]


async def test_a_scan_gives_pages(readers: Readers, queue: Queue) -> None:
    """K14"""
    for number in range(5):
        await queue.kv.put(f"a/{number}", b"%d" % number)
    await queue.kv.put("b", b"")
    reader = await readers.of(queue)
    assert await reader.kv.get("a/3") == b"3"
    assert await reader.kv.get("b") == b""
    first = await reader.kv.scan("a/", limit=3)
    assert first.entries == ((b"a/0", b"0"), (b"a/1", b"1"), (b"a/2", b"2"))
    assert first.more
    second = await reader.kv.scan("a/", limit=3, start_after=first.entries[-1][0])
    assert second.entries == ((b"a/3", b"3"), (b"a/4", b"4"))
    assert not second.more
    exactly = await reader.kv.scan("a/", limit=5)
    assert (len(exactly.entries), exactly.more) == (5, False)


async def test_a_scan_stays_within_its_prefix(readers: Readers, queue: Queue) -> None:
    """K12, K16"""
    stored = [b"", b"a", b"a\xff", b"a\xff\xff", b"b", b"b\0", b"\xff", b"\xff\xff", b"\xff\xffx"]
    for key in stored:
        await queue.kv.put(key, b"")
    await queue.enqueue("q", b"")
    reader = await readers.of(queue)
    assert await keys(reader) == stored
    for prefix in (b"a", b"a\xff", b"b", b"\xff", b"\xff\xff", b"c", b"\xff\xffx\0"):
        assert await keys(reader, prefix) == [key for key in stored if key.startswith(prefix)]
    assert await keys(reader, "a", start_after="") == [b"a", b"a\xff", b"a\xff\xff"]
    assert await keys(reader, "a", start_after="a0") == [b"a\xff", b"a\xff\xff"]
    assert await keys(reader, "a", start_after="z") == []
    assert await keys(reader, start_after="") == stored[1:]


async def test_a_scan_of_nothing(readers: Readers, queue: Queue) -> None:
    """K17"""
    await queue.kv.put("a", b"")
    reader = await readers.of(queue)
    for page in (await reader.kv.scan(limit=0), await reader.kv.scan("b")):
        assert (page.entries, page.more) == ((), False)
    with pytest.raises(InvalidArgument):
        await reader.kv.scan(limit=10_001)
    with pytest.raises(InvalidType):
        await reader.kv.scan(5)
    with pytest.raises(ValueTooLarge):
        await reader.kv.scan(b"x" * 4097)


# -- SQL ----------------------------------------------------------------------------------------


async def test_rows_of_the_state(readers: Readers, queue: Queue) -> None:
    await queue.enqueue("q", b"data", priority=4)
    reader = await readers.of(queue)
    sql = "SELECT payload FROM jobs WHERE priority = ?"
    assert await reader.read(sql, (4,)) == [(b"data",)]
    assert reader.peek(sql, (4,)) == [(b"data",)]


# -- durability ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sql", ["DELETE FROM jobs", "BEGIN", "PRAGMA query_only = ON"])
async def test_reading_refuses_what_changes(readers: Readers, queue: Queue, sql: str) -> None:
    """An owner that ran one of these could commit nothing more."""
    await queue.enqueue("q", b"")
    reader = await readers.of(queue)
    with pytest.raises(InvalidState, match="only reads"):
        await reader.read(sql)
    await queue.enqueue("q", b"")
    assert (await queue.stats("q")).pending == 2


@pytest.mark.parametrize(
    "look",
    [
        lambda queue: queue.get_job("job"),
        lambda queue: queue.stats("q"),
        lambda queue: queue.list_queues(),
        lambda queue: queue.list_jobs("q", JobState.PENDING),
        lambda queue: queue.list_jobs("q"),
        lambda queue: queue.kv.get("key"),
        lambda queue: queue.kv.scan(),
        lambda queue: queue.read("SELECT * FROM jobs"),
    ],
)
async def test_an_owner_reports_only_what_is_durable(
    world: World, queue: Queue, look: Callable[[Queue], Any]
) -> None:
    await queue.enqueue("before", b"")
    world.wire.hold()
    enqueueing = asyncio.ensure_future(queue.enqueue("q", b"", job_id="job"))
    putting = asyncio.ensure_future(queue.kv.put("key", b""))
    await world.clock.advance(0)
    looking = asyncio.ensure_future(look(queue))
    await world.clock.advance(1)
    assert not looking.done()
    async with Follower.open(world.store, clock=world.clock) as follower:
        assert await follower.list_queues() == ["before"]
        assert await follower.get_job("job") is None
    world.wire.release()
    assert await looking is not None
    await enqueueing
    await putting
