"""What limits the jobs of one queue that run at a time, and how many are started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from taquba.queue._columns import AS_CLAIMED, FLOW_KEY, NEXT_CLAIMED, PRIORITY, SEQ
from taquba.queue._held import Held
from taquba.queue._rate import TokenBucket

if TYPE_CHECKING:
    from taquba.database import Execute
    from taquba.queue._config import QueueConfig

__all__ = ["Flow"]

_IF_PENDING = f"{AS_CLAIMED} seq = ? AND state = 0"
_THOSE_PENDING = f"{AS_CLAIMED} seq IN (SELECT value FROM json_each(?)) AND state = 0"
_PENDING_OF_KEY = "SELECT 1 FROM jobs WHERE queue = ? AND flow_key = ? AND state = 0 LIMIT 1"

Row = tuple[Any, ...]


class Flow:
    """The limits of one queue, and how far each is used up.

    All claims are void when a store is opened, so what runs is known from memory alone.
    """

    __slots__ = (
        "_claimed",
        "_per_key",
        "_running",
        "_stored",
        "bucket",
        "held",
        "max_running",
        "more",
        "restart",
    )

    def __init__(self, config: QueueConfig) -> None:
        self.max_running = config.max_running
        self.bucket = None if config.rate is None else TokenBucket(config.rate)
        self.restart = self.started  # bound once: it is noted for every end of a claim
        self._per_key = config.concurrency_per_key or 0
        self._claimed: dict[int, str] = {}
        self._running: dict[str, int] = {}
        self.held = Held(self._per_key, self._running) if self._per_key else None
        """What the limit per key holds back; None: there is no such limit."""
        self.more = False
        """Whether the last claim stopped before it had looked at everything."""
        self._stored: tuple[int, int, int] | None = None

    @classmethod
    def of(cls, config: QueueConfig) -> Flow | None:
        """The limits of a queue; None: it has none, and nothing is to be done for it."""
        limits = (config.concurrency_per_key, config.max_running, config.rate)
        return None if all(limit is None for limit in limits) else cls(config)

    @property
    def keyed(self) -> bool:
        """Whether there is a limit per key, so that every job must have one."""
        return self.held is not None

    # -- what runs --------------------------------------------------------------------------

    def started(self, seq: int, key: str) -> None:
        """A job was claimed (or its end taken back)."""
        self._claimed[seq] = key
        self._running[key] = self._running.get(key, 0) + 1

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
        if before == self._per_key and key and self.held is not None:
            self.held.freed(key)
        return key

    def changed(self, key: str | None) -> None:
        """Something pending came or went under this key."""
        if self.held is not None:
            self.held.changed(key or "")

    def allowed(self, count: int, now_ms: int) -> int:
        """How many of so many jobs may start, whatever their keys are."""
        if self.max_running is not None:
            count = min(count, self.max_running - len(self._claimed))
        if self.bucket is not None:
            count = min(count, self.bucket.available(now_ms))
        return max(count, 0)

    def is_saturated(self, key: str) -> bool:
        """Whether as many jobs of this key run as may."""
        return bool(self._per_key and key) and self._running.get(key, 0) >= self._per_key

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

    def start_next(
        self, execute: Execute, queue: int, now_ms: int, count: int, started: list[Row]
    ) -> None:
        """Start the first jobs, by priority and age, that may run: their rows, to be claimed.

        Fewer than there are, if jobs that may not run are in the way for long: then `more` is set.
        """
        held = self.held
        if held is not None and held.is_over:
            held.forget()
        if held is None or held.passed is None:
            rows = execute(NEXT_CLAIMED, (now_ms, queue, count)).fetchall()
            self._start_free(rows, started, all_seen=len(rows) < count)
        if held is None or held.passed is None:
            return
        while len(started) < count:
            taken = held.take(execute, queue, count - len(started))
            if not taken:
                self.more = held.more
                return
            self._start_taken(execute, now_ms, taken, started)

    def _start_free(self, rows: list[Row], started: list[Row], *, all_seen: bool) -> None:
        """Start those of the first pending jobs that may run; the others are passed over."""
        claimed, running = self._claimed, self._running
        per_key = self._per_key or float("inf")
        full: list[str] = []
        for row in rows:
            key = row[FLOW_KEY] or ""
            number = running.get(key, 0)
            if number >= per_key and key:
                full.append(key)
            else:
                running[key] = number + 1
                claimed[row[SEQ]] = key
                started.append(row)
        if full and self.held is not None:
            self.held.pass_over(full, (rows[-1][PRIORITY], rows[-1][SEQ]), all_seen=all_seen)

    def _start_taken(
        self, execute: Execute, now_ms: int, taken: list[tuple[int, str]], started: list[Row]
    ) -> None:
        """Start those that are still there."""
        if len(taken) == 1:
            rows = execute(_IF_PENDING, (now_ms, taken[0][0])).fetchall()
        else:
            numbers = f"[{','.join([str(seq) for seq, _ in taken])}]"
            rows = execute(_THOSE_PENDING, (now_ms, numbers)).fetchall()
        found = {row[SEQ]: row for row in rows}
        for seq, key in taken:
            row = found.get(seq)
            if row is not None:
                self._claimed[seq] = key
                started.append(row)
        if len(rows) < len(taken):
            self._count_anew()

    def put_back(self, rows: Sequence[Row], tokens: int | None) -> None:
        """That is rolled back: whatever was pending is so again, and the tokens are there."""
        if self.bucket is not None and tokens is not None:
            self.bucket.full_at = tokens
        for row in rows:
            self._claimed.pop(row[SEQ], None)
        self._count_anew()
        if self.held is not None:
            self.held.forget()

    def _count_anew(self) -> None:
        self._running.clear()
        self._running.update(Counter(self._claimed.values()))

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
        return tuple(k for k in full if execute(_PENDING_OF_KEY, (queue, k)).fetchall())
