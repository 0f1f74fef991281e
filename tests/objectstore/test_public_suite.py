"""The conformance suite finds broken stores, and works as its documentation says."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import get_origin

import pytest

import taquba.testing
from taquba.errors import ObjectExists
from taquba.objectstore import MemoryStore, ObjectInfo, ObjectStore
from taquba.testing import ObjectStoreConformance


class LookThenWrite(MemoryStore):
    """As fsspec's local filesystem does."""

    async def create(self, key: str, data: bytes) -> None:
        if key in self._objects:
            raise ObjectExists(key)
        await asyncio.sleep(0)
        await self.put(key, data)


class LoserOverwrites(MemoryStore):
    async def create(self, key: str, data: bytes) -> None:
        taken = key in self._objects
        await self.put(key, data)
        if taken:
            raise ObjectExists(key)


class Overwrites(MemoryStore):
    async def create(self, key: str, data: bytes) -> None:
        await self.put(key, data)


class Halves(MemoryStore):
    async def put(self, key: str, data: bytes) -> None:
        await super().put(key, data[: len(data) // 2])
        await asyncio.sleep(0)
        await super().put(key, data)


class HalfCreates(MemoryStore):
    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data[: len(data) // 2])
        await asyncio.sleep(0)
        await self.put(key, data)


class InclusiveStart(MemoryStore):
    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in super().list(prefix):
            if info.key >= start_after:
                yield info


class Unsorted(MemoryStore):
    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        for info in reversed([info async for info in super().list(prefix, start_after)]):
            yield info


class OnePage(MemoryStore):
    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        left = 1000
        async for info in super().list(prefix, start_after):
            if left := left - 1:
                yield info


class StrictDelete(MemoryStore):
    async def delete(self, keys: Iterable[str]) -> None:
        listed = list(keys)
        for key in listed:
            await self.get(key)
        await super().delete(listed)


class LongRanges(MemoryStore):
    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return (await self.get(key))[start : end + 1]


class CutsAtBoundary(MemoryStore):
    """As gcsfs does."""

    async def put(self, key: str, data: bytes) -> None:
        await super().put(key, data.split(b"\n--==0==--")[0])


class AnyKey(MemoryStore):
    async def put(self, key: str, data: bytes) -> None:
        self._objects[key] = data


class ClosesAll(MemoryStore):
    closed = False

    async def get(self, key: str) -> bytes:
        assert not self.closed
        return await super().get(key)

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (LookThenWrite, "exactly_one_of_many_creators_wins_with_small_objects"),
        (LoserOverwrites, "exactly_one_of_many_creators_wins_with_larger_objects"),
        (LoserOverwrites, "create_refuses_a_taken_key_and_keeps_its_bytes"),
        (Overwrites, "create_refuses_a_taken_key_and_keeps_its_bytes"),
        (Halves, "readers_of_a_replaced_object_see_the_old_or_the_new"),
        (HalfCreates, "readers_see_a_created_object_whole_or_not_at_all"),
        (HalfCreates, "a_cancelled_write_happened_whole_or_not_at_all"),
        (InclusiveStart, "list_is_ascending_and_starts_after"),
        (Unsorted, "list_is_ascending_and_starts_after"),
        (OnePage, "a_listing_of_many"),
        (StrictDelete, "delete"),
        (LongRanges, "ranges"),
        (CutsAtBoundary, "every_byte_comes_back"),
        (AnyKey, "bad_keys_are_refused"),
        (ClosesAll, "close_may_be_called_again"),
    ],
)
def test_broken_stores_fail(
    broken: type[MemoryStore], test: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest then explains a failure in full: of large objects, that would not end for minutes.
    monkeypatch.setenv("CI", "true")
    shared = broken()

    class Suite(ObjectStoreConformance):
        async def open_store(self) -> ObjectStore:
            return shared

    with pytest.raises((AssertionError, Exception)):
        getattr(Suite(), f"test_{test}")()

    class Sound(ObjectStoreConformance):
        sound = MemoryStore()

        async def open_store(self) -> ObjectStore:
            return self.sound

    getattr(Sound(), f"test_{test}")()


def test_the_documented_five_lines(tmp_path: Path) -> None:
    documented = re.search(
        r"::\n\n(.*?)\n\n    No pytest", ObjectStoreConformance.__doc__ or "", re.S
    )
    assert documented
    code = textwrap.dedent(documented[1]).replace('MyStore("somewhere")', "STORE")
    (tmp_path / "test_mine.py").write_text(
        f"from taquba.objectstore import MemoryStore\nSTORE = MemoryStore()\n{code}\n"
    )
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:anyio", "-k", "get or key"]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert re.search(r"[4-9] passed", run.stdout)


def test_everything_public_is_documented() -> None:
    for name in taquba.testing.__all__:
        value = getattr(taquba.testing, name)
        if get_origin(value) is None:  # an alias of a type is documented below it, in the source
            assert value.__doc__, name
