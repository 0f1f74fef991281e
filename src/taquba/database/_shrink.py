"""Giving space back after much was deleted, a little at a time beside the work.

SQLite keeps the pages of what was deleted for what comes next. When they are a good part of the
file, the pages that still count are moved to its beginning, and the rest is cut off. A file in
memory keeps what it once took all the same; so it is then copied into a new one, and the old one
is let go.
"""

# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import apsw

from taquba.database._pace import Pace
from taquba.errors import TaqubaError

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.database._state import State

__all__ = ["Shrinker"]

logger = logging.getLogger("taquba.database")

_PORTION = 128
"""Pages that are moved before the clock is looked at, at most."""
_FREE_SHARE = 4
"""Free pages are given back when they are more than one in so many, …"""
_FREE_PAGES = 256
"""… and more than these; …"""
_LEFT_SHARE = 16
"""… and then until they are less than one in so many."""
_MEMORY_PAGES = 2048
"""Memory is given back when the file once had so many more pages, and twice as many."""


class Shrinker:
    """Makes the file smaller when that is worth it."""

    def __init__(
        self, state: State, *, clock: Clock, exclusive: asyncio.Lock, moved: Callable[[], None]
    ) -> None:
        """Args:
        state: The database.
        clock: Tells how long turns take.
        exclusive: Held while the database is copied or moved, which only one may do at a time.
        moved: Called when the database has moved to another connection.
        """
        self._state = state
        self._clock = clock
        self._exclusive = exclusive
        self._moved = moved
        self._due = asyncio.Event()
        self._turn: Callable[[], bool] | None = None
        self._done = False
        self._turned = asyncio.Event()
        self._peak = 0
        """The most pages that the file had since it was made."""
        self.clean()

    def clean(self) -> None:
        """Nothing is open: do some of what is to be done."""
        if self._turn is not None:
            self._turned.set()
            if not self._done:
                self._done = self._turn()
        elif not self._due.is_set():
            pages, free = self._state.pages()
            self._peak = max(self._peak, pages)
            if self._wasteful(pages, free) or self._bloated(pages):
                self._due.set()

    def _wasteful(self, pages: int, free: int) -> bool:
        return free > _FREE_PAGES and free * _FREE_SHARE > pages

    def _bloated(self, pages: int) -> bool:
        return (
            not self._state.on_disk
            and self._peak > 2 * pages
            and self._peak > pages + _MEMORY_PAGES
        )

    async def run(self) -> None:
        """Give space back when there is much, until cancelled."""
        while True:
            await self._due.wait()
            try:
                async with self._exclusive:
                    await self._shrink()
            except (TaqubaError, apsw.Error) as error:
                # Whoever works with the database is told; this was only to make it smaller.
                logger.debug("the database is not made smaller: %s", error)
                return
            self._due.clear()

    async def _shrink(self) -> None:
        pages, free = self._state.pages()
        if self._wasteful(pages, free):
            await self._in_turns(self._vacuum(Pace(self._clock, _PORTION)))
        pages, _ = self._state.pages()
        if self._bloated(pages):
            await self._move()

    def _vacuum(self, pace: Pace) -> Callable[[], bool]:
        def left() -> int:
            pages, free = self._state.pages()
            return free - pages // _LEFT_SHARE

        def give_back(count: int) -> bool:
            before = left()
            self._state.vacuum(min(count, max(1, before)))
            after = left()
            return after <= 0 or after == before  # a file that cannot shrink is left as it is

        return lambda: pace.turn(give_back, left)

    async def _move(self) -> None:
        moving = self._state.moving()
        pace = Pace(self._clock, _PORTION)

        def turn() -> bool:
            try:
                if not pace.turn(moving.step, lambda: moving.remaining):
                    return False
            except apsw.Error as error:
                # This is called amid a commit, which lacking memory for a copy must not stop.
                logger.debug("the database stays where it is: %s", error)
                return True
            moving.change_over()
            self._moved()
            return True

        try:
            await self._in_turns(turn)
            self._peak, _ = self._state.pages()
        finally:
            moving.stop()
            # In a thread: a large piece of memory takes its time to be let go.
            loop = asyncio.get_running_loop()
            await asyncio.shield(loop.run_in_executor(None, moving.close))

    async def _in_turns(self, turn: Callable[[], bool]) -> None:
        """Call `turn` whenever nothing is open, until it says that it is done."""
        self._turn, self._done = turn, False
        try:
            while not self._done:
                self._turned.clear()
                if self._state.come_to_rest():
                    self.clean()
                    await self._clock.sleep(0)
                elif self._state.in_transaction:
                    await self._clock.sleep(0)
                else:
                    await self._turned.wait()  # the next seal goes on with it
        finally:
            self._turn = None
