"""Bad input, limits, ids and queues of signals, and what they cost."""

from __future__ import annotations

import asyncio
import tracemalloc
from datetime import timedelta
from typing import Any

import pytest

from taquba.errors import (
    InputMismatch,
    InvalidArgument,
    InvalidType,
    SignalQueueFull,
    ValueTooLarge,
)
from taquba.workflow import (
    MAX_BUFFERED_SIGNALS,
    MAX_SIGNAL_KEY_SIZE,
    MAX_SIGNAL_SIZE,
    SIGNAL_IDS_KEPT,
    Continue,
    ErrorKind,
    Outcome,
    Signalled,
    SignalOutcome,
    Step,
    Succeed,
)

from .harness import bed
from .test_signals import left, result, start, waits

pytestmark = pytest.mark.anyio

DELIVERED, BUFFERED = SignalOutcome.DELIVERED, SignalOutcome.BUFFERED


async def test_the_limit_of_a_payload() -> None:
    """SIG-15: exactly 262,144 bytes are accepted; one more fails, and what is buffered stays."""
    assert MAX_SIGNAL_SIZE == 262_144
    async with bed(waits()) as t:
        await t.runtime.signal("go", b"x" * MAX_SIGNAL_SIZE)
        with pytest.raises(ValueTooLarge, match="262,145"):
            await t.runtime.signal("go", b"x" * (MAX_SIGNAL_SIZE + 1))
        await start(t, "r")
        assert await result(t, "r") == b"x" * MAX_SIGNAL_SIZE
        assert await t.runtime.signal("go", bytearray(b"x")) == Signalled(BUFFERED)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"key": "ä" * 512 + "x"}, ValueTooLarge),
        ({"key": b"go"}, InvalidType),
        ({"key": None}, InvalidType),
        ({"key": "\ud800"}, InvalidArgument),
        ({"payload": "text"}, InvalidType),
        ({"payload": None}, InvalidType),
        ({"signal_id": ""}, InvalidArgument),
        ({"signal_id": 7}, InvalidType),
        ({"signal_id": "x" * (MAX_SIGNAL_KEY_SIZE + 1)}, ValueTooLarge),
        ({"mode": "all"}, InvalidArgument),
        ({"mode": None}, InvalidArgument),
        ({"mode": ["latest"]}, InvalidArgument),
    ],
)
async def test_bad_signals(arguments: dict[str, Any], error: type[Exception]) -> None:
    async with bed(waits()) as t:
        with pytest.raises(error):
            await t.runtime.signal(**{"key": "go", "payload": b"", **arguments})
        if set(arguments) == {"key"}:
            with pytest.raises(error):
                await t.runtime.clear_signal(arguments["key"])
        assert left(t) == []


async def test_the_runtime_must_be_entered() -> None:
    from taquba.workflow import WorkflowRuntime

    async with bed(waits()) as t:
        other = WorkflowRuntime(t.queue, waits(), queue_name="other")
        with pytest.raises(InvalidArgument, match="not entered"):
            await other.signal("go", b"")
        with pytest.raises(InvalidArgument, match="not entered"):
            await other.clear_signal("go")


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Continue(signal="go", after=1), "not both"),
        (Continue(timeout=1), "signal="),
        (Continue(signal="go", timeout=-1), "negative"),
        (Continue(signal="go", timeout=float("nan")), "timeout"),
        (Continue(signal="go", timeout="1"), "timeout"),  # type: ignore[arg-type]
        (Continue(signal=b"go"), "must be a str"),  # type: ignore[arg-type]
        (Continue(signal="x" * 1025), "1,025"),
    ],
)
async def test_bad_outcomes(outcome: Outcome, message: str) -> None:
    """They fail the run for good: trying again would not help."""

    async def runner(step: Step) -> Outcome:
        return outcome

    async with bed(runner) as t:
        await start(t, "r")
        end = await t.end("r")
        assert end.termination.error_kind is ErrorKind.PERMANENT
        assert message in end.termination.error
        assert left(t) == []


async def test_a_queue_keeps_all_in_order() -> None:
    """Also beside a signal that can be replaced: only that one is."""

    async def runner(step: Step) -> Outcome:
        seen.append(step.signal) if step.number else None
        return Continue(signal="go") if step.number < 4 else Succeed()

    seen: list[bytes | None] = []
    async with bed(runner) as t:
        for payload in (b"1", b"2"):
            assert await t.runtime.signal("go", payload, mode="queue") == Signalled(BUFFERED)
        assert await t.runtime.signal("go", b"old") == Signalled(BUFFERED)
        assert await t.runtime.signal("go", b"3", mode="queue") == Signalled(BUFFERED)
        assert await t.runtime.signal("go", b"new") == Signalled(BUFFERED, replaced=b"old")
        await t.runtime.submit(b"", run_id="r")
        await t.end("r")
        assert seen == [b"1", b"2", b"3", b"new"]
        assert left(t) == []


async def test_the_bound_of_a_queue() -> None:
    """One more fails, and changes nothing; there is room again when one is taken."""
    async with bed(waits()) as t:
        signal = t.runtime.signal
        count = MAX_BUFFERED_SIGNALS
        await asyncio.gather(*(signal("go", b"%d" % n, mode="queue") for n in range(count - 1)))
        await signal("go", b"latest")
        before = left(t)
        with pytest.raises(SignalQueueFull, match="1,000"):
            await signal("go", b"more", mode="queue", signal_id="7")
        assert left(t) == before
        assert (await signal("go", b"newer")).replaced == b"latest"
        assert (await signal("other", b"", mode="queue")).outcome is BUFFERED
        await start(t, "r")
        assert await result(t, "r") == b"0"
        assert (await signal("go", b"more", mode="queue", signal_id="7")).created
        assert await t.runtime.clear_signal("go") == count


async def test_an_id_is_sent_once() -> None:
    """Again, it changes nothing, and tells what has become of the first by now."""
    async with bed(waits()) as t:

        async def send(signal_id: str) -> Signalled:
            return await t.runtime.signal("go", signal_id.encode(), signal_id=signal_id)

        assert await send("a") == Signalled(BUFFERED)
        assert await send("a") == Signalled(BUFFERED, created=False)
        assert await send("b") == Signalled(BUFFERED, replaced=b"a")
        assert await send("a") == Signalled(SignalOutcome.REPLACED, created=False)
        await t.runtime.clear_signal("go")
        assert await send("b") == Signalled(SignalOutcome.CLEARED, created=False)
        await send("c")
        await start(t, "first")
        assert await send("c") == Signalled(DELIVERED, created=False, run_id="first")
        await start(t, "second")
        assert await send("d") == Signalled(DELIVERED, run_id="second")
        assert await send("d") == Signalled(DELIVERED, created=False, run_id="second")
        assert await result(t, "second") == b"d"
        assert left(t) == []
        # Ids belong to their key.
        assert (await t.runtime.signal("other", b"", signal_id="d")).created


async def test_an_id_with_another_payload() -> None:
    async with bed(waits()) as t:
        await t.runtime.signal("go", b"one", signal_id="a")
        with pytest.raises(InputMismatch, match="another payload"):
            await t.runtime.signal("go", b"two", signal_id="a")
        assert left(t) == [("go", b"one")]


async def test_how_long_an_id_is_remembered() -> None:
    """For 7 days, and as long as its signal is buffered."""
    async with bed(waits()) as t:
        await start(t, "first")
        await t.runtime.signal("go", b"", signal_id="delivered")
        await t.runtime.signal("go", b"", signal_id="buffered", mode="queue")
        await t.clock.advance(SIGNAL_IDS_KEPT - timedelta(milliseconds=1))
        for name in ("delivered", "buffered"):
            assert not (await t.runtime.signal("go", b"", signal_id=name)).created
        await t.clock.advance(0.001)
        assert (await t.runtime.signal("go", b"", signal_id="delivered")).created
        assert not (await t.runtime.signal("go", b"", signal_id="buffered")).created


async def test_forgotten_ids_are_removed_in_slices() -> None:
    async with bed(waits()) as t:
        signal = t.runtime.signal
        await asyncio.gather(*(signal("go", b"", signal_id=f"{n}") for n in range(250)))
        await t.clock.advance(SIGNAL_IDS_KEPT)
        counts = []
        for n in range(4):
            await signal("x", b"", signal_id=f"x{n}")
            counts.append(t.queue.peek("SELECT count(*) FROM signal_ids WHERE key = 'go'")[0][0])
        assert counts == [150, 50, 1, 1]  # one is buffered


async def test_a_signal_starts_its_step_with_one_write() -> None:
    """It is delivered, and its step claimed, in one object."""
    writes = 0

    async def runner(step: Step) -> Outcome:
        nonlocal writes
        if step.number == 0:
            return Continue(signal="go")
        writes = t.store.writes
        return Succeed()

    async with bed(runner) as t:
        await start(t, "r")
        before = t.store.writes
        await t.runtime.signal("go", b"yes")
        assert t.store.writes == before + 1
        await t.end("r")
        assert writes == before + 1


async def test_a_buffered_signal_costs_a_waiting_run_nothing() -> None:
    """Its run takes it with the settlement that would wait for it."""
    async with bed(waits()) as t:
        await t.runtime.signal("go", b"yes")
        before = t.store.writes
        await start(t, "r")
        await t.end("r")
        assert t.store.writes - before == 3  # submitted and claimed; next step; end


async def test_what_runs_that_wait_cost() -> None:
    """A row of the run and one of its job; nothing in memory beside the state, and no time."""
    count = 1_000

    async def state() -> int:
        [(pages,)] = t.queue.peek("PRAGMA page_count")
        [(size,)] = t.queue.peek("PRAGMA page_size")
        return pages * size  # type: ignore[no-any-return]

    async def memory() -> int:
        stored = sum([info.size async for info in t.store.below.list("")])
        return tracemalloc.get_traced_memory()[0] - stored

    async with bed(waits(), concurrency=100) as t:
        await asyncio.gather(*(t.runtime.submit(b"x%d" % n, run_id=f"x{n}") for n in range(10)))
        await t.clock.advance(60)
        tracemalloc.start()
        before = await memory(), await state()
        await asyncio.gather(*(t.runtime.submit(b"%d" % n, run_id=f"{n}") for n in range(count)))
        await t.clock.advance(60)
        after = await memory(), await state()
        tracemalloc.stop()
        assert (await t.queue.stats("workflow-steps")).scheduled == count + 10
        assert (after[0] - before[0]) / count < 400  # of the journal in memory, mostly
        assert (after[1] - before[1]) / count < 1_500
        writes, sleepers = t.store.writes, t.clock.sleeping
        await t.clock.advance(timedelta(days=30))
        assert (t.store.writes, t.clock.sleeping) == (writes, sleepers)
