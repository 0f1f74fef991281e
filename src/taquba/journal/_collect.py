"""Deleting what no checkpoint needs that is to be kept.

Safe whoever calls it, and whenever it stops:

* Only what lies before the *cut* goes, and the cut is the place of a checkpoint that is there.
  Manifests go before the entries that they need, so nobody finds one whose entries are gone. A
  reader that had begun with one finds an entry missing, sees that a newer checkpoint exists,
  and starts over from that.
* The cut is never beyond the caller's own checkpoint. A writer that was replaced and does not
  know it therefore only deletes what was superfluous before it was replaced; and the manifests
  of its successors lie behind, and count as kept.
* Epoch entries stay for ever: each is what stops a writer that slept through the takeover.
  Which ones they are is in the caller's checkpoint, whose log leads through the cut.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from taquba.errors import InvalidArgument
from taquba.journal._checkpoint import (
    Checkpoint,
    checkpoint_key,
    list_checkpoints,
    read_checkpoint,
)
from taquba.journal._position import JOURNAL_PREFIX, seq_of_key
from taquba.objectstore import ObjectStore

__all__ = ["Collected", "Pace", "collect", "epochs_to_keep"]

_PAGE = 1000
"""Objects of a listing that count as one looked at: what a store answers to one request."""

Pace = Callable[[int], Awaitable[None]]
"""Called before so many objects are deleted or read; returns when it is time to do that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What one collection did.

    Attributes:
        cut: Entries below this seq were deleted, apart from epoch entries.
        entries: How many were.
        checkpoints: How many checkpoint manifests were.
        kept: The seqs of the checkpoints that stay, ascending; none if the caller's own is gone.
    """

    cut: int
    entries: int
    checkpoints: int
    kept: tuple[int, ...] = field(default=(), compare=False)


async def collect(
    store: ObjectStore,
    checkpoint: Checkpoint,
    *,
    keep: int = 2,
    since_ms: int | None = None,
    batch: int = 500,
    pace: Pace | None = None,
    note: Callable[[Checkpoint], None] | None = None,
    times: dict[int, int] | None = None,
) -> Collected:
    """Delete old checkpoints, and the entries before the oldest that is kept.

    May be stopped at any await and called again, and may run in several processes at once.

    Args:
        store: Where the log is.
        checkpoint: A published checkpoint of the caller's own log; nothing at or after it goes.
        keep: Checkpoints to keep at least, of the newest. While there are fewer, nothing goes.
        since_ms: Keep, too, what the states as of this moment and all later ones need: see
            `taquba.journal._history`.
        batch: Keys per deletion request.
        pace: Bounds the rate.
        note: Called with each kept checkpoint that is not in `times`.
        times: By seq, the times of checkpoints that need not be read, since they were before.
            What is read is added, and what is not kept is dropped.

    Raises:
        CorruptStore: A kept manifest is damaged. Nothing was deleted.
        IncompatibleStore: A newer taquba wrote it. Nothing was deleted.
    """
    if keep < 1 or batch < 1:
        raise InvalidArgument(f"keep is {keep} and batch is {batch}: at least 1 each")
    pace = pace or _at_once
    times = {} if times is None else times
    await pace(1)
    seqs = await list_checkpoints(store)
    own = checkpoint.position.seq
    if own not in seqs:
        # Somebody who knows more has collected it.
        return Collected(cut=0, entries=0, checkpoints=0)
    if own not in times:
        times[own] = checkpoint.as_of_ms
        if note is not None:
            note(checkpoint)
    kept: list[int] = []
    cut: int | None = None
    for seq in reversed(seqs):
        if seq not in times:
            await pace(1)
            found = await read_checkpoint(store, seq)
            if found is None:
                continue  # somebody else collects, too
            times[seq] = found.as_of_ms
            if note is not None:
                note(found)
        kept.append(seq)
        old = since_ms is None or times[seq] <= since_ms
        if len(kept) >= keep and seq <= own and old:
            cut = seq
            break
    kept.reverse()
    for seq in [seq for seq in times if seq not in set(kept)]:
        del times[seq]
    if cut is None:
        # Fewer checkpoints than `keep`, which a reader that is a little behind must not pay for
        # with starting over; or none that is old enough, so all that is there may be history.
        return Collected(cut=0, entries=0, checkpoints=0, kept=tuple(kept))
    doomed = [checkpoint_key(seq) for seq in seqs if seq < cut]
    for start in range(0, len(doomed), batch):
        await _delete(store, doomed[start : start + batch], pace)
    entries = await _collect_entries(store, cut, epochs_to_keep(checkpoint), batch, pace)
    return Collected(cut=cut, entries=entries, checkpoints=len(doomed), kept=tuple(kept))


async def _at_once(count: int) -> None:
    """No bound."""


def epochs_to_keep(checkpoint: Checkpoint) -> frozenset[int]:
    """The seqs of the epoch entries before the checkpoint, and so of those before the cut."""
    return frozenset(mark.seq for mark in checkpoint.position.epochs)


async def _collect_entries(
    store: ObjectStore, cut: int, kept: frozenset[int], batch: int, pace: Pace
) -> int:
    doomed: list[str] = []
    count = seen = 0
    await pace(1)
    async for info in store.list(JOURNAL_PREFIX):
        seen += 1
        if seen % _PAGE == 0:
            await pace(1)
        seq = seq_of_key(info.key)
        if seq is None or seq in kept:
            continue
        if seq >= cut:
            break
        doomed.append(info.key)
        if len(doomed) >= batch:
            await _delete(store, doomed, pace)
            count += len(doomed)
            doomed = []
    if doomed:
        await _delete(store, doomed, pace)
    return count + len(doomed)


async def _delete(store: ObjectStore, keys: list[str], pace: Pace) -> None:
    await pace(len(keys))
    await store.delete(keys)
