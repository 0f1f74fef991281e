"""A replica shows what its owner committed, in order, and never writes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import apsw
import pytest

from taquba.clock import ManualClock
from taquba.database import Database, DatabaseConfig, Replica, SchemaModule
from taquba.database._chunks import Contents
from taquba.errors import (
    Closed,
    CorruptStore,
    Fenced,
    IncompatibleStore,
    InvalidArgument,
    InvalidState,
    StoreAccessDenied,
    StoreUnavailable,
)
from taquba.journal import JournalConfig, newest_checkpoint
from taquba.journal._entry import Kind, encode_entry
from taquba.journal._position import entry_key
from taquba.objectstore import MemoryStore, ObjectStore
from taquba.objectstore._readonly import ReadOnlyStore
from taquba.testing import FaultyStore, LatencyStore

from .harness import EAGER, ITEMS, LAZY, dump, keys, open_database, opened, put

pytestmark = pytest.mark.anyio

SMALL = JournalConfig(window=4)


@asynccontextmanager
async def following(
    store: ObjectStore, clock: ManualClock | None = None, **options: Any
) -> AsyncIterator[Replica]:
    options.setdefault("modules", [ITEMS])
    replica = await Replica.open(ReadOnlyStore(store), clock=clock or ManualClock(), **options)
    try:
        yield replica
    finally:
        await replica.close()


def content(replica: Replica) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, as `dump` gives it of a database."""
    return dump(replica._mirror.machine.state)  # type: ignore[arg-type]


async def values(replica: Replica) -> list[int]:
    return [key for (key,) in await replica.query("SELECT key FROM items ORDER BY key")]


async def test_it_shows_what_was_there_and_what_comes() -> None:
    store = MemoryStore()
    async with opened(store) as database:
        await put(database, 1, b"one")
        async with following(store) as replica:
            assert await values(replica) == [1]
            await put(database, 2, b"two")
            await replica.refresh()
            assert content(replica) == dump(database)
            assert replica.position == database.position


async def test_it_looks_by_itself() -> None:
    store, clock = MemoryStore(), ManualClock()
    async with opened(store) as database, following(store, clock, poll_interval=2) as replica:
        await put(database, 1)
        await clock.advance(1.9)
        assert await values(replica) == []
        await clock.advance(0.2)
        assert await values(replica) == [1]


async def test_it_begins_at_a_checkpoint() -> None:
    store = MemoryStore()
    async with opened(store) as database:
        for number in range(20):
            await put(database, number)
        await database.checkpoint()
        await put(database, 20)
        async with following(store) as replica:
            assert content(replica) == dump(database)


async def test_an_empty_store_shows_nothing_until_somebody_writes() -> None:
    store, clock = MemoryStore(), ManualClock()
    async with following(store, clock) as replica:
        assert await values(replica) == []
        assert replica.lag.position == 0
        assert replica.lag.committed_at is None
        assert await replica.query("SELECT * FROM schema_modules") == []
        await clock.advance(3600)
        async with opened(store) as database:
            await put(database, 1)
            await clock.advance(10)
            assert await values(replica) == [1]
            assert content(replica) == dump(database)


# -- requests -----------------------------------------------------------------------------------


async def test_an_idle_store_costs_one_request_a_look() -> None:
    memory, clock = MemoryStore(), ManualClock()
    async with opened(memory) as database:
        await put(database, 1)
        await database.checkpoint()
        store = FaultyStore(memory)
        async with following(store, clock, poll_interval=1, max_poll_interval=1):
            store.requests.clear()
            await clock.advance(900.5)
            assert len(store.requests) <= 900
            lists = [request for request in store.requests if request.operation == "list"]
            assert 0 < len(lists) <= 15
            assert {request.operation for request in store.requests} == {"get", "list"}


async def test_an_idle_store_is_asked_less_and_less_often() -> None:
    memory, clock = MemoryStore(), ManualClock()
    async with opened(memory) as database:
        store = FaultyStore(memory)
        async with following(store, clock, poll_interval=1, max_poll_interval=8) as replica:
            await clock.advance(100)
            store.requests.clear()
            await clock.advance(80)
            assert len(store.requests) == 10
            await put(database, 1)
            while not await values(replica):
                await clock.advance(1)
            await put(database, 2)
            await clock.advance(1)
            assert await values(replica) == [1, 2]


async def test_a_short_pause_does_not_make_the_looks_rarer() -> None:
    memory, clock = MemoryStore(), ManualClock()
    async with opened(memory) as database:
        store = FaultyStore(memory)
        async with following(store, clock, poll_interval=1, max_poll_interval=8) as replica:
            await clock.advance(100)
            await put(database, 1)
            while not await values(replica):
                await clock.advance(1)
            store.requests.clear()
            await clock.advance(7)
            assert len(store.requests) >= 7


async def test_round_trips_do_not_add_to_the_interval() -> None:
    memory, clock = MemoryStore(), ManualClock()
    async with opened(memory):
        slow = LatencyStore(memory, 0.3, clock=clock)
        opening = asyncio.ensure_future(
            Replica.open(slow, [ITEMS], clock=clock, poll_interval=1, max_poll_interval=1)
        )
        await clock.advance(10)
        replica = await opening
        before = slow.requests.total()
        await clock.advance(40)
        assert slow.requests.total() - before == 40
        await replica.close()


async def test_a_backlog_does_not_hold_the_event_loop_up() -> None:
    memory = MemoryStore()
    async with opened(memory) as database, following(memory) as replica:
        for number in range(400):
            await put(database, number, b"x" * 8000)
        rounds = 0

        async def tick() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        await replica.refresh()
        ticking.cancel()
        assert rounds > 400 * 8000 / 20_000  # others ran after each 20 KB at the latest
        assert content(replica) == dump(database)


async def test_what_comes_regularly_is_fetched_at_once_and_with_one_request_more() -> None:
    memory, clock = MemoryStore(), ManualClock()
    async with opened(memory) as database:
        store = FaultyStore(memory)
        async with following(store, clock, poll_interval=1) as replica:
            for number in range(30):
                await put(database, number)
                await put(database, 1000 + number)
                store.requests.clear()
                await clock.advance(1)
                assert replica.position == database.position
                if number > 2:
                    assert len(store.requests) == 3
                    assert {request.operation for request in store.requests} == {"get"}


async def test_a_backlog_is_listed_and_fetched_many_at_a_time() -> None:
    memory = MemoryStore()
    async with opened(memory) as database:
        store = FaultyStore(memory)
        async with following(store) as replica:
            for number in range(500):
                await put(database, number)
            store.requests.clear()
            held = store.hold("get", times=10**9, skip=60)
            refresh = asyncio.ensure_future(replica.refresh())
            await held.arrived(1)
            assert replica.lag.behind > 400
            held.release()
            lag = await refresh
            assert lag.behind == 0
            assert content(replica) == dump(database)
            assert len(store.requests) < 600


# -- who else is there --------------------------------------------------------------------------


async def test_it_follows_through_takeovers() -> None:
    store = MemoryStore()
    first = await open_database(store, journal_config=SMALL)
    async with following(store) as replica:
        await put(first, 1)
        await replica.refresh()
        second = await open_database(store)
        with pytest.raises(Fenced):
            await put(first, 2)
        await first.close()
        await put(second, 3)
        await replica.refresh()
        assert await values(replica) == [1, 3]
        assert replica.position == second.position
        await second.close()


async def test_an_entry_behind_a_missing_one_is_not_shown() -> None:
    memory = MemoryStore()
    store = FaultyStore(memory)
    database = await open_database(store)
    async with following(memory) as replica:
        before = database.position.seq
        held = store.hold("create", entry_key(before))
        writes = [asyncio.ensure_future(put(database, 1))]
        await held.arrived()
        for number in (2, 3):
            database.journal.seal_now()
            writes.append(asyncio.ensure_future(put(database, number)))
            await asyncio.sleep(0)
            database.journal.seal_now()
        while len(await keys(memory, "journal/")) < before - 14:
            await asyncio.sleep(0)
        assert entry_key(before + 1) in await keys(memory, "journal/")
        await replica.refresh()
        assert await values(replica) == []
        assert replica.position.seq == before
        held.release()
        await asyncio.gather(*writes)
        await replica.refresh()
        assert await values(replica) == [1, 2, 3]
    await database.close()


async def test_what_lies_in_a_skipped_window_is_never_shown() -> None:
    """A writer dies with an entry missing, and one behind it stored: that one never counts."""
    memory = MemoryStore()
    store = FaultyStore(memory)
    dying = await open_database(store, journal_config=SMALL)
    async with following(memory) as replica, following(memory) as late:
        tail = dying.position.seq
        held = store.hold("create", entry_key(tail))
        writes = [asyncio.ensure_future(put(dying, 1))]
        await held.arrived()
        writes.append(asyncio.ensure_future(put(dying, 2)))
        await asyncio.sleep(0)
        dying.journal.seal_now()
        for _ in range(20):
            await asyncio.sleep(0)
        assert entry_key(tail + 1) in await keys(memory, "journal/")
        await replica.refresh()
        async with opened(memory) as database:
            await put(database, 3)
            await replica.refresh()
            assert await values(replica) == [3]
            held.release()
            assert all(
                isinstance(error, Fenced)
                for error in await asyncio.gather(*writes, return_exceptions=True)
            )
            await replica.refresh()
            await late.refresh()
            assert await values(replica) == await values(late) == [3]
            assert content(replica) == content(late) == dump(database)
    await dying.close()


async def test_an_epoch_entry_ahead_counts_only_where_the_log_comes_to_it() -> None:
    memory = MemoryStore()
    async with opened_small(memory) as database:
        await put(database, 1)
        tail = database.position
        await memory.create(
            entry_key(tail.seq + 3), _epoch_entry(database, tail.seq + 3, ahead=True)
        )
        async with following(memory) as replica:
            assert replica.position == tail
            await put(database, 2)
            await replica.refresh()
            assert await values(replica) == [1, 2]
            assert replica.position.epoch == 1
            async with opened(memory) as other:  # before that place, so it is skipped
                await put(other, 3)
                await replica.refresh()
                assert await values(replica) == [1, 2, 3]
                assert replica.position == other.position


async def test_an_epoch_entry_ahead_that_the_log_came_to_counts() -> None:
    memory = MemoryStore()
    database = await open_database(memory, journal_config=SMALL)
    tail = database.position
    await memory.create(entry_key(tail.seq + 2), _epoch_entry(database, tail.seq + 2, ahead=True))
    async with following(memory) as replica:
        await put(database, 1)
        await put(database, 2)
        with pytest.raises(Fenced):
            await put(database, 3)
        await replica.refresh()
        assert await values(replica) == [1, 2]
        assert replica.position.epoch == 2
        assert replica.position.seq == tail.seq + 2 + 4
    await database.close()


# -- collection ---------------------------------------------------------------------------------


async def collected(database: Database) -> None:
    """Two checkpoints with something before each, so that what was before is deleted."""
    for key in (1001, 1002):
        await put(database, key)
        await database.checkpoint()


async def test_it_starts_again_when_collection_overtook_it() -> None:
    memory, clock = MemoryStore(), ManualClock()
    config = DatabaseConfig(checkpoint_entries=2**40, checkpoint_bytes=2**40, keep_checkpoints=1)
    async with opened(memory, config=config) as database:
        await put(database, 1)
        async with following(memory, clock) as replica:
            before = replica.position.seq
            await put(database, 2)
            await collected(database)
            assert entry_key(before) not in await keys(memory, "journal/")
            # Nothing is left of the journal beyond `before`: only the checkpoint tells.
            lag = await replica.refresh()
            assert lag.position == database.position.seq
            assert content(replica) == dump(database)
            await put(database, 3)
            await replica.refresh()
            assert content(replica) == dump(database)


async def test_it_finds_out_by_itself_that_collection_overtook_it() -> None:
    memory, clock = MemoryStore(), ManualClock()
    config = DatabaseConfig(checkpoint_entries=2**40, checkpoint_bytes=2**40, keep_checkpoints=1)
    async with opened(memory, config=config) as database:
        async with following(memory, clock, poll_interval=1, max_poll_interval=5) as replica:
            await put(database, 2)
            await collected(database)
            await clock.advance(66)
            await replica.wait_for(database.position.seq)
            assert content(replica) == dump(database)


@pytest.mark.parametrize("steady", [1, 5])
async def test_a_busy_store_that_falls_silent_is_looked_at_soon(steady: int) -> None:
    """It may have fallen silent because what it wrote is collected already."""
    memory, clock = MemoryStore(), ManualClock()
    config = DatabaseConfig(checkpoint_entries=2**40, checkpoint_bytes=2**40, keep_checkpoints=1)
    async with opened(memory, config=config) as database:
        store = FaultyStore(memory)
        async with following(store, clock, poll_interval=1, max_poll_interval=5) as replica:
            for number in range(steady):
                await put(database, number)
                await clock.advance(1)
            await collected(database)
            await clock.advance(1 if steady > 2 else 6)
            await replica.wait_for(database.position.seq)
            assert content(replica) == dump(database)
            await put(database, 7)
            store.requests.clear()
            await clock.advance(31)
            assert [request.operation for request in store.requests].count("list") == 1


async def test_a_process_that_was_suspended_finds_out_at_once() -> None:
    memory, clock = MemoryStore(), ManualClock()
    config = DatabaseConfig(checkpoint_entries=2**40, checkpoint_bytes=2**40, keep_checkpoints=1)
    async with opened(memory, config=config) as database, following(memory, clock) as replica:
        await put(database, 2)
        await collected(database)
        clock._elapsed += 30  # nobody was woken meanwhile
        await clock.advance(1)
        await replica.wait_for(database.position.seq)
        assert content(replica) == dump(database)


async def test_the_old_state_is_served_while_the_new_one_is_loaded() -> None:
    memory = MemoryStore()
    store = FaultyStore(memory)
    async with opened(memory) as database, following(store) as replica:
        await put(database, 1)
        await replica.refresh()
        await put(database, 2)
        await collected(database)
        held = store.hold("get", "chunks/", times=10**9)
        refresh = asyncio.ensure_future(replica.refresh())
        await held.arrived()
        assert await values(replica) == [1]
        assert replica.lag.behind > 0
        held.release()
        await refresh
        assert content(replica) == dump(database)


async def test_a_checkpoint_that_goes_while_it_is_loaded_is_replaced_by_a_newer_one() -> None:
    memory = MemoryStore()
    store = FaultyStore(memory)
    config = DatabaseConfig(checkpoint_entries=2**40, checkpoint_bytes=2**40, keep_checkpoints=1)
    async with opened(memory, config=config) as database, following(store) as replica:
        await put(database, 1, b"x" * 20_000)
        await collected(database)
        held = store.hold("get", "chunks/", times=10**9)
        refresh = asyncio.ensure_future(replica.refresh())
        await held.arrived()
        await put(database, 1, b"y" * 20_000)
        await collected(database)
        held.release()
        await refresh
        assert content(replica) == dump(database)


async def test_a_checkpoint_that_goes_while_a_follower_opens_is_replaced_by_a_newer_one() -> None:
    memory = MemoryStore()
    store = FaultyStore(memory)
    config = DatabaseConfig(checkpoint_entries=2**40, checkpoint_bytes=2**40, keep_checkpoints=1)
    async with opened(memory, config=config) as database:
        await put(database, 1, b"x" * 200_000)
        await database.checkpoint()
        held = store.hold("get", "chunks/", times=10**9)
        opening = asyncio.ensure_future(Replica.open(store, [ITEMS], clock=ManualClock()))
        await held.arrived()
        await put(database, 1, b"y" * 200_000)
        await collected(database)
        newest = await newest_checkpoint(memory)
        assert newest is not None
        needed = Contents.from_json("newest", newest.content).chunk_keys()
        doomed = {request.key for request in held.requests} - needed
        assert doomed
        await memory.delete(doomed)
        held.release()
        replica = await opening
        assert content(replica) == dump(database)
        await replica.close()


async def test_damage_behind_a_checkpoint_does_not_matter() -> None:
    """As for an owner that opens the store: it begins at the checkpoint."""
    memory = MemoryStore()
    config = replace(LAZY, retain_history=3600)  # so that the entry is not collected
    async with opened(memory, config=config) as database, following(memory) as replica:
        await put(database, 1)
        damaged = entry_key(database.position.seq - 1)
        await put(database, 2)
        await database.checkpoint()
        await put(database, 3)
        await memory.put(damaged, b"damaged")
        assert damaged == entry_key(replica.position.seq)
        await replica.refresh()
        assert content(replica) == dump(database)


async def test_a_stray_epoch_entry_where_the_log_was_collected_leads_nobody_astray() -> None:
    """A slow opener's entry lands at a place that it took for the tail, and that is long gone."""
    memory = MemoryStore()
    async with opened_small(memory, keep_checkpoints=1) as database:
        await put(database, 1)
        async with following(memory) as replica:
            stray_at = replica.position.seq
            stray = _epoch_entry(database, stray_at, ahead=False)
            await put(database, 2)
            await collected(database)
            await memory.create(entry_key(stray_at), stray)
            await replica.refresh()
            assert replica.position == database.position
            assert content(replica) == dump(database)


async def test_reads_never_go_backwards() -> None:
    memory, clock = MemoryStore(), ManualClock()
    async with opened(memory, config=EAGER) as database, following(memory, clock) as replica:
        seen = [replica.position.seq]
        for number in range(300):
            await put(database, number % 7, b"x" * 900)
            if number % 37 == 0:
                await replica.refresh()
            seen.append(replica.position.seq)
        await replica.refresh()
        assert seen == sorted(seen)
        assert content(replica) == dump(database)


# -- what goes wrong ----------------------------------------------------------------------------


async def test_it_survives_an_outage() -> None:
    memory, clock = MemoryStore(), ManualClock()
    store = FaultyStore(memory)
    async with opened(memory) as database, following(store, clock) as replica:
        await put(database, 1)
        store.fail("read", times=5)
        with pytest.raises(StoreUnavailable):
            await replica.refresh()
        assert isinstance(replica.lag.last_error, StoreUnavailable)
        assert replica.failure is None
        assert await values(replica) == []
        await clock.advance(100)
        assert await values(replica) == [1]
        assert replica.lag.last_error is None


async def test_it_survives_credentials_that_expire() -> None:
    memory, clock = MemoryStore(), ManualClock()
    store = FaultyStore(memory)
    async with opened(memory) as database, following(store, clock) as replica:
        await put(database, 1)
        store.fail("read", times=5, error=StoreAccessDenied("expired"))
        await clock.advance(2)
        assert isinstance(replica.lag.last_error, StoreAccessDenied)
        await clock.advance(100)
        assert await values(replica) == [1]


async def test_the_lag_says_since_when_nothing_is_known() -> None:
    memory, clock = MemoryStore(), ManualClock()
    store = FaultyStore(memory)
    async with following(store, clock) as replica:
        assert replica.lag.age == 0
        store.fail("read", times=10**9)
        await clock.advance(77)
        assert replica.lag.age == 77
        assert replica.lag.behind == 0


async def test_a_damaged_entry_stops_it_and_is_named() -> None:
    memory = MemoryStore()
    async with opened(memory) as database, following(memory) as replica:
        await put(database, 1)
        seq = database.position.seq - 1
        data = await memory.get(entry_key(seq))
        await memory.put(entry_key(seq), data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(CorruptStore, match=entry_key(seq)):
            await replica.refresh()
        assert isinstance(replica.failure, CorruptStore)
        with pytest.raises(CorruptStore, match=entry_key(seq)):
            await replica.query("SELECT 1")
        with pytest.raises(CorruptStore, match=entry_key(seq)):
            await replica.wait_for(10**6)


async def test_a_damaged_checkpoint_is_named() -> None:
    memory = MemoryStore()
    async with opened(memory) as database:
        await put(database, 1)
        await database.checkpoint()
    [key] = await keys(memory, "checkpoints/")
    [chunk, *_] = await keys(memory, "chunks/")
    good = await memory.get(chunk)
    await memory.put(chunk, good[:-4])
    with pytest.raises(CorruptStore, match=chunk):
        await Replica.open(memory, clock=ManualClock())
    await memory.delete([chunk])
    with pytest.raises(CorruptStore, match=chunk):
        await Replica.open(memory, clock=ManualClock())
    await memory.put(key, b"{}")
    with pytest.raises(CorruptStore, match=key):
        await Replica.open(memory, clock=ManualClock())


async def test_a_lost_entry_is_named() -> None:
    memory = MemoryStore()
    async with opened(memory) as database:
        await put(database, 1)
        await put(database, 2)
        await database.checkpoint()
        seq = database.position.seq
        await put(database, 3)
        async with following(memory) as replica:
            await put(database, 4)
            await memory.delete([entry_key(seq + 1)])
            await replica.refresh()
            assert replica.position.seq == seq + 1  # nothing proves yet that there was more
            await put(database, 5)
            await database.checkpoint()
            await replica.refresh()  # the checkpoint has it all
            assert content(replica) == dump(database)


async def test_a_newer_store_is_refused() -> None:
    newer = SchemaModule(name="items", version=2, statements=ITEMS.statements)
    memory = MemoryStore()
    async with opened(memory, newer) as database:
        await put(database, 1)
        with pytest.raises(IncompatibleStore, match="upgrade"):
            await Replica.open(memory, [ITEMS], clock=ManualClock())
        await database.checkpoint()
        with pytest.raises(IncompatibleStore, match="upgrade"):
            await Replica.open(memory, [ITEMS], clock=ManualClock())


async def test_a_newer_format_is_refused() -> None:
    memory = MemoryStore()
    async with opened(memory) as database:
        await put(database, 1)
        await database.checkpoint()
    async with following(memory) as replica:
        key = entry_key(replica.position.seq)
        await memory.create(key, b"TAQUBAJ\n\x00\x09 whatever comes in that version")
        with pytest.raises(IncompatibleStore, match="format version 9"):
            await replica.refresh()
        assert isinstance(replica.failure, IncompatibleStore)
    await memory.delete([key])
    [manifest] = await keys(memory, "checkpoints/")
    data = await memory.get(manifest)
    assert b'"version": ' in data
    await memory.put(manifest, re.sub(rb'"version": \d+', b'"version": 99', data, count=1))
    with pytest.raises(IncompatibleStore, match="version 99"):
        await Replica.open(memory, clock=ManualClock())


async def test_a_store_that_is_migrated_meanwhile_is_refused() -> None:
    newer = SchemaModule(
        name="items",
        version=2,
        statements=ITEMS.statements,
        migrations={1: ("ALTER TABLE items ADD COLUMN more TEXT",)},
    )
    memory = MemoryStore()
    async with opened(memory) as database:
        await put(database, 1)
    async with following(memory) as replica, following(memory, modules=[]) as general:
        async with opened(memory, newer) as migrated:
            with pytest.raises(IncompatibleStore, match="upgrade"):
                await replica.refresh()
            assert isinstance(replica.failure, IncompatibleStore)
            await general.refresh()
            assert content(general) == dump(migrated)


async def test_a_store_with_older_tables_than_the_reader_knows_is_refused() -> None:
    newer = SchemaModule(name="items", version=2, statements=ITEMS.statements)
    memory = MemoryStore()
    async with opened(memory):
        pass
    with pytest.raises(IncompatibleStore, match="let the process that writes"):
        await Replica.open(memory, [newer], clock=ManualClock())


async def test_reading_cannot_change_anything() -> None:
    memory = MemoryStore()
    async with opened(memory) as database:
        await put(database, 1)
        async with following(memory) as replica:
            for statement in (
                "DELETE FROM items",
                "INSERT INTO items VALUES (5, NULL, NULL)",
                "CREATE TABLE more (x)",
            ):
                with pytest.raises(InvalidState, match="only reads"):
                    await replica.query(statement)
            with pytest.raises(apsw.SQLError):
                await replica.query("SELECT nonsense")
            await put(database, 2)
            await replica.refresh()
            assert content(replica) == dump(database)
        async with following(MemoryStore()) as replica:
            with pytest.raises(InvalidState, match="only reads"):
                await replica.query("INSERT INTO items VALUES (5, NULL, NULL)")


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA query_only = OFF",
        "SELECT 1; PRAGMA query_only = OFF; DELETE FROM items",
        "-- harmless\nEXPLAIN PRAGMA query_only = OFF",
        "PRAGMA max_page_count = 1",
        "WITH one AS (SELECT 1) DELETE FROM items",
        "BEGIN",
        "SAVEPOINT one",
        "ATTACH ':memory:' AS other",
    ],
)
async def test_reading_cannot_unlock_or_bend_the_copy(statement: str) -> None:
    """SQLite takes these for statements that only read, and yet what is shown could be wrong, or
    following could end, after them.
    """
    memory = MemoryStore()
    async with opened(memory) as database, following(memory) as replica:
        await put(database, 1)
        await replica.refresh()
        with pytest.raises(InvalidState, match="only reads"):
            await replica.query(statement)
        assert await replica.query("/* fine */ SELECT 1; VALUES (2); -- done") == [(1,), (2,)]
        await put(database, 2)
        await replica.refresh()
        assert content(replica) == dump(database)


# -- waiting ------------------------------------------------------------------------------------


async def test_waiting_for_a_place_looks_at_once() -> None:
    memory, clock = MemoryStore(), ManualClock()
    async with opened(memory) as database, following(memory, clock) as replica:
        await clock.advance(600)
        await put(database, 1)
        await asyncio.wait_for(replica.wait_for(database.position.seq), 5)
        assert await values(replica) == [1]


async def test_waiting_for_what_a_reader_wants_to_see() -> None:
    memory, clock = MemoryStore(), ManualClock()

    async with opened(memory) as database, following(memory, clock) as replica:

        async def two() -> bool:
            return len(await values(replica)) == 2

        waits = [
            asyncio.ensure_future(replica.wait_until(two)),
            asyncio.ensure_future(
                replica.wait_until(lambda: len(replica.rows("SELECT * FROM items")) >= 1)
            ),
        ]
        await clock.advance(10)
        assert [wait.done() for wait in waits] == [False, False]
        await put(database, 1)
        await clock.advance(10)
        assert [wait.done() for wait in waits] == [False, True]
        await put(database, 2)
        await clock.advance(10)
        assert [wait.done() for wait in waits] == [True, True]


async def test_every_change_is_told() -> None:
    memory, clock = MemoryStore(), ManualClock()
    seen: list[int] = []

    async with opened(memory) as database, following(memory, clock) as replica:

        async def watch() -> None:
            async for position in replica.changes():
                seen.append(position)

        watching = asyncio.ensure_future(watch())
        start = replica.position.seq
        for number in range(3):
            await clock.advance(10)
            await put(database, number)
        await clock.advance(10)
        assert seen == [start, start + 1, start + 2, start + 3]
        await replica.close()
        with pytest.raises(Closed):
            await watching


async def test_a_look_can_be_given_up() -> None:
    memory = MemoryStore()
    store = FaultyStore(memory)
    async with opened(memory) as database, following(store) as replica:
        await put(database, 1)
        held = store.hold("get")
        refresh = asyncio.ensure_future(replica.refresh())
        await held.arrived()
        refresh.cancel()
        await asyncio.wait([refresh])
        held.release()
        await replica.refresh()
        assert await values(replica) == [1]


@pytest.mark.parametrize("operation", ["get", "list"])
async def test_it_closes_amid_anything(operation: Any) -> None:
    memory = MemoryStore()
    store = FaultyStore(memory)
    async with opened(memory) as database:
        async with following(store) as replica:
            await put(database, 1)
            held = store.hold(operation)
            refresh = asyncio.ensure_future(replica.refresh())
            await held.arrived()
            await replica.close()
            await replica.close()
            with pytest.raises(Closed):
                await refresh
            with pytest.raises(Closed):
                await replica.query("SELECT 1")
            with pytest.raises(Closed):
                await replica.refresh()
            held.release()


async def put_many(database: Database, count: int, first: int = 0) -> None:
    with database.transaction() as tx:
        for number in range(first, first + count):
            tx.execute("INSERT INTO items VALUES (?, ?, NULL)", (number, b"x" * 50))
    await tx.durable()


async def amid(replica: Replica) -> asyncio.Future[Any]:
    """A look that is in the middle of an entry."""
    refresh = asyncio.ensure_future(replica.refresh())
    while replica._mirror.resting.is_set():
        await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not replica._mirror.resting.is_set()
    return refresh


async def test_it_closes_amid_a_large_entry() -> None:
    memory = MemoryStore()
    async with opened(memory) as database, following(memory) as replica:
        await put_many(database, 10_007)
        refresh = await amid(replica)
        await replica.close()
        with pytest.raises(Closed):
            await refresh


COUNT = "SELECT count(*) FROM items"


@pytest.mark.parametrize("kind", ["rows", "query"])
async def test_a_large_entry_is_seen_whole_or_not_at_all(kind: str) -> None:
    memory = MemoryStore()
    async with opened(memory) as database, following(memory) as replica:
        await put_many(database, 10_007)
        refresh = await amid(replica)
        [(count,)] = replica.rows(COUNT) if kind == "rows" else await replica.query(COUNT)
        assert count == 10_007
        with pytest.raises(InvalidState):
            replica.rows("DELETE FROM items")
        await refresh
        assert content(replica) == dump(database)
        assert replica.position == database.position


async def test_a_large_entry_lets_others_run() -> None:
    memory = MemoryStore()
    async with opened(memory) as database, following(memory) as replica:
        await put_many(database, 10_007)
        refresh = await amid(replica)
        rounds = 0
        while not replica._mirror.resting.is_set():
            rounds += 1
            await asyncio.sleep(0)
        assert rounds > 30
        await refresh


async def test_unique_values_that_change_places_in_a_large_entry() -> None:
    memory = MemoryStore()
    async with opened(memory) as database, following(memory) as replica:
        with database.transaction() as tx:
            for number in range(2000):
                tx.execute("INSERT INTO items VALUES (?, NULL, ?)", (number, f"tag {number}"))
        await tx.durable()
        # Somewhere among other changes, so that some of these come before.
        for turn, (one, other) in enumerate([(1, 500), (7, 900), (33, 1300), (512, 1999)]):
            with database.transaction() as tx:
                for number in range(3000):
                    tx.execute(
                        "INSERT INTO items VALUES (?, NULL, NULL)", (10_000 * (turn + 1) + number,)
                    )
                tx.execute("UPDATE items SET tag = NULL WHERE key = ?", (one,))
                tx.execute("UPDATE items SET tag = ? WHERE key = ?", (f"tag {one}", other))
                tx.execute("UPDATE items SET tag = ? WHERE key = ?", (f"tag {other}", one))
            await tx.durable()
        await replica.refresh()
        assert content(replica) == dump(database)


@pytest.mark.parametrize("looking", [False, True])
async def test_a_large_entry_that_does_not_apply(looking: bool) -> None:
    memory = MemoryStore()
    async with opened(memory) as database, following(memory) as replica:
        await put_many(database, 5000, first=5000)
        # As if the copy were damaged: a row is there that the entry brings.
        execute = replica._mirror.machine.state.execute
        execute("PRAGMA query_only = OFF")
        execute("INSERT INTO items VALUES (9999, NULL, NULL)")
        if looking:
            refresh = await amid(replica)
            with pytest.raises(CorruptStore, match="does not apply"):
                replica.rows(COUNT)
        else:
            refresh = asyncio.ensure_future(replica.refresh())
        with pytest.raises(CorruptStore, match="does not apply"):
            await refresh
        assert isinstance(replica.failure, CorruptStore)


@pytest.mark.parametrize(("shortest", "longest"), [(0, 1), (-1, 1), (2, 1), (1, float("inf"))])
async def test_impossible_intervals_are_refused(shortest: float, longest: float) -> None:
    with pytest.raises(InvalidArgument):
        await Replica.open(
            MemoryStore(), clock=ManualClock(), poll_interval=shortest, max_poll_interval=longest
        )


# -- helpers ------------------------------------------------------------------------------------


@asynccontextmanager
async def opened_small(store: ObjectStore, keep_checkpoints: int = 2) -> AsyncIterator[Database]:
    config = DatabaseConfig(
        checkpoint_entries=2**40, checkpoint_bytes=2**40, keep_checkpoints=keep_checkpoints
    )
    database = await open_database(store, config=config, journal_config=SMALL)
    try:
        yield database
    finally:
        try:
            await database.close()
        except Fenced:
            pass


def _epoch_entry(database: Database, seq: int, *, ahead: bool) -> bytes:
    """What an opener that came to the database's position creates."""
    tail = database.position
    data, _ = encode_entry(
        kind=Kind.EPOCH,
        epoch=tail.epoch + 1,
        seq=seq,
        writer=b"r" * 16,
        previous=bytes(32) if ahead else tail.digest,
        committed_at_ms=0,
        window=tail.window,
        durable_before=tail.seq,
        body=database._machine.metadata(),
        ahead=ahead,
    )
    return data
