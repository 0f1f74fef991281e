"""Filters of listings, and the requeueing of many dead jobs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taquba import JobState, Queue
from taquba.errors import InvalidArgument
from taquba.queue import Redriven
from tests.queue.harness import World, counts, die, take

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
