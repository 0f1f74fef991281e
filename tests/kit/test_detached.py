"""Handlers and steps that are called without a queue."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import BaseModel

from taquba import Delivery
from taquba.errors import (
    InvalidArgument,
    InvalidRunId,
    InvalidType,
    ReservedName,
    SerializationError,
    ValueTooLarge,
)
from taquba.testing import request_cancel
from taquba.workflow import BlockingStep, Continue, Outcome, Step, Succeed

pytestmark = pytest.mark.anyio


async def test_a_detached_delivery() -> None:
    delivery = Delivery.detached(b"x", headers={"to": "ann"}, attempt=3)
    assert (delivery.id, delivery.queue) == ("detached", "detached")
    assert (delivery.payload, delivery.headers) == (b"x", {"to": "ann"})
    assert (delivery.attempt, delivery.max_attempts, delivery.is_last_attempt) == (3, 3, True)
    assert delivery.is_live and not delivery.should_stop
    delivery.ensure_at_least(1e9)
    assert delivery.remaining == float("inf")


async def test_a_detached_delivery_has_a_token_of_its_own() -> None:
    one, other = Delivery.detached(), Delivery.detached()
    request_cancel(one)
    await one.cancel_token.wait()
    assert one.should_stop
    one.ensure_at_least(5)  # what is detached never fails
    assert not other.cancel_token.is_cancelled


async def test_effects_of_a_detached_delivery() -> None:
    """EFF-13: they are checked as they are staged, can be looked at, and are never sealed."""
    delivery = Delivery.detached()
    delivery.effects.enqueue("mail", b"1").put("k", b"v")
    delivery.effects.delete("other")
    with pytest.raises(ValueTooLarge):
        delivery.effects.put("k", bytes(300_000))
    assert [job.queue for job in delivery.effects.jobs] == ["mail"]
    assert delivery.effects.puts == {b"k": b"v"}
    assert list(delivery.effects.deletes) == [b"other"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"payload": "text"}, InvalidType, "payload"),
        ({"attempt": 0}, InvalidArgument, "attempt"),
        ({"attempt": 4}, InvalidArgument, "attempt is 4"),
        ({"max_attempts": 0}, InvalidArgument, "max_attempts"),
        ({"headers": {"a": 1}}, InvalidType, "header"),
        ({"queue": ""}, InvalidArgument, "queue"),
        ({"job_id": "ä/"}, InvalidArgument, "job"),
    ],
)
def test_what_no_delivery_can_be(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Delivery.detached(**options)


# -- steps -------------------------------------------------------------------------------------

KINDS = [Step, BlockingStep]


@pytest.mark.parametrize("kind", KINDS)
def test_a_detached_step(kind: type[Step | BlockingStep]) -> None:
    step = kind.detached(b"x")
    assert type(step) is kind
    assert (step.run_id, step.number, step.payload, step.signal) == ("detached", 0, b"x", None)
    assert (step.attempt, step.max_attempts, step.is_last_attempt) == (1, 3, False)
    assert (step.headers, step.workflow, step.revision) == ({}, None, None)
    assert not step.cancel_token.is_cancelled


@pytest.mark.parametrize("kind", KINDS)
def test_a_detached_step_on_its_last_attempt(kind: type[Step | BlockingStep]) -> None:
    """STEP-29: it is on its last attempt, and what it holds does its part and nothing else."""
    step = kind.detached(
        b"",
        number=4,
        attempt=3,
        signal=b"yes",
        headers={"to": "ann"},
        run_id="r",
        workflow="w",
        revision="2",
    )
    assert step.is_last_attempt
    assert (step.run_id, step.number, step.signal, step.headers) == ("r", 4, b"yes", {"to": "ann"})
    assert (step.workflow, step.revision) == ("w", "2")
    step.lease.ensure_at_least(1e9)
    assert step.lease.remaining == float("inf")
    request_cancel(step)
    assert step.cancel_token.is_cancelled
    step.lease.ensure_at_least(1)  # never fails
    assert not kind.detached().cancel_token.is_cancelled


def test_effects_of_a_detached_step() -> None:
    """EFF-13, HOOK-10: they are checked as they are staged, on any queue, and never sealed."""
    step = Step.detached()
    step.effects.enqueue("workflow-steps", b"").put("k", b"v")
    assert step.effects.puts == {b"k": b"v"}
    with pytest.raises(InvalidType):
        step.effects.enqueue("q", "text")  # type: ignore[arg-type]
    asyncio.run(_stages(step))
    step.effects.delete("other")
    assert [job.queue for job in step.effects.jobs] == ["workflow-steps", "late"]
    step.effects.submit(b"input", run_id="another")


async def _stages(step: Step) -> Outcome:
    step.effects.enqueue("late", b"")
    return Succeed()


class Order(BaseModel):
    number: int
    lines: list[str] = []


async def test_memos_of_a_detached_step() -> None:
    calls: list[str] = []

    async def compute() -> Order:
        calls.append("order")
        return Order(number=7, lines=["a"])

    step = Step.detached()
    for _ in range(2):
        order = await step.memo.memoized("order", compute, Order)
        assert order == Order(number=7, lines=["a"])
    assert calls == ["order"]
    assert await step.memo.get("order") == b'{"number":7,"lines":["a"]}'
    assert await step.run_memo.get("order") is None
    assert await Step.detached().memo.get("order") is None
    assert await step.memo.memoized("pair", lambda: (1, 2)) == [1, 2]  # encoded as ever
    with pytest.raises(SerializationError):
        await step.memo.memoized("no", lambda: object())
    await step.memo.put("order", b"something else")
    assert (await step.memo.memoized("order", compute, Order)).number == 7
    assert calls == ["order", "order"]
    assert await step.memo.memoized_by_content([1], lambda: 2) == 2


async def test_large_memos_of_a_detached_step() -> None:
    step = Step.detached()
    for size in (70_000, 100_000, 5):
        await step.memo.put("large", bytes(size))
        assert await step.memo.get("large") == bytes(size)
    assert step.memo.stats().hits == 3


def compute_in_thread(step: BlockingStep) -> Outcome:
    assert step.memo.memoized("a", lambda: 1) == step.memo.memoized("a", lambda: 2) == 1
    step.run_memo.put("b", b"2")
    assert step.run_memo.get("b") == b"2"
    step.memo.put("o", b"no order")
    assert step.memo.memoized("o", lambda: Order(number=1), Order).number == 1
    return Continue(step.payload)


def test_a_blocking_step_needs_no_event_loop() -> None:
    assert compute_in_thread(BlockingStep.detached(b"p")) == Continue(b"p")


async def test_a_blocking_step_beside_an_event_loop() -> None:
    step = BlockingStep.detached(b"p")
    assert compute_in_thread(step) == Continue(b"p")
    assert await asyncio.to_thread(compute_in_thread, step) == Continue(b"p")


def test_a_blocking_step_in_several_threads() -> None:
    step = BlockingStep.detached()
    calls: list[int] = []

    def compute() -> int:
        calls.append(1)
        return len(calls)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: step.memo.memoized("k", compute), range(100)))
    assert found == [1] * 100


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"payload": "text"}, InvalidType, "payload"),
        ({"number": -1}, InvalidArgument, "number"),
        ({"attempt": 4}, InvalidArgument, "attempt is 4"),
        ({"signal": "yes"}, InvalidType, "signal"),
        ({"signal": bytes(256 * 1024 + 1)}, ValueTooLarge, "signal"),
        ({"headers": {"workflow.run_id": "r"}}, ReservedName, "workflow"),
        ({"headers": {"a": 1}}, InvalidType, "header"),
        ({"run_id": "a b"}, InvalidRunId, "run id"),
        ({"revision": "2"}, InvalidArgument, "revision"),
        ({"workflow": "a@b"}, InvalidArgument, "workflow"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_no_step_can_be(
    kind: type[Step | BlockingStep], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        kind.detached(**options)


def test_the_largest_signal() -> None:
    assert Step.detached(signal=bytes(256 * 1024)).signal == bytes(256 * 1024)
