"""What the tests of this folder share."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from taquba import Queue
from taquba.objectstore import MemoryStore


async def fill(target: Any, *, lives: int = 2, jobs: int = 10, **options: Any) -> None:
    """A store with this many epochs, a checkpoint in each, and some entries after the last."""
    for _ in range(lives):
        async with Queue.open(target, storage_options=options or None) as queue:
            for number in range(jobs):
                await queue.enqueue("mail", b"payload %d" % number)
            claim = await queue.claim("mail")
            assert claim is not None
            await queue.ack(claim)
            await queue._core.database.checkpoint()
            for _ in range(3):
                await queue.enqueue("reports", b"later")


def made(folder: Path, *, lives: int = 2, jobs: int = 10) -> str:
    """A store in a folder, as `fill` makes it."""
    asyncio.run(fill(str(folder), lives=lives, jobs=jobs))
    return str(folder)


def objects(folder: Path, prefix: str) -> list[Path]:
    """The objects below a prefix, by key."""
    return sorted((folder / prefix).iterdir())


def copied(store: MemoryStore) -> MemoryStore:
    """The same objects in a store of their own."""
    copy = MemoryStore()
    copy._objects = dict(store._objects)
    copy._sorted = list(store._sorted)
    return copy
