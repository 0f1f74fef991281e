"""What every part of a transaction stands on: its life, and what it leaves to be done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from taquba.queue._columns import JOB_COLUMNS
from taquba.queue._core import Core, Lane
from taquba.queue._leases import Lease
from taquba.queue._records import Job, JobState
from taquba.queue._results import Completion, CompletionOutcome

if TYPE_CHECKING:
    from taquba.database import Execute, Transaction
    from taquba.metrics import Instrument

_T = TypeVar("_T", bound="TransactionBase")

__all__ = ["CLAIMED", "DEAD", "DONE", "NOWHERE", "PENDING", "SCHEDULED", "TransactionBase"]

PENDING, SCHEDULED, CLAIMED, DONE, DEAD = (int(state) for state in JobState)
NOWHERE = -1

_BY_ID = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?"
_BY_SEQ = f"SELECT {JOB_COLUMNS} FROM jobs WHERE seq = ?"


class TransactionBase:
    """A database transaction of the queue, with what follows once it is applied."""

    __slots__ = (
        "_after",
        "_claimed",
        "_core",
        "_ended",
        "_moves",
        "_now_ms",
        "_stored",
        "_tx",
        "_undo",
        "_woken",
        "_write",
        "execute",
    )

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tx: Transaction = core.database.transaction()
        self._moves: list[tuple[Lane, int, int]] = []
        self._claimed: list[Lease] = []
        self._ended: dict[Lease, None] = {}
        self._woken: list[Lane] = []
        self._undo: list[Any] = []  # functions, each with its two arguments behind it
        self._after: list[Callable[[], None]] = []
        self._stored: dict[int, str] | None = None
        self._now_ms = core.clock.now_ms()
        self._write: Execute = self._tx.write
        self.execute: Execute = self._tx.execute
        """Run SQL on tables that are the caller's own, in the same transaction."""

    @property
    def now_ms(self) -> int:
        """The one moment at which everything in this transaction happens."""
        return self._now_ms

    def __enter__(self: _T) -> _T:
        tx = self._tx.__enter__()
        self.execute = tx.execute
        self._write = tx.write
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            try:
                self._before_commit()
            except BaseException as failure:
                self._take_back_flow()
                self._tx.__exit__(type(failure), failure, failure.__traceback__)
                raise
        else:
            self._take_back_flow()
        self._tx.__exit__(kind, error, trace)
        if kind is not None:
            return
        if self._undo:
            self._undo.clear()
        core = self._core
        core.moved_all(self._moves)
        if core.observer is not None:
            core.observer.committed(self._moves)
        if self._ended or self._claimed:
            core.leases.replace(self._ended, self._claimed)
        for lane in self._woken:
            for listener in lane.listeners:
                listener()
        for callback in self._after:
            callback()

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call this when the changes are applied in this process; not if they are rolled back."""
        self._after.append(callback)

    async def durable(self) -> None:
        """Return when the changes are stored and will survive any crash.

        The leases of what was claimed begin to run then.

        Raises:
            Fenced: Another process took the store over, and the changes are lost.
        """
        await self._tx.durable()
        if self._claimed:
            self._core.leases.start(self._claimed)

    def when_durable(self, callback: Callable[[BaseException | None], None]) -> None:
        """As `durable`, without a task that waits: call this then, with what it would raise."""

        def told(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is None and self._claimed:
                self._core.leases.start(self._claimed)
            callback(error)

        self._tx.when_durable(told)

    async def confirmed(self) -> None:
        """As `durable`; when nothing was changed, return when what was found is durable.

        So that nobody is told of what others did while that can still be lost.
        """
        if self._tx.ticket:
            await self.durable()
        else:
            await self._core.database.barrier()

    def _count(self, instrument: Instrument, lane: Lane) -> None:
        """Count this once it is committed, if anybody counts; more than moves tell."""
        observer = self._core.observer
        if observer is not None:
            self._after.append(partial(observer.count, instrument, lane.number))

    def forget_value(self, ref: str) -> None:
        """What named these objects is gone: delete them once that is durable."""
        self._after.append(partial(self._core.payloads.forget, ref))

    def _completes(self, seq: int, outcome: CompletionOutcome, job: Job) -> None:
        """A job ends: tell those who wait for that, once it is durable."""
        completions = self._core.completions
        if seq in completions.watched:
            end = Completion(outcome, job)
            self._after.append(lambda: completions.ended(seq, end, self._tx))

    def _before_commit(self) -> None:
        """Write what was put off."""

    def _find(self, job_id: str) -> Sequence[Any] | None:
        return self.execute(_BY_ID, (job_id,)).fetchone()  # type: ignore[no-any-return]

    def _get(self, seq: int) -> Sequence[Any] | None:
        return self.execute(_BY_SEQ, (seq,)).fetchone()  # type: ignore[no-any-return]

    def _take_back_flow(self) -> None:
        """Nothing happens of what the limits of queues were told."""
        undo = self._undo
        while undo:
            second, first, function = undo.pop(), undo.pop(), undo.pop()
            function(first, second)

    def _entered(
        self, lane: Lane, left: int, state: int, run_at: int | None, key: str | None
    ) -> None:
        """A job became pending or scheduled: count it, and wake whoever waits for that."""
        self._moves.append((lane, left, state))
        if lane.flow is not None and state == PENDING and left != NOWHERE:
            lane.flow.changed(key)
        if run_at is not None:
            self._core.on_scheduled(run_at)
        elif lane not in self._woken:
            self._woken.append(lane)
