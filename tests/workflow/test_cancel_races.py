"""Cancellation against everything else that can happen to a step, each order forced."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taquba import ManualClock, PermanentError, QueueConfig, TransientError
from taquba.errors import Fenced
from taquba.objectstore import MemoryStore
from taquba.queue import CompletionOutcome
from taquba.workflow import Cancel, Continue, RunState, Step, Succeed, TerminalStatus

from .cancelling import done, ended_cancelled, running, state
from .harness import Process, bed

pytestmark = pytest.mark.anyio


class Waiting:
    """A runner whose steps wait until they are told to go on."""

    def __init__(self) -> None:
        self.started = 0
        self.go = asyncio.Event()

    async def __call__(self, step: Step) -> Succeed:
        self.started += 1
        await self.go.wait()
        return Succeed(b"done")


async def test_before_the_claim_is_durable() -> None:
    """CAN-28: the step is claimed, and its runner is not called any more."""
    runner = Waiting()
    async with bed(runner) as t:
        t.store.hold()
        submitting = asyncio.ensure_future(t.runtime.submit(b"", run_id="r"))
        await t.settle()
        assert (await asyncio.wait_for(_claimed(t), 1)) == 1
        cancelling = asyncio.ensure_future(t.runtime.cancel("r"))
        again = asyncio.ensure_future(t.runtime.cancel("r"))
        await t.settle()
        assert not cancelling.done() and not again.done() and not submitting.done()
        t.store.release()
        await t.clock.advance(1)
        assert submitting.result().created
        assert cancelling.result() is True and again.result() is True
        await ended_cancelled(t)
    assert runner.started == 0


async def _claimed(t: Any) -> int:
    [(count,)] = t.queue.peek("SELECT count(*) FROM jobs WHERE state = 2")
    return int(count)


async def test_instead_of_the_claim() -> None:
    """CAN-28: the step waits for a place, and is removed."""
    runner = Waiting()
    async with bed(runner, concurrency=1) as t:
        await t.runtime.submit(b"", run_id="other")
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r") is True
        status = await t.runtime.status("r")
        assert status is not None and status.state is RunState.TERMINATED
        runner.go.set()
        await t.settle()
        assert (await t.end("other")).termination.status is TerminalStatus.SUCCEEDED
        await ended_cancelled(t)
    assert runner.started == 1


async def transient(step: Step) -> None:
    raise TransientError("not now")


async def permanent(step: Step) -> None:
    raise PermanentError("never")


async def go_on(step: Step) -> Continue:
    return Continue()


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("then", [done, go_on, transient, permanent])
async def test_after_the_runner_and_before_the_settlement(then: Any, attempts: int) -> None:
    """CAN-15, CAN-16: there is no moment at which a request comes too late and is accepted.

    The runner has returned, and its settlement waits for its turn; the request is committed
    before it, in the same batch.
    """
    cancelling: list[asyncio.Future[bool]] = []

    async def last_act(step: Step) -> Any:
        step.effects.put("k", b"v")
        cancelling.append(asyncio.ensure_future(run.t.runtime.cancel("r")))
        return await then(step)

    async with running(config=QueueConfig(max_attempts=attempts, jitter=False)) as run:
        await run.finish(last_act)
        assert cancelling[0].result() is True
        await ended_cancelled(run.t)
        assert await run.t.queue.kv.get("k") is None
        await run.t.clock.advance(3600)
        assert run.calls == 1


@pytest.mark.parametrize(
    ("then", "attempts", "status"),
    [
        (done, 3, TerminalStatus.SUCCEEDED),
        (permanent, 3, TerminalStatus.FAILED),
        (transient, 1, TerminalStatus.FAILED),
    ],
)
async def test_after_the_settlement_and_before_it_is_durable(
    then: Any, attempts: int, status: TerminalStatus
) -> None:
    """CAN-24, CAN-29: false, and not before the end that it speaks of is durable."""
    async with running(config=QueueConfig(max_attempts=attempts, jitter=False)) as run:
        t = run.t
        t.store.hold()
        await run.finish(then)
        cancelling = asyncio.ensure_future(t.runtime.cancel("r"))
        await t.settle()
        assert not cancelling.done()
        t.store.release()
        await t.clock.advance(1)
        assert cancelling.result() is False
        assert (await t.end("r")).termination.status is status


async def test_between_two_steps() -> None:
    """CAN-15: the settlement has claimed the next step, whose runner is not called any more."""
    async with running() as run:
        t = run.t
        t.store.hold()
        await run.finish(go_on)
        status = t.queue.peek("SELECT step, status FROM runs WHERE run_id = 'r'")
        assert status == [(1, 0)]
        cancelling = asyncio.ensure_future(t.runtime.cancel("r"))
        await t.settle()
        t.store.release()
        await t.clock.advance(1)
        assert cancelling.result() is True
        await ended_cancelled(t, step=1)
        assert run.calls == 1


async def test_a_signal_that_the_step_was_given_and_has_not_seen() -> None:
    """SIG-25: claimed with it in the transaction that took it; the next that waits gets it."""
    seen: list[tuple[str, bytes | None]] = []
    go = asyncio.Event()

    async def runner(step: Step) -> Any:
        if step.number == 0:
            if step.run_id == "r":
                await go.wait()
            return Continue(signal="key", timeout=60)
        seen.append((step.run_id, step.signal))
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.signal("key", b"payload")
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        t.store.hold()
        go.set()
        await t.settle()
        assert t.queue.peek("SELECT step, signal FROM runs WHERE run_id = 'r'") == [(1, b"payload")]
        cancelling = asyncio.ensure_future(t.runtime.cancel("r"))
        await t.settle()
        t.store.release()
        await t.clock.advance(1)
        assert cancelling.result() is True
        await ended_cancelled(t, step=1)
        await t.runtime.submit(b"", run_id="other")
        assert (await t.end("other")).termination.status is TerminalStatus.SUCCEEDED
    assert seen == [("other", b"payload")]


async def test_between_a_failed_attempt_and_its_retry() -> None:
    """CAN-20, before the failed attempt is durable."""
    async with running() as run:
        t = run.t
        t.store.hold()
        await run.finish(transient)
        cancelling = asyncio.ensure_future(t.runtime.cancel("r"))
        await t.settle()
        t.store.release()
        await t.clock.advance(3600)
        assert cancelling.result() is True
        await ended_cancelled(t)
        assert run.calls == 1


@pytest.mark.parametrize(("renew", "left"), [("auto", 30), (None, 20)])
@pytest.mark.parametrize("attempts", [1, 3])
async def test_before_the_lease_expires(attempts: int, renew: str | None, left: float) -> None:
    """CAN-25, CAN-26: the end of the lease ends the run, with no dead job and no further call.

    The lease of a step that is held begins when its run is cancelled.
    """
    config = QueueConfig(max_attempts=attempts, lease=30, jitter=False)
    async with running(config=config, renew=renew) as run:
        t = run.t
        await t.clock.advance(10)
        assert await t.runtime.cancel("r") is True
        waiting = asyncio.ensure_future(t.runtime.wait("r"))
        await t.clock.advance(left - 0.1)
        assert await state(t) is RunState.CANCELLING
        await t.clock.advance(0.1)
        await ended_cancelled(t)
        assert waiting.done() and waiting.result().termination.error is None
        await t.clock.advance(3600)
        assert run.calls == 1


@pytest.mark.parametrize("attempts", [1, 3])
async def test_after_the_lease_expired(attempts: int) -> None:
    """CAN-25, CAN-26: its step has been told to stop, and has not yet."""
    stop = asyncio.Event()

    async def runner(step: Step) -> Succeed:
        assert step.attempt == 1
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue
        return Succeed()

    config = QueueConfig(max_attempts=attempts, lease=30, jitter=False)
    async with bed(runner, config=config, renew=None) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.clock.advance(31)
        assert await state(t) is RunState.RUNNING
        assert await t.runtime.cancel("r") is True
        assert await state(t) is RunState.CANCELLING
        stop.set()
        await t.settle()
        await ended_cancelled(t)


class SlowReads(MemoryStore):
    """Lets nobody read a payload before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def get(self, key: str) -> bytes:
        if key.startswith("payloads/"):
            self.asked.set()
            await self.go.wait()
        return await super().get(key)


async def test_while_its_payload_is_fetched() -> None:
    """The runner is not called with what was fetched."""
    runner = Waiting()
    store, clock = SlowReads(), ManualClock()
    async with bed(None, store=store, clock=clock) as t:
        await t.runtime.submit(bytes(300_000), run_id="r")
    process = Process(store, runner, clock)
    assert await process.opened()
    await store.asked.wait()
    assert await process.runtime.cancel("r") is True
    store.go.set()
    end = await process.runtime.wait("r")
    assert end.termination.status is TerminalStatus.CANCELLED
    await process.leave()
    assert runner.started == 0


async def test_a_payload_that_cannot_be_fetched() -> None:
    """The cancelled step dies of it, and the run is cancelled all the same."""
    runner = Waiting()
    store, clock = MemoryStore(), ManualClock()
    async with bed(None, store=store, clock=clock) as t:
        await t.runtime.submit(bytes(300_000), run_id="r")
        keys = [info.key async for info in store.list("payloads/")]
    await store.delete(keys)
    async with bed(runner, store=store, clock=clock) as t:
        assert await t.runtime.cancel("r") is True
        await t.settle()
        assert (await t.end("r")).termination.status is TerminalStatus.CANCELLED
    assert runner.started == 0


@pytest.mark.parametrize("durable", [False, True])
async def test_a_crash_while_the_run_is_pending(durable: bool) -> None:
    """Before the request is durable nothing was promised; after it, the run is cancelled."""
    store, clock = MemoryStore(), ManualClock()
    first = Process(store, None, clock)
    assert await first.opened()
    await first.runtime.submit(b"in", run_id="r")
    if not durable:
        first.store.hold()
    cancelling = asyncio.ensure_future(first.runtime.cancel("r"))
    await clock.advance(0)
    assert cancelling.done() is durable
    await first.kill()
    cancelling.cancel()
    await asyncio.gather(cancelling, return_exceptions=True)
    async with bed(done, store=store, clock=clock) as t:
        if durable:
            await ended_cancelled(t)
        else:
            assert (await t.end("r")).outcome.result == b"in"


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("durable", [False, True])
async def test_a_crash_while_the_step_runs(durable: bool, attempts: int) -> None:
    """CAN-17, CAN-18, CAN-27: the request outlives the process; the runner is not called again."""
    store, clock = MemoryStore(), ManualClock()
    config = QueueConfig(max_attempts=attempts, jitter=False)
    runner = Waiting()
    first = Process(store, runner, clock, config=config)
    assert await first.opened()
    await first.runtime.submit(b"in", run_id="r")
    await clock.advance(0)
    assert runner.started == 1
    if not durable:
        first.store.hold()
    cancelling = asyncio.ensure_future(first.runtime.cancel("r"))
    await clock.advance(0)
    assert cancelling.done() is durable
    await first.kill()
    cancelling.cancel()
    await asyncio.gather(cancelling, return_exceptions=True)
    async with bed(None, store=store, clock=clock, config=config) as t:
        if attempts == 2:
            assert await state(t) is (RunState.CANCELLING if durable else RunState.PENDING)
        elif durable:
            assert await state(t) is RunState.TERMINATED
    again = Waiting()
    again.go.set()
    async with bed(again, store=store, clock=clock, config=config) as t:
        end = await t.end("r")
        if durable:
            assert end.termination.status is TerminalStatus.CANCELLED
            assert end.termination.error is None
        elif attempts == 2:
            assert end.outcome.result == b"done"
        else:
            assert end.termination.status is TerminalStatus.FAILED
    assert again.started == (attempts == 2 and not durable)


async def test_cancelling_again_after_a_crash() -> None:
    """CAN-18, CAN-19: nobody has the step any more, so the run ends at once."""
    store, clock = MemoryStore(), ManualClock()
    first = Process(store, Waiting(), clock)
    assert await first.opened()
    await first.runtime.submit(b"in", run_id="r")
    await clock.advance(0)
    assert await first.runtime.cancel("r") is True
    await first.kill()
    async with bed(None, store=store, clock=clock) as t:
        assert await state(t) is RunState.CANCELLING
        assert await t.runtime.cancel("r") is True
        await ended_cancelled(t)
        assert await t.runtime.cancel("r") is False


async def test_a_takeover_before_the_request_is_durable() -> None:
    """The caller learns that it was fenced; the new owner knows nothing of it."""
    store, clock = MemoryStore(), ManualClock()
    first = Process(store, Waiting(), clock)
    assert await first.opened()
    await first.runtime.submit(b"in", run_id="r")
    await clock.advance(0)
    first.store.hold()
    cancelling = asyncio.ensure_future(first.runtime.cancel("r"))
    await clock.advance(0)
    async with bed(done, store=store, clock=clock) as t:
        assert (await t.end("r")).outcome.result == b"in"
        first.store.release()
        await clock.advance(10)
        with pytest.raises(Fenced):
            await cancelling
        with pytest.raises(Fenced):
            await first.task
        assert (await t.end("r")).outcome.result == b"in"


async def test_a_takeover_after_the_request_is_durable() -> None:
    """What the first owner's step says after that does not count, and is not needed."""
    store, clock = MemoryStore(), ManualClock()
    runner = Waiting()
    first = Process(store, runner, clock)
    assert await first.opened()
    await first.runtime.submit(b"in", run_id="r")
    await clock.advance(0)
    assert await first.runtime.cancel("r") is True
    async with bed(done, store=store, clock=clock) as t:
        runner.go.set()
        await t.clock.advance(10)
        await ended_cancelled(t)
    await asyncio.gather(first.task, return_exceptions=True)


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_caller_that_gives_up_waiting(is_running: bool) -> None:
    """The request was committed, and holds; only its caller does not learn it."""
    runner = Waiting()
    async with bed(runner if is_running else None) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        t.store.hold()
        cancelling = asyncio.ensure_future(t.runtime.cancel("r"))
        await t.settle()
        cancelling.cancel()
        await asyncio.gather(cancelling, return_exceptions=True)
        assert cancelling.cancelled()
        t.store.release()
        runner.go.set()
        await t.clock.advance(1)
        await ended_cancelled(t)


async def test_a_second_request_waits_for_the_first() -> None:
    """CAN-19: true is not said before the request that it speaks of is durable."""
    async with running() as run:
        t = run.t
        t.store.hold()
        both = [asyncio.ensure_future(t.runtime.cancel("r")) for _ in range(2)]
        await t.settle()
        assert not any(each.done() for each in both)
        t.store.release()
        await t.clock.advance(1)
        assert [each.result() for each in both] == [True, True]
        await run.finish()
        await ended_cancelled(t)


async def test_two_requests_of_a_pending_run() -> None:
    """CAN-04: the second finds it ended, and says so when that is durable."""
    async with bed(None) as t:
        await t.runtime.submit(b"", run_id="r")
        both = await asyncio.gather(t.runtime.cancel("r"), t.runtime.cancel("r"))
        assert both == [True, False]


async def test_a_run_that_is_not_durable_yet() -> None:
    async with bed(None) as t:
        t.store.hold()
        submitting = asyncio.ensure_future(t.runtime.submit(b"", run_id="r"))
        await t.settle()
        cancelling = asyncio.ensure_future(t.runtime.cancel("r"))
        await t.settle()
        assert not submitting.done() and not cancelling.done()
        t.store.release()
        await t.clock.advance(1)
        assert submitting.result().created and cancelling.result() is True
        await ended_cancelled(t)


async def test_a_runtime_that_is_left_by_an_exception() -> None:
    """A step that is given back is not wanted by anybody, if its run was cancelled."""
    store, clock = MemoryStore(), ManualClock()
    runner = Waiting()
    with pytest.raises(ValueError, match="left"):
        async with bed(runner, store=store, clock=clock) as t:
            await t.runtime.submit(b"", run_id="r")
            await t.settle()
            assert await t.runtime.cancel("r") is True
            raise ValueError("left")
    async with bed(None, store=store, clock=clock) as t:
        await ended_cancelled(t)
    assert runner.started == 1


async def test_a_runtime_that_is_drained() -> None:
    """As it is for a step that is cancelled when the time for that is over."""
    store, clock = MemoryStore(), ManualClock()
    runner = Waiting()
    async with bed(runner, store=store, clock=clock, drain_timeout=5) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r") is True
        leaving = asyncio.ensure_future(t.runtime.__aexit__(None, None, None))
        await t.clock.advance(5)
        await leaving
    async with bed(None, store=store, clock=clock) as t:
        await ended_cancelled(t)


async def test_whoever_waits_for_the_step_s_job() -> None:
    """The job of a cancelled step ends as a cancelled one, whoever had it."""
    async with running() as run:
        t = run.t
        [(job_id,)] = t.queue.peek("SELECT job_id FROM runs WHERE run_id = 'r'")
        waiting = asyncio.ensure_future(t.queue.wait_for_completion(job_id))
        await t.settle()
        assert await t.runtime.cancel("r") is True
        await run.finish()
        assert (await waiting).outcome is CompletionOutcome.CANCELLED


async def test_the_runner_s_own_cancel_wins_over_a_late_request() -> None:
    """Precedence 1: also when the request comes after the runner has returned."""
    cancelling: list[asyncio.Future[bool]] = []

    async def own(step: Step) -> Cancel:
        step.effects.put("k", b"v")
        cancelling.append(asyncio.ensure_future(run.t.runtime.cancel("r")))
        return Cancel("of its own")

    async with running() as run:
        await run.finish(own)
        assert cancelling[0].result() is True
        await ended_cancelled(run.t, error="of its own")
        assert await run.t.queue.kv.get("k") == b"v"
