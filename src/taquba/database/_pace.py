"""Work that is done a little at a time, between what others do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taquba.clock import Clock

__all__ = ["Pace"]

_SLICE = 0.001
"""Seconds that doing one portion may take, so that the time is looked at often enough."""
_SHARE = 0.15
"""Of the time that passes, this much goes into the work."""
_LEAST = 0.002
_MOST = 0.010
"""Seconds that one turn may take: others wait meanwhile."""
_PATIENCE = 32
"""Turns may take this many times as long if the work becomes more faster than it is done."""
_SMALLEST = 8


class Pace:
    """Says how much to do in each turn, from what the clock tells of the turns before.

    A turn is longer where turns are rarer, so that the work gets on beside whoever holds the
    event loop for long. On a clock that stands still, each turn does a single portion.
    """

    def __init__(self, clock: Clock, portion: int) -> None:
        """Do at most `portion` at a time."""
        self._clock = clock
        self._largest = portion
        self._portion = float(portion)
        self._ended = clock.monotonic()
        self._left: int | None = None
        self._boost = 1

    def turn(self, work: Callable[[int], bool], left: Callable[[], int]) -> bool:
        """Do `work` in portions while there is time; whether it said that it is done.

        `left` tells how much there is to do.
        """
        begun = before = self._clock.monotonic()
        budget = min(max(_LEAST, _SHARE * (begun - self._ended)), _MOST * self._boost)
        while True:
            if work(int(self._portion)):
                return True
            now = self._clock.monotonic()
            taken, before = now - before, now
            self._adapt(taken)
            if taken <= 0 or now - begun + taken > budget:
                break
        self._ended = now
        remaining = left()
        if self._left is not None and remaining >= self._left:
            self._boost = min(self._boost * 2, _PATIENCE)
        self._left = remaining
        return False

    def _adapt(self, taken: float) -> None:
        # At most twice as much as before, since a single portion may have been lucky.
        share = _SLICE / taken if taken > _SLICE / 2 else 2.0
        least = min(_SMALLEST, self._largest)
        self._portion = max(float(least), min(float(self._largest), self._portion * share))
