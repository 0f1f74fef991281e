"""What each further job of a transaction costs, counted in calls of Python functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from taquba import Queue
from taquba.queue import QueueTransaction, new_job

pytestmark = pytest.mark.anyio


async def calls_per_job(
    queue: Queue, make: Callable[[int], Callable[[QueueTransaction], None]]
) -> float:
    """`make` gives what changes so many jobs in one transaction."""

    async def calls(count: int) -> int:
        change = make(count)
        found = 0

        def profiled(_: Any, event: str, __: Any) -> None:
            nonlocal found
            found += event == "call"

        sys.setprofile(profiled)
        with queue.transaction() as tx:
            change(tx)
        await tx.durable()
        sys.setprofile(None)
        return found

    await calls(10)
    few = await calls(10)
    return (await calls(1010) - few) / 1000


def enqueueing(count: int) -> Callable[[QueueTransaction], None]:
    jobs = [new_job("q", b"") for _ in range(count)]

    def change(tx: QueueTransaction) -> None:
        for job in jobs:
            tx.enqueue(job)

    return change


async def test_what_a_further_job_costs(queue: Queue) -> None:
    assert await calls_per_job(queue, enqueueing) < 8.5
    lane = queue._core.lane("q")

    def claiming(count: int) -> Callable[[QueueTransaction], None]:
        return lambda tx: claims.extend(tx.claim(lane, count, 30))

    def acknowledging(count: int) -> Callable[[QueueTransaction], None]:
        taken, claims[:] = claims[:count], claims[count:]

        def change(tx: QueueTransaction) -> None:
            for claim in taken:
                tx.ack(claim)

        return change

    claims: list[Any] = []
    assert await calls_per_job(queue, claiming) < 3.5
    assert len(claims) == 1030
    assert await calls_per_job(queue, acknowledging) < 6.5
    assert not claims
