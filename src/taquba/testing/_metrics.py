"""Metrics in memory, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from taquba.metrics import Instrument, Sample

__all__ = ["InMemoryMetrics"]

_Key = tuple[str, tuple[tuple[str, str], ...]]


def _key(name: str, labels: Mapping[str, str]) -> _Key:
    return name, tuple(sorted(labels.items()))


@final
class InMemoryMetrics:
    """Metrics that a test can look at, for `Queue.open(metrics=…)`.

    Example:
        >>> import asyncio
        >>> from taquba import Queue
        >>> async def main() -> float:
        ...     metrics = InMemoryMetrics()
        ...     async with Queue.open("memory://", metrics=metrics) as queue:
        ...         await queue.enqueue("mail", b"hello")
        ...     return metrics.total("taquba_jobs_enqueued_total", queue="mail")
        >>> asyncio.run(main())
        1
    """

    def __init__(self) -> None:
        self.counters: dict[_Key, float] = {}
        """By name and labels."""
        self.histograms: dict[_Key, list[float]] = {}
        """Each value that was recorded, by name and labels."""
        self.gauges: dict[_Key, float] = {}
        """What was told every `metrics_interval`, by name and labels."""
        self._samples: list[Sample] = []

    def add(self, instrument: Instrument, amount: float, labels: Mapping[str, str]) -> None:
        """See `Metrics.add`."""
        key = _key(instrument.name, labels)
        self.counters[key] = self.counters.get(key, 0) + amount

    def record(self, instrument: Instrument, value: float, labels: Mapping[str, str]) -> None:
        """See `Metrics.record`."""
        self.histograms.setdefault(_key(instrument.name, labels), []).append(value)

    def set(self, instrument: Instrument, value: float, labels: Mapping[str, str]) -> None:
        """See `Metrics.set`."""
        self.gauges[_key(instrument.name, labels)] = value

    def observe(self, sample: Sample) -> None:
        """See `Metrics.observe`."""
        self._samples.append(sample)

    def forget(self, sample: Sample) -> None:
        """See `Metrics.forget`."""
        self._samples.remove(sample)

    def total(self, name: str, **labels: str) -> float:
        """Sum of a counter over everything that has these labels."""
        wanted = labels.items()
        return sum(
            value
            for (found, has), value in self.counters.items()
            if found == name and wanted <= dict(has).items()
        )

    def values(self, name: str, **labels: str) -> list[float]:
        """What was recorded of a histogram with exactly these labels, in order."""
        return self.histograms.get(_key(name, labels), [])

    def gauge(self, name: str, **labels: str) -> float | None:
        """A gauge as it is now, in whichever queue is open; None if there is none."""
        for sample in self._samples:
            for measurement in sample():
                if measurement.instrument.name == name and measurement.labels == labels:
                    return measurement.value
        return None
