"""What a store that is away for a while, or a queue that is closed, does to work under way."""

from __future__ import annotations

import asyncio
import os

import pytest

from taquba import ManualClock, PermanentError, Queue, QueueConfig
from taquba.errors import Closed, StoreUnavailable
from taquba.objectstore import MemoryStore
from taquba.queue import Claim, Settlement, new_job
from taquba.workflow import (
    Continue,
    ErrorKind,
    Fail,
    Outcome,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)

pytestmark = pytest.mark.anyio


class AwayStore(MemoryStore):
    """A store that can be away: every write fails meanwhile."""

    away = False

    async def create(self, key: str, data: bytes) -> None:
        if self.away:
            raise StoreUnavailable("away", operation="create", key=key)
        await super().create(key, data)


async def test_an_outage_longer_than_every_lease_costs_no_attempt_of_what_has_not_begun() -> None:
    """A lease runs from when the claim is durable: before that, nobody can begin."""
    clock, store, calls = ManualClock(), AwayStore(), list[int]()

    async def runner(step: Step) -> Outcome:
        calls.append(step.attempt)
        return Succeed(b"ok")

    async with (
        Queue.open(store, clock=clock) as queue,
        WorkflowRuntime(queue, runner) as runtime,
    ):
        store.away = True
        submitting = asyncio.ensure_future(runtime.submit(b"x", run_id="r"))
        await clock.advance(150)
        store.away = False
        await clock.advance(30)
        await submitting
        end = await runtime.wait("r")
    assert end.termination.status is TerminalStatus.SUCCEEDED
    assert calls == [1]


async def test_an_outage_between_two_steps_costs_no_attempt() -> None:
    clock, store, calls = ManualClock(), AwayStore(), list[tuple[int, int]]()

    async def runner(step: Step) -> Outcome:
        calls.append((step.number, step.attempt))
        store.away = step.number == 0
        return Continue(b"y") if step.number == 0 else Succeed(b"ok")

    async with (
        Queue.open(store, clock=clock) as queue,
        WorkflowRuntime(queue, runner) as runtime,
    ):
        await runtime.submit(b"x", run_id="r")
        waiting = asyncio.ensure_future(runtime.wait("r"))
        await clock.advance(150)
        store.away = False
        await clock.advance(30)
        end = await waiting
    assert end.termination.status is TerminalStatus.SUCCEEDED
    assert calls == [(0, 1), (1, 1)]


async def test_closing_the_queue_ends_those_who_wait_for_runs() -> None:
    queue = await Queue.open(MemoryStore())
    with pytest.raises(Closed):
        async with WorkflowRuntime(queue, None) as runtime:
            await runtime.submit(b"x", run_id="r")
            waiting = asyncio.ensure_future(runtime.wait("r"))
            await asyncio.sleep(0)
            await queue.close()
            await asyncio.Event().wait()
    with pytest.raises(Closed):
        await waiting  # pyright: ignore[reportGeneralTypeIssues]


async def test_closing_the_queue_ends_an_idle_worker() -> None:
    async def handler(claim: Claim) -> Settlement:
        return lambda tx: tx.ack(claim)

    queue = await Queue.open(MemoryStore())
    working = asyncio.ensure_future(queue.engine("a", handler).run())
    await asyncio.sleep(0)
    await queue.close()
    with pytest.raises(Closed):
        await working


@pytest.mark.parametrize("rounds", range(5))
async def test_a_worker_that_is_being_cancelled_claims_nothing_more(rounds: int) -> None:
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))

    async def handler(claim: Claim) -> Settlement:
        return lambda tx: tx.ack(claim)

    try:
        async with Queue.open(MemoryStore()) as queue:
            working = asyncio.ensure_future(queue.engine("a", handler).run())
            for _ in range(5):
                await asyncio.sleep(0)
            working.cancel()
            for _ in range(rounds):
                await asyncio.sleep(0)
            with queue.transaction() as tx:
                tx.enqueue(new_job("a", b""))
            await tx.durable()
            await asyncio.gather(working, return_exceptions=True)
            assert (await queue.stats("a")).claimed == 0
        assert complaints == []
    finally:
        loop.set_exception_handler(None)


async def test_one_settlement_that_cannot_be_settled_at_all_spares_the_others() -> None:
    gate = asyncio.Event()

    def bad(tx: object) -> None:
        raise ValueError("bad")

    async def handler(claim: Claim) -> Settlement:
        await gate.wait()
        return bad if claim.job.payload == b"bad" else (lambda tx: tx.ack(claim))

    async with Queue.open(MemoryStore()) as queue:
        await queue.enqueue_many("a", [b"bad"] + [b"good"] * 9)
        worker = queue.engine("a", handler, concurrency=10, on_error=lambda claim, error: bad)
        working = asyncio.ensure_future(worker.run())
        while worker.busy < 10:
            await asyncio.sleep(0)
        gate.set()
        with pytest.raises(ValueError, match="bad"):
            await working
        assert (await queue.stats("a")).done == 9


async def test_a_cancellation_that_is_rolled_back_tells_nobody() -> None:
    async with Queue.open(MemoryStore()) as queue:
        enqueued = await queue.enqueue("a", b"")
        claim = await queue.claim("a")
        assert claim is not None
        with pytest.raises(KeyError), queue.transaction() as tx:
            tx.cancel(enqueued.job_id)
            raise KeyError
        assert not claim.cancel_token.is_cancelled


@pytest.mark.parametrize("how", ["error", "reason"])
async def test_text_that_is_no_unicode_does_not_make_a_failure_transient(how: str) -> None:
    calls: list[int] = []
    text = "no such file: " + os.fsdecode(b"caf\xe9")

    async def runner(step: Step) -> Outcome:
        calls.append(step.attempt)
        if how == "error":
            raise PermanentError(text)
        return Fail(text)

    async with Queue.open(MemoryStore()) as queue, WorkflowRuntime(queue, runner) as runtime:
        await runtime.submit(b"x", run_id="r")
        end = await runtime.wait("r")
    assert calls == [1]
    assert end.termination.error_kind is ErrorKind.PERMANENT
    assert "no such file: caf" in (end.termination.error or "")


async def test_a_run_whose_dead_step_was_swept_ends_when_its_runtime_comes_back() -> None:
    clock = ManualClock()
    config = QueueConfig(max_attempts=1, keep_dead=0)
    store = MemoryStore()
    begun = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        begun.set()
        await asyncio.Event().wait()
        return Succeed()

    async def first_process() -> None:
        async with (
            Queue.open(store, config=config, clock=clock) as queue,
            WorkflowRuntime(queue, runner) as runtime,
        ):
            await runtime.submit(b"x", run_id="r")
            await asyncio.Event().wait()

    first = asyncio.ensure_future(first_process())  # and taken over, in the middle of its step
    await begun.wait()
    async with Queue.open(store, config=config, clock=clock) as queue:
        await clock.advance(1)  # the sweep
        assert await queue.read("SELECT * FROM jobs") == []
        async with WorkflowRuntime(queue, None) as again:
            end = await again.wait("r")
        assert end.termination.status is TerminalStatus.FAILED
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_opening_that_is_cancelled_says_so() -> None:
    class HangingStore(MemoryStore):
        async def create(self, key: str, data: bytes) -> None:
            if len(self):
                await asyncio.Event().wait()
            await super().create(key, data)

    store = HangingStore()
    opening = asyncio.ensure_future(Queue.open(store).__aenter__())
    while not len(store):
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
