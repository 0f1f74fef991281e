"""What you need to test code that uses taquba, and stores of your own."""

from __future__ import annotations

from taquba.clock import ManualClock
from taquba.testing._delivery import delivery
from taquba.testing._faults import FaultyStore, HeldRequests, StoreRequest
from taquba.testing._latency import LatencyStore
from taquba.testing._metrics import InMemoryMetrics
from taquba.testing._objectstore_conformance import ObjectStoreConformance

__all__ = [
    "FaultyStore",
    "HeldRequests",
    "InMemoryMetrics",
    "LatencyStore",
    "ManualClock",
    "ObjectStoreConformance",
    "StoreRequest",
    "delivery",
]
