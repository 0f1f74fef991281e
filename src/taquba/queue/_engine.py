"""Runs a function on jobs: what workers, and layers above, stand on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast, final

import anyio

from taquba._checks import whole, wrong_type
from taquba.errors import ClaimLost, PermanentError
from taquba.logs import about, running_job
from taquba.metrics import ACK_DURATION, CLAIM_DURATION
from taquba.queue import _validate
from taquba.queue._columns import PAYLOAD, PAYLOAD_REF
from taquba.queue._core import Core, logger
from taquba.queue._delivering import fetch_payload
from taquba.queue._failure import failure_of
from taquba.queue._reaping import handler_ended
from taquba.queue._shares import FairShares
from taquba.queue._slot import Slot
from taquba.queue._transaction import QueueTransaction
from taquba.tracing import Operation

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from taquba.queue._effects import Effects
    from taquba.queue._records import Claim
    from taquba.tracing import Tracing

__all__ = ["Engine", "FailedSettlement", "OnError", "Settlement", "Work", "failed_attempt"]

Settlement = Callable[[QueueTransaction], object]
"""Settles one claim inside the transaction that it is given."""

Work = Callable[["Claim"], Awaitable[Settlement]]
"""Works on one claim and says how to settle it.

An exception settles the claim as `OnError` says. If the lease expires, the work is
cancelled and its settlement is not wanted any more.
"""

OnError = Callable[["Claim", BaseException], Settlement]
"""Settles a claim whose work raised, or whose settlement could not be applied."""


_MOST_AT_ONCE = 100
"""Settlements in one transaction: more would hold up the event loop for too long."""


class _Finished(NamedTuple):
    """A slot whose handler has returned, and which waits for its next claim."""

    claim: Claim
    settlement: Settlement | None
    next_claim: asyncio.Future[Claim | None]


class _Delivery:
    """Claims that are not durable yet, and what was settled with them."""

    __slots__ = ("batch", "began", "claims")

    def __init__(self, claims: list[Claim], batch: list[_Finished], began: float) -> None:
        self.claims = claims
        self.batch = batch
        self.began = began


@final
class Engine:
    """Claims jobs, up to `concurrency` at a time, and settles as the work on each says.

    What ends at the same time is settled in one transaction, which also claims the next
    jobs for the slots that became free. The work on a job starts when its claim is
    durable. An engine that finds nothing to do holds no task: the commit that makes a job
    pending wakes it, in the same batch.

    When a lease expires, the work is cancelled, and its job is delivered again when it has
    stopped, or has not for `cancel_grace` seconds.
    """

    def __init__(
        self,
        core: Core,
        queues: str | Mapping[str, int],
        work: Work,
        *,
        concurrency: int,
        on_error: OnError | None = None,
        keep_leases: bool = False,
        job_timeout: float | None = None,
        cancel_grace: float = 30.0,
    ) -> None:
        """Prepare an engine.

        Args:
            core: Of the open queue.
            queues: Name of the queue; or names, with their shares of the claims.
            work: Works on one claim, and says how to settle it.
            concurrency: Jobs at the same time.
            on_error: Says how to settle a claim whose work raised, or whose settlement
                could not be applied. Default: as a failed attempt.
            keep_leases: Leases last as long as the work, without being renewed.
            job_timeout: Seconds that the work on a job may take, whatever its lease.
            cancel_grace: Seconds that cancelled work may take to stop.
        """
        self._core = core
        weights = queues if isinstance(queues, Mapping) else {queues: 1}
        self._shares = FairShares(
            {core.lane(_validate.queue_name(name)): weight for name, weight in weights.items()}
        )
        if not callable(work):
            raise wrong_type("handler must be an async function that takes a Claim", work)
        self._work = work
        self._on_error = on_error or failed_attempt
        self._bounded = keep_leases or job_timeout is not None
        self._keep_leases = keep_leases
        self._job_timeout = float("inf") if job_timeout is None else job_timeout
        self._cancel_grace = cancel_grace
        self._concurrency = whole(concurrency, "concurrency", 1, 100_000)
        self._busy = 0  # jobs whose claim is on its way, or whose handler runs
        self._undelivered = 0  # transactions that are not durable yet
        self._deliveries: dict[_Delivery, None] = {}
        self._finished: deque[_Finished] = deque()
        self._flush_is_due = False
        self._flushing = False
        self._stopped = False
        self._accepting = False
        self._leaving = False
        self._host: asyncio.Task[Any] | None = None
        self._host_cancelling = 0
        self._group: TaskGroup | None = None
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    @property
    def busy(self) -> int:
        """How many jobs are being worked on."""
        return self._busy

    def is_cancelled(self) -> bool:
        """Whether what runs in one of its tasks, and asks, must end."""
        host = self._host
        return anyio.current_effective_deadline() == float("-inf") or (
            host is not None and host.cancelling() > self._host_cancelling
        )

    async def run(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Work until `stop`, then finish what is under way.

        When it is cancelled instead, the jobs under way are given back, and the attempt
        does not count.

        Raises:
            Fenced: Another process took the store over.
        """
        if self._core.database.stopped is not None:
            raise copy(self._core.database.stopped)
        self._core.on_stop.append(self._queue_stopped)
        self._accepting = not self._stopped
        self._host = host = asyncio.current_task()
        # It may have been cancelled before, and not have heeded it.
        self._host_cancelling = 0 if host is None else host.cancelling()
        for lane in self._shares.lanes:
            lane.listeners.append(self._wake)
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                self._wake()
                task_status.started()
                try:
                    await self.drained()
                finally:
                    # What is enqueued while the group ends must not be claimed any more.
                    self._accepting = False
                    self._abandon_deliveries()
                if self._failure is not None:
                    raise self._failure
        except BaseExceptionGroup as errors:
            raise _only_error(errors) from None
        finally:
            self._accepting = False
            for lane in self._shares.lanes:
                lane.listeners.remove(self._wake)
            self._core.on_stop.remove(self._queue_stopped)
            self._group = None
            self._abandon_deliveries()  # of what was settled while the slots were being cancelled
            if self._finished and self._core.database.stopped is None:
                # Their slots were cancelled, but what they finished still counts.
                self._settle_and_claim(list(self._finished))
                self._finished.clear()

    def stop(self) -> None:
        """Take no further jobs, for good; `run` returns when those under way are settled."""
        if not self._stopped:
            logger.info("a worker stops; %d jobs are under way", self._busy)
        self._stopped = True
        self._accepting = False
        self._note_change()

    def give_back(self) -> None:
        """Stop, and cancel the work that is under way, once each.

        A job whose work ends by that goes back to its queue, and the attempt does not count;
        what its work says all the same is settled.
        """
        self.stop()
        self._leaving = True
        for holder in self._core.leases.holders():
            if isinstance(holder, Slot) and holder.engine is self:
                holder.leave()

    async def drained(self) -> None:
        """Return when the worker was stopped and what was under way is settled."""
        while self._failure is None and (self._accepting or self._busy or self._undelivered):
            await self._changed.wait()
            self._changed.clear()

    # -- claiming and settling --------------------------------------------------------------

    def _wake(self) -> None:
        """Jobs are pending: claim for the slots that are free, in one transaction for all that
        this round of the event loop makes pending, and in the same batch.
        """
        if self._flushing:
            return  # the transaction that made them pending also claims what it can
        if self._flush_is_due:
            self._core.database.journal.linger()
        elif self._accepting and self._busy < self._concurrency and self._shares.any_pending():
            self._flush_soon()
            self._core.database.journal.linger()

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Settle what has finished and claim what is free, in one transaction."""
        self._flush_is_due = False
        if self._failure is not None:
            return
        group = self._group
        if group is None or (not self._core.database.admitting and self._accepting):
            if group is not None:
                self._flush_is_due = True
                group.start_soon(self._flush_when_admitted)
            return
        batch = [self._finished.popleft() for _ in range(min(_MOST_AT_ONCE, len(self._finished)))]
        if self._finished:
            self._flush_soon()
        self._busy -= len(batch)
        self._flushing = True
        try:
            tx, claims = self._settle_and_claim(batch)
        except BaseException as error:
            self._fail(error, batch)
            return
        finally:
            self._flushing = False
        if batch or claims:
            self._busy += len(claims)
            self._undelivered += 1
            observer = self._core.observer
            began = 0.0 if observer is None else observer.began()
            # No task waits for this: it would cost more than all else that is done for a lone job.
            delivery = _Delivery(claims, batch, began)
            self._deliveries[delivery] = None
            tx.when_durable(partial(self._deliver, delivery))

    async def _flush_when_admitted(self) -> None:
        await self._core.database.admit()
        self._flush()

    def _settle_and_claim(self, batch: list[_Finished]) -> tuple[QueueTransaction, list[Claim]]:
        try:
            return self._commit([x.settlement for x in batch if x.settlement is not None])
        except Exception as error:
            if self._core.database.stopped is not None or not batch:
                raise
            logger.debug("settling one by one, since one cannot be settled: %s", error)
        failure: Exception | None = None
        for finished in batch:
            if finished.settlement is not None:
                try:
                    self._settle_alone(finished.claim, finished.settlement)
                except Exception as error:
                    failure = failure or error  # the others still count
        if failure is not None:
            raise failure
        return self._commit([])

    def _settle_alone(self, claim: Claim, settlement: Settlement) -> None:
        try:
            with QueueTransaction(self._core) as tx:
                settlement(tx)
        except ClaimLost as error:
            logger.warning("a late settlement was refused: %s", error, extra=about(claim.job))
        except Exception as error:
            if self._core.database.stopped is not None:
                raise
            logger.warning(
                "job %s could not be settled: %s", claim.job.id, error, extra=about(claim.job)
            )
            if claim.is_live:
                with QueueTransaction(self._core) as tx:
                    self._on_error(claim, error)(tx)

    def _commit(self, settlements: list[Settlement]) -> tuple[QueueTransaction, list[Claim]]:
        with QueueTransaction(self._core, defer_successors=True) as tx:
            for settlement in settlements:
                settlement(tx)
            free = self._concurrency - self._busy
            if not self._accepting or free <= 0:
                return tx, []
            return tx, self._shares.claim(tx, free)

    def _deliver(self, delivery: _Delivery, error: BaseException | None) -> None:
        """The claims are durable: hand them to waiting slots, and open slots for the rest."""
        if self._deliveries.pop(delivery, delivery) is delivery:
            return  # it was abandoned
        claims, batch, group = delivery.claims, delivery.batch, self._group
        waiting = [x.next_claim for x in batch]
        try:
            if error is not None:
                self._give_back(claims)
                self._fail(error, batch)
                return
            self._observe(delivery)
            if group is None or group.cancel_scope.cancel_called:
                self._give_back(claims)
                return
            for claim in claims:
                while waiting and waiting[-1].done():  # its slot was cancelled
                    waiting.pop()
                if waiting:
                    waiting.pop().set_result(claim)
                else:
                    group.start_soon(self._slot, claim)
        finally:
            self._end_delivery(waiting)

    def _observe(self, delivery: _Delivery) -> None:
        observer = self._core.observer
        if observer is not None:
            for finished in delivery.batch:
                if finished.settlement is not None:
                    observer.took(ACK_DURATION, finished.claim.job.queue, delivery.began)
            for queue in {claim.job.queue for claim in delivery.claims}:
                observer.took(CLAIM_DURATION, queue, delivery.began)

    def _abandon_deliveries(self) -> None:
        """This worker is being cancelled: what it claimed last is not worked on any more."""
        deliveries, self._deliveries = list(self._deliveries), {}
        for delivery in deliveries:
            self._give_back(delivery.claims)
            self._end_delivery([x.next_claim for x in delivery.batch])

    def _end_delivery(self, waiting: list[asyncio.Future[Claim | None]]) -> None:
        for slot in waiting:
            if not slot.done():
                slot.set_result(None)
        self._undelivered -= 1
        self._note_change()

    # -- slots ------------------------------------------------------------------------------

    async def _slot(self, claim: Claim | None) -> None:
        """Work on one job after the other, as long as there is a next one."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        slot = Slot(self, task, self._cancel_grace)
        running_job.set(None)  # not the one whose handler enqueued what this begins with
        while claim is not None:
            try:
                settlement = await self._handle(claim, slot)
            except BaseException:
                self._give_back([claim])
                raise
            next_claim: asyncio.Future[Claim | None] = loop.create_future()
            self._finished.append(_Finished(claim, settlement, next_claim))
            if not self._flush_is_due:
                self._flush_soon()
            try:
                if slot.span is None:
                    claim = await next_claim
                else:
                    claim = await self._settled(claim, slot, next_claim)
            except BaseException:
                if next_claim.done() and not next_claim.cancelled():
                    self._give_back([x for x in (next_claim.result(),) if x is not None])
                raise

    async def _settled(
        self, claim: Claim, slot: Slot, next_claim: asyncio.Future[Claim | None]
    ) -> Claim | None:
        tracing, parent, job = self._core.tracing, slot.span, claim.job
        slot.span = None
        assert tracing is not None
        with tracing.span(
            Operation(kind="settle", queue=job.queue, job_id=job.id, attempt=job.attempts), parent
        ):
            return await next_claim

    async def _traced(self, claim: Claim, slot: Slot, tracing: Tracing) -> Settlement:
        job = claim.job
        operation = Operation(
            kind="handle",
            queue=job.queue,
            job_id=job.id,
            attempt=job.attempts,
            headers=job.headers,
        )
        with tracing.span(operation) as slot.span:
            settlement = await self._work(claim)
            if isinstance(settlement, FailedSettlement):
                tracing.fail(slot.span, settlement.error)
            return settlement

    async def _handle(self, claim: Claim, slot: Slot) -> Settlement | None:
        """Do the work; None when the lease expired meanwhile."""
        lease = claim._lease
        if claim.job._row[PAYLOAD_REF] is not None and not claim.job._row[PAYLOAD]:
            await fetch_payload(self._core, claim)
        if not lease.live:
            return None
        if self._leaving:
            return lambda tx: tx.release(claim)
        lease.holder = slot
        if self._bounded:
            lease.begin(self._job_timeout, keep=self._keep_leases)
        tracing = self._core.tracing
        token = running_job.set(claim.job)
        try:
            if tracing is None:
                settlement = await self._work(claim)
            else:
                settlement = await self._traced(claim, slot, tracing)
            if not callable(settlement):  # it is the caller's code
                raise wrong_type("a handler must return how to settle its claim", settlement)
            return settlement
        except Exception as error:
            logger.warning(
                "the handler of job %s failed", claim.job.id, exc_info=True, extra=about(claim.job)
            )
            if slot.cancelled:
                return None
            return self._on_error(claim, error)
        except asyncio.CancelledError as error:
            if self.is_cancelled():
                raise
            if not lease.live:
                return None
            if slot.leaving:
                return lambda tx: tx.release(claim)
            # It was interrupted; or something inside the handler raised it by itself.
            return self._on_error(claim, error)
        except BaseException as error:
            if _ends_process(error):
                raise
            logger.warning(
                "the handler of job %s failed", claim.job.id, exc_info=True, extra=about(claim.job)
            )
            return None if slot.cancelled else self._on_error(claim, error)
        finally:
            running_job.reset(token)
            lease.holder = None
            expired = slot.cancelled
            if expired or slot.leaving or slot.interrupted:
                slot.uncancel()
            if expired:
                handler_ended(self._core, lease)
            elif self._bounded and lease.live:
                lease.done()

    def _give_back(self, claims: list[Claim]) -> None:
        # This worker is being cancelled: it must not claim again what it gives back.
        self._accepting = False
        self._busy -= len(claims)
        self._note_change()
        if claims and self._core.database.stopped is None:
            with QueueTransaction(self._core) as tx:
                for claim in claims:
                    if claim.is_live:
                        tx.release(claim)

    def _queue_stopped(self, error: BaseException) -> None:
        """Nothing that is under way here can be settled any more."""
        self._fail(error, [])

    def _fail(self, error: BaseException, batch: list[_Finished]) -> None:
        self._failure = error
        for finished in batch:
            if not finished.next_claim.done():
                finished.next_claim.set_result(None)
        self._note_change()

    def _note_change(self) -> None:
        self._changed.set()


class FailedSettlement:
    """Settles a claim whose work failed; tells with what, to whoever traces."""

    __slots__ = ("_settle", "error")

    def __init__(self, settle: Settlement, error: BaseException | str) -> None:
        self._settle = settle
        self.error = error

    def __call__(self, tx: QueueTransaction) -> object:
        return self._settle(tx)


def failed_attempt(
    claim: Claim,
    error: BaseException | str,
    effects: Effects | None = None,
) -> Settlement:
    """Settle a claim with an error, and with effects if its job is given up."""
    failure = failure_of(error)
    if isinstance(error, PermanentError):
        return FailedSettlement(lambda tx: tx.dead_letter(claim, failure, effects), error)
    return FailedSettlement(lambda tx: tx.nack(claim, failure, effects), error)


def _ends_process(error: BaseException) -> bool:
    """Whether it concerns more than the job whose handler raised it."""
    ends = (SystemExit, KeyboardInterrupt, GeneratorExit)
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return any(_ends_process(each) for each in group.exceptions)
    return isinstance(error, ends)


def _only_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error of a group whose errors all say the same, or else the group."""
    errors: list[BaseException] = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            error = _only_error(cast("BaseExceptionGroup[BaseException]", error))
        errors.append(error)
    return errors[0] if len({type(error) for error in errors}) == 1 else group
