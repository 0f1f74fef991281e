"""Processes of the fault matrix, as its tests see them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.servers.lossy_proxy import How, LossyProxy, Seen

from .judge import Contents, broken_promises, open_and_read, parse_log
from .plan import Plan
from .verification import findings

__all__ = [
    "FAILED",
    "FENCED",
    "KILLED",
    "LONG",
    "Life",
    "Nursery",
    "Proxy",
    "World",
    "new_world",
    "snapshot",
]

LONG = os.environ.get("TAQUBA_LONG_FAULTS") == "1"
"""Whether the tests take the time that the real faults take."""

PATIENCE = 60.0
"""Seconds that something may take which takes one or two."""

ROOT = Path(__file__).parents[2]
KILLED = -signal.SIGKILL
FENCED = 3
FAILED = 4


class Nursery:
    """Starts processes: see `tests.faults.nursery`."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair()
        kept = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.nursery", str(theirs.fileno())],
                cwd=ROOT,
                env={**kept, "AWS_EC2_METADATA_DISABLED": "true"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        if self._connection.recv(100) != b"ready":
            raise RuntimeError("the nursery did not start; see its stderr")
        self._lock = threading.Lock()

    def start(self, plan: Plan, told: threading.Condition) -> Life:
        command, ours = os.pipe()
        events, output = os.pipe()
        errors = os.open(plan.stderr, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        with self._lock:
            message = plan.to_json().encode()
            socket.send_fds(self._connection, [message], [command, output, errors])
            pid = int(self._connection.recv(100))
        for descriptor in (command, output, errors):
            os.close(descriptor)
        return Life(self, plan, pid, ours, events, told)

    def wait(self, pid: int) -> int:
        """The exit status of a process that has ended, or is about to."""
        with self._lock:
            self._connection.send(b"%d" % pid)
            return int(self._connection.recv(100))

    def close(self) -> None:
        self._connection.close()
        self._process.wait(PATIENCE)


class Life:
    """A process, its events, and what it is told."""

    def __init__(
        self,
        nursery: Nursery,
        plan: Plan,
        pid: int,
        commands: int,
        events: int,
        told: threading.Condition,
    ) -> None:
        self.plan = plan
        self.pid = pid
        self.events: list[str] = []
        self.code: int | None = None
        self._nursery = nursery
        self._commands = commands
        self._told = told
        self.silent = False
        """Whether it says nothing any more, since it has ended."""
        self._reader = threading.Thread(target=self._read, args=(events,), daemon=True)
        self._reader.start()

    def _read(self, events: int) -> None:
        with open(events, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with self._told:
                    self.events.append(line.rstrip("\n"))
                    self._told.notify_all()
        with self._told:
            self.silent = True
            self._told.notify_all()

    @property
    def now(self) -> int:
        """A place among the events, for `expect`."""
        return len(self.events)

    def expect(self, text: str, *, after: int = 0, count: int = 1, within: float = PATIENCE) -> int:
        """Wait for the `count`-th event after a place that contains this; the place behind it."""
        end = time.monotonic() + within
        at, left = after, count
        with self._told:
            while True:
                while at < len(self.events):
                    at += 1
                    if text in self.events[at - 1]:
                        left -= 1
                        if left == 0:
                            return at
                if self.silent or not self._told.wait(end - time.monotonic()):
                    why = "it ended" if self.silent else f"within {within} s it did not"
                    raise AssertionError(
                        f"{self.plan.name} should say {text!r} {count} times, but {why}: "
                        f"{self.events[-12:]} {self.errors()[-3000:]}"
                    )

    def errors(self) -> str:
        """What it wrote to its standard error: nothing, if all is well."""
        return Path(self.plan.stderr).read_text()

    def count(self, text: str, *, after: int = 0) -> int:
        return sum(text in event for event in self.events[after:])

    def tell(self, command: str) -> None:
        os.write(self._commands, f"{command}\n".encode())

    def signal(self, number: int) -> None:
        if self.code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        with contextlib.suppress(BrokenPipeError):
            self.tell("stop")
        return self.wait()

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        if self.code is None:
            self._reader.join(PATIENCE)
            if self._reader.is_alive():
                raise AssertionError(f"{self.plan.name} does not end: {self.events[-12:]}")
            self.code = self._nursery.wait(self.pid)
            os.close(self._commands)
        return self.code


class World:
    """A store, a log, and the processes that use them."""

    def __init__(
        self,
        nursery: Nursery,
        home: Path,
        *,
        target: str | None = None,
        options: dict[str, Any] | None = None,
        payload: int = 100,
    ) -> None:
        home.mkdir(exist_ok=True)
        self.home = home
        self.target = str(home / "store") if target is None else target
        self.options = options or {}
        self.payload = payload
        self.log = home / "log"
        self.log.touch()
        self.lives: list[Life] = []
        self._told = threading.Condition()
        self._nursery = nursery

    def start(self, **changes: Any) -> Life:
        """A further process."""
        name = changes.pop("name", chr(ord("A") + len(self.lives) % 26) + str(len(self.lives)))
        plan = Plan(
            name=name,
            log=str(self.log),
            target=self.target,
            options=self.options,
            payload=self.payload,
            stderr=str(self.home / f"stderr-{name}"),
        )
        life = self._nursery.start(replace(plan, **changes), self._told)
        self.lives.append(life)
        return life

    def copy(self, other: World) -> None:
        """Begin with what another world has come to."""
        shutil.copytree(other.target, self.target)
        shutil.copy(other.log, self.log)

    def first_to_end(self, *lives: Life) -> Life:
        """Wait until one of these has ended."""
        with self._told:
            if not self._told.wait_for(lambda: any(life.silent for life in lives), PATIENCE):
                raise AssertionError(f"none of {[life.plan.name for life in lives]} ends")
        return next(life for life in lives if life.silent)

    def end(self) -> None:
        for life in self.lives:
            if life.code is None:
                life.signal(signal.SIGKILL)
                life.wait()

    def judge(self, *, thoroughly: bool = True) -> Contents:
        """Open the store, and compare it with what was acknowledged."""
        facts = parse_log(self.log.read_text())
        contents = asyncio.run(open_and_read(self.target, self.options))
        assert broken_promises(facts, contents, payload=self.payload) == []
        for life in self.lives:
            if life.code is not None:
                assert life.errors() == "", life.plan.name
        if thoroughly:
            assert asyncio.run(findings(self.target, self.options)) == []
        return contents


class Proxy:
    """A proxy in front of a server, in a thread of its own; see `LossyProxy`."""

    def __init__(self, upstream_port: int) -> None:
        self._proxy = LossyProxy(upstream_port)
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        ready = threading.Event()

        async def run() -> None:
            async with self._proxy:
                ready.set()
                await self._ended.wait()

        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(run(),))
        self._thread.start()
        assert ready.wait(PATIENCE)

    @property
    def endpoint(self) -> str:
        return self._proxy.endpoint

    @property
    def seen(self) -> list[Seen]:
        return list(self._proxy.seen)

    def _call(self, function: Callable[..., None], *args: Any, **options: Any) -> None:
        self._loop.call_soon_threadsafe(lambda: function(*args, **options))

    def lose(self, method: str, text: str = "", how: How = "drop", **options: Any) -> None:
        self._call(self._proxy.lose, method, text, how, **options)

    def shut(self, status: int, code: str) -> None:
        """Refuse every request, as S3 does, with this error code."""
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"
        self._call(self._proxy.shut, status, body.encode())

    def reopen(self) -> None:
        self._call(self._proxy.reopen)

    def wait_for(self, count: int) -> None:
        """Wait until so many more requests have come."""
        count += len(self._proxy.seen)
        arrival = asyncio.run_coroutine_threadsafe(self._proxy.arrived(count), self._loop)
        arrival.result(PATIENCE)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._loop.close()


@contextlib.contextmanager
def new_world(nursery: Nursery, home: Path, **options: Any) -> Iterator[World]:
    """A world that is gone when the block is left."""
    made = World(nursery, home, **options)
    try:
        yield made
    finally:
        made.end()


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, with its contents."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
