"""Work in steps that are short, however fast the machine is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taquba.clock import Clock

__all__ = ["Pace"]

_STEP = 0.002
"""Seconds that a step may take: others wait meanwhile."""
_LEAST = 8


class Pace:
    """How much to do in each step: ``with pace as amount``, which measures it."""

    def __init__(self, clock: Clock, most: int) -> None:
        self._clock = clock
        self._most = most
        self._amount = float(most)
        self._started = 0.0

    def __enter__(self) -> int:
        self._started = self._clock.monotonic()
        return int(self._amount)

    def __exit__(self, *_: object) -> None:
        taken = self._clock.monotonic() - self._started
        least = min(_LEAST, self._most)
        # At most twice as much as before, since a single step may have been lucky.
        share = _STEP / taken if taken > _STEP / 2 else 2.0
        self._amount = max(float(least), min(float(self._most), self._amount * share))
