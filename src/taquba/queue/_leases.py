"""Leases: who holds which job until when. In memory only, since one process owns the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol, final

from taquba.clock import Clock
from taquba.errors import CancelRequested, ClaimLost

__all__ = ["CancelToken", "Holder", "Lease", "LeaseRegistry"]


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


_NEVER = float("inf")


class Holder(Protocol):
    """Who works on a job: it is stopped when the lease expires, and waited for."""

    @property
    def grace(self) -> float:
        """Seconds that it may take to stop, before its job is taken back all the same."""
        ...

    def interrupt(self) -> None:
        """Stop, since cancellation was asked for; what it says then still counts."""
        ...

    def cancel(self) -> None:
        """Stop; and call `handler_ended` then."""
        ...


class Lease:
    """One claim of one job.

    Live at first. When it expires it is not live any more: nothing can be settled with it.
    If it has a holder then, it is *overdue* until the holder has stopped, and its job stays
    claimed, so that this process never makes two attempts of one job at once.
    """

    __slots__ = (
        "_token",
        "deadline",
        "duration",
        "expires_at",
        "holder",
        "interruptible",
        "kept",
        "live",
        "queue_number",
        "registry",
        "returned",
        "run_at",
        "seq",
        "timed_out",
    )

    def __init__(
        self, seq: int, queue_number: int, duration: float, registry: LeaseRegistry
    ) -> None:
        self.seq = seq
        self.queue_number = queue_number
        self.duration = duration
        self.expires_at = _NEVER
        """On the clock's monotonic scale, in seconds; never, until the claim is durable."""
        self.registry = registry
        self.run_at: int | None = None
        """When the job would have become due, if it was claimed before that."""
        self.live = False
        self.holder: Holder | None = None
        """Who works on the job, while it does."""
        self.interruptible = False
        """Whether the holder is to be interrupted when cancellation is asked for."""
        self.returned = False
        """Whether the work has ended, and only its settlement is to come."""
        self.kept = False
        """Whether it lasts until its holder has ended (or `deadline`), without being renewed."""
        self.deadline = _NEVER
        """When the attempt takes too long, however often the lease is extended."""
        self.timed_out = False
        """Whether it was `deadline` that ended it."""
        self._token: CancelToken | None = None

    @property
    def cancel_token(self) -> CancelToken:
        if self._token is None:
            self._token = CancelToken()
        return self._token

    def start(self) -> None:
        """The claim is durable, so its holder can begin: the time runs from now."""
        self.registry.start((self,))

    def suspend(self) -> None:
        """The claim's holder cannot begin yet: no time runs until `start`."""
        self.expires_at = _NEVER

    def renew(self, duration: float) -> None:
        """Let the lease end `duration` seconds from now; that can also shorten it."""
        self.check()
        if not self.kept:
            self._move(min(self.registry.clock.monotonic() + duration, self.deadline))
            self.registry.note_expiry(self.expires_at)

    def ensure_at_least(self, remaining: float) -> None:
        """Extend the lease, if it would end sooner than `remaining` + 5 seconds from now."""
        self.check()
        wanted = self.registry.clock.monotonic() + remaining + SAFETY_MARGIN
        self._move(max(self.expires_at, min(wanted, self.deadline)))

    def _move(self, expires_at: float) -> None:
        if expires_at != self.expires_at:
            self.expires_at = expires_at
            if self.registry.on_renewed is not None:
                self.registry.on_renewed(self.queue_number)

    def begin(self, limit: float, *, keep: bool) -> None:
        """The holder begins: it has `limit` seconds; with `keep`, it need not renew the lease.

        A job whose cancellation was asked for is not kept longer than its lease.
        """
        self.deadline = self.registry.clock.monotonic() + limit
        self.kept = keep and not self.is_cancelled
        self.expires_at = self.deadline if self.kept else min(self.expires_at, self.deadline)
        self.registry.note_expiry(self.expires_at)

    def done(self) -> None:
        """The holder has ended in time: what it says counts, whenever the store takes it."""
        self.kept = False
        self.expires_at = self.deadline = _NEVER

    def request_cancel(self) -> None:
        """Cancellation of the job was asked for: from now on the lease is not extended."""
        self.cancel_token._fire()
        if self.kept:
            self.kept = False
            now = self.registry.clock.monotonic()
            self.expires_at = min(self.expires_at, now + self.duration)
            self.registry.note_expiry(self.expires_at)
        if self.interruptible and self.holder is not None:
            self.interruptible = False  # once
            now = self.registry.clock.monotonic()
            self.expires_at = min(self.expires_at, now + self.holder.grace)
            self.registry.note_expiry(self.expires_at)
            self.holder.interrupt()

    @property
    def is_cancelled(self) -> bool:
        return self._token is not None and self._token.is_cancelled

    def remaining(self) -> float:
        """Seconds until the lease expires; negative once it is overdue."""
        return self.expires_at - self.registry.clock.monotonic()

    def check(self) -> None:
        """Raise, if the lease cannot be extended any more."""
        if self.is_cancelled:
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
        self.overdue: dict[int, Lease] = {}
        """Leases that expired, and whose holders have not stopped yet."""
        self.changed = asyncio.Event()
        self.on_renewed: Callable[[int], None] | None = None
        """Told the number of the queue, when a holder moved an expiry."""
        self._earliest = _NEVER

    def __len__(self) -> int:
        return len(self._leases)

    def holds(self, lease: Lease) -> bool:
        return self._leases.get(lease.seq) is lease

    def get(self, seq: int) -> Lease | None:
        return self._leases.get(seq)

    def start(self, leases: Iterable[Lease]) -> None:
        """Start each of these leases."""
        now = self.clock.monotonic()
        earliest = _NEVER
        for lease in leases:
            if lease.expires_at == _NEVER and not lease.kept:
                lease.expires_at = now + lease.duration
                if lease.expires_at < earliest:
                    earliest = lease.expires_at
        self.note_expiry(earliest)

    def replace(self, ended: Iterable[Lease], added: Iterable[Lease]) -> None:
        """End some leases, and add others, which have not started."""
        leases = self._leases
        for lease in ended:
            lease.live = False
            if leases.get(lease.seq) is lease:
                del leases[lease.seq]
            elif self.overdue.get(lease.seq) is lease:
                del self.overdue[lease.seq]
        for lease in added:
            lease.live = True
            leases[lease.seq] = lease

    def holders(self) -> list[Holder]:
        """All who work on a job now."""
        return [lease.holder for lease in self._leases.values() if lease.holder is not None]

    def expire(self, lease: Lease, holder: Holder) -> None:
        """End a lease whose holder has yet to stop."""
        now = self.clock.monotonic()
        lease.timed_out = lease.deadline <= now
        self.replace((lease,), ())
        self.overdue[lease.seq] = lease
        lease.expires_at = now + holder.grace
        self.note_expiry(lease.expires_at)

    def end_all(self) -> None:
        """The queue has stopped: no claim of it can settle anything any more."""
        for lease in self._leases.values():
            lease.live = False
        self._leases.clear()
        self.overdue.clear()

    def note_expiry(self, expires_at: float) -> None:
        if expires_at < self._earliest:
            self._earliest = expires_at
            self.changed.set()

    def earliest(self) -> float | None:
        """The first expiry, or None without leases. Also what `changed` compares with from now."""
        self.changed.clear()
        self._earliest = min((x.expires_at for x in self._all()), default=_NEVER)
        return None if self._earliest == _NEVER else self._earliest

    def due(self, now: float) -> list[Lease]:
        """Leases that expired, or whose holders have had their grace, soonest first."""
        due = [lease for lease in self._all() if lease.expires_at <= now]
        due.sort(key=lambda lease: lease.expires_at)
        return due

    def give_back(self, lost_seconds: float) -> None:
        """Extend every lease: for that long the event loop stood still and nobody could act."""
        for lease in self._all():
            lease.expires_at += lost_seconds
            lease.deadline += lost_seconds

    def _all(self) -> Iterable[Lease]:
        if self.overdue:
            return [*self._leases.values(), *self.overdue.values()]
        return self._leases.values()
