"""Ids that sort by the order in which they were made (ULIDs)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taquba.clock import Clock

__all__ = ["IdFactory"]

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(first + second for first in _ALPHABET for second in _ALPHABET)
_COUNTER_BITS = 20
_COUNTER_END = 1 << _COUNTER_BITS


class IdFactory:
    """Makes 26-character ULIDs that strictly ascend.

    The random part is drawn anew in each millisecond, and counted up within one, and while
    the clock stands still or steps back. See https://github.com/ulid/spec.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ms = -1
        self._prefix = ""
        self._counter = _COUNTER_END

    def next(self, now_ms: int | None = None) -> str:
        """The next id: later in sort order than every id made here before.

        `now_ms` is what the clock says, if that was asked already.
        """
        if now_ms is None:
            now_ms = self._clock.now_ms()
        self._counter += 1
        if now_ms > self._last_ms or self._counter >= _COUNTER_END:
            self._start(max(now_ms, self._last_ms + 1))
        return self._prefix + _PAIRS[self._counter >> 10] + _PAIRS[self._counter & 1023]

    def _start(self, at_ms: int) -> None:
        """Draw a new random part: 60 bits that stay, and 20 to count with, the top one clear."""
        from ulid import ULID  # imported at first use: it costs more than half of our own import

        self._last_ms = at_ms
        drawn = int.from_bytes(self._clock.random_bytes(10))
        self._counter = drawn & (_COUNTER_END // 2 - 1)
        self._prefix = str(ULID.from_int((at_ms << 80) | drawn))[:-4]
