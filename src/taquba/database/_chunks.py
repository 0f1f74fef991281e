"""Checkpoint contents: a database file as packs of blocks, of which later ones override earlier.

A pack's key begins with the epoch of the writer that stored it, and a writer refers only to
packs of its own epoch. A writer that was replaced without knowing it may still collect its
own packs; so nobody ever builds on another epoch's.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from array import array
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar, cast

from taquba.database._blocks import BLOCK, Blocks, Plan, Scan
from taquba.database._packs import CHUNK_PREFIX, Pack, chunk_key, decode_pack, encode_pack
from taquba.errors import CorruptStore, IncompatibleStore, ObjectNotFound
from taquba.objectstore import ObjectStore

__all__ = ["CHUNK_PREFIX", "ChunkStore", "Contents"]

_FORMAT = 2
_READ = 512 * 1024
"""Bytes that are looked at before others get the processor again."""
_PAUSE = 0.001
"""Seconds between two such portions, in a thread."""
_NOBODY = -1

T = TypeVar("T")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a checkpoint's manifest says about its database file."""

    size: int
    """Bytes of the file."""
    digest: str
    """Hex sha256 of the file."""
    block_size: int
    """Bytes of each block."""
    epoch: int
    """Whose packs they are."""
    packs: tuple[Pack, ...]
    """The packs that hold the blocks; of several that hold one the last counts."""
    modules: dict[str, int]
    """Versions of the schema modules."""
    name: str = field(default="a checkpoint", compare=False)
    """For errors."""

    def to_json(self) -> dict[str, Any]:
        return {
            "database": {
                "format": _FORMAT,
                "size": self.size,
                "sha256": self.digest,
                "block_size": self.block_size,
                "epoch": self.epoch,
                "packs": [
                    {"sha256": pack.digest, "blocks": pack.blocks, "bytes": pack.size}
                    for pack in self.packs
                ],
            },
            "modules": self.modules,
        }

    @classmethod
    def from_json(cls, name: str, content: dict[str, Any]) -> Contents:
        """Read what `to_json` made; `name` is for errors.

        Raises:
            CorruptStore: Something is missing or has the wrong type.
            IncompatibleStore: A newer taquba wrote it.
        """
        try:
            database = cast("dict[str, Any]", content["database"])
            newer = int(database["format"]) > _FORMAT
            if newer:
                raise IncompatibleStore(
                    f"{name} has a database of format {database['format']}, and this process "
                    f"reads up to {_FORMAT}: upgrade taquba here. Nothing was changed"
                )
            contents = cls(
                size=int(database["size"]),
                digest=str(database["sha256"]),
                block_size=int(database["block_size"]),
                epoch=int(database["epoch"]),
                packs=tuple(
                    Pack(str(pack["sha256"]), int(pack["blocks"]), int(pack["bytes"]))
                    for pack in database["packs"]
                ),
                modules={str(k): int(v) for k, v in content["modules"].items()},
                name=name,
            )
            partial = contents.size % contents.block_size
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise CorruptStore(f"{name} is damaged: it is incomplete ({error!r})") from error
        blocks = contents.size // contents.block_size
        if partial or blocks < 0 or sum(pack.blocks for pack in contents.packs) < blocks:
            raise CorruptStore(
                f"{name} is damaged: its packs cannot make up a file of {contents.size} bytes"
            )
        return contents

    @property
    def stored(self) -> int:
        """Bytes of all its packs, as they are stored."""
        return sum(pack.size for pack in self.packs)

    def chunk_keys(self) -> set[str]:
        """Keys of all its packs."""
        return {chunk_key(self.epoch, pack.digest) for pack in self.packs}


class ChunkStore:
    """Moves database files to and from the store, in packs."""

    def __init__(self, store: ObjectStore, *, transfers: int) -> None:
        self._store = store
        self._transfers = transfers
        self._published = Blocks()
        self._pending: Blocks | None = None
        self._uploads = 0
        self.uploading: set[str] = set()
        """Keys of the packs of the upload under way, or of the last one."""
        self.uploaded = 0
        self.uploaded_bytes = 0
        self.reused = 0

    async def upload(
        self, path: str, *, epoch: int, chunk_size: int, modules: dict[str, int]
    ) -> Contents:
        """Store what changed in a file since the last one that was `published`."""
        self._pending = None
        self._uploads += 1
        self.uploading = set()
        size = os.path.getsize(path)
        # Few calls into threads, that do much each: what comes back from a thread waits for its
        # turn in the event loop, and where that is busy a checkpoint would take minutes.
        scan, plan = await _in_thread(
            lambda stop: _look_at(path, self._published, max(1, chunk_size // BLOCK), stop)
        )
        packs = await self._store_packs(path, plan, epoch)
        self._pending = await _in_thread(
            lambda stop: plan.done(packs, partial(_let_others_go_on, stop))
        )
        self.reused += len(plan.kept)
        return Contents(
            size=size,
            digest=scan.file_digest(),
            block_size=BLOCK,
            epoch=epoch,
            packs=self._pending.packs,
            modules=modules,
        )

    async def _store_packs(self, path: str, plan: Plan, epoch: int) -> list[Pack]:
        # Many requests at a time hide the store's latency. Many threads that compress would
        # only keep the event loop from getting the processor.
        processor = asyncio.Lock()
        turns = min(2, self._transfers)  # one compresses while the other is sent
        at_once = self._transfers // turns

        async def store(batch: list[array[int]]) -> list[Pack]:
            async with processor:
                made = await _in_thread(lambda stop: _make_packs(path, batch, self._uploads, stop))
            return await _in_order(put, iter(made), at_once)

        async def put(made: tuple[Pack, bytes]) -> Pack:
            pack, data = made
            key = chunk_key(epoch, pack.digest)
            self.uploading.add(key)
            await self._store.put(key, data)
            self.uploaded += 1
            self.uploaded_bytes += pack.size
            return pack

        stored = await _in_order(store, _batches(plan.groups(), at_once), turns)
        return [pack for packs in stored for pack in packs]

    def published(self) -> None:
        """What was uploaded last is part of a checkpoint now: the next upload builds on it."""
        assert self._pending is not None
        self._published, self._pending = self._pending, None

    def forget(self) -> None:
        """No checkpoint that stays consists of what was uploaded: the next upload is whole."""
        self._published, self._pending = Blocks(), None

    async def download(self, contents: Contents, path: str) -> None:
        """Write the file that these packs make up.

        Raises:
            CorruptStore: A pack is missing or damaged; the message names it.
        """
        file = _File(path, contents)
        try:
            writing = asyncio.Lock()

            async def fetch(index: int) -> None:
                pack = contents.packs[index]
                key = chunk_key(contents.epoch, pack.digest)
                try:
                    data = await self._store.get(key)
                except ObjectNotFound as error:
                    raise CorruptStore(
                        f"chunk {key!r} of {contents.name} is missing. Restore the object "
                        "from a backup or an older object version",
                        key=key,
                    ) from error
                places, blocks = await asyncio.to_thread(
                    decode_pack, pack, key, data, contents.block_size, contents.name
                )
                async with writing:
                    await asyncio.to_thread(file.write, index, places, blocks)

            await _in_order(fetch, iter(range(len(contents.packs))), self._transfers)
            await asyncio.to_thread(file.check)
        finally:
            file.close()


class _File:
    """A file that is made up of packs, which may come in any order."""

    def __init__(self, path: str, contents: Contents) -> None:
        self._contents = contents
        self._count = contents.size // contents.block_size
        self._owners = array("i", [_NOBODY]) * self._count
        self._file = open(path, "w+b")  # noqa: SIM115 - `close` closes it

    def close(self) -> None:
        self._file.close()

    def write(self, index: int, places: array[int], blocks: memoryview) -> None:
        """Write the blocks of pack `index` that no later pack overrides."""
        size, owners, count = self._contents.block_size, self._owners, self._count

        def counts(place: int) -> bool:
            if place >= count or owners[place] > index:
                return False
            owners[place] = index
            return True

        for start, end in _runs(places, counts):
            self._file.seek(places[start] * size)
            self._file.write(blocks[start * size : end * size])

    def check(self) -> None:
        """Whether it is the file that was uploaded."""
        contents = self._contents
        if _NOBODY in self._owners:
            missing = self._owners.index(_NOBODY)
            raise CorruptStore(f"{contents.name} is damaged: no pack holds its block {missing}")
        digest = sha256()
        self._file.seek(0)
        while data := self._file.read(_READ):
            digest.update(data)
        if digest.hexdigest() != contents.digest:
            raise CorruptStore(
                f"{contents.name} is damaged: its packs make up a file with sha256 "
                f"{digest.hexdigest()}, not {contents.digest}"
            )


def _runs(
    places: array[int], counts: Callable[[int], bool] = lambda place: True
) -> Iterator[tuple[int, int]]:
    """Ranges of indexes whose places lie next to each other and count."""
    start = previous = -2
    for index, place in enumerate(places):
        if not counts(place):
            continue
        if index != previous + 1 or place != places[previous] + 1:
            if start >= 0:
                yield start, previous + 1
            start = index
        previous = index
    if start >= 0:
        yield start, previous + 1


def _look_at(
    path: str, before: Blocks, pack_blocks: int, stop: threading.Event
) -> tuple[Scan, Plan]:
    """What is in a file, and what has to be written for it."""
    scan = Scan(before)
    with open(path, "rb") as file:
        while not stop.is_set() and (data := file.read(_READ)):
            scan.feed(data)
            if len(data) == _READ:
                _let_others_go_on(stop)
    pause = partial(_let_others_go_on, stop)
    return scan, Plan(before, scan, pack_blocks=pack_blocks, pause=pause)


def _let_others_go_on(stop: threading.Event) -> None:
    """Sleep a little, since the event loop gets the interpreter only after 5 ms otherwise.

    And it needs it anew after each call into SQLite, so that would add up.
    """
    stop.wait(_PAUSE)


def _make_packs(
    path: str, batch: list[array[int]], upload: int, stop: threading.Event
) -> list[tuple[Pack, bytes]]:
    """The packs of blocks of a file; a pack for each item of `batch`."""
    made: list[tuple[Pack, bytes]] = []
    with open(path, "rb") as file:
        for places in batch:
            if stop.is_set():
                break
            parts: list[bytes] = []
            for start, end in _runs(places):
                file.seek(places[start] * BLOCK)
                parts.append(file.read((end - start) * BLOCK))
            made.append(encode_pack(places, b"".join(parts), upload=upload))
    return made


def _batches(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while batch := list(itertools.islice(items, size)):
        yield batch


async def _in_thread(work: Callable[[threading.Event], T]) -> T:
    """The result of `work`, done in a thread; it is told to stop when nobody wants it any more."""
    stop = threading.Event()
    try:
        return await asyncio.to_thread(work, stop)
    finally:
        stop.set()


async def _in_order(
    work: Callable[[Item], Awaitable[T]], items: Iterator[Item], at_once: int
) -> list[T]:
    """The results of `work` on each item, some of them under way at a time."""
    results: dict[int, T] = {}
    numbered = enumerate(items)

    async def worker() -> None:
        for index, item in numbered:
            results[index] = await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(worker())
    except BaseExceptionGroup as errors:
        raise _first_error(errors) from None
    return [results[index] for index in range(len(results))]


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first: Any = group.exceptions[0]
    return _first_error(first) if isinstance(first, BaseExceptionGroup) else first  # pyright: ignore
