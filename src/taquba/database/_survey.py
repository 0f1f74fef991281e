"""What the objects of a store are for, by their keys."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from taquba.database._chunks import CHUNK_PREFIX
from taquba.journal import (
    CHECKPOINT_PREFIX,
    JOURNAL_PREFIX,
    Position,
    checkpoint_key,
    entry_key,
    seq_of_key,
)
from taquba.objectstore import PROBE_PREFIX, ObjectInfo

__all__ = ["Group", "Orphans", "Survey", "survey"]

_EXAMPLES = 3
_CHUNK = re.compile(re.escape(CHUNK_PREFIX) + r"[0-9]{10}-[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Objects of one kind, counted.

    Attributes:
        count: How many.
        bytes: Their size.
    """

    count: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans(Group):
    """Objects that recovery does not need.

    Attributes:
        kind: ``"entries below the cut"``, ``"unnamed chunks"``, …
        note: Where they come from, and what becomes of them.
        examples: The first keys.
    """

    kind: str
    note: str
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Everything that is stored.

    Attributes:
        entries: Journal entries that a kept checkpoint needs.
        epoch_entries: Epoch entries before them, which are kept for ever.
        checkpoints: Manifests.
        chunks: Chunks of those checkpoints.
        others: Everything else that is not an orphan.
        orphans: What recovery does not need.
    """

    entries: Group
    epoch_entries: Group
    checkpoints: Group
    chunks: Group
    others: Group
    orphans: tuple[Orphans, ...]

    @property
    def total(self) -> Group:
        """All objects."""
        groups = [
            self.entries,
            self.epoch_entries,
            self.checkpoints,
            self.chunks,
            self.others,
            *self.orphans,
        ]
        return Group(count=sum(g.count for g in groups), bytes=sum(g.bytes for g in groups))


_NOTES = {
    "entries below the cut": "older than every kept checkpoint; the next collection deletes them",
    "void entries": (
        "left by a writer that was replaced, in a window that the log skips; collection deletes "
        "them once a checkpoint is beyond"
    ),
    "leftover entries": (
        "left by a writer that died, behind the first entry that did not land; they never "
        "counted. The next opening needs them as they are: do not delete them"
    ),
    "void checkpoints": (
        "published late by a writer that had been replaced, whose chunks or entries its "
        "successor had collected; the next collection deletes them"
    ),
    "unnamed chunks": (
        "of no checkpoint: of one that is being taken right now, or left by a writer that died "
        "meanwhile; collection deletes them"
    ),
    "probe objects": (
        "left by a process that was killed while it tried out whether the store creates an object "
        "only once; delete them at any time"
    ),
    "foreign objects": "not taquba's; nothing here touches them",
}


@dataclass(slots=True)
class _Tally:
    count: int = 0
    bytes: int = 0
    examples: list[str] = field(default_factory=list[str])

    def add(self, info: ObjectInfo) -> None:
        self.count += 1
        self.bytes += info.size
        if len(self.examples) < _EXAMPLES:
            self.examples.append(info.key)

    def group(self) -> Group:
        return Group(count=self.count, bytes=self.bytes)


def survey(
    listed: Iterable[ObjectInfo],
    *,
    checkpoints: set[int],
    void: set[int],
    chunks: set[str],
    position: Position,
    settled: bool,
    other_prefixes: tuple[str, ...] = (),
) -> Survey:
    """Sort everything that is stored.

    Args:
        listed: All objects.
        checkpoints: Seqs of the checkpoints, damaged ones too, void ones not.
        void: Seqs of the void ones.
        chunks: Keys of the chunks that the checkpoints name.
        position: As far as the log was read; it knows all epochs.
        settled: Whether that is the tail.
        other_prefixes: Where the layers above keep objects of their own.
    """
    cut = min(checkpoints, default=0)
    marks = {mark.seq for mark in position.epochs}
    ordered = sorted(marks)
    manifests = {checkpoint_key(seq) for seq in checkpoints}
    voids = {checkpoint_key(seq) for seq in void}
    tail_key = entry_key(position.seq)
    objects = list(listed)
    at_tail = settled and all(info.key != tail_key for info in objects)

    def kind_of_entry(seq: int) -> str:
        if seq in marks:
            return "epoch entries" if seq < cut else "entries"
        if seq < cut:
            return "entries below the cut"
        before = bisect_right(ordered, seq) - 1
        if before >= 0 and seq < ordered[before] + position.window:
            return "void entries"
        return "leftover entries" if at_tail and seq > position.seq else "entries"

    def kind(key: str) -> str:
        seq = seq_of_key(key)
        if seq is not None and key.startswith(JOURNAL_PREFIX):
            return kind_of_entry(seq)
        if key in manifests:
            return "checkpoints"
        if key in voids:
            return "void checkpoints"
        if _CHUNK.fullmatch(key):
            return "chunks" if key in chunks else "unnamed chunks"
        if key.startswith(PROBE_PREFIX):
            return "probe objects"
        if key.startswith(other_prefixes):
            return "others"
        if key.startswith(CHECKPOINT_PREFIX) and seq_of_key(key, CHECKPOINT_PREFIX, ".json"):
            return "checkpoints"  # published since
        return "foreign objects"

    tallies: dict[str, _Tally] = {}
    for info in objects:
        tallies.setdefault(kind(info.key), _Tally()).add(info)

    def group(name: str) -> Group:
        return tallies.get(name, _Tally()).group()

    return Survey(
        entries=group("entries"),
        epoch_entries=group("epoch entries"),
        checkpoints=group("checkpoints"),
        chunks=group("chunks"),
        others=group("others"),
        orphans=tuple(
            Orphans(
                kind=name,
                note=note,
                count=tallies[name].count,
                bytes=tallies[name].bytes,
                examples=tuple(tallies[name].examples),
            )
            for name, note in _NOTES.items()
            if name in tallies
        ),
    )
