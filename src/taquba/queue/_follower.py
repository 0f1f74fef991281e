"""Queues and key-value store, read from any process while another one owns them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, final

from taquba._blocks import AsyncBlock
from taquba._checks import wrong_type
from taquba.clock import Clock, Duration, SystemClock, seconds
from taquba.database import DatabaseConfig, Lag, Replica
from taquba.errors import InvalidUrl
from taquba.objectstore import ObjectStore
from taquba.queue import _validate
from taquba.queue._kv_reading import KeyValueReader
from taquba.queue._opening import Opening, open_target
from taquba.queue._payload_objects import PayloadReader
from taquba.queue._reading import QueueReader
from taquba.queue._schema import QUEUE_SCHEMA

if TYPE_CHECKING:
    import os

    from taquba.errors import TaqubaError

__all__ = ["Follower"]

_LONGEST = 5.0


@final
class Follower(AsyncBlock, QueueReader):
    """Everything that can be read of a store, in a process that does not own it.

    Made by `Follower.open`. It never writes, needs no permission to, and does not disturb the
    owner; there may be any number of them. What it shows is durable, and always the state at
    one moment of the past: `lag` tells which.

    Example:
        >>> import asyncio
        >>> from taquba import Follower, Queue
        >>> from taquba.objectstore import MemoryStore
        >>> async def main() -> int:
        ...     store = MemoryStore()          # or a URL, then from any other process
        ...     async with Queue.open(store) as queue, Follower.open(store) as follower:
        ...         await queue.enqueue("mail", b"hello")
        ...         await follower.refresh()
        ...         return (await follower.stats("mail")).pending
        >>> asyncio.run(main())
        1
    """

    def __init__(
        self,
        *,
        replica: Replica,
        store: ObjectStore,
        clock: Clock,
        owned_store: ObjectStore | None,
    ) -> None:
        """Not for callers: use `Follower.open`."""
        self._replica = replica
        self._clock = clock
        self._owned_store = owned_store
        self._source = _Copy(replica, store, clock)
        self.kv = KeyValueReader(self._source)

    @classmethod
    def open(
        cls,
        target: str | os.PathLike[str] | ObjectStore,
        *,
        storage_options: Mapping[str, Any] | None = None,
        poll_interval: Duration = 1.0,
        max_poll_interval: Duration | None = None,
        clock: Clock | None = None,
        state: Literal["memory", "disk"] = "memory",
        scratch: str | os.PathLike[str] | None = None,
    ) -> Opening[Follower]:
        """Load what a store holds, and follow what its owner commits.

        A store that nobody has written yet shows nothing until somebody does.

        Args:
            target: A URL (``s3://bucket/prefix``, ``file:///folder``), a path of a local folder,
                or an `ObjectStore`, which stays yours to close.
            storage_options: Options of the store's driver, such as credentials or an endpoint;
                the right to read and to list is enough.
            poll_interval: Time between two looks for more. A look is one request when there is
                nothing new.
            max_poll_interval: To this the interval grows while nothing is written. Default: 5 s,
                or `poll_interval` if that is longer.
            clock: Where time and sleep come from; for tests.
            state: Where the copy is: ``"memory"``, up to 2 GiB, or ``"disk"``, a scratch file.
                Where collection overtook the follower, for a moment there are two.
            scratch: A local folder with room for scratch files; the system's by default.

        Returns:
            Something to ``await``, or to use with ``async with``, which also closes.

        Raises:
            InvalidUrl: The target is no URL or path that can be opened.
            BucketNotFound, StoreAccessDenied, StoreUnavailable: The store cannot be read.
            MissingDependency: The URL needs an extra, which the message names.
            CorruptStore: What is stored is damaged.
            IncompatibleStore: The store was written by a newer taquba.
            StateFull: There is no room for the copy in memory or in the scratch folder.
        """
        if not isinstance(clock, (Clock, NoneType)) or isinstance(clock, type):
            raise wrong_type("clock must be a Clock", clock)
        if not isinstance(storage_options, (Mapping, NoneType)):
            raise wrong_type("storage_options must be a mapping", storage_options)
        if isinstance(target, str) and target.lower().startswith("memory:"):
            raise InvalidUrl(
                "memory:// is a store of its own, and empty, whenever it is opened: to follow one, "
                "make a taquba.objectstore.MemoryStore and open queue and follower on it"
            )
        shortest = seconds(poll_interval, name="poll_interval")
        longest = max(_LONGEST, shortest)
        if max_poll_interval is not None:
            longest = seconds(max_poll_interval, name="max_poll_interval")
        Replica.check_intervals(shortest, longest)
        config = DatabaseConfig(state=state, scratch=_validate.folder(scratch))

        async def opening() -> Follower:
            used_clock = clock or SystemClock()
            store, owned = await open_target(target, storage_options, read_only=True)
            try:
                replica = await Replica.open(
                    store,
                    [QUEUE_SCHEMA],
                    clock=used_clock,
                    config=config,
                    poll_interval=shortest,
                    max_poll_interval=longest,
                )
            except BaseException:
                if owned:
                    await store.close()
                raise
            return cls(
                replica=replica,
                store=store,
                clock=used_clock,
                owned_store=store if owned else None,
            )

        return Opening(opening, name="Follower")

    # -- life -------------------------------------------------------------------------------

    async def __aenter__(self) -> Follower:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop following. Safe to call twice; always terminates."""
        try:
            await self._replica.close()
        finally:
            if self._owned_store is not None:
                await self._owned_store.close()

    @property
    def failure(self) -> TaqubaError | None:
        """Why following ended by itself (`CorruptStore`, for example), or None.

        Every read raises it then. A store that cannot be reached is no such reason: see
        `Lag.last_error`.
        """
        return self._replica.failure

    @property
    def clock(self) -> Clock:
        """The clock that this follower goes by."""
        return self._clock

    # -- following --------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """How much of the journal is shown; to be compared with `Queue.position`."""
        return self._replica.position.seq

    @property
    def lag(self) -> Lag:
        """How far behind the owner this is, as far as is known."""
        return self._replica.lag

    async def refresh(self) -> Lag:
        """Look now. On return, everything is shown that was committed before the call.

        Raises:
            StoreError: The store cannot be read now; following goes on.
            CorruptStore, IncompatibleStore: The store cannot be followed any more.
        """
        return await self._replica.refresh()

    async def wait_for(self, position: int) -> None:
        """Return when everything is shown that the owner had committed at `Queue.position`.

        Raises:
            CorruptStore, IncompatibleStore: The store cannot be followed any more.
        """
        await self._replica.wait_for(position)

    async def wait_until(self, condition: Callable[[], bool | Awaitable[bool]]) -> None:
        """Return when `condition`, a function or an async function, holds.

        It is asked now, and whenever more is shown.

        Raises:
            CorruptStore, IncompatibleStore: The store cannot be followed any more.
        """
        await self._replica.wait_until(condition)

    def changes(self) -> AsyncGenerator[int, None]:
        """``async for position in follower.changes()``: now, and whenever more is shown.

        Changes that come while you work on one are told as one.

        Raises:
            CorruptStore, IncompatibleStore: The store cannot be followed any more.
        """
        return self._replica.changes()


class _Copy:
    """A replica as a source to read from; everything in it is durable."""

    def __init__(self, replica: Replica, store: ObjectStore, clock: Clock) -> None:
        self._replica = replica
        self.now_ms = clock.now_ms
        self.payloads = PayloadReader(store)
        self.enter = replica.enter
        self.rows = self.select = replica.rows

    def queue_name(self, number: int) -> str:
        [(name,)] = self.rows("SELECT name FROM queues WHERE number = ?", (number,))
        return str(name)

    def queue_number(self, name: str) -> int | None:
        rows = self.rows("SELECT number FROM queues WHERE name = ?", (name,))
        return rows[0][0] if rows else None

    def queue_names(self) -> list[str]:
        return [name for (name,) in self.rows("SELECT name FROM queues")]

    def counts(self, name: str) -> Sequence[int]:
        rows = self.rows(
            "SELECT pending, scheduled, claimed, done, dead FROM queues WHERE name = ?", (name,)
        )
        return rows[0] if rows else ()

    async def catch_up(self) -> None:
        await self._replica.refresh()

    async def leave(self) -> None:
        pass
