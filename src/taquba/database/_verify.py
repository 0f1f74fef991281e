"""Verifying a store: everything that is kept is read, replayed, and compared.

Nothing is written, and an owner may go on meanwhile. What it collects under the reader's eyes
is told from damage by looking for the checkpoint that protects it: collection deletes
manifests first, so an object that is gone while its manifest is there was not collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress

from taquba.database._compare import inconsistency
from taquba.database._config import DatabaseConfig
from taquba.database._machine import Machine
from taquba.database._report import CheckedCheckpoint, Progress, VerifyReport
from taquba.database._state import Execute
from taquba.database._survey import log_is_whole, survey
from taquba.database._verify_apart import Apart
from taquba.database._verify_contents import compare, examine_chunks
from taquba.database._verify_notes import Notes
from taquba.errors import CorruptStore, StoreUnavailable
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
    entry_key,
    list_checkpoints,
    read_manifests,
)
from taquba.objectstore import ObjectStore

__all__ = ["Check", "verify"]

Check = Callable[[Execute], Iterable[str]]
"""Looks for contradictions in a replayed state, and gives a sentence for each."""

_MAX_OVERTAKEN = 100
_REPORT_EVERY = 100
_CONTRADICTION = (
    "the store opens, and recovery brings back exactly this state; but no version of taquba "
    "should have written it"
)


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
        self._notes = Notes()
        self._apart = Apart(store, self._notes, self._was_collected)
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
        while broken is not None and (start := self._notes.candidate(broken)) is not None:
            broken = await self._walk_from(start)
        self._tell("reading epoch entries")
        await self._apart.examine_epochs(self._position, self._walked_epochs)

    async def _read_manifests(self) -> None:
        manifests = await read_manifests(self._store)
        for seq, error in manifests.damaged.items():
            self._notes.unreadable.add(seq)
            self._notes.found(error.key, str(error))
        self._notes.checkpoints.update(manifests.read)

    async def _first_start(self) -> Checkpoint | None:
        """Where to begin: the oldest checkpoint; None if the log is there from its start."""
        listed = [info async for info in self._store.list(JOURNAL_PREFIX)]
        oldest = self._notes.candidate(-1)
        if oldest is None or log_is_whole(listed, oldest.position.seq, oldest.position.epochs):
            self._total = len(listed)
            return None
        place = oldest.position
        self._total = sum(info.key >= entry_key(place.seq) for info in listed)
        if self._notes.unreadable and min(self._notes.unreadable) < place.seq:
            await self._apart.read(
                self._position, min(self._notes.unreadable) - 1, place.seq, whole=False
            )
        return oldest

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
            if self._notes.outcomes.get(position.seq) == "void":
                return position.seq
        self._position = position
        walk = LogWalk(self._store, position)
        ordinary = 0
        try:
            async with aclosing(walk.entries()) as entries:
                async for entry, after in entries:
                    if start is None and self._is_void(entry):
                        return entry.seq
                    ordinary += entry.kind is Kind.ORDINARY
                    self._apply(entry)
                    self._position = after
                    await self._arrive(after)
            self._settled = await self._miss_nothing() and walk.settled
        except JournalGap as gap:
            await self._read_manifests()  # there may be newer ones
            if start is not None and not ordinary and self._notes.is_older(start):
                # Its successor collected the entries that come after it.
                self._notes.outcomes[position.seq] = "void"
                return position.seq
            if await self._was_collected(gap.seq):
                self._first = None
                return gap.seq
            self._first = position.seq if self._first is None else self._first
            unreadable = min((seq for seq in self._notes.unreadable if seq > gap.seq), default=None)
            if unreadable is not None and self._notes.candidate(gap.seq) is None:
                # No entry need be there: a checkpoint says from where on, but cannot be read.
                await self._apart.read(self._position, unreadable - 1, None, whole=False)
                return gap.seq
            reason = str(gap)
            if not self._notes.checkpoints and not self._notes.unreadable:
                reason += ". Or a checkpoint's manifest is what is missing: there is none"
            return await self._break(gap.key, reason)
        except CorruptStore as error:
            self._first = position.seq if self._first is None else self._first
            return await self._break(error.key or entry_key(walk.position.seq), str(error))
        self._first = position.seq if self._first is None else self._first
        if self._loaded:
            self._check(entry_key(self._position.seq - 1) if self._position.seq else "")
        return None

    def _is_void(self, entry: Entry) -> bool:
        """Whether an epoch entry was left, by a takeover that was void, where the log had been
        collected: the oldest checkpoint is beyond it, and does not know its epoch.
        """
        oldest = self._notes.candidate(-1)
        if entry.kind is not Kind.EPOCH or oldest is None:
            return False
        place = oldest.position
        return entry.seq < place.seq and entry.seq not in {mark.seq for mark in place.epochs}

    async def _arrive(self, after: Position) -> None:
        if (met := self._notes.checkpoints.get(after.seq)) is not None:
            await self._meet(met, after)
        elif self._loaded and after.seq in self._notes.unreadable:
            self._notes.replayable.add(after.seq)

    async def _miss_nothing(self) -> bool:
        """At the tail: whether it still is one.

        Raises:
            JournalGap: It is not there, and a checkpoint says that it was.
        """
        place = self._position.seq
        beyond = max(await list_checkpoints(self._store), default=0)
        if beyond <= place:
            return True
        if isinstance(await self._apart.entry(place), Entry):
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
        self._notes.found(key, reason)
        start = self._notes.candidate(place)
        await self._apart.read(self._position, place, None if start is None else start.position.seq)
        return place

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
            self._notes.found(entry_key(entry.seq), str(error))

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
        self._notes.outcomes[seq] = "replayed from"
        if told := await inconsistency(self._machine.state.connection):
            self._notes.found(checkpoint_key(seq), told)
        self._check(checkpoint_key(seq))

    async def _meet(self, checkpoint: Checkpoint, after: Position) -> None:
        """Compare a checkpoint with what was replayed up to its place."""
        seq = after.seq
        key = checkpoint_key(seq)
        if checkpoint.position != after:
            self._notes.outcomes[seq] = "damaged"
            self._notes.found(
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
        self._notes.replayable.add(seq)
        self._tell(f"comparing checkpoint {seq}")
        try:
            told = await compare(self._store, checkpoint, self._machine.state, self._config)
        except CorruptStore as error:
            with suppress(_Overtaken):  # reading on will show it
                await self._judge_contents(checkpoint, error)
            return
        self._notes.outcomes[seq] = "damaged" if told else "compared"
        if told:
            self._notes.found(key, told)
        self._check(key)

    async def _judge_contents(self, checkpoint: Checkpoint, error: CorruptStore) -> None:
        """Name what is wrong with a checkpoint that cannot be loaded.

        Raises:
            _Overtaken: It was collected meanwhile.
        """
        seq = checkpoint.position.seq
        key = checkpoint_key(seq)
        try:
            missing, damaged = await examine_chunks(self._store, checkpoint)
        except CorruptStore as incomplete:
            self._notes.outcomes[seq] = "damaged"
            self._notes.found(key, str(incomplete))
            return
        if seq not in await list_checkpoints(self._store):
            self._notes.outcomes[seq] = "collected"
            raise _Overtaken
        await self._read_manifests()  # there may be newer ones
        if missing and self._notes.is_older(checkpoint):
            self._notes.outcomes[seq] = "void"
            return
        self._notes.outcomes[seq] = "damaged"
        for name in missing:
            self._notes.found(name, f"it is missing, and {key} needs it")
        for name, reason in damaged.items():
            self._notes.found(name, reason)
        if not missing and not damaged:
            self._notes.found(error.key or key, str(error))

    # -- judging ----------------------------------------------------------------------------

    async def _was_collected(self, seq: int) -> bool:
        """Whether an absent entry was deleted by collection, and rightly."""
        listed = set(await list_checkpoints(self._store))
        usable = listed - self._notes.unreadable
        protecting = {known for known in usable & self._notes.checkpoints.keys() if known <= seq}
        if any(map(self._notes.protects, protecting)) or not any(known > seq for known in usable):
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
            if self._notes.candidate(place) is not None:
                return

    def _check(self, key: str) -> None:
        """Run the checks of the layers above on the state as it is."""
        for check in self._checks:
            for told in check(self._machine.state.execute):
                self._notes.found(
                    key, f"the state there contradicts itself: {told}", _CONTRADICTION
                )

    # -- telling ----------------------------------------------------------------------------

    def _tell(self, stage: str, done: int = 0, total: int = 0) -> None:
        if self._progress is not None:
            self._progress(Progress(stage=stage, done=done, total=total))

    async def report(self, other_prefixes: tuple[str, ...]) -> VerifyReport:
        """Look at all that is stored, and put everything together."""
        self._tell("listing everything")
        void = frozenset(seq for seq, outcome in self._notes.outcomes.items() if outcome == "void")
        stock = await survey(
            self._store,
            position=self._position,
            settled=self._settled,
            void=void,
            other_prefixes=other_prefixes,
        )
        return VerifyReport(
            findings=self._notes.findings(self._position.epochs),
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
                    outcome=self._notes.outcomes.get(seq, "not reached"),
                )
                for seq, checkpoint in sorted(self._notes.checkpoints.items())
            ),
            overtaken=self._overtaken,
            survey=stock,
        )
