"""What every object store must do, as tests to run over your own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any, ClassVar

from taquba.clock import SystemClock
from taquba.errors import InvalidArgument, ObjectExists, ObjectNotFound
from taquba.objectstore import MAX_KEY_LENGTH, MAX_SEGMENT_LENGTH, ObjectStore

__all__ = ["ObjectStoreConformance"]

_MIB = 1024 * 1024
_PUNCTUATION = "-.=_"
_BAD_KEYS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "./a",
    "a/.",
    "a/../b",
    "a b",
    "a\n",
    "a\\b",
    "a?b",
    "a#b",
    "a%20b",
    "a:b",
    "a~b",
    "é",
    "a\0b",
    "x" * (MAX_SEGMENT_LENGTH + 1),
    "/".join(["x" * 99] * 6),
]


class ObjectStoreConformance:
    """Tests that every `ObjectStore` must pass; run them over your own with pytest.

    ::

        from taquba.testing import ObjectStoreConformance

        class TestMyStore(ObjectStoreConformance):
            async def open_store(self):
                return MyStore("somewhere")

    No pytest plugin is needed. `open_store` is called once for every test, in the running
    event loop; the store may hold other objects, since every test uses keys of its own, and
    removes them. For what comes from a fixture, add to the class::

            @pytest.fixture(autouse=True)
            def _folder(self, tmp_path):
                self.folder = tmp_path

    Attributes:
        contenders: How many create one key at once.
        rounds: How many keys are fought for, at each of two sizes.
        largest: Bytes of the largest object.
        many: Objects in the large listing; more than one page of the service.
        concurrency: Requests at once where there are many.
        case_sensitive: Whether keys that differ only in case are two keys. A file system on
            which they are not is safe as long as nobody uses such keys.
    """

    contenders: ClassVar[int] = 50
    rounds: ClassVar[int] = 5
    largest: ClassVar[int] = 64 * _MIB
    many: ClassVar[int] = 1_050
    concurrency: ClassVar[int] = 32
    case_sensitive: ClassVar[bool] = True

    async def open_store(self) -> ObjectStore:
        """A store to test, open. Override this."""
        raise NotImplementedError("override open_store: return the store to test")

    # -- create ------------------------------------------------------------------------------

    def test_create_then_get(self) -> None:
        self._run(self._create_then_get)

    async def _create_then_get(self, store: ObjectStore, at: str) -> None:
        await store.create(f"{at}one", b"1")
        data = await store.get(f"{at}one")
        assert data == b"1"
        assert type(data) is bytes

    def test_create_refuses_a_taken_key_and_keeps_its_bytes(self) -> None:
        self._run(self._create_refuses)

    async def _create_refuses(self, store: ObjectStore, at: str) -> None:
        await store.create(f"{at}created", b"first")
        await _refused(ObjectExists, store.create(f"{at}created", b"second"))
        _same(await store.get(f"{at}created"), b"first")
        await store.put(f"{at}put", b"first")
        await _refused(ObjectExists, store.create(f"{at}put", b""))
        _same(await store.get(f"{at}put"), b"first")
        await store.delete([f"{at}put"])
        await store.create(f"{at}put", b"after the delete")
        _same(await store.get(f"{at}put"), b"after the delete")

    def test_exactly_one_of_many_creators_wins_with_small_objects(self) -> None:
        self._run(lambda store, at: self._contend(store, at, 8))

    def test_exactly_one_of_many_creators_wins_with_larger_objects(self) -> None:
        self._run(lambda store, at: self._contend(store, at, 65_536))

    async def _contend(self, store: ObjectStore, at: str, size: int) -> None:
        for number in range(self.rounds):
            key = f"{at}{number}"
            bodies = [_body(size, contender) for contender in range(self.contenders)]

            won = await asyncio.gather(*(_creates(store, key, body) for body in bodies))
            assert won.count(True) == 1, f"{won.count(True)} creators of {key} won"
            _same(await store.get(key), bodies[won.index(True)], "the winner's bytes are lost")

    def test_readers_see_a_created_object_whole_or_not_at_all(self) -> None:
        self._run(self._whole_creates)

    async def _whole_creates(self, store: ObjectStore, at: str) -> None:
        body = _body(_MIB, 1)
        for number in range(4):
            key = f"{at}{number}"
            seen = await _watch(store, key, store.create(key, body))
            _only(seen, {None, body}, "a reader saw half an object")

    def test_readers_of_a_replaced_object_see_the_old_or_the_new(self) -> None:
        self._run(self._whole_puts)

    async def _whole_puts(self, store: ObjectStore, at: str) -> None:
        bodies = [_body(_MIB + 1000 * number, number) for number in range(5)]
        await store.put(f"{at}a", bodies[0])
        for before, after in pairwise(bodies):
            seen = await _watch(store, f"{at}a", store.put(f"{at}a", after))
            _only(seen, {before, after}, "a reader saw a mixture, or nothing")

    # -- put, get, sizes ---------------------------------------------------------------------

    def test_put_replaces(self) -> None:
        self._run(self._put_replaces)

    async def _put_replaces(self, store: ObjectStore, at: str) -> None:
        for body in (b"long enough", b"short", b"", b"longer than all of the others"):
            await store.put(f"{at}a", body)
            _same(await store.get(f"{at}a"), body)
            assert [info.size async for info in store.list(at)] == [len(body)]

    def test_small_sizes(self) -> None:
        self._run(lambda store, at: self._sizes(store, at, [0, 1, 4095, 4096, 65_537, _MIB + 1]))

    def test_large_sizes(self) -> None:
        self._run(lambda store, at: self._sizes(store, at, [8 * _MIB, self.largest]))

    async def _sizes(self, store: ObjectStore, at: str, sizes: list[int]) -> None:
        for size in sizes:
            body = _body(size, size)
            await store.create(f"{at}{size}", body)
            _same(await store.get(f"{at}{size}"), body)
            await _refused(ObjectExists, store.create(f"{at}{size}", b"x"))
            last = await store.get_range(f"{at}{size}", max(0, size - 3), size + 3)
            assert last == body[-3:]
        found = {info.key: info.size async for info in store.list(at)}
        assert found == {f"{at}{size}": size for size in sizes}

    def test_every_byte_comes_back(self) -> None:
        self._run(self._every_byte)

    async def _every_byte(self, store: ObjectStore, at: str) -> None:
        bodies = [bytes(range(256)), b"\r\n--==0==--\r\n", b"\n--==0==\n", b"\0", b"%00\r\n\r\n"]
        for number, body in enumerate(bodies):
            await store.create(f"{at}{number}", body)
            await store.put(f"{at}p{number}", body)
            _same(await store.get(f"{at}{number}"), body)
            _same(await store.get(f"{at}p{number}"), body)

    def test_missing_keys(self) -> None:
        self._run(self._missing)

    async def _missing(self, store: ObjectStore, at: str) -> None:
        await _refused(ObjectNotFound, store.get(f"{at}a"))
        await _refused(ObjectNotFound, store.get_range(f"{at}a", 0, 1))
        await _refused(ObjectNotFound, store.get(f"{at}no/such/folder"))
        await store.create(f"{at}a", b"1")
        await _refused(ObjectNotFound, store.get(f"{at}b"))
        await store.delete([f"{at}a"])
        await _refused(ObjectNotFound, store.get(f"{at}a"))

    def test_ranges(self) -> None:
        self._run(self._ranges)

    async def _ranges(self, store: ObjectStore, at: str) -> None:
        key, body = f"{at}a", b"0123456789"
        await store.create(key, body)
        for start in range(13):
            for end in range(start, 13):
                _same(
                    await store.get_range(key, start, end),
                    body[start:end],
                    f"bytes {start} to {end}",
                )
        _same(await store.get_range(key, 0, 10**12), body)
        await store.create(f"{at}empty", b"")
        _same(await store.get_range(f"{at}empty", 0, 10), b"")
        for start, end in [(-1, 5), (-4, -1), (5, 4)]:
            await _refused(InvalidArgument, store.get_range(key, start, end))

    # -- keys --------------------------------------------------------------------------------

    def test_unusual_keys(self) -> None:
        self._run(self._unusual_keys)

    async def _unusual_keys(self, store: ObjectStore, at: str) -> None:
        names = [f"x{mark}" for mark in _PUNCTUATION] + [f"{mark}x" for mark in _PUNCTUATION]
        names += ["...", "-", "=", "_", "a..b", "a=b=", "0", "00", ".tmp-a", "CON", "a.lock"]
        names += ["abcdefghijklmnopqrstuvwxyz0123456789"]
        if self.case_sensitive:
            names += ["case", "CASE", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
        names.append("l" * min(MAX_SEGMENT_LENGTH, MAX_KEY_LENGTH - len(at)))
        for name in names:
            await store.create(at + name, name.encode())
        for name in names:
            _same(await store.get(at + name), name.encode())
        assert [info.key async for info in store.list(at)] == sorted(at + n for n in names)
        deep = at + "/".join(["deep", "d" * 200, "e" * 200])
        deep += "f" * min(MAX_KEY_LENGTH - len(deep), 50)
        await store.create(deep, b"deep")
        _same(await store.get(deep), b"deep")
        await store.delete([at + name for name in names])
        assert [info.key async for info in store.list(at)] == [deep]

    def test_bad_keys_are_refused(self) -> None:
        self._run(self._bad_keys)

    async def _bad_keys(self, store: ObjectStore, at: str) -> None:
        await store.create(f"{at}good", b"1")
        for key in _BAD_KEYS:
            await _refused(InvalidArgument, store.get(key))
            await _refused(InvalidArgument, store.get_range(key, 0, 1))
            await _refused(InvalidArgument, store.create(key, b"1"))
            await _refused(InvalidArgument, store.put(key, b"1"))
            await _refused(InvalidArgument, store.delete([f"{at}good", key]))
        await _refused(InvalidArgument, store.delete(f"{at}good"))
        _same(await store.get(f"{at}good"), b"1", "something was deleted all the same")

    # -- list --------------------------------------------------------------------------------

    def test_list_is_ascending_and_starts_after(self) -> None:
        self._run(self._list)

    async def _list(self, store: ObjectStore, at: str) -> None:
        names = ["0", "1", "10", "2", "a", "a-b", "a.b", "a=b", "a_b", "aa", "b", "zz"]
        for name in reversed(names):
            await store.create(at + name, name.encode())
        await store.create(f"{at[:-1]}-beside", b"not below the prefix")
        infos = [(info.key, info.size) async for info in store.list(at)]
        assert infos == [(at + name, len(name)) for name in sorted(names)]

        async def keys(prefix: str, start_after: str = "") -> list[str]:
            found = [info.key async for info in store.list(at + prefix, start_after)]
            return [key.removeprefix(at) for key in found]

        for after in [*names, "00", "a-", "aaa", "zzz", "-"]:
            assert await keys("", at + after) == [n for n in sorted(names) if n > after], after
        assert await keys("", at) == sorted(names)
        assert await keys("a") == sorted(n for n in names if n.startswith("a"))
        assert await keys("a", f"{at}a.b") == ["a=b", "a_b", "aa"]
        assert await keys("a", f"{at}0") == sorted(n for n in names if n.startswith("a"))
        assert await keys("a", f"{at}zz") == []
        assert await keys("absent") == []
        assert await keys("absent/folder") == []
        await store.delete([f"{at[:-1]}-beside"])

    def test_a_listing_of_many(self) -> None:
        self._run(self._list_many)

    async def _list_many(self, store: ObjectStore, at: str) -> None:
        keys = [f"{at}{number:020d}" for number in range(self.many)]
        await _bounded(self.concurrency, (store.put(key, b"x") for key in keys))
        assert [info.key async for info in store.list(at)] == keys
        assert [info.key async for info in store.list(at, keys[9])] == keys[10:]
        assert [info.key async for info in store.list(at, keys[-3])] == keys[-2:]
        async for _ in store.list(at):
            break  # whoever has seen enough may leave
        await store.delete(key for key in keys)
        assert [info.key async for info in store.list(at)] == []

    # -- delete ------------------------------------------------------------------------------

    def test_delete(self) -> None:
        self._run(self._delete)

    async def _delete(self, store: ObjectStore, at: str) -> None:
        for name in "abcd":
            await store.create(at + name, b"1")
        await store.delete([f"{at}a"])
        await store.delete([f"{at}a"])
        await store.delete([f"{at}b", f"{at}absent", f"{at}no/such/folder", f"{at}c", f"{at}b"])
        await store.delete([])
        assert [info.key async for info in store.list(at)] == [f"{at}d"]
        await _refused(ObjectNotFound, store.get(f"{at}b"))

    # -- life --------------------------------------------------------------------------------

    def test_many_requests_at_once(self) -> None:
        self._run(self._at_once)

    async def _at_once(self, store: ObjectStore, at: str) -> None:
        async def round_trip(number: int) -> None:
            body = _body(2000 + number, number)
            await store.create(f"{at}{number:03d}", body)
            _same(await store.get(f"{at}{number:03d}"), body)

        await asyncio.gather(*(round_trip(number) for number in range(100)))
        assert len([info async for info in store.list(at)]) == 100

    def test_a_cancelled_write_happened_whole_or_not_at_all(self) -> None:
        self._run(self._cancelled)

    async def _cancelled(self, store: ObjectStore, at: str) -> None:
        body, before = _body(_MIB, 3), _body(_MIB - 1, 4)
        for turns in [0, 1, 2, 3, 5, 8, 13, 21, 50, 150]:
            created, put = f"{at}c{turns:03d}", f"{at}p{turns:03d}"
            await store.create(put, before)
            await _cancel_after(turns, store.create(created, body))
            await _cancel_after(turns, store.put(put, body))
            await _cancel_after(turns, store.get(put))
            with suppress(ObjectNotFound):
                _same(await store.get(created), body)
            _only({await store.get(put)}, {before, body}, "a put was half done")
            with suppress(ObjectExists):
                await store.create(created, body)
            _same(await store.get(created), body)
        assert len([info async for info in store.list(at)]) == 20

    def test_close_may_be_called_again(self) -> None:
        self._run(self._close)

    async def _close(self, store: ObjectStore, at: str) -> None:
        await store.create(f"{at}a", b"1")
        another = await self.open_store()
        await another.close()
        await another.close()
        _same(await store.get(f"{at}a"), b"1", "closing one store has closed another")

    # -- plumbing ----------------------------------------------------------------------------

    def _run(self, test: Callable[[ObjectStore, str], Awaitable[None]]) -> None:
        async def main() -> None:
            async with self._opened() as (store, prefix):
                await test(store, prefix)

        asyncio.run(main())

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[tuple[ObjectStore, str]]:
        store = await self.open_store()
        prefix = f"conformance-{SystemClock().random_bytes(8).hex()}/"
        try:
            yield store, prefix
            await store.delete([info.key async for info in store.list(prefix)])
        finally:
            await store.close()


def _body(size: int, number: int) -> bytes:
    """Bytes that differ from those of every other number, from start to end if there is room."""
    unit = f"{number:07d};".encode()
    return (unit * (size // len(unit) + 1))[:size]


def _same(data: bytes, expected: bytes, what: str = "not the bytes that were written") -> None:
    """Of large objects, pytest's own comparison would take minutes to print."""
    if data != expected:
        raise AssertionError(f"{what}: {_told(data)} instead of {_told(expected)}")


def _only(seen: set[bytes | None], allowed: set[bytes | None], what: str) -> None:
    others = seen - allowed
    if others:
        told = ", ".join(map(_told, others))
        raise AssertionError(f"{what}: {told} instead of {', '.join(map(_told, allowed))}")


def _told(data: bytes | None) -> str:
    if data is None:
        return "nothing"
    return repr(data) if len(data) <= 100 else f"{len(data):,} bytes ({data[:20]!r}…)"


async def _refused(error: type[Exception], request: Awaitable[object]) -> None:
    try:
        await request
    except error:
        return
    raise AssertionError(f"{error.__name__} was not raised")


async def _creates(store: ObjectStore, key: str, body: bytes) -> bool:
    try:
        await store.create(key, body)
    except ObjectExists:
        assert await store.get(key), "whoever is told that an object exists can read it"
        return False
    return True


async def _watch(
    store: ObjectStore, key: str, write: Coroutine[Any, Any, None]
) -> set[bytes | None]:
    """What readers see of an object while it is written; None for nothing."""
    writing = asyncio.ensure_future(write)
    seen: set[bytes | None] = set()
    while not writing.done():
        try:
            seen.add(await store.get(key))
        except ObjectNotFound:
            seen.add(None)
        await asyncio.sleep(0)  # a store in memory never waits by itself
    await writing
    seen.add(await store.get(key))
    return seen


async def _cancel_after(turns: int, request: Coroutine[Any, Any, object]) -> None:
    """Cancel a request after some turns of the event loop, and wait until it has ended."""
    task = asyncio.ensure_future(request)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _bounded(limit: int, requests: Iterable[Coroutine[Any, Any, object]]) -> None:
    waiting = iter(requests)

    async def work() -> None:
        for request in waiting:
            await request

    await asyncio.gather(*(work() for _ in range(limit)))
