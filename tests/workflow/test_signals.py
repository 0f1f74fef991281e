"""Signals: what a run that waits for one sees, and what is said to who sends it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taquba import ManualClock, PermanentError, TransientError
from taquba.objectstore import MemoryStore
from taquba.workflow import (
    BlockingStep,
    Continue,
    ErrorKind,
    Outcome,
    RunState,
    Signalled,
    SignalOutcome,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)

from .harness import Bed, bed

pytestmark = pytest.mark.anyio

DELIVERED, BUFFERED = SignalOutcome.DELIVERED, SignalOutcome.BUFFERED


def waits(timeout: Any = None) -> Any:
    """Waits for one signal, whose key is its input, and ends with that."""

    async def runner(step: Step) -> Outcome:
        if step.number == 0:
            return Continue(b"next", signal=step.payload.decode(), timeout=timeout)
        return Succeed(step.signal)

    return runner


async def result(t: Bed, run_id: str, within: float = 0) -> bytes | None:
    end = await t.end(run_id, within=within)
    assert end.termination.status is TerminalStatus.SUCCEEDED, end
    return end.outcome.result  # type: ignore[no-any-return]


async def start(t: Bed, run_id: str, key: bytes = b"go") -> None:
    await t.runtime.submit(key, run_id=run_id)
    await t.settle()


def left(t: Bed) -> list[tuple[Any, ...]]:
    """What is buffered, and who is registered."""
    return [
        *t.queue.peek("SELECT key, payload FROM signals ORDER BY key, number"),
        *t.queue.peek("SELECT signal_key, signal FROM runs WHERE signal_key IS NOT NULL"),
    ]


async def test_a_run_that_waits_is_given_the_signal() -> None:
    """SIG-01, SIG-02: delivered, without the timeout elapsing; nothing of it is left."""
    async with bed(waits(timeout=60)) as t:
        await start(t, "r")
        sent = await t.runtime.signal("go", b"yes")
        assert sent == Signalled(DELIVERED, run_id="r")
        assert await result(t, "r") == b"yes"
        assert left(t) == []


async def test_a_waiter_survives_a_restart() -> None:
    """SIG-03: Given a waiter on disk, when the store is reopened, then a signal delivers."""
    store, clock = MemoryStore(), ManualClock()
    async with bed(waits(timeout=60), store=store, clock=clock) as t:
        await start(t, "r")
    async with bed(waits(), store=store, clock=clock) as t:
        await t.settle()
        status = await t.runtime.status("r")
        assert status is not None and status.waiting_for == "go"
        assert (await t.runtime.signal("go", b"yes")).outcome is DELIVERED
        assert await result(t, "r") == b"yes"


async def test_a_timeout() -> None:
    """SIG-04: to the millisecond; the step sees none, and the waiter is gone."""
    async with bed(waits(timeout=60)) as t:
        await start(t, "r")
        await t.clock.advance(59.999)
        due = datetime.fromtimestamp((t.clock.now_ms() + 1) / 1000, UTC)
        status = await t.runtime.status("r")
        assert status is not None
        assert (status.state, status.waiting_for, status.due) == (RunState.PENDING, "go", due)
        await t.clock.advance(0.001)
        assert await result(t, "r") is None
        assert await t.runtime.signal("go", b"late") == Signalled(BUFFERED)


async def test_a_signal_before_the_waiter_is_buffered() -> None:
    """SIG-05: the run never waits and sees it; the buffer is gone."""
    async with bed(waits()) as t:
        assert await t.runtime.signal("go", b"yes") == Signalled(BUFFERED)
        await start(t, "r")
        assert await result(t, "r") == b"yes"
        assert left(t) == []


async def test_a_later_signal_replaces_the_one_before() -> None:
    """SIG-06: the second is seen; and who sent it is told what it replaced."""
    async with bed(waits()) as t:
        assert await t.runtime.signal("go", b"one") == Signalled(BUFFERED)
        assert await t.runtime.signal("go", b"two") == Signalled(BUFFERED, replaced=b"one")
        await start(t, "r")
        assert await result(t, "r") == b"two"
        assert left(t) == []


async def test_clearing() -> None:
    """SIG-07: true, then false. What was delivered is not affected."""
    async with bed(waits()) as t:
        await t.runtime.signal("go", b"one")
        await t.runtime.signal("go", b"two", mode="queue")
        await t.runtime.signal("other", b"three")
        assert await t.runtime.clear_signal("go") == 2
        assert await t.runtime.clear_signal("go") == 0
        await start(t, "r")
        await t.runtime.signal("go", b"yes")
        assert await t.runtime.clear_signal("go") == 0
        assert await result(t, "r") == b"yes"


async def test_a_key_that_another_run_waits_for() -> None:
    """SIG-08, SIG-09, SIG-10: the second run fails permanently, its effects are dropped, and the
    first still gets the signal.
    """

    async def runner(step: Step) -> Outcome:
        step.effects.put(f"{step.run_id}/{step.number}", b"done").enqueue("mail", b"")
        return await waits()(step)  # type: ignore[no-any-return]

    async with bed(runner) as t:
        await start(t, "first")
        await start(t, "second")
        end = await t.end("second")
        assert end.termination.status is TerminalStatus.FAILED
        assert end.termination.error_kind is ErrorKind.PERMANENT
        assert "already registered" in end.termination.error
        assert "'go'" in end.termination.error
        assert (await t.queue.stats("workflow-steps")).dead == 1
        assert (await t.queue.stats("mail")).pending == 1
        assert await t.queue.kv.get("second/0") is None
        assert (await t.runtime.signal("go", b"yes")).run_id == "first"
        assert await result(t, "first") == b"yes"


async def test_a_waiter_whose_time_is_over_is_replaced() -> None:
    """SIG-12: Given a waiter whose job is no longer scheduled, when another run registers the
    key, then it succeeds.
    """

    async def runner(step: Step) -> Outcome:
        if step.run_id == "hog":
            await t.clock.sleep(10)
            return Succeed()
        return await waits(timeout=None if step.run_id == "second" else 5)(step)  # type: ignore[no-any-return]

    async with bed(runner, concurrency=1) as t:
        await start(t, "first")
        await t.runtime.submit(b"", run_id="hog")
        # It is claimed before the first, which becomes due meanwhile.
        await t.runtime.submit(b"go", run_id="second", priority=0)
        await t.clock.advance(5)
        status = await t.runtime.status("first")
        assert status is not None and status.waiting_for is None
        await t.clock.advance(5)
        assert await result(t, "first") is None
        assert (await t.runtime.signal("go", b"yes")).run_id == "second"
        assert await result(t, "second") == b"yes"


@pytest.mark.parametrize("key", ["", "a/b", "a b", "ä/✓\n\0x", "'; DROP TABLE runs", "k" * 1024])
async def test_keys(key: str) -> None:
    """SIG-13, SIG-16: any text is a key, the empty one, too; keys that share a prefix are
    others.
    """
    async with bed(waits()) as t:
        await t.runtime.signal(key[:-1] + "?", b"other")
        await t.runtime.signal(key + "?", b"other") if len(key) < 1024 else None
        before = left(t)
        await start(t, "r", key.encode())
        assert (await t.runtime.signal(key, b"yes")).outcome is DELIVERED
        assert await result(t, "r") == b"yes"
        await t.runtime.signal(key, b"yes")
        await start(t, "r", key.encode())
        assert await result(t, "r") == b"yes"
        assert left(t) == before


async def test_an_empty_payload() -> None:
    """SIG-14: the step sees empty bytes, not none."""
    async with bed(waits()) as t:
        await start(t, "r")
        await t.runtime.signal("go")
        assert await result(t, "r") == b""
        await t.runtime.signal("go", b"")
        await start(t, "r")
        assert await result(t, "r") == b""


@pytest.mark.parametrize("before", [True, False])
async def test_every_attempt_sees_the_same(before: bool) -> None:
    """SIG-17, SIG-18: a step that fails sees the same payload again, however it came to it; a
    signal that comes in between is for the next that waits.
    """
    seen: list[bytes | None] = []

    async def runner(step: Step) -> Outcome:
        if step.number == 0:
            return Continue(signal="go")
        seen.append(step.signal)
        if step.attempt < 3:
            raise TransientError("again")
        return Succeed(step.signal)

    async with bed(runner) as t:
        if before:
            await t.runtime.signal("go", b"yes")
        await start(t, "r")
        if not before:
            await t.runtime.signal("go", b"yes")
        await t.settle()
        assert await t.runtime.signal("go", b"late") == Signalled(BUFFERED)
        assert await result(t, "r", within=60) == b"yes"
        assert seen == [b"yes", b"yes", b"yes"]
        assert left(t) == [("go", b"late")]


async def test_a_step_that_timed_out_sees_none_on_later_attempts() -> None:
    """SIG-20: also when a signal came in between, which is kept for the next that waits."""
    seen: list[bytes | None] = []

    async def runner(step: Step) -> Outcome:
        if step.number == 0:
            return Continue(signal="go", timeout=1)
        seen.append(step.signal)
        if step.attempt < 3:
            raise TransientError("again")
        return Succeed(step.signal)

    async with bed(runner) as t:
        await start(t, "r")
        await t.clock.advance(1)
        assert await t.runtime.signal("go", b"late") == Signalled(BUFFERED)
        assert await result(t, "r", within=60) is None
        assert seen == [None, None, None]
        assert left(t) == [("go", b"late")]


async def test_what_a_failed_run_was_given_goes_with_it() -> None:
    """SIG-26, SIG-27: no later life of its id sees it."""

    async def runner(step: Step) -> Outcome:
        if step.number == 1 and step.signal == b"bad":
            raise PermanentError("broken")
        return await waits(timeout=1)(step)  # type: ignore[no-any-return]

    async with bed(runner) as t:
        await t.runtime.signal("go", b"bad")
        await start(t, "r")
        assert (await t.end("r")).termination.status is TerminalStatus.FAILED
        assert left(t) == []
        await start(t, "r")
        assert await result(t, "r", within=1) is None


async def test_nobody_waits() -> None:
    """SIG-29: it is buffered, and told so at once: there is nothing to wait for."""
    async with bed(None) as t:
        before = t.clock.monotonic()
        assert await t.runtime.signal("go", b"yes") == Signalled(BUFFERED)
        assert t.clock.monotonic() == before
        assert t.clock.sleeping == 0


async def test_a_loop_on_one_key() -> None:
    """SIG-23, SIG-30: each signal is seen exactly once, whether it came before or after."""
    seen: list[bytes | None] = []

    async def runner(step: Step) -> Outcome:
        if step.number:
            seen.append(step.signal)
        return Continue(signal="go", timeout=1) if step.signal != b"end" else Succeed()

    async with bed(runner) as t:
        await start(t, "r")
        for number in range(5):
            assert (await t.runtime.signal("go", b"%d" % number)).outcome is DELIVERED
            await t.settle()
        await t.clock.advance(1)
        await t.runtime.signal("go", b"end")
        await t.end("r")
        assert seen == [b"0", b"1", b"2", b"3", b"4", None, b"end"]


async def test_other_steps_see_none() -> None:
    """SIG-31, SIG-32: neither step 0 nor the step after the one that waited, on no attempt."""
    seen: list[bytes | None] = []

    async def runner(step: Step) -> Outcome:
        seen.append(step.signal)
        if step.attempt == 1:
            raise TransientError("again")
        assert not any(name.startswith("workflow") for name in step.headers)
        match step.number:
            case 0 | 2:
                return Continue(signal="go")
            case 1 | 3:
                return Continue()
            case _:
                return Succeed()

    async with bed(runner) as t:
        await t.runtime.signal("go", b"one")
        await start(t, "r")
        await t.runtime.signal("go", b"two", mode="queue")
        await t.end("r")
        expected = [None, b"one", None, b"two", None]
        assert seen == [signal for signal in expected for _ in range(2)]


async def test_a_timeout_of_zero() -> None:
    """SIG-33: the next step runs at once: with what is buffered, or with none."""
    async with bed(waits(timeout=0)) as t:
        await start(t, "r")
        assert await result(t, "r") is None
        await t.runtime.signal("go", b"yes")
        await start(t, "r")
        assert await result(t, "r") == b"yes"


async def test_runtimes_share_what_their_name_shares() -> None:
    """SIG-34: two runtimes of one name; one of another name has keys of its own."""
    async with (
        bed(waits()) as t,
        WorkflowRuntime(t.queue, None) as same,
        WorkflowRuntime(t.queue, waits(), queue_name="other") as other,
    ):
        await start(t, "r")
        await other.submit(b"go", run_id="r")
        await t.settle()
        assert await same.signal("go", b"yes") == Signalled(DELIVERED, run_id="r")
        assert await result(t, "r") == b"yes"
        assert (await other.signal("go", b"no")).outcome is DELIVERED
        assert (await other.wait("r")).outcome.result == b"no"
        await same.signal("go", b"yes")
        assert await other.clear_signal("go") == 0


async def test_a_timeout_while_no_process_runs() -> None:
    """SIG-35: when the store is reopened, the run goes on with none."""
    store, clock = MemoryStore(), ManualClock()
    async with bed(waits(timeout=3600), store=store, clock=clock) as t:
        await start(t, "r")
    clock.shift_wall_clock(timedelta(hours=2))
    async with bed(waits(), store=store, clock=clock) as t:
        assert await result(t, "r") is None


@pytest.mark.parametrize("timeout", [None, float("inf"), timedelta(days=3_000_000)])
async def test_a_wait_for_ever(timeout: Any) -> None:
    """STAT-04: a run that waits is pending. Without a timeout, it waits as long as it takes."""
    async with bed(waits(timeout)) as t:
        await start(t, "r")
        await t.clock.advance(timedelta(days=400))
        status = await t.runtime.status("r")
        assert status is not None
        assert (status.state, status.waiting_for, status.due) == (RunState.PENDING, "go", None)
        await t.runtime.signal("go", b"yes")
        assert await result(t, "r") == b"yes"


async def test_a_run_that_has_been_given_its_signal_does_not_wait() -> None:
    """Another run can wait for the key at once, and another signal is for that one."""
    async with bed(None) as idle:
        async with WorkflowRuntime(idle.queue, waits(), queue_name="steps") as runtime:
            await runtime.submit(b"go", run_id="first")
            await idle.settle()
        async with WorkflowRuntime(idle.queue, None, queue_name="steps") as runtime:
            assert (await runtime.signal("go", b"one")).run_id == "first"
            status = await runtime.status("first")
            assert status is not None
            assert (status.state, status.waiting_for, status.due) == (RunState.PENDING, None, None)
            assert await runtime.signal("go", b"two") == Signalled(BUFFERED)
        async with WorkflowRuntime(idle.queue, waits(), queue_name="steps") as runtime:
            await runtime.submit(b"go", run_id="second")
            await idle.settle()
            assert (await runtime.wait("first")).outcome.result == b"one"
            assert (await runtime.wait("second")).outcome.result == b"two"


async def test_a_runner_in_a_thread() -> None:
    def runner(step: BlockingStep) -> Outcome:
        if step.number == 0:
            assert step.signal is None
            return Continue(signal="go")
        return Succeed(step.signal)

    async with bed(runner) as t:
        await t.runtime.signal("go", b"yes")
        await t.runtime.submit(b"", run_id="r")
        assert (await t.runtime.wait("r")).outcome.result == b"yes"
