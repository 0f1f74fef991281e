"""Checkpoints: cut exactly at a seal, small, collected, and never in the way."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from taquba.clock import ManualClock
from taquba.database import Database, DatabaseConfig
from taquba.database._scratch import scratch_folder
from taquba.errors import Closed, Fenced, StoreUnavailable
from taquba.objectstore import MemoryStore
from taquba.testing import FaultyStore

from .harness import EAGER, ITEMS, LAZY, dump, kept, keys, open_database, opened, put

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("state")]


async def test_only_changed_chunks_are_uploaded_again() -> None:
    store = MemoryStore()
    config = DatabaseConfig(checkpoint_bytes=2**40, checkpoint_entries=2**40, chunk_size=65536)
    async with opened(store, config=config) as database:
        with database.transaction() as tx:
            for i in range(20_000):
                tx.execute("INSERT INTO items VALUES (?, ?, NULL)", (i, i.to_bytes(4) * 30))
        await tx.durable()
        await database.checkpoint()
        first = database.statistics()
        assert first.chunks_uploaded > 30
        await put(database, 7, b"changed")
        await database.checkpoint()
        second = database.statistics()
        assert second.chunks_uploaded - first.chunks_uploaded <= 3
        assert second.chunks_reused >= first.chunks_uploaded - 3


async def test_a_checkpoint_of_what_is_checkpointed_costs_nothing() -> None:
    store = MemoryStore()
    async with opened(store) as database:
        await put(database, 1)
        await database.checkpoint()
        await database.collect()
        before = await keys(store, "")
        await database.checkpoint()
        assert await keys(store, "") == before


async def test_what_older_checkpoints_needed_is_deleted_and_epoch_entries_stay() -> None:
    store = MemoryStore()
    for owner in range(3):
        async with opened(store) as database:
            for i in range(5):
                await put(database, i, bytes([owner]) * 2000)
                await database.checkpoint()
            await database.collect()
            last = database.position
    assert len(await keys(store, "checkpoints/")) == 2
    chunks = await keys(store, "chunks/")
    assert {key[len("chunks/") :].split("-")[0] for key in chunks} == {"0000000003"}
    left = {int(key.removeprefix("journal/")) for key in await keys(store, "journal/")}
    assert {mark.seq for mark in last.epochs} <= left
    async with opened(store) as database:
        assert len(dump(database)["items"]) == 5


async def test_the_first_checkpoint_of_an_owner_spares_the_last_of_the_one_before() -> None:
    """A new owner's first checkpoint may be lost with it; the old one must still open."""
    store = MemoryStore()
    async with opened(store) as database:
        await put(database, 1, b"old")
        await database.checkpoint()
        old = await keys(store, "chunks/")
    async with opened(store) as database:
        await put(database, 2, b"new")
        await database.checkpoint()
        await database.collect()
        assert set(old) <= set(await keys(store, "chunks/"))
        assert len(await keys(store, "checkpoints/")) == 2


async def test_commits_during_a_checkpoint_are_in_it_or_behind_it() -> None:
    store = MemoryStore()
    database = await open_database(
        store,
        config=DatabaseConfig(
            checkpoint_bytes=2**40, checkpoint_entries=2**40, pages_per_step=1, chunk_size=4096
        ),
    )
    for i in range(60):
        await put(database, i, bytes([i]) * 3000)
    checkpoint = asyncio.ensure_future(database.checkpoint())
    i = 0
    while not checkpoint.done():
        i += 1
        await put(database, i % 60, bytes([i % 251]) * 2000)
    await checkpoint
    assert i > 10, "the checkpoint was over before anything happened beside it"
    await put(database, 99, b"tail")
    before = dump(database)
    async with opened(store) as again:
        assert again.statistics().checkpoint_seq is not None
        assert dump(again) == before


class _BusyClock(ManualClock):
    """A clock on which everything takes its time."""

    def monotonic(self) -> float:
        self._elapsed += 0.0005
        return super().monotonic()

    def pass_by(self, seconds: float) -> None:
        self._elapsed += seconds


async def test_a_copy_gains_on_those_who_write_much_at_a_time() -> None:
    clock = _BusyClock()
    config = dataclasses.replace(LAZY, pages_per_step=64)
    database = await Database.open(MemoryStore(), [ITEMS], clock=clock, config=kept(config))

    async def write_much(start: int) -> None:
        with database.transaction() as tx:
            for i in range(start, start + 300):
                tx.execute("INSERT INTO items VALUES (?, zeroblob(4000), NULL)", (i,))
            clock.pass_by(0.15)
        await tx.durable()

    for batch in range(5):
        await write_much(batch * 300)
    checkpoint = asyncio.ensure_future(database.checkpoint())
    while database._checkpointer._copy is None:
        await asyncio.sleep(0)
    seals = 0
    while database._checkpointer._copy is not None:
        await write_much(10_000 + seals * 300)
        seals += 1
        assert seals < 20, "it never catches up"
    assert seals > 1, "it was over at once, and shows nothing"
    await checkpoint
    await database.close()


async def test_a_batch_that_comes_to_nothing_does_not_hold_a_checkpoint_up() -> None:
    database = await open_database(MemoryStore())
    await put(database, 1)
    with database.transaction() as tx:
        tx.execute("INSERT INTO items VALUES (2, NULL, NULL)")
    checkpoint = asyncio.ensure_future(database.checkpoint())
    with database.transaction() as tx:
        tx.execute("DELETE FROM items WHERE key = 2")
    await tx.durable()
    await checkpoint
    await database.close()


async def test_what_was_rolled_back_does_not_hold_a_checkpoint_up() -> None:
    """It leaves a transaction open, and no seal is on its way that would end it."""
    database = await open_database(MemoryStore())
    await put(database, 1)
    with pytest.raises(ZeroDivisionError), database.transaction() as tx:
        tx.execute("DELETE FROM items")
        raise ZeroDivisionError
    await database.checkpoint()
    assert len(dump(database)["items"]) == 1
    await database.close()


async def test_a_failing_store_fails_the_checkpoint_and_no_commit() -> None:
    store = FaultyStore(MemoryStore())
    database = await open_database(store)
    await put(database, 1)
    store.fail("write", prefix="chunks/", times=1000)
    with pytest.raises(StoreUnavailable):
        await database.checkpoint()
    await put(database, 2)
    assert database.failure is None
    await database.close()


async def test_commits_go_on_while_a_checkpoint_is_stuck_and_closing_ends_it() -> None:
    below = MemoryStore()
    store = FaultyStore(below)
    database = await open_database(store)
    await put(database, 1)
    held = store.hold("write", prefix="chunks/")
    checkpoint = asyncio.ensure_future(database.checkpoint())
    await held.arrived()
    for i in range(20):
        await put(database, i)
    await database.close()
    assert checkpoint.done()
    with pytest.raises(Closed):
        await checkpoint
    held.release()
    await store.settle()
    async with opened(below) as again:
        assert len(dump(again)["items"]) == 20


async def test_a_checkpoint_never_stalls_the_event_loop_for_long() -> None:
    """Design: no stall over 20 ms at 400 MB; here 60 MB, and room for a slow machine."""
    database = await open_database(MemoryStore(), config=LAZY)
    for start in range(0, 60_000, 500):
        with database.transaction() as tx:
            for i in range(start, start + 500):
                tx.execute("INSERT INTO items VALUES (?, randomblob(1000), NULL)", (i,))
        await tx.durable()
    stalls: list[float] = []
    checkpoint = asyncio.ensure_future(database.checkpoint())
    i = 0
    while not checkpoint.done():
        started = time.perf_counter()
        await asyncio.sleep(0)
        stalls.append(time.perf_counter() - started)
        i += 1
        if i % 5 == 0:
            await put(database, i, b"x" * 100)
    await checkpoint
    # The 99.9th percentile: a shared machine may take the processor away once.
    stalls.sort()
    assert stalls[int(len(stalls) * 0.999) - 1] < 0.1
    await database.close()


async def test_an_idle_database_sends_no_request() -> None:
    store = FaultyStore(MemoryStore())
    database = await open_database(store)
    await put(database, 1)
    before = len(store.requests)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(store.requests) == before
    await database.close()


_STEPWISE = DatabaseConfig(checkpoint_bytes=2**40, checkpoint_entries=2**40, pages_per_step=1)


async def _with_a_batch_that_waits(store: FaultyStore) -> tuple[Database, Any]:
    """A database whose open batch is sealed only when the held write is released."""
    database = await open_database(store, config=_STEPWISE)
    for i in range(60):
        await put(database, i, bytes([i]) * 3000)
    held = store.hold("create", prefix="journal/")
    with database.transaction() as tx:
        tx.execute("DELETE FROM items WHERE key = 1")
    await held.arrived()
    with database.transaction() as tx:
        tx.execute("DELETE FROM items WHERE key = 2")
    return database, held


async def test_a_checkpoint_begun_amid_commits_ends_when_they_end() -> None:
    """Nobody seals any more, so it has to go on by itself."""
    store = FaultyStore(MemoryStore())
    database, held = await _with_a_batch_that_waits(store)
    checkpoint = asyncio.ensure_future(database.checkpoint())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not checkpoint.done()
    held.release()
    await checkpoint
    assert database.statistics().entries_since_checkpoint == 0
    await database.close()


async def test_a_checkpoint_goes_on_after_a_batch_that_came_to_nothing() -> None:
    """Its seal makes no entry, and still it is what the checkpoint waits for."""
    store = FaultyStore(MemoryStore())
    database = await open_database(store, config=_STEPWISE)
    await put(database, 1, bytes(9000))
    held = store.hold("create", prefix="journal/")
    with database.transaction() as tx:
        tx.execute("DELETE FROM items WHERE key = 1")
    await held.arrived()
    with database.transaction() as tx:
        tx.execute("INSERT INTO items VALUES (2, NULL, NULL)")
    with database.transaction() as tx:
        tx.execute("DELETE FROM items WHERE key = 2")
    checkpoint = asyncio.ensure_future(database.checkpoint())
    for _ in range(10):
        await asyncio.sleep(0)
    held.release()
    await checkpoint
    await database.close()


async def test_content_that_was_collected_is_uploaded_again_when_it_comes_back() -> None:
    store = MemoryStore()
    config = DatabaseConfig(
        checkpoint_bytes=2**40, checkpoint_entries=2**40, keep_checkpoints=1, chunk_size=4096
    )
    database = await open_database(store, config=config)
    for value in (b"one" * 300, b"two" * 300, b"one" * 300):
        await put(database, 1, value)
        await database.checkpoint()
        await database.collect()
        chunks = set(await keys(store, "chunks/"))
        async with opened(_copied(store)) as again:
            assert dump(again)["items"] == [(1, value, None)]
        assert set(await keys(store, "chunks/")) == chunks
    assert database.statistics().chunks_reused, "nothing was the same: the test shows nothing"
    await database.close()


async def test_a_checkpoint_whose_first_attempt_only_seemed_to_fail_keeps_its_chunks() -> None:
    """The manifest that is there stays, and it may name other chunks than the second attempt's."""

    class Forgetful(MemoryStore):
        forget = False

        async def create(self, key: str, data: bytes) -> None:
            await super().create(key, data)
            if self.forget and key.startswith("checkpoints/"):
                self.forget = False
                raise StoreUnavailable("the answer was lost, and so was each that was sent again")

    store = Forgetful()
    config = dataclasses.replace(LAZY, keep_checkpoints=1, chunk_size=4096)
    database = await open_database(store, config=config)
    for i in range(30):
        await put(database, i, bytes([i]) * 500)
    store.forget = True
    with pytest.raises(StoreUnavailable):
        await database.checkpoint()
    # What the second attempt copies is the same, but cut into other chunks.
    database._checkpointer._config = dataclasses.replace(config, chunk_size=8192)
    await database.checkpoint()
    async with opened(_copied(store)) as again:
        assert dump(again) == dump(database)
    await put(database, 7, b"changed")
    await database.checkpoint()
    async with opened(_copied(store)) as again:
        assert dump(again) == dump(database)
    await database.close()


def _copied(store: MemoryStore) -> MemoryStore:
    """A store of its own, so that opening it takes nothing over."""
    return copy.deepcopy(store)


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_checkpoint_is_published_only_when_all_that_it_holds_is_stored(
    replaced: bool,
) -> None:
    below = MemoryStore()
    store = FaultyStore(below)
    database = await open_database(store)
    await put(database, 1)
    held = store.hold("create", prefix="journal/")
    with database.transaction() as tx:
        tx.execute("INSERT INTO items VALUES (2, NULL, NULL)")
    await held.arrived()
    checkpoint = asyncio.ensure_future(database.checkpoint())
    await _until(lambda: database.statistics().chunks_uploaded)
    for _ in range(50):
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: None)
    assert await keys(below, "checkpoints/") == []
    if replaced:
        async with opened(below) as new:
            assert len(dump(new)["items"]) == 1
            held.release()
            with pytest.raises(Fenced):
                await checkpoint
        assert await keys(below, "checkpoints/") == []
    else:
        held.release()
        await checkpoint
        assert len(await keys(below, "checkpoints/")) == 1
    await database.close()


async def test_closing_ends_a_checkpoint_that_waits_for_a_seal() -> None:
    store = FaultyStore(MemoryStore())
    database, held = await _with_a_batch_that_waits(store)
    checkpoint = asyncio.ensure_future(database.checkpoint())
    for _ in range(10):
        await asyncio.sleep(0)
    closing = asyncio.ensure_future(database.close())
    with pytest.raises(Closed):
        await checkpoint
    held.release()
    await closing
    async with opened(store) as again:
        assert len(dump(again)["items"]) == 58


async def test_being_replaced_ends_a_checkpoint() -> None:
    below = MemoryStore()
    store = FaultyStore(below)
    database = await open_database(store)
    await put(database, 1)
    held = store.hold("put", prefix="chunks/")
    checkpoint = asyncio.ensure_future(database.checkpoint())
    await held.arrived()
    async with opened(below):
        with pytest.raises(Fenced):
            await put(database, 2)
        with pytest.raises(Fenced):
            await checkpoint
    held.release()
    await store.settle()
    await database.close()


async def test_giving_up_a_checkpoint_ends_it_and_the_next_one_is_taken() -> None:
    store = FaultyStore(MemoryStore())
    database = await open_database(store)
    await put(database, 1)
    held = store.hold("put", prefix="chunks/")
    checkpoint = asyncio.ensure_future(database.checkpoint())
    await held.arrived()
    checkpoint.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checkpoint
    held.release()
    await database.checkpoint()
    assert database.statistics().checkpoints == 1
    await database.close()


async def test_a_checkpoint_is_not_followed_by_one_that_is_not_due() -> None:
    """Commits that come while it is uploaded must not make it due a second time."""
    store = FaultyStore(MemoryStore())
    config = DatabaseConfig(checkpoint_bytes=100_000, checkpoint_entries=2**40)
    database = await open_database(store, config=config)
    held = store.hold("put", prefix="chunks/")
    for i in range(60):
        await put(database, i % 30, bytes([i]) * 2000)
    await held.arrived()
    for i in range(5):
        await put(database, i, b"meanwhile" * 10)
    held.release()
    await _until(lambda: database.statistics().checkpoints == 1)
    for _ in range(200):
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: None)
    statistics = database.statistics()
    assert statistics.checkpoints == 1
    assert 5 <= statistics.entries_since_checkpoint < 30
    await database.close()


class _FullDisk:
    """What a copy becomes when the scratch folder is full."""

    remaining = 1

    def step(self, pages: int) -> bool:
        raise apsw.FullError("database or disk is full")

    def close(self, force: bool) -> None: ...


async def test_a_full_scratch_disk_fails_the_checkpoint_and_no_commit() -> None:
    store = FaultyStore(MemoryStore())
    database, held = await _with_a_batch_that_waits(store)
    checkpoint = asyncio.ensure_future(database.checkpoint())
    await _until(lambda: database._checkpointer._copy is not None)
    assert database._checkpointer._copy is not None
    database._checkpointer._copy._backup.close(True)
    database._checkpointer._copy._backup = _FullDisk()  # type: ignore[assignment]
    held.release()
    with pytest.raises(OSError, match=r"disk is full.*DatabaseConfig\(scratch="):
        await checkpoint
    await put(database, 3)
    assert database.failure is None
    await database.checkpoint()
    assert database.statistics().checkpoints == 1
    await database.close()


async def test_a_checkpoint_that_failed_is_tried_again_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    clock = ManualClock()
    config = DatabaseConfig(checkpoint_bytes=20_000, scratch=str(scratch))
    database = await Database.open(MemoryStore(), [ITEMS], clock=clock, config=kept(config))
    scratch.rmdir()
    await put(database, 1, bytes(30_000))  # makes one due, and nothing after it does
    await _until(lambda: "will be tried again" in caplog.text)
    scratch.mkdir()
    await clock.advance(60)
    await _until(lambda: database.statistics().checkpoints == 1)
    await database.close()
    assert list(scratch.iterdir()) == []


async def test_a_checkpoint_that_failed_for_an_unknown_reason_is_tried_again_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    config = DatabaseConfig(checkpoint_bytes=20_000)
    database = await Database.open(MemoryStore(), [ITEMS], clock=clock, config=config)

    async def fail(*_: object, **__: object) -> None:
        raise MemoryError("for a moment")

    with monkeypatch.context() as patched:
        patched.setattr(database._checkpointer._chunks, "upload", fail)
        await put(database, 1, bytes(30_000))  # makes one due, and nothing after it does
        await _until(lambda: "will be tried again" in caplog.text)
    await clock.advance(60)
    await _until(lambda: database.statistics().checkpoints == 1)
    await database.close()


async def test_what_cannot_be_collected_does_not_fail_the_checkpoint() -> None:
    store = FaultyStore(MemoryStore())
    database = await open_database(store)
    for i in range(3):
        await put(database, i, bytes(9000))
        store.fail("delete", times=1000)
        await database.checkpoint()
        if i == 0:
            await database.collect()  # there is nothing yet that may go
            continue
        with pytest.raises(StoreUnavailable):
            await database.collect()
    assert len([info async for info in store.list("checkpoints/")]) == 3
    store.heal()
    await put(database, 4)
    await database.checkpoint()
    await database.collect()
    assert len([info async for info in store.list("checkpoints/")]) == 2
    await database.close()


@pytest.mark.parametrize("how", ["close", "cancel", "fail"])
async def test_no_task_and_no_temporary_file_is_left_behind(tmp_path: Path, how: str) -> None:
    store = FaultyStore(MemoryStore())
    config = DatabaseConfig(checkpoint_bytes=20_000, checkpoint_entries=30, scratch=str(tmp_path))
    before = asyncio.all_tasks()
    database = await open_database(store, config=config)
    for i in range(50):
        await put(database, i, b"x" * 2000)
    held = store.hold("put", prefix="chunks/")
    checkpoint = asyncio.ensure_future(database.checkpoint())
    await held.arrived()
    if how == "cancel":
        checkpoint.cancel()
    elif how == "fail":
        store.fail("put", prefix="chunks/", times=1000)
        held.release()
        await asyncio.gather(checkpoint, return_exceptions=True)
    await database.close()
    await asyncio.gather(checkpoint, return_exceptions=True)
    held.release()
    await store.settle()
    assert asyncio.all_tasks() == before
    assert list(tmp_path.iterdir()) == []
    again = await open_database(store.store, config=config)
    assert list(tmp_path.iterdir()) == []
    await again.close()


async def test_a_scratch_folder_is_gone_when_its_user_is_however_often_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, go_on = shutil.rmtree, threading.Event()

    def slowly(folder: str, ignore_errors: bool) -> None:
        go_on.wait(10)
        remove(folder, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", slowly)

    async def use() -> None:
        async with scratch_folder(str(tmp_path)):
            await asyncio.Event().wait()

    using = asyncio.ensure_future(use())
    for _ in range(3):
        await asyncio.sleep(0)
        using.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not using.done()
    assert len(list(tmp_path.iterdir())) == 1
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert list(tmp_path.iterdir()) == []


async def test_automatic_checkpoints_keep_the_tail_short_and_the_writing_small() -> None:
    store = MemoryStore()
    async with opened(store, config=EAGER) as database:
        for i in range(400):
            await put(database, i % 50, bytes([i % 251]) * 1000)
            if i % 10 == 0:
                await asyncio.to_thread(lambda: None)
        statistics = database.statistics()
        due = max(statistics.size * EAGER.checkpoint_share, EAGER.checkpoint_bytes)
        assert 3 <= statistics.checkpoints <= 400 * 1100 / due + 1


async def _until(condition: Any) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: None)
    raise AssertionError("it never became true")
