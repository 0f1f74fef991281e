"""What a runtime can do, in a sandbox: waiting for people, deploys, hooks."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from taquba import Effects, ManualClock, QueueConfig
from taquba.testing import Sandbox
from taquba.workflow import (
    Continue,
    Fail,
    Outcome,
    RunOutcome,
    RunState,
    Step,
    Succeed,
    TerminalStatus,
    Workflow,
)

from ..stages.workflows import Order, Purchase, Receipt

pytestmark = pytest.mark.anyio

WEEK = timedelta(days=7)


async def approval(step: Step) -> Outcome:
    """Asks somebody, and waits for an answer for a week."""
    if step.number == 0:
        step.effects.enqueue("mail", b"please approve")
        return Continue(step.payload, signal=f"approval/{step.run_id}", timeout=WEEK)
    if step.signal is None:
        return Fail("nobody answered within a week")
    return Succeed(step.payload + b": " + step.signal)


async def test_an_approval_that_comes_in_time() -> None:
    async with Sandbox(approval) as sandbox:
        await sandbox.runtime.submit(b"order 7", run_id="order-7")
        await sandbox.advance(timedelta(days=6, hours=23))
        status = await sandbox.runtime.status("order-7")
        assert status is not None and status.state is not RunState.TERMINATED
        await sandbox.runtime.signal("approval/order-7", b"approved by ann")
        await sandbox.run_until_idle()
        end = await sandbox.runtime.wait("order-7")
        assert end.outcome.result == b"order 7: approved by ann"


async def test_an_approval_that_does_not_come() -> None:
    async with Sandbox(approval) as sandbox:
        await sandbox.runtime.submit(b"order 7", run_id="order-7")
        await sandbox.advance(WEEK - timedelta(milliseconds=1))
        assert await sandbox.runtime.outcome("order-7") is None
        await sandbox.advance(timedelta(milliseconds=1))
        end = await sandbox.runtime.wait("order-7")
        assert end.termination.status is TerminalStatus.FAILED
        assert end.termination.error == "nobody answered within a week"


async def test_an_approval_that_comes_while_nobody_is_there() -> None:
    """A crash after the question; the answer is buffered by the next process."""
    async with Sandbox(approval) as sandbox:
        sandbox.crash_at("before_settlement", step=0)
        await sandbox.runtime.submit(b"order 7", run_id="order-7")
        await sandbox.run_until_idle()
        assert sandbox.crashed
        await sandbox.advance(WEEK * 2)
        await sandbox.reopen()
        await sandbox.crash()
        await sandbox.advance(timedelta(days=6))
        await sandbox.reopen()
        await sandbox.runtime.signal("approval/order-7", b"yes")
        end = await sandbox.wait("order-7", within=0)
        assert end.outcome.result == b"order 7: yes"


async def test_a_deploy_of_another_revision() -> None:
    ran: list[tuple[str | None, int]] = []

    async def old(step: Step) -> Outcome:
        ran.append((step.revision, step.number))
        return Continue(b"", after=WEEK) if step.number == 0 else Succeed(b"old")

    async def new(step: Step) -> Outcome:
        ran.append((step.revision, step.number))
        return Succeed(b"new")

    before = [Workflow("w", old, "1")]
    async with Sandbox(runtime_options={"workflows": before}) as sandbox:
        await sandbox.runtime.submit(b"", run_id="a", workflow="w")
        sandbox.crash_at("after_settlement", step=0, run_id="a")
        await sandbox.run_until_idle()
        assert sandbox.crashed
        await sandbox.reopen(runtime_options={"workflows": [*before, Workflow("w", new, "2")]})
        await sandbox.runtime.submit(b"", run_id="b", workflow="w")
        assert (await sandbox.wait("a", within=WEEK)).outcome.result == b"old"
        assert (await sandbox.wait("b")).outcome.result == b"new"
        assert ran == [("1", 0), ("2", 0), ("1", 1)]


async def test_the_terminal_hook_is_part_of_what_follows() -> None:
    told: list[str] = []

    async def hook(outcome: RunOutcome, effects: Effects) -> None:
        told.append(outcome.run_id)

    async def runner(step: Step) -> Outcome:
        return Succeed()

    options: dict[str, Any] = {"terminal_hook": hook}
    async with Sandbox(runner, runtime_options=options) as sandbox:
        await sandbox.runtime.submit(b"", run_id="r")
        await sandbox.run_until_idle()
        assert told == ["r"]


async def test_a_workflow_as_a_class() -> None:
    purchase = Purchase("CHF")
    async with Sandbox(purchase) as sandbox:
        sandbox.crash_at("before_settlement", step=1, attempt=1)
        await purchase.submit(
            sandbox.runtime, purchase.charge(Order(item="car", price=9000)), run_id="r"
        )
        await sandbox.advance(timedelta(days=1))
        assert sandbox.crashed
        await sandbox.reopen()
        end = await sandbox.wait("r")
        assert purchase.result_of(end) == Receipt(text="car for 9000 CHF", attempt=2)


async def test_a_test_does_the_same_each_time() -> None:
    """Ids, times and the order of everything come from the clock's seed."""

    async def story() -> list[Any]:
        told: list[Any] = []

        async def runner(step: Step) -> Outcome:
            await asyncio.to_thread(threading.Event().wait, 0.002 * (step.number % 2))
            told.append((step.run_id, step.number, step.attempt, sandbox.clock.now_ms()))
            if step.number == 1 and step.attempt == 1:
                raise OSError("again")
            return Continue(b"", after=3) if step.number < 2 else Succeed()

        clock, config = ManualClock(seed=7), QueueConfig()  # with jitter
        async with Sandbox(runner, clock=clock, config=config) as sandbox:
            for _ in range(3):
                told.append(await sandbox.runtime.submit(b""))
                await sandbox.advance(1)
            await sandbox.reopen()
            await sandbox.advance(60)
            told.append(await sandbox.queue.stats("workflow-steps"))
        return told

    first = await story()
    assert len(first) == 3 + 12 + 1
    assert await story() == first
