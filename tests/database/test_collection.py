"""Collection: beside the work, at a bounded rate, and never what somebody needs."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

from taquba.clock import ManualClock
from taquba.database import Database, DatabaseConfig, export_state
from taquba.database._chunks import Contents
from taquba.database._collection import Pacer, SteadyTime
from taquba.errors import Closed, CorruptStore, Fenced, InvalidArgument, StoreUnavailable
from taquba.journal import checkpoints, newest_checkpoint
from taquba.objectstore import MemoryStore
from taquba.testing import FaultyStore

from .harness import ITEMS, LAZY, dump, keys, open_database, opened, put

pytestmark = pytest.mark.anyio


def lazy(**settings: Any) -> DatabaseConfig:
    return DatabaseConfig(checkpoint_bytes=2**40, checkpoint_entries=2**40, **settings)


async def open_with(store: Any, clock: ManualClock, config: DatabaseConfig = LAZY) -> Database:
    return await Database.open(store, [ITEMS], clock=clock, config=config)


async def rounds(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Any) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: None)
    raise AssertionError("it never became true")


async def check_complete(store: MemoryStore) -> None:
    """Whatever a checkpoint that is there names is there, too."""
    chunks = set(await keys(store, "chunks/"))
    async for checkpoint in checkpoints(store):
        contents = Contents.from_json("checkpoint", checkpoint.content)
        assert contents.chunk_keys() <= chunks, checkpoint.position.seq


async def check_tidy(store: MemoryStore, keep: int = 2) -> None:
    """There is nothing below the oldest checkpoint, and no chunk that nobody names."""
    kept = [checkpoint async for checkpoint in checkpoints(store)]
    assert len(kept) == keep
    named = set[str]()
    for checkpoint in kept:
        named |= Contents.from_json("checkpoint", checkpoint.content).chunk_keys()
    assert set(await keys(store, "chunks/")) == named
    cut = kept[0].position
    below = [int(key[8:]) for key in await keys(store, "journal/") if int(key[8:]) < cut.seq]
    assert below == [mark.seq for mark in cut.epochs]


# -- the rate ------------------------------------------------------------------------------------


async def test_the_rate_is_bounded_with_a_burst_of_a_second() -> None:
    clock = ManualClock()
    pace = Pacer(clock, 100)
    done = 0

    async def work() -> None:
        nonlocal done
        for _ in range(60):
            await pace(10)
            done += 10

    working = asyncio.ensure_future(work())
    await clock.advance(0)
    assert done == 100
    for second in range(1, 6):
        await clock.advance(1)
        assert 0 <= 100 + 100 * second - done <= 10
    await working
    await clock.advance(3600)
    again = asyncio.ensure_future(work())
    await clock.advance(0)
    assert done == 700  # what was not used does not add up
    again.cancel()


async def test_twenty_thousand_objects_go_at_the_configured_rate_while_commits_go_on() -> None:
    clock = ManualClock()
    below = MemoryStore()
    leftovers = [f"chunks/0000000001-{number:064x}" for number in range(20_000)]
    store = FaultyStore(below)
    database = await open_with(store, clock)
    await put(database, 0)
    await database.close()
    for key in leftovers:
        await below.create(key, b"")
    database = await open_with(store, clock, lazy(collection_rate=500))
    await put(database, 1)
    await database.checkpoint()
    before, lists = clock.monotonic(), store.count("list")
    await clock.advance(0)
    gone = 0
    for second in range(60):
        left = len(await keys(below, "chunks/0000000001-"))
        assert 20_000 - left - gone <= 500 * (1 + (second == 0))
        gone = 20_000 - left
        await put(database, second)
        if not left:
            break
        await clock.advance(1)
    assert gone == 20_000
    assert 38 <= clock.monotonic() - before <= 41
    await clock.advance(5)
    assert store.count("delete", "chunks/") == 40
    assert database.statistics().objects_deleted == 20_000
    # One listing of checkpoints, one of entries, one of chunks: the memory store has no pages.
    assert store.count("list") - lists <= 3
    await database.collect()
    await check_complete(below)
    assert clock.sleeping == 0
    await database.close()


async def test_processes_that_end_right_after_a_checkpoint_collect_too() -> None:
    store = MemoryStore()
    for number in range(6):
        async with opened(store) as database:
            await put(database, number)
            await database.checkpoint()
            await put(database, number, b"once more")
    await check_tidy(store)


async def test_closing_does_not_wait_long_for_a_collection() -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore())
    database = await open_with(store, clock)
    for number in range(3):
        held = store.hold("delete") if number == 2 else None
        await put(database, number)
        await database.checkpoint()
    assert held is not None
    await held.arrived()
    closing = asyncio.ensure_future(database.close())
    await clock.advance(4)
    assert not closing.done()
    await clock.advance(2)
    await closing
    held.release()
    await store.settle()
    assert clock.sleeping == 0
    async with opened(store) as again:
        assert len(dump(again)["items"]) == 3


async def test_what_a_collection_costs() -> None:
    """In requests; each lists, reads, and deletes once, however much there is to delete."""
    store = FaultyStore(MemoryStore())
    database = await open_database(store)
    for i in range(4):
        for j in range(50):
            await put(database, j, bytes([i]) * 2000)
        before = len(store.requests)
        await database.checkpoint()
        await database.collect()
        used = [f"{r.operation} {r.key.split('/')[0]}" for r in store.requests[before:]]
    collecting = [request for request in used if not request.startswith(("put", "create"))]
    assert collecting == [
        "list checkpoints",
        "delete checkpoints",
        "list journal",
        "delete journal",
        "list chunks",
        "delete chunks",
    ]
    assert await _requests_of(store, database.collect()) == 3  # there is nothing to delete
    await database.close()


async def _requests_of(store: FaultyStore, work: Any) -> int:
    before = len(store.requests)
    await work
    return len(store.requests) - before


# -- never in the way ----------------------------------------------------------------------------


async def test_a_delete_that_hangs_delays_no_commit_and_no_checkpoint_and_nothing_piles_up() -> (
    None
):
    below = MemoryStore()
    store = FaultyStore(below)
    database = await open_database(store)
    held = store.hold("delete", times=math.inf)
    for i in range(3):
        await put(database, i)
        await database.checkpoint()
    await held.arrived()
    for i in range(20):
        await put(database, i, b"meanwhile")
        await database.checkpoint()
        await rounds()
    assert len(held.requests) == 1
    assert database.statistics().checkpoints == 23
    collections = store.count("list", "checkpoints/")
    held.release()
    await database.collect()
    await rounds()
    assert store.count("list", "checkpoints/") - collections <= 2  # one for all that came meanwhile
    await check_tidy(below)
    await database.close()


async def test_a_delete_that_fails_is_tried_again_later_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    below = MemoryStore()
    store = FaultyStore(below)
    clock = ManualClock()
    database = await open_with(store, clock)
    for i in range(2):
        await put(database, i)
        await database.checkpoint()
    await rounds()
    store.fail("delete", times=3)
    with caplog.at_level(logging.WARNING):
        await put(database, 3)
        await database.checkpoint()
        await until(lambda: "tried again in 10 s" in caplog.text)
    assert database.failure is None
    for pause, failures in ((9, 1), (2, 2), (20, 3), (40, 3)):
        await put(database, pause)
        await clock.advance(pause)
        assert (
            sum("could not be deleted" in record.message for record in caplog.records) == failures
        )
    await check_tidy(below)
    await database.close()


async def test_damage_stops_collection_and_not_the_work(caplog: pytest.LogCaptureFixture) -> None:
    """If it cannot be told what is needed, everything stays."""
    below = MemoryStore()
    async with opened(below) as database:
        for i in range(2):
            await put(database, i)
            await database.checkpoint()
        await database.collect()
    first = (await keys(below, "checkpoints/"))[1]
    database = await open_database(below, config=lazy(keep_checkpoints=3))
    await below.put(first, b"{}")
    before = set(await keys(below, ""))
    await put(database, 3)
    with caplog.at_level(logging.ERROR):
        await database.checkpoint()
        await until(lambda: "cannot be deleted" in caplog.text)
    with pytest.raises(CorruptStore, match=first):
        await database.collect()
    assert before <= set(await keys(below, ""))
    await put(database, 4)
    await database.close()


@pytest.mark.parametrize("how", ["close", "replaced"])
async def test_it_ends_with_the_database(how: str) -> None:
    below = MemoryStore()
    store = FaultyStore(below)
    before = asyncio.all_tasks()
    database = await open_database(store)
    held = store.hold("delete", times=math.inf)
    for i in range(3):
        await put(database, i)
        await database.checkpoint()
    await held.arrived()
    waiting = asyncio.ensure_future(database.collect())
    await rounds()
    if how == "close":
        await database.close(timeout=0)  # otherwise it waits a while for the collection
        with pytest.raises(Closed):
            await waiting
    else:
        async with opened(below):
            with pytest.raises(Fenced):
                await put(database, 1, b"late")
            with pytest.raises(Fenced):
                await waiting
        await database.close()
    with pytest.raises((Closed, Fenced)):
        await database.collect()
    held.release()
    await store.settle()
    assert asyncio.all_tasks() == before


async def test_giving_up_a_collection_ends_it_and_the_next_one_works() -> None:
    below = MemoryStore()
    store = FaultyStore(below)
    database = await open_database(store)
    for i in range(3):
        await put(database, i)
        await database.checkpoint()
    held = store.hold("list", "chunks/", times=math.inf)
    collecting = asyncio.ensure_future(database.collect())
    await held.arrived()
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collecting
    held.release()
    await database.collect()
    await check_tidy(below)
    await database.close()


async def test_an_idle_database_collects_nothing() -> None:
    store = FaultyStore(MemoryStore())
    clock = ManualClock()
    database = await open_with(store, clock, lazy(retain_history=60))
    await put(database, 1)
    await database.checkpoint()
    await database.collect()
    before = len(store.requests)
    for _ in range(30):
        await clock.advance(3600)
    assert len(store.requests) == before
    assert clock.sleeping == 0
    await database.close()


# -- crashes -------------------------------------------------------------------------------------


async def _with_much_to_collect(store: Any) -> Database:
    """Two owners, history, leftovers of an upload that was never published, void entries."""
    async with opened(store) as database:
        for i in range(3):
            await put(database, i, bytes([i]) * 3000)
            await database.checkpoint()
    below = store.store if isinstance(store, FaultyStore) else store
    await below.create(f"chunks/0000000001-{7:064x}", b"of a crashed checkpoint")
    database = await open_database(store)
    skipped = database.position.epochs[-1].seq + 1
    await below.create(f"journal/{skipped:020d}", b"left behind in a skipped window")
    for i in range(3):
        await put(database, 10 + i, bytes([i]) * 3000)
        if i < 2:
            await database.checkpoint()
    return database


async def test_a_crash_at_any_request_of_a_collection_leaves_a_store_that_opens_and_gets_tidy() -> (
    None
):
    store = FaultyStore(MemoryStore())
    database = await _with_much_to_collect(store)
    expected = dump(database)
    await database.checkpoint()
    before = len(store.requests)
    await database.collect()
    steps = len(store.requests) - before
    await database.close()
    assert steps >= 4
    for step in range(2 * steps):
        for after in (False, True):
            below = MemoryStore()
            store = FaultyStore(below)
            database = await _with_much_to_collect(store)
            held = await _hold_from(store, database, step, after=after)
            await rounds(20)
            await database.close(timeout=0)  # ends the collection wherever it is
            held.release()
            await store.settle()
            await check_complete(below)
            again = await open_database(below)
            assert dump(again) == expected
            await put(again, 99)
            await again.checkpoint()
            await put(again, 98)
            await again.checkpoint()
            await again.collect()
            await check_tidy(below)
            await again.close()


async def _hold_from(store: FaultyStore, database: Database, step: int, *, after: bool) -> Any:
    """Take a checkpoint, and stop its collection at its `step`-th request."""
    gate = store.hold("list", "checkpoints/", times=1)
    await database.checkpoint()
    await gate.arrived()
    # Listing checkpoints is the first one; what comes then is counted from here.
    held = store.hold("any", skip=step, times=math.inf, after=after)
    gate.release()
    return held


async def test_a_successor_that_loads_while_the_owner_collects_starts_over() -> None:
    for operation, prefix in (("get", "checkpoints/"), ("get", "chunks/"), ("list", "journal/")):
        below = MemoryStore()
        owner = await open_database(below, config=lazy(keep_checkpoints=1))
        await put(owner, 1)
        await owner.checkpoint()
        store = FaultyStore(below)
        held = store.hold(operation, prefix)  # type: ignore[arg-type]
        opening = asyncio.ensure_future(open_database(store))
        await held.arrived()
        for i in range(5):
            await put(owner, i, bytes([i]) * 5000)
            await owner.checkpoint()
            await owner.collect()
        expected = dump(owner)
        held.release()
        successor = await opening
        assert dump(successor) == expected
        with pytest.raises(Fenced):
            await put(owner, 9)
        await owner.close()
        await successor.close()


# -- rivals --------------------------------------------------------------------------------------


async def test_a_replaced_owner_that_goes_on_collecting_takes_nothing_from_its_successor() -> None:
    below = MemoryStore()
    old = await open_database(below, config=lazy(keep_checkpoints=1))
    for i in range(3):
        await put(old, i)
        await old.checkpoint()
    new = await open_database(below)
    for i in range(3):
        await put(new, 10 + i, bytes([i]) * 3000)
        await new.checkpoint()
        await old.collect()  # it does not know
        await check_complete(below)
    expected = dump(new)
    await new.collect()
    await check_tidy(below)
    await old.collect()
    await check_tidy(below)
    await old.close()
    await new.close()
    async with opened(below) as again:
        assert dump(again) == expected


@pytest.mark.parametrize("checkpoints_of_successor", [0, 1, 3])
async def test_a_late_manifest_of_a_replaced_owner_harms_nobody(
    checkpoints_of_successor: int, tmp_path: Path
) -> None:
    """As long as its chunks may be needed to open the store they are there."""
    below = MemoryStore()
    store = FaultyStore(below)
    old = await open_database(store)
    await put(old, 1)
    await old.checkpoint()
    await put(old, 2)
    held = store.hold("create", "checkpoints/")
    checkpoint = asyncio.ensure_future(old.checkpoint())
    await held.arrived()
    new = await open_database(below)
    for i in range(checkpoints_of_successor):
        await put(new, 10 + i, bytes([i]) * 3000)
        await new.checkpoint()
        await new.collect()
    held.release()
    await checkpoint
    await old.collect()
    expected = dump(new)
    newest = await newest_checkpoint(below)
    assert newest is not None
    assert newest.position.epoch == (2 if checkpoints_of_successor else 1)
    async with opened(copy.deepcopy(below)) as again:
        assert dump(again) == expected
    await export_state(below, tmp_path / "a.db")
    for i in range(2):
        await put(new, 20 + i)
        await new.checkpoint()
    await new.collect()
    await check_tidy(below)
    await old.close()
    await new.close()


async def test_owners_that_replace_each_other_at_random_moments_lose_nothing() -> None:
    for seed in range(25):
        random = Random(seed)
        below = MemoryStore()
        owners: list[Database] = []
        stores: list[FaultyStore] = []
        expected: dict[str, Any] = {}
        for step in range(40):
            if not owners or random.random() < 0.1:
                store = FaultyStore(below, seed=seed * 100 + step, fail_before=0.0)
                owner = await Database.open(
                    store,
                    [ITEMS],
                    clock=ManualClock(seed=1000 * seed + step),
                    config=lazy(
                        keep_checkpoints=random.choice((1, 2, 3)),
                        retain_history=random.choice((None, None, 100)),
                        chunk_size=8192,
                    ),
                )
                assert not expected or dump(owner) == expected, f"seed {seed}, step {step}"
                owners.append(owner)
                stores.append(store)
            choice = random.choice(owners)
            store = stores[owners.index(choice)]
            what = random.choice("pppcgg")
            # A commit is repeated until it succeeds, and nobody moves the clock for that here.
            store.fail_before = store.fail_after = 0.0 if what == "p" else 0.1
            try:
                match what:
                    case "p":
                        await put(choice, random.randrange(30), random.randbytes(2000))
                        expected = dump(choice)
                    case "c":
                        await choice.checkpoint()
                    case _:
                        await choice.collect()
            except (Fenced, StoreUnavailable):
                pass
            except CorruptStore as error:
                raise AssertionError(f"seed {seed}, step {step}") from error
            newest = await newest_checkpoint(below)
            if newest is not None:
                contents = Contents.from_json("checkpoint", newest.content)
                assert contents.chunk_keys() <= set(await keys(below, "chunks/")), f"seed {seed}"
        for store in stores:
            store.heal()
        for owner in owners:
            await owner.close(timeout=0)
        async with opened(below) as last:
            assert dump(last) == expected, f"seed {seed}"


# -- chunks of our own epoch ---------------------------------------------------------------------


async def test_a_collection_amid_an_upload_spares_what_is_being_uploaded() -> None:
    below = MemoryStore()
    store = FaultyStore(below)
    database = await open_database(store, config=lazy(chunk_size=4096))
    for i in range(3):
        await put(database, i)
        await database.checkpoint()
    for i in range(20):
        await put(database, i, Random(i).randbytes(3000))
    held = store.hold("put", "chunks/", skip=3, after=True)
    checkpoint = asyncio.ensure_future(database.checkpoint())
    await held.arrived()
    await database.collect()
    held.release()
    await checkpoint
    await check_complete(below)
    await database.collect()
    await check_tidy(below)
    await database.close()


async def test_a_collection_while_a_checkpoint_waits_to_be_published_spares_its_chunks() -> None:
    below = MemoryStore()
    store = FaultyStore(below)
    database = await open_database(store)
    for i in range(3):
        await put(database, i)
        await database.checkpoint()
    await put(database, 4, bytes(3000))
    held = store.hold("create", "checkpoints/")
    checkpoint = asyncio.ensure_future(database.checkpoint())
    await held.arrived()
    await database.collect()
    held.release()
    await checkpoint
    await check_complete(below)
    await database.close()


async def test_a_manifest_whose_publication_seemed_to_fail_is_complete_when_it_appears() -> None:
    below = MemoryStore()
    store = FaultyStore(below)
    database = await open_database(store, config=lazy(keep_checkpoints=3))
    for i in range(2):
        await put(database, i)
        await database.checkpoint()
    await put(database, 5, bytes(3000))
    held = store.hold("create", "checkpoints/")
    given_up = asyncio.ensure_future(database.checkpoint())
    await held.arrived()
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    await put(database, 6, b"x" * 3000)
    await database.checkpoint()
    await database.collect()
    held.release()  # now the manifest arrives
    await store.settle()
    assert len([checkpoint async for checkpoint in checkpoints(below)]) == 4
    await check_complete(below)
    for i in range(3):
        await put(database, i)
        await database.checkpoint()
    await database.collect()
    await check_tidy(below, keep=3)
    await database.close()


async def test_chunks_of_an_upload_that_failed_go_with_the_next_checkpoint() -> None:
    below = MemoryStore()
    store = FaultyStore(below)
    database = await open_database(store, config=lazy(chunk_size=4096))
    for i in range(20):
        await put(database, i, Random(i).randbytes(3000))
    store.fail("put", "chunks/", skip=5, times=math.inf)
    with pytest.raises(StoreUnavailable):
        await database.checkpoint()
    left = set(await keys(below, "chunks/"))
    assert left
    store.heal()
    for i in range(2):
        await put(database, i)
        await database.checkpoint()
    await database.collect()
    await check_tidy(below)
    assert not left & set(await keys(below, "chunks/"))
    await database.close()


async def test_no_name_is_used_twice_so_a_late_deletion_meets_nothing_new() -> None:
    """A deletion whose answer was lost is repeated by clients, and may happen much later."""
    below = MemoryStore()
    database = await open_database(below, config=lazy(keep_checkpoints=1, chunk_size=4096))
    deleted: set[str] = set()
    for value in (b"one", b"two") * 4:
        before = set(await keys(below, "chunks/"))
        await put(database, 1, value * 500)
        await database.checkpoint()
        await database.collect()
        now = set(await keys(below, "chunks/"))
        deleted |= before - now
        assert not deleted & now
        await below.delete(deleted)
        await check_complete(below)
    assert deleted
    await database.close()


async def test_what_a_newer_version_or_somebody_else_put_there_stays() -> None:
    below = MemoryStore()
    foreign = ["chunks/9999999999-" + "0" * 64, "journal/README", "payloads/x", "other/0000000001"]
    for key in foreign:
        await below.create(key, b"?")
    async with opened(below) as database:
        for i in range(4):
            await put(database, i)
            await database.checkpoint()
        await database.collect()
    assert set(foreign) <= set(await keys(below, ""))


# -- time ----------------------------------------------------------------------------------------


async def test_steady_time_does_not_follow_a_clock_that_jumps_ahead() -> None:
    clock = ManualClock()
    start = clock.now_ms()
    time = SteadyTime(clock)
    await clock.advance(10)
    assert time.now_ms() == start + 10_000
    clock.shift_wall_clock(3600)
    assert time.now_ms() == start + 10_000
    clock.shift_wall_clock(-7200)
    assert time.now_ms() == start + 10_000 - 3600_000
    clock.shift_wall_clock(3600)
    await clock.advance(10)
    assert time.now_ms() == start + 20_000


def test_settings_are_checked() -> None:
    for bad in (
        {"collection_rate": 0},
        {"collection_rate": -1.0},
        {"collection_rate": math.nan},
        {"retain_history": -1},
        {"retain_history": math.nan},
        {"retain_history": "7 days"},
    ):
        with pytest.raises(InvalidArgument):
            DatabaseConfig(**bad)  # type: ignore[arg-type]
    DatabaseConfig(collection_rate=math.inf, retain_history=math.inf)
