"""Waiting for jobs to claim."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from copy import copy
from typing import TYPE_CHECKING

from taquba.queue._transaction import QueueTransaction

if TYPE_CHECKING:
    from taquba.errors import TaqubaError
    from taquba.queue._core import Core, Lane
    from taquba.queue._records import Claim

__all__ = ["Waiter", "WaitingClaims"]


class Waiter:
    """One call that waits for jobs of one queue."""

    __slots__ = ("count", "future", "lease")

    def __init__(self, count: int, lease: float) -> None:
        self.count = count
        self.lease = lease
        self.future: asyncio.Future[tuple[QueueTransaction, list[Claim]]] = (
            asyncio.get_running_loop().create_future()
        )


class WaitingClaims:
    """The calls that wait for jobs of one queue, first come, first served.

    The commit that makes jobs pending claims them at once for those who wait, in the same
    batch. So nobody is woken for nothing, and nobody can lose a race for what woke it.
    """

    __slots__ = ("_core", "_lane", "_waiters")

    def __init__(self, core: Core, lane: Lane) -> None:
        self._core = core
        self._lane = lane
        self._waiters: deque[Waiter] = deque()
        lane.listeners.append(self._serve)
        core.on_stop.append(self._stop)

    def add(self, waiter: Waiter) -> None:
        self._waiters.append(waiter)

    def remove(self, waiter: Waiter) -> None:
        with contextlib.suppress(ValueError):  # it has been served
            self._waiters.remove(waiter)

    def __len__(self) -> int:
        return len(self._waiters)

    def _serve(self) -> None:
        """Jobs are pending."""
        if not self._waiters or self._lane.counts[0] <= 0:
            return
        served: list[tuple[Waiter, list[Claim]]] = []
        try:
            tx = QueueTransaction(self._core)
            with tx:
                while self._waiters:
                    claims = tx.claim(self._lane, self._waiters[0].count, self._waiters[0].lease)
                    if not claims:
                        break
                    served.append((self._waiters.popleft(), claims))
        except Exception as error:
            # It is theirs: the commit that made the jobs pending is not to blame.
            for waiter in [*(waiter for waiter, _ in served), *self._waiters]:
                waiter.future.set_exception(error)
            self._waiters.clear()
            return
        for waiter, claims in served:
            waiter.future.set_result((tx, claims))

    def _stop(self, error: TaqubaError) -> None:
        for waiter in self._waiters:
            waiter.future.set_exception(copy(error))
        self._waiters.clear()
