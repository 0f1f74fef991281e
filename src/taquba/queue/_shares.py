"""Which of several queues a worker claims from next."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import TYPE_CHECKING

from taquba.queue import _validate
from taquba.queue._core import Lane

if TYPE_CHECKING:
    from taquba.queue._records import Claim
    from taquba.queue._transaction import QueueTransaction

__all__ = ["FairShares"]


class _Share:
    """One queue, and where it stands."""

    __slots__ = ("idle", "lane", "served", "step")

    def __init__(self, lane: Lane, weight: int) -> None:
        self.lane = lane
        self.step = 1 / weight
        self.served = 0.0
        """Claims so far, each counted as 1 / weight: who has the least is next."""
        self.idle = True


class FairShares:
    """Claims from several queues, in proportion to their weights.

    While several have jobs, each gets its share of the claims. One that has none takes
    nothing away from the others, and saves nothing up. Within a queue, the claim order holds.
    """

    def __init__(self, weights: Mapping[Lane, int]) -> None:
        self.lanes = list(weights)
        self._shares = [_Share(lane, weight) for lane, weight in weights.items()]
        self._only = self.lanes[0] if len(self.lanes) == 1 else None
        self._served = 0.0  # where the queue stands that was served last

    def any_pending(self) -> bool:
        if self._only is not None:
            return self._only.counts[0] > 0
        return any(lane.counts[0] > 0 for lane in self.lanes)

    def claim(self, tx: QueueTransaction, count: int) -> list[Claim]:
        """Claim up to `count` jobs."""
        lane = self._only
        if lane is not None:
            return tx.claim(lane, count, _validate.lease_seconds(lane.config.lease))
        claims: list[Claim] = []
        able = self._shares
        while count > 0:
            wanted = self._divide(tx, able, count)
            short: list[_Share] = []
            for share, number in wanted:
                lane = share.lane
                taken = tx.claim(lane, number, _validate.lease_seconds(lane.config.lease))
                claims += taken
                count -= len(taken)
                share.served += share.step * len(taken)
                self._served = max(self._served, share.served)
                if len(taken) < number:
                    share.idle = True
                    short.append(share)
            if not wanted:
                break
            able = [share for share in able if share not in short]
        return claims

    def _divide(
        self, tx: QueueTransaction, shares: list[_Share], count: int
    ) -> list[tuple[_Share, int]]:
        """How many to claim from which queue."""
        left: list[int] = []
        heap: list[tuple[float, int]] = []
        for index, share in enumerate(shares):
            left.append(tx.claimable(share.lane))
            if left[index] == 0:
                share.idle = True
                continue
            if share.idle:
                share.idle = False
                share.served = max(share.served, self._served)
            heap.append((share.served, index))
        heapq.heapify(heap)
        numbers = [0] * len(shares)
        for _ in range(count):
            if not heap:
                break
            served, index = heap[0]
            numbers[index] += 1
            left[index] -= 1
            if left[index] == 0:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (served + shares[index].step, index))
        return [(shares[i], number) for i, number in enumerate(numbers) if number]
