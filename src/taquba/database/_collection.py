"""Deleting, beside the work, what is not needed any more.

After each checkpoint: manifests and journal entries before the *cut* (the place of the oldest
checkpoint that is kept), chunks that no kept manifest names, and orphaned objects. All of it is
decided anew each time from what is stored, so it may stop anywhere, fail, and begin again. Why
nothing goes that somebody needs:

Manifests and entries
    See `taquba.journal._collect`.

Chunks of older epochs
    They are kept while a kept manifest names them. A writer of an older epoch may publish a
    manifest after that was looked at. But it lies before our first checkpoint, since our epoch
    began behind all that such a writer can vouch for; and nothing is deleted before that
    checkpoint is visible. So nobody opens the store by the late manifest: it is *void*. Readers
    of the past pass over it.

Chunks of our own epoch
    We alone store and name them, and remember all that we may have named: a manifest whose
    publication seemed to fail may appear later, so its chunks stay until the cut is beyond it.
    Those of the upload under way stay, too. No key is used twice (see `taquba.database._packs`),
    so a deletion that arrives late meets nothing new.

Chunks of newer epochs
    Not touched. So a writer that was replaced and goes on collecting takes nothing away from
    its successors, which never build on chunks of ours.

Readers that load a checkpoint meanwhile (a successor, a follower, an export)
    They find something missing, see that the manifest is gone or that there is a newer one,
    and start over.

Orphaned objects
    See `taquba.database._orphans`.

History is kept by the clock of whoever collects. A wall clock that jumps ahead does not make
anything look older, as long as this process lives: see `SteadyTime`.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import sys
from typing import TYPE_CHECKING

from taquba.clock import seconds, wait_for_event
from taquba.database._chunks import ChunkStore, Contents
from taquba.database._packs import CHUNK_PREFIX, chunk_key, is_chunk_key
from taquba.errors import Closed, CommitUnknown, Fenced, StoreError, TaqubaError
from taquba.journal import Checkpoint, collect

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.database._config import DatabaseConfig
    from taquba.database._orphans import OrphanCollector
    from taquba.objectstore import ObjectStore

__all__ = ["Collector", "Pacer", "SteadyTime"]

logger = logging.getLogger("taquba.database")

_BATCH = 500
"""Objects in one deletion, at most."""
_PAGE = 1000
"""Objects of a listing that count as one looked at: what a store answers to one request."""
_BURST = 1.0
"""Seconds' worth of objects that need not wait."""
_FIRST_PAUSE = 10.0
_LONGEST_PAUSE = 600.0
"""Seconds until a collection that failed is tried again; doubles from the first to this."""
_FOREVER_AGO = -(2**62)
_TIMER_SLACK = 1e-6


class SteadyTime:
    """Wall-clock time that does not follow the clock when it jumps ahead.

    It may therefore be late, and then what is old is kept a while longer; it is never early,
    unless the clock was wrong when this was made.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = clock.now_ms() - clock.monotonic() * 1000

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        steady = int(self._offset_ms + self._clock.monotonic() * 1000)
        return min(steady, self._clock.now_ms())


class Pacer:
    """Bounds a rate: so many objects per second, and a burst of one second's worth."""

    def __init__(self, clock: Clock, rate: float) -> None:
        self._clock = clock
        self._rate = rate
        self._free_at = clock.monotonic()

    async def __call__(self, count: int) -> None:
        """Return when it is time for so many more."""
        now = self._clock.monotonic()
        self._free_at = max(self._free_at, now) + count / self._rate
        delay = self._free_at - now - _BURST
        if delay > _TIMER_SLACK:
            await self._clock.sleep(delay)
        else:
            await asyncio.sleep(0)  # a store that answers at once must not hold up the loop


class _Needed:
    """The chunks that manifests name; those of this epoch even if they may not be published."""

    def __init__(self) -> None:
        self._keys: dict[int, set[str]] = {}
        """By the seq of the manifest."""
        self._counts: dict[str, int] = {}
        """How many manifests name a chunk. With a long history there are many of them."""

    def add(self, seq: int, keys: set[str]) -> None:
        """A manifest at this place names these chunks."""
        known = self._keys.setdefault(seq, set())
        for key in sorted(keys - known):
            shared = sys.intern(key)
            known.add(shared)
            self._counts[shared] = self._counts.get(shared, 0) + 1

    def drop_before(self, cut: int) -> None:
        """Manifests before this place are not kept."""
        for seq in [seq for seq in self._keys if seq < cut]:
            for key in self._keys.pop(seq):
                self._counts[key] -= 1
                if not self._counts[key]:
                    del self._counts[key]

    def __contains__(self, key: str) -> bool:
        return key in self._counts


class Collector:
    """Collects after each checkpoint, one collection at a time, in a task of its own."""

    def __init__(
        self,
        store: ObjectStore,
        chunks: ChunkStore,
        *,
        clock: Clock,
        config: DatabaseConfig,
        epoch: int,
    ) -> None:
        self._store = store
        self._chunks = chunks
        self._clock = clock
        self._config = config
        self._epoch = epoch
        self.time = SteadyTime(clock)
        self._pace = Pacer(clock, config.collection_rate)
        self._batch = max(1, int(min(_BATCH, config.collection_rate)))
        retain = config.retain_history
        self._retain_ms = None if retain is None else seconds(retain, name="retain") * 1000
        self._newest: Checkpoint | None = None
        self._needed = _Needed()
        self._times: dict[int, int] = {}
        self._wanted = asyncio.Event()
        self._collecting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: TaqubaError | None = None
        self.orphans: list[OrphanCollector] = []
        self.deleted = 0
        """Objects that were deleted."""
        self._begun = 0
        self._whole = 0
        """Numbers of the last collection that began, and of the last that went through."""

    # -- what is needed ---------------------------------------------------------------------

    def will_publish(self, seq: int, contents: Contents) -> None:
        """A manifest that says this may be visible from now on."""
        self._needed.add(seq, contents.chunk_keys())

    def published(self, checkpoint: Checkpoint, contents: Contents) -> None:
        """This checkpoint of ours is visible: collect what it makes superfluous, soon."""
        self.will_publish(checkpoint.position.seq, contents)
        self._newest = checkpoint
        self._wanted.set()

    def _note(self, checkpoint: Checkpoint) -> None:
        """A manifest that is kept was read."""
        seq = checkpoint.position.seq
        contents = Contents.from_json(f"checkpoint {seq}", checkpoint.content)
        self.will_publish(seq, contents)

    # -- when -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Collect when there is something to collect, until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            await self._wanted.wait()
            try:
                await self.collect()
            except (StoreError, OSError) as error:
                logger.warning(
                    "what is superfluous could not be deleted, which is tried again in %.0f s: %s",
                    pause,
                    error,
                )
                await self._clock.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                self._wanted.set()
            except (Fenced, Closed, CommitUnknown):
                return
            except Exception:
                if self._ended is not None:
                    return
                # Something is damaged, or a callback is wrong. The next checkpoint tries again.
                logger.exception("what is superfluous cannot be deleted")
            else:
                pause = _FIRST_PAUSE

    async def collect(self) -> None:
        """Delete what is superfluous now.

        Raises:
            StoreError: It could not be deleted; nothing depends on it.
            CorruptStore: What is needed cannot be told, so nothing was deleted.
            Fenced, Closed: The database stopped.
        """
        if self._ended is not None:
            raise copy.copy(self._ended)
        task = asyncio.ensure_future(self._collect_alone(self._begun))
        self._tasks.add(task)
        try:
            await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._ended is not None and caller is not None and not caller.cancelling():
                raise copy.copy(self._ended) from None
            raise
        finally:
            self._tasks.discard(task)

    async def finish(self, patience: float) -> None:
        """Let a collection that is wanted, or under way, go through; not for longer than this.

        Otherwise nothing would ever be deleted by processes that end soon after a checkpoint.
        """
        if self._ended is not None or not (self._wanted.is_set() or self._tasks):
            return
        ended = asyncio.Event()
        collection = asyncio.ensure_future(self.collect())
        collection.add_done_callback(lambda _: ended.set())
        try:
            await wait_for_event(ended, patience, self._clock)
        finally:
            collection.cancel()
            await asyncio.gather(collection, return_exceptions=True)

    def failed(self, error: TaqubaError) -> None:
        """The journal stopped: so does collecting."""
        if self._ended is None:
            self._ended = error
        for task in self._tasks:
            task.cancel()

    async def close(self, error: TaqubaError) -> None:
        """End what is under way, with this error, and wait until it has ended."""
        self.failed(error)
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _collect_alone(self, begun: int) -> None:
        async with self._collecting:
            if self._newest is None or self._whole > begun:
                return  # one that began after this was asked for is done
            self._wanted.clear()
            self._begun += 1
            await self._collect(self._newest)
            self._whole = self._begun

    # -- what -------------------------------------------------------------------------------

    async def _collect(self, newest: Checkpoint) -> None:
        done = await collect(
            self._store,
            newest,
            keep=self._config.keep_checkpoints,
            since_ms=self._since_ms(),
            batch=self._batch,
            pace=self._pace,
            note=self._note,
            times=self._times,
        )
        self.deleted += done.entries + done.checkpoints
        if not done.kept:
            return  # our checkpoint is gone, so somebody else owns the store
        self._needed.drop_before(done.cut)
        await self._collect_chunks()
        for orphans in self.orphans:
            self.deleted += await orphans.collect(done.cut, self._pace, self._batch)

    def _since_ms(self) -> int | None:
        if self._retain_ms is None:
            return None
        since = self.time.now_ms() - self._retain_ms
        return int(since) if since > _FOREVER_AGO else _FOREVER_AGO

    async def _collect_chunks(self) -> None:
        last = chunk_key(self._epoch, "~")
        doomed: list[str] = []
        seen = 0
        await self._pace(1)
        async for info in self._store.list(CHUNK_PREFIX):
            if info.key > last:
                break
            seen += 1
            if seen % _PAGE == 0:
                await self._pace(1)
            if is_chunk_key(info.key) and not self._in_use(info.key):
                doomed.append(info.key)
            if len(doomed) == self._batch:
                await self._delete_chunks(doomed)
                doomed = []
        await self._delete_chunks(doomed)

    def _in_use(self, key: str) -> bool:
        return key in self._needed or key in self._chunks.uploading

    async def _delete_chunks(self, keys: list[str]) -> None:
        if keys:
            await self._pace(len(keys))
            await self._store.delete(keys)
            self.deleted += len(keys)
