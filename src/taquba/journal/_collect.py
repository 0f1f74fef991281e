"""Deleting what no checkpoint needs."""

from __future__ import annotations

from dataclasses import dataclass

from taquba.errors import InvalidArgument
from taquba.journal._checkpoint import (
    Checkpoint,
    checkpoint_key,
    list_checkpoints,
    read_checkpoint,
)
from taquba.journal._position import JOURNAL_PREFIX, seq_of_key
from taquba.objectstore import ObjectStore

__all__ = ["Collected", "collect", "epochs_to_keep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What one collection did.

    Attributes:
        cut: Entries below this seq were deleted, apart from epoch entries.
        entries: How many were.
        checkpoints: How many checkpoint manifests were.
    """

    cut: int
    entries: int
    checkpoints: int


async def collect(
    store: ObjectStore, checkpoint: Checkpoint, *, keep: int = 2, batch: int = 500
) -> Collected:
    """Delete the checkpoints before the newest `keep`, and the entries before the oldest kept.

    Epoch entries stay for ever: each is what stops a writer that slept through the takeover.
    May be stopped at any await and called again, and may run in several processes at once.

    Args:
        store: Where the log is.
        checkpoint: A published checkpoint of the caller's own log; nothing at or after it goes.
        keep: Checkpoints to keep.
        batch: Keys per deletion request.
    """
    if keep < 1 or batch < 1:
        raise InvalidArgument(f"keep is {keep} and batch is {batch}: at least 1 each")
    seqs = await list_checkpoints(store)
    if checkpoint.position.seq not in seqs:
        # Somebody who knows more has collected it.
        return Collected(cut=0, entries=0, checkpoints=0)
    cut = min(seqs[-keep:][0], checkpoint.position.seq)
    oldest = checkpoint if cut == checkpoint.position.seq else await read_checkpoint(store, cut)
    if oldest is None:
        return Collected(cut=0, entries=0, checkpoints=0)
    manifests = [checkpoint_key(seq) for seq in seqs if seq < cut]
    # Manifests first: nobody should find one whose entries are gone.
    for start in range(0, len(manifests), batch):
        await store.delete(manifests[start : start + batch])
    entries = await _collect_entries(store, oldest, batch)
    return Collected(cut=cut, entries=entries, checkpoints=len(manifests))


def epochs_to_keep(checkpoint: Checkpoint) -> frozenset[int]:
    """The seqs of the epoch entries before the checkpoint that sets the cut."""
    return frozenset(mark.seq for mark in checkpoint.position.epochs)


async def _collect_entries(store: ObjectStore, oldest: Checkpoint, batch: int) -> int:
    kept = epochs_to_keep(oldest)
    cut = oldest.position.seq
    doomed: list[str] = []
    count = 0
    async for info in store.list(JOURNAL_PREFIX):
        seq = seq_of_key(info.key)
        if seq is None or seq in kept:
            continue
        if seq >= cut:
            break
        doomed.append(info.key)
        if len(doomed) >= batch:
            await store.delete(doomed)
            count += len(doomed)
            doomed = []
    if doomed:
        await store.delete(doomed)
    return count + len(doomed)
