"""The workflow runtime as its users see it."""

from __future__ import annotations

import asyncio
import copy
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, final

import anyio

from taquba._blocks import AsyncBlock
from taquba._checks import shown, whole, wrong_type
from taquba._groups import block_failure
from taquba.clock import Duration, seconds
from taquba.errors import (
    Closed,
    InvalidArgument,
    InvalidType,
    RunNotFound,
    TaqubaError,
)
from taquba.queue import Effects, Queue
from taquba.queue._validate import keeps_leases, time_for_work
from taquba.workflow._delivery import Delivery
from taquba.workflow._engines import Engines
from taquba.workflow._group import Grouping
from taquba.workflow._hook_delivery import HookDelivery
from taquba.workflow._hooks import TerminalHook, TerminalHookFunction
from taquba.workflow._large import outcome_of_run
from taquba.workflow._memo import MEMO_INLINE_LIMIT
from taquba.workflow._queues import hook_queue
from taquba.workflow._reading import RunReader
from taquba.workflow._records import RunEnd, Submitted
from taquba.workflow._run import ACTIVE, Run
from taquba.workflow._runner import Runner
from taquba.workflow._runs import RunTable
from taquba.workflow._schema import WORKFLOW_SCHEMA
from taquba.workflow._signalling import Signalling
from taquba.workflow._submitting import (
    Submission,
    check_run_id,
    checked_submissions,
    new_submission,
)
from taquba.workflow._workflows import Registry, Workflow, WorkflowBacklog, check_base

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from taquba.queue import Claim, Settlement

__all__ = ["WorkflowRuntime"]


@final
class WorkflowRuntime(AsyncBlock, Signalling, Grouping, RunReader):
    """Runs workflows: submits runs, works on their steps, and tells what became of them.

    Use it with ``async with``: inside, its worker runs. Leaving the block normally takes no
    further steps and finishes those under way; leaving it by an exception or cancellation
    gives those under way back, to be run again by whoever opens the store next. If another
    process takes the store over, the block is cancelled and raises `Fenced`.

    Runs belong to the runtime's queue name: two runtimes with different names on one store
    do not see each other's.

    Example:
        >>> from taquba.workflow import Continue, Step, Succeed
        >>> async def runner(step: Step):
        ...     if step.number == 0:
        ...         return Continue(step.payload.upper())
        ...     return Succeed(step.payload + b"!")
        >>> async def main() -> bytes | None:
        ...     async with Queue.open("memory://") as queue:
        ...         async with WorkflowRuntime(queue, runner) as runtime:
        ...             run = await runtime.submit(b"hello")
        ...             end = await runtime.wait(run.run_id)
        ...     return end.outcome.result
        >>> asyncio.run(main())
        b'HELLO!'
    """

    def __init__(
        self,
        queue: Queue,
        runner: Runner | None = None,
        *,
        workflows: Sequence[Workflow] = (),
        queue_name: str = "workflow-steps",
        terminal_hook: TerminalHook | TerminalHookFunction | None = None,
        concurrency: int = 16,
        drain_timeout: Duration | None = None,
        memo_inline_limit: int | None = MEMO_INLINE_LIMIT,
        retention: Duration | None = None,
        on_cancel: Literal["cooperate", "interrupt"] = "cooperate",
        cancel_grace: Duration = 30,
        renew: Literal["auto"] | None = "auto",
        step_timeout: Duration | None = None,
        keep_history: bool = False,
    ) -> None:
        """Prepare a runtime.

        Args:
            queue: An open queue.
            runner: An async function that takes a `Step` and returns `Continue`, `Succeed`,
                `Fail` or `Cancel`; an ordinary function that takes a `BlockingStep` (it is
                called in a thread); or an object with such a method `run_step`. It must be
                idempotent: a step whose outcome was not committed is run again. It runs what
                is submitted without a workflow's name. Without any runner the runtime submits
                and looks, and runs nothing.
            workflows: More runners, for runs that are submitted with a workflow's name.
            queue_name: Queue of the step jobs, and the name that the runs belong to. The steps of
                named workflows are on queues whose names begin with it and an ``@``.
            terminal_hook: Is told of every run that has ended, by a job that is committed with
                that end: a function that takes a `RunOutcome` and `Effects` to stage, async
                or not; or an object with such a method `on_termination`. It must be
                idempotent, too. All runtimes of one queue name should have the same.
            concurrency: Steps at the same time, at least 1, and as many calls of the hook.
            drain_timeout: How long leaving the block waits for steps under way, before they
                are cancelled and given back. None: as long as they take.
            memo_inline_limit: Memo values of more bytes than this, 0 to 16 MiB, are objects of
                their own, and not part of the state; it may differ from one runtime to the next.
                None: all are part of it, and have at most 16 MiB.
            retention: Runs are forgotten this long after their end, with all that belongs to
                them; also those that ended before this was said. None: they are kept.
            on_cancel: What becomes of a running step when its run is cancelled. ``"cooperate"``:
                its token fires, and it may heed that; if it does not, it runs until its lease
                ends. ``"interrupt"``: it also gets `asyncio.CancelledError`, once, where it
                waits. A function that runs in a thread cannot be interrupted: only its token
                fires.
            cancel_grace: How long a step that was cancelled, for that or any other reason, may
                take to clean up, before what it does is not waited for any more.
            renew: ``"auto"``: a step is held for as long as it runs. None: for as long as the
                lease of its queue's configuration, 30 s by default, unless it asks for more with
                `Step.lease`; then it is cancelled, and run again.
            step_timeout: How long a step may run, whatever its lease: one that takes longer is
                cancelled, and has failed an attempt. None: no such limit; a step that hangs then
                hangs until its run is cancelled, or the process ends.
            keep_history: Every attempt of every step is noted as it ends, to be read with
                `timeline`, and goes when its run is forgotten. Of one run the last 1,000 are
                kept. Every process that has runs of this queue name should do so, or none.

        Raises:
            InvalidArgument: Something of the above is wrong.
        """
        if not isinstance(queue, Queue):
            raise InvalidType(
                f"queue must be an open Queue, not {type(queue).__name__}: "
                "use 'async with Queue.open(…) as queue:'"
            )
        check_base(queue_name)
        queue.engine(queue_name, _no_handler)  # checks the rest of the name
        self._queue = self._reader = queue
        self._queue_name = queue_name
        self._concurrency = whole(concurrency, "concurrency", 1, 100_000)
        self._registry = Registry(
            queue_name,
            runner,
            workflows,
            terminal_hook,
            concurrency=concurrency,
            memo_inline_limit=memo_inline_limit,
        )
        self._drain_timeout = (
            None if drain_timeout is None else seconds(drain_timeout, name="drain_timeout")
        )
        self._retention = None if retention is None else seconds(retention, name="retention")
        if on_cancel not in ("cooperate", "interrupt"):
            raise InvalidArgument(
                f"on_cancel is {shown(on_cancel)}: give 'cooperate' or 'interrupt'"
            )
        self._interrupt = on_cancel == "interrupt"
        self._cancel_grace = seconds(cancel_grace, name="cancel_grace")
        keeps_leases(renew)
        self._renew: Literal["auto"] | None = renew
        self._step_timeout = time_for_work(step_timeout, "step_timeout")
        if not isinstance(keep_history, bool):
            raise wrong_type("keep_history must be a bool", keep_history)
        self._keep_history = keep_history
        self._waiters: set[asyncio.Future[Any]] = set()
        self._runs: RunTable | None = None
        self._entered_by = "WorkflowRuntime(…) as runtime"
        self._group: TaskGroup | None = None
        self._engines: Engines | None = None
        self._left = False
        if self._registry.hook is not None:
            queue.engine(self.hook_queue, _no_handler)

    async def __aenter__(self) -> WorkflowRuntime:
        if self._runs is not None:
            raise InvalidArgument("this runtime was used already: make a new one")
        await self._queue.ready()
        await self._queue.add_tables(WORKFLOW_SCHEMA)
        runs = RunTable.of(self._queue, self._queue_name)
        runs.enter(self._registry, self._retention, keep_history=self._keep_history)
        self._runs = runs
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._queue.on_failure(self._queue_failed)
        self._engines = Engines(
            self._group, self._queue.clock, self._drain_timeout, self._cancel_grace
        )
        try:
            if self._registry.calls:
                steps = Delivery(self._queue, runs, self._registry.calls, interrupt=self._interrupt)
                await self._begin(
                    self._registry.weights,
                    steps,
                    renew=self._renew,
                    time_for_work=self._step_timeout,
                )
            if self._registry.hook is not None:
                notifications = HookDelivery(self._queue, runs, self._registry.hook)
                await self._begin(self.hook_queue, notifications)
        except BaseException:
            await self.__aexit__(*sys.exc_info())
            raise
        return self

    async def _begin(
        self,
        queues: str | Mapping[str, int],
        delivery: Delivery | HookDelivery,
        *,
        renew: Literal["auto"] | None = None,
        time_for_work: float | None = None,
    ) -> None:
        assert self._engines is not None
        engine = self._queue.engine(
            queues,
            delivery.deliver,
            concurrency=self._concurrency,
            on_error=delivery.failed,
            cancel_grace=self._cancel_grace,
            renew=renew,
            time_for_work=time_for_work,
        )
        await self._engines.start(engine)

    def must_end(self) -> bool:
        """Whether what runs in the current task, one of this runtime's, must end at once."""
        return self._engines is not None and self._engines.is_cancelled()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        group = self._group
        assert group is not None
        try:
            if kind is None and self._engines is not None:
                self._engines.stop()
            return await group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as errors:
            failure = block_failure(errors, error, self._queue.failure)
            if failure is None:
                return None
            if failure is errors:
                raise
            raise failure from failure.__cause__
        finally:
            self._left = True
            self._opened().leave(self._registry, self._retention, keep_history=self._keep_history)
            self._fail_waiters(
                Closed(
                    "the runtime was closed while this was waiting; the run is safe, and goes on "
                    "when a runtime with this queue name is opened again"
                )
            )

    # -- submitting -------------------------------------------------------------------------

    async def submit(
        self,
        input: bytes,
        *,
        run_id: str | None = None,
        workflow: str | None = None,
        revision: str | None = None,
        once: bool = False,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        run_at: datetime | None = None,
        delay: Duration | None = None,
        effects: Effects | None = None,
    ) -> Submitted:
        """Start a run. When this returns, the run survives any crash.

        Submitting an active run again with the same input changes nothing and says so; an
        ended run's id can be used again, and begins a new life that knows nothing of the old.

        Args:
            input: Payload of step 0, at most 16 MiB.
            run_id: 1 to 128 characters of ``A-Z a-z 0-9 _ -``; default: a fresh ULID.
            workflow: Name of the workflow that is to run it; None is the runner without a name.
            revision: Of that workflow; None is the one that was registered last. The run keeps
                it to its end.
            once: An id whose run has ended, and is kept, is not used again either: that run is
                what is told of.
            headers: Text that every step and the outcome carry.
            priority: Of every step; lower is served first.
            max_attempts: Of every step; default: the queue's.
            run_at: Step 0 runs not before this (aware) time.
            delay: Step 0 runs not before this much time has passed.
            effects: More to commit with the submission; dropped if the run was active.

        Raises:
            InputMismatch: The run is active and has another input or workflow; nothing was
                written.
            InconsistentRunState: The run is active, and its job was removed behind the runtime's
                back.
            UnknownWorkflow: Runtimes of this process run workflows, and this is none of them.
            InvalidArgument: Something of the above is wrong; nothing was written.
            Fenced: Another process took the store over.
        """
        runs = self._opened()
        submission = self.submission(
            input,
            run_id=run_id,
            workflow=workflow,
            revision=revision,
            once=once,
            headers=headers,
            priority=priority,
            max_attempts=max_attempts,
            run_at=run_at,
            delay=delay,
        )
        if effects is not None:
            if not isinstance(effects, Effects):
                raise InvalidType(f"effects must be an Effects, not {type(effects).__name__}")
            runs.check_effects(effects)
        async with self._queue.committing(*submission.jobs, effects=effects) as tx:
            submitted = submission.apply(tx)
            if submitted.created:
                tx.apply(effects)
        return submitted

    def submission(
        self,
        input: bytes,
        *,
        run_id: str | None = None,
        workflow: str | None = None,
        revision: str | None = None,
        once: bool = False,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        run_at: datetime | None = None,
        delay: Duration | None = None,
    ) -> Submission:
        """A run that is submitted together with something else.

        Give it to `Effects.add`, and those effects to whatever commits them: the settlement of a
        job, an enqueue, another `submit`, or `Queue.commit`. Or give many to `submit_many`. The
        arguments are those of `submit`.

        Raises:
            UnknownWorkflow: Runtimes of this process run workflows, and this is none of them.
            InvalidArgument: Something of the arguments is wrong.
        """
        return new_submission(
            self._opened(),
            input,
            run_id=run_id,
            headers=headers,
            priority=priority,
            max_attempts=max_attempts,
            run_at=run_at,
            delay=delay,
            workflow=workflow,
            revision=revision,
            once=once,
        )

    async def submit_many(self, submissions: Iterable[Submission]) -> list[Submitted]:
        """Submit up to 10,000 runs, all or none, in one transaction; see `submission`.

        Of those that are active already with the same input, nothing is changed.

        Raises:
            InputMismatch: One is active with another input; nothing was written.
            InvalidArgument: Too many, or something that is no submission; nothing was written.
            StoreError: A large input could not be stored; nothing was committed.
            Fenced: Another process took the store over.
        """
        self._opened()
        wanted = checked_submissions(submissions)
        if not wanted:
            return []
        jobs = [job for each in wanted for job in each.jobs]
        async with self._queue.committing(*jobs) as tx:
            return [each.apply(tx) for each in wanted]

    async def cancel(self, run_id: str) -> bool:
        """Cancel a run. When this returns true, the run ends as cancelled, whatever happens.

        A run whose step nobody works on (it is pending, delayed, or waits for a retry) has
        ended when this returns. A step that is being run learns of it from `Step.cancel_token`,
        and is interrupted if `on_cancel` says so. When it has returned, or its lease ended, the
        run has ended; what the step returned and staged is dropped, unless it returned a
        `Cancel`: that keeps its reason and effects.

        Returns:
            Whether the run is cancelled, now or by an earlier call. False if it had ended, or
            if the id is unknown.

        Raises:
            InconsistentRunState: The run's job was removed behind the runtime's back.
            Fenced: Another process took the store over.
        """
        runs = self._opened()
        name = check_run_id(run_id)
        async with self._queue.committing() as tx:
            return runs.cancel(tx, name)

    @property
    def hook_queue(self) -> str:
        """Name of the queue of the terminal hook's jobs: one for each run that has ended, and
        was not told yet. Those that the hook failed for are dead there.
        """
        return hook_queue(self._queue_name)

    # -- looking ----------------------------------------------------------------------------

    async def wait(self, run_id: str, timeout: Duration | None = None) -> RunEnd:
        """Wait for the end of a run, and tell it. What it reports is durable.

        While no runtime of this queue name in this process has a runner, no run goes on: it waits
        until one is entered, and a warning is logged.

        Args:
            run_id: The run.
            timeout: Give up after this long; the run is not affected. None: never.

        Raises:
            RunNotFound: No run has this id.
            TimeoutError: The run had not ended in time.
            Fenced: Another process took the store over.
            Closed: The runtime was closed meanwhile.
            PayloadMissing, CorruptStore, StoreError: As for `outcome`.
        """
        runs = self._opened()
        name = check_run_id(run_id)
        limit = None if timeout is None else seconds(timeout, name="timeout")
        while True:
            run = runs.by_id(name)
            if run is None:
                raise RunNotFound(f"there is no run {name!r}: submit it first, or check the id")
            if run.status == ACTIVE:
                runs.status(run)  # raises if nobody can ever finish it
                run = await self._wait_for_end(run, limit)
            await self._queue.barrier()
            outcome = await outcome_of_run(self._queue, run)
            if outcome is not None:  # or else a new life has begun
                return RunEnd(run.termination(), outcome)

    async def backlog(self) -> list[WorkflowBacklog]:
        """The unfinished runs by workflow and revision, and whether somebody here runs them."""
        backlog = self._opened().backlog()
        await self._queue.barrier()
        return backlog

    async def _wait_for_end(self, run: Run, limit: float | None) -> Run:
        runs = self._opened()
        ended = runs.add_waiter(run.life)
        try:
            if not await self._wait_for(ended, limit):
                raise TimeoutError(f"run {run.run_id!r} did not end in {limit:g} s; it goes on")
            return ended.result()
        finally:
            runs.remove_waiter(run.life, ended)

    async def _wait_for(self, change: asyncio.Future[Any], limit: float | None) -> bool:
        """Wait for this, but not beyond the end of queue or runtime; whether it came."""
        if self._queue.failure is not None:
            raise self._queue.failure
        if self._left:
            raise Closed("this runtime was closed; open another one with the same queue name")
        self._opened().warn_if_idle()
        self._waiters.add(change)
        try:
            if limit is None:
                await change
                return True
            timer = asyncio.ensure_future(self._queue.clock.sleep(limit))
            try:
                waited: list[asyncio.Future[Any]] = [change, timer]
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
                await asyncio.gather(timer, return_exceptions=True)
            if change.done():
                change.result()  # raises what ended the wait
            return change.done()
        finally:
            self._waiters.discard(change)

    def _fail_waiters(self, error: TaqubaError) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(copy.copy(error))

    def _queue_failed(self, error: TaqubaError) -> None:
        """The queue stopped by itself; also while there was nothing to do for the worker."""
        self._fail_waiters(error)
        if self._group is not None and not self._left:
            self._group.start_soon(_fail, copy.copy(error))

    async def _enter(self) -> bool:
        self._opened()
        return True

    def _opened(self) -> RunTable:
        if self._runs is None:
            raise InvalidArgument(
                f"the runtime is not entered: use 'async with {self._entered_by}:'"
            )
        return self._runs


async def _no_handler(claim: Claim) -> Settlement:
    raise AssertionError("this worker is never run")


async def _fail(error: BaseException) -> None:
    raise error
