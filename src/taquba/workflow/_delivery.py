"""One delivery of a step: call the runner, and decide how the delivery is settled."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from taquba._checks import blob, shown
from taquba.clock import seconds
from taquba.errors import (
    DuplicateJobId,
    EffectsSealed,
    InconsistentRunState,
    InputMismatch,
    InvalidArgument,
    InvalidState,
    InvalidType,
    JobNotFound,
    PermanentError,
    RunNotFound,
    SerializationError,
    SignalTaken,
)
from taquba.logs import about
from taquba.queue import MAX_PAYLOAD_SIZE, Claim, Effects, FailedSettlement, Settlement, failure_of
from taquba.queue._failure import short_text
from taquba.workflow._headers import HEADER_GROUP, HEADER_RUN_ID, life_of
from taquba.workflow._large import store_large
from taquba.workflow._outcomes import Cancel, Continue, Fail, Outcome, Succeed
from taquba.workflow._queues import workflow_of
from taquba.workflow._records import ErrorKind, TerminalStatus
from taquba.workflow._runner import CallRunner, check_outcome
from taquba.workflow._runs import ACTIVE, RunTable
from taquba.workflow._signal import Given, check_signal_key, due_at
from taquba.workflow._step import Step
from taquba.workflow._submitting import RunEffects
from taquba.workflow._timeline_records import StepAttemptOutcome

if TYPE_CHECKING:
    from taquba.queue import NewJob, Queue, QueueTransaction, StoredValue

__all__ = ["PERMANENT", "Delivery"]

_NO_EFFECTS = RunEffects()
"""What a step has that is over and staged nothing: staging is refused from now on."""
_NO_EFFECTS._seal()

logger = logging.getLogger("taquba.workflow")

PERMANENT = (
    PermanentError,
    # Taquba's own errors that come again, however often the step is tried:
    DuplicateJobId,
    EffectsSealed,
    InconsistentRunState,
    InputMismatch,
    InvalidArgument,
    InvalidState,
    JobNotFound,
    RunNotFound,
    SerializationError,
    SignalTaken,
)


class Delivery:
    """Delivers step jobs to the runner of their queue.

    `deliver` is the handler of the runtime's worker. What it returns is applied in one
    transaction: the end of this delivery, the next step or the end of the run, and the
    step's effects.
    """

    def __init__(
        self,
        queue: Queue,
        runs: RunTable,
        calls: Mapping[str, CallRunner],
        *,
        interrupt: bool = False,
    ) -> None:
        self._queue = queue
        self._runs = runs
        self._calls = calls
        self._interrupt = interrupt
        self._stopped = runs.groups.stopped

    async def deliver(self, claim: Claim) -> Settlement:
        """Run the step that this claim stands for, and say how to settle it."""
        try:
            life, run_id, number, given = self._locate(claim)
        except InconsistentRunState as error:
            logger.error("%s", error, extra=about(claim.job))
            text = str(error)
            return lambda tx: tx.dead_letter(claim, text)
        if claim._lease.is_cancelled or (
            self._stopped and claim.job.headers.get(HEADER_GROUP) in self._stopped
        ):
            return self._cancelled(claim, life, number, begun=False)
        effects: Effects | None = None
        stored: StoredValue | None = None
        try:
            call = self._calls[claim.job.queue]
            history = self._runs.history
            known = None
            if history is not None:
                known = history.begin(claim, self._queue.clock.now_ms(), given)
            step, running = call(self._queue, self._runs, claim, life, run_id, number)
            if known is not None:
                known.step = step
            if given is not None:
                step.signal = given.payload
            if self._interrupt and isinstance(step, Step):
                claim._lease.interruptible = True
            try:
                result = await running
            finally:
                claim._lease.interruptible = False
                claim._lease.returned = True
                effects = step._effects
                if effects is None:
                    step._effects = _NO_EFFECTS
                else:
                    effects._seal()
            outcome = check_outcome(result, run_id, number)
            if effects is not None:
                self._runs.check_effects(effects)
            told = None
            if self._runs.hooks.active and isinstance(outcome, Succeed):
                told = self._runs.hooks.of_large_result(
                    claim.job, life, run_id, number, outcome.result
                )
            stored = await store_large(self._queue, outcome)
            settlement = self._settle(
                claim, life, run_id, number, outcome, effects, given, told, stored
            )
            if told is not None:
                return await self._queue.prepare(settlement, _with(effects, told))
            return settlement if effects is None else await self._queue.prepare(settlement, effects)
        except Exception as error:
            if stored is not None:
                stored.finish()
            return self._failed(claim, life, run_id, number, error)
        except BaseException:
            if given is not None and given.key is not None and claim.is_live:
                # The job is given back, as if this had not been an attempt of it.
                with self._queue.transaction() as tx:
                    self._runs.signals.begun(tx, life)
            raise

    def failed(self, claim: Claim, error: BaseException) -> Settlement:
        """Settle a delivery that ended in an unusual way, or whose settlement was refused."""
        try:
            life, run_id, number, _ = self._locate(claim)
        except InconsistentRunState as inconsistency:
            text = str(inconsistency)
            return lambda tx: tx.dead_letter(claim, text)
        return self._failed(claim, life, run_id, number, error)

    def _locate(self, claim: Claim) -> tuple[int, str, int, Given | None]:
        """Life, run id and number of the step, and what it was given if it waited for a signal."""
        job = claim.job
        known = self._runs.advanced_to(job.id)
        if known is not None:
            return known
        life = life_of(job.headers)
        if life is None:
            raise InconsistentRunState(
                f"job {job.id} on queue {job.queue!r} is no workflow step: it was not enqueued by "
                "a runtime. Use another queue for jobs of your own"
            )
        run = self._runs.current_step(life)
        if run is None or run[1] != ACTIVE or run[3] != job.id:
            raise InconsistentRunState(
                f"job {job.id} is not the current step of run {job.headers.get(HEADER_RUN_ID)!r}: "
                "that run has ended or gone on"
            )
        run_id, _, number, _, key, signal = run
        given = None if key is None and signal is None else Given(key, signal)
        return life, run_id, number, given

    def _settle(
        self,
        claim: Claim,
        life: int,
        run_id: str,
        number: int,
        outcome: Outcome,
        effects: Effects | None,
        given: Given | None,
        told: NewJob | None,
        stored: StoredValue | None,
    ) -> Settlement:
        match outcome:
            case Continue(payload, after, key, timeout):
                data = blob(payload, name="the payload of Continue", limit=MAX_PAYLOAD_SIZE)
                delay = None if after is None else seconds(after, name="after")
                if key is not None:
                    return self._waiting(
                        claim, life, run_id, number, outcome, data, effects, stored
                    )
                if timeout is not None:
                    raise InvalidArgument(
                        "Continue(timeout=…) says how long to wait for a signal: name that with "
                        "signal=…, or use after=… to wait for a time"
                    )

                def advance(tx: QueueTransaction) -> None:
                    if (history := self._runs.history) is not None:
                        due_ms = None if delay is None else due_at(tx.now_ms, delay)
                        history.note(
                            tx, claim, life, number, StepAttemptOutcome.CONTINUED, due_ms=due_ms
                        )
                    self._keep_input(tx, claim, life, number)
                    job_id = tx.succeed_with_next(claim, data, delay=delay, stored=stored)
                    self._runs.advance(
                        tx, life, run_id, number + 1, job_id, waited=given is not None
                    )
                    tx.apply(effects)

                return self._unless_cancelled(claim, life, number, advance)
            case Succeed(result):
                if result is not None:
                    result = blob(result, name="the result of Succeed", limit=MAX_PAYLOAD_SIZE)
                end = self._ending(
                    claim,
                    life,
                    number,
                    effects,
                    TerminalStatus.SUCCEEDED,
                    result=result,
                    told=told,
                    stored=stored,
                )
                return self._unless_cancelled(claim, life, number, end)
            case Fail(reason):
                end = self._ending(
                    claim,
                    life,
                    number,
                    effects,
                    TerminalStatus.FAILED,
                    error=_reason(reason),
                    kind=ErrorKind.PERMANENT,
                )
                return self._unless_cancelled(claim, life, number, end)
            case Cancel(reason):
                return self._ending(
                    claim, life, number, effects, TerminalStatus.CANCELLED, error=_reason(reason)
                )

    def _waiting(
        self,
        claim: Claim,
        life: int,
        run_id: str,
        number: int,
        outcome: Continue,
        data: bytes,
        effects: Effects | None,
        stored: StoredValue | None,
    ) -> Settlement:
        key = check_signal_key(outcome.signal)
        if outcome.after is not None:
            raise InvalidArgument(
                "Continue takes after=… or signal=…, not both: to wait for a signal for a limited "
                "time, use timeout=…"
            )
        timeout = None if outcome.timeout is None else seconds(outcome.timeout, name="timeout")
        signals = self._runs.signals

        def wait(tx: QueueTransaction) -> None:
            other = signals.waiting(tx, key)
            if other is not None:
                taken = SignalTaken(
                    f"run {other!r} is already registered for signal {key!r}, which only one run "
                    "can wait for: use keys that name the run"
                )
                self._failed(claim, life, run_id, number, taken)(tx)
                return
            signal = signals.take(tx, key, run_id)
            due_ms = None if signal is not None else due_at(tx.now_ms, timeout)
            if (history := self._runs.history) is not None:
                history.note(
                    tx,
                    claim,
                    life,
                    number,
                    StepAttemptOutcome.WAITING,
                    due_ms=due_ms if timeout is not None else None,
                    waits_for=key,
                )
            self._keep_input(tx, claim, life, number)
            job_id = tx.succeed_with_next(claim, data, due_ms=due_ms, stored=stored)
            signals.wait(tx, life, number + 1, job_id, key, signal)
            tx.apply(effects)

        return self._unless_cancelled(claim, life, number, wait)

    def _keep_input(self, tx: QueueTransaction, claim: Claim, life: int, number: int) -> None:
        """A group may have to run its members again, with the input of their first steps."""
        if number == 0 and self._runs.groups.any:
            self._runs.groups.keep_input(tx, life, claim.job.payload)

    def _ending(
        self,
        claim: Claim,
        life: int,
        number: int,
        effects: Effects | None,
        status: TerminalStatus,
        *,
        error: str | None = None,
        kind: ErrorKind | None = None,
        result: bytes | None = None,
        told: NewJob | None = None,
        stored: StoredValue | None = None,
    ) -> Settlement:
        def end(tx: QueueTransaction) -> None:
            if (history := self._runs.history) is not None:
                history.note(tx, claim, life, number, StepAttemptOutcome(status.value), error=error)
            tx.ack(claim, effects)
            self._runs.end(
                tx,
                life,
                status,
                claim.job,
                error=error,
                kind=kind,
                result=result,
                notification=told,
                stored=stored,
            )

        return end

    def _unless_cancelled(
        self, claim: Claim, life: int, number: int, settlement: Settlement
    ) -> Settlement:
        """This settlement, unless cancellation was asked for before it is committed.

        Both are transactions, one after the other: a request that was accepted always counts.
        """
        lease = claim._lease

        def settle(tx: QueueTransaction) -> None:
            if lease.is_cancelled:
                self._end_cancelled(tx, claim, life, number)
            else:
                settlement(tx)

        return settle

    def _cancelled(self, claim: Claim, life: int, number: int, *, begun: bool = True) -> Settlement:
        """The run was cancelled by somebody else than its runner: nothing of the step counts."""
        return lambda tx: self._end_cancelled(tx, claim, life, number, begun=begun)

    def _end_cancelled(
        self, tx: QueueTransaction, claim: Claim, life: int, number: int, *, begun: bool = True
    ) -> None:
        if not begun:
            self._runs.signals.give_back(tx, life, claimed=True)
        if (history := self._runs.history) is not None:
            history.note(tx, claim, life, number, StepAttemptOutcome.CANCELLED)
        tx.remove(claim)
        self._runs.end(tx, life, TerminalStatus.CANCELLED, claim.job)

    def _failed(
        self,
        claim: Claim,
        life: int,
        run_id: str,
        number: int,
        error: BaseException,
    ) -> Settlement:
        if claim._lease.is_cancelled:
            return self._cancelled(claim, life, number)
        kind = ErrorKind.PERMANENT if isinstance(error, PERMANENT) else ErrorKind.TRANSIENT
        failure = failure_of(error)
        text = failure.text
        final = kind is ErrorKind.PERMANENT or claim.job.is_last_attempt
        if self._queue.failure is None:
            workflow = workflow_of(claim.job.queue)[0]
            logger.warning(
                "step %d of run %s%s failed on attempt %d of %d%s: %s",
                number,
                run_id,
                "" if workflow is None else f" of {workflow!r}",
                claim.job.attempts,
                claim.job.max_attempts,
                ", and the run with it" if final else "",
                text,
                exc_info=error if kind is ErrorKind.TRANSIENT else None,
                extra=about(claim.job),
            )
        if not final:

            def retry(tx: QueueTransaction) -> None:
                tx.nack(claim, failure)
                if (history := self._runs.history) is not None:
                    history.note_retry(tx, claim, life, number, text, failure.kind)

            return FailedSettlement(self._unless_cancelled(claim, life, number, retry), error)

        def give_up(tx: QueueTransaction) -> None:
            if (history := self._runs.history) is not None:
                history.note(
                    tx,
                    claim,
                    life,
                    number,
                    StepAttemptOutcome.FAILED,
                    error=text,
                    error_type=failure.kind,
                )
            tx.dead_letter(claim, failure)
            self._runs.end(
                tx,
                life,
                TerminalStatus.FAILED,
                claim.job,
                error=text,
                kind=kind,
                error_type=failure.kind,
            )

        return FailedSettlement(self._unless_cancelled(claim, life, number, give_up), error)


def _with(effects: Effects | None, job: NewJob) -> Effects:
    """For storing large payloads: those of these effects, and that of this job."""
    both = Effects()
    both.jobs = [*([] if effects is None else effects.all_jobs()), job]
    both.largest = len(job.payload)
    return both


def _reason(reason: object) -> str:
    if not isinstance(reason, str):
        raise InvalidType(f"a reason must be a str, not {shown(reason)}")
    return short_text(reason)
