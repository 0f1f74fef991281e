"""A read-only copy of a database that follows its journal from any process."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, final

from taquba._checks import as_datetime
from taquba.clock import wait_for_event
from taquba.database._config import DatabaseConfig
from taquba.database._mirror import Mirror
from taquba.database._schema import SchemaModule
from taquba.errors import Closed, InvalidArgument, StoreError, TaqubaError
from taquba.journal import Position

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.objectstore import ObjectStore

__all__ = ["Lag", "Replica"]

logger = logging.getLogger("taquba.database")

_PATIENCE = 8
"""Looks that find nothing before the next ones come later and later."""
_STEADY = 3
"""Looks with news, one after the other, after which one without asks at once whether collection
overtook the copy."""
_SUSPICIOUS = 4
"""Looks without news, after fewer with, until one asks that."""
_CHECK_EVERY = 60.0
"""Seconds without news after which a look asks that again."""
_LONG = 4
"""A look that comes this many of the longest intervals late is a thorough one."""
_CLOSED = (
    "this follower was closed: its 'async with' block has ended, or close() was called; open "
    "it again to go on"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a follower is behind."""

    position: int
    """Number of the first journal entry that it does not show."""
    behind: int
    """Entries that it knows of and does not show yet; 0 after a look that found no more."""
    age: float
    """Seconds since a look found that there was no more. What is newer may be missing."""
    committed_at: datetime | None
    """When the last entry that it shows was committed, by its writer's clock; None: it shows
    nothing yet."""
    epoch: int
    """Of the opening of the store that committed it. Each later one has a greater number; 0: it
    shows nothing yet."""
    last_error: Exception | None
    """Why the last look failed; None if it did not."""


@final
class Replica:
    """A database that some process writes, followed by another that only reads.

    It needs no permission to write, and its owner does not know of it.
    """

    def __init__(
        self,
        store: ObjectStore,
        modules: Sequence[SchemaModule],
        *,
        clock: Clock,
        config: DatabaseConfig,
        poll_interval: float,
        max_poll_interval: float,
    ) -> None:
        """Use `open`."""
        self._clock = clock
        self._shortest = poll_interval
        self._longest = max_poll_interval
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self._mirror = Mirror(store, modules, config, on_change=self._note_change)
        self._current_at = self._proved_at = self._looked_at = self._news_at = clock.monotonic()
        self._idle_looks = 0
        self._steady = 0
        """Looks with news, one after the other."""
        self._last_error: Exception | None = None
        self._failure: TaqubaError | None = None
        self._refusal: TaqubaError | None = None
        """What reading is refused with: the failure, or that this was closed."""
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[None] | None = None

    @classmethod
    async def open(
        cls,
        store: ObjectStore,
        modules: Sequence[SchemaModule] = (),
        *,
        clock: Clock,
        config: DatabaseConfig | None = None,
        poll_interval: float = 1.0,
        max_poll_interval: float = 5.0,
    ) -> Replica:
        """Load the newest checkpoint, and apply all that was committed since.

        Args:
            store: Where journal and checkpoints are; only read.
            modules: The tables that the caller wants to read, in the versions that it knows.
            clock: Time and randomness.
            config: Settings of the database.
            poll_interval: Seconds between two looks for more, while there is more.
            max_poll_interval: To this the interval grows while nothing is written.

        Raises:
            CorruptStore: What is stored is damaged; the message names the object.
            IncompatibleStore: Another version wrote it.
            StoreError: The store cannot be read.
        """
        cls.check_intervals(poll_interval, max_poll_interval)
        replica = cls(
            store,
            modules,
            clock=clock,
            config=config or DatabaseConfig(),
            poll_interval=poll_interval,
            max_poll_interval=max_poll_interval,
        )
        try:
            await replica._mirror.begin()
            await replica._look(thorough=True)
        except BaseException:
            replica._mirror.close()
            raise
        replica._task = asyncio.get_running_loop().create_task(
            replica._run(), name="taquba replica"
        )
        return replica

    @staticmethod
    def check_intervals(poll_interval: float, max_poll_interval: float) -> None:
        """Refuse intervals that make no sense.

        Raises:
            InvalidArgument: They do not.
        """
        if not 0 < poll_interval <= max_poll_interval < float("inf"):
            raise InvalidArgument(
                f"poll_interval is {poll_interval} and max_poll_interval {max_poll_interval}: "
                "the first must be more than 0, and the second at least as much"
            )

    # -- reading ----------------------------------------------------------------------------

    async def enter(self) -> None:
        """Return when `rows` may be read, without waiting for a large change under way.

        Raises:
            CorruptStore, IncompatibleStore: The copy cannot be kept up any more.
            Closed: It was closed.
        """
        while not self._mirror.resting.is_set() and self._refusal is None:
            await self._mirror.resting.wait()
        self._check()

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of the state as it is here.

        Raises:
            InvalidState: The statement would change something.
            CorruptStore, IncompatibleStore, Closed: As for `enter`.
        """
        self._check()
        return self._mirror.rows(sql, parameters)

    async def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of the state; all that it shows is durable.

        Raises:
            InvalidState: The statement would change something.
            CorruptStore, IncompatibleStore, Closed: As for `enter`.
        """
        await self.enter()
        return self.rows(sql, parameters)

    # -- following --------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """The place in the journal whose state is shown."""
        return self._mirror.position

    @property
    def lag(self) -> Lag:
        """How far behind this is, as far as is known."""
        return Lag(
            position=self._mirror.position.seq,
            behind=self._mirror.behind,
            age=max(0.0, self._clock.monotonic() - self._current_at),
            committed_at=as_datetime(self._mirror.committed_at_ms),
            epoch=self._mirror.position.epoch,
            last_error=self._last_error,
        )

    @property
    def failure(self) -> TaqubaError | None:
        """Why following ended by itself, or None. Then reading raises it, too."""
        return self._failure

    async def refresh(self) -> Lag:
        """Look for more now. Shows, on return, all that was acknowledged before the call.

        Raises:
            StoreError, OSError: The look failed; following goes on.
            CorruptStore, IncompatibleStore: The copy cannot be kept up any more.
            Closed: It was closed.
        """
        self._check()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._wanted.set()
        await waiter
        return self.lag

    async def wait_for(self, position: int) -> None:
        """Return when every journal entry before `position` is shown.

        Raises:
            CorruptStore, IncompatibleStore, Closed: That will not happen.
        """
        if self._mirror.position.seq < position:
            self._hurry()
        await self.wait_until(lambda: self._mirror.position.seq >= position)

    async def wait_until(self, condition: Callable[[], bool | Awaitable[bool]]) -> None:
        """Return when `condition` holds; it is asked now, and after each change.

        Args:
            condition: A function that reads, or an async one.

        Raises:
            CorruptStore, IncompatibleStore, Closed: That will not happen.
        """
        async with aclosing(self.changes()) as changes:
            async for _ in changes:
                holds = condition()
                if inspect.isawaitable(holds):
                    holds = await holds
                if holds:
                    return

    async def changes(self) -> AsyncGenerator[int, None]:
        """The position now, and again whenever it has changed since the last one was taken.

        Raises:
            CorruptStore, IncompatibleStore, Closed: There will be no more.
        """
        while True:
            self._check()
            changed, seen = self._changed, self._mirror.position.seq
            yield seen
            while self._mirror.position.seq == seen and self._refusal is None:
                await changed.wait()
                changed = self._changed

    def _hurry(self) -> None:
        """Look now, and soon again."""
        self._idle_looks = 0
        self._wanted.set()

    def _check(self) -> None:
        if self._refusal is not None:
            raise copy.copy(self._refusal)

    def _note_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # -- the task ---------------------------------------------------------------------------

    async def _run(self) -> None:
        interval = self._shortest
        await wait_for_event(self._wanted, interval, self._clock)  # `open` has just looked
        while True:
            self._wanted.clear()
            waiters, self._waiters = self._waiters, []
            started = self._clock.monotonic()
            more = failed = False
            try:
                more = await self._look(thorough=bool(waiters))
            except (StoreError, OSError) as error:
                failed = True
                if self._last_error is None:
                    logger.warning(
                        "a follower cannot read the store, and goes on trying: %s", error
                    )
                self._last_error = error
                _settle(waiters, error)
            except asyncio.CancelledError:
                _settle(waiters, Closed(_CLOSED))
                raise
            except Exception as error:
                self._fail(error, waiters)
                return
            else:
                if self._last_error is not None:
                    logger.info("a follower reads the store again")
                self._last_error = None
                _settle(waiters, None)
            if more:
                await asyncio.sleep(0)
                continue
            if failed or self._idle_looks > _PATIENCE:
                interval = min(interval * 2, self._longest)
            else:
                interval = self._shortest
            # From start to start, so that round trips do not add to the interval.
            left = started + interval - self._clock.monotonic()
            await wait_for_event(self._wanted, max(left, 0.0), self._clock)

    async def _look(self, *, thorough: bool = False) -> bool:
        """Look for more; whether to look again at once.

        A `thorough` look makes sure that collection did not overtake the copy. Others do so
        now and then, instead of looking for entries, so that a look is one request.
        """
        mirror = self._mirror
        before = mirror.position.seq
        now = self._clock.monotonic()
        thorough |= now - self._looked_at > _LONG * self._longest
        self._looked_at = now
        try:
            if not thorough and self._is_check_due(now):
                thorough = await mirror.newest_beyond() is not None
                self._proved_at = now
                if not thorough:
                    return False
            await mirror.read(thorough=thorough)
            if not thorough and mirror.position.seq == before and self._steady >= _STEADY:
                thorough = True
                if await mirror.newest_beyond() is not None:
                    await mirror.read(thorough=True)
        finally:
            if mirror.position.seq != before:
                self._idle_looks = 0
                self._steady += 1
                self._news_at = now
                self._note_change()
            else:
                self._idle_looks += 1
                self._steady = 0
        if thorough:
            self._proved_at = now
        if mirror.at_tail:
            self._current_at = now
        return not mirror.at_tail

    def _is_check_due(self, now: float) -> bool:
        if self._proved_at <= self._news_at and self._idle_looks >= _SUSPICIOUS:
            return True
        return self._idle_looks > 0 and now - max(self._proved_at, self._news_at) > _CHECK_EVERY

    # -- the end ----------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop following. Safe to call twice; always terminates."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._refusal is None:
            self._refusal = Closed(_CLOSED)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._end()

    def _fail(self, error: Exception, waiters: list[asyncio.Future[None]]) -> None:
        if isinstance(error, TaqubaError):
            self._failure = error
        else:
            self._failure = Closed(f"the follower stopped after an internal error: {error!r}")
            self._failure.__cause__ = error
        self._refusal = self._failure
        logger.error("a follower stopped: %s", self._failure)
        _settle(waiters, self._failure)
        self._end()

    def _end(self) -> None:
        waiters, self._waiters = self._waiters, []
        _settle(waiters, self._refusal)
        self._note_change()
        self._mirror.resting.set()
        self._mirror.close()


def _settle(waiters: list[asyncio.Future[None]], error: Exception | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(copy.copy(error))
