"""verify_store: unsafe stores are found out by name, and safe ones are not wronged."""

from __future__ import annotations

import pytest

from taquba.errors import StoreAccessDenied, StoreUnavailable, UnsafeStore
from taquba.objectstore import VERIFICATION_KEY, MemoryStore, RetryPolicy, verify_store
from taquba.testing import FaultyStore
from tests.objectstore.harness import HastyClock, keys

pytestmark = pytest.mark.anyio


class Overwriting(MemoryStore):
    async def create(self, key: str, data: bytes) -> None:
        await self.put(key, data)


@pytest.fixture
def clock() -> HastyClock:
    return HastyClock()


async def test_two_creates_and_then_one(clock: HastyClock) -> None:
    store = FaultyStore(MemoryStore())
    await verify_store(store, clock=clock)
    assert [request.fate for request in store.requests] == ["done", "refused"]
    await verify_store(store, clock=clock)
    assert [request.fate for request in store.requests] == ["done", "refused", "refused"]
    assert b"only once" in await store.get(VERIFICATION_KEY)


async def test_a_store_that_overwrites(clock: HastyClock) -> None:
    store = Overwriting()
    for _ in range(2):
        with pytest.raises(UnsafeStore, match="If-None-Match") as caught:
            await verify_store(store, clock=clock)
        assert repr(store) in str(caught.value)
        assert await keys(store) == []


async def test_a_store_that_began_to_overwrite(clock: HastyClock) -> None:
    store = Overwriting()
    await store.put(VERIFICATION_KEY, b"from a better time")
    with pytest.raises(UnsafeStore):
        await verify_store(store, clock=clock)


async def test_what_cannot_be_cleaned_up_is_unsafe_all_the_same(clock: HastyClock) -> None:
    store = FaultyStore(Overwriting())
    store.fail("delete", error=StoreAccessDenied("may not delete"))
    with pytest.raises(UnsafeStore):
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
