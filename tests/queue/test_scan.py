"""Scans of the key-value store within bounds, in either order."""

from __future__ import annotations

from typing import Any

import pytest

from taquba import Effects, Follower, Queue
from taquba.errors import InvalidArgument, InvalidType, ValueTooLarge
from taquba.queue import KeyValueReader
from tests.queue.harness import World

pytestmark = pytest.mark.anyio

KEYS = [b"a", b"k/1", b"k/2", b"k/3", b"k/4", b"k/5", b"l"]


@pytest.fixture(params=["owner", "follower"])
async def kv(world: World, queue: Queue, request: pytest.FixtureRequest) -> Any:
    for key in KEYS:
        await queue.kv.put(key, b"value of " + key)
    if request.param == "owner":
        yield queue.kv
        return
    async with Follower.open(world.store, clock=world.clock) as follower:
        yield follower.kv


async def keys(kv: KeyValueReader, *args: Any, **options: Any) -> list[bytes]:
    page = await kv.scan(*args, **options)
    assert not page.more
    streamed = [entry async for entry in kv.entries(*args, page_size=2, **options)]
    assert streamed == list(page.entries)
    assert all(value == b"value of " + key for key, value in page.entries)
    return [key for key, _ in page.entries]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"start_at": "k/2"}, [2, 3, 4, 5]),
        ({"start_after": "k/2"}, [3, 4, 5]),
        ({"end_at": "k/4"}, [1, 2, 3, 4]),
        ({"end_before": "k/4"}, [1, 2, 3]),
        ({"start_at": "k/2", "end_at": "k/4"}, [2, 3, 4]),
        ({"start_after": "k/2", "end_before": "k/4"}, [3]),
        ({"start_at": "k/2x", "end_before": "k/4x"}, [3, 4]),
        ({"start_after": b"k/2\0", "end_at": b"k/4\0"}, [3, 4]),
        ({"start_at": "k/3", "end_at": "k/3"}, [3]),
    ],
)
async def test_bounds(
    kv: KeyValueReader, bounds: dict[str, str | bytes], expected: list[int]
) -> None:
    """K15"""
    wanted = [b"k/%d" % number for number in expected]
    assert await keys(kv, "k/", **bounds) == wanted
    assert await keys(kv, "k/", descending=True, **bounds) == wanted[::-1]


@pytest.mark.parametrize(
    ("bounds", "count"),
    [
        ({"start_at": "a"}, 5),
        ({"end_at": "z"}, 5),
        ({"start_at": b"", "end_before": b"\xff"}, 5),
        ({"start_at": "l"}, 0),
        ({"end_before": "k"}, 0),
    ],
)
async def test_bounds_outside_the_prefix(
    kv: KeyValueReader, bounds: dict[str, str | bytes], count: int
) -> None:
    """K16"""
    assert len(await keys(kv, "k/", **bounds)) == count


@pytest.mark.parametrize(
    "bounds",
    [
        {"start_at": "k/4", "end_at": "k/2"},
        {"start_after": "k/3", "end_at": "k/3"},
        {"start_at": "k/3", "end_before": "k/3"},
        {"start_after": "k/3", "end_before": "k/3"},
    ],
)
async def test_empty_ranges(kv: KeyValueReader, bounds: dict[str, str]) -> None:
    """K17"""
    assert await keys(kv, "k/", **bounds) == []
    assert (await kv.scan("k/", limit=0, **bounds)).more is False  # type: ignore[arg-type]


async def test_descending_pages(kv: KeyValueReader) -> None:
    """K18"""
    found: list[bytes] = []
    end: bytes | None = None
    while True:
        page = await kv.scan(end_before=end, descending=True, limit=2)
        found += [key for key, _ in page.entries]
        if not page.more:
            break
        end = found[-1]
    assert found == KEYS[::-1]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("descending", [False, True])
async def test_entries_come_in_order_whatever_the_pages(
    kv: KeyValueReader, size: int, descending: bool
) -> None:
    """K19"""
    found = [key async for key, _ in kv.entries(page_size=size, descending=descending)]
    assert found == (KEYS[::-1] if descending else KEYS)


async def test_no_page_is_read_before_it_is_wanted(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K19"""
    for key in KEYS:
        await queue.kv.put(key, b"")
    pages = 0
    rows = queue.kv._source.rows

    def counted(sql: str, parameters: Any = ()) -> Any:
        nonlocal pages
        pages += 1
        return rows(sql, parameters)

    monkeypatch.setattr(queue.kv._source, "rows", counted)
    entries = queue.kv.entries(page_size=3)
    assert pages == 0
    for _ in range(3):
        await anext(entries)
    assert pages == 1
    await anext(entries)
    assert pages == 2
    await entries.aclose()
    assert pages == 2


@pytest.mark.parametrize("descending", [False, True])
async def test_there_may_be_very_many_pages(queue: Queue, descending: bool) -> None:
    effects = Effects()
    for number in range(2500):
        effects.put(b"%06d" % number, b"")
    await queue.commit(effects)
    found = [key async for key, _ in queue.kv.entries(page_size=1, descending=descending)]
    assert found == sorted(effects.puts, reverse=descending)


async def test_keys_may_be_deleted_on_the_way(queue: Queue) -> None:
    for key in KEYS:
        await queue.kv.put(key, b"")
    async for key, _ in queue.kv.entries(page_size=2):
        await queue.kv.delete(key)
    assert not (await queue.kv.scan()).entries


async def test_bad_input(queue: Queue) -> None:
    for bounds in (
        {"start_at": "a", "start_after": "a"},
        {"end_at": "a", "end_before": "a"},
    ):
        with pytest.raises(InvalidArgument, match="not both"):
            await queue.kv.scan(**bounds)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="not both"):
            queue.kv.entries(**bounds)  # type: ignore[arg-type]
    for name in ("prefix", "start_at", "start_after", "end_at", "end_before"):
        assert (await queue.kv.scan(**{name: b"\xff" * 4096})).entries == ()  # type: ignore[arg-type]
        with pytest.raises(ValueTooLarge):
            await queue.kv.scan(**{name: b"x" * 4097})  # type: ignore[arg-type]
        with pytest.raises(InvalidType):
            queue.kv.entries(**{name: 7})  # type: ignore[arg-type]
    for size in (0, 10_001):
        with pytest.raises(InvalidArgument):
            queue.kv.entries(page_size=size)
    with pytest.raises(InvalidType):
        await queue.kv.scan(descending="yes")  # type: ignore[arg-type]
