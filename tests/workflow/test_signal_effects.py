"""Signals that are sent with the settlement of a step or a job, or with other effects."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taquba import Effects, Queue, TransientError
from taquba.errors import EffectsSealed, InputMismatch, InvalidArgument, InvalidType, ValueTooLarge
from taquba.workflow import (
    MAX_BUFFERED_SIGNALS,
    Continue,
    Fail,
    Outcome,
    PreparedSignal,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)

from .harness import bed
from .test_signals import left, result, start, waits

pytestmark = pytest.mark.anyio


async def test_a_step_signals_once_with_its_settlement() -> None:
    """Attempts that fail send nothing."""

    async def runner(step: Step) -> Outcome:
        if step.run_id != "sender":
            return await waits()(step)  # type: ignore[no-any-return]
        step.effects.signal("go", b"%d" % step.attempt, mode="queue")
        if step.attempt < 3:
            raise TransientError("again")
        return Succeed()

    async with bed(runner) as t:
        await start(t, "r")
        await start(t, "sender")
        await t.clock.advance(60)
        assert await result(t, "r") == b"3"
        assert left(t) == []


async def test_a_step_and_the_run_that_it_wakes_share_a_write() -> None:
    async def runner(step: Step) -> Outcome:
        nonlocal woken
        if step.run_id != "sender":
            woken = t.store.writes
            return await waits()(step)  # type: ignore[no-any-return]
        step.effects.signal("go", b"yes")
        return Succeed()

    woken = 0
    async with bed(runner) as t:
        await start(t, "r")
        before = t.store.writes
        await t.runtime.submit(b"", run_id="sender")
        assert await result(t, "r") == b"yes"
        assert woken - before == 2  # submitted and claimed; ended, signalled, and claimed


@pytest.mark.parametrize("timeout", [None, 0, 60])
async def test_a_step_that_signals_what_its_next_step_waits_for(timeout: Any) -> None:
    """The wait comes first. One that takes what is buffered or none has taken none by then."""

    async def runner(step: Step) -> Outcome:
        if step.number == 0:
            step.effects.signal("go", b"self")
            return Continue(signal="go", timeout=timeout)
        return Succeed(step.signal)

    async with bed(runner) as t:
        await start(t, "r")
        assert await result(t, "r") == (None if timeout == 0 else b"self")
        assert left(t) == ([("go", b"self")] if timeout == 0 else [])


async def test_what_fails_for_good_keeps_its_effects_and_what_is_cancelled_does_not() -> None:
    gate = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        step.effects.signal(step.run_id, b"sent")
        if step.run_id == "cancelled":
            await gate.wait()
        return Fail("no")

    async with bed(runner) as t:
        await start(t, "failed")
        await start(t, "cancelled")
        await t.runtime.cancel("cancelled")
        gate.set()
        assert (await t.end("cancelled")).termination.status is TerminalStatus.CANCELLED
        assert left(t) == [("failed", b"sent")]


async def test_a_job_signals_with_its_settlement() -> None:
    """Also with an enqueue, a submission, or alone; each of them is one transaction."""
    async with bed(waits()) as t:
        prepared = t.runtime.prepared_signal
        await start(t, "r")
        await t.queue.enqueue("mail", b"")
        claim = await t.queue.claim("mail")
        assert claim is not None
        await t.queue.ack(claim, Effects().add(prepared("go", b"ack")))
        assert await result(t, "r") == b"ack"
        await t.queue.enqueue("mail", b"", effects=Effects().add(prepared("go", b"enqueue")))
        await start(t, "r")
        assert await result(t, "r") == b"enqueue"
        both = Effects().add(prepared("go", b"1", mode="queue")).add(prepared("go", b"2"))
        await t.queue.commit(both)
        assert left(t) == [("go", b"1"), ("go", b"2")]


async def test_a_full_buffer_is_tried_again() -> None:
    """The step fails as long as the key's buffer is full; nothing of it is applied."""

    async def runner(step: Step) -> Outcome:
        step.effects.signal("go", b"more", mode="queue").put("k", b"v")
        return Succeed()

    async with bed(runner) as t:
        signals = [
            t.runtime.prepared_signal("go", b"%d" % n, mode="queue")
            for n in range(MAX_BUFFERED_SIGNALS)
        ]
        effects = Effects()
        for signal in signals:
            effects.add(signal)
        await t.queue.commit(effects)
        await start(t, "r")
        assert await t.queue.kv.get("k") is None
        assert await t.runtime.clear_signal("go") == MAX_BUFFERED_SIGNALS
        assert await result(t, "r", within=60) is None
        assert await t.queue.kv.get("k") == b"v"
        assert left(t) == [("go", b"more")]


async def test_an_id_that_was_sent_with_another_payload_fails_the_step() -> None:
    async def runner(step: Step) -> Outcome:
        step.effects.signal("go", b"other", signal_id="1")
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.signal("go", b"yes", signal_id="1")
        await start(t, "r")
        end = await t.end("r")
        assert end.termination.status is TerminalStatus.FAILED
        assert "another payload" in end.termination.error
        with pytest.raises(InputMismatch):
            await t.queue.commit(
                Effects().add(t.runtime.prepared_signal("go", b"other", signal_id="1"))
            )
        assert left(t) == [("go", b"yes")]


async def test_bad_signals_are_refused_where_they_are_staged() -> None:
    seen: list[Exception] = []

    async def runner(step: Step) -> Outcome:
        nonlocal effects
        effects = step.effects
        for arguments in ({"key": 7}, {"payload": "x"}, {"mode": "all"}, {"key": "x" * 1025}):
            with pytest.raises(InvalidArgument) as error:
                effects.signal(**{"key": "go", **arguments})  # type: ignore[arg-type]
            seen.append(error.value)
        return Succeed()

    effects: Any = None
    async with bed(runner) as t:
        await start(t, "r")
        await t.end("r")
        kinds = [type(error) for error in seen]
        assert kinds == [InvalidType, InvalidType, InvalidArgument, ValueTooLarge]
        with pytest.raises(EffectsSealed):
            effects.signal("go")
        with pytest.raises(InvalidType):
            t.runtime.prepared_signal(b"go")  # type: ignore[arg-type]
        assert left(t) == []


async def test_another_store_is_refused() -> None:
    async with bed(None) as t, Queue.open("memory://") as other:
        signal = t.runtime.prepared_signal("go", b"yes")
        assert isinstance(signal, PreparedSignal)
        assert (signal.key, signal.payload) == ("go", b"yes")
        assert repr(signal) == "PreparedSignal(key='go', payload=<3 bytes>)"
        with pytest.raises(InvalidArgument, match="another store"):
            await other.commit(Effects().add(signal))
        assert left(t) == []
        unopened = WorkflowRuntime(t.queue, None)
        with pytest.raises(InvalidArgument, match="not entered"):
            unopened.prepared_signal("go")
