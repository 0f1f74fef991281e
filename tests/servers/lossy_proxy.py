#!/usr/bin/env python3
"""A loopback HTTP/1.1 proxy that loses answers on purpose (stdlib only, asyncio).

It exists for one question: what does a client do when its write WAS applied but
the answer never arrived? Put it between a client and one of the servers here:

    async with LossyProxy(upstream_port) as proxy:
        fs = s3fs.S3FileSystem(..., endpoint_url=proxy.endpoint)
        proxy.lose("PUT", "my-key", how="drop")     # the next such request
        await fs._pipe_file("test-bucket/my-key", b"x", mode="create")
        print(proxy.seen)                           # every request line and its headers

how = "drop"    the server applies the request, then the connection closes
      "stall"   the server applies the request, then no answer ever comes
      "refuse"  the connection closes before the server sees the request
      "cut"     the server applies the request, and the connection closes in the
                middle of the answer: amid its body, or its head if it has none
      "cut request"  the connections close amid the body of the request
      "short"   the client gets half of the answer's body, under a head that says
                that this is all
      503       (any status) the server applies the request, but the client is
                told this status, with `body` and `headers`; with `reach=False`
                the server never sees the request

    proxy.shut(503, body)                           # no request gets through, until
    proxy.reopen()

Signatures stay valid: the Host header is passed on as the client sent it. With
`without="if-none-match"` it is a proxy that drops a header; a server that checks
signatures may notice that.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass, field
from typing import Literal, get_args

How = Literal["drop", "stall", "refuse", "cut", "cut request", "short"] | int

HOST = "127.0.0.1"


@dataclass
class Seen:
    """One request as it came from the client, and what became of it."""

    method: str
    target: str
    headers: dict[str, str]
    fate: str = "passed"
    status: int | None = None  # the server's answer, also when it was lost


@dataclass
class _Rule:
    method: str
    text: str
    how: How
    times: float
    body: bytes
    reach: bool
    headers: dict[str, str]
    every: int
    once_each: bool
    count: int = 0
    targets: set[str] = field(default_factory=set[str])

    def takes(self, method: str, target: str) -> bool:
        if self.times <= 0 or self.method != method or self.text not in target:
            return False
        if self.once_each and target in self.targets:
            return False
        self.targets.add(target)
        self.count += 1
        if self.count % self.every:
            return False
        self.times -= 1
        return True


@dataclass
class LossyProxy:
    upstream_port: int
    port: int = 0
    delay: float = 0.0  # added before each answer, in seconds: a slower network
    without: str = ""  # a header (in small letters) that no request keeps: an old proxy
    seen: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rules: list[_Rule] = []
        self._shut: tuple[int, bytes, dict[str, str]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def lose(
        self,
        method: str,
        text: str = "",
        how: How = "drop",
        times: float = 1,
        body: bytes = b"",
        reach: bool = True,
        headers: dict[str, str] | None = None,
        every: int = 1,
        once_each: bool = False,
    ) -> None:
        """Spoil the next `times` requests with this method and `text` in the target.

        With `every`, only each n-th of them; with `once_each`, only the first for each target.
        """
        assert isinstance(how, int) or how in get_args(get_args(How)[0])
        self._rules.append(
            _Rule(method, text, how, times, body, reach, headers or {}, every, once_each)
        )

    def shut(self, status: int, body: bytes = b"") -> None:
        """Answer every request with this, from now on; the server sees none."""
        self._shut = (status, body, {})

    def reopen(self) -> None:
        """Let requests through again."""
        self._shut = None

    def heal(self) -> None:
        """Spoil nothing any more."""
        self._rules.clear()

    async def arrived(self, count: int) -> None:
        """Return when `count` requests have come."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.seen) >= count)

    async def __aenter__(self) -> LossyProxy:
        self._server = await asyncio.start_server(self._client, HOST, self.port, limit=2**20)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _match(self, method: str, target: str) -> _Rule | None:
        for rule in self._rules:
            if rule.takes(method, target):
                return rule
        return None

    async def _client(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        up_writer = None
        try:
            up_reader, up_writer = await asyncio.open_connection(
                HOST, self.upstream_port, limit=2**20
            )
            while await self._exchange(reader, writer, up_reader, up_writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for w in (writer, up_writer):
                if w:
                    w.close()

    async def _exchange(
        self,
        reader: StreamReader,
        writer: StreamWriter,
        up_reader: StreamReader,
        up_writer: StreamWriter,
    ) -> bool:
        """One request and its answer. False: the connection is finished."""
        head = await reader.readuntil(b"\r\n\r\n")
        first, headers = _parse(head)
        method, target, _ = first.split(" ", 2)
        rule = self._match(method, target)
        seen = Seen(method, target, headers, str(rule.how) if rule else "passed")
        self.seen.append(seen)
        async with self._changed:
            self._changed.notify_all()
        if rule and rule.how == "refuse":
            return False
        made_up = self._shut
        if made_up is None and rule and not rule.reach:
            assert isinstance(rule.how, int)
            made_up = (rule.how, rule.body, rule.headers)
        if made_up is not None:
            if headers.get("expect", "").lower() != "100-continue":
                await _copy_body(headers, reader, None, is_request=True)
            status, body, extra = made_up
            writer.write(_made_up(status, b"" if method == "HEAD" else body, extra))
            await writer.drain()
            return False

        if self.without:
            lines = head.split(b"\r\n")
            lost = f"{self.without}:".encode()
            head = b"\r\n".join(line for line in lines if not line.lower().startswith(lost))
        up_writer.write(head)
        if headers.get("expect", "").lower() == "100-continue":
            answer = await up_reader.readuntil(b"\r\n\r\n")
            if b" 100 " not in answer.split(b"\r\n", 1)[0]:  # refused: no body follows
                return await self._answer(answer, method, seen, rule, up_reader, writer)
            writer.write(answer)
        if rule and rule.how == "cut request":
            body = await _read_body(headers, reader, is_request=True)
            up_writer.write(body[: len(body) // 2])
            await up_writer.drain()
            return False
        await _copy_body(headers, reader, up_writer, is_request=True)
        await up_writer.drain()
        answer = await up_reader.readuntil(b"\r\n\r\n")
        while b" 100 " in answer.split(b"\r\n", 1)[0]:
            answer = await up_reader.readuntil(b"\r\n\r\n")
        return await self._answer(answer, method, seen, rule, up_reader, writer)

    async def _answer(
        self,
        head: bytes,
        method: str,
        seen: Seen,
        rule: _Rule | None,
        up_reader: StreamReader,
        writer: StreamWriter,
    ) -> bool:
        first, headers = _parse(head)
        seen.status = int(first.split(" ")[1])
        bodyless = method == "HEAD" or seen.status in (204, 304)
        if self.delay:
            await asyncio.sleep(self.delay)
        if rule is None:
            writer.write(head)
            if not bodyless:
                await _copy_body(headers, up_reader, writer)
            await writer.drain()
            return headers.get("connection", "").lower() != "close"
        body = b"" if bodyless else await _read_body(headers, up_reader)
        # The server is done by now.
        match rule.how:
            case "stall":
                await asyncio.sleep(3600)
            case "cut":
                writer.write(head + body[: len(body) // 2] if body else head[: len(head) // 2])
            case "short":
                writer.write(_short(head, body))
            case int():
                writer.write(_made_up(rule.how, rule.body, rule.headers))
            case _:
                pass
        await writer.drain()
        return False


def _made_up(status: int, body: bytes, headers: dict[str, str]) -> bytes:
    """An answer that no server gave."""
    lines = [f"HTTP/1.1 {status} Lost", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _short(head: bytes, body: bytes) -> bytes:
    """An answer with half of the body, and nothing in its head that tells."""
    telling = (b"content-length:", b"etag:", b"x-amz-checksum", b"content-md5:")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(telling)]
    assert b"chunked" not in head.lower(), "half of a body in chunks"
    half = body[: len(body) // 2]
    lines.insert(1, b"Content-Length: %d" % len(half))
    return b"\r\n".join(lines) + half


class _Sink:
    """Collects what is written to it."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None: ...


async def _read_body(
    headers: dict[str, str], reader: StreamReader, is_request: bool = False
) -> bytes:
    sink = _Sink()
    await _copy_body(headers, reader, sink, is_request)
    return bytes(sink.data)


def _parse(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.split(":", 1) for line in lines)
    return first, {k.strip().lower(): v.strip() for k, v in pairs}


async def _copy_body(
    headers: dict[str, str],
    reader: StreamReader,
    writer: StreamWriter | _Sink | None,
    is_request: bool = False,
) -> None:
    """Pass one message body on (or swallow it when writer is None)."""

    def put(data: bytes) -> None:
        if writer:
            writer.write(data)

    if headers.get("transfer-encoding", "").lower() == "chunked":
        while True:
            line = await reader.readuntil(b"\r\n")
            put(line)
            size = int(line.split(b";")[0], 16)
            if size == 0:
                while line != b"\r\n":  # trailers, if any, then the empty line
                    line = await reader.readuntil(b"\r\n")
                    put(line)
                return
            put(await reader.readexactly(size + 2))
            if writer:
                await writer.drain()
    left = (
        int(headers["content-length"])
        if "content-length" in headers
        else (0 if is_request else None)
    )
    while left is None or left > 0:
        data = await reader.read(65536 if left is None else min(65536, left))
        if not data:
            return
        put(data)
        if writer:
            await writer.drain()
        left = None if left is None else left - len(data)
