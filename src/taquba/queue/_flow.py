"""What limits the jobs of one queue that run at a time, and how many are started."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Any

from taquba.queue._rate import TokenBucket

if TYPE_CHECKING:
    from taquba.database import Execute
    from taquba.queue._config import QueueConfig

__all__ = ["Flow"]

_SLACK = 64
"""Outdated heads beyond which they are thrown away, if they are also the most."""

_HEADS = (
    "SELECT priority, seq FROM jobs WHERE queue = ? AND flow_key = ? AND state = 0"
    " ORDER BY priority, seq LIMIT 2"
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
    before it is claimed, and keys of which something changed are looked up before that. A key
    that is neither in the heap, nor to be looked up, nor at its limit has nothing pending.

    In such a queue every job has a key; the empty one is of those that have none, and is
    not limited.
    """

    __slots__ = (
        "_claimed",
        "_heads",
        "_heap",
        "_loaded",
        "_only",
        "_per_key",
        "_running",
        "_stored",
        "_unknown",
        "bucket",
        "keyed",
        "max_running",
        "restart",
    )

    def __init__(self, config: QueueConfig) -> None:
        self.keyed = config.concurrency_per_key is not None
        self.max_running = config.max_running
        self.bucket = None if config.rate is None else TokenBucket(config.rate)
        self._per_key = config.concurrency_per_key or 0
        self.restart = self.started  # bound once: it is noted for every end of a claim
        self._claimed: dict[int, str] = {}
        self._running: dict[str, int] = {}
        self._heads: dict[str, tuple[int, int, str]] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._unknown: dict[str, None] = {}
        self._only: set[str] = set()  # keys whose head is all that they have
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
        if self.keyed:
            self._unknown[key] = None

    def ended(self, seq: int) -> str | None:
        """A claim ended; the key of its job, if it was counted."""
        key = self._claimed.pop(seq, None)
        if key is None:
            return None  # a claim of an earlier process
        before = self._running[key]
        if before > 1:
            self._running[key] = before - 1
        else:
            del self._running[key]
        if key and before == self._per_key:
            self._unknown[key] = None  # it was at its limit, so its head was not kept
        return key

    def arrived(self, key: str | None, priority: int, seq: int) -> None:
        """A new job is pending."""
        if not self.keyed:
            return
        key = key or ""
        if key in self._unknown or not self._loaded:
            self._unknown[key] = None
            return
        known = self._heads.get(key)
        if known is None:
            if key and key in self._running and self.is_saturated(key):
                return
            self._only.add(key)
        else:
            self._only.discard(key)
            if known < (priority, seq, key):
                return
        head = self._heads[key] = (priority, seq, key)
        heapq.heappush(self._heap, head)

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

    @property
    def tokens(self) -> int | None:
        """What `put_back` needs to give back the tokens that are taken after this."""
        return None if self.bucket is None else self.bucket.full_at

    def take_tokens(self, number: int, now_ms: int) -> None:
        """Take tokens, if there is a rate."""
        if self.bucket is not None and number:
            self.bucket.take(number, now_ms)

    # -- what is next -----------------------------------------------------------------------

    def take_next(self, execute: Execute, queue: int, count: int) -> list[tuple[int, str]]:
        """The first jobs, by priority and age, whose keys are not at their limits; with the keys.

        Perhaps fewer than there are: ask again when these are claimed. Some may be gone.
        `start_taken` must follow, or `put_back`.
        """
        if not self._loaded:
            self._unknown.update((key, None) for (key,) in execute(_KEYS, (queue,)).fetchall())
            self._loaded = True
        if self._unknown:
            self._look_up(execute, queue)
        heads, heap, only = self._heads, self._heap, self._only
        taken: list[tuple[int, str]] = []
        while heap and len(taken) < count:
            head = heapq.heappop(heap)
            _, seq, key = head
            if heads.get(key) != head:
                continue  # outdated
            taken.append((seq, key))
            del heads[key]
            if key not in only:
                self._unknown[key] = None
                break  # what comes after it may come before the others
            only.remove(key)
        return taken

    def start_taken(
        self, taken: list[tuple[int, str]], found: Container[int] | None = None
    ) -> None:
        """Those that were found (None: all of them) are claimed now."""
        claimed, running = self._claimed, self._running
        for seq, key in taken:
            if found is None or seq in found:
                claimed[seq] = key
                running[key] = running.get(key, 0) + 1
            else:
                self._unknown[key] = None

    def put_back(self, taken: list[tuple[int, str]], tokens: int | None) -> None:
        """That is rolled back: whatever was pending is so again, and the tokens are there."""
        if self.bucket is not None and tokens is not None:
            self.bucket.full_at = tokens
        for seq, key in taken:
            self.ended(seq)
            self.changed(key)

    def _look_up(self, execute: Execute, queue: int) -> None:
        heads, heap, only, running = self._heads, self._heap, self._only, self._running
        for key in self._unknown:
            full = key in running and self.is_saturated(key)
            first = () if full else execute(_HEADS, (queue, key)).fetchall()
            if len(first) == 1:
                only.add(key)
            else:
                only.discard(key)
            if not first:
                heads.pop(key, None)
            elif heads.get(key) != (head := (*first[0], key)):
                heads[key] = head
                heapq.heappush(heap, head)
        self._unknown.clear()
        if len(heap) > 2 * len(heads) + _SLACK:
            heap[:] = heads.values()
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
        return tuple(k for k in full if execute(_HEADS, (queue, k)).fetchone() is not None)
