"""What a limit per key holds back, and which job comes next all the same."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taquba.database import Execute

__all__ = ["Held"]

_FIRST = (-(2**63), 0)
"""A place before every job; their numbers begin with 1."""
_CHUNK = 64
"""Jobs that are looked at together, at least."""
_AT_ONCE = 1000
"""Jobs in vain, or keys, that are looked at without a pause: some milliseconds."""
_SLACK = 64
"""Outdated heads beyond which they are thrown away, if they are also the most."""

_PENDING = "SELECT priority, seq, flow_key FROM jobs WHERE queue = ? AND state = 0"
_OF_KEY = "SELECT priority, seq FROM jobs WHERE queue = ? AND flow_key = ? AND state = 0"
# In two halves, since SQLite would not find the place in an index by both of its numbers.
_SAME = " AND priority = ? AND seq > ? ORDER BY seq LIMIT ?"
_LATER = " AND priority > ? ORDER BY priority, seq LIMIT ?"
_PENDING_SAME, _PENDING_LATER = _PENDING + _SAME, _PENDING + _LATER
_OF_KEY_SAME, _OF_KEY_LATER = _OF_KEY + _SAME, _OF_KEY + _LATER
_LAST = (
    "SELECT priority, seq FROM jobs WHERE queue = ? AND state = 0"
    " ORDER BY priority DESC, seq DESC LIMIT 1"
)
_KEYS = """WITH RECURSIVE keys (key) AS (
    SELECT (SELECT min(flow_key) FROM jobs WHERE queue = ?1 AND state = 0 AND flow_key >= '')
    UNION ALL
    SELECT (SELECT min(flow_key) FROM jobs WHERE queue = ?1 AND state = 0 AND flow_key > key)
    FROM keys WHERE key IS NOT NULL LIMIT ?2
) SELECT key FROM keys WHERE key IS NOT NULL"""


class Held:
    """Jobs of one queue that were passed over, since their keys were at their limits.

    Nothing is known of a queue in which nothing was passed over: what comes next is what the
    claim order says. Otherwise it is known how far was looked in that order (`passed`), and
    which keys may have jobs pending up to there. What comes behind it is looked at when its turn
    comes; what is before it, never again in that order. Of each of those keys that may run, the
    first job is in a heap. It may be outdated, so it is looked at again before it is claimed;
    keys of which something changed are looked up before that.

    Every job has a key; the empty one is of those that have none, and is not limited.
    """

    __slots__ = (
        "_all_seen",
        "_heads",
        "_heap",
        "_many_keys",
        "_per_key",
        "_running",
        "_unknown",
        "more",
        "passed",
    )

    def __init__(self, per_key: int, running: dict[str, int]) -> None:
        """Args:
        per_key: How many jobs of a key may run.
        running: How many do; counted here and by the caller.
        """
        self._per_key = per_key
        self._running = running
        self.passed: tuple[int, int] | None = None
        """Priority and number of the last job that was looked at; None: none was passed over."""
        self.more = False
        """Whether the last `take` stopped before it had looked at everything."""
        self._all_seen = False  # nothing is pending behind `passed`
        self._many_keys = False
        self._heads: dict[str, tuple[int, int, str] | None] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._unknown: dict[str, tuple[int, int]] = {}  # with a place that the head comes after

    @property
    def is_over(self) -> bool:
        """Whether something was passed over, of which nothing is pending any more."""
        return self.passed is not None and not self._heads

    def forget(self) -> None:
        """Begin anew, with nothing passed over: that is always right."""
        self.passed = None
        self.more = self._all_seen = self._many_keys = False
        self._heads.clear()
        self._heap.clear()
        self._unknown.clear()

    # -- what changes -----------------------------------------------------------------------

    def pass_over(self, keys: list[str], passed: tuple[int, int], *, all_seen: bool) -> None:
        """The first jobs were passed over: those of these keys, up to there."""
        self._heads.update(dict.fromkeys(keys))
        self.passed = passed
        self._all_seen = all_seen

    def arrived(self, key: str, priority: int, seq: int) -> None:
        """A new job is pending. Need not be called while nothing was passed over."""
        if self.passed is None:
            return
        if (priority, seq) > self.passed:
            self._all_seen = False
        else:
            self.changed(key)

    def changed(self, key: str) -> None:
        """Something pending came or went under this key, anywhere."""
        if self.passed is not None:
            self._all_seen = False
            self._heads.setdefault(key, None)
            self._unknown[key] = _FIRST

    def freed(self, key: str) -> None:
        """This key was at its limit, and is not any more."""
        if key in self._heads:
            self._unknown[key] = _FIRST

    # -- what is next -----------------------------------------------------------------------

    def take(self, execute: Execute, queue: int, count: int) -> list[tuple[int, str]]:
        """The first jobs, by priority and age, that may run, with their keys.

        They are counted as running. Some may be gone. Perhaps fewer than there are: if there is
        none among them, `more` says whether to ask again.
        """
        taken: list[tuple[int, str]] = []
        self._take_heads(execute, queue, count, taken)
        blocked = 0
        while len(taken) < count and not self._unknown and not self._all_seen:
            if blocked >= _AT_ONCE:
                break
            blocked += self._look_on(execute, queue, count, taken)
            if blocked >= _CHUNK and len(taken) < count and not self._many_keys:
                self._list_keys(execute, queue)
                self._take_heads(execute, queue, count, taken)
        self.more = len(taken) < count and (bool(self._unknown) or not self._all_seen)
        return taken

    def _take_heads(
        self, execute: Execute, queue: int, count: int, taken: list[tuple[int, str]]
    ) -> None:
        """Take what comes first of all that was passed over, if its keys may run."""
        heads, heap, running = self._heads, self._heap, self._running
        room = _AT_ONCE
        while len(taken) < count:
            if self._unknown:
                room = self._look_up(execute, queue, room)
                if self._unknown:
                    return  # it may come before the others
            if not heap:
                return
            head = heapq.heappop(heap)
            priority, seq, key = head
            if heads.get(key) != head:
                continue  # outdated
            heads[key] = None
            number = running.get(key, 0)
            if key and number >= self._per_key:
                continue
            running[key] = number + 1
            taken.append((seq, key))
            if not key or number + 1 < self._per_key:
                self._unknown[key] = (priority, seq)

    def _look_on(
        self, execute: Execute, queue: int, count: int, taken: list[tuple[int, str]]
    ) -> int:
        """Take what comes behind all that was looked at; how much of it was passed over."""
        assert self.passed is not None
        running = self._running
        limit = min(max(count - len(taken), _CHUNK), _AT_ONCE)
        after = self.passed
        rows = execute(_PENDING_SAME, (queue, *after, limit)).fetchall()
        if len(rows) < limit:
            rows += execute(_PENDING_LATER, (queue, after[0], limit - len(rows))).fetchall()
        blocked = 0
        for priority, seq, key in rows:
            number = running.get(key, 0)
            self.passed = (priority, seq)
            if key and number >= self._per_key:
                self._heads.setdefault(key, None)
                blocked += 1
                continue
            running[key] = number + 1
            taken.append((seq, key))
            if len(taken) == count:
                return blocked
        self._all_seen = len(rows) < limit
        return blocked

    def _list_keys(self, execute: Execute, queue: int) -> None:
        """Pass everything over, if there are few keys: that is all that must be looked at then."""
        keys = execute(_KEYS, (queue, _AT_ONCE + 1)).fetchall()
        if len(keys) > _AT_ONCE:
            self._many_keys = True
            return
        assert self.passed is not None
        for (key,) in keys:
            if key not in self._heads:
                self._heads[key] = None
                self._unknown[key] = self.passed
        last: tuple[int, int] = execute(_LAST, (queue,)).fetchall()[0]
        self.passed = max(self.passed, last)
        self._all_seen = True

    def _look_up(self, execute: Execute, queue: int, most: int) -> int:
        """Look for the heads that are not known; how many more of them there is time for."""
        assert self.passed is not None
        heads, heap, running, unknown = self._heads, self._heap, self._running, self._unknown
        while unknown and most > 0:
            key, after = unknown.popitem()
            if key and running.get(key, 0) >= self._per_key:
                continue  # it is looked up when it is freed
            most -= 1
            first = execute(_OF_KEY_SAME, (queue, key, *after, 1)).fetchall() if after[1] else []
            first = first or execute(_OF_KEY_LATER, (queue, key, after[0], 1)).fetchall()
            if not first or first[0] > self.passed:
                heads.pop(key, None)
            elif heads.get(key) != (head := (*first[0], key)):
                heads[key] = head
                heapq.heappush(heap, head)
        if len(heap) > 2 * len(heads) + _SLACK:
            heap[:] = [head for head in heads.values() if head is not None]
            heapq.heapify(heap)
        return most
