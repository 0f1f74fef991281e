"""Memo for runners that are ordinary functions."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, final, overload

from taquba._codecs import codec_for, content_key
from taquba.errors import Closed, InvalidState, InvalidType, SerializationError
from taquba.workflow._memo import Memo, MemoStats, check_function, check_key

__all__ = ["BlockingMemo"]

T = TypeVar("T")

_LOOK_AT_LOOP = 1.0
"""Seconds between looks of a waiting thread at whether there is still an event loop."""

_one_at_a_time = threading.RLock()


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that waits for nothing."""
    with _one_at_a_time:
        try:
            work.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        work.close()
        raise AssertionError("a detached memo waited for something")


@final
class BlockingMemo:
    """`Memo` for runners that are ordinary functions, and run in a thread.

    Its methods may be called from any thread, for example from a pool of the runner's own,
    but not on the event loop itself, for which they wait.
    """

    __slots__ = ("_locks", "_loop", "_memo")

    def __init__(self, memo: Memo, *, detached: bool = False) -> None:
        """Args:
        memo: Does the work.
        detached: It stands on nothing that has to be waited for, so no event loop is needed.
        """
        self._memo = memo
        self._loop = None if detached else asyncio.get_running_loop()
        self._locks: dict[str, threading.RLock] = {}

    def stats(self) -> MemoStats:
        """See `Memo.stats`."""
        return self._memo.stats()

    def get(self, key: str) -> bytes | None:
        """See `Memo.get`."""
        return self._wait_for(self._memo.get, key)

    def put(self, key: str, data: bytes) -> None:
        """See `Memo.put`."""
        self._wait_for(self._memo.put, key, data)

    def _wait_for(
        self, call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **options: Any
    ) -> T:
        loop = self._loop
        if loop is None:
            return _at_once(call(*arguments, **options))
        if asyncio._get_running_loop() is loop:
            raise InvalidState(
                "a BlockingMemo waits for the event loop, so it cannot be used on it: use it in "
                "the runner's thread, or declare the runner with 'async def'"
            )
        waiting = call(*arguments, **options)
        try:
            answer = asyncio.run_coroutine_threadsafe(waiting, loop)
        except RuntimeError:
            waiting.close()
            raise self._loop_closed() from None
        while True:
            concurrent.futures.wait((answer,), timeout=_LOOK_AT_LOOP)
            if answer.done():
                return answer.result()
            if loop.is_closed():
                raise self._loop_closed()

    def _call(self, function: Callable[..., object], *arguments: Any) -> None:
        if self._loop is None:
            function(*arguments)
            return
        with contextlib.suppress(RuntimeError):  # there is no loop any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _loop_closed(self) -> Closed:
        return Closed("the event loop has ended, and nothing can be stored any more")

    @overload
    def memoized(self, key: str, fn: Callable[[], T]) -> T: ...
    @overload
    def memoized(self, key: str, fn: Callable[[], T], type: type[T]) -> T: ...
    def memoized(self, key: str, fn: Callable[[], Any], type: Any = None) -> Any:
        """See `Memo.memoized`; `fn` is sync, and runs in this thread."""
        checked = check_key(key)
        check_function(key, fn)
        codec = codec_for(type)
        with self._locks.setdefault(checked, threading.RLock()):
            stored = self._wait_for(self._memo._read, checked, lenient=True)
            if stored is not None:
                try:
                    return codec.decode(stored)
                except SerializationError as error:
                    self._call(self._memo._undecodable, key, error)
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
        return self.memoized(content_key(value), fn, type)
