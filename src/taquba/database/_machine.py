"""How the database follows the journal, and feeds it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import apsw

from taquba._msgpack import pack, unpack
from taquba.database._body import BODY_VERSION
from taquba.database._checkpoints import latest
from taquba.database._chunks import ChunkStore, Contents
from taquba.database._schema import SchemaModule
from taquba.database._scratch import ScratchFile, naming_a_full_disk, scratch_folder
from taquba.database._state import NO_ROOM, State
from taquba.errors import CorruptStore, IncompatibleStore, TaqubaError
from taquba.journal import Checkpoint, Entry, Position

if TYPE_CHECKING:
    from taquba.database._checkpoints import Checkpointer
    from taquba.database._config import DatabaseConfig
    from taquba.database._shrink import Shrinker
    from taquba.journal import Journal
    from taquba.objectstore import ObjectStore

__all__ = ["Machine"]


class Machine:
    """The database as the journal's state machine."""

    def __init__(
        self, store: ObjectStore, modules: Sequence[SchemaModule], config: DatabaseConfig
    ) -> None:
        self._store = store
        self._modules = {module.name: module for module in modules}
        self._config = config
        self._state: State | None = None
        self._file: ScratchFile | None = None
        self._journal: Journal | None = None
        self._checkpointer: Checkpointer | None = None
        self._shrinker: Shrinker | None = None
        self._on_failure: Callable[[TaqubaError], None] | None = None
        self.before_seal: list[Callable[[], None]] = []
        self.base: Checkpoint | None = None
        """The checkpoint that the state was loaded from."""
        self.replayed_entries = 0
        self.replayed_bytes = 0
        self.committed_at_ms: int | None = None
        """The latest commit time of what was loaded and replayed."""
        self._sealed_size = 0

    @property
    def state(self) -> State:
        assert self._state is not None
        return self._state

    def attach(
        self,
        journal: Journal,
        checkpointer: Checkpointer,
        shrinker: Shrinker,
        on_failure: Callable[[TaqubaError], None],
    ) -> None:
        """From now on there is a journal to feed."""
        self._shrinker = shrinker
        self._journal = journal
        self._checkpointer = checkpointer
        self._on_failure = on_failure

    def close(self) -> None:
        if self._state is not None:
            self._state.close()
        if self._file is not None:
            self._file.remove()
            self._file = None

    # -- opening ----------------------------------------------------------------------------

    def metadata(self) -> bytes:
        """What this writer's epoch entry says of its versions."""
        versions = {module.name: module.version for module in self._modules.values()}
        return pack({"body": BODY_VERSION, "modules": versions})

    def check(self, metadata: bytes) -> None:
        try:
            said: Any = unpack(metadata)
            body, modules = int(said["body"]), cast("dict[str, int]", dict(said["modules"]))
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptStore(f"an epoch entry is damaged: its metadata says {error!r}") from error
        if body > BODY_VERSION:
            raise IncompatibleStore(
                f"the store was written with body version {body}, and this process knows "
                f"{BODY_VERSION}: upgrade taquba here. Nothing was changed"
            )
        self._check_versions(modules)

    def _check_versions(self, versions: dict[str, int]) -> None:
        for name, module in self._modules.items():
            module.check_not_newer(versions.get(name, 0))

    async def restore(self, checkpoint: Checkpoint | None) -> None:
        self.close()
        self._state = None
        self.base = checkpoint
        self.replayed_entries = self.replayed_bytes = 0
        self.committed_at_ms = None if checkpoint is None else checkpoint.as_of_ms
        try:
            with naming_a_full_disk(self._config.scratch):
                await self._restore(checkpoint)
        except BaseException:
            self.close()
            self._state = None
            raise

    async def _restore(self, checkpoint: Checkpoint | None) -> None:
        contents: Contents | None = None
        if checkpoint is not None:
            name = f"checkpoint {checkpoint.position.seq}"
            contents = Contents.from_json(name, checkpoint.content)
            self._check_versions(contents.modules)
        if self._config.state == "disk":
            self._file = ScratchFile(self._config.scratch)
            if contents is not None:
                await self._download(contents, self._file.path)
            self._state = State(self._config.cache_bytes, self._file.path)
            self._file.hide()
        else:
            self._state = State(self._config.cache_bytes)
            if contents is not None:
                async with scratch_folder(self._config.scratch) as folder:
                    path = os.path.join(folder, "checkpoint.db")
                    await self._download(contents, path)
                    await self._copy_from(path, contents)
        if contents is None:
            self._state.create()
        else:
            self._check_loaded(self._state, contents)

    async def _download(self, contents: Contents, path: str) -> None:
        await ChunkStore(self._store, transfers=self._config.transfers).download(contents, path)

    async def _copy_from(self, path: str, contents: Contents) -> None:
        try:
            source = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
            try:
                with self.state.loading(source) as backup:
                    while not backup.step(self._config.pages_per_step):
                        await asyncio.sleep(0)
            finally:
                source.close()
        except NO_ROOM as error:
            raise self.state.no_room(error) from error
        except apsw.Error as error:
            raise CorruptStore(f"{contents.name} is damaged: SQLite says {error}") from error

    def _check_loaded(self, state: State, contents: Contents) -> None:
        name = contents.name
        try:
            state.tables_changed()
            found = state.versions()
        except apsw.Error as error:
            raise CorruptStore(f"{name} is damaged: SQLite says {error}") from error
        if found != contents.modules:
            raise CorruptStore(
                f"{name} is damaged: its tables have versions {found}, its manifest says "
                f"{contents.modules}"
            )

    def apply(self, entry: Entry) -> None:
        if self.state.apply(f"journal entry {entry.seq}", entry.body):
            # A module that was added later is in nobody's metadata.
            self._check_versions(self.state.versions())
        self.committed_at_ms = latest(self.committed_at_ms, entry.committed_at_ms)
        self.replayed_entries += 1
        self.replayed_bytes += len(entry.body)

    # -- writing ----------------------------------------------------------------------------

    def seal(self, seq: int) -> bytes | None:
        state = self.state
        if state.session is not None:
            try:
                for callback in self.before_seal:
                    callback()
            except NO_ROOM as error:
                raise state.no_room(error) from error
        body = state.seal()
        self._sealed_size = 0 if body is None else len(body)
        if body is None and self._checkpointer is not None and self._journal is not None:
            self._checkpointer.clean(self._journal.position)
            self._shrink()
        return body

    def _shrink(self) -> None:
        if self._shrinker is not None:
            self._shrinker.clean()

    def sealed(self, position: Position) -> None:
        if self._checkpointer is not None:
            self._checkpointer.sealed(position, self._sealed_size)
            self._shrink()

    def failed(self, error: TaqubaError) -> None:
        if self._checkpointer is not None:
            self._checkpointer.failed(error)
        if self._on_failure is not None:
            self._on_failure(error)
