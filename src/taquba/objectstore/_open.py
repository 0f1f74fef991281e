"""From a URL to a store."""

from __future__ import annotations

import os
from typing import Any

from taquba.clock import Clock, SystemClock
from taquba.errors import InvalidUrl
from taquba.objectstore._local import LocalStore
from taquba.objectstore._memory import MemoryStore
from taquba.objectstore._protocol import ObjectStore
from taquba.objectstore._retry import RetryingStore, RetryPolicy

__all__ = ["open_store"]


async def open_store(
    url: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    retry: RetryPolicy | None = None,
    **storage_options: Any,
) -> ObjectStore:
    """Open the store that a URL names (thin version)."""
    clock = SystemClock() if clock is None else clock
    store: ObjectStore
    text = os.fspath(url)
    if text == "memory://":
        store = MemoryStore()
    elif "://" in text and not text.startswith("file:///"):
        raise InvalidUrl(f"{text!r} is not supported yet")
    else:
        store = LocalStore(text.removeprefix("file://"))
        await store.open()
    return RetryingStore(store, clock=clock, policy=retry)
