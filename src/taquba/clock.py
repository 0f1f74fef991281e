"""Time, sleep and randomness, injected.

Nothing in taquba asks the operating system for the time, sleeps, or draws a random
number by itself: it asks the `Clock` it was given. `SystemClock` is the real one;
`ManualClock` stands still until a test moves it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, runtime_checkable

from taquba._checks import shown
from taquba.errors import InvalidArgument, InvalidType

__all__ = ["Clock", "Duration", "ManualClock", "SystemClock", "seconds", "wait_for_event"]

Duration = timedelta | float
"""A span of time: a `timedelta`, or a number of seconds."""


def seconds(duration: Duration, *, name: str) -> float:
    """A duration in seconds.

    Args:
        duration: A `timedelta` or a number of seconds; not negative, not NaN.
        name: The argument's name, for the error.

    Raises:
        InvalidType: It is neither.
        InvalidArgument: It is negative or not a number.
    """
    if isinstance(duration, timedelta):
        value = duration.total_seconds()
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        try:
            value = float(duration)
        except OverflowError:  # a huge whole number
            value = float("inf") if duration > 0 else float("-inf")
    else:
        raise InvalidType(f"{name} is {shown(duration)}: give seconds or a datetime.timedelta")
    if not value >= 0:
        raise InvalidArgument(f"{name} is {shown(duration)}: a duration cannot be negative")
    return value


@runtime_checkable
class Clock(Protocol):
    """Where time, sleep and randomness come from."""

    def now_ms(self) -> int:
        """Wall-clock time, in whole milliseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes backwards; only differences mean something."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` have passed on this clock."""
        ...

    def random(self) -> float:
        """A random float in [0, 1)."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """`count` random bytes, for ids."""
        ...


async def wait_for_event(event: asyncio.Event, timeout: float | None, clock: Clock) -> bool:
    """Wait until the event is set, or for `timeout` seconds; whether it was set."""
    if timeout is None:
        await event.wait()
        return True
    waits: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(event.wait()),
        asyncio.ensure_future(clock.sleep(max(timeout, 0.0))),
    ]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    return event.is_set()


class SystemClock:
    """The real time, and the operating system's randomness."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def random(self) -> float:
        return random.random()

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)


_seeds = itertools.count()
_IDLE_ROUNDS = 50
"""Rounds of the event loop that count as 'nothing left to do' where the loop can't tell."""
_MOST_ROUNDS = 100_000
"""Rounds of the event loop after which somebody seems to keep it busy for ever."""


class _Observer(Protocol):
    """Knows more about what goes on than the event loop does; `taquba.testing` has one."""

    @property
    def progress(self) -> int:
        """A number that changes when something gets done."""
        ...

    async def wait_outside(self) -> bool:
        """Wait until what is done outside of the event loop has come on; False if nothing is."""
        ...

    def never_quiet(self) -> None:
        """Somebody keeps the loop busy and gets nothing done."""
        ...


class _Turn:
    """One call of `ManualClock.advance`."""

    def __init__(self) -> None:
        self.over = asyncio.Event()


class ManualClock:
    """A clock that a test moves. Its randomness is seeded, so a run can be repeated.

    Example:
        >>> clock = ManualClock()
        >>> before = clock.now_ms()
        >>> asyncio.run(clock.advance(timedelta(days=7)))
        >>> clock.now_ms() - before
        604800000
    """

    def __init__(
        self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC), *, seed: int | None = None
    ) -> None:
        """Make a clock that stands at `start`.

        Args:
            start: The first wall-clock time; must be aware.
            seed: Seed of `random` and `random_bytes`. Two processes that a test plays on one
                store must not share one, since ids made of it would be equal. None: a seed of
                its own for each clock of this process, the same in every run.
        """
        if start.tzinfo is None:
            raise InvalidArgument(f"start is {start!r}: give an aware datetime, with a tzinfo")
        self._start_ms = round(start.timestamp() * 1000)
        self._elapsed = 0.0
        self._wall_offset = 0.0
        self._random = random.Random(next(_seeds) if seed is None else seed)
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0
        self._turns: list[_Turn] = []
        self._observers: list[_Observer] = []

    def now_ms(self) -> int:
        return self._start_ms + round((self._elapsed + self._wall_offset) * 1000)

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._elapsed + seconds, self._count, woken))
        await woken

    def random(self) -> float:
        return self._random.random()

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def shift_wall_clock(self, by: Duration) -> None:
        """Step the wall clock only, as an operator or NTP would; `by` may be negative."""
        self._wall_offset += by.total_seconds() if isinstance(by, timedelta) else by

    async def advance(self, by: Duration) -> None:
        """Move time on, waking each sleeper at its own moment, in order.

        After each moment the event loop runs until nothing that is ready is left, so
        whoever was woken has acted, and may sleep again, before time moves further.
        Work that waits for real threads or sockets is not waited for, unless the clock is
        that of a `taquba.testing.Sandbox`.

        Whoever is woken may advance the clock, too: time goes on from there, and the first
        `advance` comes to its end after that, without moving it further than it was to.

        Raises:
            InvalidType: `by` is no duration.
            InvalidArgument: `by` is negative or infinite.
        """
        await self._advance(by)

    async def advance_to(self, when: datetime) -> None:
        """As `advance`, until the wall clock shows `when`.

        Raises:
            InvalidArgument: `when` has no time zone, or is in the past.
        """
        if not isinstance(when, datetime):
            raise InvalidType(f"when is {when!r}: give an aware datetime")
        if when.tzinfo is None:
            raise InvalidArgument(f"when is {when!r}: give an aware datetime, with a tzinfo")
        ahead = when.timestamp() * 1000 - self.now_ms()
        if ahead < 0:
            now = datetime.fromtimestamp(self.now_ms() / 1000, UTC)
            raise InvalidArgument(f"when is {when!r}, and the clock shows {now}: it goes forward")
        await self._advance(ahead / 1000)

    async def _advance(self, by: Duration, until: Callable[[], bool] = lambda: False) -> None:
        """Move time on by `by`, or to the first moment after which `until` holds."""
        span = seconds(by, name="by")
        if span == float("inf"):
            raise InvalidArgument(f"by is {by!r}: time can only be moved by a finite duration")
        end = self._elapsed + span
        turn = _Turn()
        self._turns.append(turn)
        try:
            await self._run_ready_tasks(turn)
            while not until():
                while self._sleepers and self._sleepers[0][2].done():  # its task was cancelled
                    heapq.heappop(self._sleepers)
                if not self._sleepers or self._sleepers[0][0] > end:
                    self._elapsed = max(self._elapsed, end)
                    break
                due, _, woken = heapq.heappop(self._sleepers)
                self._elapsed = max(self._elapsed, due)
                woken.set_result(None)
                await self._run_ready_tasks(turn)
            else:
                return
            await self._run_ready_tasks(turn)
        finally:
            self._turns.remove(turn)
            turn.over.set()

    async def _run_ready_tasks(self, turn: _Turn) -> None:
        """Let the event loop run until nobody can go on at this moment."""
        loop, observers = asyncio.get_running_loop(), self._observers
        ready: Callable[[], int] | None = getattr(getattr(loop, "_ready", None), "__len__", None)
        rounds, progress = 0, -1
        while True:
            await asyncio.sleep(0)
            if self._turns[-1] is not turn:  # somebody who was woken moves time on
                await self._turns[-1].over.wait()
                rounds = 0
                continue
            rounds += 1
            if observers and (now := sum(observer.progress for observer in observers)) != progress:
                rounds, progress = 0, now
            quiet = ready() == 0 if ready is not None else rounds >= _IDLE_ROUNDS
            if quiet:
                for observer in observers:
                    if await observer.wait_outside():
                        rounds = 0
                        break
                else:
                    return
            elif rounds >= _MOST_ROUNDS:
                for observer in observers:
                    observer.never_quiet()
                return

    @property
    def sleeping(self) -> int:
        """How many tasks are asleep on this clock."""
        return sum(not woken.done() for _, _, woken in self._sleepers)
