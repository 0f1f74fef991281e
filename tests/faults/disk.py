"""A disk that is full when a process has written so many bytes; it works without any rights.

A write fails as on a full file system: what fits is written, and the rest is refused with
ENOSPC. What `LocalStore` and the database write by Python is refused here, and what SQLite
writes, by a VFS above the usual one. (`test_disk` also has a real file system, where the
system lets it mount one.)
"""

from __future__ import annotations

import builtins
import errno
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import apsw

from taquba.objectstore import _local

__all__ = ["Disk"]


class Disk:
    """How much room is left, and who asks for it."""

    def __init__(self, room: int | None, on_full: Callable[[], None]) -> None:
        self._room = room
        self._on_full = on_full
        self._lock = threading.Lock()
        self._vfs: apsw.VFS | None = None

    def give(self, room: int) -> None:
        """Make room for so many bytes more."""
        with self._lock:
            assert self._room is not None
            self._room += room

    def take(self, wanted: int) -> int:
        """How many of these bytes fit; they are used from now on."""
        with self._lock:
            assert self._room is not None
            taken = min(wanted, self._room)
            self._room -= taken
        if taken < wanted:
            self._on_full()
        return taken

    def write(self, descriptor: int, data: Any) -> int:
        """As `os.write`."""
        taken = self.take(len(data))
        if len(data) and not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, memoryview(data)[:taken])

    def open(self, path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        """As `open`."""
        if isinstance(path, int) or set(mode) & set("wax+") == set():
            return builtins.open(path, mode, *args, **options)
        return _LimitedFile(builtins.open(path, mode, *args, **options), self)

    def limit(self, which: str) -> None:
        """Refuse from now on what does not fit, in this process."""
        if self._room is None:
            return
        if which == "store":
            _local.os = _LimitedOs(self)  # type: ignore[assignment]
            return
        for name, module in list(sys.modules.items()):
            if name.startswith("taquba.database"):
                module.open = self.open  # type: ignore[attr-defined]
        self._vfs = _LimitedVfs(self)


class _LimitedOs:
    def __init__(self, disk: Disk) -> None:
        self.write = disk.write

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class _LimitedFile:
    def __init__(self, file: Any, disk: Disk) -> None:
        self._file = file
        self._disk = disk

    def write(self, data: Any) -> int:
        taken = self._disk.take(len(data))
        written: int = self._file.write(memoryview(data)[:taken])
        if taken < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written

    def __enter__(self) -> _LimitedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _LimitedVfs(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._usual = apsw.vfs_names()[0]
        super().__init__("limited", self._usual, makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> Any:
        return _LimitedVfsFile(self._disk, self._usual, name, flags)


class _LimitedVfsFile(apsw.VFSFile):
    def __init__(self, disk: Disk, usual: str, name: Any, flags: Any) -> None:
        self._disk = disk
        super().__init__(usual, name, flags)

    def xWrite(self, data: Any, offset: int) -> None:
        if self._disk.take(len(data)) < len(data):
            raise apsw.FullError("database or disk is full")
        super().xWrite(data, offset)
