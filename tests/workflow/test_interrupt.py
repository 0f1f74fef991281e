"""Running steps that are interrupted when their runs are cancelled."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from taquba import QueueConfig
from taquba.errors import InvalidArgument
from taquba.workflow import BlockingStep, Cancel, RunState, Step, Succeed, TerminalStatus

from .cancelling import done, ended_cancelled, running, state
from .harness import bed

pytestmark = pytest.mark.anyio


class Interrupted:
    """A runner that waits for ever, and notes how it is interrupted."""

    def __init__(self) -> None:
        self.started = 0
        self.interrupted = 0
        self.cleaned = 0
        self.clean_up = 0.0
        self.then: Any = None
        self.clock: Any = None
        self.stubborn = False
        self.task: Any = None

    async def end(self) -> None:
        """Let a stubborn one end."""
        self.stubborn = False
        self.task.cancel()
        await asyncio.sleep(0)
        self.task.uncancel()

    async def runner(self, step: Step) -> Any:
        self.started += 1
        self.task = asyncio.current_task()
        step.effects.put("k", b"v")
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.interrupted += 1
                if self.stubborn:
                    continue
                if self.clean_up:
                    await self.clock.sleep(self.clean_up)
                self.cleaned += 1
                if self.then is None:
                    raise
                return self.then


async def test_a_step_is_interrupted() -> None:
    """CAN-07 with on_cancel="interrupt": CancelledError where the step waits."""
    runner = Interrupted()
    async with bed(runner.runner, on_cancel="interrupt") as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r") is True
        await t.settle()
        await ended_cancelled(t)
        assert (runner.started, runner.interrupted, runner.cleaned) == (1, 1, 1)
        assert await t.queue.kv.get("k") is None


async def test_a_step_that_cooperates_is_not_interrupted() -> None:
    """CAN-07 with on_cancel="cooperate", the default: the token, and nothing else."""
    runner = Interrupted()
    async with bed(runner.runner) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r") is True
        await t.clock.advance(29.9)
        assert await state(t) is RunState.CANCELLING
        assert runner.interrupted == 0
        await t.clock.advance(0.1)  # its lease ends
        assert runner.interrupted == 1
        await ended_cancelled(t)


@pytest.mark.parametrize("outcome", [Succeed(b"x"), 7])
async def test_what_an_interrupted_step_says_is_dropped(outcome: Any) -> None:
    """CAN-08: the precedence is the same."""
    runner = Interrupted()
    runner.then = outcome
    async with bed(runner.runner, on_cancel="interrupt") as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r") is True
        await t.settle()
        await ended_cancelled(t)
        assert await t.queue.kv.get("k") is None


async def test_an_interrupted_step_can_give_a_reason() -> None:
    """CAN-12, CAN-13"""
    runner = Interrupted()
    runner.then = Cancel("tidied up")
    async with bed(runner.runner, on_cancel="interrupt") as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r") is True
        await t.settle()
        await ended_cancelled(t, error="tidied up")
        assert await t.queue.kv.get("k") == b"v"


async def test_it_may_clean_up_within_the_grace() -> None:
    runner = Interrupted()
    runner.clean_up, runner.then = 9.0, Cancel("tidied up")
    async with bed(runner.runner, on_cancel="interrupt", cancel_grace=10) as t:
        runner.clock = t.clock
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r") is True
        await t.clock.advance(8.9)
        assert await state(t) is RunState.CANCELLING
        assert await t.runtime.cancel("r") is True  # and it is not interrupted again
        await t.clock.advance(0.1)
        await ended_cancelled(t, error="tidied up")
        assert (runner.interrupted, runner.cleaned) == (1, 1)


@pytest.mark.parametrize("attempts", [1, 3])
async def test_one_that_does_not_stop_is_not_waited_for(attempts: int) -> None:
    """CAN-25, CAN-26: the run ends as cancelled when the grace is over, with no dead job."""
    runner = Interrupted()
    runner.stubborn = True
    config = QueueConfig(max_attempts=attempts, lease=3600, jitter=False)
    async with bed(
        runner.runner, on_cancel="interrupt", cancel_grace=10, concurrency=1, config=config
    ) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r") is True
        await t.clock.advance(9.9)
        assert await state(t) is RunState.CANCELLING
        await t.clock.advance(0.2)
        await ended_cancelled(t)
        assert runner.started == 1
        assert await t.runtime.cancel("r") is False
        await runner.end()


async def test_the_lease_is_not_lengthened_by_an_interruption() -> None:
    runner = Interrupted()
    runner.stubborn = True
    config = QueueConfig(lease=5, jitter=False)
    async with bed(runner.runner, on_cancel="interrupt", cancel_grace=60, config=config) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r") is True
        await t.clock.advance(5)
        await ended_cancelled(t)
        await runner.end()


async def test_the_next_step_in_the_same_place_is_not_affected() -> None:
    seen: list[int] = []

    async def runner(step: Step) -> Succeed:
        task = asyncio.current_task()
        assert task is not None
        seen.append(task.cancelling())
        if step.run_id == "r":
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                assert task.cancelling() == 1
                return Succeed()  # it does not heed it
        async with asyncio.timeout(3600):
            await asyncio.sleep(0)
        return Succeed()

    async with bed(runner, on_cancel="interrupt", concurrency=1) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.runtime.submit(b"", run_id="s")
        await t.settle()
        assert await t.runtime.cancel("r") is True
        await t.settle()
        await ended_cancelled(t)
        assert (await t.end("s")).termination.status is TerminalStatus.SUCCEEDED
    assert seen == [0, 0]


async def test_a_step_that_cancels_its_own_run() -> None:
    """It is interrupted where it waits for that; the run is cancelled."""
    after = 0

    async def runner(step: Step) -> Succeed:
        nonlocal after
        await t.runtime.cancel(step.run_id)
        after += 1
        return Succeed()

    async with bed(runner, on_cancel="interrupt") as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        await ended_cancelled(t)
        assert after == 0
    async with bed(runner, on_cancel="cooperate") as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        await ended_cancelled(t)
    assert after == 1


async def test_a_function_in_a_thread_is_not_interrupted() -> None:
    """Its token fires, and it is waited for."""
    go, started = threading.Event(), threading.Event()
    tokens: list[bool] = []

    def runner(step: BlockingStep) -> Succeed:
        started.set()
        assert go.wait(20)
        tokens.append(step.cancel_token.is_cancelled)
        return Succeed(b"x")

    async with bed(runner, on_cancel="interrupt") as t:
        await t.runtime.submit(b"", run_id="r")
        await asyncio.to_thread(started.wait, 20)
        assert await t.runtime.cancel("r") is True
        await t.settle()
        assert await state(t) is RunState.CANCELLING
        waiting = asyncio.ensure_future(t.runtime.wait("r"))
        go.set()
        end = await waiting
        assert end.termination.status is TerminalStatus.CANCELLED
        await ended_cancelled(t)
    assert tokens == [True]


async def test_an_interruption_that_comes_when_the_runner_has_returned() -> None:
    """Precedence 1 and 2: it interrupts nothing any more, and decides all the same."""
    cancelling: list[asyncio.Future[bool]] = []
    for outcome, error in ((Cancel("of its own"), "of its own"), (Succeed(b"x"), None)):

        async def runner(step: Step, outcome: Any = outcome) -> Any:
            step.effects.enqueue("mail", bytes(300_000))  # stored before it is settled
            cancelling.append(asyncio.ensure_future(t.runtime.cancel(step.run_id)))
            return outcome

        async with bed(runner, on_cancel="interrupt") as t:
            await t.runtime.submit(b"", run_id="r")
            await t.settle()
            await ended_cancelled(t, error=error)
            assert (await t.queue.stats("mail")).pending == (0 if error is None else 1)
    assert [each.result() for each in cancelling] == [True, True]


async def test_it_is_interrupted_once_when_the_runtime_is_left_too() -> None:
    runner = Interrupted()
    runner.clean_up, runner.then = 5.0, Cancel("tidied up")
    async with bed(runner.runner, on_cancel="interrupt", drain_timeout=1) as t:
        runner.clock = t.clock
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r") is True
        leaving = asyncio.ensure_future(t.runtime.__aexit__(None, None, None))
        await t.clock.advance(10)
        await leaving
        await ended_cancelled(t, error="tidied up")
        assert runner.interrupted == 1


async def test_a_run_that_nobody_interrupts() -> None:
    async with running(on_cancel="interrupt") as run:
        await run.finish(done)
        assert (await run.t.end("r")).termination.status is TerminalStatus.SUCCEEDED


@pytest.mark.parametrize("bad", ["stop", None, True])
async def test_bad_options(bad: Any) -> None:
    with pytest.raises(InvalidArgument, match="on_cancel"):
        async with bed(None, on_cancel=bad):
            pass
    with pytest.raises(InvalidArgument, match="cancel_grace"):
        async with bed(None, cancel_grace=-1):
            pass
