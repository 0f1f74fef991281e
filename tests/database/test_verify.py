"""Verifying finds every damage, names the object, and never cries wolf."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from taquba.database import verify
from taquba.objectstore import MemoryStore

from .harness import keys, opened, put

pytestmark = pytest.mark.anyio


async def _healthy() -> MemoryStore:
    """Two epochs, two checkpoints, some entries after them."""
    store = MemoryStore()
    async with opened(store) as database:
        for number in range(20):
            await put(database, number, b"value" * number)
        await database.checkpoint()
    async with opened(store) as database:
        for number in range(20, 30):
            await put(database, number, b"value" * number)
        await database.checkpoint()
        for number in range(30, 40):
            await put(database, number, b"value" * number)
        await database.checkpoint()
        for number in range(40, 50):
            await put(database, number, b"value" * number)
    return store


async def test_a_healthy_store_is_clean() -> None:
    store = await _healthy()
    report = await verify(store)
    assert report.findings == ()
    assert report.settled
    assert [checkpoint.outcome for checkpoint in report.checkpoints] == [
        "replayed from",
        "compared",
    ]
    assert report.entries == report.replayed == 20


def _flip(data: bytes) -> bytes:
    place = len(data) * 2 // 3
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


KINDS = {
    "old epoch entry": ("journal/", 0),
    "newest epoch entry": ("journal/", 1),
    "first kept entry": ("journal/", 2),
    "entry before the newest checkpoint": ("journal/", 11),
    "first entry after it": ("journal/", 12),
    "entry of the tail": ("journal/", -2),
    "older manifest": ("checkpoints/", 0),
    "newest manifest": ("checkpoints/", -1),
    "chunk": ("chunks/", -1),
    "another chunk": ("chunks/", 0),
}


async def _key(store: MemoryStore, kind: str) -> str:
    prefix, place = KINDS[kind]
    return (await keys(store, prefix))[place]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "mutate",
    [_flip, lambda data: data[:-3], lambda data: b"", lambda data: data + b"x"],
    ids=["flipped", "truncated", "emptied", "appended"],
)
async def test_a_damaged_object_is_named(kind: str, mutate: Callable[[bytes], bytes]) -> None:
    store = await _healthy()
    key = await _key(store, kind)
    await store.put(key, mutate(await store.get(key)))
    report = await verify(store)
    assert [finding.key for finding in report.findings] == [key], report.findings
    assert report.findings[0].meaning


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "manifest" not in kind])
async def test_a_missing_object_is_named(kind: str) -> None:
    store = await _healthy()
    key = await _key(store, kind)
    await store.delete([key])
    report = await verify(store)
    assert [finding.key for finding in report.findings] == [key], report.findings


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("first kept entry", "entry of the tail"),
        ("old epoch entry", "newest epoch entry"),
        ("newest epoch entry", "first kept entry"),
        ("older manifest", "newest manifest"),
        ("chunk", "another chunk"),
        ("first kept entry", "chunk"),
    ],
)
async def test_swapped_objects_are_both_named(one: str, other: str) -> None:
    store = await _healthy()
    first, second = await _key(store, one), await _key(store, other)
    a, b = await store.get(first), await store.get(second)
    await store.put(first, b)
    await store.put(second, a)
    report = await verify(store)
    assert {finding.key for finding in report.findings} == {first, second}, report.findings


async def test_every_damage_of_a_tail_is_named() -> None:
    """The chain is broken at the first; the others are found by looking at each by itself."""
    store = MemoryStore()
    async with opened(store) as database:
        for number in range(80):
            await put(database, number)
    names = await keys(store, "journal/")
    await store.put(names[10], b"damaged")
    await store.put(names[40], _flip(await store.get(names[40])))
    await store.delete([names[70], names[71], names[72]])
    report = await verify(store)
    assert [finding.key for finding in report.findings] == [names[10], names[40], names[70]]
    assert "the 2 after it" in report.findings[2].reason
    assert not report.settled


async def test_a_log_whose_beginning_is_gone_is_one_finding() -> None:
    store = MemoryStore()
    async with opened(store) as database:
        for number in range(80):
            await put(database, number)
    names = await keys(store, "journal/")
    await store.delete(names[:60])
    report = await verify(store)
    assert [finding.key for finding in report.findings] == [names[0]]
