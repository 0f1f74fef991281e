"""What the limits of a queue hold back, and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from taquba._checks import as_datetime
from taquba.queue._records import JobState

if TYPE_CHECKING:
    from taquba.database import Execute
    from taquba.queue._core import Lane

__all__ = ["FlowStatus", "status"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStatus:
    """What a queue's limits let through, and what they hold back."""

    queue: str
    """Name of the queue."""
    running: int
    """Jobs that are claimed."""
    max_running: int | None
    """The limit of that."""
    running_by_key: dict[str, int]
    """Claimed jobs by their concurrency keys, where there are any."""
    concurrency_per_key: int | None
    """The limit of each of them."""
    blocked_keys: tuple[str, ...]
    """Keys that have jobs pending, of which none may run now."""
    tokens: int | None
    """How many jobs the rate lets start now; None: there is no rate."""
    next_token_at: datetime | None
    """When there is a token again; None: there is one, or no rate."""
    depth: int
    """Jobs that are pending or scheduled."""
    max_depth: int | None
    """The limit of that."""
    reached: tuple[str, ...]
    """Which limits hold something back now: names of `QueueConfig`."""


def status(execute: Execute, lane: Lane, now_ms: int) -> FlowStatus:
    """What a queue's limits let through at this moment."""
    config, counts, flow = lane.config, lane.counts, lane.flow
    running, depth = counts[JobState.CLAIMED], counts[JobState.PENDING] + counts[JobState.SCHEDULED]
    tokens = next_at = None
    blocked: tuple[str, ...] = ()
    if flow is not None:
        blocked = flow.blocked(execute, lane.number)
        if flow.bucket is not None:
            tokens = flow.bucket.available(now_ms)
            next_at = None if tokens else as_datetime(flow.bucket.next_at_ms(now_ms))
    pending = counts[JobState.PENDING] > 0
    reached = {
        "concurrency_per_key": bool(blocked),
        "max_running": pending and config.max_running is not None and running >= config.max_running,
        "rate": pending and tokens == 0,
        "max_depth": config.max_depth is not None and depth >= config.max_depth,
    }
    return FlowStatus(
        queue=lane.name,
        running=running,
        max_running=config.max_running,
        running_by_key={} if flow is None else flow.running(),
        concurrency_per_key=config.concurrency_per_key,
        blocked_keys=blocked,
        tokens=tokens,
        next_token_at=next_at,
        depth=depth,
        max_depth=config.max_depth,
        reached=tuple(name for name, holds in reached.items() if holds),
    )
