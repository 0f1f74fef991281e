"""Damaged objects of every kind, as `Queue.open` meets them: named, and never repaired."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable

import pytest

from taquba import Queue
from taquba.errors import CorruptStore, IncompatibleStore
from taquba.objectstore import MemoryStore

from .harness import LONG
from .judge import Contents, read_contents
from .workload import CONFIG

pytestmark = pytest.mark.anyio

Objects = dict[str, bytes]
Damage = Callable[[Objects, str], object]

FLIPS = 16
"""Places in an object at which a bit is flipped; forty times as many in a long run."""


async def objects_of(store: MemoryStore) -> Objects:
    return {info.key: await store.get(info.key) async for info in store.list("")}


async def store_of(objects: Objects) -> MemoryStore:
    store = MemoryStore()
    for key, data in objects.items():
        await store.put(key, data)
    return store


async def contents_of(objects: Objects) -> Contents:
    async with Queue.open(await store_of(objects), config=CONFIG) as queue:
        return await read_contents(queue)


@pytest.fixture(scope="module")
async def sound() -> Objects:
    """A store with several owners, checkpoints, and entries behind the newest one."""
    store = MemoryStore()
    for owner in range(3):
        async with Queue.open(store, config=CONFIG) as queue:
            for round_ in range(2):
                for number in range(4):
                    name = f"{owner}-{round_}-{number}"
                    await queue.enqueue("work", name.encode() * 500, job_id=name)
                    await queue.kv.put(f"key/{name}", b"value")
                claim = await queue.claim("work")
                assert claim is not None
                await queue.ack(claim)
                if owner < 2:
                    await queue._core.database.checkpoint()
    return await objects_of(store)


def keys_of(objects: Objects) -> dict[str, str]:
    """One object of each kind that an opening reads, by the name of the kind."""
    newest = max(key for key in objects if key.startswith("checkpoints/"))
    manifest = json.loads(objects[newest])
    entries = sorted(key for key in objects if key.startswith("journal/"))
    tail = [key for key in entries if int(key.removeprefix("journal/")) >= manifest["seq"]]
    epoch = manifest["epoch"]
    chunks = sorted(key for key in objects if key.startswith(f"chunks/{epoch:010d}-"))
    assert len(tail) > 10
    # The third owner's epoch entry comes first behind the second one's last checkpoint.
    ordinary = tail[1:]
    return {
        "the epoch entry": tail[0],
        "the first entry": ordinary[0],
        "an entry in the middle": ordinary[len(ordinary) // 2],
        "the newest entry": ordinary[-1],
        "the manifest": newest,
        "the first pack": chunks[0],
        "the last pack": chunks[-1],
    }


KINDS = [
    "the epoch entry",
    "the first entry",
    "an entry in the middle",
    "the newest entry",
    "the manifest",
    "the first pack",
    "the last pack",
]


def _cut(objects: Objects, key: str, part: float, less: int = 0) -> None:
    data = objects[key]
    objects[key] = data[: int(len(data) * part) - less]


def _exchange(objects: Objects, key: str) -> None:
    folder = key.partition("/")[0]
    others = [other for other in objects if other.startswith(f"{folder}/") and other != key]
    objects[key] = objects[min(others, key=lambda other: objects[other] == objects[key])]


DAMAGES: dict[str, Damage] = {
    "is empty": lambda objects, key: _cut(objects, key, 0),
    "is cut in half": lambda objects, key: _cut(objects, key, 0.5),
    "lacks its last byte": lambda objects, key: _cut(objects, key, 1, less=1),
    "has one byte more": lambda objects, key: objects.update({key: objects[key] + b"\0"}),
    "is something else": lambda objects, key: objects.update({key: b"\x7fELF" + bytes(200)}),
    "is another of its kind": _exchange,
    "is missing": lambda objects, key: objects.pop(key),
}

UNNOTICED = {("the newest entry", "is missing"), ("the manifest", "is missing")}
"""What nothing that is left refers to: see the two tests of it."""


async def _is_refused(damaged: Objects, key: str) -> str:
    """Open a damaged store; the message of the error, which names the object."""
    store = await store_of(damaged)
    with pytest.raises((CorruptStore, IncompatibleStore)) as caught:
        await Queue.open(store, config=CONFIG)
    assert await objects_of(store) == damaged, "something was written"
    message = str(caught.value)
    assert key in message, message
    if isinstance(caught.value, CorruptStore):
        assert caught.value.key.startswith(key)  # a folder where it may be any of them
        assert "Restore" in message or "restore" in message, message
    return message


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_object_that(kind: str, damage: str, sound: Objects) -> None:
    if (kind, damage) in UNNOTICED:
        return
    key = keys_of(sound)[kind]
    damaged = dict(sound)
    DAMAGES[damage](damaged, key)
    assert damaged != sound
    await _is_refused(damaged, key)
    assert len((await contents_of(sound)).jobs) == 24


@pytest.mark.parametrize("kind", KINDS)
async def test_a_flipped_bit(kind: str, sound: Objects) -> None:
    """Refused, unless the object means the same: compression has many words for one thing."""
    key = keys_of(sound)[kind]
    data = sound[key]
    step = max(1, len(data) // (FLIPS * 40 if LONG else FLIPS))
    for place in {*range(0, len(data), step), len(data) - 1}:
        bit = 1 << (place % 8)
        flipped = data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]
        damaged = {**sound, key: flipped}
        if "pack" in kind and _decompresses_to(flipped, data):
            assert await contents_of(damaged) == await contents_of(sound)
        else:
            await _is_refused(damaged, key)


def _decompresses_to(flipped: bytes, data: bytes) -> bool:
    try:
        return zlib.decompress(flipped) == zlib.decompress(data)
    except zlib.error:
        return False


async def test_a_newest_entry_that_is_missing_is_what_nobody_can_notice(sound: Objects) -> None:
    """Nothing refers to it; so it is as if its commit had never been."""
    key = keys_of(sound)["the newest entry"]
    before, after = await contents_of(sound), await contents_of(_without(sound, key))
    assert before != after
    assert after.jobs.keys() <= before.jobs.keys()


async def test_without_its_newest_manifest_a_store_opens_from_the_one_before(
    sound: Objects,
) -> None:
    key = keys_of(sound)["the manifest"]
    assert await contents_of(_without(sound, key)) == await contents_of(sound)


async def test_without_any_checkpoint_what_was_collected_is_missed(sound: Objects) -> None:
    damaged = {k: v for k, v in sound.items() if not k.startswith("checkpoints/")}
    await _is_refused(damaged, "journal/")


async def test_a_checkpoint_without_its_chunks(sound: Objects) -> None:
    damaged = {k: v for k, v in sound.items() if not k.startswith("chunks/")}
    await _is_refused(damaged, "chunks/")


@pytest.mark.parametrize("missing", [1, 3])
async def test_a_gap_in_the_journal(missing: int, sound: Objects) -> None:
    entries = sorted(key for key in sound if key.startswith("journal/"))
    first = entries.index(keys_of(sound)["an entry in the middle"])
    damaged = _without(sound, *entries[first : first + missing])
    message = await _is_refused(damaged, entries[first])
    assert "missing" in message


async def test_something_else_where_the_next_entry_would_be(sound: Objects) -> None:
    newest = int(keys_of(sound)["the newest entry"].removeprefix("journal/"))
    key = f"journal/{newest + 1:020d}"
    await _is_refused({**sound, key: b"not ours"}, key)


FOREIGN = [
    "README.txt",
    "other/thing",
    "journal/README",
    "journal/.keep",
    "journal/00000000000000000003.bak",
    "journal/3",
    "checkpoints/notes.json",
    "checkpoints/00000000000000000001.json.bak",
    "chunks/.keep",
    "chunks/0000000001-readme",
    "chunks/zzz",
]


async def test_foreign_things_in_the_prefix_are_left_alone(sound: Objects) -> None:
    """Also by collection, which deletes what is taquba's own and nobody needs."""
    foreign = {key: f"somebody's {key}".encode() for key in FOREIGN}
    assert await contents_of({**sound, **foreign}) == await contents_of(sound)
    store = await store_of({**sound, **foreign})
    async with Queue.open(store, config=CONFIG) as queue:
        for number in range(4):
            await queue.enqueue("work", b"more", job_id=f"more-{number}")
            await queue._core.database.checkpoint()
    after = await objects_of(store)
    assert {key: after.get(key) for key in foreign} == foreign


def _without(objects: Objects, *keys: str) -> Objects:
    return {key: data for key, data in objects.items() if key not in keys}
