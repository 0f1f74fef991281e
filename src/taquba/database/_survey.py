"""What the objects of a store are for, by their keys."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from taquba.database._chunks import Contents
from taquba.database._packs import is_chunk_key
from taquba.errors import CorruptStore
from taquba.journal import (
    CHECKPOINT_PREFIX,
    START,
    Checkpoint,
    EpochMark,
    Position,
    checkpoint_key,
    entry_key,
    read_manifests,
    seq_of_key,
)
from taquba.objectstore import PROBE_PREFIX, ObjectInfo, ObjectStore

__all__ = [
    "Group",
    "Orphans",
    "StoredCheckpoint",
    "Survey",
    "chunk_keys",
    "log_is_whole",
    "skipped",
    "survey",
]

_EXAMPLES = 3


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
class StoredCheckpoint:
    """One checkpoint, as its manifest describes it.

    Attributes:
        seq: Its place in the journal.
        epoch: Its writer's epoch.
        writer: Hex id of its writer.
        created_at_ms: When it was taken, by its writer's clock.
        size: Bytes of the database.
        stored: Bytes of its chunks.
        chunks: How many those are.
        new_chunks: How many of them the checkpoint before did not name.
    """

    seq: int
    epoch: int
    writer: str
    created_at_ms: int
    size: int
    stored: int
    chunks: int
    new_chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Everything that is stored.

    Attributes:
        entries: Journal entries that a kept checkpoint needs.
        entries_since: Those of them that opening would read after the newest checkpoint.
        first_entry: Seq of the first of `entries`; None without.
        last_entry: Seq of the last of them.
        epoch_entries: Epoch entries before them, which are kept for ever.
        checkpoints: Manifests.
        chunks: Chunks of those checkpoints.
        others: Everything else that is not an orphan.
        orphans: What recovery does not need.
        stored_checkpoints: The checkpoints whose manifests can be read, oldest first.
    """

    entries: Group
    entries_since: Group
    first_entry: int | None
    last_entry: int | None
    epoch_entries: Group
    checkpoints: Group
    chunks: Group
    others: Group
    orphans: tuple[Orphans, ...]
    stored_checkpoints: tuple[StoredCheckpoint, ...]

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

    def orphans(self, kind: str, note: str) -> Orphans:
        return Orphans(
            kind=kind,
            note=note,
            count=self.count,
            bytes=self.bytes,
            examples=tuple(self.examples),
        )


async def survey(
    store: ObjectStore,
    *,
    position: Position | None = None,
    settled: bool = False,
    void: frozenset[int] = frozenset(),
    other_prefixes: tuple[str, ...] = (),
) -> Survey:
    """List everything that is stored, and tell what it is for.

    Args:
        store: The store.
        position: As far as the log was read; it knows the epochs. None: as far as the newest
            checkpoint.
        settled: Whether that is the tail.
        void: Seqs of checkpoints that are known to be void.
        other_prefixes: Where the layers above keep objects of their own.

    Raises:
        StoreError: The store failed, or forbids listing.
        IncompatibleStore: A newer taquba wrote it.
    """
    listed = [info async for info in store.list("")]
    manifests = await read_manifests(store)  # after: the chunks of what is new are not missed
    stored: list[StoredCheckpoint] = []
    chunks: set[str] = set()
    for seq, checkpoint in manifests.read.items():
        if seq not in void:
            named = chunk_keys(checkpoint)
            stored.append(_describe(checkpoint, len(named), len(named - chunks)))
            chunks |= named
    if position is None:
        newest = max(manifests.read, default=None)
        position = START if newest is None else manifests.read[newest].position
    sorter = _Sorter(
        listed,
        checkpoints=(manifests.read.keys() | manifests.damaged.keys()) - void,
        void=void,
        chunks=chunks,
        position=position,
        settled=settled,
        other_prefixes=other_prefixes,
    )
    for info in listed:
        sorter.add(info)
    return sorter.result(tuple(stored))


def log_is_whole(listed: Iterable[ObjectInfo], until: int, marks: Iterable[EpochMark]) -> bool:
    """Whether every entry from the start on is there, as none was collected yet."""
    unused = skipped(marks)
    there = {seq for info in listed if (seq := seq_of_key(info.key)) is not None and seq < until}
    return len(there - unused) == until - sum(seq < until for seq in unused)


def skipped(marks: Iterable[EpochMark]) -> set[int]:
    """The seqs in the windows that the log skips."""
    return {seq for mark in marks for seq in range(mark.seq + 1, mark.resume_at)}


def chunk_keys(checkpoint: Checkpoint) -> set[str]:
    """Keys of the chunks that a checkpoint names; none if it is damaged."""
    try:
        return Contents.from_json("", checkpoint.content).chunk_keys()
    except CorruptStore:
        return set()


def _describe(checkpoint: Checkpoint, chunks: int, new_chunks: int) -> StoredCheckpoint:
    try:
        contents = Contents.from_json("", checkpoint.content)
        size, stored = contents.size, contents.stored
    except CorruptStore:
        size = stored = 0
    return StoredCheckpoint(
        seq=checkpoint.position.seq,
        epoch=checkpoint.position.epoch,
        writer=checkpoint.writer,
        created_at_ms=checkpoint.created_at_ms,
        size=size,
        stored=stored,
        chunks=chunks,
        new_chunks=new_chunks,
    )


class _Sorter:
    """Counts objects by what they are for."""

    def __init__(
        self,
        listed: Sequence[ObjectInfo],
        *,
        checkpoints: AbstractSet[int],
        void: AbstractSet[int],
        chunks: AbstractSet[str],
        position: Position,
        settled: bool,
        other_prefixes: tuple[str, ...],
    ) -> None:
        cut = min(checkpoints, default=0)
        self._cut = 0 if log_is_whole(listed, cut, position.epochs) else cut
        self._newest = max(checkpoints, default=0)
        self._marks = sorted(mark.seq for mark in position.epochs)
        self._manifests = {checkpoint_key(seq) for seq in checkpoints}
        self._voids = {checkpoint_key(seq) for seq in void}
        self._chunks = chunks
        self._position = position
        self._other_prefixes = other_prefixes
        tail = entry_key(position.seq)
        self._at_tail = settled and all(info.key != tail for info in listed)
        self._tallies: dict[str, _Tally] = {}
        self._since = _Tally()
        self._first: int | None = None
        self._last: int | None = None

    def add(self, info: ObjectInfo) -> None:
        kind = self._kind(info.key)
        self._tallies.setdefault(kind, _Tally()).add(info)
        if kind == "entries":
            seq = seq_of_key(info.key)
            assert seq is not None
            self._first = seq if self._first is None else min(self._first, seq)
            self._last = seq if self._last is None else max(self._last, seq)
            if seq >= self._newest:
                self._since.add(info)

    def _kind(self, key: str) -> str:
        seq = seq_of_key(key)
        if seq is not None:
            return self._kind_of_entry(seq)
        if key in self._manifests:
            return "checkpoints"
        if key in self._voids:
            return "void checkpoints"
        if is_chunk_key(key):
            return "chunks" if key in self._chunks else "unnamed chunks"
        if key.startswith(PROBE_PREFIX):
            return "probe objects"
        if key.startswith(self._other_prefixes):
            return "others"
        if seq_of_key(key, CHECKPOINT_PREFIX, ".json") is not None:
            return "checkpoints"  # collected since, or published
        return "foreign objects"

    def _kind_of_entry(self, seq: int) -> str:
        before = bisect_right(self._marks, seq) - 1
        distance = seq - self._marks[before] if before >= 0 else None
        if distance == 0:
            return "epoch entries" if seq < self._cut else "entries"
        if seq < self._cut:
            return "entries below the cut"
        if distance is not None and distance < self._position.window:
            return "void entries"
        return "leftover entries" if self._at_tail and seq > self._position.seq else "entries"

    def result(self, stored: tuple[StoredCheckpoint, ...]) -> Survey:
        def group(name: str) -> Group:
            return self._tallies.get(name, _Tally()).group()

        return Survey(
            entries=group("entries"),
            entries_since=self._since.group(),
            first_entry=self._first,
            last_entry=self._last,
            epoch_entries=group("epoch entries"),
            checkpoints=group("checkpoints"),
            chunks=group("chunks"),
            others=group("others"),
            orphans=tuple(
                self._tallies[name].orphans(name, note)
                for name, note in _NOTES.items()
                if name in self._tallies
            ),
            stored_checkpoints=stored,
        )
