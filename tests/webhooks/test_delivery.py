"""Deliveries of webhooks: what is sent, when it is tried again, and when it is given up."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from taquba import Effects, ManualClock, Queue, QueueConfig, RetryPolicy
from taquba.errors import InvalidArgument, InvalidSignature, InvalidType, InvalidUrl, ValueTooLarge
from taquba.objectstore import MemoryStore
from taquba.queue import Job, JobState
from taquba.webhooks import (
    MAX_BODY_SIZE,
    MAX_URL_LENGTH,
    WebhookDeliverer,
    WebhookHook,
    enqueue_webhook,
    verify,
)
from taquba.workflow import Cancel, Fail, Outcome, Step, Succeed, WorkflowRuntime

pytestmark = pytest.mark.anyio

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
URL = "https://example.org/done?to=ann"
CONFIG = QueueConfig(jitter=False)
EVEN = RetryPolicy(base=10, max=3600, jitter=False)


@dataclass
class Bed:
    queue: Queue
    clock: ManualClock
    requests: list[httpx.Request]

    async def send(self, url: str = URL, body: bytes = b"body", **options: Any) -> str:
        """Let a webhook be sent; the id of its job."""
        effects = enqueue_webhook(Effects(), url, body, **{"retry": EVEN, **options})
        committed = await self.queue.commit(effects)
        await self.clock.advance(0)
        return committed.effects[0].job_id

    async def dead(self) -> tuple[Job, ...]:
        return (await self.queue.list_jobs("webhooks", JobState.DEAD)).jobs


Answer = httpx.Response | Exception | Callable[[httpx.Request], Any]


@asynccontextmanager
async def bed(*answers: Answer, secret: Any = SECRET, **options: Any) -> AsyncIterator[Bed]:
    """A deliverer whose requests get these answers, and the last one for ever."""
    left = list(answers)
    requests: list[httpx.Request] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        given = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(given, Exception):
            raise given
        if isinstance(given, httpx.Response):
            return httpx.Response(given.status_code, headers=given.headers, content=given.content)
        return await given(request)

    clock = ManualClock()
    async with (
        Queue.open(MemoryStore(), clock=clock, config=CONFIG) as queue,
        httpx.AsyncClient(transport=httpx.MockTransport(answer), follow_redirects=True) as client,
        WebhookDeliverer(queue, secret=secret, client=client, **options),
    ):
        yield Bed(queue, clock, requests)


async def count(queue: Queue) -> int:
    return (await queue.read("SELECT count(*) FROM jobs"))[0][0]


async def test_what_is_sent() -> None:
    async with bed(httpx.Response(204)) as t:
        body = "Grüße \x00".encode()
        job_id = await t.send(body=body, headers={"Content-Type": "text/plain", "X-A": "b c"})
        [request] = t.requests
        assert (request.method, str(request.url), request.content) == ("POST", URL, body)
        assert (request.headers["content-type"], request.headers["x-a"]) == ("text/plain", "b c")
        assert request.headers["user-agent"].startswith("taquba/")
        assert request.headers["webhook-id"] == job_id
        assert verify(request.headers, body, SECRET, clock=t.clock).id == job_id
        with pytest.raises(InvalidSignature):
            verify(request.headers, body + b"!", SECRET, clock=t.clock)
        assert await count(t.queue) == 0


async def test_the_id_is_the_same_in_each_attempt_and_the_signature_is_new() -> None:
    """Also after a redrive: a receiver that remembers ids handles each delivery once."""
    async with bed(httpx.Response(500), httpx.Response(500), httpx.Response(200)) as t:
        job_id = await t.send(max_attempts=2)
        await t.clock.advance(10)
        [dead] = await t.dead()
        assert dead.id == job_id and "answered 500" in str(dead.last_error)
        await t.clock.advance(timedelta(days=1))
        await t.queue.requeue_dead(job_id)
        await t.clock.advance(0)
        assert len(t.requests) == 3 and await count(t.queue) == 0
        assert {request.headers["webhook-id"] for request in t.requests} == {job_id}
        stamps = [int(request.headers["webhook-timestamp"]) for request in t.requests]
        assert [stamp - stamps[0] for stamp in stamps] == [0, 10, 10 + 86_400]
        assert verify(t.requests[2].headers, b"body", SECRET, clock=t.clock).id == job_id
        with pytest.raises(InvalidSignature, match="old"):
            verify(t.requests[0].headers, b"body", SECRET, clock=t.clock)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_answers_that_end_a_delivery(status: int) -> None:
    async with bed(httpx.Response(status, content=b"x" * 1000)) as t:
        await t.send()
        assert (len(t.requests), await count(t.queue)) == (1, 0)


@pytest.mark.parametrize(
    "answer",
    [
        *(httpx.Response(status) for status in (408, 425, 429, 500, 502, 503, 504, 599)),
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("slow"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("hung up"),
        httpx.ProxyError("proxy"),
    ],
    ids=lambda answer: str(getattr(answer, "status_code", type(answer).__name__)),
)
async def test_what_is_tried_again(answer: Answer) -> None:
    async with bed(answer, httpx.Response(200)) as t:
        await t.send()
        assert (await t.queue.stats("webhooks")).scheduled == 1
        await t.clock.advance(9)
        assert len(t.requests) == 1
        await t.clock.advance(1)
        assert (len(t.requests), await count(t.queue)) == (2, 0)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 400, 401, 403, 404, 410, 413, 422])
async def test_what_is_given_up_at_once(status: int) -> None:
    """Redirects too: they are not followed, even if the client would."""
    headers = {"location": "https://example.org/elsewhere", "retry-after": "5"}
    answer = httpx.Response(status, headers=headers, content="nö\n\x1b[31mred".encode())
    async with bed(answer) as t:
        await t.send()
        [dead] = await t.dead()
        assert len(t.requests) == 1
        assert dead.last_error is not None
        assert dead.last_error.startswith(f"{URL} answered {status}")
        if status >= 400:  # people can read what the receiver said
            assert dead.last_error.endswith(": nö  [31mred")
        assert str(dead.last_error).isprintable()


async def test_attempts_are_used_up() -> None:
    async with bed(httpx.ConnectError("refused")) as t:
        await t.send(max_attempts=3)
        await t.clock.advance(3600)
        [dead] = await t.dead()
        assert (len(t.requests), dead.attempts) == (3, 3)
        assert dead.last_error == f"{URL}: ConnectError: refused"


async def test_the_default_goes_on_for_about_a_day() -> None:
    async with bed(httpx.Response(503)) as t:
        await t.queue.commit(enqueue_webhook(Effects(), URL, b""))
        await t.clock.advance(timedelta(days=2))
        assert len(t.requests) == 16
        assert len(await t.dead()) == 1


def _http_date(seconds: float) -> str:
    return format_datetime(
        datetime.fromtimestamp(ManualClock().now_ms() / 1000 + seconds, UTC), usegmt=True
    )


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("120", 120),
        (" 120 ", 120),
        (_http_date(120), 120),
        ("0", 10),
        ("5", 10),  # the backoff is longer
        (_http_date(-50), 10),
        ("-1", 10),
        ("1e3", 10),
        ("soon", 10),
        ("１２０", 10),
        ("", 10),
        ("86401", 86_400),
        ("9" * 500, 86_400),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400),
        ("Fri, 99 Foo 2026 23:59:59 GMT", 10),
        ("Fri, 31 Dec 9999 23:59:59 -2300", 86_400),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after(status: int, value: str, wait: int) -> None:
    """It is honoured up to a day; what is no time is as if it were not there."""
    headers = [(b"retry-after", value.encode())]
    async with bed(httpx.Response(status, headers=headers), httpx.Response(200)) as t:
        await t.send()
        await t.clock.advance(wait - 1)
        assert len(t.requests) == 1
        await t.clock.advance(1)
        assert (len(t.requests), await count(t.queue)) == (2, 0)


async def test_an_answer_that_never_ends() -> None:
    """A receiver cannot hold a delivery for longer than the timeout, nor fill the memory."""

    async def drips() -> AsyncIterator[bytes]:
        while True:
            yield b"."
            await asyncio.Event().wait()

    async def floods() -> AsyncIterator[bytes]:
        nonlocal flooded
        while True:
            flooded += 1
            yield b"x" * 1024

    flooded = 0

    async def dripping(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=drips())

    async def flooding(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=floods())

    async with bed(dripping, flooding, timeout=15) as t:
        await t.send()
        await t.clock.advance(15.5)
        assert (await t.queue.stats("webhooks")).claimed == 1
        await t.clock.advance(0.5)
        [job] = (await t.queue.list_jobs("webhooks", JobState.SCHEDULED)).jobs
        assert (job.attempts, job.error_type) == (1, "TimeoutError") or job.last_error
        await t.clock.advance(10)
        assert (len(t.requests), await count(t.queue)) == (2, 0)
        assert flooded < 100


async def test_secrets() -> None:
    """Several while one replaces another, one for each receiver, or none."""
    old = b"an old secret, of 27 bytes."
    async with bed(httpx.Response(200), secret=[SECRET, old]) as t:
        await t.send()
        for secret in (SECRET, old):
            verify(t.requests[0].headers, b"body", secret, clock=t.clock)
    async with bed(httpx.Response(200), secret=lambda url: old if "ann" in url else SECRET) as t:
        await t.send()
        verify(t.requests[0].headers, b"body", old, clock=t.clock)
    async with bed(httpx.Response(200), secret=None) as t:
        await t.send()
        assert "webhook-signature" not in t.requests[0].headers
        assert t.requests[0].headers["webhook-id"]
    async with bed(httpx.Response(200), secret=lambda url: b"short") as t:
        await t.send()
        [dead] = await t.dead()
        assert t.requests == [] and "24 to 64" in str(dead.last_error)


async def test_urls_that_are_not_allowed() -> None:
    async with bed(httpx.Response(200), allow=lambda url: "example.org" in url) as t:
        await t.send()
        await t.send("http://localhost:8080/admin")
        assert len(t.requests) == 1
        [dead] = await t.dead()
        assert "not allowed" in str(dead.last_error)


async def test_jobs_that_are_no_webhooks() -> None:
    async with bed(httpx.Response(200)) as t:
        for headers in (
            {},
            {"webhook.url": "ftp://example.org"},
            {"webhook.url": URL, "webhook.header.host": "elsewhere"},
            {"webhook.url": URL, "webhook.header.x": "a\r\nb: c"},
        ):
            await t.queue.enqueue("webhooks", b"", headers=headers)
        await t.clock.advance(0)
        assert (len(await t.dead()), t.requests) == (4, [])


async def test_leaving_the_block_gives_back_what_is_under_way() -> None:
    async def hangs(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    store, clock = MemoryStore(), ManualClock()
    async with Queue.open(store, clock=clock) as queue:
        transport = httpx.MockTransport(hangs)
        async with httpx.AsyncClient(transport=transport) as client:
            go = asyncio.Event()

            async def work() -> None:
                async with WebhookDeliverer(queue, secret=None, client=client, drain_timeout=3):
                    await go.wait()

            working = asyncio.ensure_future(work())
            await clock.advance(0)
            await queue.commit(enqueue_webhook(Effects(), URL, b""))
            await clock.advance(0)
            go.set()
            await clock.advance(2)
            assert not working.done()
            await clock.advance(1)
            await working
        [job] = (await queue.list_jobs("webhooks", JobState.PENDING)).jobs
        assert job.attempts == 0


# -- the hook -------------------------------------------------------------------------------------


async def runner(step: Step) -> Outcome:
    match step.payload:
        case b"fail":
            return Fail("es gibt keine Größe")
        case b"cancel":
            return Cancel("")
        case b"nothing":
            return Succeed()
        case _:
            return Succeed(b"\x00result")


@asynccontextmanager
async def hooked(hook: WebhookHook, **options: Any) -> AsyncIterator[tuple[Bed, WorkflowRuntime]]:
    async with bed(httpx.Response(200), **options) as t:
        async with WorkflowRuntime(t.queue, runner, terminal_hook=hook) as runtime:
            yield t, runtime


async def test_a_run_with_a_url_is_told() -> None:
    """HOOK-19, HOOK-21: one delivery, with the result or the error, and the two headers."""
    told: dict[str, tuple[bytes, str, str]] = {}
    async with hooked(WebhookHook()) as (t, runtime):
        for input in (b"ok", b"nothing", b"fail", b"cancel"):
            await runtime.submit(input, run_id=input.decode(), headers={"callback_url": URL})
            await runtime.wait(input.decode())
        await t.clock.advance(0)
        for request in t.requests:
            verify(request.headers, request.content, SECRET, clock=t.clock)
            run_id, status, kind = (
                request.headers[name]
                for name in ("Workflow-Run-Id", "Workflow-Run-Status", "Content-Type")
            )
            assert run_id not in told
            told[run_id] = (request.content, status, kind)
        assert await count(t.queue) == 0
    binary, text = "application/octet-stream", "text/plain; charset=utf-8"
    assert told == {
        "ok": (b"\x00result", "succeeded", binary),
        "nothing": (b"", "succeeded", binary),
        "fail": ("es gibt keine Größe".encode(), "failed", text),
        "cancel": (b"", "cancelled", text),
    }


async def test_a_run_without_a_url_leaves_no_job() -> None:
    """HOOK-20"""
    async with hooked(WebhookHook()) as (t, runtime):
        for headers in ({}, {"callback_url": ""}, {"other": URL}):
            run = await runtime.submit(b"", headers=headers)
            await runtime.wait(run.run_id)
        await t.clock.advance(0)
        assert t.requests == []
        assert (await t.queue.list_queues()).count("webhooks") == 0
        assert await count(t.queue) == 0


async def test_a_url_for_all_and_urls_of_their_own() -> None:
    hook = WebhookHook(url="http://example.org/all", url_header="to")
    async with hooked(hook) as (t, runtime):
        for headers in ({}, {"to": URL}):
            run = await runtime.submit(b"", headers=headers)
            await runtime.wait(run.run_id)
        await t.clock.advance(0)
        assert [str(r.url) for r in t.requests] == ["http://example.org/all", URL]
    async with hooked(WebhookHook(url=URL, url_header=None)) as (t, runtime):
        run = await runtime.submit(b"", headers={"callback_url": "http://example.org/other"})
        await runtime.wait(run.run_id)
        await t.clock.advance(0)
        assert [str(r.url) for r in t.requests] == [URL]


async def test_a_body_of_one_s_own() -> None:
    import json

    hook = WebhookHook(
        url=URL,
        body=lambda outcome: json.dumps({"run": outcome.run_id, "ö": outcome.error}).encode(),
        content_type="application/json",
    )
    async with hooked(hook) as (t, runtime):
        await runtime.submit(b"fail", run_id="r")
        await runtime.wait("r")
        await t.clock.advance(0)
        assert t.requests[0].headers["content-type"] == "application/json"
        assert json.loads(t.requests[0].content)["run"] == "r"


@pytest.mark.parametrize("url", ["ftp://example.org", "https://user:pw@example.org/", "example"])
async def test_a_run_whose_url_is_none(url: str) -> None:
    """10.5: the notification is dead, and says why; the run ended as it did."""
    async with hooked(WebhookHook()) as (t, runtime):
        await runtime.submit(b"", run_id="r", headers={"callback_url": url})
        assert (await runtime.wait("r")).outcome.result == b"\x00result"
        await t.clock.advance(0)
        [dead] = (await t.queue.list_jobs(runtime.hook_queue, JobState.DEAD)).jobs
        assert "URL" in str(dead.last_error) or "cannot be sent" in str(dead.last_error)
        assert t.requests == []


async def test_a_result_that_is_too_large() -> None:
    async with hooked(WebhookHook(url=URL, max_body_size=6)) as (t, runtime):
        await runtime.submit(b"", run_id="r")
        await runtime.wait("r")
        await t.clock.advance(0)
        [dead] = (await t.queue.list_jobs(runtime.hook_queue, JobState.DEAD)).jobs
        assert "7 bytes and may have 6" in str(dead.last_error)


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.org",
        "//example.org",
        "https://",
        "https:///path",
        "ftp://example.org",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://example.org:99999/",
        "https://example.org:0/",
        "https://exa mple.org/",
        "https://example.org/\r\nX: y",
        "https://example.org\\@evil.org/",
        "https://ann@example.org/",
        "https://ann:pw@example.org/",
        "https://[::1",
        "https://example.org/" + "x" * MAX_URL_LENGTH,
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(InvalidUrl):
        enqueue_webhook(Effects(), url, b"")


def test_urls_that_are_accepted() -> None:
    longest = "https://example.org/"
    longest += "x" * (MAX_URL_LENGTH - len(longest))
    for url in (longest, "http://localhost:8080", "https://[::1]:1/ö?ä=ü#x", "HTTPS://EXAMPLE.org"):
        enqueue_webhook(Effects(), url, b"")


def test_bodies_at_the_edge() -> None:
    enqueue_webhook(Effects(), URL, bytes(MAX_BODY_SIZE))
    for call in (
        lambda: enqueue_webhook(Effects(), URL, bytes(MAX_BODY_SIZE + 1)),
        lambda: enqueue_webhook(Effects(), URL, b"12345", max_body_size=4),
    ):
        with pytest.raises(ValueTooLarge):
            call()


@pytest.mark.parametrize(
    "headers",
    [
        {"X": "ö"},
        {"X": "a\nb"},
        {"X Y": "a"},
        {"": "a"},
        {"Ä": "a"},
        {"Webhook-Id": "a"},
        {"Content-Length": "5"},
        {"Host": "elsewhere"},
    ],
    ids=str,
)
def test_headers_that_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        enqueue_webhook(Effects(), URL, b"", headers=headers)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"url_header": None}, InvalidArgument),
        ({"url": "nonsense"}, InvalidUrl),
        ({"url": 5}, InvalidType),
        ({"url_header": 5}, InvalidType),
        ({"body": b"fixed"}, InvalidType),
        ({"content_type": "text/plain\n"}, InvalidArgument),
        ({"content_type": None}, InvalidType),
        ({"queue_name": ""}, InvalidArgument),
        ({"max_attempts": 0}, InvalidArgument),
        ({"retry": 5}, InvalidType),
        ({"max_body_size": 0}, InvalidArgument),
        ({"max_body_size": 2**40}, InvalidArgument),
    ],
    ids=str,
)
def test_a_hook_that_cannot_be_is_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        WebhookHook(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"secret": "plain"},
        {"secret": []},
        {"secret": 5},
        {"secret": SECRET, "timeout": 0},
        {"secret": SECRET, "timeout": "5"},
        {"secret": SECRET, "client": 5},
        {"secret": SECRET, "allow": ["example.org"]},
        {"secret": SECRET, "concurrency": 0},
        {"secret": SECRET, "queue_name": ""},
    ],
    ids=str,
)
async def test_a_deliverer_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    async with Queue.open("memory://") as queue:
        with pytest.raises(InvalidArgument):
            WebhookDeliverer(queue, **options)
        with pytest.raises(InvalidType):
            WebhookDeliverer("memory://", secret=None)
