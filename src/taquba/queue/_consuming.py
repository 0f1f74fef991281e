"""Calls that take jobs and settle them."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from datetime import datetime

from taquba.clock import Duration, seconds
from taquba.metrics import ACK_DURATION, CLAIM_DURATION, Instrument
from taquba.queue import _validate
from taquba.queue._calls import Calls, Committing, check_claim, check_effects
from taquba.queue._completions import wait_for_future
from taquba.queue._config import MAX_BATCH_SIZE
from taquba.queue._core import Lane
from taquba.queue._delivering import deliver
from taquba.queue._effects import Effects
from taquba.queue._failure import failure_of
from taquba.queue._measuring import measured
from taquba.queue._records import Claim
from taquba.queue._results import Settled
from taquba.queue._transaction import QueueTransaction
from taquba.queue._waiting import Waiter, WaitingClaims
from taquba.tracing import Operation

__all__ = ["Consuming"]


class Consuming(Calls):
    """Takes jobs, and says what became of them."""

    async def claim(
        self, queue: str, lease: Duration | None = None, *, wait: Duration = 0
    ) -> Claim | None:
        """Take the next pending job, or None if there is none.

        When this returns, the claim is durable: the attempt counts, whatever happens.
        A caller that is cancelled while it waits gives the job back.

        Args:
            queue: Name of the queue.
            lease: How long the job is held; default: the queue's `lease`.
            wait: How long to wait for a job if there is none; ``float("inf")`` for ever. Those
                who wait are served in the order in which they came, each as soon as there is
                a job for it.

        Raises:
            PayloadMissing, CorruptStore, StoreError: See `claim_many`.
            Fenced: Another process took the store over.
            Closed: The queue was closed while this waited.
        """
        claims = await self.claim_many(queue, 1, lease, wait=wait)
        return claims[0] if claims else None

    async def claim_many(
        self, queue: str, n: int, lease: Duration | None = None, *, wait: Duration = 0
    ) -> list[Claim]:
        """Take up to `n` (at most 10,000) pending jobs, in claim order; see `claim`.

        With `wait`, it returns as soon as there is any job, with as many as there are then.

        Payloads that are objects of their own are fetched, and leases begin to run then. A job
        whose payload cannot be fetched is not delivered: it comes back with a delay, and the
        attempt does not count; or it is dead, if the object is gone or damaged. The others are
        delivered; if there is no other one, the error is raised. All of them are in memory
        together, up to 16 MiB each, so take fewer at a time where payloads are large.

        Raises:
            PayloadMissing, CorruptStore, StoreError: No payload could be fetched.
            Fenced: Another process took the store over.
        """
        name = _validate.queue_name(queue)
        count = _validate.count(n, MAX_BATCH_SIZE)
        lane = self._core.lane(name)
        held = _validate.lease_seconds(lane.config.lease if lease is None else lease)
        patience = seconds(wait, name="wait")
        await self._core.database.admit()
        observer = self._core.observer
        began = 0.0 if observer is None else observer.began()
        with QueueTransaction(self._core) as tx:
            claims = tx.claim(lane, count, held) if count else []
        while not claims and count and lane.flow is not None and lane.flow.more:
            await asyncio.sleep(0)  # jobs that may not run are in the way, for longer than a moment
            await self._core.database.admit()
            with QueueTransaction(self._core) as tx:
                claims = tx.claim(lane, count, held)
        if not claims and count and patience:
            tx, claims = await self._wait_for_claims(tx, lane, Waiter(count, held), patience)
            began = 0.0 if observer is None else observer.began()
        try:
            await tx.durable()
            if observer is not None and claims:
                observer.took(CLAIM_DURATION, name, began)
            return await deliver(self._core, claims)
        except asyncio.CancelledError:
            self._release(claims)
            raise

    async def _wait_for_claims(
        self, tx: QueueTransaction, lane: Lane, waiter: Waiter, patience: float
    ) -> tuple[QueueTransaction, list[Claim]]:
        waiting = self._core.waiting.get(lane.number)
        if waiting is None:
            waiting = self._core.waiting[lane.number] = WaitingClaims(self._core, lane)
        waiting.add(waiter)
        served = waiter.future
        try:
            if await wait_for_future(served, patience, self._core.clock):
                return served.result()
        except asyncio.CancelledError:
            if served.done() and served.exception() is None:
                self._release(served.result()[1])
            raise
        finally:
            waiting.remove(waiter)
        return tx, []

    async def claim_by_id(self, job_id: str, lease: Duration | None = None) -> Claim:
        """Take one waiting job, whatever comes before it, and whenever it is due.

        Otherwise as `claim`: the attempt counts, and the job's dedup key becomes free.

        Args:
            job_id: Id of the job.
            lease: How long the job is held; default: the `lease` of its queue.

        Raises:
            JobNotFound: There is no such job.
            InvalidState: The job is claimed, done or dead, or a limit of its queue is used up.
            PayloadMissing, CorruptStore, StoreError: Its payload could not be fetched; see
                `claim_many`.
            Fenced: Another process took the store over.
        """
        checked = _validate.job_id(job_id)
        held = None if lease is None else _validate.lease_seconds(lease)
        claims: list[Claim] = []
        try:
            async with self._committing() as tx:
                claims.append(tx.claim_by_id(checked, held))
            return (await deliver(self._core, claims))[0]
        except asyncio.CancelledError:
            self._release(claims)
            raise

    def _release(self, claims: list[Claim]) -> None:
        if self._core.database.stopped is None:
            with QueueTransaction(self._core) as tx:
                for claim in claims:
                    if claim.is_live:
                        tx.release(claim)

    async def ack(self, claim: Claim, effects: Effects | None = None) -> Settled:
        """The job is done. Its effects are committed with that, or neither is.

        Raises:
            ClaimLost: The claim ended before; nothing was applied.
            DuplicateJobId: An effect enqueues under an id that is taken; nothing was applied.
            Fenced: Another process took the store over.
        """
        check_claim(claim)
        check_effects(effects)
        async with self._settling(self._committing(effects), claim, ACK_DURATION) as tx:
            return tx.ack(claim, effects)

    async def nack(
        self,
        claim: Claim,
        error: BaseException | str,
        effects: Effects | None = None,
        *,
        retry_after: Duration | None = None,
        retry_at: datetime | None = None,
    ) -> Settled:
        """The attempt failed: the job is retried with backoff, or dead if that was the last.

        Args:
            claim: The claim to settle.
            error: What went wrong. Its text is kept with the job; of an exception also its type
                and its traceback.
            effects: Applied only if the job is given up.
            retry_after: The retry comes no sooner than this from now. Default: what the error
                says, if it is a `TransientError`.
            retry_at: The retry comes no sooner than at this (aware) time.

        Raises:
            ClaimLost: The claim ended before; nothing was applied.
            Fenced: Another process took the store over.
        """
        check_claim(claim)
        check_effects(effects)
        failure = failure_of(error, retry_after=retry_after, retry_at=retry_at)
        async with self._settling(self._committing(effects), claim) as tx:
            return tx.nack(claim, failure, effects)

    async def dead_letter(
        self, claim: Claim, error: BaseException | str, effects: Effects | None = None
    ) -> Settled:
        """Give the job up, whatever attempts are left.

        Raises:
            ClaimLost: The claim ended before; nothing was applied.
            Fenced: Another process took the store over.
        """
        check_claim(claim)
        check_effects(effects)
        failure = failure_of(error)
        async with self._settling(self._committing(effects), claim) as tx:
            return tx.dead_letter(claim, failure, effects)

    def _settling(
        self, committing: Committing, claim: Claim, instrument: Instrument | None = None
    ) -> AbstractAsyncContextManager[QueueTransaction]:
        core, job = self._core, claim.job
        if core.observer is None and core.tracing is None:
            return committing
        operation = Operation(kind="settle", queue=job.queue, job_id=job.id, attempt=job.attempts)
        return measured(core, instrument, operation, job.queue, committing)
