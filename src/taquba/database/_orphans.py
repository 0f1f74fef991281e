"""Objects that rows name: made before the commit that names them, deleted when none does.

A layer above stores something large as an object of its own, and then commits a row that names
it. If the process dies between the two, or the row is deleted later, the object is an orphan.
The layer registers a prefix and a function that says which keys are named; this does the rest.

An object is named at most once: from the commit of its maker until that name is gone, and never
again. Rows may hand a name on to other rows within a transaction. So an object is deleted in
two steps:

1. It is *marked*: found unnamed, older than the grace period, and not held by its maker. The
   mark is a row, with the place in the journal that it is committed at.
2. When the oldest checkpoint that is kept includes the mark, the object is deleted. From then
   on every state that anybody can rebuild has the mark, and none has the name: not the one that
   a successor opens, none of the retained history, and not one in which our last commits were
   lost. Marks are state, so the next owner goes on where this one stopped.

No clock is needed for that to be safe. What this process makes is held until the transaction
that names it is over; what an older epoch made can be named by nobody any more, since that
writer is fenced; what a newer epoch made is not looked at. The grace period is a second line of
defence, for a maker that does not hold its key, and for writes that arrive long after they were
given up. It compares the time in the key with `SteadyTime`. It is two hours at least, so that a
clock that was an hour slow when the key was made takes at most half of it; one that was fast
keeps the object longer.
"""

# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Sequence
from contextlib import aclosing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, final

from taquba.clock import Duration, seconds
from taquba.database._schema import SchemaModule
from taquba.errors import InvalidArgument
from taquba.objectstore._protocol import check_prefix

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.database._collection import SteadyTime
    from taquba.database._database import Database
    from taquba.journal import Pace
    from taquba.objectstore import ObjectStore

__all__ = ["LEAST_GRACE", "IsNamed", "ObjectKeys", "OrphanCollector", "check_object_prefix"]

logger = logging.getLogger("taquba.database")

LEAST_GRACE = timedelta(hours=2)
"""The shortest grace period."""

IsNamed = Callable[[Sequence[str]], Collection[str]]
"""Which of these keys the database names now. Synchronous; it reads with `Database.execute`."""

_TABLE = SchemaModule(
    name="orphans",
    version=1,
    statements=(
        "CREATE TABLE orphans (key TEXT NOT NULL PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE INDEX orphans_by_seq ON orphans (seq)",
    ),
)
_OWN_PREFIXES = ("journal/", "checkpoints/", "chunks/")
_REST = re.compile(r"(?P<epoch>\d{10})-(?P<made_at>\d{13})-[0-9a-f]{16}(-\d{5})?")
_PART = re.compile(r"-\d{5}")
_LOOKS_PER_GRACE = 4
_PAGE = 1000
_LAST_MS = 10**13 - 1


def check_object_prefix(prefix: str, taken: Collection[str]) -> None:
    """Raise unless objects can have this prefix, and are told apart from all others by it.

    Raises:
        InvalidArgument: It is not like that.
    """
    check_prefix(prefix)
    if not re.fullmatch(r"[^/]+/", prefix):
        raise InvalidArgument(f"prefix is {prefix!r}: give a single segment, such as 'payloads/'")
    if prefix in _OWN_PREFIXES:
        raise InvalidArgument(f"prefix is {prefix!r}, which the database uses itself")
    if prefix in taken:
        raise InvalidArgument(f"prefix is {prefix!r}, which was registered before")


@final
class ObjectKeys:
    """Makes the keys of one kind of objects; from `Database.collect_orphans`."""

    def __init__(self, prefix: str, *, clock: Clock, epoch: int) -> None:
        self.prefix = prefix
        """What all of them begin with."""
        self._clock = clock
        self._epoch = epoch
        self._held: set[str] = set()

    @contextmanager
    def new(self) -> Generator[str]:
        """A new key, held while the block runs: store the object, and commit what names it.

        Several objects that belong together have the key with ``-00000``, ``-00001``, … behind
        it. When the block ends, the objects are either named or orphans.
        """
        made_at = min(max(self._clock.now_ms(), 0), _LAST_MS)
        unique = self._clock.random_bytes(8).hex()
        key = f"{self.prefix}{self._epoch:010d}-{made_at:013d}-{unique}"
        if key in self._held:
            raise InvalidArgument(f"the clock's random bytes repeat: {key!r} was made before")
        self._held.add(key)
        try:
            yield key
        finally:
            self._held.discard(key)

    def is_held(self, key: str) -> bool:
        """Whether the block that this key, or that of its part, was made for still runs."""
        return key in self._held or (
            _PART.fullmatch(key[-6:]) is not None and key[:-6] in self._held
        )


@final
class OrphanCollector:
    """Finds and deletes the orphans under one prefix."""

    def __init__(
        self,
        store: ObjectStore,
        database: Database,
        keys: ObjectKeys,
        is_named: IsNamed,
        grace: Duration,
        *,
        clock: Clock,
        time: SteadyTime,
        epoch: int,
    ) -> None:
        self._grace = seconds(grace, name="grace")
        if self._grace < LEAST_GRACE.total_seconds():
            raise InvalidArgument(
                f"grace is {grace!r}: at least {LEAST_GRACE}, so that a clock that jumps by an "
                "hour does no harm"
            )
        self._store = store
        self._database = database
        self._keys = keys
        self._is_named = is_named
        self._clock = clock
        self._time = time
        self._epoch = epoch
        self._look_at = clock.monotonic()

    async def collect(self, cut: int, pace: Pace, batch: int) -> int:
        """Delete what was marked before the cut, and mark what is new; how many went."""
        count = 0
        while doomed := self._marked(cut, batch):
            named = set(self._is_named(doomed))
            for key in sorted(named.intersection(doomed)):
                logger.warning("object %r is named again, and stays", key)
            orphans = [key for key in doomed if key not in named]
            if orphans:
                await pace(len(orphans))
                await self._store.delete(orphans)
                count += len(orphans)
            await self._unmark(doomed)
        if self._clock.monotonic() >= self._look_at:
            await self._look(pace, batch)
            # There is no hurry: what is found now has been there for all of the grace period.
            self._look_at = self._clock.monotonic() + self._grace / _LOOKS_PER_GRACE
        return count

    def _marked(self, cut: int, count: int) -> list[str]:
        if not self._has_table():
            return []
        rows = self._database.execute(
            "SELECT key FROM orphans WHERE seq < ? AND key > ? AND key < ?"
            " ORDER BY seq, key LIMIT ?",
            (cut, self._keys.prefix, self._keys.prefix + "~", count),
        )
        return [str(key) for (key,) in rows.fetchall()]

    def _has_table(self) -> bool:
        rows = self._database.execute(
            "SELECT 1 FROM schema_modules WHERE name = ?", (_TABLE.name,)
        ).fetchall()
        return bool(rows)

    async def _unmark(self, keys: list[str]) -> None:
        await self._database.admit()
        with self._database.transaction() as tx:
            for key in keys:
                tx.execute("DELETE FROM orphans WHERE key = ?", (key,))

    async def _look(self, pace: Pace, batch: int) -> None:
        found: list[str] = []
        async with aclosing(self._old_keys(pace)) as keys:
            async for key in keys:
                found.append(key)
                if len(found) == batch:
                    await self._mark(found)
                    found = []
        if found:
            await self._mark(found)

    async def _old_keys(self, pace: Pace) -> AsyncGenerator[str, None]:
        """Keys of objects that are older than the grace period, and not of a newer epoch."""
        prefix = self._keys.prefix
        old_ms = self._time.now_ms() - self._grace * 1000
        seen = 0
        await pace(1)
        async for info in self._store.list(prefix):
            seen += 1
            if seen % _PAGE == 0:
                await pace(1)
            made = _REST.fullmatch(info.key, len(prefix))
            if made is None:
                continue  # not one of ours
            if int(made["epoch"]) > self._epoch:
                return
            if int(made["made_at"]) <= old_ms:
                yield info.key
            elif int(made["epoch"]) == self._epoch:
                return  # those behind it are younger

    async def _mark(self, keys: list[str]) -> None:
        database = self._database
        # Twice, so that nothing is written, and no table made, as long as there is no orphan.
        if not self._orphans(keys):
            return
        if not self._has_table():
            await database.add_module(_TABLE)
        await database.admit()
        orphans = self._orphans(keys)
        with database.transaction() as tx:
            # These rows are part of the entry that is sealed next.
            for key in orphans:
                tx.execute(
                    "INSERT INTO orphans VALUES (?, ?) ON CONFLICT DO NOTHING",
                    (key, database.position.seq),
                )

    def _orphans(self, keys: list[str]) -> list[str]:
        named = set(self._is_named(keys))
        return [key for key in keys if key not in named and not self._keys.is_held(key)]
