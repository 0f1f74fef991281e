"""FaultyStore does what tests of all layers rely on."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress

import pytest

from taquba.errors import InvalidArgument, ObjectExists, StoreAccessDenied, StoreUnavailable
from taquba.objectstore import MemoryStore, ObjectStore
from taquba.testing import FaultyStore, ObjectStoreConformance
from tests.objectstore.harness import keys

pytestmark = pytest.mark.anyio


class TestFaultless(ObjectStoreConformance):
    rounds = 1
    largest = 1024

    @pytest.fixture(autouse=True)
    def _shared(self) -> None:
        self.memory = MemoryStore()

    async def open_store(self) -> ObjectStore:
        return FaultyStore(self.memory)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


async def test_before_and_after_the_effect(store: FaultyStore) -> None:
    store.fail("create")
    store.fail("put", after=True)
    with pytest.raises(StoreUnavailable):
        await store.create("a", b"1")
    with pytest.raises(StoreUnavailable):
        await store.put("b", b"12")
    assert await keys(store) == ["b"]
    await store.create("a", b"1")
    assert [(r.operation, r.key, r.size, r.fate) for r in store.requests] == [
        ("create", "a", 1, "failed before"),
        ("put", "b", 2, "failed after"),
        ("list", "", 0, "done"),
        ("create", "a", 1, "done"),
    ]


async def test_which_requests(store: FaultyStore) -> None:
    denied = StoreAccessDenied("no")
    store.fail("write", "journal/", error=denied, times=2, skip=1)
    await store.put("other", b"")
    await store.get("other")
    await store.put("journal/1", b"")
    for request in (store.create("journal/2", b""), store.delete(["journal/1"])):
        with pytest.raises(StoreAccessDenied):
            await request
    await store.delete(["journal/1"])
    assert store.count("write") == 5
    assert store.count("create", "journal/") == 1
    assert store.count("read") == 1
    assert store.count() == 6


async def test_refused_by_the_store_below(store: FaultyStore) -> None:
    await store.create("a", b"1")
    with pytest.raises(ObjectExists):
        await store.create("a", b"2")
    assert store.requests[-1].fate == "refused"


async def test_listings(store: FaultyStore) -> None:
    for name in "abc":
        await store.put(name, b"")
    store.fail("list")
    with pytest.raises(StoreUnavailable):
        await keys(store)
    store.fail("list", after=True)
    seen: list[str] = []

    async def listing() -> None:
        async for info in store.list(""):
            seen.append(info.key)

    with pytest.raises(StoreUnavailable):
        await listing()
    assert seen == ["a"]


@pytest.mark.parametrize("after", [False, True])
async def test_holding(store: FaultyStore, after: bool) -> None:
    held = store.hold("create", after=after, times=math.inf)
    tasks = [asyncio.ensure_future(store.create(name, b"1")) for name in "ab"]
    await held.arrived(2)
    assert [request.key for request in held.requests] == ["a", "b"]
    assert await keys(store) == (["a", "b"] if after else [])
    held.release()
    await asyncio.gather(*tasks)
    await store.create("c", b"1")
    assert await keys(store) == ["a", "b", "c"]


async def test_a_write_arrives_although_its_caller_is_gone(store: FaultyStore) -> None:
    held = store.hold("create")
    task = asyncio.ensure_future(store.create("a", b"1"))
    await held.arrived()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await keys(store) == []
    held.release()
    await store.settle()
    assert await keys(store) == ["a"]


async def test_closing_lets_go_what_is_held(store: FaultyStore) -> None:
    held = store.hold("create")
    task = asyncio.ensure_future(store.create("a", b"1"))
    await held.arrived()
    await store.close()
    await task
    assert await keys(store.store) == ["a"]


async def test_chances_are_repeatable_and_end_with_heal() -> None:
    def fates(seed: int) -> list[str]:
        async def run() -> list[str]:
            store = FaultyStore(MemoryStore(), seed=seed, fail_before=0.3, fail_after=0.3)
            for number in range(100):
                with suppress(StoreUnavailable):
                    await store.put(f"{number}", b"")
            return [request.fate for request in store.requests]

        return asyncio.run(run())

    first, again, other = await asyncio.gather(
        *(asyncio.to_thread(fates, seed) for seed in (1, 1, 2))
    )
    assert first == again != other
    assert {first.count(fate) // 15 for fate in ("failed before", "failed after", "done")} <= {1, 2}
    store = FaultyStore(MemoryStore(), fail_before=1)
    store.fail("put", times=math.inf)
    store.heal()
    await store.put("a", b"1")


async def test_bad_chances() -> None:
    for before, after in [(-0.1, 0), (0, -0.1), (0.6, 0.6)]:
        with pytest.raises(InvalidArgument, match="at most 1"):
            FaultyStore(MemoryStore(), fail_before=before, fail_after=after)
