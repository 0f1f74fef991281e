"""Measures an open queue, for whoever asked for that."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from taquba import metrics as m
from taquba.clock import Clock
from taquba.queue._records import JobState

if TYPE_CHECKING:
    from taquba.queue._core import Core, Lane

__all__ = ["Meter", "Observer"]

logger = logging.getLogger("taquba.queue")

_PENDING, _SCHEDULED, _CLAIMED, _DONE, _DEAD = (int(state) for state in JobState)
_NOWHERE = -1
_MEANING: dict[tuple[int, int], tuple[m.Instrument, ...]] = {
    (_NOWHERE, _PENDING): (m.ENQUEUED,),
    (_NOWHERE, _SCHEDULED): (m.ENQUEUED,),
    (_NOWHERE, _CLAIMED): (m.ENQUEUED, m.CLAIMED),
    (_PENDING, _CLAIMED): (m.CLAIMED,),
    (_SCHEDULED, _CLAIMED): (m.CLAIMED,),
    (_CLAIMED, _DONE): (m.COMPLETED,),
    (_CLAIMED, _DEAD): (m.DEAD_LETTERED,),
    (_DEAD, _PENDING): (m.REQUEUED,),
    (_PENDING, _NOWHERE): (m.REMOVED,),
    (_SCHEDULED, _NOWHERE): (m.REMOVED,),
    (_CLAIMED, _NOWHERE): (m.REMOVED,),
}
"""What each move of a job counts as. Ways back from a claim are noted where they are made."""

_GAUGES = (
    (m.PENDING, _PENDING),
    (m.SCHEDULED, _SCHEDULED),
    (m.CLAIMED_NOW, _CLAIMED),
    (m.DEAD, _DEAD),
)
_NO_LABELS: dict[str, str] = {}
_PATIENCE = 1.0
"""Seconds that another thread waits for the event loop to read the gauges."""


class Meter:
    """Hands measurements on. Never raises: measuring must not stop what is measured."""

    def __init__(self, metrics: m.Metrics) -> None:
        self._metrics = metrics
        self._failed = False

    def add(
        self, instrument: m.Instrument, amount: float, labels: dict[str, str] = _NO_LABELS
    ) -> None:
        try:
            self._metrics.add(instrument, amount, labels)
        except Exception:
            self._note()

    def record(
        self, instrument: m.Instrument, value: float, labels: dict[str, str] = _NO_LABELS
    ) -> None:
        try:
            self._metrics.record(instrument, value, labels)
        except Exception:
            self._note()

    def set(self, measurement: m.Measurement) -> None:
        try:
            self._metrics.set(*measurement)
        except Exception:
            self._note()

    def observe(self, sample: m.Sample) -> None:
        self._metrics.observe(sample)

    def forget(self, sample: m.Sample) -> None:
        try:
            self._metrics.forget(sample)
        except Exception:
            self._note()

    def _note(self) -> None:
        if not self._failed:
            self._failed = True
            logger.exception("metrics failed; further failures are not logged")

    # -- of the layers below ----------------------------------------------------------------

    def requested(self, operation: str, sent: int, received: int, succeeded: bool) -> None:
        self.add(
            m.STORE_REQUESTS,
            1,
            {"operation": operation, "result": "ok" if succeeded else "error"},
        )
        if sent:
            self.add(m.STORE_BYTES_WRITTEN, sent)
        if received:
            self.add(m.STORE_BYTES_READ, received)

    def retried(self) -> None:
        self.add(m.STORE_RETRIES, 1)

    def stored(self, seconds: float, size: int) -> None:
        self.record(m.COMMIT_DURATION, seconds)
        self.add(m.COMMIT_BYTES, size)

    def checkpointed(self, seconds: float, size: int) -> None:
        self.record(m.CHECKPOINT_DURATION, seconds)
        self.add(m.CHECKPOINT_BYTES, size)


class Observer:
    """Counts what an open queue commits, and reads its gauges when somebody asks."""

    def __init__(self, core: Core, meter: Meter, interval: float | None) -> None:
        self._core = core
        self.meter = meter
        self._clock: Clock = core.clock
        self._interval = interval
        self._labels: dict[int, dict[str, str]] = {}
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._task: asyncio.Task[None] | None = None
        self._last: list[m.Measurement] = []
        self._closed = False

    def start(self) -> None:
        """Measure from now on; what was found at opening does not count."""
        core = self._core
        core.observer = self
        core.leases.on_renewed = self._renewed
        core.database.watch(
            stored=self.meter.stored,
            retried=self.meter.retried,
            checkpointed=self.meter.checkpointed,
        )
        self.meter.observe(self.sample)
        if self._interval is not None:
            self._task = asyncio.ensure_future(self._run(self._interval))

    async def stop(self) -> None:
        """Give gauges no more; counters go on until the queue is closed."""
        self._closed = True
        self.meter.forget(self.sample)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # -- counting ---------------------------------------------------------------------------

    def committed(self, moves: list[tuple[Lane, int, int]]) -> None:
        """A transaction was applied, which moved these jobs."""
        for (lane, left, entered), times in Counter(moves).items():
            for instrument in _MEANING.get((left, entered), ()):
                self.count(instrument, lane.number, times)

    def count(self, instrument: m.Instrument, queue_number: int, times: int = 1) -> None:
        self.meter.add(instrument, times, self._labels_of(queue_number))

    def began(self) -> float:
        """When something began that `took` tells the duration of."""
        return self._clock.monotonic()

    def took(self, instrument: m.Instrument, queue: str, began: float) -> None:
        labels = self._labels_of(self._core.lane(queue).number)
        self.meter.record(instrument, self._clock.monotonic() - began, labels)

    def _renewed(self, queue_number: int) -> None:
        self.count(m.LEASE_RENEWALS, queue_number)

    def _labels_of(self, queue_number: int) -> dict[str, str]:
        labels = self._labels.get(queue_number)
        if labels is None:
            labels = {"queue": self._core.lanes_by_number[queue_number].name}
            self._labels[queue_number] = labels
        return labels

    # -- gauges -----------------------------------------------------------------------------

    async def _run(self, interval: float) -> None:
        while True:
            due = self._clock.monotonic() + interval
            await self._clock.sleep(interval)
            self.meter.record(m.LOOP_LAG, max(0.0, self._clock.monotonic() - due))
            try:
                for measurement in self._read():
                    self.meter.set(measurement)
            except Exception as error:
                logger.debug("the gauges cannot be read: %s", error)

    def sample(self) -> Iterable[m.Measurement]:
        """The gauges as they are. In another thread: asks the event loop, for a second at most,
        and gives what was known last if it does not answer.
        """
        if self._closed:
            return []
        if threading.get_ident() == self._thread:
            return self._read()
        answer: Future[None] = Future()
        asked = self._clock.monotonic()

        def read() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    self.meter.record(m.LOOP_LAG, max(0.0, self._clock.monotonic() - asked))
                    self._read()
                finally:
                    answer.set_result(None)

        try:
            self._loop.call_soon_threadsafe(read)
            answer.result(_PATIENCE)
        except (RuntimeError, TimeoutError):  # the loop is closed, or blocked
            answer.cancel()
        return [] if self._closed else self._last

    def _read(self) -> list[m.Measurement]:
        core = self._core
        if self._closed or core.database.stopped is not None:
            return []
        found: list[m.Measurement] = []
        now_ms = self._clock.now_ms()
        for lane in list(core.lanes.values()):
            labels = self._labels_of(lane.number)
            for instrument, state in _GAUGES:
                found.append(m.Measurement(instrument, lane.counts[state], labels))
            age = 0.0
            if lane.counts[_PENDING]:
                row = core.database.execute(
                    "SELECT enqueued_at FROM jobs WHERE queue = ? AND state = 0"
                    " ORDER BY priority, seq LIMIT 1",
                    (lane.number,),
                ).fetchone()
                age = 0.0 if row is None else max(0, now_ms - row[0]) / 1000
            found.append(m.Measurement(m.OLDEST_PENDING_AGE, age, labels))
        self._last = found
        return found
