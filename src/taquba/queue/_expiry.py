"""An index by time over keys of the key-value store."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, cast, final

from taquba._checks import as_datetime, wrong_type
from taquba.clock import Duration, seconds
from taquba.errors import InvalidArgument, InvalidType
from taquba.queue import _validate
from taquba.queue._calls import check_effects
from taquba.queue._effects import Effects

if TYPE_CHECKING:
    from taquba.queue._queue import Queue

__all__ = ["DeleteEntry", "ExpiryIndex", "KeepEntry", "OnExpired"]

logger = logging.getLogger("taquba.queue")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PAGE = 256
_TIME = 8
_LAST_MS = 253_402_300_799_000  # the end of the year 9999, where datetime ends


@dataclass(frozen=True, slots=True)
class DeleteEntry:
    """The entry is dealt with: delete it, and commit effects together with that."""

    effects: Effects | None = None
    """Committed with the deletion, or neither is."""
    provided: Mapping[str | bytes, bytes | None] | None = None
    """By key, what it must hold for the effects to apply; None: nothing. If some key does not,
    the entry alone is deleted."""


@dataclass(frozen=True, slots=True)
class KeepEntry:
    """Leave the entry: the next sweep offers it again."""


OnExpired = Callable[
    [datetime, bytes], DeleteEntry | KeepEntry | Awaitable[DeleteEntry | KeepEntry]
]
"""Says what becomes of an entry, given its time and its suffix; a function or an async one."""


@final
class ExpiryIndex:
    """Entries of the key-value store in the order of their times, to be swept when they are old.

    An entry is a key: a prefix, a time, and whatever tells what it stands for. Write it together
    with what is to expire, and `sweep` now and then, for example once an hour.

    The prefix is the index's alone: whatever else is below it is deleted.

    Example:
        >>> import asyncio
        >>> from taquba import Effects, Queue
        >>> index = ExpiryIndex("expiry/sessions/")
        >>> async def main() -> int:
        ...     async with Queue.open("memory://") as queue:
        ...         now = datetime.now(UTC)
        ...         session = Effects().put("sessions/7", b"data")
        ...         await queue.commit(index.add(session, now, "7"))
        ...         return await index.sweep(
        ...             queue,
        ...             lambda at, suffix: DeleteEntry(Effects().delete(b"sessions/" + suffix)),
        ...             age=timedelta(0),
        ...         )
        >>> asyncio.run(main())
        1
    """

    __slots__ = ("prefix",)

    prefix: bytes
    """What the keys of all entries begin with."""

    def __init__(self, prefix: str | bytes) -> None:
        """Make an index over a prefix; nothing is read or written."""
        self.prefix = _validate.kv_key(prefix)
        if not self.prefix:
            raise InvalidArgument("the prefix is empty, and would take every key for the index")

    def key(self, at: datetime, suffix: str | bytes = b"") -> bytes:
        """The key of an entry: the prefix, the time in milliseconds as 8 bytes, and the suffix.

        Raises:
            InvalidArgument: The time has no time zone, or is before 1970.
            ValueTooLarge: The key has more than 4,096 bytes.
        """
        if not isinstance(at, datetime):
            raise wrong_type("the time of an entry must be a datetime", at)
        if at.tzinfo is None:
            raise InvalidArgument(f"the time {at!r} has no time zone: use datetime.now(UTC)")
        at_ms = (at - _EPOCH) // timedelta(milliseconds=1)
        if at_ms < 0:
            raise InvalidArgument(f"the time {at!r} is before 1970")
        key = self.prefix + at_ms.to_bytes(_TIME, "big") + _validate.kv_key(suffix)
        return _validate.kv_key(key)

    def add(self, effects: Effects, at: datetime, suffix: str | bytes = b"") -> Effects:
        """Let effects write an entry, with what it stands for; returns the same effects.

        Raises:
            InvalidArgument, ValueTooLarge: See `key`.
        """
        if not isinstance(effects, Effects):
            raise wrong_type("effects must be an Effects", effects)
        return effects.put(self.key(at, suffix), b"")

    def parse(self, key: bytes) -> tuple[datetime, bytes] | None:
        """Time and suffix of an entry; None for a key that is none."""
        at_ms = self._time(key)
        if at_ms is None or at_ms > _LAST_MS:
            return None
        return cast("datetime", as_datetime(at_ms)), key[len(self.prefix) + _TIME :]

    async def sweep(
        self,
        queue: Queue,
        on_expired: OnExpired,
        *,
        age: Duration,
        now: datetime | None = None,
    ) -> int:
        """Go through the entries that are at least this old, the oldest first.

        What is deleted stays so if this ends by an error or is cancelled; a later sweep offers
        the rest. When nothing is due, it costs one look at the state and no request.

        Args:
            queue: The queue that has the entries.
            on_expired: Asked of every entry: a `DeleteEntry` or a `KeepEntry`. Entries that
                somebody else deletes meanwhile are passed over.
            age: How old an entry must be. An infinite age is never reached.
            now: What its age is measured by; default: the queue's clock.

        Returns:
            How many entries were deleted as `on_expired` said.

        Raises:
            DuplicateJobId: An effect enqueues under an id that is taken; its entry stays.
            Fenced: Another process took the store over.
        """
        if not callable(on_expired):
            raise wrong_type("on_expired must be a function", on_expired)
        least = seconds(age, name="age") * 1000
        if now is not None and (not isinstance(now, datetime) or now.tzinfo is None):
            raise InvalidArgument(f"now is {now!r}: give a datetime with a time zone")
        now_ms = (
            queue.clock.now_ms() if now is None else (now - _EPOCH) // timedelta(milliseconds=1)
        )
        deleted = 0
        async with aclosing(queue.kv.entries(self.prefix, page_size=_PAGE)) as entries:
            async for key, _ in entries:
                at_ms = self._time(key)
                if at_ms is None:
                    logger.warning("key %r is no entry of the index and is deleted", key)
                    await queue.kv.delete(key)
                    continue
                if at_ms + least > now_ms or at_ms > _LAST_MS:
                    break
                at, suffix = cast("datetime", as_datetime(at_ms)), key[len(self.prefix) + _TIME :]
                decision = on_expired(at, suffix)
                if inspect.isawaitable(decision):
                    decision = await decision
                deleted += await self._apply(queue, key, decision)
        return deleted

    async def _apply(self, queue: Queue, key: bytes, decision: object) -> int:
        if isinstance(decision, KeepEntry):
            return 0
        if not isinstance(decision, DeleteEntry):
            raise InvalidType(
                f"on_expired must return a DeleteEntry or a KeepEntry, not {decision!r}"
            )
        check_effects(decision.effects)
        compares = _validate.compares({} if decision.provided is None else decision.provided)
        async with queue._committing(decision.effects) as tx:
            if not tx.contains(key):
                return 0
            if all(tx.holds(name, expected) for name, expected in compares.items()):
                tx.apply(decision.effects)
            tx.delete(key)
        return 1

    def _time(self, key: bytes) -> int | None:
        """The time of an entry, in milliseconds; None for a key that is none."""
        start = len(self.prefix)
        if not key.startswith(self.prefix) or len(key) < start + _TIME:
            return None
        return int.from_bytes(key[start : start + _TIME], "big")

    def __repr__(self) -> str:
        return f"ExpiryIndex({self.prefix!r})"
