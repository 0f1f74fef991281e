"""RetryingStore: what is repeated, how long, and whom a create believes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

import pytest

from taquba.clock import ManualClock
from taquba.errors import (
    BucketNotFound,
    InvalidArgument,
    InvalidType,
    ObjectExists,
    ObjectNotFound,
    StoreAccessDenied,
    StoreUnavailable,
)
from taquba.objectstore import MemoryStore, ObjectInfo, RetryingStore, RetryPolicy
from taquba.testing import FaultyStore
from tests.objectstore.harness import drive, keys

pytestmark = pytest.mark.anyio

POLICY = RetryPolicy(attempts=4, first_delay=1, max_delay=3, total=100)


class Slept(ManualClock):
    """Notes every wait, and draws the longest jitter."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await super().sleep(seconds)

    def random(self) -> float:
        return 1 - 2**-53


@pytest.fixture
def clock() -> Slept:
    return Slept()


@pytest.fixture
def faulty() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def store(faulty: FaultyStore, clock: Slept) -> RetryingStore:
    return RetryingStore(faulty, clock=clock, policy=POLICY)


async def test_every_request_is_repeated(
    store: RetryingStore, faulty: FaultyStore, clock: Slept
) -> None:
    requests = {
        "create": lambda: store.create("a", b"12"),
        "get": lambda: store.get("a"),
        "get_range": lambda: store.get_range("a", 0, 1),
        "put": lambda: store.put("b", b"3"),
        "list": lambda: keys(store),
        "delete": lambda: store.delete(key for key in ["a", "b"]),
    }
    results = []
    for operation, request in requests.items():
        faulty.fail(operation, times=2)  # type: ignore[arg-type]
        results.append(await drive(clock, request()))
        assert faulty.count(operation) >= 3 or operation == "create"  # type: ignore[arg-type]
    assert results == [None, b"12", b"1", None, ["a", "b"], None]
    assert await keys(faulty.store) == []


async def test_waits_grow_to_a_bound_and_end(
    store: RetryingStore, faulty: FaultyStore, clock: Slept
) -> None:
    faulty.fail("get", times=math.inf)
    with pytest.raises(StoreUnavailable, match="asked for"):
        await drive(clock, store.get("a"))
    assert faulty.count("get") == POLICY.attempts
    assert clock.waits == pytest.approx([1, 2, 3])


async def test_waits_are_drawn_evenly_from_nothing_to_the_bound() -> None:
    class Half(Slept):
        def random(self) -> float:
            return 0.5

    clock, faulty = Half(), FaultyStore(MemoryStore())
    store = RetryingStore(faulty, clock=clock, policy=POLICY)
    faulty.fail("get", times=math.inf)
    with pytest.raises(StoreUnavailable):
        await drive(clock, store.get("a"))
    assert clock.waits == pytest.approx([0.5, 1, 1.5])


async def test_total_time_is_bounded(faulty: FaultyStore, clock: Slept) -> None:
    policy = RetryPolicy(attempts=10**6, first_delay=1, max_delay=3, total=10)
    store = RetryingStore(faulty, clock=clock, policy=policy)
    faulty.fail("put", times=math.inf)
    with pytest.raises(StoreUnavailable):
        await drive(clock, store.put("a", b"1"))
    assert clock.waits == pytest.approx([1, 2, 3, 3])
    assert clock.monotonic() <= 10


async def test_a_long_fight_does_not_overflow(faulty: FaultyStore) -> None:
    clock = ManualClock()
    policy = RetryPolicy(attempts=2000, first_delay=1e-9, max_delay=1e-6, total=1e9)
    store = RetryingStore(faulty, clock=clock, policy=policy)
    faulty.fail("get", times=math.inf)
    with pytest.raises(StoreUnavailable):
        await drive(clock, store.get("a"))
    assert faulty.count("get") == 2000


@pytest.mark.parametrize("error", [StoreAccessDenied("no"), BucketNotFound("no")])
async def test_what_cannot_get_better_is_raised_at_once(
    store: RetryingStore, faulty: FaultyStore, clock: Slept, error: Exception
) -> None:
    faulty.fail(error=error, times=math.inf)  # type: ignore[arg-type]
    for request in (
        store.get("a"),
        store.create("a", b"1"),
        store.put("a", b"1"),
        store.delete(["a"]),
        keys(store),
    ):
        with pytest.raises(type(error)):
            await request
    assert len(faulty.requests) == 5
    assert clock.waits == []


async def test_missing_is_an_answer(store: RetryingStore, clock: Slept) -> None:
    with pytest.raises(ObjectNotFound):
        await store.get("a")
    assert clock.waits == []


# -- create ----------------------------------------------------------------------------------


@pytest.mark.parametrize("losses", [1, 2, 3])
async def test_a_create_whose_answers_were_lost_succeeds(
    store: RetryingStore, faulty: FaultyStore, clock: Slept, losses: int
) -> None:
    faulty.fail("create", after=True, times=losses)
    await drive(clock, store.create("a", b"mine"))
    assert await faulty.store.get("a") == b"mine"
    assert faulty.count("create") == 1, "the read-back settles it, without another create"
    assert clock.waits == []


async def test_a_resent_create_that_meets_its_own_object_succeeds(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    await faulty.store.create("a", b"mine")  # as a client does that resends by itself
    await store.create("a", b"mine")


async def test_a_lost_create_of_somebody_else_is_told_apart(
    store: RetryingStore, faulty: FaultyStore, clock: Slept
) -> None:
    faulty.fail("create")
    await faulty.store.create("a", b"theirs")
    with pytest.raises(ObjectExists, match="other bytes"):
        await drive(clock, store.create("a", b"mine"))
    with pytest.raises(ObjectExists) as caught:
        await store.create("a", b"mine")
    assert (caught.value.operation, caught.value.key) == ("create", "a")
    assert await faulty.store.get("a") == b"theirs"


async def test_only_the_creator_hears_of_success(clock: Slept) -> None:
    for seed in range(60):
        faulty = FaultyStore(MemoryStore(), seed=seed, fail_before=0.2, fail_after=0.3)
        writers = [
            RetryingStore(faulty, clock=clock, policy=RetryPolicy(attempts=50, total=1e6))
            for _ in range(4)
        ]
        outcomes = await drive(
            clock,
            _gather(writer.create("a", b"%d" % number) for number, writer in enumerate(writers)),
        )
        assert outcomes.count(None) == 1
        assert [type(o) for o in outcomes if o is not None] == [ObjectExists] * 3
        assert await faulty.store.get("a") == b"%d" % outcomes.index(None)


async def test_a_read_back_that_fails_is_repeated_with_the_create(
    store: RetryingStore, faulty: FaultyStore, clock: Slept
) -> None:
    faulty.fail("create", after=True)
    faulty.fail("get", times=2)
    await drive(clock, store.create("a", b"mine"))
    assert faulty.count("create") == 3
    assert faulty.count("get") == 3


async def test_a_create_that_never_got_there_is_repeated(
    store: RetryingStore, faulty: FaultyStore, clock: Slept
) -> None:
    faulty.fail("create", times=3)
    await drive(clock, store.create("a", b"mine"))
    assert await faulty.store.get("a") == b"mine"


async def test_a_create_in_doubt_ends_as_unavailable(
    store: RetryingStore, faulty: FaultyStore, clock: Slept
) -> None:
    faulty.fail("create", times=math.inf)
    with pytest.raises(StoreUnavailable):
        await drive(clock, store.create("a", b"mine"))
    assert faulty.count("create") == POLICY.attempts


async def test_exists_and_yet_absent_is_repeated(
    store: RetryingStore, faulty: FaultyStore, clock: Slept
) -> None:
    faulty.fail("create", error=ObjectExists("says the store"))
    await drive(clock, store.create("a", b"mine"))
    assert await faulty.store.get("a") == b"mine"
    faulty.fail("create", error=ObjectExists("says the store"), times=math.inf)
    with pytest.raises(StoreUnavailable, match="both as present and as absent"):
        await drive(clock, store.create("b", b"mine"))


async def test_a_denied_read_back_is_raised(store: RetryingStore, faulty: FaultyStore) -> None:
    faulty.fail("create", after=True)
    faulty.fail("get", error=StoreAccessDenied("may not read"))
    with pytest.raises(StoreAccessDenied):
        await store.create("a", b"mine")


# -- list ------------------------------------------------------------------------------------


class Pages(MemoryStore):
    """Listings break off after two entries, as often as it is told to."""

    def __init__(self, failures: float) -> None:
        super().__init__()
        self.failures = failures
        self.starts: list[str] = []
        self.entries = 2

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        self.starts.append(start_after)
        left = self.entries
        async for info in super().list(prefix, start_after):
            if not left and self.failures > 0:
                self.failures -= 1
                raise StoreUnavailable("the next page failed")
            left -= 1
            yield info


async def test_a_listing_goes_on_after_the_last_key_seen(clock: Slept) -> None:
    pages = Pages(failures=3)
    for number in range(7):
        await pages.put(f"p/{number}", b"x" * number)
    store = RetryingStore(pages, clock=clock, policy=POLICY)

    async def listing() -> list[ObjectInfo]:
        return [info async for info in store.list("p/")]

    assert await drive(clock, listing()) == [ObjectInfo(f"p/{n}", n) for n in range(7)]
    assert pages.starts == ["", "p/1", "p/3", "p/5"]


async def test_a_listing_that_makes_progress_is_not_bounded(clock: Slept) -> None:
    pages = Pages(failures=math.inf)
    for number in range(40):
        await pages.put(f"{number:02d}", b"")
    store = RetryingStore(pages, clock=clock, policy=POLICY)
    assert len(await drive(clock, keys(store))) == 40
    pages.entries = 0
    with pytest.raises(StoreUnavailable):
        await drive(clock, keys(store))


async def test_leaving_a_listing_closes_the_one_below(clock: Slept) -> None:
    closed = []

    class Endless(MemoryStore):
        async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
            try:
                while True:
                    yield ObjectInfo("a", 0)
            finally:
                closed.append(True)

    entries = RetryingStore(Endless(), clock=clock).list("")
    async for _ in entries:
        break
    await entries.aclose()  # type: ignore[attr-defined]
    assert closed == [True]


# -- the rest --------------------------------------------------------------------------------


async def test_cancelling_ends_the_waiting(
    store: RetryingStore, faulty: FaultyStore, clock: Slept
) -> None:
    faulty.fail("get", times=math.inf)
    task = asyncio.ensure_future(store.get("a"))
    await clock.advance(0)
    assert clock.sleeping == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert faulty.count("get") == 1


async def test_bad_policies_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="attempts is 0"):
        RetryPolicy(attempts=0)
    with pytest.raises(InvalidArgument, match="max_delay"):
        RetryPolicy(max_delay=-1)
    with pytest.raises(InvalidType, match="total"):
        RetryPolicy(total="1 s")  # type: ignore[arg-type]


async def test_data_must_be_bytes(store: RetryingStore, faulty: FaultyStore) -> None:
    with pytest.raises(InvalidType, match="give bytes"):
        await store.create("a", "text")  # type: ignore[arg-type]
    assert faulty.requests == []


async def _gather(requests: object) -> list[object]:
    return list(await asyncio.gather(*requests, return_exceptions=True))  # type: ignore[misc]
