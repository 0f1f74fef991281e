"""Signals in every order with what else happens to a run: each interleaving is forced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from taquba import ManualClock, Queue
from taquba.objectstore import MemoryStore
from taquba.workflow import (
    Continue,
    Outcome,
    Signalled,
    SignalOutcome,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)

from .harness import Bed, Process, bed, settle
from .test_signals import left, result, start, waits

pytestmark = pytest.mark.anyio

DELIVERED, BUFFERED = SignalOutcome.DELIVERED, SignalOutcome.BUFFERED


@asynccontextmanager
async def between(t: Bed, runner: Any = None) -> AsyncIterator[WorkflowRuntime]:
    """A runtime of the name that the tests of this file leave and enter again."""
    async with WorkflowRuntime(t.queue, runner, queue_name="steps") as runtime:
        await t.settle()
        yield runtime
        await t.settle()


async def registered(t: Bed, run_id: str, timeout: Any = None) -> None:
    """A run waits, and nobody works."""
    async with between(t, waits(timeout)) as runtime:
        await runtime.submit(b"go", run_id=run_id)


async def test_a_signal_reaches_a_waiter_that_became_due() -> None:
    """SIG-11, SIG-21: if its timeout has made its step pending, but nobody has begun it, the
    signal is delivered. The original stores it, and the step finds it.
    """
    async with bed(None) as t:
        await registered(t, "r", timeout=5)
        await t.clock.advance(5)
        assert (await t.queue.stats("steps")).pending == 1
        async with between(t) as runtime:
            assert await runtime.signal("go", b"yes") == Signalled(DELIVERED, run_id="r")
            assert await runtime.signal("go", b"more") == Signalled(BUFFERED)
        async with between(t, waits()) as runtime:
            assert (await runtime.wait("r")).outcome.result == b"yes"
        assert left(t) == [("go", b"more")]


async def test_a_signal_while_the_claim_of_a_timed_out_step_is_written() -> None:
    """SIG-21: the step is claimed, and has no signal; that is for the next that waits."""
    async with bed(waits(timeout=5)) as t:
        await start(t, "r")
        t.store.hold()
        await t.clock.advance(5)
        sending = asyncio.ensure_future(t.runtime.signal("go", b"late"))
        await t.settle()
        t.store.release()
        assert await sending == Signalled(BUFFERED)
        assert await result(t, "r") is None


@pytest.mark.parametrize("how", ["crash", "give back"])
async def test_a_delivered_signal_survives(how: str) -> None:
    """SIG-19: a step that timed out, was given a signal after all and crashed sees the same
    when it is redelivered, and nothing is buffered. So does any step that was given one.
    """
    store, clock, seen = MemoryStore(), ManualClock(), list[bytes | None]()

    async def runner(step: Step) -> Outcome:
        if step.number == 0:
            return Continue(signal="go", timeout=5)
        seen.append(step.signal)
        if len(seen) == 1:
            await asyncio.get_running_loop().create_future()
        return Succeed(step.signal)

    process = Process(store, runner, clock)
    assert await process.opened()
    await process.runtime.submit(b"", run_id="r")
    await settle(clock)
    await process.leave()
    clock.shift_wall_clock(5)
    process = Process(store, None, clock)
    assert await process.opened()
    await settle(clock)
    assert (await process.runtime.signal("go", b"yes")).outcome is DELIVERED
    await process.leave()
    process = Process(store, runner, clock)
    assert await process.opened()
    await settle(clock)
    assert seen == [b"yes"]
    if how == "crash":
        await process.kill()
    else:
        process.task.cancel()
        await asyncio.gather(process.task, return_exceptions=True)
    async with bed(runner, store=store, clock=clock) as t:
        assert await result(t, "r") == b"yes"
        assert seen == [b"yes", b"yes"]
        assert left(t) == []


@pytest.mark.parametrize("how", ["crash", "give back"])
async def test_a_step_that_began_without_a_signal_never_gets_one(how: str) -> None:
    """SIG-20: also when it was interrupted, and the attempt does not count."""
    store, clock, seen = MemoryStore(), ManualClock(), list[bytes | None]()

    async def runner(step: Step) -> Outcome:
        if step.number == 0:
            return Continue(signal="go", timeout=5)
        seen.append(step.signal)
        if len(seen) == 1:
            await asyncio.get_running_loop().create_future()
        return Succeed(step.signal)

    process = Process(store, runner, clock)
    assert await process.opened()
    await process.runtime.submit(b"", run_id="r")
    await clock.advance(5)
    assert seen == [None]
    if how == "crash":
        await process.kill()
    else:
        process.task.cancel()
        await asyncio.gather(process.task, return_exceptions=True)
    async with bed(None, store=store, clock=clock) as t:
        assert await t.runtime.signal("go", b"late") == Signalled(BUFFERED)
    async with bed(runner, store=store, clock=clock) as t:
        assert await result(t, "r") is None
        assert left(t) == [("go", b"late")]
        await t.runtime.submit(b"", run_id="next")
        assert await result(t, "next") == b"late"


async def test_a_signal_while_a_registration_is_written() -> None:
    """SIG-22: what the registration took is the run's; what comes after is kept for the next."""
    async with bed(waits()) as t:
        await t.runtime.signal("go", b"one")
        await t.runtime.submit(b"go", run_id="r")
        t.store.hold()
        await t.settle()
        sending = asyncio.ensure_future(t.runtime.signal("go", b"two"))
        await t.settle()
        t.store.release()
        assert await sending == Signalled(BUFFERED)
        assert await result(t, "r") == b"one"
        assert left(t) == [("go", b"two")]


async def test_a_signal_while_a_run_goes_to_wait() -> None:
    """Before its settlement, it is buffered and taken; after that, delivered: in one batch."""
    for first in (True, False):
        gate = asyncio.Event()

        async def runner(step: Step, gate: asyncio.Event = gate) -> Outcome:
            if step.number == 0:
                await gate.wait()
            return await waits()(step)  # type: ignore[no-any-return]

        async with bed(runner) as t:
            await start(t, "r")
            t.store.hold()
            if not first:
                gate.set()
                await t.settle()
            sending = asyncio.ensure_future(t.runtime.signal("go", b"yes"))
            await t.settle()
            gate.set()
            await t.settle()
            t.store.release()
            assert (await sending).outcome is (BUFFERED if first else DELIVERED)
            assert await result(t, "r") == b"yes"
            assert left(t) == []


async def test_a_woken_step_that_waits_again_while_the_signal_is_written() -> None:
    """SIG-23: it does not see the same payload again."""
    seen: list[bytes | None] = []

    async def runner(step: Step) -> Outcome:
        seen.append(step.signal)
        return Continue(signal="go", timeout=None if step.number == 0 else 0)

    async with bed(runner) as t:
        await start(t, "r")
        t.store.hold()
        sending = asyncio.ensure_future(t.runtime.signal("go", b"yes"))
        await t.settle()
        t.store.release()
        await sending
        for _ in range(20):
            await asyncio.sleep(0)
        await t.runtime.cancel("r")
        await t.settle()
        assert seen[1] == b"yes"
        assert seen.count(b"yes") == 1


async def test_two_registrations_at_once() -> None:
    """SIG-24: settled in one transaction, exactly one is accepted; also at a restart."""
    gate = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        if step.number == 0:
            await gate.wait()
        return await waits()(step)  # type: ignore[no-any-return]

    async with bed(runner) as t:
        for name in ("a", "b", "c"):
            await start(t, name)
        gate.set()
        await t.settle()
        states = [await t.runtime.outcome(name) for name in ("a", "b", "c")]
        assert [x and x.status for x in states] == [None, *[TerminalStatus.FAILED] * 2]
        assert (await t.runtime.signal("go", b"yes")).run_id == "a"
        assert await result(t, "a") == b"yes"


async def hogged(step: Step) -> Outcome:
    if step.run_id == "hog":
        await asyncio.get_running_loop().create_future()
    return await waits()(step)  # type: ignore[no-any-return]


async def registers_alone(t: Bed, run_id: str) -> None:
    """This run registers, and no step of any other run begins."""
    async with between(t) as runtime:
        await runtime.submit(b"go", run_id=run_id, priority=0)
        await runtime.submit(b"", run_id="hog", priority=0)
    async with WorkflowRuntime(
        t.queue, hogged, queue_name="steps", concurrency=1, drain_timeout=0
    ) as runtime:
        await t.settle()
    async with between(t) as runtime:
        assert await runtime.cancel("hog")


async def consumed(t: Bed, payload: bytes = b"yes", **options: Any) -> None:
    """Run "r" has taken a buffered signal, and nobody has begun its step."""
    async with between(t) as runtime:
        await runtime.signal("go", payload, **options)
    await registers_alone(t, "r")
    async with between(t) as runtime:
        status = await runtime.status("r")
        assert status is not None and (status.current_step, status.waiting_for) == (1, None)
    assert left(t) == [("go", payload)]  # of the run


async def test_a_cancelled_run_gives_back_what_its_step_has_not_seen() -> None:
    """SIG-25: what it was given is not the run's any more, and not lost: the next has it."""
    async with bed(None) as t:
        await consumed(t, signal_id="7")
        async with between(t) as runtime:
            assert (await runtime.signal("go", b"yes", signal_id="7")).run_id == "r"
            assert await runtime.cancel("r")
            again = await runtime.signal("go", b"yes", signal_id="7")
            assert again == Signalled(BUFFERED, created=False)
        async with between(t, waits(timeout=1)) as runtime:
            await runtime.submit(b"go", run_id="r")
            await t.settle()
            assert (await runtime.wait("r")).outcome.result == b"yes"
            assert (await runtime.signal("go", b"yes", signal_id="7")).run_id == "r"


async def test_what_is_given_back_comes_before_what_came_later() -> None:
    """Both are kept: nobody was told that one replaced the other."""
    async with bed(None) as t:
        await consumed(t)
        async with between(t) as runtime:
            await runtime.signal("go", b"more", mode="queue")
            await runtime.signal("go", b"late")
            await runtime.cancel("r")
            assert left(t) == [("go", b"yes"), ("go", b"more"), ("go", b"late")]
            assert (await runtime.signal("go", b"last")).replaced == b"late"
            assert left(t) == [("go", b"yes"), ("go", b"more"), ("go", b"last")]


async def test_what_is_given_back_can_be_replaced_if_it_was_sent_so() -> None:
    async with bed(None) as t:
        await consumed(t)
        async with between(t) as runtime:
            await runtime.cancel("r")
            assert (await runtime.signal("go", b"last")).replaced == b"yes"


async def test_what_is_given_back_goes_to_whoever_waits() -> None:
    async with bed(None) as t:
        await consumed(t)
        async with between(t) as runtime:
            await runtime.cancel("r")
        await registered(t, "first")  # takes it, and ends with it
        await registered(t, "second")
        async with between(t) as runtime:
            assert (await runtime.signal("go", b"two")).run_id == "second"
        await registers_alone(t, "third")
        async with between(t) as runtime:
            assert await runtime.cancel("second")
        async with between(t, waits()) as runtime:
            assert (await runtime.wait("first")).outcome.result == b"yes"
            assert (await runtime.wait("third")).outcome.result == b"two"


async def test_a_step_that_has_seen_its_signal_keeps_it_when_cancelled() -> None:
    """While it is at work, and while it waits for a retry: the signal is used up."""

    async def runner(step: Step) -> Outcome:
        if step.number == 0:
            return Continue(signal="go")
        raise RuntimeError(step.signal)

    async with bed(runner) as t:
        await start(t, "r")
        await t.runtime.signal("go", b"yes")
        await t.settle()
        assert await t.runtime.cancel("r")
        assert left(t) == []


async def test_a_cancelled_waiter() -> None:
    """CAN-22, CAN-23: it is cancelled at once, and a signal for it is buffered."""
    async with bed(waits()) as t:
        await start(t, "r")
        assert await t.runtime.cancel("r")
        assert (await t.end("r")).termination.status is TerminalStatus.CANCELLED
        assert await t.runtime.signal("go", b"yes") == Signalled(BUFFERED)
        assert left(t) == [("go", b"yes")]


async def test_a_cancelled_waiter_that_became_due() -> None:
    """SIG-28: what is buffered stays for the next that waits; nothing is consumed at a claim."""
    async with bed(None) as t:
        await registered(t, "r", timeout=5)
        await t.clock.advance(5)
        async with between(t) as runtime:
            await runtime.cancel("r")
            assert await runtime.signal("go", b"yes") == Signalled(BUFFERED)
        async with between(t, waits()) as runtime:
            assert (await runtime.outcome("r")).status is TerminalStatus.CANCELLED  # type: ignore[union-attr]
            assert left(t) == [("go", b"yes")]


async def test_a_cancellation_while_a_step_goes_to_wait() -> None:
    """A cancelled step neither takes what is buffered nor registers."""
    gate = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        await gate.wait()
        return await waits()(step)  # type: ignore[no-any-return]

    async with bed(runner) as t:
        await t.runtime.signal("go", b"yes")
        await start(t, "r")
        assert await t.runtime.cancel("r")
        gate.set()
        assert (await t.end("r")).termination.status is TerminalStatus.CANCELLED
        assert left(t) == [("go", b"yes")]


async def test_a_waiter_whose_job_was_removed_by_hand() -> None:
    """Its registration is void: a signal is buffered, and another run can wait."""
    async with bed(waits()) as t:
        for name in ("first", "second"):
            job = (await t.runtime.submit(b"go", run_id=name)).job_id
            await t.settle()
            [(job,)] = t.queue.peek("SELECT job_id FROM runs WHERE run_id = ?", (name,))
            await t.queue.cancel(job)
        await start(t, "third")
        assert (await t.runtime.signal("go", b"yes")).run_id == "third"
        assert await result(t, "third") == b"yes"


async def test_a_waiter_that_was_woken_by_hand_has_no_signal() -> None:
    """It is as if its time were over; what the wake brought is no signal."""
    async with bed(waits()) as t:
        await start(t, "r")
        [(job,)] = t.queue.peek("SELECT job_id FROM runs")
        await t.queue.wake(job, b"not a signal")
        assert await result(t, "r") is None


async def test_a_late_end_of_an_earlier_delivery() -> None:
    """A delivery whose lease expired ends after its run has gone on to wait again: that it ends
    does not touch the new wait.
    """
    stuck = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        if step.number == 0:
            return Continue(signal="first", timeout=1)
        if step.number == 1:
            if step.attempt == 1:
                while not stuck.is_set():
                    try:
                        await stuck.wait()
                    except asyncio.CancelledError:
                        cancelled.set()
                raise asyncio.CancelledError
            return Continue(signal="second")
        return Succeed(step.signal)

    cancelled = asyncio.Event()
    async with bed(runner, renew=None) as t:
        await start(t, "r")
        await t.clock.advance(3600)
        assert cancelled.is_set()
        status = await t.runtime.status("r")
        assert status is not None and status.waiting_for == "second"
        stuck.set()
        await t.settle()
        assert (await t.runtime.signal("second", b"yes")).outcome is DELIVERED
        assert await result(t, "r") == b"yes"


async def test_the_timeout_runs_from_the_commit() -> None:
    """REP-06: a step whose outcome was lost runs again, and its wait begins then: there is no
    recorded outcome that could be late.
    """
    store, clock = MemoryStore(), ManualClock()
    process = Process(store, waits(timeout=60), clock)
    assert await process.opened()
    process.store.hold()
    submitting = asyncio.ensure_future(process.runtime.submit(b"go", run_id="r"))
    await settle(clock)
    process.store.release()
    await submitting
    process.store.hold()
    await settle(clock)
    await process.kill()
    clock.shift_wall_clock(59)
    async with bed(waits(timeout=60), store=store, clock=clock) as t:
        await t.clock.advance(59.999)
        status = await t.runtime.status("r")
        assert status is not None and status.waiting_for == "go"
        await t.clock.advance(0.001)
        assert await result(t, "r") is None


COUNT = 4


async def test_dying_after_every_number_of_objects() -> None:
    """Who sends signals with ids, and sends again what was not acknowledged, is sure that each
    is received once and in order, wherever the process dies.
    """
    die_after = 1
    while True:
        store, clock = MemoryStore(), ManualClock()
        died = False
        for limit in (die_after, None):
            process = Process(store, collect, clock, die_after=limit)
            died |= not await _drive(process, clock)
        async with Queue.open(store, clock=clock) as queue:
            async with WorkflowRuntime(queue, None) as runtime:
                end = await runtime.wait("r")
                assert end.outcome.result == b"01234"[:COUNT], die_after
                assert await runtime.clear_signal("go") == 0
        if not died:
            break
        die_after += 1
    assert die_after > 5


async def collect(step: Step) -> Outcome:
    heard = step.payload + (step.signal or b"")
    if len(heard) == COUNT:
        return Succeed(heard)
    return Continue(heard, signal="go")


async def _drive(process: Process, clock: ManualClock) -> bool:
    """Whether the process got through."""

    async def drive() -> None:
        if await process.runtime.outcome("r") is None:
            await process.runtime.submit(b"", run_id="r")
        for number in range(COUNT):
            payload = b"%d" % number
            await process.runtime.signal("go", payload, signal_id=f"{number}", mode="queue")
        await process.runtime.wait("r")

    driving: asyncio.Future[None] | None = None
    if await process.opened():
        driving = asyncio.ensure_future(drive())
        await asyncio.wait({driving, process.task}, return_when=asyncio.FIRST_COMPLETED)
    if process.store.dead.is_set():  # the process is ending by itself
        if driving is not None:
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)
        await asyncio.gather(process.task, return_exceptions=True)
        return False
    assert driving is not None
    await driving
    await process.leave()
    return True
