"""Runs that are to be submitted: checked, and committed with whatever they are passed to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Self, cast, final

from taquba._checks import blob, flag, identifier, shown, wrong_type
from taquba._msgpack import pack
from taquba.clock import Duration, SystemClock
from taquba.errors import (
    InputMismatch,
    InvalidArgument,
    InvalidRunId,
    InvalidState,
    InvalidType,
    ReservedName,
)
from taquba.ids import IdFactory
from taquba.queue import MAX_BATCH_SIZE, MAX_PAYLOAD_SIZE, Effects, NewJob, new_job
from taquba.workflow._headers import (
    HEADER_GROUP,
    HEADER_LIFE,
    HEADER_RUN_ID,
    RESERVED_HEADER_PREFIX,
)
from taquba.workflow._queues import queue_of
from taquba.workflow._records import Submitted
from taquba.workflow._signal import SignalMode, new_signal
from taquba.workflow._signal_effect import PreparedSignal

if TYPE_CHECKING:
    from taquba.queue import QueueTransaction
    from taquba.workflow._group_rows import Membership
    from taquba.workflow._runs import RunTable

__all__ = [
    "MAX_RUN_ID_LENGTH",
    "RunEffects",
    "Submission",
    "check_run_id",
    "checked_submissions",
    "new_submission",
]

MAX_RUN_ID_LENGTH = 128
"""Characters of a run id."""
_NO_HEADERS = pack({})


@final
class Submission:
    """A run that is to be submitted with something else, in the same transaction.

    Made by `WorkflowRuntime.submission`; give it to `Effects.add`. When it is committed, it does
    what `WorkflowRuntime.submit` does: nothing if the run is active with the same input, and
    with another one the whole transaction fails with `InputMismatch`.
    """

    __slots__ = (
        "_group_id",
        "_headers",
        "_job",
        "_life",
        "_once",
        "_runs",
        "digest",
        "revision",
        "run_id",
        "workflow",
    )

    run_id: str
    """The run's id, also if it was left to taquba."""
    digest: bytes
    """SHA-256 of the input."""
    workflow: str | None
    """The workflow that it is submitted for, if that has a name."""
    revision: str | None
    """The revision of that workflow."""

    def __init__(
        self,
        runs: RunTable | None,
        run_id: str,
        life: int,
        job: NewJob,
        headers: Mapping[str, str],
        workflow: str | None,
        revision: str | None,
        *,
        once: bool = False,
        group_id: str | None = None,
    ) -> None:
        """Not for callers: use `WorkflowRuntime.submission`."""
        self._once = once
        self._group_id = group_id
        self._runs = runs
        self.run_id = run_id
        self._life: int | None = life
        self._job = job
        self._headers = headers
        self.workflow = workflow
        self.revision = revision
        self.digest = hashlib.sha256(job.payload).digest()

    @property
    def jobs(self) -> Sequence[NewJob]:
        """The job of step 0."""
        return (self._job,)

    @property
    def input(self) -> bytes:
        """Payload of step 0."""
        return self._job.payload

    @property
    def headers(self) -> dict[str, str]:
        """Text that every step and the outcome carry."""
        return dict(self._headers)

    def apply(self, tx: QueueTransaction) -> Submitted:
        """Submit the run in this transaction.

        Raises:
            InputMismatch: The run is active and has another input or workflow.
            InconsistentRunState: The run is active, and its job was removed behind the runtime's
                back.
            InvalidArgument: The transaction is of another store.
        """
        runs = self._runs
        if runs is None:
            raise InvalidState("this run was submitted by a detached step, and is never committed")
        if not runs.queue.owns(tx):
            raise InvalidArgument(
                f"run {self.run_id!r} is submitted to another store than the one that commits: "
                "make the submission with a runtime of the queue that the effects are passed to"
            )
        known = runs.by_id(self.run_id) if self._once else runs.active(self.run_id)
        if known is not None:
            runs.status(known)  # raises if nothing stands for it any more
            what = "input" if known.input_digest != self.digest else "workflow"
            if what == "input" or known.workflow != self.workflow:
                state = "is active" if runs.active(self.run_id) else "has ended"
                hint = "" if self._once else ", or wait until it has ended"
                raise InputMismatch(
                    f"run {self.run_id!r} {state} with another {what}: choose another run id{hint}"
                )
            return Submitted(self.run_id, known.job_id, created=False)
        job_id, _ = self._begin(tx, runs, None)
        return Submitted(self.run_id, job_id, created=True)

    def apply_as_member(
        self, tx: QueueTransaction, place: Membership, *, fresh: bool
    ) -> tuple[int, bool]:
        """Submit the run as this member of its group. A fresh one's id is unknown.

        Returns:
            Its life, and whether that had begun before.

        Raises:
            InputMismatch: The run is active already, and has another input or workflow.
        """
        runs = self._runs
        assert runs is not None
        known = None if fresh else runs.active(self.run_id)
        if known is None:
            return self._begin(tx, runs, place, fresh=fresh)[1], False
        if known.input_digest != self.digest or known.workflow != self.workflow:
            raise InputMismatch(
                f"run {self.run_id!r}, which is to be member {place.position} of a group, is "
                "active with another input or workflow: wait until it has ended"
            )
        runs.adopt(tx, known.life, place)
        return known.life, True

    def _begin(
        self,
        tx: QueueTransaction,
        runs: RunTable,
        place: Membership | None,
        *,
        fresh: bool = False,
    ) -> tuple[str, int]:
        job, life = self._job, self._life
        if life is None:  # it was committed before, and that life is over
            life = runs.take_life()
            own = _own(self.run_id, life, self._group_id)
            job = replace(job, headers=pack({**self._headers, **own}))
        job_id = tx.enqueue(job).job_id
        runs.insert(
            tx,
            life,
            self.run_id,
            job_id,
            self.digest,
            pack(self._headers) if self._headers else _NO_HEADERS,
            self.workflow,
            self.revision,
            place,
            fresh=fresh,
        )
        tx.after_commit(self._committed)
        return job_id, life

    def _committed(self) -> None:
        self._life = None

    def __repr__(self) -> str:
        return f"Submission(run_id={self.run_id!r}, input=<{len(self._job.payload)} bytes>)"


class RunEffects(Effects):
    """Effects that can also submit runs and send signals, atomic with the step (or hook) that
    stages them.
    """

    __slots__ = ("_runs",)

    def __init__(self, runs: RunTable | None = None) -> None:
        super().__init__()
        self._runs = runs

    def submit(
        self,
        input: bytes,
        *,
        run_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        run_at: datetime | None = None,
        delay: Duration | None = None,
        workflow: str | None = None,
        revision: str | None = None,
    ) -> Self:
        """Submit a run, as `WorkflowRuntime.submit` does, in the transaction of these effects.

        The step that stages it is repeated until one attempt is committed, and only what that
        one staged is submitted: once, with or without a run id of your own. If the run is active
        with the same input by then, nothing happens; with another input, the step fails for
        good with `InputMismatch`. The step's own run counts as active.

        Raises:
            InvalidArgument, UnknownWorkflow: See `WorkflowRuntime.submit`.
            EffectsSealed: The step has returned.
        """
        self.add(
            new_submission(
                self._runs,
                input,
                run_id=run_id,
                headers=headers,
                priority=priority,
                max_attempts=max_attempts,
                run_at=run_at,
                delay=delay,
                workflow=workflow,
                revision=revision,
            )
        )
        return self

    def signal(
        self,
        key: str,
        payload: bytes = b"",
        *,
        signal_id: str | None = None,
        mode: SignalMode = "latest",
    ) -> Self:
        """Send a signal, as `WorkflowRuntime.signal` does, in the transaction of these effects.

        It is sent once, by the attempt of the step that is committed. If its key's buffer is
        full by then, the step is tried again.

        Raises:
            InvalidArgument: See `WorkflowRuntime.signal`.
            EffectsSealed: The step has returned.
        """
        self.add(PreparedSignal(self._runs, new_signal(key, payload, signal_id, mode)))
        return self


def new_submission(
    runs: RunTable | None,
    input: bytes,
    *,
    run_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    priority: int | None = None,
    max_attempts: int | None = None,
    run_at: datetime | None = None,
    delay: Duration | None = None,
    workflow: str | None = None,
    revision: str | None = None,
    once: bool = False,
    group_id: str | None = None,
) -> Submission:
    """Check every argument of a submission; without a table of runs it cannot be committed."""
    data = blob(input, name="input", limit=MAX_PAYLOAD_SIZE)
    flag(once, "once")
    name = _new_run_id(runs) if run_id is None else check_run_id(run_id)
    if headers is not None and not isinstance(headers, Mapping):
        raise InvalidType(f"headers must be a mapping of str to str, not {shown(headers)}")
    for header in headers or ():
        if isinstance(header, str) and header.startswith(RESERVED_HEADER_PREFIX):
            raise ReservedName(
                f"header {header!r}: names that begin with {RESERVED_HEADER_PREFIX!r} are "
                "taquba's own; choose another"
            )
    queue, life = "detached", 0
    if runs is not None:
        workflow, revision = runs.choose(workflow, revision)
        queue, life = runs.name, runs.take_life()
    job = new_job(
        queue_of(queue, workflow, revision),
        data,
        headers={**(headers or {}), **_own(name, life, group_id)},
        priority=priority,
        max_attempts=max_attempts,
        run_at=run_at,
        delay=delay,
    )
    own = dict(headers or {})
    return Submission(runs, name, life, job, own, workflow, revision, once=once, group_id=group_id)


def checked_submissions(submissions: object) -> list[Submission]:
    """Several submissions, if they are that.

    Raises:
        InvalidArgument: They are not, or too many.
    """
    if isinstance(submissions, (bytes, str, Mapping)) or not isinstance(submissions, Iterable):
        what = "submissions must be an iterable of runtime.submission(…)"
        raise wrong_type(what, submissions)  # pyright: ignore[reportUnknownArgumentType]
    wanted: list[Submission] = []
    for each in cast("Iterable[object]", submissions):
        if not isinstance(each, Submission):
            raise wrong_type("submissions must consist of runtime.submission(…)", each)
        if len(wanted) == MAX_BATCH_SIZE:
            raise InvalidArgument(
                f"one call takes {MAX_BATCH_SIZE:,} runs: split them over several calls"
            )
        wanted.append(each)
    return wanted


def _new_run_id(runs: RunTable | None) -> str:
    return IdFactory(SystemClock()).next() if runs is None else runs.queue.next_job_id()


def _own(run_id: str, life: int, group_id: str | None) -> dict[str, str]:
    own = {HEADER_RUN_ID: run_id, HEADER_LIFE: str(life)}
    return own if group_id is None else {**own, HEADER_GROUP: group_id}


def check_run_id(run_id: object) -> str:
    """The run id, if it is one.

    Raises:
        InvalidRunId: It is empty, too long, or has other characters than it may.
    """
    return identifier(run_id, name="run id", error=InvalidRunId, limit=MAX_RUN_ID_LENGTH)
