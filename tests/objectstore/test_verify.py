"""verify_store: unsafe stores are found out by name, and safe ones are not wronged."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from taquba.clock import ManualClock
from taquba.errors import StoreAccessDenied, StoreError, StoreUnavailable, UnsafeStore
from taquba.objectstore import PROBE_PREFIX, MemoryStore, RetryPolicy, verify_store
from taquba.testing import FaultyStore
from tests.objectstore.harness import HastyClock, keys

pytestmark = pytest.mark.anyio


class Overwriting(MemoryStore):
    async def create(self, key: str, data: bytes) -> None:
        await self.put(key, data)


@pytest.fixture
def clock() -> HastyClock:
    return HastyClock()


async def test_a_probe_is_created_twice_and_removed(clock: HastyClock) -> None:
    store = FaultyStore(MemoryStore())
    probes: set[str] = set()
    for _ in range(2):
        del store.requests[:]
        await verify_store(store, clock=clock)
        assert [(request.operation, request.fate) for request in store.requests] == [
            ("create", "done"),
            ("create", "refused"),
            ("delete", "done"),
        ]
        (probe,) = {request.key for request in store.requests if request.operation == "create"}
        assert re.fullmatch(rf"{PROBE_PREFIX}[0-9]{{15}}-[0-9a-f]{{32}}", probe)
        probes.add(probe)
    assert len(probes) == 2, "a late repetition of a create would meet another probe's deletion"
    assert await keys(store) == []


async def test_the_probes_key_tells_how_old_it_is() -> None:
    clock = ManualClock(datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC))
    store = FaultyStore(MemoryStore())
    await verify_store(store, clock=clock)
    assert store.requests[0].key.startswith(f"{PROBE_PREFIX}001700000000000-")


async def test_a_store_that_overwrites(clock: HastyClock) -> None:
    store = Overwriting()
    for _ in range(2):
        with pytest.raises(UnsafeStore, match="If-None-Match") as caught:
            await verify_store(store, clock=clock)
        assert repr(store) in str(caught.value)
        assert await keys(store) == []


async def test_a_store_that_began_to_overwrite(clock: HastyClock) -> None:
    store = Overwriting()
    await store.put("journal/00000000000000000000", b"from a better time")
    with pytest.raises(UnsafeStore):
        await verify_store(store, clock=clock)
    assert await keys(store) == ["journal/00000000000000000000"]


@pytest.mark.parametrize("kind", [StoreAccessDenied, StoreUnavailable])
async def test_a_probe_that_cannot_be_removed_changes_nothing(
    clock: HastyClock, kind: type[StoreError], caplog: pytest.LogCaptureFixture
) -> None:
    """Credentials may be such that nothing can be deleted, and an opener may be killed."""
    caplog.set_level("INFO", "taquba.objectstore")
    for below in (MemoryStore(), Overwriting()):
        store = FaultyStore(below)
        store.fail("delete", error=kind("may not delete"))
        if isinstance(below, Overwriting):
            with pytest.raises(UnsafeStore):
                await verify_store(store, clock=clock)
        else:
            await verify_store(store, clock=clock)
        assert len(await keys(store, PROBE_PREFIX)) == 1
        assert "may not delete" in caplog.messages[-1]
        await verify_store_quietly(store, clock)
        assert len(await keys(store, PROBE_PREFIX)) == 1, "a leftover is in somebody's way"


async def verify_store_quietly(store: FaultyStore, clock: HastyClock) -> None:
    with suppress(UnsafeStore):
        await verify_store(store, clock=clock)


@pytest.mark.parametrize("after", [False, True])
async def test_lost_answers(clock: HastyClock, after: bool) -> None:
    store = FaultyStore(MemoryStore())
    store.fail("create", after=after, times=3)
    await verify_store(store, clock=clock)
    store.heal()
    store.fail("create", times=2)
    with pytest.raises(StoreUnavailable):
        await verify_store(store, clock=clock, policy=RetryPolicy(attempts=2))


async def test_an_overwriting_store_with_lost_answers(clock: HastyClock) -> None:
    store = FaultyStore(Overwriting())
    store.fail("create", after=True, times=2)
    with pytest.raises(UnsafeStore):
        await verify_store(store, clock=clock)
