"""When a failed job is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from taquba._checks import wrong_type
from taquba._msgpack import pack, unpack
from taquba.clock import Duration, seconds

__all__ = ["RetryPolicy"]

_LONGEST_BACKOFF = 100 * 365 * 86_400.0
"""Seconds; a backoff without a sensible maximum must still end at a time that can be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The delays between the attempts of a job: exponential, with full jitter.

    After the n-th attempt the delay is at most ``min(base * 2 ** (n - 1), max)``. With jitter it
    is drawn evenly from zero to that, so that jobs that failed together do not come back
    together ("full jitter", AWS Architecture Blog, 2015); without it, it is that.
    """

    base: Duration = timedelta(seconds=1)
    """Largest delay after the first attempt. Zero: every retry comes at once."""
    max: Duration = timedelta(minutes=5)
    """Largest delay of all."""
    jitter: bool = True
    """Whether the delay is random; False: it is the largest."""

    def __post_init__(self) -> None:
        for name in ("base", "max"):
            seconds(getattr(self, name), name=name)
        if not isinstance(self.jitter, bool):
            raise wrong_type("jitter must be True or False", self.jitter)

    def longest_ms(self, attempts: int) -> int:
        """The largest delay after this many attempts (at least 1), in milliseconds."""
        base = seconds(self.base, name="base")
        if base == 0:
            return 0
        # 2**60 seconds is past every sensible maximum, and keeps the product finite.
        delay = min(
            base * 2.0 ** min(attempts - 1, 60), seconds(self.max, name="max"), _LONGEST_BACKOFF
        )
        return round(delay * 1000)

    def delay_ms(self, attempts: int, chance: float) -> int:
        """The delay after this many attempts, in milliseconds.

        Args:
            attempts: How many there were, at least 1.
            chance: A random number in [0, 1).
        """
        longest = self.longest_ms(attempts)
        return round(longest * chance) if self.jitter else longest

    def _stored(self) -> bytes:
        return pack([seconds(self.base, name="base"), seconds(self.max, name="max"), self.jitter])

    @classmethod
    def _read(cls, stored: bytes) -> RetryPolicy:
        base, longest, jitter = unpack(stored)
        return cls(base=base, max=longest, jitter=jitter)
