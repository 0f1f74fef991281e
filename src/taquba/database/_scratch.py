"""Folders for temporary copies."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

__all__ = ["scratch_folder"]


@asynccontextmanager
async def scratch_folder(parent: str | None) -> AsyncGenerator[str]:
    """A folder that is removed at the end, in a thread: a large file takes its time."""
    folder = tempfile.mkdtemp(prefix="taquba-", dir=parent)
    try:
        yield folder
    finally:
        removal = asyncio.ensure_future(asyncio.to_thread(shutil.rmtree, folder, True))
        cancelled: asyncio.CancelledError | None = None
        while not removal.done():
            try:
                await asyncio.shield(removal)
            except asyncio.CancelledError as error:
                cancelled = error  # however often: whoever cancels counts on its being gone
        if cancelled is not None:
            raise cancelled
