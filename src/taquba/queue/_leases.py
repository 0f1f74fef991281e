"""Leases: who holds which job until when. In memory only, since one process owns the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, final

from taquba.clock import Clock
from taquba.errors import CancelRequested, ClaimLost

__all__ = ["CancelToken", "Lease", "LeaseRegistry"]


@final
class CancelToken:
    """Says whether cancellation was asked for."""

    __slots__ = ("_event", "_fired")

    def __init__(self) -> None:
        self._fired = False
        self._event: asyncio.Event | None = None

    @property
    def is_cancelled(self) -> bool:
        """Whether cancellation was asked for."""
        return self._fired

    async def wait(self) -> None:
        """Return once cancellation is asked for."""
        if not self._fired:
            if self._event is None:
                self._event = asyncio.Event()
            await self._event.wait()

    def _fire(self) -> None:
        self._fired = True
        if self._event is not None:
            self._event.set()


SAFETY_MARGIN = 5.0
"""Seconds that `Lease.ensure_at_least` adds, so that there is time left to settle."""


class Lease:
    """One live claim of one job."""

    __slots__ = (
        "_token",
        "duration",
        "expires_at",
        "live",
        "on_expiry",
        "queue_number",
        "registry",
        "seq",
    )

    def __init__(
        self, seq: int, queue_number: int, duration: float, registry: LeaseRegistry
    ) -> None:
        self.seq = seq
        self.queue_number = queue_number
        self.duration = duration
        self.expires_at = float("inf")
        """On the clock's monotonic scale, in seconds; never, until the claim is durable."""
        self.registry = registry
        self.live = False
        self.on_expiry: Callable[[], Any] | None = None
        """Called when the lease expired and its job was taken back."""
        self._token: CancelToken | None = None

    @property
    def cancel_token(self) -> CancelToken:
        if self._token is None:
            self._token = CancelToken()
        return self._token

    def start(self) -> None:
        """The claim is durable, so its holder can begin: the time runs from now."""
        if self.expires_at == float("inf"):
            self.expires_at = self.registry.clock.monotonic() + self.duration
            self.registry.note_expiry(self.expires_at)

    def suspend(self) -> None:
        """The claim's holder cannot begin yet: no time runs until `start`."""
        self.expires_at = float("inf")

    def renew(self, duration: float) -> None:
        """Let the lease end `duration` seconds from now; that can also shorten it."""
        self._check()
        self.expires_at = self.registry.clock.monotonic() + duration
        self.registry.note_expiry(self.expires_at)

    def ensure_at_least(self, remaining: float) -> None:
        """Extend the lease, if it would end sooner than `remaining` + 5 seconds from now."""
        self._check()
        wanted = self.registry.clock.monotonic() + remaining + SAFETY_MARGIN
        self.expires_at = max(self.expires_at, wanted)

    def remaining(self) -> float:
        """Seconds until the lease expires; negative once it is overdue."""
        return self.expires_at - self.registry.clock.monotonic()

    def _check(self) -> None:
        if self._token is not None and self._token.is_cancelled:
            raise CancelRequested("the lease cannot be extended: cancellation was requested")
        if not self.live:
            raise ClaimLost("the lease cannot be extended: the claim has ended")


class LeaseRegistry:
    """All live leases, by job.

    `changed` is set when the earliest expiry may have moved forward, so that the reaper
    sleeps exactly as long as nothing can expire.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._leases: dict[int, Lease] = {}
        self.changed = asyncio.Event()
        self._earliest = float("inf")

    def __len__(self) -> int:
        return len(self._leases)

    def holds(self, lease: Lease) -> bool:
        return self._leases.get(lease.seq) is lease

    def get(self, seq: int) -> Lease | None:
        return self._leases.get(seq)

    def add(self, lease: Lease) -> None:
        lease.live = True
        self._leases[lease.seq] = lease
        self.note_expiry(lease.expires_at)

    def end(self, lease: Lease) -> None:
        lease.live = False
        if self._leases.get(lease.seq) is lease:
            del self._leases[lease.seq]

    def end_all(self) -> None:
        """The queue has stopped: no claim of it can settle anything any more."""
        for lease in self._leases.values():
            lease.live = False
        self._leases.clear()

    def note_expiry(self, expires_at: float) -> None:
        if expires_at < self._earliest:
            self._earliest = expires_at
            self.changed.set()

    def earliest(self) -> float | None:
        """The first expiry, or None without leases. Also what `changed` compares with from now."""
        self.changed.clear()
        self._earliest = min((x.expires_at for x in self._leases.values()), default=float("inf"))
        return None if self._earliest == float("inf") else self._earliest

    def due(self, now: float) -> list[Lease]:
        """Leases that expired, soonest first."""
        due = [lease for lease in self._leases.values() if lease.expires_at <= now]
        due.sort(key=lambda lease: lease.expires_at)
        return due

    def give_back(self, lost_seconds: float) -> None:
        """Extend every lease: for that long the event loop stood still and nobody could act."""
        for lease in self._leases.values():
            lease.expires_at += lost_seconds
