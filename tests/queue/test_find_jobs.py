"""Filters of listings, and the requeueing of many dead jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taquba import Effects, Follower, JobState, Queue, QueueConfig
from taquba.errors import InvalidArgument
from taquba.queue import Redriven
from tests.queue.harness import World, cancelled, counts, die, read, started, take

pytestmark = pytest.mark.anyio

STATES = [None, JobState.PENDING, JobState.SCHEDULED]


async def _payloads(queue: Queue, state: JobState | None, **filters: object) -> list[bytes]:
    return [job.payload async for job in queue.jobs("q", state, page_size=2, **filters)]  # type: ignore[arg-type]


@pytest.mark.parametrize("state", STATES)
async def test_headers_choose_jobs(queue: Queue, state: JobState | None) -> None:
    delay = 60 if state is JobState.SCHEDULED else None
    for number in range(9):
        headers = {"a": str(number % 2), "b": "x"} if number else None
        await queue.enqueue("q", bytes([number]), headers=headers, delay=delay)
    assert await _payloads(queue, state, headers={"a": "1"}) == [b"\1", b"\3", b"\5", b"\7"]
    assert await _payloads(queue, state, headers={"a": "0", "b": "x"}) == [
        b"\2",
        b"\4",
        b"\6",
        b"\x08",
    ]
    assert await _payloads(queue, state, headers={"a": "1", "b": "y"}) == []
    assert len(await _payloads(queue, state)) == 9


async def test_filters_look_past_many_jobs(queue: Queue) -> None:
    """A page is full although what matches is far apart, and the last one says so."""
    for number in range(1001):
        await queue.enqueue("q", b"", headers={"n": "y" if number % 250 == 0 else "n"})
    for state in (None, JobState.PENDING):
        page = await queue.list_jobs("q", state, headers={"n": "y"}, limit=3)
        assert len(page.jobs) == 3
        rest = await queue.list_jobs("q", state, headers={"n": "y"}, limit=3, after=page.next)
        assert len(rest.jobs) == 2
        assert rest.next is None


async def test_errors_and_times_choose_jobs(world: World, queue: Queue) -> None:
    for text in ("disk full", "timeout", "disk gone"):
        await queue.enqueue("q", text.encode(), max_attempts=1)
        await queue.dead_letter(await take(queue), text)
        await world.clock.advance(10)
    dead = JobState.DEAD
    assert await _payloads(queue, dead, error="disk") == [b"disk full", b"disk gone"]
    second = (await queue.list_jobs("q", dead)).jobs[1].enqueued_at
    assert await _payloads(queue, dead, enqueued_after=second) == [b"timeout", b"disk gone"]
    assert await _payloads(queue, dead, enqueued_before=second) == [b"disk full"]
    until = second + timedelta(seconds=1)
    assert await _payloads(queue, dead, enqueued_after=second, enqueued_before=until) == [
        b"timeout"
    ]


async def test_bad_filters_are_refused_at_the_call(queue: Queue) -> None:
    naive = datetime.now(UTC).replace(tzinfo=None)
    for bad in ({"error": 1}, {"headers": {"a": 1}}, {"enqueued_after": naive}):
        with pytest.raises(InvalidArgument):
            queue.jobs("q", **bad)
        with pytest.raises(InvalidArgument):
            await queue.requeue_dead_many("q", **bad)
    with pytest.raises(InvalidArgument):
        queue.jobs("q", page_size=0)
    with pytest.raises(InvalidArgument):
        await queue.requeue_dead_many("q", limit=0)
    assert await _payloads(queue, None, enqueued_after=datetime.now(UTC)) == []


async def test_all_dead_jobs_are_requeued(queue: Queue) -> None:
    """I1: more of them than one transaction takes."""
    for _ in range(205):
        await die(queue)
    assert await queue.requeue_dead_many("q") == Redriven(205, more=False)
    assert await queue.stats("q") == counts(pending=205)
    assert await queue.requeue_dead_many("q") == Redriven(0, more=False)
    assert await queue.requeue_dead_many("nobody") == Redriven(0, more=False)


async def test_some_dead_jobs_are_requeued(queue: Queue) -> None:
    for _ in range(5):
        await die(queue)
    assert await queue.requeue_dead_many("q", limit=3) == Redriven(3, more=True)
    assert await queue.stats("q") == counts(pending=3, dead=2)
    assert await queue.requeue_dead_many("q", error="nothing like it") == Redriven(0, more=False)
    assert await queue.requeue_dead_many("q", limit=2) == Redriven(2, more=False)


async def test_dead_jobs_are_found_by_their_index(queue: Queue) -> None:
    """However many of other queues and states there are."""
    seen: list[str] = []
    rows = queue._source.rows

    def noting(sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        seen.extend(row[3] for row in rows(f"EXPLAIN QUERY PLAN {sql}", parameters))
        return rows(sql, parameters)

    queue._source.rows = noting  # type: ignore[method-assign]
    await die(queue)
    await queue.list_jobs("q", JobState.DEAD)
    await queue.list_jobs("q", JobState.DEAD, error="nothing like it")
    assert seen == ["SEARCH jobs USING INDEX jobs_dead (queue=? AND rowid>?)"] * 2


@pytest.mark.parametrize("state", [None, JobState.PENDING, JobState.DEAD, JobState.SCHEDULED])
async def test_a_filter_reads_no_payloads_but_of_what_it_finds(
    queue: Queue, state: JobState | None
) -> None:
    delay = 60 if state is JobState.SCHEDULED else None
    for number in range(3):
        await queue.enqueue("q", bytes([number]) * 1000, headers={"n": str(number)}, delay=delay)
        if state is JobState.DEAD:
            await queue.dead_letter(await take(queue), "no")
    read = 0
    rows = queue._source.rows

    def noting(sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        nonlocal read
        found = rows(sql, parameters)
        read += sum(len(value) for row in found for value in row if isinstance(value, bytes))
        return found

    queue._source.rows = noting  # type: ignore[method-assign]
    [job] = (await queue.list_jobs("q", state, headers={"n": "1"})).jobs
    assert job.payload == b"\1" * 1000
    assert 1000 < read < 2000


async def test_a_job_that_moves_while_others_are_looked_at_is_left_out(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taquba.queue._listing._SLICE", 1)
    enqueued = [await queue.enqueue("q", b"", headers={"n": "y"}) for _ in range(3)]
    claims = await queue.claim_many("q", 3)
    listing = asyncio.ensure_future(queue.list_jobs("q", JobState.CLAIMED, headers={"n": "y"}))
    await asyncio.sleep(0)  # it has seen the first one
    async with queue.committing() as tx:
        tx.release(claims[0])
    page = await listing
    assert [job.id for job in page.jobs] == [each.job_id for each in enqueued[1:]]


@pytest.mark.parametrize("state", [None, JobState.PENDING, JobState.SCHEDULED, JobState.DONE])
async def test_filters_miss_nothing_where_slices_meet(world: World, state: JobState | None) -> None:
    """What matches is the last of one slice of 200, and the first of the next one."""
    queue = await world.open(config=QueueConfig(keep_done=10_000))
    edges = [1, 200, 201, 202, 400, 401, 402, 600]
    delay = 60 if state is JobState.SCHEDULED else None
    jobs = Effects()
    for n in range(1, 601):
        jobs.enqueue("q", b"%d" % n, headers={"edge": "y"} if n in edges else None, delay=delay)
    await queue.commit(jobs)
    if state is JobState.DONE:
        claims = await queue.claim_many("q", 600)
        async with queue.committing() as tx:
            for claim in claims:
                tx.ack(claim)
    found = await _payloads(queue, state, headers={"edge": "y"})
    assert [int(payload) for payload in found] == edges
    page = await queue.list_jobs("q", state, headers={"edge": "y"}, limit=len(edges))
    assert [int(job.payload) for job in page.jobs] == edges
    assert page.next is None


async def test_redriving_misses_nothing_where_slices_meet(queue: Queue) -> None:
    edges = [1, 200, 201, 202, 400, 401, 402, 600]
    await queue.enqueue_many("q", [b"%d" % n for n in range(1, 601)])
    claims = await queue.claim_many("q", 600)
    async with queue.committing() as tx:
        for number, claim in enumerate(claims, 1):
            tx.dead_letter(claim, "edge" if number in edges else "inside")
    assert await queue.requeue_dead_many("q", error="edge") == Redriven(8, more=False)
    assert [int(payload) for payload in await _payloads(queue, JobState.PENDING)] == edges
    assert await queue.stats("q") == counts(pending=8, dead=592)


async def test_a_follower_filters_as_the_owner_does(world: World, queue: Queue) -> None:
    for number in range(4):
        await queue.enqueue("q", b"%d" % number, headers={"n": str(number % 2)})
        if number < 3:
            await queue.dead_letter(await take(queue), f"error {number % 2}")
        await world.clock.advance(10)
    second = (await queue.list_jobs("q", JobState.DEAD)).jobs[1].enqueued_at
    filters: list[dict[str, Any]] = [
        {"headers": {"n": "1"}},
        {"error": "error 0"},
        {"enqueued_after": second},
        {"enqueued_before": second},
        {"error": "error 0", "enqueued_after": second},
    ]
    expected = [[b"1", b"3"], [b"0", b"2"], [b"1", b"2", b"3"], [b"0"], [b"2"]]
    async with Follower.open(world.store, clock=world.clock) as follower:
        for wanted, payloads in zip(filters, expected, strict=True):
            seen = [job.payload async for job in follower.jobs("q", page_size=1, **wanted)]
            assert seen == payloads, wanted
            page = await follower.list_jobs("q", **wanted)
            assert [job.payload for job in page.jobs] == payloads
            assert page == await queue.list_jobs("q", **wanted)


async def test_redriving_reads_no_payloads(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to find what is dead, nor to requeue it."""
    for number in range(3):
        await die(queue, payload=bytes([number]) * 1000)
    read_bytes = 0
    rows, committing = queue._source.rows, queue._committing

    def note(row: Any) -> None:
        nonlocal read_bytes
        read_bytes += sum(len(value) for value in row or () if isinstance(value, bytes))

    def noting(sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        found = rows(sql, parameters)
        for row in found:
            note(row)
        return found

    class Noting:
        def __init__(self, cursor: Any) -> None:
            self._cursor = cursor

        def fetchone(self) -> Any:
            row = self._cursor.fetchone()
            note(row)
            return row

    @contextlib.asynccontextmanager
    async def noting_transaction(*args: Any) -> AsyncIterator[Any]:
        async with committing(*args) as tx:
            execute = tx.execute
            tx.execute = lambda *args: Noting(execute(*args))  # type: ignore[assignment, return-value]
            yield tx

    monkeypatch.setattr(queue._source, "rows", noting)
    monkeypatch.setattr(queue, "_committing", noting_transaction)
    for wanted in ({}, {"error": "given up"}):
        assert (await queue.requeue_dead_many("q", limit=1, **wanted)).count == 1  # type: ignore[arg-type]
    assert read_bytes == 0


async def test_jobs_that_are_no_longer_dead_are_left_alone(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were when they were listed; the others are requeued, and counted."""
    ids = [await die(queue) for _ in range(4)]
    listing = queue._list

    async def then_others_act(*args: Any, **options: Any) -> Any:
        page = await listing(*args, **options)
        if page.jobs:
            await queue.requeue_dead(ids[0])
            await queue.requeue_dead(ids[2])
            await queue.cancel(ids[2])
        return page

    monkeypatch.setattr(queue, "_list", then_others_act)
    assert await queue.requeue_dead_many("q") == Redriven(2, more=False)
    assert [(await read(queue, ids[n])).state for n in (0, 1, 3)] == [JobState.PENDING] * 3
    assert await queue.get_job(ids[2]) is None
    assert await queue.stats("q") == counts(pending=3)
    history = await queue.attempt_history(ids[0])
    assert len(history) == 2  # died, and requeued once


async def test_a_redrive_that_is_cancelled_midway_keeps_what_it_did(
    world: World, queue: Queue
) -> None:
    for _ in range(120):
        await die(queue)
    world.wire.hold()
    redriving = await started(world, queue.requeue_dead_many("q"))
    assert not redriving.done()
    await cancelled(world, redriving)
    world.wire.release()
    assert await queue.stats("q") == counts(pending=50, dead=70)
    assert await queue.requeue_dead_many("q") == Redriven(70, more=False)
    queue = await world.crash()
    assert await queue.stats("q") == counts(pending=120)


async def test_large_matches_do_not_hold_the_event_loop_up(queue: Queue) -> None:
    """Between the payloads of a page others have their turn: after each mebibyte."""
    await queue.enqueue_many("q", [bytes(200_000)] * 30, headers={"n": "y"})
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count_turns())
    page = await queue.list_jobs("q", headers={"n": "y"})
    counting.cancel()
    assert len(page.jobs) == 30
    assert turns >= 5
