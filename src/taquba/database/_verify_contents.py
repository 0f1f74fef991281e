"""Looking at one checkpoint: the chunks that it names, and the database that they make up."""

# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os

import apsw

from taquba.database._chunks import ChunkStore, Contents
from taquba.database._compare import difference, inconsistency
from taquba.database._config import DatabaseConfig
from taquba.database._packs import chunk_key, decode_pack
from taquba.database._scratch import scratch_folder
from taquba.database._state import State
from taquba.errors import CorruptStore, ObjectNotFound
from taquba.journal import Checkpoint
from taquba.objectstore import ObjectStore

__all__ = ["compare", "examine_chunks"]


async def compare(
    store: ObjectStore, checkpoint: Checkpoint, state: State, config: DatabaseConfig
) -> str:
    """What is different in a checkpoint; nothing if it holds what was replayed.

    Raises:
        CorruptStore: It cannot be loaded.
    """
    name = f"checkpoint {checkpoint.position.seq}"
    contents = Contents.from_json(name, checkpoint.content)
    if contents.modules != state.versions():
        return (
            f"it says that its tables have versions {contents.modules}, and the journal leads "
            f"to {state.versions()}"
        )
    async with scratch_folder(config.scratch) as folder:
        path = os.path.join(folder, "checkpoint.db")
        await ChunkStore(store, transfers=config.transfers).download(contents, path)
        try:
            theirs = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
            try:
                told = await difference(state.connection, theirs)
                return told or await inconsistency(theirs)
            finally:
                theirs.close()
        except apsw.Error as error:
            return f"its content is no database: SQLite says {error}"


async def examine_chunks(
    store: ObjectStore, checkpoint: Checkpoint
) -> tuple[list[str], dict[str, str]]:
    """The keys of a checkpoint's chunks that are missing; and by key, what is wrong with others.

    Raises:
        CorruptStore: Its manifest does not say which they are.
    """
    contents = Contents.from_json(f"checkpoint {checkpoint.position.seq}", checkpoint.content)
    missing: list[str] = []
    damaged: dict[str, str] = {}
    for pack in contents.packs:
        key = chunk_key(contents.epoch, pack.digest)
        try:
            data = await store.get(key)
            decode_pack(pack, key, data, contents.block_size, contents.name)
        except ObjectNotFound:
            missing.append(key)
        except CorruptStore as complaint:
            damaged[key] = str(complaint)
    return missing, damaged
