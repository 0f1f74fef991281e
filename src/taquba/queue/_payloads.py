"""The owner's side of payloads that are objects: storing them before the commit that names
them, and deleting them after the commit that forgets them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

import anyio.to_thread

from taquba._checks import blob, wrong_type
from taquba.clock import wait_for_event
from taquba.errors import InvalidArgument, TaqubaError, ValueTooLarge
from taquba.queue._config import MAX_PAYLOAD_SIZE, MAX_STREAMED_PAYLOAD_SIZE
from taquba.queue._payload_holders import named_keys
from taquba.queue._payload_objects import (
    PART_SIZE,
    PAYLOAD_PREFIX,
    PayloadReader,
    PayloadRef,
    encode,
    part_key,
    together,
)

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.database import Database
    from taquba.objectstore import ObjectStore
    from taquba.queue._effects import Effects, NewJob
    from taquba.queue._transaction import QueueTransaction

__all__ = ["PayloadSource", "Payloads", "ReadablePayload", "Staged", "StoredValue"]

logger = logging.getLogger("taquba.queue")

_GRACE = timedelta(days=1)
_UPLOADS = 8
"""Objects that one call stores at the same time."""
_KEYS_PER_DELETE = 1000
_MOST_DOOMED = 100_000
"""Keys that wait to be deleted; further ones are left to the collection of orphans."""


@runtime_checkable
class ReadablePayload(Protocol):
    """A file, or something like it, that was opened for reading bytes."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most so many; none at the end."""
        ...


PayloadSource = AsyncIterable[bytes] | ReadablePayload
"""A payload that is not in memory as a whole."""


@final
class Staged:
    """Payloads that are stored, for jobs that are about to be committed.

    Their keys are held, so that nobody takes them for orphans, until `finish`.
    """

    def __init__(self, payloads: Payloads) -> None:
        self._finished = False
        self._loop = asyncio.get_running_loop()
        self._payloads = payloads
        self._holds = contextlib.ExitStack()
        self._jobs: list[NewJob] = []
        self._keys: list[str] = []
        self.stored: dict[int, str] = {}
        """References by the identity of the jobs that they are for."""

    def new_key(self) -> str:
        """A key that nobody uses, held from now on."""
        return self._holds.enter_context(self._payloads.keys.new())

    def begin(self, key: str) -> None:
        """This object is written from now on."""
        self._keys.append(key)

    def add(self, job: NewJob, ref: PayloadRef) -> None:
        """The payload of this job is stored there."""
        self._jobs.append(job)  # so that its identity is nobody else's
        self.stored[id(job)] = str(ref)

    def use(self, tx: QueueTransaction) -> None:
        """Let this transaction enqueue the jobs with what is stored for them."""
        tx._stored = {**(tx._stored or {}), **self.stored}
        tx.after_commit(self.finish)

    def finish(self) -> None:
        """The transaction is over, or will not be: what no job names is deleted."""
        if not self._finished:
            self._finished = True
            _let_go(self._payloads, self._keys, self._holds)

    def __del__(self) -> None:
        # A settlement that was prepared and then not wanted, for example. Objects are collected
        # in whatever thread happens to run, and the state is for the loop's alone.
        with contextlib.suppress(Exception):
            if not self._finished:
                self._loop.call_soon_threadsafe(_let_go, self._payloads, self._keys, self._holds)


def _let_go(payloads: Payloads, keys: Sequence[str], holds: contextlib.ExitStack) -> None:
    try:
        named = set(payloads.named(keys))
        payloads.delete([key for key in keys if key not in named])
    except TaqubaError:
        pass  # the queue has stopped: whoever opens it next collects what is left
    finally:
        holds.close()


@final
class StoredValue:
    """A large value that is stored, for a row of a layer above that is about to be committed.

    The row names it by `ref`, in a column as `taquba.queue._payload_holders` says.
    """

    __slots__ = ("_staged", "ref", "size")

    def __init__(self, staged: Staged, ref: PayloadRef) -> None:
        self._staged = staged
        self.ref = str(ref)
        """What the row keeps."""
        self.size = ref.size
        """Bytes of the value."""

    def use(self, tx: QueueTransaction) -> None:
        """This transaction names the value; a later one may, if this is rolled back."""
        tx.after_commit(self._staged.finish)

    def finish(self) -> None:
        """No transaction will name it, unless one did: delete it, unless one did."""
        self._staged.finish()


@final
class Payloads(PayloadReader):
    """The payloads of one open queue that are objects."""

    def __init__(
        self,
        store: ObjectStore,
        database: Database,
        clock: Clock,
        *,
        above: int | None,
        kept_in_history: bool,
    ) -> None:
        super().__init__(store)
        self._database = database
        self._clock = clock
        self.above: float = float("inf") if above is None else above
        """Larger payloads become objects."""
        self._kept_in_history = kept_in_history
        self._doomed: list[str] = []
        self._deleting: asyncio.Task[None] | None = None
        self.keys = database.collect_orphans(PAYLOAD_PREFIX, is_named=self.named, grace=_GRACE)

    def named(self, keys: Sequence[str]) -> Collection[str]:
        """Which of these objects belong to a job, or to a row of a layer above."""
        execute = self._database.execute
        return named_keys(lambda sql, parameters: execute(sql, parameters).fetchall(), keys)

    # -- storing ----------------------------------------------------------------------------

    async def stage(self, jobs: Iterable[NewJob], staged: Staged | None = None) -> Staged:
        """Store the large payloads among those of `jobs`, all or none.

        Raises:
            StoreError: One could not be stored; what was is deleted again.
        """
        staged = staged or Staged(self)
        limit = asyncio.Semaphore(_UPLOADS)
        tasks = [
            asyncio.ensure_future(self._store_one(job, staged, limit))
            for job in jobs
            if len(job.payload) > self.above
        ]
        try:
            if tasks:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            errors = [
                error
                for error in await asyncio.gather(*tasks, return_exceptions=True)
                if error is not None
            ]
            if errors:
                staged.finish()
        for error in errors:
            if not isinstance(error, asyncio.CancelledError):
                raise error
        return staged

    async def _store_one(self, job: NewJob, staged: Staged, limit: asyncio.Semaphore) -> None:
        async with limit:
            ref = PayloadRef(staged.new_key(), len(job.payload), len(job.payload))
            await self._put(staged, part_key(ref.key, 0), job.payload)
            staged.add(job, ref)

    async def _put(self, staged: Staged, key: str, data: bytes) -> None:
        staged.begin(key)
        # Nobody else ever writes this key, so a repeated request does no harm.
        await self.store.put(key, encode(key, data))

    async def stage_stream(self, job: NewJob, source: PayloadSource) -> tuple[NewJob, Staged]:
        """The job with a payload that is stored as it comes, or is in it, if it is small.

        Raises:
            InvalidArgument: Payloads are not to become objects.
            InvalidType: It gives something else than bytes.
            ValueTooLarge: It is too long.
            StoreError: It could not be stored; what was is deleted again.
        """
        if self.above == float("inf"):
            raise InvalidArgument(
                "a payload is streamed into objects of its own: open the queue with "
                "offload_payloads_above"
            )
        staged = Staged(self)
        try:
            data, ref = await self._stage_stream(source, staged)
        except BaseException:
            staged.finish()
            raise
        if ref is None:
            return replace(job, payload=data), staged
        staged.add(job, ref)
        return job, staged

    async def _stage_stream(
        self, source: PayloadSource, staged: Staged
    ) -> tuple[bytes, PayloadRef | None]:
        key = ""
        size = stored = 0
        buffer = bytearray()
        async for chunk in _chunks(source):
            size += len(chunk)
            if size > MAX_STREAMED_PAYLOAD_SIZE:
                raise ValueTooLarge(
                    f"a payload may have {MAX_STREAMED_PAYLOAD_SIZE:,} bytes: put larger data in "
                    "objects of your own and pass their names"
                )
            view = memoryview(chunk)
            while view:
                taken = view[: PART_SIZE - len(buffer)]
                buffer += taken
                view = view[len(taken) :]
                if len(buffer) == PART_SIZE:
                    key = key or staged.new_key()
                    number, stored = stored // PART_SIZE, stored + PART_SIZE
                    await self._put(staged, part_key(key, number), bytes(buffer))
                    buffer.clear()
        if not key and size <= self.above:
            return bytes(buffer), None
        key = key or staged.new_key()
        if buffer or not stored:
            await self._put(staged, part_key(key, stored // PART_SIZE), bytes(buffer))
        return b"", PayloadRef(key, size, PART_SIZE if stored else max(size, 1))

    async def prepare(
        self, settlement: Callable[[QueueTransaction], Any], effects: Effects
    ) -> Callable[[QueueTransaction], Any]:
        """The same settlement, with the large payloads of its effects stored."""
        staged = await self.stage(effects.all_jobs())

        def settle(tx: QueueTransaction) -> Any:
            staged.use(tx)
            return settlement(tx)

        return settle

    async def stage_value(self, data: bytes) -> StoredValue:
        """Store a value of a layer above.

        Raises:
            StoreError: It could not be stored; what was is deleted again.
        """
        size = len(data)
        staged = Staged(self)
        try:
            single = size <= MAX_PAYLOAD_SIZE
            ref = PayloadRef(staged.new_key(), size, max(size, 1) if single else PART_SIZE)
            await self._put_parts(staged, ref, data)
        except BaseException:
            staged.finish()
            raise
        return StoredValue(staged, ref)

    async def _put_parts(self, staged: Staged, ref: PayloadRef, data: bytes) -> None:
        keys = ref.keys
        if len(keys) == 1:
            await self._put(staged, keys[0], data)
            return
        numbers = iter(range(len(keys)))
        view = memoryview(data)

        async def put_next() -> None:
            for number in numbers:
                start = number * ref.part_size
                part = bytes(view[start : start + ref.part_size])
                await self._put(staged, keys[number], part)

        await together(put_next() for _ in range(min(_UPLOADS, len(keys))))

    # -- deleting ---------------------------------------------------------------------------

    def forget(self, ref: str) -> None:
        """The job that named this is gone: delete it when that is durable."""
        if not self._kept_in_history:
            self.delete(PayloadRef.parse(ref).keys)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects that no state names any more, once what is visible now is durable."""
        room = _MOST_DOOMED - len(self._doomed)
        self._doomed.extend(keys[: max(room, 0)])
        if self._doomed and self._deleting is None:
            self._deleting = asyncio.ensure_future(self._delete())

    async def _delete(self) -> None:
        try:
            while self._doomed:
                keys = self._doomed[:_KEYS_PER_DELETE]
                del self._doomed[:_KEYS_PER_DELETE]
                await self._database.barrier()
                try:
                    await self.store.delete(keys)
                except Exception as error:
                    logger.warning(
                        "%d payload objects are left to the collection of orphans: %s",
                        len(keys),
                        error,
                    )
        except TaqubaError:
            self._doomed.clear()  # stopped: whoever opens it next collects them
        finally:
            self._deleting = None

    async def close(self, patience: float) -> None:
        """Let deletions go through, but not for longer than this."""
        task = self._deleting
        if task is None:
            return
        ended = asyncio.Event()
        task.add_done_callback(lambda _: ended.set())
        try:
            await wait_for_event(ended, patience, self._clock)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _chunks(source: PayloadSource) -> AsyncGenerator[bytes, None]:
    if isinstance(source, AsyncIterable):
        async for chunk in source:
            yield _checked(chunk)
        return
    while chunk := _checked(await anyio.to_thread.run_sync(source.read, PART_SIZE)):
        yield chunk


def _checked(chunk: object) -> bytes:
    if isinstance(chunk, str):
        raise wrong_type("a payload is made of bytes", chunk, ": open the file with mode 'rb'")
    return blob(chunk, name="a piece of a payload", limit=MAX_STREAMED_PAYLOAD_SIZE)
