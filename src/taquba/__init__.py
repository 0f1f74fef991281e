"""Durable queue and workflows for asyncio: all state in one bucket or one folder, no server.

Start with `Queue.open`, and with `taquba.workflow` for runs of several steps.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taquba.clock import Clock as Clock
    from taquba.clock import ManualClock as ManualClock
    from taquba.clock import SystemClock as SystemClock
    from taquba.errors import PermanentError as PermanentError
    from taquba.errors import TaqubaError as TaqubaError
    from taquba.errors import TransientError as TransientError
    from taquba.objectstore import open_store as open_store
    from taquba.queue import Claim as Claim
    from taquba.queue import Dead as Dead
    from taquba.queue import Delivery as Delivery
    from taquba.queue import Done as Done
    from taquba.queue import Effects as Effects
    from taquba.queue import Enqueued as Enqueued
    from taquba.queue import FailWith as FailWith
    from taquba.queue import Follower as Follower
    from taquba.queue import Heartbeat as Heartbeat
    from taquba.queue import Job as Job
    from taquba.queue import JobPage as JobPage
    from taquba.queue import JobState as JobState
    from taquba.queue import JobView as JobView
    from taquba.queue import Lag as Lag
    from taquba.queue import Queue as Queue
    from taquba.queue import QueueConfig as QueueConfig
    from taquba.queue import QueueStats as QueueStats
    from taquba.queue import RateLimit as RateLimit
    from taquba.queue import Retry as Retry
    from taquba.queue import RetryPolicy as RetryPolicy
    from taquba.queue import Worker as Worker

__all__ = [
    "Claim",
    "Clock",
    "Dead",
    "Delivery",
    "Done",
    "Effects",
    "Enqueued",
    "FailWith",
    "Follower",
    "Heartbeat",
    "Job",
    "JobPage",
    "JobState",
    "JobView",
    "Lag",
    "ManualClock",
    "PermanentError",
    "Queue",
    "QueueConfig",
    "QueueStats",
    "RateLimit",
    "Retry",
    "RetryPolicy",
    "SystemClock",
    "TaqubaError",
    "TransientError",
    "Worker",
    "open_store",
]

__version__ = "0.1.0"

_HOMES = {
    "Clock": "clock",
    "ManualClock": "clock",
    "SystemClock": "clock",
    "PermanentError": "errors",
    "TaqubaError": "errors",
    "TransientError": "errors",
    "open_store": "objectstore",
}


def __getattr__(name: str) -> Any:
    """Load a public name where it is first used, so that importing taquba costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'taquba' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"taquba.{_HOMES.get(name, 'queue')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
