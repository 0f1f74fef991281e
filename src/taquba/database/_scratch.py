"""Folders for temporary copies, and the file of a database on the local disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

from taquba.errors import StateFull

__all__ = ["ScratchFile", "naming_a_full_disk", "scratch_folder"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ScratchFile:
    """Room for one file, which is gone when whoever uses it is."""

    def __init__(self, parent: str | None) -> None:
        self._folder = tempfile.mkdtemp(prefix="taquba-", dir=parent)
        self.path = os.path.join(self._folder, "state.db")

    def hide(self) -> None:
        """Delete the name, now that the file is open: so it cannot outlive this process.

        Where an open file cannot be deleted, it stays until `remove`.
        """
        with contextlib.suppress(OSError):
            os.unlink(self.path)
            os.rmdir(self._folder)

    def remove(self) -> None:
        """Delete what is left."""
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def naming_a_full_disk(parent: str | None) -> Generator[None]:
    """Raise `StateFull` when the disk with the scratch folder is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise full_disk(parent, error) from error


def full_disk(parent: str | None, error: object) -> StateFull:
    return StateFull(
        f"the scratch folder {parent or tempfile.gettempdir()!r} has no room for the state "
        f"({error}). Nothing that was acknowledged is lost: make room, or choose another folder "
        "(scratch=…), and open the store again"
    )


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
