"""Memo: results of expensive calls inside a step, kept until the run ends."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, final, overload

import anyio

from taquba._checks import blob, shown, utf8
from taquba._codecs import codec_for, content_key
from taquba.errors import (
    ClaimLost,
    CorruptStore,
    InvalidType,
    PayloadMissing,
    ReservedName,
    SerializationError,
    ValueTooLarge,
)
from taquba.workflow._headers import RESERVED_HEADER_PREFIX
from taquba.workflow._memo_rows import row_of, write_row

if TYPE_CHECKING:
    from taquba.queue import Claim, Queue, StoredValue

__all__ = [
    "MAX_INLINE_MEMO_SIZE",
    "MAX_MEMO_KEY_SIZE",
    "MAX_MEMO_SIZE",
    "MEMO_INLINE_LIMIT",
    "RUN_SCOPE",
    "Memo",
    "MemoStats",
    "check_function",
    "check_key",
]

logger = logging.getLogger("taquba.workflow")

T = TypeVar("T")

MAX_MEMO_KEY_SIZE = 64 * 1024
"""Bytes of UTF-8 in a memo's key."""
MAX_MEMO_SIZE = 1024 * 1024 * 1024
"""Bytes of one memo value, 1 GiB."""
MAX_INLINE_MEMO_SIZE = 16 * 1024 * 1024
"""Bytes of one memo value that is part of the state, 16 MiB: the most for `memo_inline_limit`."""
MEMO_INLINE_LIMIT = 64 * 1024
"""Bytes up to which memo values are part of the state, unless the runtime is told otherwise."""
RUN_SCOPE = -1
"""Stands in place of the step number for memos that all steps of the run share."""


@dataclass(frozen=True, slots=True)
class MemoStats:
    """What one delivery of a step has asked of a memo so far."""

    hits: int
    """Values that were there."""
    misses: int
    """Values that were not there, or could not be used, and had to be computed."""
    bytes_read: int
    """Bytes of the values that were there, as stored."""
    bytes_written: int
    """Bytes of the values that were stored."""


@final
class Memo:
    """Values that a step computed, kept so that a retry does not compute them again.

    They belong to one run and one step (or, for `Step.run_memo`, to one run), survive
    retries and restarts, and go when the run ends. A value is durable when the call
    that stored it returns.

    Keys are any text of up to 64 KiB that does not begin with ``workflow.``. A value has at
    most 1 GiB. Up to the runtime's `memo_inline_limit` it is part of the state: reading it
    needs no request, and storing it shares its write with whatever is stored at that moment.
    A larger one is an object of its own, and in memory as a whole while it is stored or read.
    """

    __slots__ = (
        "_claim",
        "_hits",
        "_inline_limit",
        "_life",
        "_locks",
        "_misses",
        "_queue",
        "_read_bytes",
        "_step",
        "_written_bytes",
    )

    def __init__(
        self, queue: Queue, claim: Claim, life: int, step: int, inline_limit: int | None
    ) -> None:
        self._queue = queue
        self._claim = claim
        self._life = life
        self._step = step
        self._inline_limit = inline_limit
        self._locks: dict[str, anyio.Lock] = {}
        self._hits = self._misses = self._read_bytes = self._written_bytes = 0

    def stats(self) -> MemoStats:
        """What this delivery of the step has asked of this memo so far."""
        return MemoStats(self._hits, self._misses, self._read_bytes, self._written_bytes)

    async def get(self, key: str) -> bytes | None:
        """The stored bytes, or None.

        Raises:
            ReservedName: The key begins with ``workflow.``.
            PayloadMissing, CorruptStore: The object that holds a large value is gone, or
                damaged. `put` replaces it, and `memoized` computes it again.
            StoreError: The object of a large value could not be read.
        """
        return await self._read(check_key(key), lenient=False)

    async def put(self, key: str, data: bytes) -> None:
        """Store bytes, replacing what was there; durable when this returns.

        If the caller is cancelled meanwhile, the old value is there, or the new one.

        Raises:
            ReservedName: The key begins with ``workflow.``.
            ValueTooLarge: More than 1 GiB; or than 16 MiB, if `memo_inline_limit` is None.
            ClaimLost: The step has returned, or its lease expired: its work is not wanted.
            StoreError: The object of a large value could not be stored.
            Fenced: Another process took the store over.
        """
        checked = check_key(key)
        inline = self._inline_limit
        limit = MAX_INLINE_MEMO_SIZE if inline is None else MAX_MEMO_SIZE
        value = blob(data, name="a memo's value", limit=limit)
        if inline is None or len(value) <= inline:
            await self._write(checked, value)
            return
        self._check_live(key)
        stored = await self._queue.store_value(value)
        try:
            await self._write(checked, value, stored)
        finally:
            stored.finish()

    async def _write(self, key: str, value: bytes, stored: StoredValue | None = None) -> None:
        await self._queue.ready()
        self._check_live(key)
        with self._queue.transaction() as tx:
            write_row(tx, self._life, self._step, key, value, stored)
        self._written_bytes += len(value)
        await tx.durable()

    def _check_live(self, key: str) -> None:
        if not self._claim.is_live or self._claim._lease.returned:
            raise ClaimLost(
                f"memo {key!r} was not stored: this delivery of the step has ended. If its lease "
                "expired, extend it in long steps with step.lease.ensure_at_least(…); if the step "
                "had returned, let it await whatever stores memos"
            )

    async def _read(self, key: str, *, lenient: bool) -> bytes | None:
        """What is stored; with `lenient`, what is lost is told in a warning."""
        row = row_of(self._queue, self._life, self._step, key)
        data = None
        if row is not None:
            await self._queue.barrier()  # who stored it may have given up waiting
            data = row.value
            if row.ref is not None:
                data = await self._fetch(key, row.ref, lenient=lenient)
        if data is None:
            self._misses += 1
        else:
            self._hits += 1
            self._read_bytes += len(data)
        return data

    async def _fetch(self, key: str, ref: str, *, lenient: bool) -> bytes | None:
        while True:
            try:
                return await self._queue.fetch_value(ref)
            except (PayloadMissing, CorruptStore) as error:
                row = row_of(self._queue, self._life, self._step, key)
                if row is None:
                    return None  # the run has ended meanwhile
                if row.ref == ref:
                    if lenient:
                        logger.warning("memo %r is computed again: %s", key, error)
                        return None
                    text = f"the value of memo {key!r} is lost: {error}"
                    if isinstance(error, CorruptStore):
                        raise CorruptStore(text, key=error.key) from error
                    raise PayloadMissing(text) from error
            # It was replaced meanwhile.
            await self._queue.barrier()
            if row.ref is None:
                return row.value
            ref = row.ref

    def _undecodable(self, key: str, error: SerializationError) -> None:
        """What was found is of no use."""
        logger.warning("memo %r is computed again: %s", key, error)
        self._hits -= 1
        self._misses += 1

    @overload
    async def memoized(self, key: str, fn: Callable[[], Awaitable[T]]) -> T: ...
    @overload
    async def memoized(self, key: str, fn: Callable[[], Awaitable[T]], type: type[T]) -> T: ...
    @overload
    async def memoized(self, key: str, fn: Callable[[], T]) -> T: ...
    @overload
    async def memoized(self, key: str, fn: Callable[[], T], type: type[T]) -> T: ...
    async def memoized(self, key: str, fn: Callable[[], Any], type: Any = None) -> Any:
        """The stored value of `key`, or else the result of `fn`, which is then stored.

        Calls of one key at the same time run `fn` once. An exception of `fn` passes through,
        and nothing is stored. A stored value that cannot be decoded any more (the type has
        changed, say), or whose object is gone or damaged, is computed again, with a warning.

        Args:
            key: Any text; unique within the step.
            fn: Takes nothing; async or sync.
            type: What the value is: anything pydantic can handle (a model, ``list[int]``, a
                dataclass). Without it the value must consist of None, bool, int, float, str,
                bytes, list and dict, and comes back as such: a tuple as a list, say.

        Returns:
            The value as it was decoded from its stored form, the first time too, so that a
            later attempt sees the same.

        Raises:
            SerializationError: The value cannot be encoded; it was computed, but not stored.
            ValueTooLarge: Its stored form is too large; it was computed, but not stored.
            ReservedName: The key begins with ``workflow.``.
            StoreError: The object of a large value could not be read or stored.
            ClaimLost: The step's lease expired meanwhile.
            Fenced: Another process took the store over.
        """
        checked = check_key(key)
        check_function(key, fn)
        codec = codec_for(type)
        lock = self._locks.get(checked)
        if lock is None:
            lock = self._locks[checked] = anyio.Lock()
        try:
            async with lock:
                stored = await self._read(checked, lenient=True)
                if stored is not None:
                    try:
                        return codec.decode(stored)
                    except SerializationError as error:
                        self._undecodable(key, error)
                value = fn()
                if inspect.isawaitable(value):
                    value = await value
                data, decoded = codec.encode(value)
                await self.put(key, data)
                return decoded
        finally:
            if not lock.locked() and self._locks.get(checked) is lock:
                del self._locks[checked]

    @overload
    async def memoized_by_content(self, value: Any, fn: Callable[[], Awaitable[T]]) -> T: ...
    @overload
    async def memoized_by_content(
        self, value: Any, fn: Callable[[], Awaitable[T]], type: type[T]
    ) -> T: ...
    @overload
    async def memoized_by_content(self, value: Any, fn: Callable[[], T]) -> T: ...
    @overload
    async def memoized_by_content(self, value: Any, fn: Callable[[], T], type: type[T]) -> T: ...
    async def memoized_by_content(self, value: Any, fn: Callable[[], Any], type: Any = None) -> Any:
        """As `memoized`, with a key made from `value`: equal content, one computation.

        `value` must consist of None, bool, int, float, str, bytes, list and dict. Put the
        operation's name into it if several operations work on the same inputs.

        Raises:
            SerializationError: `value` cannot be encoded.
        """
        return await self.memoized(content_key(value), fn, type)


def check_function(key: str, fn: object) -> None:
    """Refuse what cannot be called to compute a value.

    Raises:
        InvalidType: It is no function.
    """
    if callable(fn):
        return
    if inspect.iscoroutine(fn):
        fn.close()
    raise InvalidType(
        f"fn of memo {key!r} must be callable, not {shown(fn)}: "
        "pass the function itself: memoized(key, lambda: call(…))"
    )


def check_key(key: object) -> str:
    """The key, if it is one.

    Raises:
        InvalidType: It is no text.
        ValueTooLarge: It is too long.
        ReservedName: It is taquba's own.
    """
    if not isinstance(key, str):
        raise InvalidType(f"a memo's key must be a str, not {type(key).__name__}")
    size = len(utf8(key, f"memo key {key!r:.200}"))
    if size > MAX_MEMO_KEY_SIZE:
        raise ValueTooLarge(f"the memo's key has {size:,} bytes and may have {MAX_MEMO_KEY_SIZE:,}")
    if key.startswith(RESERVED_HEADER_PREFIX):
        raise ReservedName(
            f"memo key {key!r:.200}: keys that begin with {RESERVED_HEADER_PREFIX!r} are "
            "taquba's own; choose another"
        )
    return key
