"""No false alarm: whatever a store went through, verifying finds it clean.

A copy of all objects at any moment is what a crash of every process at that moment leaves.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterator

import pytest

from taquba.database import Database, DatabaseConfig, VerifyReport, verify
from taquba.errors import StoreUnavailable, TaqubaError
from taquba.journal import Kind, entry_key, read_entry
from taquba.journal._entry import encode_entry
from taquba.objectstore import MemoryStore, ObjectInfo

from .harness import open_database, opened, put
from .test_verify_damage import copied

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Being fenced is no news here."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


class _History:
    """Owners, replaced ones that go on, checkpoints at any time, and crashes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = MemoryStore()
        self.owners: list[Database] = []
        self.background: list[asyncio.Task[None]] = []
        self.config = DatabaseConfig(
            checkpoint_bytes=self.random.choice([3000, 20_000, 2**40]),
            checkpoint_entries=self.random.choice([5, 30, 2**40]),
            chunk_size=8192,
            pages_per_step=self.random.choice([1, 3, 100]),
            keep_checkpoints=self.random.choice([1, 2, 3]),
        )
        self.reports: list[VerifyReport] = []

    async def step(self) -> None:
        chance = self.random.random()
        if chance < 0.1 or not self.owners:
            self.owners.append(await open_database(self.store, config=self.config))
        elif chance < 0.25:
            self._later(self.random.choice(self.owners).checkpoint())
        elif chance < 0.3:
            owner = self.owners.pop(self.random.randrange(len(self.owners)))
            self._later(owner.close(timeout=0))
        elif chance < 0.6:
            for _ in range(self.random.randrange(20)):
                await asyncio.sleep(0)
            await self.crash()
        else:
            owner = self.owners[-1] if self.random.random() < 0.8 else self.owners[0]
            for _ in range(self.random.randint(1, 10)):
                self._later(self._put(owner))
                await asyncio.sleep(0)

    async def _put(self, owner: Database) -> None:
        number, size = self.random.randrange(100), self.random.randrange(300)
        await put(owner, number, self.random.randbytes(size))

    def _later(self, work: object) -> None:
        async def patiently() -> None:
            try:
                await work  # type: ignore[misc]
            except TaqubaError:
                pass  # replaced, or closed

        self.background.append(asyncio.ensure_future(patiently()))

    async def crash(self) -> None:
        """Verify what everything that runs would leave if it died now."""
        report = await verify(copied(self.store))
        assert report.findings == ()
        assert report.settled
        self.reports.append(report)

    async def end(self) -> None:
        await asyncio.gather(*self.background)
        for owner in self.owners:
            try:
                await owner.close()
            except TaqubaError:
                pass
        await self.crash()


@pytest.mark.parametrize("seed", range(25))
async def test_any_history_is_clean(seed: int) -> None:
    history = _History(seed)
    for _ in range(40):
        await history.step()
    await history.end()
    assert len(history.reports) > 1


async def test_histories_have_what_makes_them_hard() -> None:
    outcomes: set[str] = set()
    orphans: set[str] = set()
    for seed in range(12):
        history = _History(seed)
        for _ in range(40):
            await history.step()
        await history.end()
        for report in history.reports:
            outcomes |= {checkpoint.outcome for checkpoint in report.checkpoints}
            orphans |= {orphan.kind for orphan in report.survey.orphans}
    assert outcomes >= {"replayed from", "compared"}
    assert orphans & {"unnamed chunks", "entries below the cut"}


async def _late_manifest(entries_gone: bool) -> MemoryStore:
    """A replaced writer publishes a checkpoint after its successor has collected."""
    store = MemoryStore()
    async with opened(store) as database:
        for number in range(20):
            await put(database, number, b"x" * 500)
        await database.checkpoint()
        before = dict(store._objects)
        for number in range(5):
            await put(database, number, b"more")
    late = next(key for key in store._objects if key.startswith("checkpoints/"))
    for keep in (1, 1):
        async with opened(store, config=DatabaseConfig(keep_checkpoints=keep)) as database:
            await put(database, 1, b"newer")
            await database.checkpoint()
            await database._collector.collect()
    assert late not in store._objects
    await store.put(late, before[late])
    if entries_gone:
        for key, data in before.items():
            if key.startswith("chunks/") and key not in store._objects:
                await store.put(key, data)
    return store


@pytest.mark.parametrize("entries_gone", [False, True], ids=["chunks gone", "entries gone"])
async def test_a_manifest_that_comes_too_late_is_void(entries_gone: bool) -> None:
    store = await _late_manifest(entries_gone)
    report = await verify(store)
    assert report.findings == ()
    assert [checkpoint.outcome for checkpoint in report.checkpoints] == ["void", "replayed from"]
    assert "void checkpoints" in {orphans.kind for orphans in report.survey.orphans}


class _Lagging(MemoryStore):
    """Hides the newest checkpoint until it was asked for a second time."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self._objects, self._sorted = store._objects, store._sorted
        self._listings = 0

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        found = [info async for info in super().list(prefix, start_after)]
        if prefix == "checkpoints/":
            self._listings += 1
            if self._listings == 1:
                found.pop()
        for info in found:
            yield info


@pytest.mark.parametrize("entries_gone", [False, True], ids=["chunks gone", "entries gone"])
async def test_a_late_manifest_beside_a_new_one(entries_gone: bool) -> None:
    """The checkpoint that makes the other void is published while the store is read."""
    store = _Lagging(await _late_manifest(entries_gone))
    report = await verify(store)
    assert report.findings == ()
    assert [checkpoint.outcome for checkpoint in report.checkpoints] == ["void", "replayed from"]


async def test_the_same_of_the_newest_epoch_is_damage() -> None:
    store = MemoryStore()
    async with opened(store) as database:
        for number in range(20):
            await put(database, number, b"x" * 500)
        await database.checkpoint()
        await put(database, 1)
        await database.checkpoint()
    chunk = next(key for key in store._sorted if key.startswith("chunks/"))
    await store.delete([chunk])
    report = await verify(store)
    assert [finding.key for finding in report.findings] == [chunk]


class _Collecting(MemoryStore):
    """An owner that takes checkpoints and collects amid what a reader does."""

    def __init__(self, every: int, times: int) -> None:
        super().__init__()
        self.owner: Database | None = None
        self.every = every
        self.left = times
        self._reads = 0
        self._busy = False

    async def get(self, key: str) -> bytes:
        if self.owner is not None and self.left and not self._busy:
            self._reads += 1
            if self._reads % self.every == 0:
                self._busy = True
                self.left -= 1
                for number in range(3):
                    await put(self.owner, number, b"%d" % self._reads)
                await self.owner.checkpoint()
                await self.owner._collector.collect()
                self._busy = False
        return await super().get(key)


@pytest.mark.parametrize("every", [*range(1, 12), 15, 20])
async def test_an_owner_that_collects_amid_the_reading(every: int) -> None:
    store = _Collecting(every, times=5)
    owner = await open_database(store, config=DatabaseConfig(keep_checkpoints=1))
    for number in range(30):
        await put(owner, number, b"x" * number)
    await owner.checkpoint()
    for number in range(30):
        await put(owner, number, b"y" * number)
    store.owner = owner
    report = await verify(store)
    store.owner = None
    await owner.close()
    assert report.findings == ()
    # The last that was there when the reader came to it.
    assert report.position.seq >= report.first >= 46
    assert [checkpoint.outcome for checkpoint in report.checkpoints][-1] == "replayed from"


async def test_a_reader_that_is_overtaken_says_so() -> None:
    overtaken = 0
    for every in range(1, 12):
        store = _Collecting(every, times=3)
        owner = await open_database(store, config=DatabaseConfig(keep_checkpoints=1))
        for number in range(30):
            await put(owner, number, b"x" * number)
        await owner.checkpoint()
        store.owner = owner
        overtaken += (await verify(store)).overtaken
        store.owner = None
        await owner.close()
    assert overtaken > 5


async def test_an_owner_that_is_always_faster_is_an_error_and_no_damage() -> None:
    store = _Collecting(1, times=10**6)
    owner = await open_database(store, config=DatabaseConfig(keep_checkpoints=1))
    await put(owner, 1)
    await owner.checkpoint()
    store.owner = owner
    with pytest.raises(StoreUnavailable, match="less busy"):
        await verify(store)
    store.owner = None
    await owner.close()


async def test_an_owner_that_commits_without_end_does_not_keep_the_reader() -> None:
    store = MemoryStore()
    owner = await open_database(store)
    stop = asyncio.Event()

    async def work() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            await put(owner, number % 50, b"%d" % number)

    working = asyncio.ensure_future(work())
    report = await verify(store)
    assert report.findings == ()
    stop.set()
    await working
    await owner.close()
    assert (await verify(store)).settled


class _Growing(MemoryStore):
    """An owner that commits, and takes a checkpoint, when the reader lists the checkpoints."""

    owner: Database | None = None
    reader: asyncio.Task[object] | None = None
    listings = 0

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        owner = self.owner
        reading = asyncio.current_task() is self.reader
        if prefix == "checkpoints/" and owner is not None and reading:
            self.listings += 1
            await put(owner, 1, b"%d" % self.listings)
            await owner.checkpoint()
        async for info in super().list(prefix, start_after):
            yield info


async def test_a_log_that_grows_right_after_its_tail_was_read() -> None:
    store = _Growing()
    owner = await open_database(store, config=DatabaseConfig(keep_checkpoints=100))
    await put(owner, 1)
    await owner.checkpoint()
    store.owner, store.reader = owner, asyncio.current_task()
    report = await verify(store)
    store.owner = None
    await owner.close()
    assert report.findings == ()
    assert not report.settled


async def test_a_void_takeover_where_all_that_was_collected_had_been() -> None:
    """Then every number up to the oldest checkpoint has an entry, as if none were collected."""
    store = MemoryStore()
    config = DatabaseConfig(checkpoint_bytes=2**40, checkpoint_entries=2**40, keep_checkpoints=2)
    async with opened(store, config=config) as database:
        tail = database.position
        await put(database, 0)
        await database.checkpoint()
        for number in range(3):
            await put(database, number, b"later")
            await database.checkpoint()
        await database.collect()
        end = database.position
    left = {info.key async for info in store.list("journal/")}
    oldest = min([info.key async for info in store.list("checkpoints/")])
    gone = [
        seq
        for seq in range(
            tail.epochs[-1].resume_at, int(oldest[len("checkpoints/") : -len(".json")])
        )
        if entry_key(seq) not in left
    ]
    assert gone[0] == tail.epochs[-1].resume_at
    first = await read_entry(store, 0)
    assert first is not None
    for seq in gone:
        data, _ = encode_entry(
            kind=Kind.EPOCH,
            epoch=tail.epoch + 1,
            seq=seq,
            writer=bytes(16),
            previous=first.digest,
            committed_at_ms=0,
            window=tail.window,
            durable_before=seq,
            body=first.body,
        )
        await store.create(entry_key(seq), data)
    report = await verify(store)
    assert report.findings == ()
    assert report.settled
    assert report.position == end
    assert {checkpoint.outcome for checkpoint in report.checkpoints} == {
        "replayed from",
        "compared",
    }
