"""Trying again what failed for a moment."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from taquba.clock import Clock, Duration, seconds
from taquba.errors import InvalidArgument, ObjectExists, ObjectNotFound, StoreUnavailable
from taquba.objectstore._protocol import ObjectInfo, ObjectStore, check_data, check_keys

__all__ = ["Attempts", "RetryPolicy", "RetryingStore"]

T = TypeVar("T")

logger = logging.getLogger("taquba.objectstore")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, and for how long, a request is tried again.

    The wait before the n-th repetition is drawn evenly between nothing and
    ``min(max_delay, first_delay * 2**n)`` ("full jitter"), so that many clients of one
    store that hiccuped do not come back all at once.

    Attributes:
        attempts: Requests in all, the first included; at least 1.
        first_delay: Bound of the first wait.
        max_delay: Bound of every wait.
        total: No repetition begins when this much time has passed since the first request.
    """

    attempts: int = 8
    first_delay: Duration = 0.1
    max_delay: Duration = 10.0
    total: Duration = 120.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidArgument(f"attempts is {self.attempts}: at least 1")
        for name in ("first_delay", "max_delay", "total"):
            seconds(getattr(self, name), name=name)


class Attempts:
    """The repetitions of one request."""

    def __init__(
        self, clock: Clock, policy: RetryPolicy, on_retry: Callable[[], None] | None = None
    ) -> None:
        """Args:
        clock: Where waiting and jitter come from.
        policy: The bounds.
        on_retry: Told of each repetition.
        """
        self._clock = clock
        self._policy = policy
        self._on_retry = on_retry
        self._first = seconds(policy.first_delay, name="first_delay")
        self._max = seconds(policy.max_delay, name="max_delay")
        self._end = clock.monotonic() + seconds(policy.total, name="total")
        self._made = 0

    async def pause(self, error: StoreUnavailable) -> None:
        """Wait before the next attempt, or raise `error` if there is to be none."""
        self._made += 1
        # The exponent is bounded, since a float overflows at 2**1024.
        bound = min(self._max, self._first * 2.0 ** min(self._made - 1, 60))
        delay = self._clock.random() * bound
        if self._made >= self._policy.attempts or self._clock.monotonic() + delay > self._end:
            raise error
        logger.debug("attempt %d failed, the next in %.2f s: %s", self._made, delay, error)
        if self._on_retry is not None:
            self._on_retry()
        await self._clock.sleep(delay)


class RetryingStore:
    """Another store, with requests that failed for a moment tried again, within bounds.

    Only `StoreUnavailable` is tried again: what cannot get better by itself (credentials,
    a missing bucket) is raised at once. When the bounds are reached the last
    `StoreUnavailable` is raised, and a write may still have happened.

    It also settles creates whose answer was lost: see `create`.
    """

    def __init__(
        self, store: ObjectStore, *, clock: Clock, policy: RetryPolicy | None = None
    ) -> None:
        """Args:
        store: The store to ask; closed with this one.
        clock: Where waiting and jitter come from.
        policy: The bounds.
        """
        self._store = store
        self._clock = clock
        self._policy = RetryPolicy() if policy is None else policy
        self._on_retry: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"RetryingStore({self._store!r})"

    @property
    def store(self) -> ObjectStore:
        """The store below, without retries."""
        return self._store

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        return await self._repeat(lambda: self._store.get(key))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """See `ObjectStore.get_range`."""
        return await self._repeat(lambda: self._store.get_range(key, start, end))

    async def create(self, key: str, data: bytes) -> None:
        """Store the object if the key is free, or already holds exactly `data`.

        `data` must be unlike what any other writer creates: put a random id into it. A client
        resends a request whose answer was lost and then hears 'already exists' of its own
        object; so what holds the key is read back and compared before anybody is blamed.

        Never delete a key that a slow writer may still try to create: its repetition would
        bring the object back.

        Raises:
            ObjectExists: Other bytes hold the key.
            StoreUnavailable: Nobody knows: the object may be there, now or later.
        """
        data = check_data(data)
        attempts = self._attempts()
        while True:
            try:
                return await self._store.create(key, data)
            except (ObjectExists, StoreUnavailable) as failed:
                error: ObjectExists | StoreUnavailable = failed
            unsure = await self._compare(key, data, error)
            if unsure is None:
                return None
            await attempts.pause(unsure)

    async def _compare(
        self, key: str, data: bytes, error: ObjectExists | StoreUnavailable
    ) -> StoreUnavailable | None:
        """Who holds the key after a create failed with `error`.

        None if it was us, an error to wait upon if nobody is known to; else raises.
        """
        try:
            present = await self._store.get(key)
        except ObjectNotFound:
            if isinstance(error, StoreUnavailable):
                return error
            return StoreUnavailable(
                f"object {key!r} is reported both as present and as absent",
                operation="create",
                key=key,
            )
        except StoreUnavailable as unreadable:
            return unreadable
        if present == data:
            return None
        if isinstance(error, ObjectExists):
            raise error
        raise ObjectExists(
            f"object {key!r} exists, with other bytes", operation="create", key=key
        ) from error

    async def put(self, key: str, data: bytes) -> None:
        """See `ObjectStore.put`."""
        data = check_data(data)
        await self._repeat(lambda: self._store.put(key, data))

    async def delete(self, keys: Iterable[str]) -> None:
        """See `ObjectStore.delete`."""
        checked = check_keys(keys)
        await self._repeat(lambda: self._store.delete(checked))

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """See `ObjectStore.list`. A listing that fails goes on after the last key it gave."""
        attempts = self._attempts()
        progress = False
        while True:
            entries = self._store.list(prefix, start_after)
            try:
                async for info in entries:
                    yield info
                    start_after = info.key
                    progress = True
                return
            except StoreUnavailable as error:
                failed = error
            finally:
                close = getattr(entries, "aclose", None)
                if close is not None:
                    await close()
            if progress:
                attempts, progress = self._attempts(), False
            await attempts.pause(failed)

    async def close(self) -> None:
        """Close the store below."""
        await self._store.close()

    def _attempts(self) -> Attempts:
        return Attempts(self._clock, self._policy, self._on_retry)

    def _with(self, store: ObjectStore, on_retry: Callable[[], None]) -> RetryingStore:
        """The same above another store, telling of each repetition."""
        retrying = RetryingStore(store, clock=self._clock, policy=self._policy)
        retrying._on_retry = on_retry
        return retrying

    async def _repeat(self, request: Callable[[], Awaitable[T]]) -> T:
        attempts = self._attempts()
        while True:
            try:
                return await request()
            except StoreUnavailable as error:
                failed = error
            await attempts.pause(failed)
