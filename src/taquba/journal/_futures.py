"""Small things about futures that more than one waiter depends on."""

from __future__ import annotations

import asyncio
import copy

from taquba.errors import TaqubaError

__all__ = ["Gate", "fail_future", "fresh"]


def fresh(error: TaqubaError) -> TaqubaError:
    """A copy, since each raise adds to an exception's traceback."""
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied


def fail_future(future: asyncio.Future[None], error: TaqubaError) -> None:
    """End the future with an error, which nobody needs to look at."""
    if not future.done():
        future.set_exception(fresh(error))
        future.exception()  # counts as retrieved


class Gate:
    """Open or not, with a place to wait in front of it."""

    def __init__(self) -> None:
        self.is_open = True
        self._waiters: dict[asyncio.Future[None], None] = {}

    def set(self, is_open: bool) -> None:
        """Open or close it; opening lets everybody look again."""
        self.is_open = is_open
        if is_open and self._waiters:
            self.wake()

    def wake(self) -> None:
        """Let everybody look again."""
        waiters, self._waiters = self._waiters, {}
        for future in waiters:
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        """Wait until there is something to look at."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[future] = None
        try:
            await future
        finally:
            self._waiters.pop(future, None)
