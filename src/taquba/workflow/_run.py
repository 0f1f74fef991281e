"""One run, as stored; and where it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any

from taquba._checks import as_datetime, moment
from taquba._msgpack import unpack
from taquba.errors import InconsistentRunState
from taquba.queue import JobState
from taquba.workflow._headers import own_headers
from taquba.workflow._records import (
    ErrorKind,
    RunOutcome,
    RunState,
    RunStatus,
    RunTermination,
    TerminalStatus,
)
from taquba.workflow._signal import FOR_EVER_MS

__all__ = [
    "ACTIVE",
    "KINDS",
    "RUN_COLUMNS",
    "STORED",
    "STORED_KINDS",
    "SUCCEEDED",
    "TERMINAL",
    "Rows",
    "Run",
    "find_run",
    "place_of",
    "status_of",
]

Rows = Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]
"""Runs a statement that reads, with these parameters."""


class _Status(IntEnum):
    ACTIVE = 0
    SUCCEEDED = 1
    FAILED = 2
    CANCELLED = 3


ACTIVE = int(_Status.ACTIVE)
SUCCEEDED = int(_Status.SUCCEEDED)
TERMINAL = {
    _Status.SUCCEEDED: TerminalStatus.SUCCEEDED,
    _Status.FAILED: TerminalStatus.FAILED,
    _Status.CANCELLED: TerminalStatus.CANCELLED,
}
STORED = {status: stored for stored, status in TERMINAL.items()}
KINDS: dict[int | None, ErrorKind | None] = {
    None: None,
    0: ErrorKind.TRANSIENT,
    1: ErrorKind.PERMANENT,
}
STORED_KINDS = {kind: stored for stored, kind in KINDS.items()}

RUN_COLUMNS = (
    "life, run_id, status, step, job_id, input_digest, ended_at, error, error_kind, headers,"
    " result, workflow, revision, result_ref"
)


@dataclass(frozen=True, slots=True)
class Run:
    """One life of a run id, as stored."""

    life: int
    run_id: str
    status: int
    step: int
    job_id: str
    input_digest: bytes
    ended_at: int | None
    error: str | None
    error_kind: int | None
    headers: bytes
    result: bytes | None
    workflow: str | None
    revision: str | None
    result_ref: str | None
    """The object that holds the result."""

    def termination(self) -> RunTermination:
        return RunTermination(
            status=TERMINAL[_Status(self.status)],
            error=self.error,
            error_kind=KINDS[self.error_kind],
            final_step=self.step,
            terminated_at=moment(self.ended_at or 0),
        )

    def outcome(self) -> RunOutcome:
        return RunOutcome(
            run_id=self.run_id,
            status=TERMINAL[_Status(self.status)],
            result=self.result,
            error=self.error,
            error_kind=KINDS[self.error_kind],
            final_step=self.step,
            terminated_at=moment(self.ended_at or 0),
            headers=own_headers(unpack(self.headers)),
            workflow=self.workflow,
            revision=self.revision,
        )


def find_run(rows: Rows, queue: str, run_id: str) -> Run | None:
    """The current life of a run id."""
    found = rows(f"SELECT {RUN_COLUMNS} FROM runs WHERE queue = ? AND run_id = ?", (queue, run_id))
    return Run(*found[0]) if found else None


def status_of(rows: Rows, run: Run) -> RunStatus:
    """Where a run is.

    Raises:
        InconsistentRunState: Its job is gone.
    """
    names = run.workflow, run.revision
    if run.status != ACTIVE:
        return RunStatus(run.run_id, RunState.TERMINATED, run.step, run.termination(), *names)
    found = rows(
        "SELECT jobs.state, jobs.cancel_requested, jobs.run_at, jobs.attempts, runs.signal_key"
        " FROM jobs JOIN runs ON runs.life = ? WHERE jobs.id = ?",
        (run.life, run.job_id),
    )
    if not found:
        raise InconsistentRunState(
            f"run {run.run_id!r} is active, but its job {run.job_id} is gone: was it cancelled "
            "or removed through the queue? Use the runtime to end runs"
        )
    state, waiting_for, due = place_of(*found[0])
    return RunStatus(run.run_id, state, run.step, None, *names, waiting_for=waiting_for, due=due)


def place_of(
    job_state: int | None,
    cancel_requested: int | None,
    due_ms: int | None,
    attempts: int | None,
    key: str | None,
) -> tuple[RunState, str | None, datetime | None]:
    """State of an active run, the signal that it waits for, and when its step is due.

    From the columns of its step's job, and the key of the signal that the step is registered for.
    """
    if cancel_requested:
        state = RunState.CANCELLING
    else:
        state = RunState.RUNNING if job_state == JobState.CLAIMED else RunState.PENDING
    waits = job_state == JobState.SCHEDULED and not attempts
    return state, key if waits else None, None if due_ms == FOR_EVER_MS else as_datetime(due_ms)
