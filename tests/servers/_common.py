"""Plumbing shared by the start_*.py scripts beside this file (stdlib only).

Every script has the same life cycle, and it is all here:

1. parse the common options (--port, --data, --bucket, --timeout, --no-stdin);
2. if --port is given and a healthy server of this kind already answers there,
   reuse it (that makes a second start with the same --port harmless);
3. otherwise start the server on loopback, in a scratch folder unless --data;
4. wait until it really stores an object, not only until the port is open;
5. print ONE line of JSON on stdout, flushed, and nothing else on stdout;
6. block until stdin closes, or SIGTERM/SIGINT comes, then stop the server and
   remove the scratch folder. A server that was only reused is left running.

Exit status: 0 after an ordinary stop, 1 when the server could not be started
or died by itself (the end of its log is then on stderr).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"


class StartError(RuntimeError):
    """The server could not be started; the message says why."""


def parse_args(
    doc: str, add: Callable[[argparse.ArgumentParser], None] | None = None
) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--port", type=int, default=0, help="port of the API (default: a free one)")
    p.add_argument(
        "--data",
        help="keep the data in this folder (default: a scratch folder, removed at the end)",
    )
    p.add_argument(
        "--bucket",
        default="test-bucket",
        help="bucket or container to create (default: %(default)s)",
    )
    p.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        help="seconds to wait for readiness (default: %(default)s)",
    )
    p.add_argument(
        "--no-stdin",
        action="store_true",
        help="do not stop when stdin closes; only SIGTERM/SIGINT stop it",
    )
    if add:
        add(p)
    return p.parse_args()


def free_ports(n: int) -> list[int]:
    """n distinct free loopback ports (all held open until all are chosen)."""
    socks = [socket.socket() for _ in range(n)]
    try:
        for s in socks:
            s.bind((HOST, 0))
        return [s.getsockname()[1] for s in socks]
    finally:
        for s in socks:
            s.close()


def port_is_open(port: int) -> bool:
    with socket.socket() as s:
        s.settimeout(0.5)
        return s.connect_ex((HOST, port)) == 0


def find_program(name: str, env: str, extra_dirs: Sequence[Path] = ()) -> str:
    """Path of a program: $env, then beside this Python, then extra_dirs, then PATH."""
    if os.environ.get(env):
        return os.environ[env]
    dirs = [str(Path(sys.executable).parent), *map(str, extra_dirs), os.environ.get("PATH", "")]
    found = shutil.which(name, path=os.pathsep.join(dirs))
    if not found:
        raise StartError(f"{name} not found: install it (see README.md) or set {env}")
    return found


def _die_with_parent() -> None:
    """Linux: let the kernel end the server if this script is killed with SIGKILL."""
    with contextlib.suppress(Exception):
        ctypes.CDLL("libc.so.6").prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG


class Server:
    """One child process with its scratch folder and its log."""

    def __init__(self, name: str, data: str | None, grace: float) -> None:
        self.name, self.grace = name, grace
        # Short on purpose: unix sockets in it must stay under 108 characters.
        self.scratch = Path(tempfile.mkdtemp(prefix=f"{name[:4]}-"))
        self.data = Path(data).resolve() if data else self.scratch / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self.log = self.scratch / "log"
        self.litter: list[Path] = []  # files that the server leaves outside its folder
        self.proc: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> subprocess.Popen[bytes]:
        """The child process."""
        assert self.proc is not None, "spawn comes first"
        return self.proc

    def spawn(self, argv: list[str], env: dict[str, str] | None = None) -> None:
        with open(self.log, "ab") as log:
            self.proc = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.scratch,
                env={**os.environ, **(env or {})},
                preexec_fn=_die_with_parent,
            )

    def wait_ready(self, probe: Callable[[], None], timeout: float, stop: threading.Event) -> None:
        """Call probe until it does not raise; give up when the child exits."""
        end, last = time.monotonic() + timeout, None
        while time.monotonic() < end:
            if stop.is_set():
                raise StartError(f"{self.name}: told to stop before it was ready")
            if self.running.poll() is not None:
                raise StartError(
                    f"{self.name} exited with {self.running.returncode}\n{self.log_tail()}"
                )
            try:
                return probe()
            except Exception as e:  # not up yet: any client error counts
                last = e
                time.sleep(0.1)
        raise StartError(f"{self.name} not ready in {timeout:.0f} s: {last!r}\n{self.log_tail()}")

    def log_tail(self, lines: int = 25) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        if self.proc and self.proc.poll() is None:
            self.proc.terminate()
            try:
                self.proc.wait(self.grace)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
        for path in self.litter:
            path.unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)


def main(
    name: str,
    args: argparse.Namespace,
    start: Callable[[Server, int], None],
    probe: Callable[[int], None],
    describe: Callable[[int], dict[str, Any]],
    grace: float = 5.0,
) -> int:
    """The life cycle above. start(server, port) spawns; probe(port) raises until ready."""
    stop = threading.Event()
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, lambda *_: stop.set())

    server, port, reused = None, args.port, False
    try:
        if args.port and port_is_open(args.port):
            try:
                probe(args.port)
                reused = True
            except Exception as e:
                raise StartError(f"port {args.port} is taken by something else: {e!r}") from None
        else:
            # A free port can be lost to another process between choosing and
            # binding it, so without --port two more tries are made.
            for attempt in range(1 if args.port else 3):
                port = args.port or free_ports(1)[0]
                server = Server(name, args.data, grace)
                try:
                    start(server, port)
                    server.wait_ready(partial(probe, port), args.timeout, stop)
                    break
                except StartError:
                    lost_port = server.proc is not None and server.proc.poll() is not None
                    server.stop()
                    if not lost_port or args.port or attempt == 2:
                        raise
        info = {
            "server": name,
            "reused": reused,
            "pid": server.running.pid if server else None,
            "port": port,
        }
        print(json.dumps({**info, **describe(port)}), flush=True)

        if not args.no_stdin:

            def watch() -> None:
                while os.read(0, 4096):
                    pass
                stop.set()

            threading.Thread(target=watch, daemon=True).start()
        while not stop.wait(0.2):
            if server and server.running.poll() is not None:
                raise StartError(
                    f"{name} died with {server.running.returncode}\n{server.log_tail()}"
                )
        return 0
    except StartError as e:
        print(f"{name}: {e}", file=sys.stderr, flush=True)
        return 1
    finally:
        if server:
            server.stop()
