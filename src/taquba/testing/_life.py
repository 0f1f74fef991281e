"""What a sandbox is made of, and how it begins and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from taquba._blocks import AsyncBlock
from taquba._checks import wrong_type
from taquba.clock import Duration, ManualClock, seconds
from taquba.errors import InvalidArgument, InvalidState, TaqubaError
from taquba.objectstore import MemoryStore, ObjectStore
from taquba.queue import Queue, QueueConfig
from taquba.testing._activity import Activity, StillRunning
from taquba.testing._crash_points import CrashPlan
from taquba.testing._gate import Gate
from taquba.testing._process import Process
from taquba.tracing import Operation
from taquba.workflow import Workflow, WorkflowRuntime

if TYPE_CHECKING:
    from taquba.queue import Handler
    from taquba.workflow import Runner

__all__ = ["NOT_ENTERED", "SLOW", "Life", "Part"]

Part = Callable[[Queue], AbstractAsyncContextManager[object]]
"""Something that works beside an open queue: a worker, another runtime, a server of yours."""

SLOW = 600.0
"""Seconds on the test's clock that opening and landing may take, on a store that is slow by it."""
NOT_ENTERED = "the sandbox is not entered: use 'async with Sandbox(…) as sandbox:'"


class Life(AsyncBlock):
    """A process that a test can open, end and open again; what `Sandbox` builds on."""

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

    async def __aenter__(self) -> Self:
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

    async def _gone(self, process: Process) -> None:
        await asyncio.wait([process.task])
        flying = process.gate.in_flight
        if process.lands:
            await self.clock._advance(SLOW, until=lambda: not flying)
            if flying:
                raise StillRunning("writes in flight do not land: does the store hold them?")
        await asyncio.gather(*flying, return_exceptions=True)

    async def _start(self) -> None:
        self._process = process = Process(self.store, self._activity, self._open_queue, self._parts)
        await self.clock._advance(
            SLOW, until=lambda: process.task.done() or process.queue is not None
        )
        if process.task.done() and not process.gate.is_dead:
            await process.task
        if not process.is_open and not process.gate.is_dead:
            process.kill("while it was opened")
            raise StillRunning(
                f"the sandbox was not open after {SLOW:g} s on its clock: does the store answer?"
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
            raise InvalidState(NOT_ENTERED)
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
