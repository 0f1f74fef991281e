"""What all parts of one open queue share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from taquba.ids import IdFactory
from taquba.queue._completions import Completions
from taquba.queue._config import QueueConfig, milliseconds
from taquba.queue._flow import Flow
from taquba.queue._leases import LeaseRegistry
from taquba.queue._records import JobState

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.database import Database
    from taquba.errors import TaqubaError
    from taquba.queue._observer import Observer
    from taquba.queue._payload_objects import PayloadReader
    from taquba.queue._payloads import Payloads
    from taquba.queue._records import Job
    from taquba.queue._transaction import QueueTransaction
    from taquba.queue._waiting import WaitingClaims
    from taquba.tracing import Tracing

__all__ = ["Core", "Lane", "OwnState", "logger"]

logger = logging.getLogger("taquba.queue")

JobHook = Callable[["QueueTransaction", "Job"], None]
"""Told of a job, in the transaction in which something became of it."""


class Lane:
    """One named queue: its number in the tables, configuration, counters and listeners."""

    __slots__ = (
        "abandoned_hook",
        "config",
        "counts",
        "dead_letter_hook",
        "dirty",
        "flow",
        "keep_ms",
        "listeners",
        "name",
        "number",
        "retry",
    )

    def __init__(self, number: int, name: str, config: QueueConfig) -> None:
        self.number = number
        self.name = name
        self.config = config
        self.retry = config.retry_policy()
        self.keep_ms: dict[int, float] = {
            JobState.DONE: milliseconds(config.keep_done),
            JobState.DEAD: milliseconds(config.keep_dead),
        }
        """How long the records of ended jobs are kept."""
        self.flow = Flow.of(config)
        """What limits the claims; None: nothing does."""
        self.counts = [0] * len(JobState)
        self.dirty = False
        self.listeners: list[Callable[[], None]] = []
        self.dead_letter_hook: JobHook | None = None
        self.abandoned_hook: JobHook | None = None
        """Told of jobs whose cancellation was requested, and whose claims ended unsettled, before
        they are removed.
        """


class Core:
    """The shared state of one open queue: database, clock, lanes, leases.

    Everything here changes only in synchronous code, right after the database
    transaction that it describes has been applied, so it never disagrees with the tables.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        default_config: QueueConfig,
        configs: Mapping[str, QueueConfig],
        payloads: Payloads,
    ) -> None:
        self.database = database
        self.payloads = payloads
        self.clock = clock
        self.ids = IdFactory(clock)
        self.leases = LeaseRegistry(clock)
        self.default_config = default_config
        self.configs = dict(configs)
        self.lanes: dict[str, Lane] = {}
        self.lanes_by_number: dict[int, Lane] = {}
        self.capped = any(x.max_depth is not None for x in (default_config, *configs.values()))
        """Whether some queue has a `max_depth`."""
        self._dirty: list[Lane] = []
        self.next_seq = 1
        self.on_scheduled: Callable[[int], None] = lambda run_at_ms: None
        """Told the due time of every job that becomes scheduled."""
        self.on_dry: Callable[[Lane, int], None] = lambda lane, at_ms: None
        """Told when to ask a queue again, whose limits hold back jobs now: there will be a token
        then, or somebody else's turn will have been.
        """
        self.on_kept: Callable[[float], None] = lambda due_ms: None
        """Told when a finished or dead record that is kept must be removed."""
        self.on_stop: list[Callable[[TaqubaError], None]] = []
        """Told when nothing can be claimed or settled here any more, and why."""
        self.completions = Completions()
        self.watched = self.completions.watched
        """Jobs for whose end somebody waits."""
        self.waiting: dict[int, WaitingClaims] = {}
        """Calls that wait for jobs, by the numbers of their queues."""
        self.observer: Observer | None = None
        """Who counts what is committed, if somebody does."""
        self.tracing: Tracing | None = None
        self._load()
        database.before_seal(self._write_counters)
        database.on_failure(self.stopped)

    def stopped(self, error: TaqubaError) -> None:
        """The queue was closed, or stopped by itself."""
        self.leases.end_all()
        self.completions.stop(error)
        for callback in list(self.on_stop):
            callback(error)

    def lane(self, name: str) -> Lane:
        """The queue of this (checked) name; it comes into being when it is first used."""
        lane = self.lanes.get(name)
        if lane is None:
            number = max(self.lanes_by_number, default=0) + 1
            lane = self._add(number, name)
        return lane

    def _add(self, number: int, name: str) -> Lane:
        config = self.configs.get(name) or self.configs.get(name.partition("@")[0])
        lane = Lane(number, name, config or self.default_config)
        self.lanes[name] = lane
        self.lanes_by_number[number] = lane
        return lane

    def take_seq(self) -> int:
        seq = self.next_seq
        self.next_seq = seq + 1
        return seq

    def moved(self, lane: Lane, left: int, entered: int) -> None:
        """Count one job that went from a state to another; -1 stands for 'none'."""
        self.moved_all([(lane, left, entered)])

    def moved_all(self, moves: Iterable[tuple[Lane, int, int]]) -> None:
        """Count jobs that moved: of each its lane, the state that it left, and its new one."""
        for lane, left, entered in moves:
            counts = lane.counts
            if left >= 0:
                counts[left] -= 1
            if entered >= 0:
                counts[entered] += 1
            if not lane.dirty:
                lane.dirty = True
                self._dirty.append(lane)

    def _load(self) -> None:
        rows = self.database.execute(
            "SELECT number, name, pending, scheduled, claimed, done, dead FROM queues"
        )
        for number, name, *counts in rows.fetchall():
            self._add(number, name).counts[:] = counts
        for number, *stored in self.database.execute("SELECT * FROM flow_limits").fetchall():
            lane = self.lanes_by_number.get(number)
            if lane is not None and lane.flow is not None:
                lane.flow.restore(*stored)
        (last,) = self.database.execute("SELECT max(seq) FROM jobs").fetchone()
        self.next_seq = (last or 0) + 1

    def _write_counters(self) -> None:
        """Put what was counted since the last seal into the tables, one row a queue."""
        for lane in self._dirty:
            lane.dirty = False
            self.database.execute(
                "INSERT INTO queues VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (number) DO UPDATE SET"
                " pending = excluded.pending, scheduled = excluded.scheduled,"
                " claimed = excluded.claimed, done = excluded.done, dead = excluded.dead",
                (lane.number, lane.name, *lane.counts),
            )
            if lane.flow is not None:
                lane.flow.write(self.database.execute, lane.number)
        self._dirty.clear()


class OwnState:
    """The owner's state as a source to read from: the tables, and counters ahead of them."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.payloads: PayloadReader = core.payloads

    async def enter(self) -> None:
        pass

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._core.database.execute(sql, parameters).fetchall()

    def select(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._core.database.select(sql, parameters)

    def queue_name(self, number: int) -> str:
        return self._core.lanes_by_number[number].name

    def queue_number(self, name: str) -> int | None:
        lane = self._core.lanes.get(name)
        return None if lane is None else lane.number

    def queue_names(self) -> list[str]:
        # A lane alone does not show that there ever was a job: asking for one makes it.
        stored = {name for (name,) in self.rows("SELECT name FROM queues")}
        return [*stored.union(lane.name for lane in self._core.lanes.values() if lane.dirty)]

    def counts(self, name: str) -> Sequence[int]:
        lane = self._core.lanes.get(name)
        return () if lane is None else lane.counts

    def now_ms(self) -> int:
        return self._core.clock.now_ms()

    async def catch_up(self) -> None:
        pass

    async def leave(self) -> None:
        await self._core.database.barrier()
