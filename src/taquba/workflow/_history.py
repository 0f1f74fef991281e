"""Writes the timelines of runs: every statement that changes the table `timeline`.

An attempt is noted in the transaction that ends it. Attempts that ended where nobody was there to
note it (the lease expired, the process died) are in the queue's own table `attempts`, for as long
as the step's job is there; so whoever notes a later attempt of the step, or the end of the run,
copies them first. The attempts of a step are numbered, and end in that order: what is missing is
what lies between the last one that is in the timeline and the one that is noted now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from taquba.queue import AttemptOutcome, JobState
from taquba.queue._columns import CLAIMED_AT, SEQ
from taquba.queue._failure import GONE, OVERDUE, TIMED_OUT
from taquba.workflow._timeline_records import MAX_TIMELINE, StepAttemptOutcome

if TYPE_CHECKING:
    from taquba.queue import Claim, QueueTransaction
    from taquba.workflow._run import Run
    from taquba.workflow._signal import Given
    from taquba.workflow._step import StepBase

__all__ = ["COLUMNS", "OUTCOMES", "Ended", "History", "ended_elsewhere", "remove_timeline"]

OUTCOMES = dict(enumerate(StepAttemptOutcome))
"""What the numbers in the table stand for."""
_STORED = {outcome: number for number, outcome in OUTCOMES.items()}

COLUMNS = (
    "number, step, attempt, outcome, claimed_at, started_at, recorded_at, due, error, error_type,"
    " woken_by, waits_for, memo_hits, memo_misses"
)
_NOTE = (
    f"INSERT INTO timeline (life, {COLUMNS}) VALUES (?1,"
    " coalesce((SELECT max(number) FROM timeline WHERE life = ?1), -1) + 1,"
    " ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) RETURNING number"
)
_DROP = "DELETE FROM timeline WHERE life = ? AND number = ?"
_FAR = 2**62
_UNCLAIMED = (int(JobState.PENDING), int(JobState.SCHEDULED))


class Ended(NamedTuple):
    """One attempt that has ended, as stored."""

    step: int
    attempt: int
    outcome: int
    claimed_at: int | None
    started_at: int | None
    recorded_at: int
    due: int | None = None
    error: str | None = None
    error_type: str | None = None
    woken_by: str | None = None
    waits_for: str | None = None
    memo_hits: int | None = None
    memo_misses: int | None = None


class _UnderWay:
    """What is known of an attempt while its runner works."""

    __slots__ = ("given", "started_at", "step")

    def __init__(self, started_at: int, given: Given | None) -> None:
        self.started_at = started_at
        self.given = given
        self.step: StepBase | None = None


class History:
    """Notes the attempts of the runs of one queue name."""

    def __init__(self) -> None:
        self.users = 0
        """Runtimes that want them noted."""

    def begin(self, claim: Claim, started_at: int, given: Given | None) -> _UnderWay:
        """An attempt begins, whose runner is about to be called."""
        claim._annex = known = _UnderWay(started_at, given)
        return known

    def note(
        self,
        tx: QueueTransaction,
        claim: Claim,
        life: int,
        step: int,
        outcome: StepAttemptOutcome,
        *,
        due_ms: int | None = None,
        error: str | None = None,
        error_type: str | None = None,
        waits_for: str | None = None,
    ) -> None:
        """This attempt ends. To be called before its job goes."""
        attempt = claim.job.attempts
        row = claim.job._row
        if attempt > 1:
            self._catch_up(tx, life, step, row[SEQ], attempt)
        known: _UnderWay | None = getattr(claim, "_annex", None)
        started_at = woken_by = hits = misses = None
        if known is not None:
            started_at = known.started_at
            if known.given is not None and known.given.payload is not None:
                woken_by = known.given.key or _waited_for(tx, life, step)
            if known.step is not None:
                hits, misses = known.step._memo_use()
        self._insert(
            tx,
            life,
            Ended(
                step,
                attempt,
                _STORED[outcome],
                row[CLAIMED_AT],
                started_at,
                tx.now_ms,
                due_ms,
                error,
                error_type,
                woken_by,
                waits_for,
                hits,
                misses,
            ),
        )

    def note_retry(
        self, tx: QueueTransaction, claim: Claim, life: int, step: int, error: str, kind: str | None
    ) -> None:
        """This attempt has failed, and its job waits for the next one."""
        row = tx.execute("SELECT run_at FROM jobs WHERE seq = ?", (claim.job._row[SEQ],)).fetchone()
        self.note(
            tx,
            claim,
            life,
            step,
            StepAttemptOutcome.RETRIED,
            due_ms=None if row is None else row[0],
            error=error,
            error_type=kind,
        )

    def note_end(
        self, tx: QueueTransaction, life: int, error: str | None, *, cancelled: bool
    ) -> None:
        """A run ends outside a worker. To be called before the job of its step goes."""
        row = tx.execute(
            "SELECT runs.step, jobs.seq, jobs.state, jobs.attempts, jobs.claimed_at FROM runs"
            " LEFT JOIN jobs ON jobs.id = runs.job_id WHERE runs.life = ? AND runs.status = 0",
            (life,),
        ).fetchone()
        if row is None:
            return
        step, seq, state, attempts, claimed_at = row
        last = self._catch_up(tx, life, step, seq, _FAR)
        if state == JobState.DEAD:
            return  # how its last attempt ended is what ended the run
        outcome = StepAttemptOutcome.CANCELLED if cancelled else StepAttemptOutcome.FAILED
        attempt = attempts if state == JobState.CLAIMED else last + 1
        self._insert(
            tx,
            life,
            Ended(
                step,
                attempt,
                _STORED[outcome],
                claimed_at if state == JobState.CLAIMED else None,
                None,
                tx.now_ms,
                error=error,
            ),
        )

    def note_cancelled(self, tx: QueueTransaction, run: Run) -> None:
        """A run is cancelled. If a worker has its step, that is noted when it has ended."""
        row = tx.execute("SELECT state FROM jobs WHERE id = ?", (run.job_id,)).fetchone()
        if row is not None and row[0] in _UNCLAIMED:
            self.note_end(tx, run.life, None, cancelled=True)

    def _catch_up(
        self, tx: QueueTransaction, life: int, step: int, seq: int | None, before: int
    ) -> int:
        """Copy the earlier attempts of a step that are not in the timeline; the last of them."""
        last = _last_attempt(tx.execute, life, step)
        if before - last <= 1 or seq is None:
            return last
        for ended in ended_elsewhere(tx.execute, step, seq, last, before):
            self._insert(tx, life, ended)
            last = ended.attempt
        return last

    def _insert(self, tx: QueueTransaction, life: int, ended: Ended) -> None:
        (number,) = tx.execute(_NOTE, (life, *ended)).fetchone()
        if number >= MAX_TIMELINE:
            tx.execute(_DROP, (life, number - MAX_TIMELINE))


def ended_elsewhere(
    execute: Any, step: int, seq: int, after: int, before: int = _FAR
) -> list[Ended]:
    """What the queue knows of the attempts of a step's job between these two."""
    rows = execute(
        "SELECT attempt, outcome, claimed_at, recorded_at, error FROM attempts"
        " WHERE seq = ? AND attempt > ? AND attempt < ? ORDER BY number",
        (seq, after, before),
    )
    return [
        Ended(
            step,
            attempt,
            _STORED[_outcome(AttemptOutcome(outcome), error)],
            claimed_at,
            None,
            recorded_at,
            error=error,
            error_type="TimeoutError" if error == TIMED_OUT else None,
        )
        for attempt, outcome, claimed_at, recorded_at, error in rows
    ]


def _outcome(outcome: AttemptOutcome, error: str | None) -> StepAttemptOutcome:
    match outcome:
        case AttemptOutcome.COMPLETED:
            return StepAttemptOutcome.CONTINUED
        case AttemptOutcome.RETRIED:
            return StepAttemptOutcome.RETRIED
        case AttemptOutcome.LEASE_EXPIRED:
            return StepAttemptOutcome.LEASE_EXPIRED
        case AttemptOutcome.INTERRUPTED:
            return StepAttemptOutcome.INTERRUPTED
        case _:  # of the last attempt, only the text tells
            if error == OVERDUE:
                return StepAttemptOutcome.LEASE_EXPIRED
            return StepAttemptOutcome.INTERRUPTED if error == GONE else StepAttemptOutcome.FAILED


def _last_attempt(execute: Any, life: int, step: int) -> int:
    """The last attempt of a step that is in the timeline; 0 if none is."""
    row = execute(
        "SELECT step, attempt FROM timeline WHERE life = ? ORDER BY number DESC LIMIT 1", (life,)
    ).fetchone()
    return row[1] if row is not None and row[0] == step else 0


def _waited_for(tx: QueueTransaction, life: int, step: int) -> str | None:
    """The key that the step before waits for, as far as the timeline tells."""
    row = tx.execute(
        "SELECT waits_for FROM timeline WHERE life = ? AND step < ? ORDER BY number DESC LIMIT 1",
        (life, step),
    ).fetchone()
    return None if row is None else row[0]


def remove_timeline(tx: QueueTransaction, life: int, limit: int) -> bool:
    """Remove up to so many attempts of a life; whether there may be more."""
    removed = tx.execute(
        "DELETE FROM timeline WHERE life = ?1 AND number <= ("
        " SELECT max(number) FROM (SELECT number FROM timeline WHERE life = ?1"
        " ORDER BY number LIMIT ?2)) RETURNING 1",
        (life, limit),
    ).fetchall()
    return len(removed) >= limit
