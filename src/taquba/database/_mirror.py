"""A copy of the state at one place of a journal that somebody else writes.

The state is always a prefix of what was committed: entries are applied in order, and why they
are the ones that count is argued in `taquba.journal._tail`. When collection overtook the copy,
it loads the newest checkpoint beside the state that it serves meanwhile, and changes over in
one step. It only ever changes over to a later place, so what is read never goes backwards.
"""

# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import apsw

from taquba.database._machine import Machine
from taquba.database._schema import MODULES_TABLE, SchemaModule
from taquba.database._select import select
from taquba.database._slices import Gradually
from taquba.errors import CorruptStore, IncompatibleStore, InvalidState
from taquba.journal import START, Checkpoint, Entry, Kind, Overtaken, Position, Tail
from taquba.journal import newest_checkpoint as find_newest_checkpoint

if TYPE_CHECKING:
    from taquba.database._config import DatabaseConfig
    from taquba.objectstore import ObjectStore

__all__ = ["Mirror"]

logger = logging.getLogger("taquba.database")

_SLICE = 16 * 1024
"""Bytes of changes that are applied before the event loop is let go on; a larger entry is
applied in parts."""
_OVERHEAD = 200
"""Bytes of changes that take as long to apply as there is to do for each entry besides."""


class Mirror:
    """Reads checkpoints and journal into a database of its own; reads only."""

    def __init__(
        self,
        store: ObjectStore,
        modules: Sequence[SchemaModule],
        config: DatabaseConfig,
        *,
        on_change: Callable[[], None],
    ) -> None:
        """Args:
        store: Where journal and checkpoints are.
        modules: The tables that are going to be read.
        config: Settings of the database.
        on_change: Called when there is more to see.
        """
        self._store = store
        self._modules = modules
        self._config = config
        self._on_change = on_change
        self._tail = Tail(store)
        self._machine: Machine | None = None
        self._blank = _blank(modules)
        self._ready = False
        """Whether the tables of all modules are there, so that they can be read."""
        self._under_way: Gradually | None = None
        self._applied = 0
        self._coming = 0
        """Entries that the checkpoint under way will bring."""
        self.resting = asyncio.Event()
        """Set while no entry is applied in part."""
        self.resting.set()
        self.position = START
        """The place whose state this is."""

    @property
    def machine(self) -> Machine:
        """The state itself."""
        assert self._machine is not None
        return self._machine

    @property
    def committed_at_ms(self) -> int | None:
        """When the state was committed, by its writer's clock."""
        return None if self._machine is None else self._machine.committed_at_ms

    @property
    def behind(self) -> int:
        """Entries that are known to be there, and are not applied yet."""
        return max(self._tail.behind, self._coming)

    @property
    def at_tail(self) -> bool:
        """Whether the last `read` ended where there was no more."""
        return self._tail.at_tail

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What a statement finds. Completes an entry that is applied in part.

        Raises:
            InvalidState: It would change something.
        """
        if self._under_way is not None:
            while self._under_way.step():
                pass
            _protect(self.machine, True)
        try:
            if self._ready:
                return select(self.machine.state.connection, sql, parameters)
            return select(self._blank, sql, parameters)
        except apsw.ReadOnlyError as error:
            raise InvalidState(f"a follower only reads: {error}") from error

    def close(self) -> None:
        """Let the database go."""
        machine, self._machine = self._machine, None
        if machine is not None:
            machine.close()
        self._blank.close()

    # -- following --------------------------------------------------------------------------

    async def begin(self) -> None:
        """Load the newest checkpoint; nothing, if there is none yet."""
        await self._load(await find_newest_checkpoint(self._store))

    async def read(self, *, thorough: bool) -> None:
        """Apply what is there.

        If `thorough`, this goes on until everything is applied that was acknowledged before the
        call, also where collection overtook the copy. Otherwise it costs one request if there
        is nothing, and may not notice that it was overtaken.

        Raises:
            CorruptStore: Something is damaged, and no newer checkpoint makes up for it.
            IncompatibleStore: Another version of taquba writes the store now.
            StoreError, OSError: It cannot be read now; to be tried again.
        """
        while not await self._pass(thorough=thorough):
            pass

    async def _pass(self, *, thorough: bool) -> bool:
        """Read once; whether that is enough."""
        try:
            await self._read_on()
            if not thorough:
                return True
            newest = await self.newest_beyond()
            if newest is None:
                return True
            # It may be there since after the last request for entries.
            start = self.position.seq
            await self._read_on()
            if self.position.seq == start:
                await self._load(newest)
        except Overtaken as error:
            await self._load(error.checkpoint)
        except CorruptStore as error:
            newest = await self.newest_beyond()
            if newest is None:
                raise
            logger.info("starting again from checkpoint %d: %s", newest.position.seq, error)
            await self._load(newest)
        return False

    async def newest_beyond(self) -> Checkpoint | None:
        """A checkpoint that proves that the log went on; None proves that it was not collected
        from here on.
        """
        return await self._tail.beyond(self.position.seq)

    async def _read_on(self) -> None:
        async with aclosing(self._tail.entries(self.position)) as entries:
            async for entry, after in entries:
                await self._apply(entry, after)

    async def _apply(self, entry: Entry, after: Position) -> None:
        machine = self.machine
        if entry.kind is Kind.EPOCH:
            machine.check(entry.body)
        else:
            _protect(machine, False)
            try:
                if len(entry.body) > _SLICE:
                    await self._apply_gradually(machine, entry)
                else:
                    machine.apply(entry)
            finally:
                _protect(machine, True)
        if not self._ready:
            self._ready = self._all_tables(machine)
        self.position = after
        self._applied += len(entry.body) + _OVERHEAD
        if self._applied > _SLICE:
            self._applied = 0
            self._on_change()
            await asyncio.sleep(0)

    async def _apply_gradually(self, machine: Machine, entry: Entry) -> None:
        self._under_way = Gradually(machine, entry)
        self.resting.clear()
        try:
            while self._under_way.step():
                await asyncio.sleep(0)
        finally:
            self._under_way = None
            self.resting.set()

    # -- checkpoints ------------------------------------------------------------------------

    async def _load(self, checkpoint: Checkpoint | None) -> None:
        """Change over to a checkpoint, or to a newer one if it goes while it is loaded."""
        try:
            machine, ready = await self._restored(checkpoint)
        except CorruptStore:
            newer = None
            if checkpoint is not None:
                newer = await self._tail.beyond(checkpoint.position.seq)
            if newer is None:
                raise
            await self._load(newer)
            return
        finally:
            self._coming = 0
        position = START if checkpoint is None else checkpoint.position
        if position.seq < self.position.seq:
            machine.close()
            return
        before, self._machine = self._machine, machine
        if before is not None:
            before.close()
        self._ready = ready
        self.position = position

    async def _restored(self, checkpoint: Checkpoint | None) -> tuple[Machine, bool]:
        machine = Machine(self._store, self._modules, self._config)
        if checkpoint is not None:
            self._coming = checkpoint.position.seq - self.position.seq
        try:
            await machine.restore(checkpoint)
            _protect(machine, True)
            return machine, self._all_tables(machine)
        except BaseException:
            machine.close()
            raise

    def _all_tables(self, machine: Machine) -> bool:
        """Whether the tables of all modules are there.

        Raises:
            IncompatibleStore: Some are older than what the caller reads.
        """
        versions = machine.state.versions()
        for module in self._modules:
            if 0 < versions.get(module.name, 0) < module.version:
                raise IncompatibleStore(
                    f"the store's {module.name!r} tables have version {versions[module.name]}, "
                    f"and this process reads version {module.version}: let the process that "
                    "writes the store use this version first"
                )
        return all(module.name in versions for module in self._modules)


def _blank(modules: Sequence[SchemaModule]) -> apsw.Connection:
    """An empty database, read while the store has no tables yet."""
    connection = apsw.Connection(":memory:")
    for statement in (MODULES_TABLE, *(sql for module in modules for sql in module.statements)):
        connection.execute(statement)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _protect(machine: Machine, on: bool) -> None:
    """Let nobody change the state but the journal."""
    machine.state.execute(f"PRAGMA query_only = {'ON' if on else 'OFF'}")
