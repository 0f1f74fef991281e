"""Waiting for jobs to end."""

from __future__ import annotations

import asyncio
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

from taquba.errors import TaqubaError

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.database import Transaction
    from taquba.queue._results import Completion

__all__ = ["Completions", "wait_for_future"]

_T = TypeVar("_T")


async def wait_for_future(future: asyncio.Future[_T], timeout: float, clock: Clock) -> bool:
    """Wait until the future is done, or for `timeout` seconds; whether it is done.

    It is never cancelled by this.
    """
    if future.done():
        return True
    if timeout == float("inf"):
        await asyncio.wait([future])
        return True
    timer = asyncio.ensure_future(clock.sleep(timeout))
    both: list[asyncio.Future[Any]] = [future, timer]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        await asyncio.gather(timer, return_exceptions=True)
    return future.done()


class Completions:
    """The calls that wait for jobs to end; `watched` has them by the jobs' numbers.

    It is empty while nobody waits, which is all that a transaction asks then.
    """

    def __init__(self) -> None:
        self.watched: dict[int, list[asyncio.Future[Completion]]] = {}
        self._telling: set[asyncio.Task[None]] = set()

    def add(self, seq: int) -> asyncio.Future[Completion]:
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.watched.setdefault(seq, []).append(future)
        return future

    def remove(self, seq: int, future: asyncio.Future[Completion]) -> None:
        if not future.cancel() and not future.cancelled():
            future.exception()  # told or not, it is nobody's any more
        waiting = self.watched.get(seq, [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self.watched.pop(seq, None)

    def ended(self, seq: int, completion: Completion, tx: Transaction) -> None:
        """A transaction that ended a job was applied: tell those who wait once it is durable."""
        waiting = self.watched.pop(seq, None)
        if waiting:
            task = asyncio.ensure_future(self._tell(waiting, completion, tx))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(
        self,
        waiting: list[asyncio.Future[Completion]],
        completion: Completion,
        tx: Transaction,
    ) -> None:
        try:
            await tx.durable()
        except TaqubaError as error:
            _end(waiting, error)
            return
        for future in waiting:
            if not future.done():
                future.set_result(completion)

    def stop(self, error: TaqubaError) -> None:
        for waiting in self.watched.values():
            _end(waiting, error)
        self.watched.clear()


def _end(waiting: list[asyncio.Future[Completion]], error: TaqubaError) -> None:
    for future in waiting:
        if not future.done():
            future.set_exception(copy(error))
