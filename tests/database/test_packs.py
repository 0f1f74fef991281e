"""Files in packs: what comes back is what was stored, and little is stored for little."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taquba.database._chunks import ChunkStore, Contents
from taquba.errors import StoreUnavailable
from taquba.objectstore import MemoryStore
from taquba.testing import FaultyStore

pytestmark = pytest.mark.anyio

_BLOCK = 1024
_PACK = 16 * _BLOCK


class _Writer:
    """A file of random blocks that is changed, and stored again and again."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.store = FaultyStore(MemoryStore())
        self.chunks = ChunkStore(self.store, transfers=3)
        self.random = random.Random(seed)
        self.blocks: list[bytes] = []
        self._folder = folder

    def resize(self, count: int) -> None:
        del self.blocks[count:]
        while len(self.blocks) < count:
            self.blocks.append(self.random.randbytes(_BLOCK))

    def change(self, share: float) -> None:
        for i in range(len(self.blocks)):
            if self.random.random() < share:
                self.blocks[i] = self.random.randbytes(_BLOCK)

    async def upload(self) -> Contents:
        path = self._folder / "source.db"
        path.write_bytes(b"".join(self.blocks))
        contents = await self.chunks.upload(str(path), epoch=1, chunk_size=_PACK, modules={"m": 1})
        # It has to survive the way through a manifest.
        return Contents.from_json("checkpoint 1", contents.to_json())

    async def download(self, contents: Contents) -> bytes:
        path = self._folder / "target.db"
        await ChunkStore(self.store, transfers=3).download(contents, str(path))
        return path.read_bytes()

    async def delete_all_but(self, contents: Contents) -> None:
        """As collection does."""
        keys = {info.key async for info in self.store.list("chunks/")}
        await self.store.delete(keys - contents.chunk_keys())

    async def check(self, contents: Contents) -> None:
        assert await self.download(contents) == b"".join(self.blocks)


_CHANGE = st.one_of(
    st.tuples(st.just("change"), st.sampled_from([0, 0.01, 0.1, 0.5, 1])),
    st.tuples(st.just("resize"), st.integers(0, 200)),
    st.tuples(st.just("fail"), st.just(0)),
    st.tuples(st.just("forget"), st.just(0)),
    st.tuples(st.just("lose"), st.just(0)),
)


@given(changes=st.lists(_CHANGE, max_size=25), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_what_comes_back_is_what_was_stored(
    changes: list[tuple[str, float]], seed: int, tmp_path: Path
) -> None:
    async def play() -> None:
        writer = _Writer(tmp_path, seed)
        writer.resize(50)
        for what, much in changes:
            match what:
                case "change":
                    writer.change(much)
                case "resize":
                    writer.resize(int(much))
                case "forget":
                    writer.chunks.forget()
                case "fail":
                    writer.resize(len(writer.blocks) + 20)
                    writer.store.fail("put", times=1)
                    with pytest.raises(StoreUnavailable):
                        await writer.upload()
                    writer.store.heal()
                case _:  # uploaded, but never part of a checkpoint; so it is collected
                    writer.change(0.1)
                    await writer.upload()
            contents = await writer.upload()
            await writer.check(contents)
            writer.chunks.published()
            await writer.delete_all_but(contents)
            await writer.check(contents)
            _check_bounds(contents)

    asyncio.run(play())


def _check_bounds(contents: Contents) -> None:
    blocks = contents.size // _BLOCK
    full = _PACK // _BLOCK
    assert len(contents.packs) <= blocks / (full / 4) + 20
    assert sum(pack.blocks for pack in contents.packs) <= 2 * blocks + 4 * full
    assert all(0 < pack.blocks <= full for pack in contents.packs)


async def test_little_is_written_for_little_and_what_is_stored_stays_small(tmp_path: Path) -> None:
    writer = _Writer(tmp_path, seed=1)
    writer.resize(1000)
    first = await writer.upload()
    writer.chunks.published()
    assert first.stored < 1.05 * first.size
    written = writer.chunks.uploaded_bytes
    for _ in range(60):
        writer.change(0.02)
        contents = await writer.upload()
        writer.chunks.published()
        assert contents.stored < 2.1 * contents.size
        _check_bounds(contents)
    # Not much more than twice what changed.
    assert writer.chunks.uploaded_bytes - written < 2.5 * 60 * 0.02 * first.size
    await writer.check(await writer.upload())


async def test_packs_of_which_little_counts_are_written_anew(tmp_path: Path) -> None:
    writer = _Writer(tmp_path, seed=1)
    writer.resize(64)
    for _ in range(5):
        for i in range(64):
            if i % 16:
                writer.blocks[i] = writer.random.randbytes(_BLOCK)
        contents = await writer.upload()
        writer.chunks.published()
        assert contents.stored < 1.5 * contents.size
        await writer.check(contents)


async def test_many_tiny_changes_are_put_together(tmp_path: Path) -> None:
    writer = _Writer(tmp_path, seed=1)
    writer.resize(64)
    for i in range(200):
        writer.resize(64 + i)
        contents = await writer.upload()
        writer.chunks.published()
        _check_bounds(contents)
    contents = await writer.upload()
    await writer.check(contents)
    assert writer.chunks.uploaded_bytes < 10 * contents.size


async def test_nothing_is_written_for_nothing(tmp_path: Path) -> None:
    writer = _Writer(tmp_path, seed=1)
    writer.resize(100)
    first = await writer.upload()
    writer.chunks.published()
    uploaded = writer.chunks.uploaded
    assert await writer.upload() == first
    assert writer.chunks.uploaded == uploaded


async def test_a_file_that_shrank_takes_less(tmp_path: Path) -> None:
    writer = _Writer(tmp_path, seed=1)
    writer.resize(1000)
    await writer.upload()
    writer.chunks.published()
    writer.resize(50)
    contents = await writer.upload()
    assert contents.stored < 2.1 * contents.size + _PACK
    await writer.check(contents)


async def test_an_upload_that_was_not_published_is_no_base(tmp_path: Path) -> None:
    writer = _Writer(tmp_path, seed=1)
    writer.resize(100)
    kept = await writer.upload()
    writer.chunks.published()
    writer.change(0.2)
    await writer.upload()
    await writer.delete_all_but(kept)
    contents = await writer.upload()
    await writer.check(contents)


@pytest.mark.parametrize("compressible", [False, True])
async def test_packs_are_compressed_where_that_helps(tmp_path: Path, compressible: bool) -> None:
    writer = _Writer(tmp_path, seed=1)
    writer.resize(100)
    if compressible:
        writer.blocks = [b"text" * 256] * 100
    contents = await writer.upload()
    share = contents.stored / contents.size
    assert share < 0.1 if compressible else 1 < share < 1.02
