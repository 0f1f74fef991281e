"""Ids that sort by the order in which they were made (ULIDs)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taquba.clock import Clock

__all__ = ["IdFactory"]

_RANDOM_BITS = 80
_MAX_RANDOM = (1 << _RANDOM_BITS) - 1


class IdFactory:
    """Makes 26-character ULIDs that strictly ascend.

    Two ids of the same millisecond differ in their random part, which is counted up;
    so do ids made while the clock stands still or steps back. See
    https://github.com/ulid/spec.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ms = -1
        self._last_random = 0

    def next(self) -> str:
        """The next id: later in sort order than every id made here before."""
        from ulid import ULID  # imported at first use: it costs more than half of our own import

        now_ms = self._clock.now_ms()
        if now_ms > self._last_ms:
            self._last_ms = now_ms
            # The top bit stays clear, so that counting up cannot overflow in practice.
            self._last_random = int.from_bytes(self._clock.random_bytes(10)) >> 1
        elif self._last_random < _MAX_RANDOM:
            self._last_random += 1
        else:
            self._last_ms += 1
            self._last_random = 0
        return str(ULID.from_int((self._last_ms << _RANDOM_BITS) | self._last_random))
