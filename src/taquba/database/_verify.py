"""Verifying a store: everything that is kept is read, replayed, and compared.

Nothing is written, and an owner may go on meanwhile. What it collects under the reader's eyes
is told from damage by looking for the checkpoint that protects it: collection deletes
manifests first, so an object that is gone while its manifest is there was not collected.
"""

# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace

import apsw

from taquba.database._chunks import ChunkStore, Contents
from taquba.database._compare import difference, inconsistency
from taquba.database._config import DatabaseConfig
from taquba.database._machine import Machine
from taquba.database._packs import CHUNK_PREFIX, chunk_key, decode_pack
from taquba.database._report import CheckedCheckpoint, Finding, Progress, VerifyReport
from taquba.database._scratch import scratch_folder
from taquba.database._state import Execute
from taquba.database._survey import chunk_keys, log_is_whole, skipped, survey
from taquba.errors import CorruptStore, ObjectNotFound, StoreUnavailable
from taquba.journal import (
    JOURNAL_PREFIX,
    START,
    Checkpoint,
    Entry,
    JournalGap,
    Kind,
    LogWalk,
    Position,
    checkpoint_key,
    contradiction,
    entry_key,
    list_checkpoints,
    read_entry,
    read_manifests,
    seq_of_key,
)
from taquba.objectstore import ObjectStore

__all__ = ["Check", "verify"]

Check = Callable[[Execute], Iterable[str]]
"""Looks for contradictions in a replayed state, and gives a sentence for each."""

_MAX_OVERTAKEN = 100
_AT_ONCE = 16
_REPORT_EVERY = 100
_CONTRADICTION = (
    "the store opens, and recovery brings back exactly this state; but no version of taquba "
    "should have written it"
)
_UNUSED = ("void", "collected")


async def verify(
    store: ObjectStore,
    *,
    checks: Sequence[Check] = (),
    config: DatabaseConfig | None = None,
    progress: Callable[[Progress], None] | None = None,
    other_prefixes: tuple[str, ...] = (),
) -> VerifyReport:
    """Read all that a store keeps, and tell what is wrong with it.

    The chain of entries is walked from the oldest kept checkpoint (or the start) to the tail;
    every entry is replayed, and the result compared, row by row, with every later checkpoint,
    each loaded from its chunks. Nothing is written, and an owner may go on meanwhile.

    What no reader can find: that the very last entry was deleted, since nothing that is left
    refers to it.

    Args:
        store: The store; read-only credentials are enough.
        checks: What else must hold in the replayed state; called at each checkpoint and at
            the tail.
        config: Where scratch files go, and what may be in memory.
        progress: Told how far it is.
        other_prefixes: Where the layers above keep objects of their own, which are no orphans.

    Raises:
        StoreError: The store failed, or forbids reading or listing.
        IncompatibleStore: A newer taquba wrote it.
    """
    verification = _Verification(store, checks, config or DatabaseConfig(), progress)
    try:
        await verification.walk()
        return await verification.report(other_prefixes)
    finally:
        verification.close()


class _Overtaken(Exception):
    """Collection took what was to be read next."""


class _Verification:
    def __init__(
        self,
        store: ObjectStore,
        checks: Sequence[Check],
        config: DatabaseConfig,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._store = store
        self._checks = checks
        self._config = config
        self._progress = progress
        self._machine = Machine(store, (), config)
        self._chunks = ChunkStore(store, transfers=config.transfers)
        self._findings: dict[tuple[str, str], Finding] = {}
        self._checkpoints: dict[int, Checkpoint] = {}
        self._outcomes: dict[int, str] = {}
        self._unreadable: set[int] = set()
        """Checkpoints whose manifests are damaged."""
        self._replayable: set[int] = set()
        """Checkpoints whose state was replayed from an older one, or from the start."""
        self._walked_epochs: set[int] = set()
        self._loaded = False
        """Whether the machine holds the state at the place that is being read."""
        self._position = START
        self._first: int | None = None
        self._settled = False
        self._entries = self._bytes = self._replayed = 0
        self._total = 0
        self._last_commit_ms: int | None = None
        self._overtaken = 0

    def close(self) -> None:
        self._machine.close()

    # -- the walk ---------------------------------------------------------------------------

    async def walk(self) -> None:
        """Read from the oldest usable place to the tail; from the next one after damage."""
        self._tell("reading the checkpoints")
        await self._read_manifests()
        start: Checkpoint | None = await self._first_start()
        broken = await self._walk_from(start)
        while broken is not None and (start := self._candidate(broken)) is not None:
            broken = await self._walk_from(start)
        await self._examine_epochs()

    async def _read_manifests(self) -> None:
        manifests = await read_manifests(self._store)
        for seq, error in manifests.damaged.items():
            self._unreadable.add(seq)
            self._found(error.key, str(error))
        self._checkpoints.update(manifests.read)

    async def _first_start(self) -> Checkpoint | None:
        """Where to begin: the oldest checkpoint; None if the log is there from its start."""
        listed = [info async for info in self._store.list(JOURNAL_PREFIX)]
        oldest = self._candidate(-1)
        if oldest is None or log_is_whole(listed, oldest.position.seq, oldest.position.epochs):
            self._total = len(listed)
            return None
        place = oldest.position
        self._total = sum(info.key >= entry_key(place.seq) for info in listed)
        if self._unreadable and min(self._unreadable) < place.seq:
            await self._read_apart(min(self._unreadable) - 1, place.seq, whole=False)
        return oldest

    def _candidate(self, after: int) -> Checkpoint | None:
        """The first checkpoint beyond a place that may be a start."""
        for seq in sorted(self._checkpoints):
            if seq > after and self._outcomes.get(seq) not in _UNUSED:
                return self._checkpoints[seq]
        return None

    async def _walk_from(self, start: Checkpoint | None) -> int | None:
        """Read to the tail; or until the log breaks: the place behind which to go on."""
        self._loaded = False
        if start is None:
            position = START
            await self._machine.restore(None)
            self._loaded = True
        else:
            position = start.position
            try:
                await self._load(start)
            except _Overtaken:
                await self._begin_anew(position.seq)
                return position.seq
            if self._outcomes.get(position.seq) == "void":
                return position.seq
        self._position = position
        walk = LogWalk(self._store, position)
        ordinary = 0
        try:
            async with aclosing(walk.entries()) as entries:
                async for entry, after in entries:
                    ordinary += entry.kind is Kind.ORDINARY
                    self._apply(entry)
                    self._position = after
                    await self._arrive(after)
            self._settled = await self._miss_nothing() and walk.settled
        except JournalGap as gap:
            if start is not None and not ordinary and self._is_older(start):
                # Its successor collected the entries that come after it.
                self._outcomes[position.seq] = "void"
                return position.seq
            if await self._was_collected(gap.seq):
                self._first = None
                return gap.seq
            self._first = position.seq if self._first is None else self._first
            unreadable = min((seq for seq in self._unreadable if seq > gap.seq), default=None)
            if unreadable is not None and self._candidate(gap.seq) is None:
                # No entry need be there: a checkpoint says from where on, but cannot be read.
                await self._read_apart(unreadable - 1, None, whole=False)
                return gap.seq
            reason = str(gap)
            if not self._checkpoints and not self._unreadable:
                reason += ". Or a checkpoint's manifest is what is missing: there is none"
            return await self._break(gap.key, reason)
        except CorruptStore as error:
            self._first = position.seq if self._first is None else self._first
            return await self._break(error.key or entry_key(walk.position.seq), str(error))
        self._first = position.seq if self._first is None else self._first
        if self._loaded:
            self._check(entry_key(self._position.seq - 1) if self._position.seq else "")
        return None

    async def _arrive(self, after: Position) -> None:
        if (met := self._checkpoints.get(after.seq)) is not None:
            await self._meet(met, after)
        elif self._loaded and after.seq in self._unreadable:
            self._replayable.add(after.seq)

    async def _miss_nothing(self) -> bool:
        """At the tail: whether it still is one.

        Raises:
            JournalGap: It is not there, and a checkpoint says that it was.
        """
        place = self._position.seq
        beyond = max(await list_checkpoints(self._store), default=0)
        if beyond <= place:
            return True
        if isinstance(await self._read_entry(place), Entry):
            return False  # the log has grown since
        raise JournalGap(
            f"journal entry {entry_key(place)!r} is missing: {checkpoint_key(beyond)!r} says that "
            f"everything before {beyond} was stored. Something other than taquba deleted it; "
            "restore it from a backup or an older object version",
            place,
        )

    async def _break(self, key: str, reason: str) -> int:
        """Note what ended the walk; look at what lies before the next start by itself."""
        place = self._position.seq
        self._found(key, reason)
        start = self._candidate(place)
        await self._read_apart(place, None if start is None else start.position.seq)
        return place

    async def _read_apart(self, place: int, end: int | None, *, whole: bool = True) -> None:
        """Look at the entries between a damage and the next start, each by itself.

        With `whole` all must be there, as far as another one, or `end`, says that they were.
        """
        unused = skipped(self._position.epochs)
        for checkpoint in self._checkpoints.values():
            unused |= skipped(checkpoint.position.epochs)
        there: set[int] = set()
        damaged: set[int] = set()
        known = end or 0
        after = entry_key(place - 1) if place > 0 else ""
        async for info in self._store.list(JOURNAL_PREFIX, after):
            seq = seq_of_key(info.key)
            if seq is None:
                continue
            if seq == place:
                there.add(seq)
                continue
            if end is not None and seq >= end:
                break
            there.add(seq)
            if seq in unused:
                continue
            entry = await self._read_entry(seq)
            if isinstance(entry, CorruptStore):
                self._found(entry.key, str(entry))
                damaged.add(seq)
            elif entry is not None:
                known = max(known, entry.durable_before) if end is None else known
                if entry.kind is Kind.EPOCH:
                    unused |= set(range(seq + 1, seq + entry.window))
        if whole:
            await self._find_gaps(place, known, there, unused, damaged if end is None else None)

    async def _find_gaps(
        self, place: int, end: int, there: set[int], unused: set[int], damaged: set[int] | None
    ) -> None:
        """Name what is missing between a damage and `end`.

        With `damaged`, nothing is known of the epochs there: each entry that cannot be read may
        have been an epoch entry, behind which a window is skipped.
        """
        window = self._position.window
        doubtful = 0 if damaged is None else place + window
        before = place
        for seq in [*sorted(there | unused), end]:
            first = before + 1
            if damaged is not None and before in damaged:
                doubtful = max(doubtful, before + window)
            before = max(before, seq)
            if not first < seq <= end or (first == place + 1 and place not in there):
                continue
            if first < doubtful:
                doubtful = max(doubtful, seq - 1 + window)
                continue
            if await self._was_collected(first):
                return
            more = seq - first - 1
            self._found(
                entry_key(first),
                f"it is missing{f', and so are the {more:,} after it' if more else ''}; later ones "
                "say that they were stored",
            )

    def _apply(self, entry: Entry) -> None:
        self._entries += 1
        self._bytes += len(entry.body)
        self._last_commit_ms = entry.committed_at_ms
        if self._entries % _REPORT_EVERY == 0:
            self._tell("replaying the journal", self._entries, self._total)
        try:
            if entry.kind is Kind.EPOCH:
                self._walked_epochs.add(entry.seq)
                self._machine.check(entry.body)
            elif self._loaded:
                self._machine.apply(entry)
                self._replayed += 1
        except CorruptStore as error:
            self._loaded = self._loaded and entry.kind is Kind.EPOCH
            self._found(entry_key(entry.seq), str(error))

    # -- checkpoints ------------------------------------------------------------------------

    async def _load(self, checkpoint: Checkpoint) -> None:
        """Make a checkpoint the state, to replay from."""
        seq = checkpoint.position.seq
        self._tell(f"loading checkpoint {seq}")
        try:
            await self._machine.restore(checkpoint)
        except CorruptStore as error:
            await self._judge_contents(checkpoint, error)
            return
        self._loaded = True
        self._outcomes[seq] = "replayed from"
        if told := await inconsistency(self._machine.state.connection):
            self._found(checkpoint_key(seq), told)
        self._check(checkpoint_key(seq))

    async def _meet(self, checkpoint: Checkpoint, after: Position) -> None:
        """Compare a checkpoint with what was replayed up to its place."""
        seq = after.seq
        key = checkpoint_key(seq)
        if checkpoint.position != after:
            self._outcomes[seq] = "damaged"
            self._found(
                key,
                "its place in the log contradicts the entries before it: it says epoch "
                f"{checkpoint.position.epoch}, digest {checkpoint.position.digest.hex()}; they "
                f"lead to epoch {after.epoch}, digest {after.digest.hex()}",
            )
            return
        if not self._loaded:
            with suppress(_Overtaken):  # reading on will show it
                await self._load(checkpoint)
            return
        self._replayable.add(seq)
        self._tell(f"comparing checkpoint {seq}")
        try:
            told = await self._compare(checkpoint)
        except CorruptStore as error:
            with suppress(_Overtaken):  # reading on will show it
                await self._judge_contents(checkpoint, error)
            return
        self._outcomes[seq] = "damaged" if told else "compared"
        if told:
            self._found(key, told)
        self._check(key)

    async def _compare(self, checkpoint: Checkpoint) -> str:
        """What is different in a checkpoint; nothing if it holds what was replayed."""
        name = f"checkpoint {checkpoint.position.seq}"
        contents = Contents.from_json(name, checkpoint.content)
        state = self._machine.state
        if contents.modules != state.versions():
            return (
                f"it says that its tables have versions {contents.modules}, and the journal leads "
                f"to {state.versions()}"
            )
        async with scratch_folder(self._config.scratch) as folder:
            path = os.path.join(folder, "checkpoint.db")
            await self._chunks.download(contents, path)
            try:
                theirs = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
                try:
                    told = await difference(state.connection, theirs)
                    return told or await inconsistency(theirs)
                finally:
                    theirs.close()
            except apsw.Error as error:
                return f"its content is no database: SQLite says {error}"

    async def _judge_contents(self, checkpoint: Checkpoint, error: CorruptStore) -> None:
        """Name what is wrong with a checkpoint that cannot be loaded.

        Raises:
            _Overtaken: It was collected meanwhile.
        """
        seq = checkpoint.position.seq
        key = checkpoint_key(seq)
        try:
            contents = Contents.from_json(f"checkpoint {seq}", checkpoint.content)
        except CorruptStore as incomplete:
            self._outcomes[seq] = "damaged"
            self._found(key, str(incomplete))
            return
        missing: list[str] = []
        damaged: dict[str, str] = {}
        for pack in contents.packs:
            name = chunk_key(contents.epoch, pack.digest)
            try:
                data = await self._store.get(name)
                decode_pack(pack, name, data, contents.block_size, contents.name)
            except ObjectNotFound:
                missing.append(name)
            except CorruptStore as complaint:
                damaged[name] = str(complaint)
        if seq not in await list_checkpoints(self._store):
            self._outcomes[seq] = "collected"
            raise _Overtaken
        if missing and self._is_older(checkpoint):
            self._outcomes[seq] = "void"
            return
        self._outcomes[seq] = "damaged"
        for name in missing:
            self._found(name, f"it is missing, and {key} needs it")
        for name, reason in damaged.items():
            self._found(name, reason)
        if not missing and not damaged:
            self._found(error.key or key, str(error))

    # -- judging ----------------------------------------------------------------------------

    def _is_older(self, checkpoint: Checkpoint) -> bool:
        """Whether a later epoch has a checkpoint, so that its writer may have collected this."""
        newest = max(self._checkpoints.values(), key=lambda other: other.position.seq)
        return checkpoint.position.epoch < newest.position.epoch

    async def _was_collected(self, seq: int) -> bool:
        """Whether an absent entry was deleted by collection, and rightly."""
        listed = set(await list_checkpoints(self._store))
        usable = listed - self._unreadable
        protecting = {known for known in usable & self._checkpoints.keys() if known <= seq}
        void = {known for known in protecting if self._outcomes.get(known) == "void"}
        if protecting - void or not any(known > seq for known in usable):
            return False
        await self._begin_anew(seq)
        return True

    async def _begin_anew(self, place: int) -> None:
        """Collection took what was to be read at a place: find a checkpoint beyond it."""
        while True:
            self._overtaken += 1
            if self._overtaken > _MAX_OVERTAKEN:
                raise StoreUnavailable(
                    "the owner of the store collects faster than it can be read here: try again "
                    "when it is less busy",
                    operation="get",
                    key=entry_key(place),
                )
            await self._read_manifests()
            if self._candidate(place) is not None:
                return

    async def _examine_epochs(self) -> None:
        """Look at the epoch entries that the log remembers, and that were not walked."""
        places = [self._position, *(other.position for other in self._checkpoints.values())]
        known = {mark.seq: (mark, place.window) for place in places for mark in place.epochs}
        remaining = [known[seq] for seq in sorted(known.keys() - self._walked_epochs)]
        complained = {finding.key for finding in self._findings.values()}
        for start in range(0, len(remaining), _AT_ONCE):
            self._tell("reading epoch entries", start, len(remaining))
            batch = remaining[start : start + _AT_ONCE]
            entries = await asyncio.gather(*(self._read_entry(mark.seq) for mark, _ in batch))
            for (mark, window), entry in zip(batch, entries, strict=True):
                key = entry_key(mark.seq)
                if isinstance(entry, CorruptStore):
                    self._found(key, str(entry))
                elif key not in complained and (told := contradiction(mark, window, entry)):
                    self._found(key, told)

    async def _read_entry(self, seq: int) -> Entry | CorruptStore | None:
        try:
            return await read_entry(self._store, seq)
        except CorruptStore as error:
            return error

    def _check(self, key: str) -> None:
        """Run the checks of the layers above on the state as it is."""
        for check in self._checks:
            for told in check(self._machine.state.execute):
                self._found(key, f"the state there contradicts itself: {told}", _CONTRADICTION)

    # -- telling ----------------------------------------------------------------------------

    def _found(self, key: str, reason: str, meaning: str = "") -> None:
        # Several checkpoints may need the same chunk.
        same = (key, "") if key.startswith(CHUNK_PREFIX) else (key, reason)
        self._findings.setdefault(same, Finding(key=key, reason=reason, meaning=meaning))

    def _tell(self, stage: str, done: int = 0, total: int = 0) -> None:
        if self._progress is not None:
            self._progress(Progress(stage=stage, done=done, total=total))

    async def report(self, other_prefixes: tuple[str, ...]) -> VerifyReport:
        """Look at all that is stored, and put everything together."""
        self._tell("listing everything")
        void = frozenset(seq for seq, outcome in self._outcomes.items() if outcome == "void")
        stock = await survey(
            self._store,
            position=self._position,
            settled=self._settled,
            void=void,
            other_prefixes=other_prefixes,
        )
        return VerifyReport(
            findings=tuple(map(self._explained, self._findings.values())),
            first=self._first or 0,
            position=self._position,
            settled=self._settled,
            entries=self._entries,
            bytes=self._bytes,
            replayed=self._replayed,
            last_commit_ms=self._last_commit_ms,
            checkpoints=tuple(
                CheckedCheckpoint(
                    seq=seq,
                    epoch=checkpoint.position.epoch,
                    created_at_ms=checkpoint.created_at_ms,
                    outcome=self._outcomes.get(seq, "not reached"),
                )
                for seq, checkpoint in sorted(self._checkpoints.items())
            ),
            overtaken=self._overtaken,
            survey=stock,
        )

    def _explained(self, finding: Finding) -> Finding:
        """The finding, with what it means for recovery."""
        return replace(finding, meaning=finding.meaning or self._meaning(finding.key))

    def _meaning(self, key: str) -> str:
        usable = [seq for seq in self._checkpoints if self._outcomes.get(seq) not in _UNUSED]
        newest = max([*usable, *self._unreadable], default=None)
        seq = seq_of_key(key)
        if key.startswith(JOURNAL_PREFIX) and seq is not None:
            if newest is None or seq >= newest:
                base = "the start" if newest is None else f"checkpoint {newest}"
                return (
                    f"opening the store stops here. What {base} and the entries up to here hold is "
                    "whole; what comes after is lost unless the object is restored"
                )
            if any(mark.seq == seq for mark in self._position.epochs):
                return (
                    "opening the store is not affected; but a writer that was replaced here may go "
                    "on writing without noticing, so see to it that none is left"
                )
            return (
                f"opening the store is not affected, since checkpoint {newest} comes later; "
                "states before that can no longer be rebuilt"
            )
        if newest is None:
            return ""
        checkpoint = self._checkpoints.get(newest)
        chunks = set[str]() if checkpoint is None else chunk_keys(checkpoint)
        if key != checkpoint_key(newest) and key not in chunks:
            return "opening the store is not affected: there is a newer checkpoint"
        stops = "opening the store needs this"
        if newest in self._replayable:
            return (
                f"{stops}, and stops. Nothing is lost, since what is older leads there too: "
                f"move {checkpoint_key(newest)} out of the way, and the store opens from there"
            )
        return f"{stops}, and nothing else holds that state: restore the object"
