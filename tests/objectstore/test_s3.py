"""FsspecStore over s3fs, on a real server, and behind a proxy that loses answers."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiobotocore.session import AioSession

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
    PROBE_PREFIX,
    FsspecStore,
    ObjectStore,
    RetryingStore,
    RetryPolicy,
    open_store,
    verify_store,
)
from taquba.objectstore._s3 import S3Driver, s3_filesystem
from tests.objectstore.harness import HastyClock, keys
from tests.servers.lossy_proxy import LossyProxy

pytestmark = pytest.mark.anyio

Server = dict[str, Any]

SESSION = AioSession()
"""Shared, since reading the service's description takes a new one a good part of a second."""


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A prefix of the test's own, in the bucket that all tests share."""
    return f"t{abs(hash(request.node.nodeid)):x}"


@asynccontextmanager
async def raw_store(server: Server, prefix: str, **options: Any) -> AsyncIterator[FsspecStore]:
    """A store without retries."""
    filesystem = s3_filesystem({**server["storage_options"], "session": SESSION, **options})
    store = FsspecStore(filesystem, f"{server['bucket']}/{prefix}")
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def proxy(s3_server: Server) -> AsyncIterator[LossyProxy]:
    async with LossyProxy(s3_server["port"]) as proxy:
        yield proxy


@pytest.fixture
async def behind(s3_server: Server, proxy: LossyProxy, prefix: str) -> AsyncIterator[FsspecStore]:
    """A store without retries, behind the proxy, that is soon tired of waiting."""
    timeouts = {"config_kwargs": {"read_timeout": 0.5}}
    async with raw_store(s3_server, prefix, endpoint_url=proxy.endpoint, **timeouts) as store:
        yield store


@pytest.fixture
async def store(s3_server: Server, prefix: str) -> AsyncIterator[FsspecStore]:
    """A store without retries, and without a proxy."""
    async with raw_store(s3_server, prefix) as store:
        yield store


@pytest.fixture
def clock() -> HastyClock:
    return HastyClock()


def sent(proxy: LossyProxy, method: str) -> list[str]:
    return [seen.fate for seen in proxy.seen if seen.method == method]


# -- opening ---------------------------------------------------------------------------------


async def test_an_open_costs_three_requests_and_leaves_nothing(
    s3_server: Server, proxy: LossyProxy, prefix: str
) -> None:
    options = {**s3_server["storage_options"], "endpoint_url": proxy.endpoint}
    probes: set[str] = set()
    for _ in range(2):
        del proxy.seen[:]
        store = await open_store(f"s3://{s3_server['bucket']}/{prefix}/", **options)
        assert [seen.method for seen in proxy.seen] == ["PUT", "PUT", "DELETE"]
        assert [seen.headers.get("if-none-match") for seen in proxy.seen] == ["*", "*", None]
        assert [seen.status for seen in proxy.seen] == [200, 412, 204]
        (probe,) = {seen.target for seen in proxy.seen}
        probes.add(probe)
        assert await keys(store) == []
        await store.close()
    assert len(probes) == 2, "a probe's key is used again"
    del proxy.seen[:]
    reader = await open_store(f"s3://{s3_server['bucket']}/{prefix}", read_only=True, **options)
    assert [seen.method for seen in proxy.seen] == ["GET"]
    with pytest.raises(StoreAccessDenied, match="read_only=True"):
        await reader.put("a", b"1")
    await reader.close()


@pytest.mark.parametrize("read_only", [False, True])
async def test_wrong_credentials(s3_server: Server, read_only: bool) -> None:
    for wrong in ({"secret": "wrong"}, {"key": "nobody"}):
        options = {**s3_server["storage_options"], **wrong}
        with pytest.raises(StoreAccessDenied, match="HTTP 403") as caught:
            await open_store(s3_server["url"], read_only=read_only, **options)
        assert s3_server["url"] in str(caught.value)
        assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_missing_bucket(s3_server: Server, read_only: bool) -> None:
    with pytest.raises(BucketNotFound, match=r"s3://no-such-bucket.*create the bucket first"):
        await open_store(
            "s3://no-such-bucket/app", read_only=read_only, **s3_server["storage_options"]
        )


async def test_a_bucket_that_vanishes_is_no_missing_object(s3_server: Server) -> None:
    filesystem = s3_filesystem(s3_server["storage_options"])
    store = FsspecStore(filesystem, "no-such-bucket/app")
    for request in (
        store.get("a"),
        store.get_range("a", 0, 1),
        store.put("a", b""),
        store.create("a", b""),
        store.delete(["a", "b"]),
        keys(store),
    ):
        with pytest.raises(BucketNotFound):
            await request
    await store.close()


async def test_a_store_that_drops_the_condition_is_unsafe(
    s3_server: Server, prefix: str, clock: HastyClock
) -> None:
    """As a client does that does not know the parameter."""
    async with raw_store(s3_server, prefix) as store:
        original = store._driver.write

        async def write(name: str, data: bytes, *, exclusive: bool) -> None:
            await original(name, data, exclusive=False)

        store._driver.write = write  # type: ignore[method-assign]
        with pytest.raises(UnsafeStore, match="overwrites it"):
            await verify_store(store, clock=clock)
        assert await keys(store) == []


async def test_a_botocore_that_does_not_know_the_condition_makes_the_store_unsafe(
    s3_server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """s3fs leaves out, without a word, what the service's description does not mention."""
    s3fs = pytest.importorskip("s3fs")
    known = s3fs.S3FileSystem._get_s3_method_kwargs

    def as_of_2023(self: Any, method: Any, *arguments: Any, **kwargs: Any) -> dict[str, Any]:
        found: dict[str, Any] = known(self, method, *arguments, **kwargs)
        return {name: value for name, value in found.items() if name != "IfNoneMatch"}

    monkeypatch.setattr(s3fs.S3FileSystem, "_get_s3_method_kwargs", as_of_2023)
    with pytest.raises(UnsafeStore, match=f"{prefix}.*overwrites it"):
        await open_store(f"{s3_server['url']}/{prefix}", **s3_server["storage_options"])


@pytest.mark.parametrize("how", ["drop", "stall", "refuse", 503, 500, 409, 429])
async def test_the_verification_survives_lost_answers(
    behind: FsspecStore, proxy: LossyProxy, clock: HastyClock, how: Any
) -> None:
    proxy.lose("PUT", PROBE_PREFIX, how=how, times=2)
    await verify_store(behind, clock=clock)


# -- creates whose answer was lost -----------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("how", ["drop", "stall", "refuse", 503, 500, 409, 429])
async def test_a_lost_answer_is_success_for_the_creator_and_exists_for_others(
    behind: FsspecStore, store: FsspecStore, proxy: LossyProxy, how: Any, times: int
) -> None:
    clock = HastyClock()
    creator = RetryingStore(behind, clock=clock)
    other = RetryingStore(store, clock=clock)
    proxy.lose("PUT", "journal", how=how, times=times)
    await creator.create("journal/1", b"mine")
    assert str(how) in sent(proxy, "PUT"), "the proxy lost nothing"
    assert await store.get("journal/1") == b"mine"
    with pytest.raises(ObjectExists):
        await other.create("journal/1", b"theirs")
    assert await store.get("journal/1") == b"mine"
    await other.create("journal/1", b"mine")


@pytest.mark.parametrize("how", ["drop", "stall", "refuse", 503, 409])
async def test_a_lost_answer_of_a_loser_is_exists(
    behind: FsspecStore, store: FsspecStore, proxy: LossyProxy, clock: HastyClock, how: Any
) -> None:
    await store.create("journal/1", b"theirs")
    proxy.lose("PUT", "journal", how=how, times=2)
    with pytest.raises(ObjectExists):
        await RetryingStore(behind, clock=clock).create("journal/1", b"mine")
    assert await store.get("journal/1") == b"theirs"


async def test_without_reading_back_the_creator_would_be_told_exists(
    behind: FsspecStore, proxy: LossyProxy
) -> None:
    """Why RetryingStore reads back: the client resends by itself, and meets its own object."""
    proxy.lose("PUT", "journal", how="drop")
    with pytest.raises(ObjectExists):
        await behind.create("journal/1", b"mine")
    assert sent(proxy, "PUT") == ["drop", "passed"]


# -- what errors mean ------------------------------------------------------------------------


def answer(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>so says {code}</Message></Error>".encode()


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "InvalidRequest", StoreError),
        (400, "RequestTimeout", StoreUnavailable),
        (400, "ExpiredToken", StoreAccessDenied),
        (401, "Unauthorized", StoreAccessDenied),
        (403, "AccessDenied", StoreAccessDenied),
        (403, "SignatureDoesNotMatch", StoreAccessDenied),
        (404, "NoSuchBucket", BucketNotFound),
        (408, "RequestTimeout", StoreUnavailable),
        (409, "ConditionalRequestConflict", StoreUnavailable),
        (409, "OperationAborted", StoreUnavailable),
        (412, "PreconditionFailed", ObjectExists),
        (429, "TooManyRequests", StoreUnavailable),
        (500, "InternalError", StoreUnavailable),
        (501, "NotImplemented", UnsafeStore),
        (502, "BadGateway", StoreUnavailable),
        (503, "SlowDown", StoreUnavailable),
        (504, "GatewayTimeout", StoreUnavailable),
    ],
)
async def test_statuses(
    behind: FsspecStore, proxy: LossyProxy, status: int, code: str, expected: type[StoreError]
) -> None:
    proxy.lose("PUT", "key", how=status, body=answer(code))
    with pytest.raises(StoreError) as caught:
        await behind.create("key", b"1")
    assert type(caught.value) is expected
    assert (caught.value.operation, caught.value.key) == ("create", "key")
    assert f"HTTP {status}, {code}" in str(caught.value)
    assert len(proxy.seen) == 1, "repeating is the retrying store's business"


async def test_answers_without_a_body(behind: FsspecStore, proxy: LossyProxy) -> None:
    for status, expected in [
        (403, StoreAccessDenied),
        (409, StoreUnavailable),
        (412, StoreError),
        (503, StoreUnavailable),
    ]:
        proxy.lose("PUT", "key", how=status)
        with pytest.raises(StoreError) as caught:
            await behind.put("key", b"1")
        assert type(caught.value) is expected
    proxy.lose("PUT", "key", how=412)
    with pytest.raises(ObjectExists):
        await behind.create("key", b"1")


async def test_an_answer_that_is_cut_off(behind: FsspecStore, proxy: LossyProxy) -> None:
    await behind.put("key", b"x" * 100_000)
    for how in ("drop", "stall"):
        proxy.lose("GET", "key", how=how, times=2)  # aiohttp asks once more by itself
        with pytest.raises(StoreUnavailable):
            await behind.get("key")
        proxy.lose("GET", "list-type", how=how, times=2)
        with pytest.raises(StoreUnavailable):
            await keys(behind)


async def test_an_answer_that_makes_no_sense(behind: FsspecStore, proxy: LossyProxy) -> None:
    proxy.lose("GET", "list-type", how=200, body=b"<html>welcome to this hotel's wifi")
    with pytest.raises(StoreUnavailable):
        await keys(behind)


async def test_a_certificate_that_does_not_fit_is_no_passing_trouble() -> None:
    import ssl

    import aiohttp
    from botocore.exceptions import EndpointConnectionError, HTTPClientError, SSLError

    driver = S3Driver(None, "bucket")
    error = SSLError(endpoint_url="https://s3", error="certificate verify failed")
    error.__cause__ = ssl.SSLCertVerificationError("certificate verify failed")
    assert driver.classify(error, "get") == (StoreError, f"SSLError: {error}")
    for passing in (
        SSLError(endpoint_url="https://s3", error="reset"),
        EndpointConnectionError(endpoint_url="https://s3"),
        HTTPClientError(error="x"),
        aiohttp.ClientPayloadError("cut"),
        TimeoutError(),
        ConnectionResetError(),
    ):
        classified = driver.classify(passing, "get")
        assert classified is not None
        assert classified[0] is StoreUnavailable
    assert driver.classify(KeyError("a bug"), "get") is None


async def test_an_address_is_asked_for_where_none_answers() -> None:
    from botocore.exceptions import EndpointConnectionError

    error = EndpointConnectionError(endpoint_url="https://s3")
    classified = S3Driver(None, "bucket").classify(error, "get")
    assert classified is not None
    assert "check the address" in classified[1]
    with pytest.raises(InvalidArgument, match="write endpoint_url as http"):
        await open_store("s3://bucket/app", key="a", secret="b", endpoint_url="127.0.0.1:9")


# -- requests --------------------------------------------------------------------------------


async def test_one_request_each(behind: FsspecStore, proxy: LossyProxy) -> None:
    async def requests(work: Any) -> list[str]:
        del proxy.seen[:]
        await work
        return [seen.method for seen in proxy.seen]

    assert await requests(behind.create("p/a", b"0123456789")) == ["PUT"]
    assert await requests(behind.put("p/b", b"1")) == ["PUT"]
    assert await requests(behind.get("p/a")) == ["GET"]
    assert await requests(behind.get_range("p/a", 2, 5)) == ["GET"]
    assert proxy.seen[0].headers["range"] == "bytes=2-4"
    assert await requests(behind.get_range("p/a", 5, 5)) == []
    assert await requests(keys(behind, "p/")) == ["GET"]
    assert await requests(behind.delete(["p/a"])) == ["DELETE"]
    assert await requests(behind.delete(["p/a", "p/b"])) == ["POST"]
    assert await requests(behind.delete([])) == []


async def test_many_requests_are_under_way_at_once(behind: FsspecStore, proxy: LossyProxy) -> None:
    """And not ten, as botocore has it: the journal keeps 16 entries in flight, readers 64."""
    proxy.lose("GET", "p/", how="stall", times=100)
    getting = [asyncio.ensure_future(behind.get(f"p/{number}")) for number in range(60)]
    await proxy.arrived(60)
    await behind.close()
    for ended in await asyncio.gather(*getting, return_exceptions=True):
        assert isinstance(ended, Closed | StoreUnavailable)  # which they are when time is up


async def test_what_another_client_did_is_seen_at_once(
    s3_server: Server, store: FsspecStore, prefix: str
) -> None:
    """With the caches of s3fs, listings and sizes would be old ones."""
    async with raw_store(s3_server, prefix) as other:
        for number in range(3):
            assert await keys(store, "p/") == [f"p/{n}" for n in range(number)]
            with pytest.raises(ObjectNotFound):
                await store.get(f"p/{number}")
            await other.put(f"p/{number}", b"1")
            assert await store.get(f"p/{number}") == b"1"
        await other.put("p/0", b"longer")
        assert await store.get("p/0") == b"longer"
        assert [info.size async for info in store.list("p/")] == [6, 1, 1]
        await other.delete(["p/0", "p/1"])
        assert await keys(store, "p/") == ["p/2"]


async def test_a_key_that_was_the_folder_of_another(store: FsspecStore, clock: HastyClock) -> None:
    """SeaweedFS keeps the empty folder: it says 'exists' to a create and 'absent' to a get."""
    await store.create("a/b", b"1")
    await store.delete(["a/b"])
    retrying = RetryingStore(store, clock=clock, policy=RetryPolicy(attempts=3))
    try:
        await retrying.create("a", b"2")
    except StoreUnavailable as error:
        assert "both as present and as absent" in str(error)
        assert error.key == "a"
    else:
        assert await store.get("a") == b"2"


async def test_deletes_go_in_batches_and_listings_in_pages(
    behind: FsspecStore, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taquba.objectstore._s3._LIST_PAGE", 3)
    monkeypatch.setattr("taquba.objectstore._s3._DELETE_BATCH", 3)
    names = [f"p/{number}" for number in range(8)]
    for name in names:
        await behind.put(name, b"1")
    del proxy.seen[:]
    assert await keys(behind, "p/") == names
    assert await keys(behind, "p/", "p/1") == names[2:]
    assert len(proxy.seen) == 5
    del proxy.seen[:]
    await behind.delete(names)
    assert len(proxy.seen) == 3
    assert await keys(behind, "p/") == []


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        (["AccessDenied"], StoreAccessDenied),
        (["InternalError", "SlowDown"], StoreUnavailable),
        (["InternalError", "AccessDenied"], StoreAccessDenied),
        (["ObjectLocked"], StoreError),
        (["NoSuchKey"], None),
    ],
)
async def test_deletes_that_fail_within_a_success(
    behind: FsspecStore, proxy: LossyProxy, codes: list[str], expected: type[StoreError] | None
) -> None:
    errors = "".join(
        f"<Error><Key>k{n}</Key><Code>{code}</Code><Message>no</Message></Error>"
        for n, code in enumerate(codes)
    )
    body = f"<DeleteResult>{errors}</DeleteResult>".encode()
    proxy.lose("POST", "delete", how=200, body=body)
    if expected is None:
        await behind.delete(["a", "b"])
        return
    with pytest.raises(expected, match=rf"{len(codes)} objects were not deleted.*k0") as caught:
        await behind.delete(["a", "b"])
    assert type(caught.value) is expected


async def test_retrying_a_delete_that_failed_in_part(
    behind: FsspecStore, proxy: LossyProxy, clock: HastyClock
) -> None:
    await behind.put("a", b"1")
    await behind.put("b", b"1")
    body = b"<DeleteResult><Error><Key>b</Key><Code>SlowDown</Code></Error></DeleteResult>"
    proxy.lose("POST", "delete", how=200, body=body, times=2)
    await RetryingStore(behind, clock=clock).delete(["a", "b"])
    assert await keys(behind) == []


async def test_a_listing_resumes(
    behind: FsspecStore, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch, clock: HastyClock
) -> None:
    monkeypatch.setattr("taquba.objectstore._s3._LIST_PAGE", 2)
    names = [f"p/{number}" for number in range(5)]
    for name in names:
        await behind.put(name, b"1")
    proxy.lose("GET", "continuation-token", how=503, times=2)
    retrying = RetryingStore(behind, clock=clock)
    assert await keys(retrying, "p/") == names
    assert [seen.fate for seen in proxy.seen].count("503") == 2


async def test_prefixes_do_not_see_each_other(s3_server: Server, prefix: str) -> None:
    async with (
        raw_store(s3_server, f"{prefix}/one") as one,
        raw_store(s3_server, f"{prefix}/one-b") as other,
        raw_store(s3_server, prefix) as above,
    ):
        await one.put("x/a", b"1")
        await other.put("x/b", b"2")
        assert await keys(one) == ["x/a"]
        assert await keys(other) == ["x/b"]
        assert sorted(await keys(above)) == ["one-b/x/b", "one/x/a"]
        with pytest.raises(ObjectNotFound):
            await one.get("x/b")


async def test_a_whole_bucket(s3_server: Server) -> None:
    store = FsspecStore(s3_filesystem(s3_server["storage_options"]), s3_server["bucket"])
    await store.put("whole-bucket-key", b"1")
    assert await keys(store, "whole-bucket-") == ["whole-bucket-key"]
    assert repr(store) == f"<FsspecStore s3://{s3_server['bucket']}>"
    await store.delete(["whole-bucket-key"])
    await store.close()


async def test_objects_that_are_no_keys_are_left_out(
    store: FsspecStore, s3_server: Server, prefix: str
) -> None:
    filesystem = store._driver._fs  # type: ignore[attr-defined]
    await store.put("p/a", b"1")
    for name in ("p/", "p/b c"):
        await filesystem._call_s3(
            "put_object", Bucket=s3_server["bucket"], Key=f"{prefix}/{name}", Body=b""
        )
    assert await keys(store, "p/") == ["p/a"]


# -- filesystems -----------------------------------------------------------------------------


async def test_other_filesystems_are_refused() -> None:
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

    class Pretender:
        protocol = ("s3", "s3a")
        asynchronous = True

    obstore = pytest.importorskip("obstore.fsspec")
    others = [
        obstore.FsspecStore("s3", asynchronous=True),
        fsspec.filesystem("file"),
        fsspec.filesystem("memory"),
        AsyncFileSystemWrapper(fsspec.filesystem("file"), asynchronous=True),
        Pretender(),
        None,
    ]
    for filesystem in others:
        with pytest.raises(UnsafeStore, match=r"use s3fs\.S3FileSystem, .*; for a folder use"):
            FsspecStore(filesystem, "bucket/app")


async def test_a_synchronous_filesystem_is_refused() -> None:
    s3fs = pytest.importorskip("s3fs")
    with pytest.raises(InvalidArgument, match="asynchronous=True"):
        FsspecStore(s3fs.S3FileSystem(anon=True, skip_instance_cache=True), "bucket/app")


async def test_a_filesystem_of_your_own(s3_server: Server, prefix: str, clock: HastyClock) -> None:
    s3fs = pytest.importorskip("s3fs")
    filesystem = s3fs.S3FileSystem(
        **s3_server["storage_options"], asynchronous=True, skip_instance_cache=True
    )
    store = FsspecStore(filesystem, f"{s3_server['bucket']}/{prefix}")
    await verify_store(store, clock=clock)
    await store.close()
    with pytest.raises(InvalidArgument, match="not the name of a bucket"):
        FsspecStore(filesystem, "/bucket")


# -- closing ---------------------------------------------------------------------------------


async def test_closing_leaves_no_session(s3_server: Server, prefix: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            async with raw_store(s3_server, prefix) as store:
                await store.put("a", b"1")
                await store.close()
        failing: list[ObjectStore] = []
        with pytest.raises(BucketNotFound):
            failing.append(await open_store("s3://no-such-bucket", **s3_server["storage_options"]))
        never_used = FsspecStore(s3_filesystem(s3_server["storage_options"]), "bucket")
        await never_used.close()
        del never_used
        gc.collect()
        await asyncio.sleep(0)
    assert [str(w.message) for w in caught] == []


async def test_closed(store: FsspecStore) -> None:
    await store.put("a", b"1")
    await store.close()
    for request in (store.get("a"), store.put("a", b""), store.delete(["a"]), keys(store)):
        with pytest.raises(Closed, match="open another"):
            await request


async def test_closing_before_the_session_is_there(s3_server: Server, prefix: str) -> None:
    """s3fs opens a session by itself when asked again; nobody would close that one."""
    async with raw_store(s3_server, prefix) as store:
        getting = asyncio.ensure_future(store.get("a"))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises((Closed, ObjectNotFound)):
            await getting
        assert store._driver._fs._s3 is None or not _open_sessions(store)  # type: ignore[attr-defined]


async def test_a_closed_driver_opens_no_session(s3_server: Server) -> None:
    filesystem = s3_filesystem(s3_server["storage_options"])
    driver = S3Driver(filesystem, s3_server["bucket"])
    await driver.close()
    with pytest.raises(RuntimeError):
        await driver.get("a")
    assert filesystem._s3 is None


async def test_closing_ends_requests_under_way(behind: FsspecStore, proxy: LossyProxy) -> None:
    await behind.put("a", b"1")
    proxy.lose("GET", "a", how="stall", times=2)
    getting = asyncio.ensure_future(behind.get("a"))
    await proxy.arrived(2)
    await behind.close()
    with pytest.raises(Closed):
        await getting


def _open_sessions(store: FsspecStore) -> bool:
    sessions = store._driver._fs._s3._endpoint.http_session._sessions  # type: ignore[attr-defined]
    return bool(sessions)
