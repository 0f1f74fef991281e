"""A store in one folder of a local file system."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, TypeVar

from taquba.errors import (
    BucketNotFound,
    Closed,
    ObjectExists,
    ObjectNotFound,
    StoreAccessDenied,
    StoreError,
    StoreUnavailable,
    UnsafeStore,
)
from taquba.objectstore._fsync import sync_directory, sync_file
from taquba.objectstore._protocol import (
    ObjectInfo,
    check_data,
    check_key,
    check_keys,
    check_prefix,
    check_range,
    is_key,
)

__all__ = ["LocalStore"]

T = TypeVar("T")

_TEMPORARY = "~tmp-"
"""Start of temporary files' names. No key can have it, since ``~`` is not in the alphabet."""

_STALE_SECONDS = 3600.0
"""A temporary file older than this was left by a process that died."""

_LIST_PAGE = 1000
_THREADS = 16

_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
_MAY_PASS = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.EDQUOT,
    errno.EINTR,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOSPC,
    errno.ESTALE,
    errno.ETIMEDOUT,
}


class LocalStore:
    """A store in a folder: every object is a file, under the folder, named by its key.

    A write goes to a temporary file, which is synced to the disk and then linked (`create`)
    or renamed (`put`) to its name, whose folder is synced too: a crash at any moment leaves
    the whole object or none. Folders below the root are made as needed, and stay when their
    last object is deleted. Several processes may use one folder at once.

    Whoever may read the folder may read the objects, so that a follower can run as another user.

    The file system must have hard links: every common one but FAT and exFAT, and some
    network mounts. Keys that differ only in case need a case-sensitive one.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Args:
        root: The folder. It is made at the first write if its parent exists.
        """
        self._root = Path(root).absolute()
        self._pool: ThreadPoolExecutor | None = None
        self._running: set[Future[object]] = set()
        self._synced: set[Path] = set()
        self._mode: int | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"LocalStore({str(self._root)!r})"

    @property
    def root(self) -> Path:
        """The folder, as an absolute path."""
        return self._root

    async def prepare(self) -> None:
        """Make the folder if it is absent, try it out, and remove what crashes left in it.

        Optional: a store works without it, and reports the same errors later.

        Raises:
            BucketNotFound: The folder's parent does not exist, or a file is in the way.
            StoreAccessDenied: The folder cannot be written.
            UnsafeStore: The file system has no hard links.
        """
        await self._run("open", "", self._prepare)

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        path = self._path(key)
        return await self._run("get", key, path.read_bytes)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """See `ObjectStore.get_range`."""
        path = self._path(key)
        if not check_range(start, end):
            return b""
        return await self._run("get_range", key, lambda: _read_range(path, start, end))

    async def create(self, key: str, data: bytes) -> None:
        """See `ObjectStore.create`."""
        path = self._path(key)
        data = check_data(data)
        await self._run("create", key, lambda: self._write(path, data, exclusive=True))

    async def put(self, key: str, data: bytes) -> None:
        """See `ObjectStore.put`."""
        path = self._path(key)
        data = check_data(data)
        await self._run("put", key, lambda: self._write(path, data, exclusive=False))

    async def delete(self, keys: Iterable[str]) -> None:
        """See `ObjectStore.delete`."""
        paths = [self._path(key) for key in check_keys(keys)]
        if paths:
            await self._run("delete", "", lambda: _delete(paths))

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        check_prefix(prefix)
        check_prefix(start_after, name="start_after")
        walk = _walk(self._root, prefix, start_after)
        while page := await self._run("list", prefix, lambda: _take(walk, _LIST_PAGE)):
            for info in page:
                yield info

    async def close(self) -> None:
        """Wait for the writes under way, and end the threads. Calling it again does nothing."""
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)
        running = [asyncio.wrap_future(future) for future in self._running if not future.done()]
        if running:
            await asyncio.wait(running)

    def _path(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    async def _run(self, operation: str, key: str, work: Callable[[], T]) -> T:
        """Do blocking work in a thread of our own.

        The loop's own threads may all be busy with a user's blocking functions, which may be
        waiting for the very commit that this write is. A thread finishes its work (and removes
        its temporary file) also when the caller was cancelled.
        """
        if self._closed:
            raise Closed(f"{self!r} was closed; open another")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="taquba-local")

        def guarded() -> T:
            with self._translated(operation, key):
                return work()

        future = self._pool.submit(guarded)
        self._running.add(future)  # type: ignore[arg-type]
        future.add_done_callback(self._running.discard)
        return await asyncio.wrap_future(future)

    @contextmanager
    def _translated(self, operation: str, key: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            kind, words = self._meaning(error, operation, key)
            raise kind(words, operation=operation, key=key) from error

    def _meaning(self, error: OSError, operation: str, key: str) -> tuple[type[StoreError], str]:
        if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
            if not self._root.is_dir():
                return BucketNotFound, self._what_is_wrong_with_root()
            if operation in ("get", "get_range"):
                return ObjectNotFound, f"no object {key!r} in {self._root}"
            if isinstance(error, FileNotFoundError):
                self._synced.clear()  # somebody removed an empty folder: make it again
                return StoreUnavailable, f"{operation} {key!r} in {self._root}: a folder vanished"
        elif isinstance(error, FileExistsError):
            return ObjectExists, f"object {key!r} exists in {self._root}"
        kind = StoreError
        if error.errno in _DENIED:
            kind = StoreAccessDenied
        elif error.errno in _MAY_PASS:
            kind = StoreUnavailable
        what = f"{operation} {key!r} in {self._root}" if key else f"{operation} {self._root}"
        hint = ""
        if kind is StoreAccessDenied:
            access = "read" if operation in ("get", "get_range", "list") else "read and write"
            hint = f"; this user must be able to {access} the folder"
        return kind, f"{what}: {error.strerror or error}{hint}"

    def _what_is_wrong_with_root(self) -> str:
        parent = self._root.parent
        if self._root.exists():
            return f"{self._root} is a file: give a folder"
        if parent.is_dir():
            return f"folder {self._root} does not exist"
        if parent.exists():
            return f"folder {self._root} cannot be, since {parent} is a file"
        return (
            f"folder {self._root} cannot be made, since {parent} does not exist: make that "
            f"first (mkdir -p {parent})"
        )

    def _prepare(self) -> None:
        if not self._root.is_dir():
            self._make_folder(self._root)
        descriptor, probe = tempfile.mkstemp(prefix=_TEMPORARY, dir=self._root)
        linked = f"{probe}-link"
        try:
            # The file system's own clock, which on a network mount may be another than ours.
            now = os.fstat(descriptor).st_mtime
            os.close(descriptor)
            self._link(probe, linked)
            try:
                self._link(probe, linked)
            except FileExistsError:
                pass
            else:
                raise UnsafeStore(
                    f"the file system of {self._root} makes a link where a file is already, so "
                    "no object can be created exclusively: use another folder",
                    operation="create",
                )
        finally:
            _unlink(linked)
            _unlink(probe)
        self._sweep(before=now - _STALE_SECONDS)

    def _sweep(self, *, before: float) -> None:
        """Remove the temporary files of processes that died."""
        with os.scandir(self._root) as entries:
            for entry in entries:
                if entry.name.startswith(_TEMPORARY):
                    with suppress(FileNotFoundError):  # its owner, or another sweep, was faster
                        if entry.stat(follow_symlinks=False).st_mtime < before:
                            os.unlink(entry.path)

    def _make_folder(self, folder: Path) -> None:
        """Make the folder and those above it up to the root, and sync what names them."""
        if folder in self._synced:
            return
        if folder != self._root:
            self._make_folder(folder.parent)
        try:
            os.mkdir(folder)
        except FileExistsError:
            if not folder.is_dir():
                raise NotADirectoryError(
                    errno.ENOTDIR, f"{folder} is an object, so no key can be below it"
                ) from None
        # Also when somebody else made it, who may not have come to sync it.
        sync_directory(folder.parent)
        self._synced.add(folder)

    def _write(self, path: Path, data: bytes, *, exclusive: bool) -> None:
        self._make_folder(path.parent)
        if exclusive and os.path.lexists(path):
            self._refuse(path)
        descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=self._root)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                _write_all(file.fileno(), data)
                self._share(file.fileno())
                sync_file(file.fileno())
            if exclusive:
                self._link(temporary, path)
            else:
                os.replace(temporary, path)
        except FileExistsError:
            self._refuse(path)
        finally:
            _unlink(temporary)
        sync_directory(path.parent)

    def _share(self, descriptor: int) -> None:
        """Let those read a new object who may read the folder; temporary files are private."""
        if sys.platform != "win32":
            if self._mode is None:
                self._mode = 0o600 | (stat.S_IMODE(os.stat(self._root).st_mode) & 0o044)
            os.fchmod(descriptor, self._mode)

    def _refuse(self, path: Path) -> NoReturn:
        if path.is_dir():
            raise IsADirectoryError(
                errno.EISDIR, f"{path} is a folder of other objects, so it cannot be a key"
            )
        # Its creator may not have come to sync it, and we are about to tell that it is there.
        sync_directory(path.parent)
        raise FileExistsError

    def _link(self, source: str, target: str | Path) -> None:
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                raise UnsafeStore(
                    f"the file system of {self._root} has no hard links ({error.strerror}), "
                    "without which an object cannot be created atomically: use another folder",
                    operation="create",
                ) from error
            raise


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _read_range(path: Path, start: int, end: int) -> bytes:
    with open(path, "rb") as file:
        end = min(end, os.fstat(file.fileno()).st_size)  # Python would make room for all of it
        if start >= end:
            return b""
        file.seek(start)
        return file.read(end - start)


def _unlink(path: str | Path) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _delete(paths: list[Path]) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (IsADirectoryError, PermissionError):
            if not path.is_dir():
                raise


def _take(walk: Iterator[ObjectInfo], count: int) -> list[ObjectInfo]:
    page: list[ObjectInfo] = []
    for info in walk:
        page.append(info)
        if len(page) == count:
            break
    return page


def _walk(root: Path, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
    folder, _, start = prefix.rpartition("/")
    with os.scandir(root):
        pass  # a missing root is an error, a missing folder in it an empty listing
    yield from _walk_folder(root, f"{folder}/" if folder else "", start, start_after)


def _walk_folder(root: Path, folder: str, start: str, start_after: str) -> Iterator[ObjectInfo]:
    try:
        with os.scandir(root / folder) as entries:
            names = [
                f"{entry.name}/" if entry.is_dir() else entry.name
                for entry in entries
                if entry.name.startswith(start)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in sorted(names):
        key = folder + name
        if key.endswith("/"):
            if key > start_after or start_after.startswith(key):
                yield from _walk_folder(root, key, "", start_after)
        elif key > start_after and is_key(key):
            with suppress(FileNotFoundError):  # deleted since
                yield ObjectInfo(key, os.stat(root / key).st_size)
