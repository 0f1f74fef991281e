# pyright: basic, reportMissingImports=false
"""Restate: its server and a service of handlers, each in a process of its own, and HTTP calls.

The server's log is RocksDB whose write-ahead log is synced for each batch, which is its default.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from _workloads import Side, Sizes, arguments, say, work

HERE = Path(__file__).parent


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Processes:
    """The server and the service."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        service, self._ingress, self._admin, fabric = free_ports(4)
        self._service_port = service
        self._own = {
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{self._ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{self._admin}",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{fabric}",
            "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{fabric}",
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_NODE_NAME": "local",
            "RESTATE_LISTEN_MODE": "tcp",
        }
        self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1000))
        self._running: list[subprocess.Popen[bytes]] = []

    def _start(self, command: list[str], log: str, **more: str) -> subprocess.Popen[bytes]:
        with open(self.folder / log, "ab") as file:
            process = subprocess.Popen(
                command, cwd=HERE, env=os.environ | more, stdout=file, stderr=file
            )
        self._running.append(process)
        return process

    async def start_service(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "hypercorn", "--workers", "0", "_restate_service:app"]
        process = self._start(
            [*command, "-b", f"127.0.0.1:{self._service_port}"],
            "service.log",
            FIRST=str(self.folder / "first"),
        )
        await until_open(self._service_port)
        return process

    def start_server(self) -> subprocess.Popen[bytes]:
        command = [os.environ["RESTATE_SERVER"], "--no-logo", "--base-dir"]
        return self._start([*command, str(self.folder / "data")], "server.log", **self._own)

    async def register(self) -> None:
        """Tell the server of the service, as soon as it answers."""
        admin = f"http://127.0.0.1:{self._admin}/deployments"
        service = {"uri": f"http://127.0.0.1:{self._service_port}"}
        for _ in range(200):
            try:
                async with self.http.post(admin, json=service) as answer:
                    answer.raise_for_status()
                await self.call("steps_done")
                return
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)
        raise RuntimeError(f"the server does not answer; see {self.folder / 'server.log'}")

    async def call(self, handler: str, count: int | None = None, *, send: bool = False) -> int:
        path = f"/steps/{handler}{'/send' if send else ''}"
        body: dict[str, Any] = (
            {"skip_auto_headers": {"Content-Type"}} if count is None else {"json": count}
        )
        async with self.http.post(f"http://127.0.0.1:{self._ingress}{path}", **body) as answer:
            answer.raise_for_status()
            told = await answer.json()
            return 0 if send else told

    def cpu(self) -> float:
        """Processor seconds of this process and of those that it started."""
        used = time.process_time()
        for process in self._running:
            if process.poll() is None:
                fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
                used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return used

    async def stop(self) -> None:
        await self.http.close()
        for process in self._running:
            process.kill()
            process.wait()


async def until_open(port: int) -> None:
    for _ in range(500):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return
    raise RuntimeError(f"nobody listens on port {port}")


@asynccontextmanager
async def processes(folder: Path) -> AsyncIterator[Processes]:
    started = Processes(folder)
    try:
        yield started
    finally:
        await started.stop()


class Restate(Side):
    def __init__(self, parts: Processes) -> None:
        self._parts = parts

    async def run(self, steps: int) -> int:
        return await self._parts.call("run", steps)

    async def fan_out(self, children: int) -> int:
        return await self._parts.call("parent", children)

    async def steps_done(self) -> int:
        return await self._parts.call("steps_done")

    def cpu(self) -> float:
        return self._parts.cpu()


def durability() -> str:
    command = [os.environ["RESTATE_SERVER"], "--dump-config"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    log_server = done.stdout.partition("[log-server]")[2]
    wanted = ("rocksdb-disable-wal = ", "rocksdb-disable-wal-fsync = ")
    lines = [line for line in log_server.splitlines() if line.startswith(wanted)]
    return "RocksDB of the log server, " + ", ".join(lines[:2])


async def works(folder: Path, sizes: Sizes) -> None:
    async with processes(folder) as parts:
        await parts.start_service()
        parts.start_server()
        await parts.register()
        await work(Restate(parts), sizes)
    say(durability=durability())


async def leaves_and_first(folder: Path, sizes: Sizes) -> None:
    """Send calls to a service that is down, and start the server anew when it is up again."""
    async with processes(folder) as parts:
        service = await parts.start_service()
        server = parts.start_server()
        await parts.register()
        service.kill()
        service.wait()

        async def some(count: int) -> None:
            for _ in range(count):
                await parts.call("pending", send=True)

        await asyncio.gather(*(some(sizes.pending // 50) for _ in range(50)))
        say(pending=sizes.pending)
        server.kill()
        server.wait()
        await parts.start_service()
        began = time.perf_counter()
        parts.start_server()
        while not (folder / "first").exists():
            await asyncio.sleep(0.002)
        say(first_s=time.perf_counter() - began, since_start_s=time.perf_counter() - began)


if __name__ == "__main__":
    command, folder, sizes = arguments()
    if command == "work":
        asyncio.run(works(folder, sizes))
    elif command == "leave":
        asyncio.run(leaves_and_first(folder, sizes))
