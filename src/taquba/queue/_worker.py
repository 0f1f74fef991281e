"""Runs a handler on the jobs of one queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, final

import anyio

from taquba.errors import ClaimLost, TaqubaError
from taquba.queue import _validate
from taquba.queue._core import Core, Lane, logger
from taquba.queue._transaction import QueueTransaction

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from taquba.queue._records import Claim

__all__ = ["Handler", "Settlement", "Worker"]

Settlement = Callable[[QueueTransaction], object]
"""Settles one claim inside the transaction that it is given."""

Handler = Callable[["Claim"], Awaitable[Settlement]]
"""Works on one claim and says how to settle it.

An exception settles the claim as a failed attempt. If the lease expires, the handler is
cancelled and its settlement is not wanted any more.
"""


@final
class Worker:
    """Claims jobs of one queue, up to `concurrency` at a time, and settles what the handler says.

    A settlement and the claim of the next job share one transaction, and a handler starts
    when the claim of its job is durable. A worker that finds nothing to do holds no task:
    the commit that makes a job pending wakes it, in the same batch.
    """

    def __init__(self, core: Core, queue: str, handler: Handler, *, concurrency: int) -> None:
        self._core = core
        self._lane: Lane = core.lane(_validate.queue_name(queue))
        self._handler = handler
        self._concurrency = concurrency
        self._busy = 0
        self._settling = 0
        self._accepting = False
        self._group: TaskGroup | None = None
        self._changed = asyncio.Event()

    @property
    def busy(self) -> int:
        """How many jobs are being worked on."""
        return self._busy

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Work until `stop`, then finish what is under way.

        When it is cancelled instead, the jobs under way are given back, and the attempt
        does not count.

        Raises:
            Fenced: Another process took the store over.
        """
        self._accepting = True
        self._lane.listeners.append(self._fill)
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                self._fill()
                task_status.started()
                await self.drained()
        finally:
            self._accepting = False
            self._group = None
            self._lane.listeners.remove(self._fill)

    def stop(self) -> None:
        """Take no further jobs; `run` returns when those under way are settled."""
        self._accepting = False
        self._note_change()

    async def drained(self) -> None:
        """Return when the worker was stopped and what was under way is settled."""
        while self._accepting or self._busy or self._settling:
            changed = self._changed
            await changed.wait()

    def _fill(self) -> None:
        """Claim a job for each free slot, as far as there are any."""
        free = self._concurrency - self._busy
        if not self._accepting or free <= 0 or self._lane.counts[0] <= 0 or self._group is None:
            return
        if not self._core.database.admitting:
            self._busy += 1  # one slot waits for admission on behalf of all
            self._group.start_soon(self._fill_when_admitted)
            return
        with QueueTransaction(self._core) as tx:
            claims = tx.claim(self._lane, free, self._lease_seconds())
        for claim in claims:
            self._busy += 1
            self._group.start_soon(self._slot, claim, tx)

    async def _fill_when_admitted(self) -> None:
        try:
            await self._core.database.admit()
        finally:
            self._release_slot()
        self._fill()

    async def _slot(self, claim: Claim | None, tx: QueueTransaction) -> None:
        """Work on a job, settle it and claim the next in one transaction, and so on."""
        try:
            while claim is not None:
                try:
                    await tx.durable()
                    settlement = await self._handle(claim)
                    if not self._core.database.admitting:
                        await self._core.database.admit()
                except BaseException:
                    self._give_back(claim)
                    raise
                claim, tx = self._settle_and_claim(claim, settlement)
        finally:
            self._release_slot()
        # The slot is free for others already, but `run` does not return before this is safe.
        self._settling += 1
        try:
            await tx.durable()
        finally:
            self._settling -= 1
            self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _release_slot(self) -> None:
        self._busy -= 1
        self._note_change()

    async def _handle(self, claim: Claim) -> Settlement | None:
        """Run the handler; None when the lease expired meanwhile."""
        lease = claim._lease
        if not lease.live:
            return None
        task = asyncio.current_task()
        assert task is not None
        lease.on_expiry = task.cancel
        try:
            return await self._handler(claim)
        except Exception as error:
            logger.warning("the handler of job %s failed", claim.job.id, exc_info=True)
            return _failed(claim, error)
        except asyncio.CancelledError as error:
            if not lease.live and task.uncancel() == 0:
                return None  # the lease expired, and nobody else cancelled this task
            if task.cancelling():
                raise
            # Nobody cancelled this task: something inside the handler raised it by itself.
            return _failed(claim, error)
        finally:
            lease.on_expiry = None

    def _settle_and_claim(
        self, claim: Claim, settlement: Settlement | None
    ) -> tuple[Claim | None, QueueTransaction]:
        if settlement is not None:
            try:
                return self._commit(settlement)
            except ClaimLost as error:
                logger.warning("a late settlement was refused: %s", error)
            except TaqubaError as error:
                if self._core.database.failure is not None:
                    raise
                logger.warning("job %s could not be settled: %s", claim.job.id, error)
                if claim.is_live:
                    return self._commit(_failed(claim, error))
        return self._commit(None)

    def _commit(self, settlement: Settlement | None) -> tuple[Claim | None, QueueTransaction]:
        with QueueTransaction(self._core) as tx:
            if settlement is not None:
                settlement(tx)
            claims = tx.claim(self._lane, 1, self._lease_seconds()) if self._accepting else ()
        return (claims[0] if claims else None), tx

    def _give_back(self, claim: Claim) -> None:
        if claim.is_live and self._core.database.failure is None:
            with QueueTransaction(self._core) as tx:
                tx.release(claim)

    def _lease_seconds(self) -> float:
        return _validate.lease_seconds(self._lane.config.lease)


def _failed(claim: Claim, error: BaseException) -> Settlement:
    text = f"{type(error).__name__}: {error}"
    return lambda tx: tx.nack(claim, text)
