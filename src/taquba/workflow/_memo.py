"""Memo: results of expensive calls inside a step, kept until the run ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, final, overload

import anyio

from taquba._checks import blob, shown
from taquba._msgpack import pack, unpack
from taquba.errors import (
    ClaimLost,
    Closed,
    InvalidArgument,
    InvalidState,
    InvalidType,
    SerializationError,
    ValueTooLarge,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from taquba.queue import Claim, Queue
    from taquba.workflow._runs import RunTable

__all__ = ["MAX_MEMO_KEY_SIZE", "MAX_MEMO_SIZE", "RUN_SCOPE", "BlockingMemo", "Memo"]

logger = logging.getLogger("taquba.workflow")

T = TypeVar("T")

MAX_MEMO_KEY_SIZE = 64 * 1024
"""Bytes of UTF-8 in a memo's key."""
MAX_MEMO_SIZE = 16 * 1024 * 1024
"""Bytes of one memo value, 16 MiB."""
_LOOK_AT_LOOP = 1.0
"""Seconds between looks of a waiting thread at whether there is still an event loop."""
RUN_SCOPE = -1
"""Stands in place of the step number for memos that all steps of the run share."""


@final
class Memo:
    """Values that a step computed, kept so that a retry does not compute them again.

    They belong to one run and one step (or, for `Step.run_memo`, to one run), survive
    retries and restarts, and go when the run ends. A value is durable when the call
    that stored it returns.
    """

    __slots__ = ("_claim", "_life", "_locks", "_queue", "_runs", "_step")

    def __init__(self, queue: Queue, runs: RunTable, claim: Claim, life: int, step: int) -> None:
        self._queue = queue
        self._runs = runs
        self._claim = claim
        self._life = life
        self._step = step
        self._locks: dict[str, anyio.Lock] = {}

    async def get(self, key: str) -> bytes | None:
        """The stored bytes, or None."""
        stored = self._runs.memo(self._life, self._step, _check_key(key))
        if stored is not None:
            await self._queue.barrier()  # who stored it may have given up waiting
        return stored

    async def put(self, key: str, data: bytes) -> None:
        """Store bytes, replacing what was there; durable when this returns.

        Raises:
            ValueTooLarge: More than 16 MiB.
            ClaimLost: The step has returned, or its lease expired: its work is not wanted.
            Fenced: Another process took the store over.
        """
        checked = _check_key(key)
        value = blob(data, name="a memo's value", limit=MAX_MEMO_SIZE)
        await self._queue.ready()
        if not self._claim.is_live:
            raise ClaimLost(
                f"memo {key!r} was not stored: this delivery of the step has ended. If its lease "
                "expired, extend it in long steps with step.lease.ensure_at_least(…); if the step "
                "had returned, let it await whatever stores memos"
            )
        with self._queue.transaction() as tx:
            self._runs.put_memo(tx, self._life, self._step, checked, value)
        await tx.durable()

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
        changed, say) is computed again.

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
            ClaimLost: The step's lease expired meanwhile.
            Fenced: Another process took the store over.
        """
        checked = _check_key(key)
        if not callable(fn):
            raise _no_function(key, fn)
        codec = _codec(type)
        async with self._locks.setdefault(checked, anyio.Lock()):
            stored = self._runs.memo(self._life, self._step, checked)
            if stored is not None:
                await self._queue.barrier()  # who stored it may have given up waiting
                try:
                    return codec.decode(stored)
                except SerializationError as error:
                    logger.warning("memo %r is computed again: %s", key, error)
            value = fn()
            if inspect.isawaitable(value):
                value = await value
            data, decoded = codec.encode(value)
            await self.put(key, data)
            return decoded

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
        key = "content:" + hashlib.sha256(_pack(value, "the content")).hexdigest()
        return await self.memoized(key, fn, type)


@final
class BlockingMemo:
    """`Memo` for runners that are ordinary functions, and run in a thread.

    Its methods may be called from any thread, for example from a pool of the runner's own,
    but not on the event loop itself, for which they wait.
    """

    __slots__ = ("_locks", "_loop", "_memo")

    def __init__(self, memo: Memo) -> None:
        self._memo = memo
        self._loop = asyncio.get_running_loop()
        self._locks: dict[str, threading.RLock] = {}

    def get(self, key: str) -> bytes | None:
        """See `Memo.get`."""
        return self._wait_for(self._memo.get, key)

    def put(self, key: str, data: bytes) -> None:
        """See `Memo.put`."""
        self._wait_for(self._memo.put, key, data)

    def _wait_for(self, call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        if asyncio._get_running_loop() is self._loop:
            raise InvalidState(
                "a BlockingMemo waits for the event loop, so it cannot be used on it: use it in "
                "the runner's thread, or declare the runner with 'async def'"
            )
        waiting = call(*arguments)
        try:
            answer = asyncio.run_coroutine_threadsafe(waiting, self._loop)
        except RuntimeError:
            waiting.close()
            raise self._loop_closed() from None
        while True:
            concurrent.futures.wait((answer,), timeout=_LOOK_AT_LOOP)
            if answer.done():
                return answer.result()
            if self._loop.is_closed():
                raise self._loop_closed()

    def _loop_closed(self) -> Closed:
        return Closed("the event loop has ended, and nothing can be stored any more")

    @overload
    def memoized(self, key: str, fn: Callable[[], T]) -> T: ...
    @overload
    def memoized(self, key: str, fn: Callable[[], T], type: type[T]) -> T: ...
    def memoized(self, key: str, fn: Callable[[], Any], type: Any = None) -> Any:
        """See `Memo.memoized`; `fn` is sync, and runs in this thread."""
        checked = _check_key(key)
        if not callable(fn):
            raise _no_function(key, fn)
        codec = _codec(type)
        with self._locks.setdefault(checked, threading.RLock()):
            stored = self.get(checked)
            if stored is not None:
                try:
                    return codec.decode(stored)
                except SerializationError as error:
                    logger.warning("memo %r is computed again: %s", key, error)
            value = fn()
            if inspect.isawaitable(value):
                if inspect.iscoroutine(value):
                    value.close()
                raise InvalidType(
                    f"fn of memo {key!r} is async, but the runner is not: declare the runner with "
                    "'async def', or call something that is not async"
                )
            data, decoded = codec.encode(value)
            self.put(key, data)
            return decoded

    @overload
    def memoized_by_content(self, value: Any, fn: Callable[[], T]) -> T: ...
    @overload
    def memoized_by_content(self, value: Any, fn: Callable[[], T], type: type[T]) -> T: ...
    def memoized_by_content(self, value: Any, fn: Callable[[], Any], type: Any = None) -> Any:
        """See `Memo.memoized_by_content`."""
        key = "content:" + hashlib.sha256(_pack(value, "the content")).hexdigest()
        return self.memoized(key, fn, type)


class _PlainCodec:
    """MessagePack, for values without a declared type."""

    def encode(self, value: Any) -> tuple[bytes, Any]:
        """The stored form, and what it decodes to."""
        data = _pack(value, "the memo's value")
        try:
            return data, unpack(data)
        except ValueError as error:
            raise SerializationError(
                f"the memo's value {shown(value)} cannot be encoded so that it can be decoded "
                f"again: {error}"
            ) from error

    def decode(self, data: bytes) -> Any:
        try:
            return unpack(data)
        except ValueError as error:
            raise SerializationError(f"the stored value cannot be decoded: {error}") from error


class _TypedCodec:
    """JSON by pydantic, for values of a declared type."""

    def __init__(self, adapter: TypeAdapter[Any], name: str) -> None:
        self._adapter = adapter
        self._name = name

    def encode(self, value: Any) -> tuple[bytes, Any]:
        from pydantic_core import PydanticSerializationError

        try:
            data = self._adapter.dump_json(value, warnings="error")
            return data, self._adapter.validate_json(data)
        except (PydanticSerializationError, ValueError) as error:
            raise SerializationError(
                f"the memo's value {shown(value)} cannot be stored as {self._name}: {error!s:.1000}"
            ) from error

    def decode(self, data: bytes) -> Any:
        try:
            return self._adapter.validate_json(data)
        except ValueError as error:  # pydantic.ValidationError among them
            raise SerializationError(
                f"the stored value is no {self._name}: {error!s:.1000}"
            ) from error


_PLAIN = _PlainCodec()


@lru_cache(512)
def _typed_codec(type: Any) -> _TypedCodec:
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter

    # So that all bytes and floats come back; models say by themselves what they do.
    exact = ConfigDict(
        ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants"
    )
    try:
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(type, config=exact)
        except PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                raise
            adapter = TypeAdapter(type)
        with contextlib.suppress(ValueError):
            adapter.validate_json(b"")  # types that are still unknown show up only now
        return _TypedCodec(adapter, getattr(type, "__name__", repr(type)))
    except (PydanticUserError, NameError) as error:
        raise InvalidType(f"type {type!r} is nothing that pydantic can handle: {error}") from error


def _codec(type: Any) -> _PlainCodec | _TypedCodec:
    if type is None:
        return _PLAIN
    try:
        return _typed_codec(type)
    except TypeError as error:
        if isinstance(error, InvalidType):
            raise
        raise InvalidType(f"type {type!r} is not a type: {error}") from error


def _pack(value: Any, name: str) -> bytes:
    try:
        return pack(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SerializationError(
            f"{name} {shown(value)} cannot be encoded: {error}. Use None, bool, int, float, str, "
            "bytes, list and dict, or say its type: memoized(key, fn, type=…)"
        ) from error


def _no_function(key: str, fn: object) -> InvalidType:
    if inspect.iscoroutine(fn):
        fn.close()
    return InvalidType(
        f"fn of memo {key!r} must be callable, not {shown(fn)}: "
        "pass the function itself: memoized(key, lambda: call(…))"
    )


def _check_key(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidType(f"a memo's key must be a str, not {type(key).__name__}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"memo key {key!r} cannot be encoded as UTF-8: {error}") from None
    if size > MAX_MEMO_KEY_SIZE:
        raise ValueTooLarge(f"the memo's key has {size:,} bytes and may have {MAX_MEMO_KEY_SIZE:,}")
    return key
