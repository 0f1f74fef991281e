"""Bad arguments: a typed error that names the thing; nothing is written."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taquba import Delivery, Effects, Follower, ManualClock, Queue
from taquba.errors import (
    Closed,
    InvalidArgument,
    InvalidQueueName,
    InvalidRunId,
    InvalidType,
    SerializationError,
    TaqubaError,
    ValueTooLarge,
)
from taquba.jobs import JobRunner
from taquba.objectstore import MemoryStore
from taquba.testing import Sandbox
from taquba.webhooks import WebhookDeliverer
from taquba.workflow import Outcome, Step, Succeed, Workflow, WorkflowRuntime

from .harness import bed

pytestmark = pytest.mark.anyio

Call = Callable[[WorkflowRuntime], Coroutine[Any, Any, Any]]


async def done(step: Step) -> Outcome:
    return Succeed()


async def forgotten() -> bytes:
    return b""


CALLS: dict[str, tuple[Call, type[TaqubaError], str]] = {
    "input str": (lambda r: r.submit("text"), InvalidType, "input must be bytes, not str"),  # type: ignore[arg-type]
    "input None": (lambda r: r.submit(None), InvalidType, "input must be bytes"),  # type: ignore[arg-type]
    "input dict": (lambda r: r.submit({}), InvalidType, "json.dumps"),  # type: ignore[arg-type]
    "input coroutine": (lambda r: r.submit(forgotten()), InvalidType, "await"),  # type: ignore[arg-type]
    "input too large": (
        lambda r: r.submit(bytes(16 * 1024 * 1024 + 1)),
        ValueTooLarge,
        "16,777,217",
    ),
    "run id int": (lambda r: r.submit(b"", run_id=7), InvalidType, "run id"),  # type: ignore[arg-type]
    "run id bytes": (lambda r: r.submit(b"", run_id=b"r"), InvalidType, "run id"),  # type: ignore[arg-type]
    "run id empty": (lambda r: r.submit(b"", run_id=""), InvalidRunId, "run id ''"),
    "headers list": (lambda r: r.submit(b"", headers=[("a", "b")]), InvalidType, "headers"),  # type: ignore[arg-type]
    "headers empty list": (lambda r: r.submit(b"", headers=[]), InvalidType, "headers"),  # type: ignore[arg-type]
    "headers str": (lambda r: r.submit(b"", headers="a=b"), InvalidType, "headers"),  # type: ignore[arg-type]
    "header value": (lambda r: r.submit(b"", headers={"a": 1}), InvalidType, "'a'"),  # type: ignore[dict-item]
    "header name": (lambda r: r.submit(b"", headers={1: "a"}), InvalidType, "1"),  # type: ignore[dict-item]
    "header surrogate": (
        lambda r: r.submit(b"", headers={"a": "\ud800"}),
        InvalidArgument,
        "header 'a'",
    ),
    "headers too large": (
        lambda r: r.submit(b"", headers={"a": "x" * 65536}),
        ValueTooLarge,
        "headers",
    ),
    "priority str": (lambda r: r.submit(b"", priority="high"), InvalidType, "priority"),  # type: ignore[arg-type]
    "priority bool": (lambda r: r.submit(b"", priority=True), InvalidType, "priority"),
    "priority float": (lambda r: r.submit(b"", priority=1.0), InvalidType, "priority"),  # type: ignore[arg-type]
    "priority negative": (lambda r: r.submit(b"", priority=-1), InvalidArgument, "priority"),
    "priority large": (lambda r: r.submit(b"", priority=2**32), InvalidArgument, "priority"),
    "attempts 0": (lambda r: r.submit(b"", max_attempts=0), InvalidArgument, "max_attempts"),
    "attempts large": (lambda r: r.submit(b"", max_attempts=2**31), InvalidArgument, "max_att"),
    "attempts str": (lambda r: r.submit(b"", max_attempts="3"), InvalidType, "max_attempts"),  # type: ignore[arg-type]
    "run_at naive": (
        lambda r: r.submit(b"", run_at=datetime(2026, 1, 1)),  # noqa: DTZ001
        InvalidArgument,
        "time zone",
    ),
    "run_at int": (lambda r: r.submit(b"", run_at=5), InvalidType, "run_at"),  # type: ignore[arg-type]
    "run_at timedelta": (
        lambda r: r.submit(b"", run_at=timedelta(1)),  # type: ignore[arg-type]
        InvalidType,
        "run_at",
    ),
    "delay negative": (lambda r: r.submit(b"", delay=-1), InvalidArgument, "delay"),
    "delay NaN": (lambda r: r.submit(b"", delay=float("nan")), InvalidArgument, "delay"),
    "delay str": (lambda r: r.submit(b"", delay="1 h"), InvalidType, "delay"),  # type: ignore[arg-type]
    "delay and run_at": (
        lambda r: r.submit(b"", delay=1, run_at=datetime(2026, 1, 1, tzinfo=UTC)),
        InvalidArgument,
        "run_at or delay, not both",
    ),
    "once int": (lambda r: r.submit(b"", run_id="r", once=1), InvalidType, "once"),  # type: ignore[arg-type]
    "once str": (lambda r: r.submit(b"", once="no"), InvalidType, "once"),  # type: ignore[arg-type]
    "effects dict": (lambda r: r.submit(b"", effects={}), InvalidType, "effects"),  # type: ignore[arg-type]
    "effects class": (lambda r: r.submit(b"", effects=Effects), InvalidType, "effects"),  # type: ignore[arg-type]
    "status int": (lambda r: r.status(7), InvalidType, "run id"),  # type: ignore[arg-type]
    "status None": (lambda r: r.status(None), InvalidType, "run id"),  # type: ignore[arg-type]
    "outcome bytes": (lambda r: r.outcome(b"r"), InvalidType, "run id"),  # type: ignore[arg-type]
    "wait None": (lambda r: r.wait(None), InvalidType, "run id"),  # type: ignore[arg-type]
    "wait for a submission": (lambda r: r.wait(r.submit(b"")), InvalidType, "await"),  # type: ignore[arg-type]
    "wait negative": (lambda r: r.wait("r", timeout=-1), InvalidArgument, "timeout"),
    "wait nan": (lambda r: r.wait("r", timeout=float("nan")), InvalidArgument, "timeout"),
    "wait str": (lambda r: r.wait("r", timeout="5"), InvalidType, "timeout"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CALLS)
async def test_bad_arguments(name: str) -> None:
    call, error, message = CALLS[name]
    async with bed(None) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        writes = t.store.writes
        with pytest.raises(error, match=message) as caught:
            await call(t.runtime)
        assert isinstance(caught.value, ValueError)
        await t.settle()
        assert t.store.writes == writes
        assert await t.runtime.unfinished() == 1
    gc.collect()


@pytest.mark.parametrize(
    "options",
    [
        {"input": bytes(16 * 1024 * 1024)},
        {"run_id": "x" * 128},
        {"priority": 0},
        {"priority": 2**32 - 1},
        {"max_attempts": 1},
        {"max_attempts": 2**31 - 1},
        {"run_at": datetime(1970, 1, 1, tzinfo=UTC)},
        {"run_at": datetime.min.replace(tzinfo=UTC)},
        {"headers": {}},
        {"headers": {"": ""}},
        {"headers": {"a": "x" * 65_000}},
        {"headers": {f"h{n}": "" for n in range(1000)}},
        {"effects": Effects()},
    ],
    ids=lambda options: f"{options!r:.40}",
)
async def test_arguments_at_their_edges(options: dict[str, Any]) -> None:
    async with bed(done) as t:
        run = await t.runtime.submit(options.pop("input", b""), **options)
        end = await t.end(run.run_id)
        assert end.termination.status.value == "succeeded"


async def test_the_latest_start() -> None:
    async with bed(None) as t:
        run = await t.runtime.submit(b"", run_at=datetime(9999, 12, 31, tzinfo=UTC))
        status = await t.runtime.status(run.run_id)
        assert status is not None and status.state.value == "pending"


MAKING: dict[str, tuple[dict[str, Any], type[TaqubaError], str]] = {
    "concurrency 0": ({"concurrency": 0}, InvalidArgument, "concurrency is 0"),
    "concurrency -1": ({"concurrency": -1}, InvalidArgument, "concurrency"),
    "concurrency large": ({"concurrency": 100_001}, InvalidArgument, "concurrency"),
    "concurrency str": ({"concurrency": "4"}, InvalidType, "concurrency"),
    "concurrency None": ({"concurrency": None}, InvalidType, "concurrency"),
    "concurrency True": ({"concurrency": True}, InvalidType, "concurrency"),
    "concurrency float": ({"concurrency": 4.0}, InvalidType, "concurrency"),
    "name empty": ({"queue_name": ""}, InvalidQueueName, "queue name"),
    "name long": ({"queue_name": "é" * 128}, InvalidQueueName, "256 bytes"),
    "name int": ({"queue_name": 5}, InvalidType, "queue name"),
    "name surrogate": ({"queue_name": "\ud800"}, InvalidArgument, "queue name"),
    "name dict": ({"queue_name": {"a": 1}}, InvalidType, "queue name"),
    "name empty dict": ({"queue_name": {}}, InvalidType, "queue name"),
    "name list": ({"queue_name": ["a"]}, InvalidType, "queue name"),
    "workflows None": ({"workflows": None}, InvalidType, "workflows"),
    "workflows bytes": ({"workflows": b""}, InvalidType, "workflows"),
    "accepts None": ({"workflows": [Workflow("w", done, accepts=None)]}, InvalidType, "accepts"),  # type: ignore[arg-type]
    "accepts dict": ({"workflows": [Workflow("w", done, accepts={})]}, InvalidType, "accepts"),  # type: ignore[arg-type]
    "drain negative": ({"drain_timeout": -1}, InvalidArgument, "drain_timeout"),
    "drain str": ({"drain_timeout": "5"}, InvalidType, "drain_timeout"),
}


@pytest.mark.parametrize("name", MAKING)
async def test_a_runtime_with_bad_options(name: str) -> None:
    """WRK-04"""
    options, error, message = MAKING[name]
    async with Queue.open(MemoryStore(), clock=ManualClock()) as queue:
        with pytest.raises(error, match=message):
            WorkflowRuntime(queue, done, **options)


class Unshowable:
    """What cannot be shown in an error."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


ODD: dict[str, Callable[[Queue, WorkflowRuntime, Any], Any]] = {
    "run_id": lambda q, r, odd: r.submit(b"", run_id=odd),
    "headers": lambda q, r, odd: r.submit(b"", headers=odd),
    "priority": lambda q, r, odd: r.submit(b"", priority=odd),
    "max_attempts": lambda q, r, odd: r.submit(b"", max_attempts=odd),
    "run_at": lambda q, r, odd: r.submit(b"", run_at=odd),
    "once": lambda q, r, odd: r.submit(b"", once=odd),
    "workflow": lambda q, r, odd: r.submit(b"", workflow=odd),
    "timeout": lambda q, r, odd: r.wait("r", timeout=odd),
    "state": lambda q, r, odd: r.runs(odd),
    "limit": lambda q, r, odd: r.runs(limit=odd),
    "after": lambda q, r, odd: r.runs(after=odd),
    "key": lambda q, r, odd: r.signal(odd),
    "mode": lambda q, r, odd: r.signal("k", mode=odd),
    "runner": lambda q, r, odd: WorkflowRuntime(q, odd),
    "concurrency": lambda q, r, odd: WorkflowRuntime(q, concurrency=odd),
    "retention": lambda q, r, odd: WorkflowRuntime(q, retention=odd),
    "step_timeout": lambda q, r, odd: WorkflowRuntime(q, step_timeout=odd),
    "on_cancel": lambda q, r, odd: WorkflowRuntime(q, on_cancel=odd),
    "detached headers": lambda q, r, odd: Step.detached(headers=odd),
    "number": lambda q, r, odd: Step.detached(number=odd),
    "lease": lambda q, r, odd: Step.detached().lease.ensure_at_least(odd),
    "memo type": lambda q, r, odd: Step.detached().memo.memoized("k", lambda: 1, odd),
    "memo type as str": lambda q, r, odd: Step.detached().memo.memoized("k", int, "\0"),  # type: ignore[call-overload]
}


# Long text in a dict is of the right kind for headers, and a type is shown by pydantic.
_NOT_ODD = {("headers", dict), ("memo type", Unshowable)}


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        pytest.param(name, odd, id=f"{name}-{type(odd).__name__}")
        for name in ODD
        for odd in (Unshowable(), {"a": "b" * 1_000_000}, 5.5j)
        if (name, type(odd)) not in _NOT_ODD
    ],
)
async def test_what_is_odd_is_named_in_short(name: str, odd: Any) -> None:
    async with Queue.open(MemoryStore(), clock=ManualClock()) as queue:
        async with WorkflowRuntime(queue) as runtime:
            await runtime.submit(b"", run_id="r")
            with pytest.raises(InvalidArgument) as caught:
                result = ODD[name](queue, runtime, odd)
                if isinstance(result, Coroutine):
                    await result
            assert len(str(caught.value)) < 1500


async def test_content_that_is_in_pieces() -> None:
    pieces: Any = memoryview(b"abcdef")[::2]
    with pytest.raises(SerializationError, match="content"):
        await Step.detached().memo.memoized_by_content(pieces, lambda: 1)


@pytest.mark.parametrize("name", ["x", "é" * 127, "a/b c:d", "x" * 255])
async def test_names_at_their_edges(name: str) -> None:
    async with bed(done, queue_name=name) as t:
        await t.runtime.submit(b"", run_id="r")
        assert (await t.end("r")).termination.status.value == "succeeded"


async def test_a_runtime_without_an_open_queue() -> None:
    opening: Any = Queue.open(MemoryStore())
    for queue in (opening, Queue, "memory://", None):
        with pytest.raises(InvalidType, match="async with Queue.open"):
            WorkflowRuntime(queue, done)


async def test_a_runtime_that_is_not_entered() -> None:
    async with Queue.open(MemoryStore(), clock=ManualClock()) as queue:
        runtime = WorkflowRuntime(queue, done)
        for call in (
            runtime.submit(b""),
            runtime.status("r"),
            runtime.outcome("r"),
            runtime.wait("r"),
            runtime.unfinished(),
        ):
            with pytest.raises(InvalidArgument, match="async with WorkflowRuntime"):
                await call


async def test_a_plain_with_says_what_to_write() -> None:
    async def handler(delivery: Delivery) -> None: ...

    store = MemoryStore()
    async with Queue.open(store, clock=ManualClock()) as queue:
        blocks: list[Any] = [
            queue,
            queue.worker("q", handler),
            WorkflowRuntime(queue, done),
            JobRunner(queue, []),
            WebhookDeliverer(queue, secret=None),
            Sandbox(done),
            await Follower.open(store, clock=queue.clock),
        ]
        for block in blocks:
            with pytest.raises(InvalidType, match=f"'async with' for a {type(block).__name__}"):
                with block:
                    raise AssertionError("not reached")
        await blocks[-1].close()


async def test_a_runtime_is_entered_once() -> None:
    async with Queue.open(MemoryStore(), clock=ManualClock()) as queue:
        runtime = WorkflowRuntime(queue, done)
        async with runtime:
            with pytest.raises(InvalidArgument, match="used already"):
                async with runtime:
                    raise AssertionError("not reached")
            run = await runtime.submit(b"")
            await runtime.wait(run.run_id)
        with pytest.raises(InvalidArgument, match="used already"):
            async with runtime:
                raise AssertionError("not reached")


async def test_a_runtime_on_a_closed_queue() -> None:
    """The error is raised in one piece, and the task that got it is not cancelled after it."""
    queue = await Queue.open(MemoryStore(), clock=ManualClock())
    await queue.close()
    for runner in (done, None):
        with pytest.raises(Closed):
            async with WorkflowRuntime(queue, runner):
                raise AssertionError("not reached")
        for _ in range(5):
            await asyncio.sleep(0)


async def test_a_queue_that_is_closed_under_the_runtime() -> None:
    async with Queue.open(MemoryStore(), clock=ManualClock()) as queue:
        with pytest.raises(Closed):
            async with WorkflowRuntime(queue, done) as runtime:
                await queue.close()
                await runtime.submit(b"")
