"""A run id that is used again: nothing of an earlier life is seen in, or touches, a later one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taquba import QueueConfig
from taquba.errors import ClaimLost
from taquba.workflow import (
    Continue,
    Fail,
    RunOutcome,
    RunState,
    Step,
    Succeed,
    TerminalStatus,
)

from .harness import bed

pytestmark = pytest.mark.anyio


async def by_input(step: Step) -> Any:
    """Computes a memo of its input in each scope, and ends as the input says."""
    told = step.payload.decode()
    seen = await step.memo.memoized("m", lambda: told)
    seen_by_run = await step.run_memo.memoized("m", lambda: told)
    assert (seen, seen_by_run) == (told, told), "a value of another life"
    return Fail(told) if told.startswith("fail") else Succeed(step.payload)


async def test_memos_and_outcomes() -> None:
    """SUB-08, STAT-20: each life has its own."""
    async with bed(by_input) as t:
        for number, told in enumerate(["fail-1", "ok-2", "fail-3", "ok-4"]):
            await t.runtime.submit(told.encode(), run_id="r")
            end = await t.end("r")
            if number % 2:
                assert (end.outcome.result, end.outcome.error) == (told.encode(), None)
            else:
                assert (end.outcome.result, end.outcome.error) == (None, told)
            await t.settle()
        assert t.queue.peek("SELECT count(*) FROM runs") == [(1,)]
        assert t.queue.peek("SELECT count(*) FROM memos") == [(0,)]


async def test_an_active_life_has_no_outcome_of_the_one_before() -> None:
    """STAT-20, STAT-21"""
    async with bed(by_input) as t:
        await t.runtime.submit(b"one", run_id="r")
        await t.end("r")
    async with bed(None) as t:
        await t.runtime.submit(b"in", run_id="r")
        assert await t.runtime.cancel("r") is True
        again = await t.runtime.submit(b"two", run_id="r")
        assert again.created
        status = await t.runtime.status("r")
        assert status is not None
        assert (status.state, status.termination) == (RunState.PENDING, None)
        assert await t.runtime.outcome("r") is None
        with pytest.raises(TimeoutError):
            waiting = asyncio.ensure_future(t.runtime.wait("r", timeout=1))
            await t.clock.advance(2)
            await waiting


async def test_signals() -> None:
    """A buffered signal is its key's; one that was received is gone with its life."""
    seen: list[bytes | None] = []

    async def runner(step: Step) -> Any:
        if step.number == 0:
            return Continue(signal="key", timeout=60)
        seen.append(step.signal)
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.signal("key", b"one")
        await t.runtime.submit(b"", run_id="r")
        await t.end("r")
        await t.runtime.submit(b"", run_id="r")
        await t.end("r")
        assert seen == [b"one", None]
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r") is True
        await t.runtime.signal("key", b"two")
        await t.runtime.submit(b"", run_id="r")
        await t.end("r")
        assert seen == [b"one", None, b"two"]


async def test_notifications() -> None:
    """CAN-02, CAN-03: each end is told once, with the headers, when it is committed already."""
    told: list[tuple[TerminalStatus, str | None, dict[str, str]]] = []
    states: list[Any] = []

    async def hook(outcome: RunOutcome, effects: Any) -> None:
        told.append((outcome.status, outcome.error, outcome.headers))
        status = await t.runtime.status("r")
        states.append(status is not None and status.termination is not None)

    async with bed(None, terminal_hook=hook) as t:
        for life in range(3):
            await t.runtime.submit(b"in", run_id="r", headers={"life": str(life)})
            assert await t.runtime.cancel("r") is True
            await t.settle()
            assert await t.runtime.cancel("r") is False
            await t.settle()
    expected = [(TerminalStatus.CANCELLED, None, {"life": str(life)}) for life in range(3)]
    assert told == expected
    assert states == [True] * 3


async def test_a_cancelled_step_is_told_once() -> None:
    """CAN-03, CAN-19: of a run whose step was under way."""
    told: list[TerminalStatus] = []
    go = asyncio.Event()

    async def hook(outcome: RunOutcome, effects: Any) -> None:
        told.append(outcome.status)

    async def runner(step: Step) -> Any:
        await go.wait()
        return Succeed()

    async with bed(runner, terminal_hook=hook) as t:
        await t.runtime.submit(b"in", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r") is True
        assert await t.runtime.cancel("r") is True
        await t.settle()
        assert told == []
        go.set()
        await t.settle()
    assert told == [TerminalStatus.CANCELLED]


async def test_a_cancelled_step_that_dies_is_told_once() -> None:
    """CAN-03, CAN-26: its lease ends at its last attempt."""
    told: list[tuple[TerminalStatus, str | None]] = []

    async def hook(outcome: RunOutcome, effects: Any) -> None:
        told.append((outcome.status, outcome.error))

    async def runner(step: Step) -> Any:
        await asyncio.get_running_loop().create_future()

    config = QueueConfig(max_attempts=1, lease=30, jitter=False)
    async with bed(runner, terminal_hook=hook, config=config) as t:
        await t.runtime.submit(b"in", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r") is True
        await t.clock.advance(31)
    assert told == [(TerminalStatus.CANCELLED, None)]


async def test_retention() -> None:
    """RET-06, RET-07: the age of an earlier life is of no consequence to a later one."""
    go = asyncio.Event()

    async def runner(step: Step) -> Any:
        if step.payload == b"two":
            assert await step.run_memo.memoized("m", lambda: "of the second") == "of the second"
            await go.wait()
            assert await step.run_memo.memoized("m", lambda: "again") == "of the second"
        return Succeed(step.payload)

    config = QueueConfig(lease=10_000, jitter=False)
    async with bed(runner, retention=100, config=config) as t:
        await t.runtime.submit(b"one", run_id="r")
        await t.settle()
        await t.clock.advance(90)
        await t.runtime.submit(b"two", run_id="r")
        await t.clock.advance(500)  # the first life would have been forgotten long ago
        status = await t.runtime.status("r")
        assert status is not None and status.state is RunState.RUNNING
        go.set()
        await t.settle()
        await t.clock.advance(99)
        outcome = await t.runtime.outcome("r")
        assert outcome is not None and outcome.result == b"two"
        await t.clock.advance(2)
        assert await t.runtime.status("r") is None


async def test_a_late_step_of_an_earlier_life() -> None:
    """STEP-16: what it still says and stores is refused, and reaches no later life."""
    late: list[Any] = []
    stop = asyncio.Event()

    async def runner(step: Step) -> Any:
        if step.payload == b"two":
            return Succeed(await step.memo.get("m"))
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue
        try:
            await step.memo.put("m", b"of the first")
        except ClaimLost as error:
            late.append(error)
        step.effects.put("k", b"of the first").submit(b"", run_id="child")
        return Succeed(b"of the first")

    config = QueueConfig(max_attempts=1, lease=10, jitter=False)
    async with bed(runner, config=config, cancel_grace=5, renew=None) as t:
        await t.runtime.submit(b"one", run_id="r")
        await t.clock.advance(16)
        assert (await t.end("r")).termination.error == "lease expired"
        await t.runtime.submit(b"two", run_id="r")
        assert (await t.end("r")).outcome.result is None
        stop.set()
        await t.settle()
        assert len(late) == 1
        assert (await t.end("r")).outcome.result is None
        assert await t.queue.kv.get("k") is None
        assert await t.runtime.status("child") is None
