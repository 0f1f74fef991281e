"""Sealed entries on their way to the store: several at a time, acknowledged in order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from taquba.clock import Clock
from taquba.errors import TaqubaError
from taquba.journal._config import JournalConfig
from taquba.journal._position import entry_key
from taquba.journal._settle import create_or_read, lost_to
from taquba.journal._supervisor import Supervisor
from taquba.objectstore import ObjectStore

__all__ = ["Flight", "Pipeline"]

logger = logging.getLogger("taquba.journal")


@dataclass(slots=True, eq=False)
class Flight:
    """One sealed entry on its way."""

    seq: int
    data: bytes
    ticket: int
    sealed_at: float
    stored: bool = False
    failing: bool = False


class Pipeline:
    """Stores entries; never more than a window beyond the first that is not stored.

    That bound is what makes a takeover safe: all that a replaced writer can still store
    lies in the window that the epoch entry skips.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock: Clock,
        config: JournalConfig,
        window: int,
        tasks: Supervisor,
        acknowledge: Callable[[int, int], None],
        progress: Callable[[], None],
        fail: Callable[[TaqubaError], None],
    ) -> None:
        """Args:
        store: Where entries go.
        clock: Time between repetitions.
        config: Delays of repetitions.
        window: Entries in flight at most.
        tasks: Where the writes run.
        acknowledge: Called with seq and ticket of each entry, in order, once it is stored.
        progress: Called after one or more acknowledgements.
        fail: Called when another writer has taken over.
        """
        self._store = store
        self._clock = clock
        self._config = config
        self._window = window
        self._tasks = tasks
        self._acknowledge = acknowledge
        self._progress = progress
        self._fail = fail
        self._flights: deque[Flight] = deque()
        self._sent = 0
        self._failing = 0
        self._outage_since = 0.0
        self.trouble: Exception | None = None
        self._halted = False
        self.unacknowledged_bytes = 0
        self.puts = 0
        self.failed_puts = 0
        self.entries = 0
        self.bytes = 0
        self.on_stored: Callable[[float, int], None] | None = None
        """Told how long an entry took to be stored, in seconds, and of its size."""
        self.on_retry: Callable[[], None] | None = None
        """Told when storing an entry is tried again."""

    @property
    def outstanding(self) -> int:
        """Entries that are not acknowledged, sent or not."""
        return len(self._flights)

    @property
    def in_flight(self) -> int:
        """Entries that are sent and not acknowledged."""
        return self._sent

    def push(self, seq: int, data: bytes, ticket: int) -> None:
        """Store an entry; `ticket` is done with it."""
        self._flights.append(Flight(seq, data, ticket, self._clock.monotonic()))
        self.unacknowledged_bytes += len(data)
        self._send()

    def extend_last(self, ticket: int) -> None:
        """Let `ticket`, too, be done with the last entry pushed."""
        self._flights[-1].ticket = ticket

    def halt(self) -> None:
        """Acknowledge nothing any more."""
        self._halted = True

    def _send(self) -> None:
        while self._sent < min(self._window, len(self._flights)):
            flight = self._flights[self._sent]
            self._sent += 1
            self._tasks.start(self._run(flight), name=f"taquba journal entry {flight.seq}")

    async def _run(self, flight: Flight) -> None:
        key = entry_key(flight.seq)
        attempt = 0
        while True:
            self.puts += 1
            try:
                found = await create_or_read(self._store, key, flight.data)
            except Exception as error:
                # Whatever it is: the commits were accepted, so giving up is not an option.
                self._note_failure(flight, error)
                bound = self._config.first_retry_delay * 2.0 ** min(attempt, 60)
                attempt += 1
                bound = min(bound, self._config.max_retry_delay)
                await self._clock.sleep(self._clock.random() * bound)
                continue
            self._note_answer(flight)
            if found is None:
                self._on_stored(flight)
            elif not self._halted:
                self._fail(lost_to(flight.seq, found))
            return

    def _on_stored(self, flight: Flight) -> None:
        flight.stored = True
        moved = False
        while not self._halted and self._flights and self._flights[0].stored:
            moved = True
            first = self._flights.popleft()
            self._sent -= 1
            self.unacknowledged_bytes -= len(first.data)
            self.entries += 1
            self.bytes += len(first.data)
            self._acknowledge(first.seq, first.ticket)
            if self.on_stored is not None:
                self.on_stored(self._clock.monotonic() - first.sealed_at, len(first.data))
        if moved:
            self._send()
            self._progress()

    def _note_failure(self, flight: Flight, error: Exception) -> None:
        self.failed_puts += 1
        if self.on_retry is not None:
            self.on_retry()
        is_news = type(self.trouble) is not type(error)
        self.trouble = error
        if not flight.failing:
            flight.failing = True
            self._failing += 1
            if self._failing == 1:
                self._outage_since = self._clock.monotonic()
        if is_news:  # and not again with each attempt
            logger.warning(
                "journal entry %d cannot be stored, trying again until it is: %r", flight.seq, error
            )

    def _note_answer(self, flight: Flight) -> None:
        if not flight.failing:
            return
        flight.failing = False
        self._failing -= 1
        if self._failing == 0:
            self.trouble = None
            seconds = self._clock.monotonic() - self._outage_since
            logger.info("journal entries are stored again, after %.1f s", seconds)
