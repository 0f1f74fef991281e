"""A queue and a workflow runtime for one test, whose time and whose crashes the test decides."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, final

from taquba._checks import shown, whole
from taquba.clock import Duration, seconds
from taquba.errors import Closed, InvalidArgument, InvalidState
from taquba.testing._activity import StillRunning
from taquba.testing._crash_points import CrashPoint
from taquba.testing._life import NOT_ENTERED, Life

if TYPE_CHECKING:
    from taquba.workflow import RunEnd, Runner

__all__ = ["Sandbox"]

_SAME: Any = object()


@final
class Sandbox(Life):
    """A queue, and a workflow runtime or workers, in memory and on a clock that a test moves.

    Inside ``async with`` they work as in production, but no time passes except by `advance`,
    which returns when all that became due is done. A test that waits for seven days, or for the
    third retry, takes milliseconds. `crash` ends the process at any moment, and `reopen` starts
    another one with what was durable.

    Leaving the block ends everything at once, whatever is under way; `stop` is what a process
    does that is asked to end.

    Example:
        >>> from taquba.workflow import Continue, Step, Succeed
        >>> async def runner(step: Step):
        ...     if step.number == 0:
        ...         return Continue(step.payload, after=timedelta(days=7))
        ...     return Succeed(step.payload.upper())
        >>> async def main() -> bytes | None:
        ...     async with Sandbox(runner) as sandbox:
        ...         run = await sandbox.runtime.submit(b"hello")
        ...         await sandbox.advance(timedelta(days=7))
        ...         end = await sandbox.runtime.wait(run.run_id)
        ...     return end.outcome.result
        >>> asyncio.run(main())
        b'HELLO'
    """

    # -- time -------------------------------------------------------------------------------

    async def advance(self, by: Duration) -> None:
        """Move time on, from one moment at which something is due to the next.

        At each of them, all that became due is done, with all that follows from it, before
        time moves further; also when this returns. Threads and sockets that handlers wait for
        are waited for; what waits for this clock, or for something that the test has to do,
        is not.

        Args:
            by: A `timedelta`, or seconds; 0 lets happen what can happen now.

        Raises:
            StillRunning: A thread has not ended within `patience`, or a step keeps the event
                loop busy for ever.
            InvalidType: `by` is no duration.
            InvalidArgument: `by` is negative or infinite.
        """
        await self.clock.advance(by)
        self._raise_failure()

    async def advance_to(self, when: datetime) -> None:
        """As `advance`, until the wall clock shows `when`, which must be aware."""
        await self.clock.advance_to(when)
        self._raise_failure()

    async def run_until_idle(self) -> None:
        """Let everything happen that can happen now; no time passes.

        Raises:
            StillRunning: A step or handler has not returned: it waits for the clock, for the
                test, or for ever. The message says which one, and where.
        """
        await self.advance(0)
        own = asyncio.current_task()
        if any(call.task is not own for call in self._activity.calls):
            raise StillRunning(
                f"{self._activity.running()}. If it waits for time, use advance(…); if it waits "
                "for this test, use advance(0)"
            )

    async def wait(self, run_id: str, *, within: Duration = timedelta(hours=1)) -> RunEnd:
        """The end of a run. Time moves on to the moment at which it ends, and no further.

        Args:
            run_id: The run.
            within: How far time may be moved for it.

        Raises:
            StillRunning: The run has not ended by then.
            RunNotFound: No run has this id.
            InvalidState: The process has crashed.
        """
        limit = seconds(within, name="within")
        runtime = self.runtime
        waiting = asyncio.ensure_future(runtime.wait(run_id))
        try:
            await self.clock._advance(limit, until=waiting.done)
            if waiting.done():
                return waiting.result()
            self._raise_failure()
            status = await runtime.status(run_id)
        except Closed:
            if self.crashed:
                self._living()
            raise
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        where = ""
        if status is not None:
            where = f": it is {status.state.value}, in step {status.current_step}"
        calls = f"; {self._activity.running()}" if self._activity.calls else ""
        raise StillRunning(
            f"run {run_id!r} has not ended within {limit:g} s{where}{calls}. "
            "Allow it more with wait(…, within=…)"
        )

    # -- crashes ----------------------------------------------------------------------------

    async def crash(self, *, in_flight: Literal["lost", "landed"] = "lost") -> None:
        """End the process as a kill would: nothing is drained, nothing more is stored.

        It can be called in the middle of a step, also by the step itself, which then goes no
        further. Handlers are cancelled so that the test can go on; what they do about that
        reaches nobody through the store.

        Args:
            in_flight: What becomes of writes that were sent to the store and not answered:
                they are lost, or they take effect (and time moves on until they have).

        Raises:
            InvalidState: The process has ended before.
            InvalidArgument: `in_flight` is something else.
        """
        if in_flight not in ("lost", "landed"):
            raise InvalidArgument(f"in_flight is {shown(in_flight)}: give 'lost' or 'landed'")
        process = self._living()
        process.lands = in_flight == "landed"
        process.kill("in a crash that the test asked for")
        await self._gone(process)  # a step that is part of it is cancelled here

    def crash_at(
        self,
        point: CrashPoint,
        *,
        step: int | None = None,
        run_id: str | None = None,
        attempt: int | None = None,
        queue: str | None = None,
        job_id: str | None = None,
    ) -> None:
        """Crash when the next step, or job of a worker, that all of this fits comes to a point.

        Args:
            point: ``"before_step"``: it is claimed, and the runner is not called.
                ``"before_settlement"``: the runner has returned, and nothing of that is
                stored; it runs again. ``"after_settlement"``: what it returned is stored, and
                nothing has happened since; it does not run again.
            step: The step's number.
            run_id: The run.
            attempt: Which attempt; the first is 1.
            queue: The queue of the job.
            job_id: The job.

        Raises:
            InvalidArgument: There is no such point.
            InvalidState: The process has ended.
        """
        self._living().plan.add(
            point,
            {"step": step, "run_id": run_id, "attempt": attempt, "queue": queue, "job_id": job_id},
        )

    def crash_at_write(self, number: int, *, landed: bool = False) -> None:
        """Crash with the `number`-th write from now on, which is lost or still takes effect.

        Counting up from 1 until a test runs through without a crash tries every moment at
        which a crash can make a difference.

        Args:
            number: Which write; 1 is the next.
            landed: Whether the store gets it.
        """
        gate = self._living().gate
        gate.die_at = (gate.writes + whole(number, "number", 1, 2**31), bool(landed))

    def crash_by_chance(self, seed: int, *, writes: int = 20) -> None:
        """Crash with one of the next `writes` writes, chosen by a seed."""
        chance = random.Random(seed)
        self.crash_at_write(
            chance.randint(1, whole(writes, "writes", 1, 2**31)), landed=chance.random() < 0.5
        )

    async def stop(self, *, within: Duration = timedelta(hours=1)) -> None:
        """End the process as one does that is asked to: what is under way is finished.

        Args:
            within: How far time may be moved for that.

        Raises:
            StillRunning: Something is still under way by then.
        """
        process = self._living()
        process.leave.set()
        await self.clock._advance(seconds(within, name="within"), until=process.task.done)
        if not process.task.done():
            raise StillRunning(f"the process does not end; {self._activity.running()}")
        await process.task
        process.kill("when it was stopped")

    async def reopen(
        self,
        runner: Runner | None = _SAME,
        *,
        runtime_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Start a new process on the same store, with what was durable. A living one crashes.

        When this returns, the new process has done what was due.

        Args:
            runner: Another runner, such as the next version of it. Default: the same.
            runtime_options: Other options of `WorkflowRuntime`. Default: the same.
        """
        if self._process is None:
            raise InvalidState(NOT_ENTERED)
        if self._activity.is_current:
            raise InvalidState("only the test can reopen the sandbox, not what runs in it")
        if self._process.is_open:
            await self.crash()
        else:
            await self._gone(self._process)
        if runner is not _SAME:
            self._runner = runner
        if runtime_options is not None:
            self._runtime_options = dict(runtime_options)
        await self._start()
