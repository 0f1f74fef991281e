"""A prefix that holds other things: harmless where the names differ, named where they do not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from taquba.clock import ManualClock
from taquba.database import Database, DatabaseConfig
from taquba.errors import CommitUnknown, CorruptStore, StoreError
from taquba.journal import newest_checkpoint
from taquba.journal._position import entry_key
from taquba.objectstore import LocalStore, MemoryStore, RetryingStore, RetryPolicy

from .harness import ITEMS, dump, keys, open_database, opened, put

pytestmark = pytest.mark.anyio

HARMLESS = [
    "README.txt",
    "journal/1",
    "journal/README",
    "journal/0000000000000000000x",
    "journal/000000000000000000001",
    "journal/00000000000000000001.bak",
    "journal/old/00000000000000000001",
    "checkpoints/notes.json",
    "checkpoints/00000000000000000099",
    "checkpoints/99999999999999999999.json.bak",
    "checkpoints/old/00000000000000000099.json",
    "chunks/notes",
    "chunks/0000000001-of-somebody-else",
    "chunks/old/0000000001",
    "probes/left-by-somebody",
    "another-application/journal/00000000000000000001",
]
"""Names that no object of ours has."""

COLLECTING = DatabaseConfig(
    checkpoint_bytes=2**40, checkpoint_entries=2**40, keep_checkpoints=1, chunk_size=4096
)


async def contents(store: MemoryStore) -> dict[str, bytes]:
    return {key: await store.get(key) for key in await keys(store, "")}


async def add_foreign(store: MemoryStore) -> dict[str, bytes]:
    foreign = {key: f"this is {key}".encode() for key in HARMLESS}
    for key, data in foreign.items():
        await store.put(key, data)
    return foreign


@pytest.mark.parametrize("when", ["before", "between"])
async def test_names_that_are_not_ours_are_left_alone(when: str) -> None:
    store = MemoryStore()
    foreign = await add_foreign(store) if when == "before" else {}
    async with opened(store, config=COLLECTING) as database:
        for number in range(20):
            await put(database, number, b"x" * 500)
        await database.checkpoint()
    if when == "between":
        foreign = await add_foreign(store)
    for round_ in range(3):
        async with opened(store, config=COLLECTING) as database:
            assert len(dump(database)["items"]) == 20
            await put(database, round_, b"y" * 600 * (round_ + 1))
            await database.checkpoint()
            state = dump(database)
    async with opened(store) as database:
        assert dump(database) == state
    after = await contents(store)
    assert {key: after.get(key) for key in foreign} == foreign, "not ours to change or delete"


async def three_rows() -> MemoryStore:
    store = MemoryStore()
    async with opened(store) as database:
        for number in range(3):
            await put(database, number)
    return store


async def tail(store: MemoryStore) -> int:
    """The seq that comes next."""
    listed = await keys(store, "journal/")
    return int(listed[-1].removeprefix("journal/")) + 1


@pytest.mark.parametrize("further", [0, 1, 5, 16, 1000])
async def test_a_foreign_object_at_or_behind_the_tail_is_named(further: int) -> None:
    """Under a name of ours, it cannot be told from a damaged entry, which may have counted."""
    store = await three_rows()
    key = entry_key(await tail(store) + further)
    await store.put(key, b"a letter")
    before = await contents(store)
    with pytest.raises(CorruptStore, match=key):
        await open_database(store)
    assert await contents(store) == before, "nothing is repaired by guessing"
    await store.delete([key])
    async with opened(store) as database:
        assert len(dump(database)["items"]) == 3


@pytest.mark.parametrize(
    "data", [b"a letter", b"{}", b'{"format": "taquba-checkpoint"}', b"[1]", b"", b"\xff"]
)
async def test_a_foreign_object_in_the_place_of_a_checkpoint_is_named(data: bytes) -> None:
    store = await three_rows()
    key = "checkpoints/00000000000000000099.json"
    await store.put(key, data)
    before = await contents(store)
    with pytest.raises(CorruptStore, match=key) as caught:
        await open_database(store)
    assert caught.value.key == key
    assert await contents(store) == before
    await store.delete([key])
    async with opened(store) as database:
        assert len(dump(database)["items"]) == 3
    assert await newest_checkpoint(store) is None


async def test_a_foreign_object_that_a_writer_runs_into() -> None:
    """The commit is not acknowledged, and nothing that was acknowledged is lost."""
    store = MemoryStore()
    database = await open_database(store)
    await put(database, 1)
    key = entry_key(database.position.seq)
    await store.put(key, b"a letter")
    with pytest.raises(CorruptStore, match=key):
        await put(database, 2)
    with pytest.raises(CorruptStore, match=key):
        await put(database, 3)
    await database.close()
    assert await store.get(key) == b"a letter"
    with pytest.raises(CorruptStore, match=key):
        await open_database(store)
    await store.delete([key])
    async with opened(store) as database:
        assert [row[0] for row in dump(database)["items"]] == [1]


class _Telling(LocalStore):
    """Says when a create has failed. It works in threads, which know nothing of the clock."""

    failed: asyncio.Event

    async def create(self, key: str, data: bytes) -> None:
        try:
            await super().create(key, data)
        except StoreError:
            self.failed.set()
            raise


async def test_a_folder_in_the_place_of_an_entry(tmp_path: Path) -> None:
    """In a local folder: the name can neither be created nor read."""
    folder = _Telling(tmp_path)
    folder.failed = asyncio.Event()
    clock = ManualClock()
    store = RetryingStore(folder, clock=clock, policy=RetryPolicy(attempts=1))
    database = await Database.open(store, [ITEMS], clock=clock)
    await put(database, 1)
    key = entry_key(database.position.seq)
    (tmp_path / key).mkdir()
    waiting = asyncio.ensure_future(put(database, 2))
    await folder.failed.wait()
    closing = asyncio.ensure_future(database.close(timeout=5))
    while not closing.done():
        await clock.advance(1)
        await asyncio.sleep(0)
    with pytest.raises(CommitUnknown, match=key):
        await closing
    with pytest.raises(CommitUnknown, match=key):
        await waiting
    with pytest.raises(StoreError, match=f"{key} is a folder of other objects"):
        await Database.open(store, [ITEMS], clock=clock)
    (tmp_path / key).rmdir()
    database = await Database.open(store, [ITEMS], clock=clock)
    assert [row[0] for row in dump(database)["items"]] == [1]
    await database.close()
    await folder.close()
