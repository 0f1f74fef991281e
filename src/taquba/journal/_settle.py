"""Creating an entry when the answer may lie."""

from __future__ import annotations

from taquba.errors import CorruptStore, Fenced, ObjectExists, TaqubaError
from taquba.journal._entry import decode_entry
from taquba.journal._position import entry_key
from taquba.objectstore import ObjectStore

__all__ = ["create_or_read", "lost_to"]


async def create_or_read(store: ObjectStore, key: str, data: bytes) -> bytes | None:
    """Create the object; `None` if the key holds exactly `data`, else the bytes it holds.

    'Already exists' proves nothing: clients resend what was not answered. So what is there
    is read back and compared; entries carry their writer's random id, so no two are alike.

    Raises:
        StoreError: Nobody knows; repeating the call is safe.
    """
    try:
        await store.create(key, data)
    except ObjectExists:
        found = await store.get(key)
        return None if found == data else found
    return None


def lost_to(seq: int, found: bytes) -> TaqubaError:
    """The error of a writer that finds `found` where its own entry `seq` should be."""
    key = entry_key(seq)
    try:
        entry = decode_entry(key, found)
    except CorruptStore as error:
        return error
    except TaqubaError:
        return Fenced(f"a newer version of taquba took this store over, at {key!r}: close this one")
    return Fenced(
        f"another process (writer {entry.writer.hex()}, epoch {entry.epoch}) took this store "
        f"over, at {key!r}: close this one"
    )
