"""An object store that fails when a test wants it to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from taquba.errors import InvalidArgument, StoreError, StoreUnavailable
from taquba.objectstore import ObjectInfo, ObjectStore

__all__ = ["FaultyStore", "HeldRequests", "Operation", "StoreRequest"]

T = TypeVar("T")

Operation = Literal["get", "get_range", "create", "put", "delete", "list", "write", "read", "any"]
"""A method of a store, or several: ``write`` is create, put and delete; ``read`` the others."""

_READS = {"get", "get_range", "list"}
_WRITES = {"create", "put", "delete"}


@dataclass(slots=True)
class StoreRequest:
    """One request that a `FaultyStore` got.

    Attributes:
        operation: The method.
        key: The key, the prefix of a listing, or the first key to delete.
        size: Bytes to write; 0 for the others.
        fate: What became of it: ``"under way"``, ``"done"``, ``"failed before"``,
            ``"failed after"`` its effect, ``"refused"`` by the store below, or
            ``"abandoned"`` by a caller that was cancelled.
    """

    operation: str
    key: str
    size: int = 0
    fate: str = "under way"


@dataclass(slots=True)
class _Rule:
    operation: Operation
    prefix: str
    after: bool
    error: StoreError | None
    left: float
    skip: int
    hold: HeldRequests | None = None

    def takes(self, request: StoreRequest) -> bool:
        """Whether this rule spoils the request; counts it."""
        if self.left <= 0 or not request.key.startswith(self.prefix):
            return False
        if not _covers(self.operation, request.operation):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.left -= 1
        return True


@dataclass(slots=True)
class HeldRequests:
    """Requests that wait until a test lets them go on: see `FaultyStore.hold`.

    Attributes:
        requests: Those that have come so far.
    """

    requests: list[StoreRequest] = field(default_factory=lambda: list[StoreRequest]())
    _arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    _rule: _Rule | None = None

    async def arrived(self, count: int = 1) -> None:
        """Return when `count` requests have come here."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)

    def release(self) -> None:
        """Let those that wait go on, and hold no further ones."""
        if self._rule is not None:
            self._rule.left = 0
        self._released.set()

    async def pass_through(self, request: StoreRequest) -> None:
        """Wait here (called by the store)."""
        async with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
        await self._released.wait()


class FaultyStore:
    """Another store whose requests fail, or wait, as a test scripts it or as a seed decides.

    Faults come before the effect (the request never reached the store) or after it (the
    store did it, and the answer was lost). Scripted rules are tried first, in the order in
    which they were made.

    A write that was begun is finished even if its caller is cancelled meanwhile, as on a
    network; `settle` waits for those.

    Example:
        >>> import asyncio, contextlib
        >>> from taquba.objectstore import MemoryStore
        >>> async def main() -> int:
        ...     store = FaultyStore(MemoryStore())
        ...     store.fail("get", times=3)                         # the next three: never sent
        ...     store.fail("create", "journal/", after=True)       # the next: its answer is lost
        ...     held = store.hold("create", "journal/")             # the one after that waits
        ...     with contextlib.suppress(StoreUnavailable):
        ...         await store.create("journal/1", b"one")
        ...     waiting = asyncio.create_task(store.create("journal/2", b"two"))
        ...     await held.arrived()
        ...     held.release()
        ...     await waiting
        ...     return store.count("create", "journal/")
        >>> asyncio.run(main())
        2
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        seed: int = 0,
        fail_before: float = 0.0,
        fail_after: float = 0.0,
    ) -> None:
        """Args:
        store: The store that does the work; closed with this one.
        seed: Decides which requests fail by chance.
        fail_before: Probability that a request fails before its effect.
        fail_after: Probability that a request fails after its effect.
        """
        if min(fail_before, fail_after) < 0 or fail_before + fail_after > 1:
            raise InvalidArgument(
                f"fail_before is {fail_before} and fail_after is {fail_after}: "
                "give two probabilities that add up to at most 1"
            )
        self.requests: list[StoreRequest] = []
        """Every request so far, in order."""
        self.fail_before = fail_before
        self.fail_after = fail_after
        self._store = store
        self._random = random.Random(seed)
        self._rules: list[_Rule] = []
        self._writing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"FaultyStore({self._store!r})"

    @property
    def store(self) -> ObjectStore:
        """The store below, without faults."""
        return self._store

    def fail(
        self,
        operation: Operation = "any",
        prefix: str = "",
        *,
        after: bool = False,
        error: StoreError | None = None,
        times: float = 1,
        skip: int = 0,
    ) -> None:
        """Spoil the next requests of a kind.

        Args:
            operation: Which method.
            prefix: Start of the key.
            after: Fail after the effect, so that only the answer is lost.
            error: What to raise; a `StoreUnavailable` by default.
            times: How many; `math.inf` for all, until `heal`.
            skip: Let so many through first.
        """
        self._rules.append(_Rule(operation, prefix, after, error, times, skip))

    def hold(
        self,
        operation: Operation = "any",
        prefix: str = "",
        *,
        after: bool = False,
        times: float = 1,
        skip: int = 0,
    ) -> HeldRequests:
        """Make the next requests of a kind wait, before or after their effect.

        Args:
            operation: Which method.
            prefix: Start of the key.
            after: Wait after the effect, so that it is there and nobody knows.
            times: How many; `math.inf` for all, until released.
            skip: Let so many through first.
        """
        held = HeldRequests()
        rule = _Rule(operation, prefix, after, None, times, skip, held)
        held._rule = rule  # pyright: ignore[reportPrivateUsage]
        self._rules.append(rule)
        return held

    def heal(self) -> None:
        """Forget all rules and chances. Requests that wait go on."""
        self.fail_before = self.fail_after = 0.0
        rules, self._rules = self._rules, []
        for rule in rules:
            if rule.hold is not None:
                rule.hold.release()

    def count(self, operation: Operation = "any", prefix: str = "") -> int:
        """How many requests of a kind came, whatever became of them."""
        return sum(
            _covers(operation, request.operation) and request.key.startswith(prefix)
            for request in self.requests
        )

    async def settle(self) -> None:
        """Wait for the writes whose callers were cancelled."""
        while self._writing:
            await asyncio.wait(set(self._writing))

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        return await self._request(StoreRequest("get", key), lambda: self._store.get(key))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """See `ObjectStore.get_range`."""
        return await self._request(
            StoreRequest("get_range", key), lambda: self._store.get_range(key, start, end)
        )

    async def create(self, key: str, data: bytes) -> None:
        """See `ObjectStore.create`."""
        await self._write(
            StoreRequest("create", key, len(data)), lambda: self._store.create(key, data)
        )

    async def put(self, key: str, data: bytes) -> None:
        """See `ObjectStore.put`."""
        await self._write(StoreRequest("put", key, len(data)), lambda: self._store.put(key, data))

    async def delete(self, keys: Iterable[str]) -> None:
        """See `ObjectStore.delete`."""
        listed = list(keys) if not isinstance(keys, str) else keys
        first = listed[0] if listed else ""
        await self._write(StoreRequest("delete", first), lambda: self._store.delete(listed))

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """See `ObjectStore.list`. With ``after=True`` it fails after its first entry."""
        request = StoreRequest("list", prefix)
        self.requests.append(request)
        rule = await self._before(request)
        entries = self._store.list(prefix, start_after)
        try:
            async for info in entries:
                yield info
                if rule is not None:
                    break
        finally:
            close = getattr(entries, "aclose", None)
            if close is not None:
                await close()
        await self._after(request, rule)

    async def close(self) -> None:
        """Wait for the writes under way, and close the store below."""
        self.heal()
        await self.settle()
        await self._store.close()

    async def _write(self, request: StoreRequest, work: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.ensure_future(self._request(request, work))
        self._writing.add(task)
        task.add_done_callback(self._written)
        await asyncio.shield(task)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone

    async def _request(self, request: StoreRequest, work: Callable[[], Awaitable[T]]) -> T:
        self.requests.append(request)
        try:
            rule = await self._before(request)
            try:
                answer = await work()
            except Exception:
                request.fate = "refused"
                raise
            await self._after(request, rule)
        except asyncio.CancelledError:
            request.fate = "abandoned"
            raise
        return answer

    async def _before(self, request: StoreRequest) -> _Rule | None:
        """Fail or wait, or return the rule that is to be kept after the effect."""
        rule = self._rule_for(request)
        if rule is not None and not rule.after:
            if rule.hold is not None:
                await rule.hold.pass_through(request)
                return None
            request.fate = "failed before"
            raise rule.error or _unavailable(request)
        return rule

    async def _after(self, request: StoreRequest, rule: _Rule | None) -> None:
        if rule is not None:
            if rule.hold is None:
                request.fate = "failed after"
                raise rule.error or _unavailable(request)
            await rule.hold.pass_through(request)
        request.fate = "done"

    def _rule_for(self, request: StoreRequest) -> _Rule | None:
        for rule in self._rules:
            if rule.takes(request):
                return rule
        if self.fail_before or self.fail_after:
            drawn = self._random.random()
            if drawn < self.fail_before + self.fail_after:
                after = drawn >= self.fail_before
                return _Rule("any", "", after, None, 1, 0)
        return None


def _covers(wanted: Operation, operation: str) -> bool:
    if wanted == "any":
        return True
    if wanted == "read":
        return operation in _READS
    if wanted == "write":
        return operation in _WRITES
    return operation == wanted


def _unavailable(request: StoreRequest) -> StoreUnavailable:
    return StoreUnavailable(
        f"{request.operation} {request.key!r}: a fault that the test asked for",
        operation=request.operation,
        key=request.key,
    )
