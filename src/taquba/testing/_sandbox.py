"""A queue and a workflow runtime for one test, whose time and whose crashes the test decides."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast, final

from taquba._checks import shown, whole, wrong_type
from taquba.clock import Duration, ManualClock, seconds
from taquba.errors import Closed, InvalidArgument, InvalidState, TaqubaError
from taquba.objectstore import MemoryStore, ObjectStore
from taquba.queue import Queue, QueueConfig
from taquba.testing._activity import Activity, StillRunning
from taquba.testing._crash_points import CrashPlan, CrashPoint
from taquba.testing._gate import Gate
from taquba.testing._process import Process
from taquba.tracing import Operation
from taquba.workflow import Workflow, WorkflowRuntime

if TYPE_CHECKING:
    from taquba.queue import Handler
    from taquba.workflow import RunEnd, Runner

__all__ = ["Part", "Sandbox"]

Part = Callable[[Queue], AbstractAsyncContextManager[object]]
"""Something that works beside an open queue: a worker, another runtime, a server of yours."""

_OPENS_WITHIN = 600.0
"""Seconds on the test's clock that opening and landing may take, on a store that is slow by it."""
_SAME: Any = object()
_NOT_ENTERED = "the sandbox is not entered: use 'async with Sandbox(…) as sandbox:'"


@final
class Sandbox:
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

    def __init__(
        self,
        runner: Runner | None = None,
        *,
        workers: Mapping[str, Handler] | None = None,
        beside: Sequence[Part] = (),
        store: ObjectStore | None = None,
        clock: ManualClock | None = None,
        config: QueueConfig = QueueConfig(jitter=False),  # noqa: B008  (frozen)
        runtime_options: Mapping[str, Any] | None = None,
        queue_options: Mapping[str, Any] | None = None,
        patience: Duration = 10.0,
    ) -> None:
        """Prepare a sandbox; nothing is opened yet.

        Args:
            runner: Runs steps, as `WorkflowRuntime` takes it. None: no runtime.
            workers: Handlers by the names of their queues; each gets a worker.
            beside: What else the process has: functions that take the queue and return what
                is entered with ``async with``, such as ``lambda queue: queue.worker(…)``.
            store: The store below; a `MemoryStore` by default. It can be a `FaultyStore` or a
                `LatencyStore` (on the same clock). It stays yours to close.
            clock: The clock; a new one by default.
            config: How queues treat their jobs. By default, retries have no jitter, so that
                a test knows when they come.
            runtime_options: Further options of `WorkflowRuntime`, such as ``workflows``. With
                some, there is a runtime without a `runner`, too.
            queue_options: Further options of `Queue.open`.
            patience: Real time that a thread or a socket may take which a handler waits for.
                0: those are not waited for.

        Raises:
            InvalidType, InvalidArgument: Something of the above is wrong.
        """
        if clock is not None and not isinstance(clock, ManualClock):
            raise wrong_type("clock must be a ManualClock", clock)
        for name, options in (
            ("workers", workers),
            ("runtime_options", runtime_options),
            ("queue_options", queue_options),
        ):
            if options is not None and not isinstance(options, Mapping):
                raise wrong_type(f"{name} must be a mapping", options)
        self.clock = clock or ManualClock()
        """The clock, which stands still until it is advanced."""
        self.store: ObjectStore = MemoryStore() if store is None else store
        """The store below: what outlives a crash."""
        self._runner = runner
        self._workers = dict(workers or {})
        self._beside = tuple(beside)
        self._runtime_options = dict(runtime_options or {})
        options = dict(queue_options or {})
        taken = {"clock", "config", "storage_options"} & options.keys()
        if taken:
            raise InvalidArgument(
                f"queue_options has {', '.join(sorted(taken))}: give that to the Sandbox itself"
            )
        self._activity = Activity(seconds(patience, name="patience"), options.pop("tracing", None))
        self._activity.describe = self._describe
        self._activity.on_settled = self._settled
        self._queue_options: dict[str, Any] = {"config": config, **options}
        self._process: Process | None = None
        self._entered = False

    # -- life -------------------------------------------------------------------------------

    async def __aenter__(self) -> Sandbox:
        if self._entered:
            raise InvalidState("this sandbox was used already: make a new one")
        self._entered = True
        self._activity.begin()
        self.clock._observers.append(self._activity)
        try:
            await self._start()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        failure = self._failure
        await self._end()
        if failure is not None and kind is None:
            raise failure

    async def _end(self) -> None:
        process = self._process
        try:
            if process is not None:
                process.kill("at the end of the sandbox")
                process.lands = False
                process.lose()
                await self._gone(process)
        finally:
            self.clock._observers.remove(self._activity)
            self._activity.end()

    async def _start(self) -> None:
        self._process = process = Process(self.store, self._activity, self._open_queue, self._parts)
        await self.clock._advance(
            _OPENS_WITHIN, until=lambda: process.task.done() or process.queue is not None
        )
        if process.task.done() and not process.gate.is_dead:
            await process.task
        if not process.is_open and not process.gate.is_dead:
            process.kill("while it was opened")
            raise StillRunning(
                f"the sandbox was not open after {_OPENS_WITHIN:g} s on its clock: does the store "
                "answer?"
            )

    async def _open_queue(self, gate: Gate) -> Queue:
        return await Queue.open(
            gate, clock=self.clock, tracing=self._activity, **self._queue_options
        )

    def _parts(self, queue: Queue, plan: CrashPlan) -> list[AbstractAsyncContextManager[object]]:
        parts: list[AbstractAsyncContextManager[object]] = []
        if self._runner is not None or self._runtime_options:
            runner = None if self._runner is None else plan.wrap(self._runner)
            options = dict(self._runtime_options)
            workflows = options.get("workflows")
            if isinstance(workflows, Sequence):
                options["workflows"] = [
                    replace(each, runner=plan.wrap(each.runner))
                    if isinstance(each, Workflow)
                    else each
                    for each in cast("Sequence[object]", workflows)
                ]
            parts.append(WorkflowRuntime(queue, runner, **options))
        for name, handler in self._workers.items():
            parts.append(queue.worker(name, plan.wrap(handler)))
        parts += [part(queue) for part in self._beside]
        return parts

    @property
    def queue(self) -> Queue:
        """The open queue.

        Raises:
            InvalidState: The sandbox is not entered, or has crashed.
        """
        queue = self._living().queue
        assert queue is not None
        return queue

    @property
    def runtime(self) -> WorkflowRuntime:
        """The workflow runtime.

        Raises:
            InvalidState: The sandbox has none, is not entered, or has crashed.
        """
        runtime = self._living().runtime
        if runtime is None:
            raise InvalidState("this sandbox has no runtime: make it with Sandbox(runner)")
        return runtime

    def _living(self) -> Process:
        process = self._process
        if process is None:
            raise InvalidState(
                "the sandbox is not entered: use 'async with Sandbox(…) as sandbox:'"
            )
        self._raise_failure()
        if not process.is_open:
            raise InvalidState(f"the process ended {process.why}: use 'await sandbox.reopen()'")
        return process

    @property
    def crashed(self) -> bool:
        """Whether the process has crashed, and none was opened since."""
        return self._process is not None and self._process.gate.is_dead

    @property
    def _failure(self) -> BaseException | None:
        """What ended the process by itself: `Fenced`, for example."""
        process = self._process
        if process is None or process.gate.is_dead or not process.task.done():
            return None
        return None if process.task.cancelled() else process.task.exception()

    def _raise_failure(self) -> None:
        failure = self._failure
        if failure is not None:
            raise failure

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
        raise StillRunning(f"run {run_id!r} has not ended within {limit:g} s{where}{calls}")

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

    async def _gone(self, process: Process) -> None:
        await asyncio.wait([process.task])
        flying = process.gate.in_flight
        if process.lands:
            await self.clock._advance(_OPENS_WITHIN, until=lambda: not flying)
            if flying:
                raise StillRunning("writes in flight do not land: does the store hold them?")
        await asyncio.gather(*flying, return_exceptions=True)

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
            raise InvalidState(
                "the sandbox is not entered: use 'async with Sandbox(…) as sandbox:'"
            )
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

    # -- what is told -----------------------------------------------------------------------

    def _settled(self, operation: Operation) -> None:
        if self._process is not None:
            self._process.plan.settled(operation)

    def _describe(self, operation: Operation) -> str:
        process = self._process
        queue = None if process is None else process.queue
        job = f"job {operation.job_id} on queue {operation.queue!r}"
        if process is not None and process.runtime is not None and queue is not None:
            try:
                rows = queue.peek(
                    "SELECT run_id, step FROM runs WHERE job_id = ?", (operation.job_id,)
                )
            except TaqubaError:
                rows = []
            if rows:
                job = f"step {rows[0][1]} of run {rows[0][0]!r}"
        return f"{job} (attempt {operation.attempt})"
