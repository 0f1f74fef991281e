"""Signals: what a run that waits for one sees, in every order of events."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taquba.workflow import (
    Continue,
    ErrorKind,
    Outcome,
    RunState,
    Signalled,
    SignalOutcome,
    Step,
    Succeed,
    TerminalStatus,
)

from .harness import Bed, bed

pytestmark = pytest.mark.anyio

DELIVERED, BUFFERED = SignalOutcome.DELIVERED, SignalOutcome.BUFFERED


def waits(timeout: Any = None, key: str = "go") -> Any:
    """Waits for one signal, and ends with it; the payload can name another key."""

    async def runner(step: Step) -> Outcome:
        if step.number == 0:
            return Continue(b"next", signal=step.payload.decode() or key, timeout=timeout)
        return Succeed(step.signal)

    return runner


async def result(t: Bed, run_id: str, within: float = 0) -> bytes | None:
    end = await t.end(run_id, within=within)
    assert end.termination.status is TerminalStatus.SUCCEEDED
    return end.outcome.result  # type: ignore[no-any-return]


async def test_a_run_that_waits_is_given_the_signal() -> None:
    """SIG-01: Given a waiter, when signalled, then Delivered, without the timeout elapsing."""
    async with bed(waits(timeout=60)) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        sent = await t.runtime.signal("go", b"yes")
        assert sent == Signalled(DELIVERED, run_id="r")
        assert await result(t, "r") == b"yes"


async def test_a_signal_before_the_waiter_is_buffered() -> None:
    """SIG-05: the run never waits and sees it; the buffer is gone."""
    async with bed(waits()) as t:
        assert await t.runtime.signal("go", b"yes") == Signalled(BUFFERED)
        await t.runtime.submit(b"", run_id="r")
        assert await result(t, "r") == b"yes"
        assert await t.runtime.clear_signal("go") == 0


async def test_a_wait_without_a_timeout_lasts() -> None:
    async with bed(waits()) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.clock.advance(timedelta(days=400))
        status = await t.runtime.status("r")
        assert status is not None
        assert (status.state, status.waiting_for, status.due) == (RunState.PENDING, "go", None)
        await t.runtime.signal("go")
        assert await result(t, "r") == b""


async def test_a_key_that_another_run_waits_for() -> None:
    """SIG-08, SIG-09: the second run fails permanently, and the first still gets the signal."""
    async with bed(waits()) as t:
        await t.runtime.submit(b"", run_id="first")
        await t.settle()
        await t.runtime.submit(b"", run_id="second")
        end = await t.end("second")
        assert end.termination.status is TerminalStatus.FAILED
        assert end.termination.error_kind is ErrorKind.PERMANENT
        assert "already registered" in end.termination.error
        assert "'go'" in end.termination.error
        assert (await t.queue.stats("workflow-steps")).dead == 1
        assert (await t.runtime.signal("go", b"yes")).run_id == "first"
        assert await result(t, "first") == b"yes"


async def test_a_timeout() -> None:
    """SIG-04: the step sees none, and the waiter is gone."""
    async with bed(waits(timeout=60)) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.clock.advance(59.999)
        assert (await t.runtime.status("r")).state is RunState.PENDING  # type: ignore[union-attr]
        await t.clock.advance(0.001)
        assert await result(t, "r") is None
        assert await t.runtime.signal("go", b"late") == Signalled(BUFFERED)
