"""Workers as their users see them."""

from __future__ import annotations

import asyncio
import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor
from types import TracebackType
from typing import TYPE_CHECKING, Literal, cast, final

import anyio

from taquba._blocks import AsyncBlock
from taquba._checks import shown, whole, wrong_type
from taquba._groups import block_failure
from taquba.clock import Duration, seconds
from taquba.errors import InvalidArgument
from taquba.queue import _validate
from taquba.queue._calling import ExecutorBroke, ExecutorGone, Handler, OnLoop, adapt
from taquba.queue._core import Core, logger
from taquba.queue._delivery import Delivery
from taquba.queue._effects import Effects, merged
from taquba.queue._engine import Engine, FailedSettlement, Settlement, failed_attempt
from taquba.queue._failure import failure_of
from taquba.queue._measuring import stamped
from taquba.queue._outcomes import Dead, Done, FailWith, Result, Retry, check_result

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from taquba.queue._records import Claim

__all__ = ["Worker"]

_MAX_WEIGHT = 1_000_000


@final
class Worker(AsyncBlock):
    """Runs a handler on jobs. Made by `Queue.worker`, which tells all that can be chosen.

    Inside ``async with`` it works beside the block. Leaving the block normally stops it:
    it takes no further jobs, and finishes those under way, for at most `drain_timeout`.
    Leaving it by an exception or cancellation gives those under way back at once. A worker
    that fails, because the store was taken over or its executor broke, cancels the block,
    which then raises why.

    Instead, `run` works until `stop`. A worker can be used once.
    """

    def __init__(
        self,
        core: Core,
        queues: str | Sequence[str] | Mapping[str, int],
        handler: Handler,
        *,
        concurrency: int,
        renew: Literal["auto"] | None,
        job_timeout: Duration | None,
        cancel_grace: Duration,
        drain_timeout: Duration | None,
        executor: Executor | Callable[[], Executor] | None,
        on_cancel: Literal["cooperate", "interrupt"],
    ) -> None:
        """Not for callers: use `Queue.worker`."""
        if on_cancel not in ("cooperate", "interrupt"):
            raise InvalidArgument(
                f"on_cancel is {shown(on_cancel)}: give 'cooperate' or 'interrupt'"
            )
        self._interrupt = on_cancel == "interrupt"
        whole(concurrency, "concurrency", 1, 100_000)
        self._grace = grace = seconds(cancel_grace, name="cancel_grace")
        self._drain_timeout = (
            None if drain_timeout is None else seconds(drain_timeout, name="drain_timeout")
        )
        self._core = core
        self._calling = adapt(
            handler, executor, concurrency=concurrency, clock=core.clock, grace=grace
        )
        self._engine = Engine(
            core,
            _weights(queues),
            self._work,
            concurrency=concurrency,
            on_error=self._failed if self._interrupt else None,
            keep_leases=_validate.keeps_leases(renew),
            job_timeout=_validate.time_for_work(job_timeout, "job_timeout"),
            cancel_grace=grace,
        )
        self._used = False
        self._failure: BaseException | None = None
        self._stop_asked = asyncio.Event()
        self._group: TaskGroup | None = None

    @property
    def busy(self) -> int:
        """How many jobs are being worked on."""
        return self._engine.busy

    async def run(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Work until `stop`, then finish what is under way, for at most `drain_timeout`.

        When it is cancelled instead, the jobs under way are given back, and the attempt
        does not count.

        Raises:
            Fenced: Another process took the store over.
            BrokenExecutor: The executor that was given broke, or was shut down.
        """
        if self._used:
            raise InvalidArgument("this worker was used already: make a new one")
        self._used = True
        self._calling.open(self._engine.is_cancelled)
        late: asyncio.Future[None] | None = None
        try:
            with anyio.CancelScope() as scope:
                if self._drain_timeout is not None:
                    late = asyncio.ensure_future(self._cancel_late(scope, self._drain_timeout))
                await self._engine.run(task_status=task_status)
        finally:
            if late is not None:
                late.cancel()
            self._calling.close()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Take no further jobs, for good. To be called on the event loop.

        It can be given to ``loop.add_signal_handler(signal.SIGTERM, worker.stop)``.
        """
        self._engine.stop()
        self._stop_asked.set()

    async def drained(self) -> None:
        """Return when the worker was stopped and what was under way is settled."""
        await self._engine.drained()

    async def __aenter__(self) -> Worker:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        try:
            await self._group.start(self.run)
        except BaseException:
            await self.__aexit__(*sys.exc_info())
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._group is not None
        if kind is None:
            self.stop()
        try:
            return await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as errors:
            failure = block_failure(errors, error, self._core.database.failure)
            if failure is None:
                return None
            if failure is errors:
                raise
            raise failure from failure.__cause__

    async def _cancel_late(self, scope: anyio.CancelScope, timeout: float) -> None:
        await self._stop_asked.wait()
        await self._core.clock.sleep(timeout)
        if self._engine.busy:
            logger.warning(
                "%d jobs were not done within drain_timeout (%g s) and are given back",
                self._engine.busy,
                timeout,
            )
        self._engine.give_back()
        await self._core.clock.sleep(self._grace)
        # Only what does not heed one cancellation is left; and this one does not end.
        scope.cancel()

    # -- one job ----------------------------------------------------------------------------

    async def _work(self, claim: Claim) -> Settlement:
        if self._interrupt:
            if claim._lease.is_cancelled:
                return lambda tx: tx.remove(claim)
            claim._lease.interruptible = isinstance(self._calling, OnLoop)
        delivery = Delivery(claim)
        try:
            try:
                result = check_result(await self._calling.call(delivery))
            finally:
                claim._lease.interruptible = False
                if delivery._effects is not None:
                    delivery._effects._seal()
            return await self._prepared(*_settlement(claim, result, delivery._effects))
        except ExecutorGone as error:
            self._end(error)
            return lambda tx: tx.release(claim)
        except FailWith as error:
            settlement = failed_attempt(claim, error.error, error.effects)
            return await self._prepared(settlement, error.effects)
        except ExecutorBroke as error:
            if not self._calling.is_replaced:
                self._end(error.__cause__ or error)
            raise

    def _failed(self, claim: Claim, error: BaseException) -> Settlement:
        """Settle a job whose handler was interrupted, or raised."""
        if claim._lease.is_cancelled:
            return lambda tx: tx.remove(claim)
        return failed_attempt(claim, error)

    async def _prepared(self, settlement: Settlement, effects: Effects | None) -> Settlement:
        """The settlement, with the large payloads of its effects stored."""
        tracing = self._core.tracing
        if tracing is not None and effects is not None:
            effects.jobs[:] = [stamped(tracing, job) for job in effects.jobs]
        payloads = self._core.payloads
        if effects is None or effects.largest <= payloads.above:
            return settlement
        prepared = await payloads.prepare(settlement, effects)
        if isinstance(settlement, FailedSettlement):
            return FailedSettlement(prepared, settlement.error)
        return prepared

    def _end(self, error: BaseException) -> None:
        """The executor is gone: end, when what is under way is settled."""
        if self._failure is None:
            self._failure = BrokenExecutor(
                f"the worker ends, since its executor broke or was shut down ({error}). Give it a "
                "function that makes an executor, and it will replace one that broke"
            )
            self._failure.__cause__ = copy.copy(error)
            self._engine.stop()


def _settlement(
    claim: Claim, result: Result, staged: Effects | None
) -> tuple[Settlement, Effects | None]:
    """How to settle, and the effects in it."""
    match result:
        case Retry(error, after, at, effects):
            failure = failure_of(error, retry_after=after, retry_at=at)
            retry: Settlement = lambda tx: tx.nack(claim, failure, effects)  # noqa: E731
            return FailedSettlement(retry, error), effects
        case Dead(reason, effects):
            failure = failure_of(reason)
            bury: Settlement = lambda tx: tx.dead_letter(claim, failure, effects)  # noqa: E731
            return FailedSettlement(bury, reason), effects
        case Done(effects):
            both = merged(staged, effects)
        case _:
            both = merged(staged, result)
    return (lambda tx: tx.ack(claim, both)), both


def _weights(queues: object) -> Mapping[str, int]:
    weights: dict[str, int]
    if isinstance(queues, str):
        weights = {_validate.queue_name(queues): 1}
    elif isinstance(queues, Mapping):
        weights = {
            _validate.queue_name(name): whole(weight, f"weight of queue {name!r}", 1, _MAX_WEIGHT)
            for name, weight in cast("Mapping[object, object]", queues).items()
        }
    elif isinstance(queues, Sequence) and not isinstance(queues, (bytes, bytearray)):
        names = cast("Sequence[object]", queues)
        weights = {_validate.queue_name(name): 1 for name in names}
        if len(weights) < len(names):
            raise InvalidArgument(f"a queue is named twice: {shown(names)}")
    else:
        raise wrong_type(
            "queues must be a queue's name, several names, or a mapping of names to weights", queues
        )
    if not weights:
        raise InvalidArgument("no queue was given: name at least one")
    return weights
