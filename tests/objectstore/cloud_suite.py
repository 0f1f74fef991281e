"""What the drivers of all clouds must do, on a server and behind a proxy that loses answers.

`tests/objectstore/test_gcs.py` and `test_azure.py` derive from `CloudSuite`, and add what is
peculiar to their service.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from taquba.errors import (
    BucketNotFound,
    Closed,
    InvalidArgument,
    ObjectExists,
    ObjectNotFound,
    StoreAccessDenied,
    StoreError,
    StoreUnavailable,
    UnsafeStore,
)
from taquba.objectstore import (
    FsspecStore,
    ObjectStore,
    RetryingStore,
    open_store,
    verify_store,
)
from taquba.objectstore._bucket import Driver
from tests.objectstore.harness import HastyClock, keys
from tests.servers.lossy_proxy import LossyProxy, Seen

Server = dict[str, Any]

LOSSES = ["drop", "stall", "refuse", 503, 500, 429]


class CloudSuite:
    """Override the class attributes, `server`, `options`, `filesystem` and `is_upload`."""

    module: ClassVar[str]
    """The driver's module."""
    upload: ClassVar[tuple[str, str]]
    """Method, and a part of the target, of the request that stores an object."""
    resent_by_client: ClassVar[bool]
    """Whether the client resends an upload by itself when the connection is lost."""

    def options(
        self, server: Server, proxy: LossyProxy | None = None, timeout: float = 30
    ) -> dict[str, Any]:
        """Storage options, for requests through the proxy if there is one."""
        raise NotImplementedError

    async def filesystem(self, options: dict[str, Any]) -> Any:
        """As `open_store` makes it."""
        raise NotImplementedError

    def is_conditional(self, seen: Seen) -> bool:
        """Whether a request is a create."""
        raise NotImplementedError

    # -- fixtures ----------------------------------------------------------------------------

    @pytest.fixture
    def server(self) -> Server:
        raise NotImplementedError

    @pytest.fixture
    def prefix(self, request: pytest.FixtureRequest) -> str:
        """A prefix of the test's own, in the bucket that all tests share."""
        return f"t{abs(hash(request.node.nodeid)):x}"

    @pytest.fixture
    async def proxy(self, server: Server) -> AsyncIterator[LossyProxy]:
        async with LossyProxy(server["port"]) as proxy:
            yield proxy

    @pytest.fixture
    async def behind(
        self, server: Server, proxy: LossyProxy, prefix: str, request: pytest.FixtureRequest
    ) -> AsyncIterator[FsspecStore]:
        """A store without retries, behind the proxy; soon tired of waiting, if it has to."""
        timeout = 1.0 if "stall" in request.node.name else 30.0
        async with self.raw_store(server, prefix, self.options(server, proxy, timeout)) as store:
            yield store

    @pytest.fixture
    async def store(self, server: Server, prefix: str) -> AsyncIterator[FsspecStore]:
        """A store without retries, and without a proxy."""
        async with self.raw_store(server, prefix, self.options(server)) as store:
            yield store

    @pytest.fixture
    def clock(self) -> HastyClock:
        return HastyClock()

    @asynccontextmanager
    async def raw_store(
        self, server: Server, prefix: str, options: dict[str, Any]
    ) -> AsyncIterator[FsspecStore]:
        filesystem = await self.filesystem(options)
        store = FsspecStore(filesystem, f"{server['bucket']}/{prefix}")
        try:
            yield store
        finally:
            await store.close()

    def fates(self, proxy: LossyProxy) -> list[str]:
        """What became of the uploads."""
        method, text = self.upload
        return [s.fate for s in proxy.seen if s.method == method and text in s.target]

    # -- opening -----------------------------------------------------------------------------

    async def test_opening(self, server: Server, proxy: LossyProxy, prefix: str) -> None:
        options = self.options(server, proxy)
        store = await open_store(f"{server['url']}/{prefix}/", **options)
        assert [self.is_conditional(seen) for seen in proxy.seen] == [True, True, False]
        assert proxy.seen[-1].method == "DELETE"
        await store.put("a", b"1")
        await store.close()
        del proxy.seen[:]
        reader = await open_store(f"{server['url']}/{prefix}", read_only=True, **options)
        assert [seen.method for seen in proxy.seen] == ["GET"]
        assert await keys(reader) == ["a"]
        with pytest.raises(StoreAccessDenied, match="read_only=True"):
            await reader.put("a", b"1")
        await reader.close()

    @pytest.mark.parametrize("read_only", [False, True])
    async def test_a_missing_bucket(self, server: Server, read_only: bool) -> None:
        scheme = server["url"].partition(":")[0]
        url = f"{scheme}://no-such-bucket/app"
        words = rf"{scheme}://no-such-bucket.*create the .* first"
        with pytest.raises(BucketNotFound, match=words):
            await open_store(url, read_only=read_only, **self.options(server))

    async def test_a_service_that_ignores_the_condition_is_unsafe(
        self, store: FsspecStore, clock: HastyClock
    ) -> None:
        original = store._driver.write

        async def write(name: str, data: bytes, *, exclusive: bool) -> None:
            await original(name, data, exclusive=False)

        store._driver.write = write  # type: ignore[method-assign]
        with pytest.raises(UnsafeStore, match="overwrites it"):
            await verify_store(store, clock=clock)
        assert await keys(store) == []

    @pytest.mark.parametrize("how", LOSSES)
    async def test_the_verification_survives_lost_answers(
        self, behind: FsspecStore, proxy: LossyProxy, clock: HastyClock, how: Any
    ) -> None:
        proxy.lose(*self.upload, how=how, times=2)
        proxy.lose("DELETE", how=how)
        await verify_store(behind, clock=clock)

    # -- creates whose answer was lost -------------------------------------------------------

    @pytest.mark.parametrize("times", [1, 3])
    @pytest.mark.parametrize("how", LOSSES)
    async def test_a_lost_answer_is_success_for_the_creator_and_exists_for_others(
        self, behind: FsspecStore, store: FsspecStore, proxy: LossyProxy, how: Any, times: int
    ) -> None:
        clock = HastyClock()
        creator = RetryingStore(behind, clock=clock)
        other = RetryingStore(store, clock=clock)
        proxy.lose(*self.upload, how=how, times=times)
        await creator.create("journal/1", b"mine")
        assert str(how) in self.fates(proxy), "the proxy lost nothing"
        assert await store.get("journal/1") == b"mine"
        with pytest.raises(ObjectExists):
            await other.create("journal/1", b"theirs")
        assert await store.get("journal/1") == b"mine"
        await other.create("journal/1", b"mine")

    @pytest.mark.parametrize("how", LOSSES)
    async def test_a_lost_answer_of_a_loser_is_exists(
        self, behind: FsspecStore, store: FsspecStore, proxy: LossyProxy, how: Any
    ) -> None:
        await store.create("journal/1", b"theirs")
        proxy.lose(*self.upload, how=how, times=2)
        with pytest.raises(ObjectExists):
            await RetryingStore(behind, clock=HastyClock()).create("journal/1", b"mine")
        assert await store.get("journal/1") == b"theirs"

    async def test_without_reading_back_the_creator_would_be_told_exists(
        self, behind: FsspecStore, proxy: LossyProxy
    ) -> None:
        """Why RetryingStore reads back: who resends meets the object that is its own."""
        proxy.lose(*self.upload, how="drop")
        if not self.resent_by_client:
            with pytest.raises(StoreUnavailable):
                await behind.create("journal/1", b"mine")
        with pytest.raises(ObjectExists):
            await behind.create("journal/1", b"mine")
        assert self.fates(proxy) == ["drop", "passed"]

    async def test_a_large_body_is_sent_again_whole(
        self, behind: FsspecStore, store: FsspecStore, proxy: LossyProxy, clock: HastyClock
    ) -> None:
        body = bytes(range(256)) * 12_000
        for how in ("refuse", "drop", 503):
            proxy.lose(*self.upload, how=how, times=2)
            await RetryingStore(behind, clock=clock).create(f"large/{how}", body)
            assert await store.get(f"large/{how}") == body

    # -- requests ----------------------------------------------------------------------------

    async def test_one_request_each(self, behind: FsspecStore, proxy: LossyProxy) -> None:
        async def requests(work: Any) -> list[str]:
            del proxy.seen[:]
            await work
            return [seen.method for seen in proxy.seen]

        method, _ = self.upload
        large = b"x" * 3_000_000
        assert await requests(behind.create("p/a", b"0123456789")) == [method]
        assert self.is_conditional(proxy.seen[0])
        assert await requests(behind.put("p/b", large)) == [method]
        assert not self.is_conditional(proxy.seen[0])
        assert await requests(behind.get("p/a")) == ["GET"]
        assert await requests(behind.get("p/b")) == ["GET"]
        assert await requests(behind.get_range("p/a", 2, 5)) == ["GET"]
        assert await requests(behind.get_range("p/a", 5, 5)) == []
        assert await requests(keys(behind, "p/")) == ["GET"]
        assert await requests(behind.delete(["p/a"])) == ["DELETE"]
        assert await requests(behind.delete(["p/a", "p/b", "p/a"])) == ["DELETE"] * 2
        assert await requests(behind.delete([])) == []
        await behind.put("p/a", b"0123456789")
        # Last, since fake-gcs-server closes the connection after it.
        assert await requests(behind.get_range("p/a", 10, 15)) == ["GET"]

    async def test_listings_come_in_pages(
        self, behind: FsspecStore, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(f"{self.module}._LIST_PAGE", 3)
        names = [f"p/{number}" for number in range(8)]
        for name in names:
            await behind.put(name, b"1")
        await behind.put("q", b"1")
        del proxy.seen[:]
        assert await keys(behind, "p/") == names
        assert len(proxy.seen) == 3
        for number, name in enumerate(names):
            assert await keys(behind, "p/", name) == names[number + 1 :]
        assert await keys(behind, "p/", "p/35") == names[4:]
        assert await keys(behind, "p/", "a") == names
        assert await keys(behind, "p/", "z") == []
        assert await keys(behind, "", "p/7") == ["q"]

    async def test_a_driver_leaves_out_where_a_listing_starts(self, store: FsspecStore) -> None:
        for number in range(4):
            await store.put(f"p/{number}", b"1")
        listing = store._driver.list(f"{store._prefix}p/", f"{store._prefix}p/1")
        assert [name[-3:] async for name, _ in listing] == ["p/2", "p/3"]

    async def test_a_listing_resumes(
        self,
        behind: FsspecStore,
        proxy: LossyProxy,
        monkeypatch: pytest.MonkeyPatch,
        clock: HastyClock,
    ) -> None:
        monkeypatch.setattr(f"{self.module}._LIST_PAGE", 2)
        names = [f"p/{number}" for number in range(5)]
        for name in names:
            await behind.put(name, b"1")
        listing = RetryingStore(behind, clock=clock).list("p/")
        seen = [(await anext(listing)).key, (await anext(listing)).key]
        proxy.lose("GET", how=503, times=2)
        seen += [info.key async for info in listing]
        assert seen == names
        assert [seen.fate for seen in proxy.seen].count("503") == 2

    @pytest.mark.parametrize(("status", "expected"), [(503, StoreUnavailable), (403, StoreError)])
    async def test_a_delete_that_fails_among_others(
        self, behind: FsspecStore, proxy: LossyProxy, status: int, expected: type[StoreError]
    ) -> None:
        names = [f"p/{number:02d}" for number in range(20)]
        proxy.lose("DELETE", "15", how=status)
        with pytest.raises(expected):
            await behind.delete(names)
        await behind.delete(names)
        proxy.lose("DELETE", "15", how=503, times=2)
        await RetryingStore(behind, clock=HastyClock()).delete(names)

    @pytest.mark.parametrize("how", ["drop", "stall"])
    async def test_an_answer_that_is_cut_off(
        self, behind: FsspecStore, store: FsspecStore, proxy: LossyProxy, how: Any
    ) -> None:
        await store.put("key", b"x" * 100_000)
        proxy.lose("GET", how=how, times=9)  # aiohttp asks once more by itself
        for request in (behind.get("key"), keys(behind)):
            with pytest.raises(StoreUnavailable):
                await request

    async def test_an_answer_that_makes_no_sense(
        self, behind: FsspecStore, proxy: LossyProxy
    ) -> None:
        proxy.lose("GET", how=200, body=b"<html>welcome to this hotel's wifi")
        with pytest.raises(StoreUnavailable):
            await keys(behind)

    async def test_prefixes_do_not_see_each_other(self, server: Server, prefix: str) -> None:
        options = self.options(server)
        async with (
            self.raw_store(server, f"{prefix}/one", options) as one,
            self.raw_store(server, f"{prefix}/one-b", options) as other,
            self.raw_store(server, prefix, options) as above,
        ):
            await one.put("x/a", b"1")
            await other.put("x/b", b"2")
            assert await keys(one) == ["x/a"]
            assert await keys(other) == ["x/b"]
            assert await keys(above) == ["one-b/x/b", "one/x/a"]
            with pytest.raises(ObjectNotFound):
                await one.get("x/b")

    async def test_a_whole_bucket(self, server: Server) -> None:
        store = FsspecStore(await self.filesystem(self.options(server)), server["bucket"])
        await store.put("whole-bucket-key", b"1")
        assert await keys(store, "whole-bucket-") == ["whole-bucket-key"]
        assert repr(store) == f"<FsspecStore {server['url']}>"
        await store.delete(["whole-bucket-key"])
        await store.close()

    async def test_objects_that_are_no_keys_are_left_out(self, store: FsspecStore) -> None:
        await store.put("p/a", b"1")
        for name in ("p/", "p/b c", "p/\u00e9"):
            await store._driver.write(store._prefix + name, b"", exclusive=False)
        assert await keys(store, "p/") == ["p/a"]

    # -- closing -----------------------------------------------------------------------------

    async def test_closing_leaves_no_session(self, server: Server, prefix: str) -> None:
        options = self.options(server)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                async with self.raw_store(server, prefix, options) as store:
                    await store.put("a", b"1")
                    await store.close()
            scheme = server["url"].partition(":")[0]
            failing: list[ObjectStore] = []
            with pytest.raises(BucketNotFound):
                failing.append(await open_store(f"{scheme}://no-such-bucket", **options))
            never_used = FsspecStore(await self.filesystem(options), "bucket")
            await never_used.close()
            del never_used, store
            gc.collect()
            await asyncio.sleep(0)
        assert [str(w.message) for w in caught] == []

    async def test_closed(self, store: FsspecStore) -> None:
        await store.put("a", b"1")
        await store.close()
        for request in (store.get("a"), store.put("a", b""), store.delete(["a"]), keys(store)):
            with pytest.raises(Closed, match="open another"):
                await request

    async def test_closing_before_there_is_a_session(self, server: Server, prefix: str) -> None:
        async with self.raw_store(server, prefix, self.options(server)) as store:
            getting = asyncio.ensure_future(store.get("a"))
            await asyncio.sleep(0)
            await store.close()
            with pytest.raises((Closed, ObjectNotFound)):
                await getting

    async def test_a_closed_driver_opens_no_session(self, server: Server) -> None:
        driver: Driver = FsspecStore(
            await self.filesystem(self.options(server)), server["bucket"]
        )._driver
        await driver.close()
        with pytest.raises(RuntimeError):
            await driver.get("a")

    async def test_closing_ends_requests_under_way(
        self, behind: FsspecStore, proxy: LossyProxy
    ) -> None:
        await behind.put("a", b"1")
        del proxy.seen[:]
        proxy.lose("GET", how="stall", times=2)
        getting = asyncio.ensure_future(behind.get("a"))
        await proxy.arrived(1)
        await behind.close()
        with pytest.raises(Closed):
            await getting

    # -- filesystems -------------------------------------------------------------------------

    async def test_a_synchronous_filesystem_is_refused(self, server: Server) -> None:
        filesystem = await self.filesystem(self.options(server))
        closing = FsspecStore(filesystem, "bucket")
        filesystem.asynchronous = False
        with pytest.raises(InvalidArgument, match="asynchronous=True"):
            FsspecStore(filesystem, "bucket/app")
        await closing.close()

    @pytest.mark.parametrize(
        "name", ["asynchronous", "loop", "skip_instance_cache", "use_listings_cache", "endpont"]
    )
    async def test_options_that_make_no_sense(self, server: Server, name: str) -> None:
        with pytest.raises(InvalidArgument, match=f"storage option '{name}'"):
            await open_store(server["url"], **{name: True}, **self.options(server))
