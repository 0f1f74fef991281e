"""LocalStore: durability, crashes, and file systems that cannot be used."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
from taquba.objectstore import LocalStore, _local
from tests.objectstore.harness import keys

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def temporary(root: Path) -> list[str]:
    return [name for name in os.listdir(root) if name.startswith("~")]


class Calls:
    """The system calls of a store that matter for durability, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.root = root
        self.calls: list[str] = []
        self.failing: dict[str, OSError] = {}
        self._record(monkeypatch, os, "link", lambda source, target: self._name(target))
        self._record(monkeypatch, os, "replace", lambda source, target: self._name(target))
        self._record(monkeypatch, os, "mkdir", self._name)
        self._record(monkeypatch, _local, "sync_file", lambda fd: "temporary")
        self._record(monkeypatch, _local, "sync_directory", self._name)

    def _name(self, path: Any) -> str:
        return os.path.relpath(path, self.root)

    def _record(
        self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, label: Callable[..., str]
    ) -> None:
        real = getattr(module, name)

        def called(*arguments: Any) -> Any:
            call = f"{name} {label(*arguments)}"
            if call in self.failing:
                raise self.failing[call]
            result = real(*arguments)
            self.calls.append(call)
            return result

        monkeypatch.setattr(module, name, called)


async def test_every_write_is_synced_before_it_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch, root)
    store = LocalStore(root)
    await store.create("a/b/c", b"1")
    assert calls.calls == [
        *["mkdir .", "sync_directory .."],
        *["mkdir a", "sync_directory .", "mkdir a/b", "sync_directory a"],
        *["sync_file temporary", "link a/b/c", "sync_directory a/b"],
    ]
    calls.calls.clear()
    await store.put("a/b/c", b"2")
    assert calls.calls == ["sync_file temporary", "replace a/b/c", "sync_directory a/b"]
    await store.close()


async def test_folders_that_another_process_made_are_synced_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").mkdir(parents=True)
    calls = Calls(monkeypatch, root)
    store = LocalStore(root)
    await store.create("a/b", b"1")
    assert [c for c in calls.calls if c.startswith("sync_directory")] == [
        "sync_directory ..",
        "sync_directory .",
        "sync_directory a",
    ]
    await store.close()


async def test_a_refused_create_makes_what_is_there_durable(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a creator whose sync failed would read its object back and take it for durable."""
    calls = Calls(monkeypatch, root)
    store = LocalStore(root)
    calls.failing["sync_directory ."] = OSError(errno.EIO, "the disk hiccups")
    with pytest.raises(StoreUnavailable, match="hiccups"):
        await store.create("a", b"1")
    with pytest.raises(StoreUnavailable, match="hiccups"):
        await store.create("a", b"1")
    calls.failing.clear()
    calls.calls.clear()
    with pytest.raises(ObjectExists):
        await store.create("a", b"1")
    assert calls.calls == ["sync_directory ."]
    assert temporary(root) == []
    await store.close()


CRASHING_WRITER = """
import asyncio, sys
from taquba.objectstore import LocalStore
async def main():
    store = LocalStore(sys.argv[1])
    for number in range(10**6):
        await asyncio.gather(*(
            store.create(f"j/{number:06d}-{part}", b"%07d" % number * 30_000) for part in range(4)
        ))
        print(flush=True)
asyncio.run(main())
"""


async def test_a_killed_writer_leaves_whole_objects_only(root: Path) -> None:
    for batches in (1, 4, 11):
        process = subprocess.Popen(
            [sys.executable, "-c", CRASHING_WRITER, str(root)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(batches):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        store = LocalStore(root)
        infos = [info async for info in store.list("")]
        assert infos
        assert {info.size for info in infos} == {210_000}
        assert all("~" not in info.key for info in infos)
        await store.delete(info.key for info in infos)
        await store.close()


RACING_WRITER = """
import asyncio, sys
from taquba.errors import ObjectExists
from taquba.objectstore import LocalStore
async def main():
    store = LocalStore(sys.argv[1])
    sys.stdin.readline()
    won = []
    for number in range(100):
        try:
            await store.create(f"j/{number}", sys.argv[2].encode())
            won.append(str(number))
        except ObjectExists:
            pass
    print(" ".join(won))
asyncio.run(main())
"""


async def test_of_two_processes_one_wins_each_key(root: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACING_WRITER, str(root), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    won = [set(process.communicate()[0].split()) for process in processes]
    assert not won[0] & won[1]
    assert won[0] | won[1] == {str(number) for number in range(100)}
    store = LocalStore(root)
    for name, numbers in zip(b"ab", won, strict=True):
        for number in numbers:
            assert await store.get(f"j/{number}") == bytes([name])
    await store.close()


async def test_temporary_files_are_hidden_and_swept_when_old(root: Path) -> None:
    store = LocalStore(root)
    await store.create(".tmp-x", b"an ordinary key")
    fresh, old, folder = root / "~tmp-fresh", root / "~tmp-old", root / "~tmp-folder"
    fresh.write_text("x")
    old.write_text("x")
    folder.mkdir()
    hour_ago = time.time() - 3700
    os.utime(old, (hour_ago, hour_ago))
    assert await keys(store) == [".tmp-x"]
    await store.prepare()
    assert fresh.exists()
    assert not old.exists()
    assert await keys(store) == [".tmp-x"]
    await store.close()


async def test_the_sweep_goes_by_the_file_systems_clock(root: Path) -> None:
    """A machine whose clock is wrong must not remove what others are writing."""
    store = LocalStore(root)
    await store.prepare()
    (root / "~tmp-live").write_text("x")
    real = time.time
    time.time = lambda: real() + 10**6  # type: ignore[assignment]
    try:
        await store.prepare()
    finally:
        time.time = real
    assert temporary(root) == ["~tmp-live"]
    await store.close()


# -- cancellation and close ------------------------------------------------------------------


class Gate:
    """Stops a store's threads at a call until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        real = getattr(_local, name)

        def called(*arguments: Any) -> Any:
            self.reached.set()
            assert self.opened.wait(20)
            return real(*arguments)

        monkeypatch.setattr(_local, name, called)

    async def wait_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 20)


async def test_a_cancelled_write_cleans_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(root)
    gate = Gate(monkeypatch, "sync_file")
    task = asyncio.ensure_future(store.create("a", b"1"))
    await gate.wait_reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(temporary(root)) == 1
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    assert not closing.done()  # it waits, so that no write goes on behind its back
    gate.opened.set()
    await closing
    assert temporary(root) == []
    assert sorted(os.listdir(root)) == ["a"]


async def test_a_failed_write_cleans_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, root)
    store = LocalStore(root)
    calls.failing["sync_file temporary"] = OSError(errno.ENOSPC, "No space left on device")
    for write in (store.create("a", b"1"), store.put("a", b"1")):
        with pytest.raises(StoreUnavailable, match="No space left"):
            await write
    assert os.listdir(root) == []
    calls.failing.clear()
    await store.create("a", b"1")
    await store.close()


async def test_closed(root: Path) -> None:
    store = LocalStore(root)
    await store.create("a", b"1")
    await store.close()
    await store.close()
    for request in (store.get("a"), store.put("a", b""), store.delete(["a"]), keys(store)):
        with pytest.raises(Closed, match="open another"):
            await request


async def test_closing_ends_the_threads(root: Path) -> None:
    store = LocalStore(root)
    await asyncio.gather(*(store.put(str(number), b"x") for number in range(40)))
    await store.close()
    for thread in threading.enumerate():
        if thread.name.startswith("taquba-local"):
            await asyncio.to_thread(thread.join, 20)
            assert not thread.is_alive()


async def test_it_does_not_wait_for_the_threads_of_others(root: Path) -> None:
    """Blocking handlers may hold every thread of the loop while they wait for this very commit."""
    free = threading.Event()
    loop = asyncio.get_running_loop()
    handlers = [loop.run_in_executor(None, free.wait, 20) for _ in range(40)]
    store = LocalStore(root)
    await store.create("a", b"1")
    assert not any(handler.done() for handler in handlers)
    free.set()
    await asyncio.gather(*handlers)
    await store.close()


# -- what can be wrong -----------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
async def test_no_hard_links(root: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def link(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    store = LocalStore(root)
    with pytest.raises(UnsafeStore, match="no hard links"):
        await store.prepare()
    with pytest.raises(UnsafeStore, match="use another folder"):
        await store.create("a", b"1")
    assert os.listdir(root) == []
    await store.close()


async def test_links_that_overwrite(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", lambda source, target: Path(target).write_bytes(b""))
    store = LocalStore(root)
    with pytest.raises(UnsafeStore, match="created exclusively"):
        await store.prepare()
    assert os.listdir(root) == []
    await store.close()


async def test_not_writable(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, root)
    calls.failing["mkdir ."] = PermissionError(errno.EACCES, "Permission denied")
    store = LocalStore(root)
    with pytest.raises(StoreAccessDenied, match="Permission denied; this user must be") as caught:
        await store.prepare()
    assert str(root) in str(caught.value)
    await store.close()


async def test_a_missing_root(root: Path) -> None:
    store = LocalStore(root)
    for read in (store.get("a"), store.get_range("a", 0, 1), keys(store)):
        with pytest.raises(BucketNotFound, match="does not exist"):
            await read
    await store.delete(["a"])
    await store.create("a", b"1")
    assert await store.get("a") == b"1"
    await store.close()


async def test_a_root_that_vanishes(root: Path) -> None:
    store = LocalStore(root)
    await store.create("a", b"1")
    (root / "a").unlink()
    root.rmdir()
    with pytest.raises(BucketNotFound):
        await store.get("a")  # and not 'no such object', which might be taken for an empty store
    with pytest.raises(BucketNotFound):
        await store.create("b", b"1")
    await store.close()


async def test_a_folder_that_somebody_cleaned_away_is_made_again(root: Path) -> None:
    store = LocalStore(root)
    await store.create("a/b", b"1")
    await store.delete(["a/b"])
    (root / "a").rmdir()
    with pytest.raises(StoreUnavailable, match="a folder vanished"):
        await store.create("a/b", b"2")
    await store.create("a/b", b"3")
    assert await store.get("a/b") == b"3"
    await store.close()


async def test_a_key_that_is_a_folder_of_another(root: Path) -> None:
    store = LocalStore(root)
    await store.create("a/b", b"1")
    for write in (store.create("a", b"1"), store.put("a", b"1")):
        with pytest.raises(StoreError) as caught:
            await write
        assert type(caught.value) is StoreError
    with pytest.raises(ObjectNotFound):
        await store.get("a")
    with pytest.raises(ObjectNotFound):
        await store.get("a/b/c")
    await store.delete(["a", "a/b/c"])
    for write in (store.create("a/b/c", b"1"), store.put("a/b/c", b"1")):
        with pytest.raises(StoreError, match="no key can be below it"):
            await write
    assert await store.get("a/b") == b"1"
    assert temporary(root) == []
    await store.close()


async def test_a_large_folder_is_listed_in_pages(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(root)
    names = [f"p/{number:03d}" for number in range(25)]
    for name in names:
        await store.put(name, b"x")
    monkeypatch.setattr(_local, "_LIST_PAGE", 10)
    seen: list[str] = []
    async for info in store.list("p/"):
        seen.append(info.key)
        if info.key == "p/004":
            await store.delete(["p/003", "p/024"])  # the rest goes on
    assert seen == names[:24]
    await store.close()


async def test_nested_keys_are_listed_by_key(root: Path) -> None:
    store = LocalStore(root)
    names = ["a-b", "a.c/x", "a/b", "a/c/d", "a/c-d", "a0", "b/a", "b/a.b"]
    for name in names:
        await store.put(name, b"")
    assert await keys(store) == sorted(names)
    for after in [*names, "a", "a/", "a/c/", "b"]:
        assert await keys(store, "", after) == [n for n in sorted(names) if n > after], after
    assert await keys(store, "a/c") == ["a/c-d", "a/c/d"]
    (root / "not a key").write_text("x")
    assert await keys(store) == sorted(names)
    await store.close()


@pytest.mark.parametrize(("folder", "file"), [(0o755, 0o644), (0o750, 0o640), (0o700, 0o600)])
async def test_who_may_read_the_folder_may_read_the_objects(
    root: Path, folder: int, file: int
) -> None:
    root.mkdir()
    root.chmod(folder)
    store = LocalStore(root)
    await store.create("a/created", b"1")
    await store.put("a/put", b"2")
    await store.close()
    modes = {path.stat().st_mode & 0o777 for path in (root / "a").iterdir()}
    assert modes == {file}
