"""Whatever happened, reopening gives exactly what was committed."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taquba.objectstore import MemoryStore

from .harness import EAGER, LAZY, dump, keys, open_database, opened, put

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("state")]

_KEYS = st.integers(0, 40)
_CHANGE = st.one_of(
    st.tuples(st.just("put"), _KEYS, st.binary(max_size=300)),
    st.tuples(st.just("delete"), _KEYS, st.just(b"")),
    st.tuples(st.just("pair"), _KEYS, st.binary(max_size=3)),
    st.tuples(st.just("fail"), _KEYS, st.just(b"")),
)
_ACT = st.one_of(
    st.lists(_CHANGE, min_size=1, max_size=8),
    st.sampled_from(["wait", "checkpoint", "crash", "close"]),
)


@given(acts=st.lists(_ACT, max_size=40), eager=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_reopening_gives_what_was_there(acts: list[object], eager: bool) -> None:
    async def play() -> None:
        store = MemoryStore()
        config = EAGER if eager else LAZY
        database = await open_database(store, config=config)
        for act in acts:
            match act:
                case "wait":
                    await database.barrier()
                case "checkpoint":
                    await database.checkpoint()
                case "crash" | "close":
                    await database.barrier()
                    before = dump(database)
                    if act == "close":
                        await database.close()
                    database = await open_database(store, config=config)
                    assert dump(database) == before
                case list():
                    _change(database, act)
                case _:
                    raise AssertionError(act)
        await database.barrier()
        before = dump(database)
        async with opened(store) as again:
            assert dump(again) == before

    asyncio.run(play())


def _change(database: object, changes: list[tuple[str, int, bytes]]) -> None:
    class Undo(Exception):
        pass

    try:
        with database.transaction() as tx:  # type: ignore[attr-defined]
            for kind, key, value in changes:
                match kind:
                    case "put":
                        tx.execute(
                            "INSERT INTO items VALUES (?, ?, NULL) ON CONFLICT (key) DO UPDATE"
                            " SET value = excluded.value",
                            (key, value),
                        )
                    case "delete":
                        tx.execute("DELETE FROM items WHERE key >= ?", (key,))
                    case "pair":
                        tx.execute(
                            "INSERT INTO pairs VALUES (?, ?) ON CONFLICT DO NOTHING",
                            (str(key), value.hex()),
                        )
                    case _:
                        raise Undo
    except Undo:
        pass


async def test_a_checkpoint_and_its_tail_equal_the_whole_journal() -> None:
    whole, short = MemoryStore(), MemoryStore()
    for store, config in ((whole, LAZY), (short, EAGER)):
        async with opened(store, config=config) as database:
            for i in range(200):
                await put(database, i % 37, bytes([i]) * 100, f"tag {i}" if i % 3 else None)
            if config is EAGER:
                await database.checkpoint()
                assert database.statistics().checkpoints >= 2
                await put(database, 1000, b"tail")
            else:
                await put(database, 1000, b"tail")
    async with opened(whole) as one, opened(short) as other:
        assert dump(one) == dump(other)
    assert len(await keys(short, "checkpoints/")) == 2
    assert len(await keys(whole, "checkpoints/")) == 0
    assert len(await keys(short, "journal/")) < len(await keys(whole, "journal/"))


async def test_a_reopened_store_counts_what_it_replayed_towards_the_next_checkpoint() -> None:
    store = MemoryStore()
    async with opened(store) as database:
        for i in range(50):
            await put(database, i, b"x" * 1000)
    async with opened(store, config=EAGER) as database:
        assert database.statistics().bytes_since_checkpoint > 50_000
        await _until_a_checkpoint(database)


async def _until_a_checkpoint(database: object) -> None:
    for _ in range(2000):
        if database.statistics().checkpoints:  # type: ignore[attr-defined]
            return
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: None)
    raise AssertionError("no checkpoint was taken")
