"""How many jobs a queue starts in a span of time."""

from __future__ import annotations

from dataclasses import dataclass

from taquba._checks import whole
from taquba.clock import Duration, seconds
from taquba.errors import InvalidArgument

__all__ = ["RateLimit", "TokenBucket"]

_MAX_COUNT = 1_000_000
_MAX_PER_MS = 366 * 86_400_000


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `count` jobs are started in each span of `per`, evenly, with bursts.

    A bucket holds up to `burst` tokens and is full at first. One is added every ``per / count``.
    Whoever claims a job takes one. So in no span of length ``t`` are more than
    ``burst + count * t / per`` jobs claimed, also across restarts.
    """

    count: int
    """Tokens that are added in each span, 1 to 1,000,000."""
    per: Duration = 1
    """The span, 1 ms to 366 days, in whole milliseconds."""
    burst: int | None = None
    """How many can be claimed at once after a quiet time, 1 to 1,000,000; None: `count`."""

    def __post_init__(self) -> None:
        whole(self.count, "count", 1, _MAX_COUNT)
        if self.burst is not None:
            whole(self.burst, "burst", 1, _MAX_COUNT)
        span = seconds(self.per, name="per")
        if not 1 <= round(min(span, 2**40) * 1000) <= _MAX_PER_MS:
            raise InvalidArgument(f"per is {span:g} s: it goes from 1 ms to 366 days")

    @property
    def per_ms(self) -> int:
        """The span in milliseconds."""
        return round(seconds(self.per, name="per") * 1000)


class TokenBucket:
    """The tokens of a rate limit, in whole numbers, so that nothing is lost to rounding.

    One number says it all: the moment at which the bucket is full again. Moments are counted
    in 1/count ms, of which a token takes `per_ms` to come.
    """

    __slots__ = ("_burst", "_cost", "full_at", "scale")

    def __init__(self, limit: RateLimit) -> None:
        self.scale = limit.count
        self._cost = limit.per_ms
        self._burst = limit.count if limit.burst is None else limit.burst
        self.full_at = 0

    def restore(self, full_at: int, scale: int) -> None:
        """Go on from what was stored, perhaps under another limit."""
        self.full_at = -(-full_at * self.scale // scale)

    def available(self, now_ms: int) -> int:
        """How many tokens there are."""
        now = now_ms * self.scale
        missing = min(max(self.full_at - now, 0), self._burst * self._cost)
        return self._burst - -(-missing // self._cost)

    def take(self, number: int, now_ms: int) -> None:
        """Take tokens that are available."""
        now = now_ms * self.scale
        # A clock that was set back, or another limit, leaves no more missing than there can be.
        missing = min(max(self.full_at - now, 0), self._burst * self._cost)
        self.full_at = now + missing + number * self._cost

    def next_at_ms(self, now_ms: int) -> int:
        """When there is one token at least."""
        now = now_ms * self.scale
        missing = min(max(self.full_at - now, 0), self._burst * self._cost)
        wait = missing - (self._burst - 1) * self._cost
        return now_ms + max(0, -(-wait // self.scale))
