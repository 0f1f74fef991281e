"""The records of runs: every statement on the `runs` table."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from taquba._checks import as_datetime, moment
from taquba._msgpack import unpack
from taquba.errors import InputMismatch, ReservedName
from taquba.queue import CancelOutcome, Job, JobState
from taquba.workflow._clearing import Clearing
from taquba.workflow._group_rows import Membership
from taquba.workflow._group_table import GroupTable
from taquba.workflow._group_upkeep import GroupUpkeep
from taquba.workflow._headers import life_of, own_headers
from taquba.workflow._history import History
from taquba.workflow._hooks import Hooks, StepTerms
from taquba.workflow._queues import SEPARATOR, label, queue_of
from taquba.workflow._records import (
    ErrorKind,
    RunOutcome,
    RunStatus,
    TerminalStatus,
)
from taquba.workflow._retention import Retention
from taquba.workflow._run import (
    ACTIVE,
    RUN_COLUMNS,
    STORED,
    STORED_KINDS,
    Run,
    find_run,
    status_of,
)
from taquba.workflow._signals import Signals
from taquba.workflow._workflows import Registry, WorkflowBacklog, choose

if TYPE_CHECKING:
    from taquba.queue import Effects, NewJob, Queue, QueueTransaction, StoredValue

__all__ = ["ACTIVE", "Run", "RunTable"]

logger = logging.getLogger("taquba.workflow")


_ADVANCE = "UPDATE runs SET step = ?, job_id = ? WHERE life = ?"
_ADVANCE_WAITED = _ADVANCE.replace(
    "WHERE", ", signal_key = NULL, signal = NULL, signal_sent = NULL WHERE"
)
_NO_PLACE = (None, None)
_JOB_GONE = "the job of its step is gone: it died and was not kept, or was removed by hand"
_MOST_REMEMBERED = 10_000
"""Jobs whose run is remembered; the others are looked up."""


class RunTable:
    """The runs of one queue name; all runtimes of that name on one queue share it."""

    def __init__(self, queue: Queue, queue_name: str) -> None:
        self.queue = self._queue = queue
        self.name = self._name = queue_name
        # Lives are numbered over all queue names.
        self._lives = queue.shared("workflow.lives", lambda: _unused_lives(queue))
        self._clearing = Clearing.of(queue)
        self._advanced: dict[str, tuple[int, str, int, None]] = {}
        self.history: History | None = None
        """Notes the attempts, while a runtime wants that."""
        self.signals = Signals(queue_name)
        self.groups = GroupTable(
            queue,
            queue_name,
            self.signals,
            take_number=self.take_life,
            begin_upkeep=lambda: GroupUpkeep(queue, self),
        )
        self._waiters: dict[int, list[asyncio.Future[Run]]] = {}
        self._replaced: dict[int, Run] = {}
        """Lives whose rows were replaced, and for whose ends somebody waits."""
        self._registries: list[Registry] = []
        self.retention: Retention | None = None
        """Told of runs that end, once a runtime has had a window."""
        self._told_idle = False
        self._hooked: set[str] = set()
        self.hooks = Hooks(queue, queue_name)

    @classmethod
    def of(cls, queue: Queue, queue_name: str) -> RunTable:
        """The table of this name, and no second one."""
        return queue.shared(f"workflow.runs:{queue_name}", lambda: cls(queue, queue_name))

    def enter(
        self, registry: Registry, window: float | None, *, keep_history: bool = False
    ) -> None:
        """A runtime begins to use this table: from now on, no step dies unnoticed.

        Runs are forgotten `window` seconds after their end.
        """
        self._registries.append(registry)
        if keep_history:
            if self.history is None:
                self.history = History()
                self._clearing.timelines = True
            self.history.users += 1
        self.groups.enter()
        self.hooks.enter(registry.hook, has_runner=bool(registry.calls))
        for queue in (self._name, *registry.calls):
            self._hook(queue)
        for backlog in self.backlog():
            self._hook(queue_of(self._name, backlog.workflow, backlog.revision))
            if registry.calls and not backlog.runnable:
                logger.warning(
                    "%d runs of %s wait, since nobody here runs it: register it, or let another "
                    "workflow accept it",
                    backlog.runs,
                    label(backlog.workflow, backlog.revision),
                )
        dead = self._of_dead_jobs()
        if dead:
            with self._queue.transaction() as tx:
                for life, error, cancelled, *terms in dead:
                    step = StepTerms(*terms)
                    self._end_dead(tx, life, step, error or _JOB_GONE, cancelled=bool(cancelled))
        if window is not None:
            self.retention = Retention.of(self._queue)
            self.retention.begin(self._name, window)
            self.groups.to_forget.set()

    @property
    def window_ms(self) -> float | None:
        """How long ended runs are kept, in milliseconds; None: for ever."""
        return None if self.retention is None else self.retention.window_ms(self._name)

    def leave(
        self, registry: Registry, window: float | None, *, keep_history: bool = False
    ) -> None:
        """A runtime has ended its use."""
        if keep_history and self.history is not None:
            self.history.users -= 1
            if not self.history.users:
                self.history = None
        if window is not None and self.retention is not None:
            self.retention.end(self._name, window)
        self._registries.remove(registry)
        self.hooks.leave(registry.hook, has_runner=bool(registry.calls))
        if not self._registries:
            for queue in self._hooked:
                self._queue.set_dead_letter_hook(queue, None)
                self._queue.set_abandoned_hook(queue, None)
            self._hooked.clear()

    def _hook(self, queue: str) -> None:
        if queue not in self._hooked:
            self._hooked.add(queue)
            self._queue.set_dead_letter_hook(queue, self._step_died)
            self._queue.set_abandoned_hook(queue, self._step_died)

    def choose(self, workflow: str | None, revision: str | None) -> tuple[str | None, str | None]:
        """The workflow and revision of a new run; see `choose`."""
        if workflow is None and revision is None and len(self._registries) == 1:
            calls = self._registries[0].calls
            if not calls or self._name in calls:
                return None, None
        newest: dict[str, str | None] = {}
        runnable: dict[str, int] = {}
        for registry in self._registries:
            newest |= registry.newest
            runnable |= registry.weights
        return choose(workflow, revision, newest, runnable, self._name)

    def is_runnable(self, workflow: str | None, revision: str | None) -> bool:
        """Whether a runtime of this process runs this."""
        queue = queue_of(self._name, workflow, revision)
        return any(queue in registry.calls for registry in self._registries)

    def warn_if_idle(self) -> None:
        """Somebody waits for runs: say so, once, if nobody in this process runs any."""
        if self._told_idle or any(registry.calls for registry in self._registries):
            return
        self._told_idle = True
        logger.warning(
            "what waits here waits for a while: no runtime in this process has a runner for %r; "
            "enter WorkflowRuntime(queue, runner) or JobRunner(queue, [job, …]), and runs go on",
            self._name,
        )

    def backlog(self) -> list[WorkflowBacklog]:
        """The unfinished runs, by workflow and revision."""
        rows = self._queue.peek(
            "SELECT workflow, revision, count(*), min(submitted_at) FROM runs"
            " WHERE queue = ? AND status = 0 GROUP BY workflow, revision"
            " ORDER BY workflow, revision",
            (self._name,),
        )
        found: list[WorkflowBacklog] = []
        for workflow, revision, runs, oldest_ms in rows:
            oldest = as_datetime(oldest_ms)
            assert oldest is not None
            runnable = self.is_runnable(workflow, revision)
            found.append(WorkflowBacklog(workflow, revision, runs, oldest, runnable))
        return found

    def by_id(self, run_id: str) -> Run | None:
        """The current life of a run id."""
        return find_run(self._queue.peek, self._name, run_id)

    def active(self, run_id: str) -> Run | None:
        """The current life of a run id, if it has not ended."""
        run = self.by_id(run_id)
        return run if run is not None and run.status == ACTIVE else None

    def by_life(self, life: int) -> Run:
        """One life, which exists."""
        [row] = self._queue.peek(f"SELECT {RUN_COLUMNS} FROM runs WHERE life = ?", (life,))
        return Run(*row)

    def advanced_to(self, job_id: str) -> tuple[int, str, int, None] | None:
        """Life, run id and step number of a job that `advance` made the current one; no signal.

        It is told once, and saves a look into the tables: the job cannot have been claimed
        if its run had ended or gone on meanwhile.
        """
        return self._advanced.pop(job_id, None)

    def current_step(self, life: int) -> tuple[str, int, int, str, str | None, bytes | None] | None:
        """Run id, status, step number and job id of one life, and key and payload of the signal
        that the step waited for; what a delivery needs to know.
        """
        rows = self._queue.peek(
            "SELECT run_id, status, step, job_id, signal_key, signal FROM runs WHERE life = ?",
            (life,),
        )
        return rows[0] if rows else None

    def unfinished(self) -> int:
        """How many runs have not ended."""
        [(count,)] = self._queue.peek(
            "SELECT count(*) FROM runs WHERE queue = ? AND status = 0", (self._name,)
        )
        return count  # type: ignore[no-any-return]

    def _of_dead_jobs(self) -> list[tuple[Any, ...]]:
        """Active runs whose step died while nobody was there to be told, with its last error,
        whether it was cancelled, its priority and its attempt limit.

        The job may also be gone by now: swept, or cancelled through the queue.
        """
        return self._queue.peek(
            "SELECT runs.life, jobs.last_error, jobs.cancel_requested, jobs.priority,"
            " jobs.max_attempts"
            " FROM runs LEFT JOIN jobs ON jobs.id = runs.job_id"
            " WHERE runs.queue = ? AND runs.status = 0 AND (jobs.state IS NULL OR jobs.state = ?)",
            (self._name, int(JobState.DEAD)),
        )

    def status(self, run: Run) -> RunStatus:
        """Where this run is."""
        return status_of(self._queue.peek, run)

    # -- changes ----------------------------------------------------------------------------

    def take_life(self) -> int:
        return next(self._lives)

    def insert(
        self,
        tx: QueueTransaction,
        life: int,
        run_id: str,
        job_id: str,
        digest: bytes,
        headers: bytes,
        workflow: str | None,
        revision: str | None,
        place: Membership | None = None,
        *,
        fresh: bool = False,
    ) -> None:
        """Begin a life; what is left of an earlier, ended one of the same id goes.

        If that was a member of a group, so is this. A fresh id is known to have had none.

        Raises:
            InputMismatch: It was, and had another input or workflow.
        """
        if not fresh:
            own = place
            place = self._replace(tx, life, run_id, digest, workflow, place)
            if place is not own:
                self.groups.mark(tx, place, job_id)
        tx.execute(
            "INSERT INTO runs (life, queue, run_id, status, step, job_id, input_digest,"
            " submitted_at, headers, workflow, revision, group_number, position)"
            " VALUES (?, ?, ?, 0, 0, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                life,
                self._name,
                run_id,
                job_id,
                digest,
                tx.now_ms,
                headers,
                workflow,
                revision,
                *(place or _NO_PLACE),
            ),
        )
        if workflow is not None:
            self._hook(queue_of(self._name, workflow, revision))

    def _replace(
        self,
        tx: QueueTransaction,
        life: int,
        run_id: str,
        digest: bytes,
        workflow: str | None,
        place: Membership | None,
    ) -> Membership | None:
        """Remove what is left of an earlier life; the place that the new one has in a group."""
        self._keep_for_waiters(run_id)
        for ref, group, position, status, known, runner, before, end in tx.execute(
            "DELETE FROM runs WHERE queue = ? AND run_id = ?"
            " RETURNING result_ref, group_number, position, status, input_digest, workflow,"
            " life, ended_number",
            (self._name, run_id),
        ).fetchall():
            self._clearing.forget(tx, before)
            if ref is not None:
                tx.forget_value(ref)
            if group is not None and place is None and not self.groups.is_forgotten(group):
                if known != digest or runner != workflow:
                    raise InputMismatch(
                        f"run {run_id!r} is a member of a group with another input or workflow: "
                        "choose another run id, or forget the group first"
                    )
                place = Membership(group, position)
                self.groups.replaced(tx, place, status, end, life)
        return place

    def adopt(self, tx: QueueTransaction, life: int, place: Membership) -> None:
        """An active run becomes a member of a group."""
        [(job_id,)] = tx.execute(
            "UPDATE runs SET group_number = ?, position = ? WHERE life = ? RETURNING job_id",
            (*place, life),
        ).fetchall()
        self.groups.mark(tx, place, job_id)

    def advance(
        self,
        tx: QueueTransaction,
        life: int,
        run_id: str,
        step: int,
        job_id: str,
        *,
        waited: bool = False,
    ) -> None:
        """Go on to the next step, whose job this is; the step before may have waited."""
        if len(self._advanced) >= _MOST_REMEMBERED:
            self._advanced.clear()
        self._advanced[job_id] = (life, run_id, step, None)
        tx._write(_ADVANCE_WAITED if waited else _ADVANCE, (step, job_id, life))

    def end(
        self,
        tx: QueueTransaction,
        life: int,
        status: TerminalStatus,
        step: Job | StepTerms,
        *,
        error: str | None = None,
        kind: ErrorKind | None = None,
        error_type: str | None = None,
        result: bytes | None = None,
        notification: NewJob | None = None,
        stored: StoredValue | None = None,
    ) -> None:
        """End a life with this step's job, and tell those who wait for that, and the hooks.

        Its memos go with it: no later life could see them. The hooks' notification may have
        been made before, and the result may be stored as an object.
        """
        if notification is not None:
            tx.enqueue(notification)
        elif self.hooks.active:
            self._notify(tx, life, status, step, error, kind, result)
        tx.execute(
            "UPDATE runs SET status = ?, ended_at = ?, error = ?, error_kind = ?, error_type = ?,"
            " result = ?, result_ref = ?, signal_key = NULL, signal = NULL, signal_sent = NULL"
            " WHERE life = ? AND status = 0",
            (
                int(STORED[status]),
                tx.now_ms,
                error,
                STORED_KINDS[kind],
                error_type,
                result if stored is None else None,
                None if stored is None else stored.ref,
                life,
            ),
        )
        if stored is not None:
            stored.use(tx)
        if self.groups.any:
            if status is not TerminalStatus.SUCCEEDED:
                self.groups.keep_input(tx, life, _payload_of(step))
            self.groups.ended(tx, life, status)
        self._clearing.clear(tx, life)
        tx.after_commit(lambda: self._ended(life, result))
        if self.retention is not None:
            tx.after_commit(partial(self.retention.run_ended, self._name, tx.now_ms))

    def _step_died(self, tx: QueueTransaction, job: Job) -> None:
        """The queue gave a step job up, or dropped a cancelled one: its run ends in the same
        transaction.
        """
        life = life_of(job.headers)
        run = None if life is None else self.current_step(life)
        if life is not None and run is not None and run[1] == ACTIVE and run[3] == job.id:
            self._end_dead(tx, life, job, job.last_error, cancelled=job.cancel_requested)

    def _end_dead(
        self,
        tx: QueueTransaction,
        life: int,
        step: Job | StepTerms,
        error: str | None,
        *,
        cancelled: bool,
    ) -> None:
        """The step's job is dead; if the run was cancelled before, that is what ended it."""
        if self.history is not None:
            self.history.note_end(tx, life, error, cancelled=cancelled)
        if cancelled:
            self.end(tx, life, TerminalStatus.CANCELLED, step)
        else:
            self.end(tx, life, TerminalStatus.FAILED, step, error=error)

    def cancel(self, tx: QueueTransaction, run_id: str) -> bool:
        """Cancel a run: at once if nobody has its step, or else when that has ended.

        Returns:
            Whether it is cancelled; false if it had ended, or there is none.

        Raises:
            InconsistentRunState: The run's job was removed behind the runtime's back.
        """
        run = self.by_id(run_id)
        if run is None or run.status != ACTIVE:
            return False
        step = self._terms_of(tx, run.job_id)
        if self.history is not None:
            self.history.note_cancelled(tx, run)
        self.signals.give_back(tx, run.life)
        if self.groups.any:
            self.groups.keep_input(tx, run.life)
        became = tx.cancel(run.job_id).outcome
        if became is CancelOutcome.REMOVED:
            self._advanced.pop(run.job_id, None)
            self.end(tx, run.life, TerminalStatus.CANCELLED, step)
        elif became is CancelOutcome.NOT_FOUND:
            self.status(run)  # raises if the job is gone; one that is dead has ended the run
            return False
        return True

    def _terms_of(self, tx: QueueTransaction, job_id: str) -> StepTerms:
        """What a job that is about to go leaves to the notification."""
        row = tx.execute("SELECT priority, max_attempts FROM jobs WHERE id = ?", (job_id,))
        return StepTerms(*(row.fetchone() or (None, None)))

    def _notify(
        self,
        tx: QueueTransaction,
        life: int,
        status: TerminalStatus,
        step: Job | StepTerms,
        error: str | None,
        kind: ErrorKind | None,
        result: bytes | None,
    ) -> None:
        """Let the hooks be told that this life is ending, unless it has ended before."""
        row = tx.execute(
            "SELECT run_id, step, headers, workflow, revision FROM runs"
            " WHERE life = ? AND status = 0",
            (life,),
        ).fetchone()
        if row is None:
            return
        run_id, number, headers, workflow, revision = row
        outcome = RunOutcome(
            run_id=run_id,
            status=status,
            result=result,
            error=error,
            error_kind=kind,
            final_step=number,
            terminated_at=moment(tx.now_ms),
            headers=own_headers(unpack(headers)),
            workflow=workflow,
            revision=revision,
        )
        job = self.hooks.notification(life, outcome, step)
        if job is not None:
            tx.enqueue(job)

    def check_effects(self, effects: Effects) -> None:
        """Refuse effects that would enqueue something else than a step on the steps' queue.

        Raises:
            ReservedName: They do.
        """
        for job in effects.jobs:
            if job.queue.partition(SEPARATOR)[0] == self._name:
                raise ReservedName(
                    f"queue {job.queue!r} belongs to a workflow runtime, and effects cannot "
                    "enqueue anything else on it: choose another queue, or submit a run"
                )

    # -- waiting ----------------------------------------------------------------------------

    def add_waiter(self, life: int) -> asyncio.Future[Run]:
        """A future of the run as it is when this life has ended in this process."""
        waiter: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(life, []).append(waiter)
        return waiter

    def remove_waiter(self, life: int, waiter: asyncio.Future[Run]) -> None:
        waiters = self._waiters[life]
        waiters.remove(waiter)
        if not waiters:
            del self._waiters[life]

    def _keep_for_waiters(self, run_id: str) -> None:
        """This run is about to be replaced: perhaps nobody has been told of its end yet."""
        if self._waiters:
            run = self.by_id(run_id)
            if run is not None and run.life in self._waiters:
                self._replaced[run.life] = run

    def _ended(self, life: int, result: bytes | None) -> None:
        """Give everybody who waits for this life the record as it is now: it can be replaced."""
        waiters = self._waiters.get(life)
        before = self._replaced.pop(life, None)
        if waiters:
            # It may have been replaced by a new life in the transaction that ended it.
            rows = self._queue.peek(f"SELECT {RUN_COLUMNS} FROM runs WHERE life = ?", (life,))
            run = Run(*rows[0]) if rows else before
            assert run is not None
            run = replace(run, result=result)
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(run)


def _payload_of(step: Job | StepTerms) -> bytes | None:
    """Payload of a step's job, if that is at hand."""
    return step.payload if isinstance(step, Job) and step.payload_fetched else None


def _unused_lives(queue: Queue) -> Iterator[int]:
    # What is left of a life may outlast its run. Groups are numbered with the lives: no number is
    # used twice while somebody may still know it.
    [(last,)] = queue.peek(
        "SELECT max(coalesce((SELECT max(life) FROM runs), 0),"
        " coalesce((SELECT max(life) FROM ended_lives), 0),"
        " coalesce((SELECT max(number) FROM groups), 0))"
    )
    return itertools.count(last + 1)
