"""What the tests of cancellation share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from taquba.workflow import RunState, Step, Succeed, TerminalStatus

from .harness import Bed, bed

__all__ = ["Running", "done", "ended_cancelled", "running", "state"]


async def done(step: Step) -> Succeed:
    return Succeed(step.payload)


async def state(t: Bed, run_id: str = "r") -> RunState | None:
    status = await t.runtime.status(run_id)
    return None if status is None else status.state


async def ended_cancelled(t: Bed, *, step: int = 0, error: str | None = None) -> None:
    """The run `r` has ended, as a cancelled one does."""
    status = await t.runtime.status("r")
    assert status is not None and status.termination is not None
    assert status.state is RunState.TERMINATED
    termination = status.termination
    assert termination.status is TerminalStatus.CANCELLED
    assert (termination.error, termination.error_kind) == (error, None)
    assert termination.final_step == step
    outcome = await t.runtime.outcome("r")
    assert outcome is not None
    assert (outcome.status, outcome.result, outcome.error) == (
        TerminalStatus.CANCELLED,
        None,
        error,
    )
    stats = await t.queue.stats("workflow-steps")
    assert (stats.pending, stats.scheduled, stats.claimed, stats.dead) == (0, 0, 0, 0)


class Running:
    """A run `r` whose step is being run, and does what it is told when it is told."""

    def __init__(self) -> None:
        self.t: Bed
        self.step: Step
        self.calls = 0
        self.go = asyncio.Event()
        self.then: Callable[[Step], Awaitable[Any]] = done

    async def runner(self, step: Step) -> Any:
        self.calls += 1
        self.step = step
        await self.go.wait()
        return await self.then(step)

    async def finish(self, then: Callable[[Step], Awaitable[Any]] = done) -> None:
        self.then = then
        self.go.set()
        await self.t.settle()


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Running]:
    run = Running()
    async with bed(run.runner, **options) as run.t:
        await run.t.runtime.submit(b"in", run_id="r", headers={"h": "x"})
        await run.t.settle()
        assert await state(run.t) is RunState.RUNNING
        try:
            yield run
        finally:
            run.go.set()
