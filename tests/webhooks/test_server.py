"""Webhooks to a real server on the loopback, with the deliverer's own client."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from taquba import Effects, Queue, RetryPolicy
from taquba.webhooks import WebhookDeliverer, WebhookHook, enqueue_webhook, verify
from taquba.workflow import Outcome, Step, Succeed, WorkflowRuntime

pytestmark = pytest.mark.anyio

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


class Receiver:
    """A server that verifies what it gets, and answers as its path says, once each."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str, bytes]] = []
        self.cookies: list[str] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                verified = verify(dict(self.headers), body, SECRET)
                first = all(verified.id != message_id for message_id, _, _ in receiver.received)
                receiver.received.append((verified.id, self.path, body))
                status = int(self.path.removeprefix("/")) if first else 200
                if status == 0:  # hangs up without an answer
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("location", "/200")
                self.send_header("set-cookie", "a=b; path=/")
                receiver.cookies += [self.headers["cookie"]] if self.headers["cookie"] else []
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.01,))
    thread.start()
    yield receiver
    receiver.server.shutdown()
    thread.join()
    receiver.server.server_close()


async def test_deliveries_to_a_server(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    at_once = RetryPolicy(base=0)

    async def runner(step: Step) -> Outcome:
        return Succeed(b"r" * 100_000)

    async with (
        Queue.open("memory://") as queue,
        WebhookDeliverer(queue, secret=SECRET, concurrency=2),
        WorkflowRuntime(queue, runner, terminal_hook=WebhookHook()) as runtime,
    ):
        jobs: dict[str, str] = {}
        for status in ("200", "503", "0", "302", "404"):
            effects = enqueue_webhook(
                Effects(), f"{receiver.url}/{status}", status.encode(), retry=at_once
            )
            jobs[status] = (await queue.commit(effects)).effects[0].job_id
        # Nobody listens there.
        nowhere = enqueue_webhook(
            Effects(), "http://127.0.0.1:1/200", b"", retry=at_once, max_attempts=2
        )
        jobs["nowhere"] = (await queue.commit(nowhere)).effects[0].job_id
        await runtime.submit(b"", run_id="r", headers={"callback_url": f"{receiver.url}/200"})
        async with asyncio.timeout(30):
            while (stats := await queue.stats("webhooks")).pending + stats.claimed or len(
                receiver.received
            ) < 8:
                await asyncio.sleep(0.01)
        dead = {job.id: job.last_error async for job in queue.jobs("webhooks")}
    tried = {
        key: sum(each[0] == job_id for each in receiver.received) for key, job_id in jobs.items()
    }
    assert receiver.cookies == []
    assert tried == {"200": 1, "503": 2, "0": 2, "302": 1, "404": 1, "nowhere": 0}
    assert set(dead) == {jobs["302"], jobs["404"], jobs["nowhere"]}
    assert "ConnectError" in str(dead[jobs["nowhere"]])
    assert [body for _, _, body in receiver.received if len(body) > 10] == [b"r" * 100_000]
