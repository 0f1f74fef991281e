"""What limits the jobs of one queue that run at a time, and how many are started."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from taquba.queue._rate import TokenBucket

if TYPE_CHECKING:
    from taquba.database import Execute
    from taquba.queue._config import QueueConfig

__all__ = ["Flow"]

_SLACK = 64
"""Outdated heads beyond which they are thrown away, if they are also the most."""

_HEAD = (
    "SELECT priority, seq FROM jobs WHERE queue = ? AND flow_key = ? AND state = 0"
    " ORDER BY priority, seq LIMIT 1"
)
_KEYS = """WITH RECURSIVE keys (key) AS (
    SELECT (SELECT min(flow_key) FROM jobs WHERE queue = ?1 AND state = 0 AND flow_key >= '')
    UNION ALL
    SELECT (SELECT min(flow_key) FROM jobs WHERE queue = ?1 AND state = 0 AND flow_key > key)
    FROM keys WHERE key IS NOT NULL
) SELECT key FROM keys WHERE key IS NOT NULL"""


class Flow:
    """The limits of one queue, and how far each is used up.

    All claims are void when a store is opened, so what runs is known from memory alone.
    With a limit per key, the first pending job of each key that may run is kept in a heap,
    so that blocked jobs are never looked at. A head may be outdated: it is looked at again
    before it is claimed, and keys of which something changed are looked up before that.

    In such a queue every job has a key; the empty one is of those that have none, and is
    not limited.
    """

    __slots__ = (
        "_claimed",
        "_heads",
        "_heap",
        "_loaded",
        "_per_key",
        "_running",
        "_stored",
        "_unknown",
        "bucket",
        "keyed",
        "max_running",
    )

    def __init__(self, config: QueueConfig) -> None:
        self.keyed = config.concurrency_per_key is not None
        self.max_running = config.max_running
        self.bucket = None if config.rate is None else TokenBucket(config.rate)
        self._per_key = config.concurrency_per_key or 0
        self._claimed: dict[int, str] = {}
        self._running: dict[str, int] = {}
        self._heads: dict[str, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._unknown: dict[str, None] = {}
        self._loaded = not self.keyed
        self._stored: tuple[int, int, int] | None = None

    @classmethod
    def of(cls, config: QueueConfig) -> Flow | None:
        """The limits of a queue; None: it has none, and nothing is to be done for it."""
        limits = (config.concurrency_per_key, config.max_running, config.rate)
        return None if all(limit is None for limit in limits) else cls(config)

    # -- what runs --------------------------------------------------------------------------

    def started(self, seq: int, key: str) -> None:
        """A job was claimed (or its end taken back)."""
        self._claimed[seq] = key
        self._running[key] = self._running.get(key, 0) + 1
        self.changed(key)

    def ended(self, seq: int) -> str | None:
        """A claim ended (or was taken back); the key of its job, if it was counted."""
        key = self._claimed.pop(seq, None)
        if key is None:
            return None  # a claim of an earlier process
        left = self._running[key] - 1
        if left:
            self._running[key] = left
        else:
            del self._running[key]
        self.changed(key)
        return key

    def changed(self, key: str | None) -> None:
        """Something pending came or went under this key."""
        if self.keyed:
            self._unknown[key or ""] = None

    def allowed(self, count: int, now_ms: int) -> int:
        """How many of so many jobs may start, whatever their keys are."""
        if self.max_running is not None:
            count = min(count, self.max_running - len(self._claimed))
        if self.bucket is not None:
            count = min(count, self.bucket.available(now_ms))
        return max(count, 0)

    def is_saturated(self, key: str) -> bool:
        """Whether as many jobs of this key run as may."""
        return bool(self.keyed and key) and self._running.get(key, 0) >= self._per_key

    def refuses(self, key: str, now_ms: int) -> str | None:
        """Which limit does not let a job of this key start; None: none does."""
        if self.is_saturated(key):
            return "concurrency_per_key"
        if self.max_running is not None and len(self._claimed) >= self.max_running:
            return "max_running"
        if self.bucket is not None and self.bucket.available(now_ms) == 0:
            return "rate"
        return None

    def take_tokens(self, number: int, now_ms: int) -> Callable[[], None] | None:
        """Take tokens, if there is a rate; what gives them back, if that is rolled back."""
        bucket = self.bucket
        if bucket is None:
            return None
        before = bucket.full_at
        bucket.take(number, now_ms)
        return lambda: setattr(bucket, "full_at", before)

    # -- what is next -----------------------------------------------------------------------

    def next(self, execute: Execute, queue: int) -> tuple[int, str] | None:
        """The first job, by priority and age, whose key is not saturated; it may be gone."""
        if not self._loaded:
            self._unknown.update((key, None) for (key,) in execute(_KEYS, (queue,)).fetchall())
            self._loaded = True
        heads, heap = self._heads, self._heap
        if self._unknown:
            self._look_up(execute, queue)
        while heap:
            priority, seq, key = heap[0]
            if heads.get(key) == (priority, seq):
                return seq, key
            heapq.heappop(heap)
        return None

    def _look_up(self, execute: Execute, queue: int) -> None:
        heads, heap = self._heads, self._heap
        for key in self._unknown:
            if self.is_saturated(key):
                heads.pop(key, None)
                continue
            head = execute(_HEAD, (queue, key)).fetchone()
            if head is None:
                heads.pop(key, None)
            elif heads.get(key) != head:
                heads[key] = head
                heapq.heappush(heap, (*head, key))
        self._unknown.clear()
        if len(heap) > 2 * len(heads) + _SLACK:
            heap[:] = [(*head, key) for key, head in heads.items()]
            heapq.heapify(heap)

    # -- what is stored ---------------------------------------------------------------------

    def restore(self, keyed: int, full_at: int, scale: int) -> None:
        """Go on from what was stored."""
        self._stored = (keyed, full_at, scale)
        if self.bucket is not None and scale:
            self.bucket.restore(full_at, scale)

    @property
    def is_marked(self) -> bool:
        """Whether every stored job of the queue has a key, if it is to have one."""
        return not self.keyed or (self._stored is not None and bool(self._stored[0]))

    def write(self, execute: Callable[[str, Iterable[Any]], object], queue: int) -> None:
        """Put what must survive into the tables, if it is not there."""
        bucket = self.bucket
        state = (
            (int(self.keyed), bucket.full_at, bucket.scale) if bucket else (int(self.keyed), 0, 0)
        )
        if state != self._stored:
            self._stored = state
            execute(
                "INSERT INTO flow_limits VALUES (?, ?, ?, ?) ON CONFLICT (queue) DO UPDATE SET"
                " keyed = excluded.keyed, full_at = excluded.full_at, scale = excluded.scale",
                (queue, *state),
            )

    # -- what is shown ----------------------------------------------------------------------

    def running(self) -> dict[str, int]:
        """Claimed jobs by key."""
        return {key: number for key, number in self._running.items() if key}

    def blocked(self, execute: Execute, queue: int) -> tuple[str, ...]:
        """Keys with pending jobs of which none may run."""
        full = [key for key in self._running if self.is_saturated(key)]
        return tuple(k for k in full if execute(_HEAD, (queue, k)).fetchone() is not None)
