"""Finding the place in the log at which a moment of the past was reached.

Commit times come from the writers' clocks, which may jump, and differ from one writer to the
next. So "as of T" is defined by the log: it is everything before the first entry whose commit
time is later than T. A checkpoint notes the latest commit time of all entries before it; that
time never decreases from one checkpoint to the next, so they can be searched by it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from taquba.journal._checkpoint import Checkpoint, list_checkpoints, read_checkpoint
from taquba.objectstore import ObjectStore

__all__ = ["checkpoint_as_of", "checkpoints"]


async def checkpoint_as_of(
    store: ObjectStore, at_ms: int, *, before: int | None = None
) -> Checkpoint | None:
    """The newest checkpoint that holds nothing later than `at_ms`; None if there is none.

    Args:
        store: Where the log is.
        at_ms: Milliseconds since the Unix epoch.
        before: Consider only checkpoints before this seq.

    Raises:
        CorruptStore: A manifest is damaged.
        IncompatibleStore: A newer taquba wrote one.
    """
    seqs = [seq for seq in await list_checkpoints(store) if before is None or seq < before]
    found: Checkpoint | None = None
    low, high = 0, len(seqs)
    while low < high:
        middle = (low + high) // 2
        checkpoint = await read_checkpoint(store, seqs[middle])
        if checkpoint is None:  # collected meanwhile, and so is every older one
            low = middle + 1
        elif checkpoint.as_of_ms <= at_ms:
            found = checkpoint
            low = middle + 1
        else:
            high = middle
    return found


async def checkpoints(store: ObjectStore) -> AsyncGenerator[Checkpoint, None]:
    """All checkpoints that there are, oldest first.

    Raises:
        CorruptStore: A manifest is damaged.
        IncompatibleStore: A newer taquba wrote one.
    """
    for seq in await list_checkpoints(store):
        checkpoint = await read_checkpoint(store, seq)
        if checkpoint is not None:
            yield checkpoint
