"""What layers above build on: large values that their rows name, and work in the background."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from taquba import ManualClock, Queue
from taquba.database import SchemaModule
from taquba.errors import CorruptStore, PayloadMissing, StoreUnavailable
from taquba.objectstore import MemoryStore
from taquba.queue import PAYLOAD_PREFIX, Follower, verify_queue
from taquba.testing import FaultyStore

pytestmark = pytest.mark.anyio

LARGE = bytes(range(256)) * 10
NOTES = SchemaModule(
    name="notes",
    version=1,
    statements=(
        "CREATE TABLE notes (id INTEGER NOT NULL PRIMARY KEY, text_ref TEXT)",
        "CREATE INDEX notes_stored ON notes (text_ref) WHERE text_ref IS NOT NULL",
    ),
)


async def objects(store: MemoryStore, clock: ManualClock) -> list[str]:
    await clock.advance(0)
    await clock.advance(0)
    return [info.key async for info in store.list(PAYLOAD_PREFIX)]


async def add_note(queue: Queue, data: bytes = LARGE) -> str:
    value = await queue.store_value(data)
    assert value.size == len(data)
    with queue.transaction() as tx:
        value.use(tx)
        tx.execute("INSERT INTO notes (text_ref) VALUES (?)", (value.ref,))
    await tx.durable()
    return value.ref


async def collected(queue: Queue, clock: ManualClock, days: int = 4) -> None:
    database = queue._core.database
    for number in range(2 * days):
        await queue.kv.put("k", b"%d" % number)
        await database.checkpoint()
        await database.collect()
        await clock.advance(86400 / 2)


async def test_the_life_of_a_value() -> None:
    """Named by a row of whatever table, for owners, followers and verification alike."""
    store, clock = MemoryStore(), ManualClock()
    async with Queue.open(store, clock=clock) as queue:
        await queue.add_tables(NOTES)
        ref = await add_note(queue)
        assert await queue.fetch_value(ref) == LARGE
        async with Follower.open(store, clock=clock) as follower:
            assert await follower.fetch_value(ref) == LARGE
    # The next owner does not know the table.
    async with Queue.open(store, clock=clock) as queue:
        await collected(queue, clock)
        assert await queue.fetch_value(ref) == LARGE
        report = await verify_queue(store, clock=clock, read_payloads=True)
        assert report.clean and report.survey.others.count == 1
        with queue.transaction() as tx:
            tx.execute("DELETE FROM notes")
            tx.forget_value(ref)
        await tx.durable()
        assert await objects(store, clock) == []
        with pytest.raises(PayloadMissing):
            await queue.fetch_value(ref)
        with pytest.raises(CorruptStore):
            await queue.fetch_value("nonsense")


async def test_values_that_no_transaction_names() -> None:
    """Given up, forgotten, rolled back, and rolled back and then committed after all."""
    store, clock = MemoryStore(), ManualClock()
    async with Queue.open(store, clock=clock) as queue:
        await queue.add_tables(NOTES)
        value = await queue.store_value(LARGE)
        value.finish()
        value.finish()
        assert await objects(store, clock) == []

        await queue.store_value(LARGE)
        assert await objects(store, clock) == []

        value = await queue.store_value(LARGE)
        with pytest.raises(ZeroDivisionError), queue.transaction() as tx:
            value.use(tx)
            tx.execute("INSERT INTO notes (text_ref) VALUES (?)", (value.ref,))
            raise ZeroDivisionError
        assert len(await objects(store, clock)) == 1
        with queue.transaction() as tx:
            value.use(tx)
            tx.execute("INSERT INTO notes (text_ref) VALUES (?)", (value.ref,))
        value.finish()
        assert len(await objects(store, clock)) == 1


async def test_a_value_is_no_orphan_before_its_commit() -> None:
    """However long that takes; nor later, when it has been moved to another row."""
    store, clock = MemoryStore(), ManualClock()
    async with Queue.open(store, clock=clock) as queue:
        await queue.add_tables(NOTES)
        value = await queue.store_value(LARGE)
        await collected(queue, clock)
        with queue.transaction() as tx:
            value.use(tx)
            tx.execute("INSERT INTO notes (text_ref) VALUES (?)", (value.ref,))
        await collected(queue, clock)
        with queue.transaction() as tx:
            tx.execute("DELETE FROM notes")
            tx.execute("INSERT INTO notes (id, text_ref) VALUES (9, ?)", (value.ref,))
        await collected(queue, clock)
        assert await queue.fetch_value(value.ref) == LARGE


async def test_parts_that_fail_or_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """All or nothing, and the error of the store, not that of a cancelled part."""
    monkeypatch.setattr("taquba.queue._payloads.PART_SIZE", 100)
    monkeypatch.setattr("taquba.queue._payloads.MAX_PAYLOAD_SIZE", 200)
    below, clock = MemoryStore(), ManualClock()
    store = FaultyStore(below)
    async with Queue.open(store, clock=clock) as queue:
        await queue.add_tables(NOTES)
        ref = await add_note(queue)
        assert len(await objects(below, clock)) == 26
        assert await queue.fetch_value(ref) == LARGE
        store.fail("put", PAYLOAD_PREFIX, skip=11)
        with pytest.raises(StoreUnavailable):
            await queue.store_value(LARGE)
        assert len(await objects(below, clock)) == 26
        store.fail("get", PAYLOAD_PREFIX, skip=11)
        with pytest.raises(StoreUnavailable):
            await queue.fetch_value(ref)
        for operation in ("put", "get"):
            held = store.hold(operation, PAYLOAD_PREFIX, skip=11)  # type: ignore[arg-type]
            call = queue.store_value(LARGE) if operation == "put" else queue.fetch_value(ref)
            calling: asyncio.Future[Any] = asyncio.ensure_future(call)
            await held.arrived()
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            held.release()
            await store.settle()  # the write happens all the same
            await collected(queue, clock)
            assert len(await objects(below, clock)) == 26


async def test_work_in_the_background(caplog: pytest.LogCaptureFixture) -> None:
    """It is repeated while the queue is open, also after an error, and ends with the queue."""
    clock = ManualClock()
    calls: list[float] = []

    async def step() -> None:
        calls.append(clock.monotonic())
        if len(calls) == 2:
            raise ZeroDivisionError("mine")
        if len(calls) == 3:
            raise StoreUnavailable("down")
        await clock.sleep(10)

    start = clock.monotonic()
    with caplog.at_level(logging.WARNING, "taquba.queue"):
        async with Queue.open(MemoryStore(), clock=clock) as queue:
            queue.in_background(step)
            await clock.advance(25)
            queue.in_background(step)
            await clock.advance(5)
        await clock.advance(100)
    assert [at - start for at in calls] == [0, 10, 15, 20, 25, 30]
    assert len([r for r in caplog.records if "background work failed" in r.getMessage()]) == 2
