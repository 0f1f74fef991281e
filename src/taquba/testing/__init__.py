"""What you need to test code that uses taquba, and stores of your own."""

from __future__ import annotations

from taquba.clock import ManualClock
from taquba.testing._activity import StillRunning
from taquba.testing._cancel import request_cancel
from taquba.testing._crash_points import CrashPoint
from taquba.testing._faults import FaultyStore, HeldRequests, StoreRequest
from taquba.testing._latency import LatencyStore
from taquba.testing._life import Part
from taquba.testing._metrics import InMemoryMetrics
from taquba.testing._objectstore_conformance import ObjectStoreConformance
from taquba.testing._sandbox import Sandbox

__all__ = [
    "CrashPoint",
    "FaultyStore",
    "HeldRequests",
    "InMemoryMetrics",
    "LatencyStore",
    "ManualClock",
    "ObjectStoreConformance",
    "Part",
    "Sandbox",
    "StillRunning",
    "StoreRequest",
    "request_cancel",
]
