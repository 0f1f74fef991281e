"""Buckets through obstore: on real servers, and behind a proxy that loses answers."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from taquba.errors import (
    BucketNotFound,
    Closed,
    InvalidArgument,
    MissingDependency,
    ObjectExists,
    ObjectNotFound,
    StoreAccessDenied,
    StoreError,
    StoreUnavailable,
    UnsafeStore,
)
from taquba.objectstore import PROBE_PREFIX, ObjectStore, RetryingStore, open_store, verify_store
from taquba.objectstore._obstore import ObstoreDriver, ObstoreStore, obstore_store
from taquba.objectstore._s3 import s3_filesystem
from taquba.testing import ObjectStoreConformance
from tests.objectstore.harness import HastyClock, keys
from tests.servers.lossy_proxy import LossyProxy

pytestmark = pytest.mark.anyio

Server = dict[str, Any]

LOSSES = ["drop", "stall", "refuse", 503, 500, 409, 429]


class TestS3(ObjectStoreConformance):
    contenders = 6  # on SeaweedFS the n-th loser of a race waits up to n seconds
    rounds = 1
    many = 1_020

    @pytest.fixture(autouse=True)
    def _server(self, s3_server: Server) -> None:
        self.server = s3_server

    async def open_store(self) -> ObjectStore:
        url = f"{self.server['url']}/conformance-obstore"
        return await open_store(url, driver="obstore", **self.server["storage_options"])


class TestAzure(ObjectStoreConformance):
    contenders = 20
    rounds = 1
    many = 300
    largest = 12 * 1024 * 1024

    @pytest.fixture(autouse=True)
    def _server(self, azure_server: Server) -> None:
        self.server = azure_server

    async def open_store(self) -> ObjectStore:
        url = f"{self.server['url']}/conformance-obstore"
        return await open_store(url, driver="obstore", **self.server["storage_options"])


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A prefix of the test's own, in the bucket that all tests share."""
    return f"o{abs(hash(request.node.nodeid)):x}"


@asynccontextmanager
async def raw_store(server: Server, prefix: str, **options: Any) -> AsyncIterator[ObstoreStore]:
    """A store without retries."""
    path = f"{server['bucket']}/{prefix}"
    store = obstore_store("s3", path, {**server["storage_options"], **options})
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def proxy(s3_server: Server) -> AsyncIterator[LossyProxy]:
    async with LossyProxy(s3_server["port"]) as proxy:
        yield proxy


SOON_TIRED = {"client_options": {"read_timeout": "500 ms"}}
"""For stores that meet stalls. Others wait as long as a busy machine takes."""


@pytest.fixture
async def behind(s3_server: Server, proxy: LossyProxy, prefix: str) -> AsyncIterator[ObstoreStore]:
    """A store without retries, behind the proxy."""
    async with raw_store(s3_server, prefix, endpoint_url=proxy.endpoint) as store:
        yield store


@pytest.fixture
async def tired(s3_server: Server, proxy: LossyProxy, prefix: str) -> AsyncIterator[ObstoreStore]:
    """The same, but soon tired of waiting."""
    async with raw_store(s3_server, prefix, endpoint_url=proxy.endpoint, **SOON_TIRED) as store:
        yield store


@pytest.fixture
async def store(s3_server: Server, prefix: str) -> AsyncIterator[ObstoreStore]:
    """A store without retries, and without a proxy."""
    async with raw_store(s3_server, prefix) as store:
        yield store


@pytest.fixture
def clock() -> HastyClock:
    return HastyClock()


def sent(proxy: LossyProxy, method: str) -> list[str]:
    return [seen.fate for seen in proxy.seen if seen.method == method]


# -- opening ---------------------------------------------------------------------------------


async def test_it_is_probed_like_any_other(
    s3_server: Server, proxy: LossyProxy, prefix: str
) -> None:
    options = {**s3_server["storage_options"], "endpoint_url": proxy.endpoint, "driver": "obstore"}
    store = await open_store(f"{s3_server['url']}/{prefix}/", **options)
    assert [seen.method for seen in proxy.seen] == ["PUT", "PUT", "POST"]
    assert [seen.status for seen in proxy.seen] == [200, 412, 200]
    assert await keys(store) == []
    assert repr(store) == f"RetryingStore(<ObstoreStore {s3_server['url']}/{prefix}>)"
    await store.close()
    del proxy.seen[:]
    reader = await open_store(f"{s3_server['url']}/{prefix}", read_only=True, **options)
    assert [seen.method for seen in proxy.seen] == ["GET"]
    await reader.close()


async def test_a_store_that_drops_the_condition_is_unsafe(
    store: ObstoreStore, clock: HastyClock
) -> None:
    original = store._driver.write

    async def write(name: str, data: bytes, *, exclusive: bool) -> None:
        await original(name, data, exclusive=False)

    store._driver.write = write  # type: ignore[method-assign]
    with pytest.raises(UnsafeStore, match="overwrites it"):
        await verify_store(store, clock=clock)
    assert await keys(store) == []


async def test_names_of_options(s3_server: Server, prefix: str) -> None:
    """The options of s3fs work, and those of obstore."""
    url = f"{s3_server['url']}/{prefix}"
    for options in (s3_server["storage_options"], s3_server["obstore"]):
        store = await open_store(url, driver="obstore", **options)
        await store.put("a", b"1")
        await store.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retry_config": {"max_retries": 3}}, "'retry_config' is set by taquba"),
        ({"prefix": "x"}, "'prefix' is set by taquba"),
        ({"endpont_url": "http://127.0.0.1:1"}, "endpont_url"),
        ({"endpoint_url": "no address"}, "write http://"),
        ({"endpoint_url": "http://a", "endpoint": "http://b"}, "given twice"),
        ({"client_kwargs": {"verify": False}}, "'verify', which only s3fs knows"),
        ({"client_options": {"no_such_setting": 1}}, "no_such_setting"),
        ({"client_options": 7}, "give a mapping"),
        ({"region": 7}, "int"),
        ({"config_kwargs": {}}, "config_kwargs"),
    ],
)
async def test_options_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        await open_store("s3://bucket/app", driver="obstore", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"connection_string": 7}, "must be a str"),
        ({"connection_string": "AccountName=one", "account_name": "two"}, "another account"),
        ({"connection_string": "AccountName=one;BlobEndpoint=nowhere"}, "write http://"),
        ({"account_name": "one", "location_mode": "primary"}, "location_mode"),
    ],
)
async def test_options_that_make_no_sense_for_azure(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        await open_store("az://container/app", driver="obstore", **options)


async def test_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AZURE_"):
            monkeypatch.delenv(name)
    with pytest.raises(StoreAccessDenied, match="AZURE_STORAGE_ACCOUNT_NAME"):
        await open_store("az://container/app", driver="obstore")


async def test_google_is_refused() -> None:
    """Its conditional writes, in XML, could be tried on no server."""
    with pytest.raises(InvalidArgument, match=r"is for s3:// and az://"):
        await open_store("gs://bucket/app", driver="obstore")


async def test_other_drivers_and_other_stores() -> None:
    with pytest.raises(InvalidArgument, match="'fsspec' or 'obstore'"):
        await open_store("s3://bucket/app", driver="boto")  # type: ignore[arg-type]
    for url in ("memory://", "file:///srv/app", "folder"):
        with pytest.raises(InvalidArgument, match="is for buckets"):
            await open_store(url, driver="obstore")


async def test_an_extra_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(MissingDependency, match=r"pip install 'taquba\[obstore\]'"):
        await open_store("s3://bucket/app", driver="obstore")


@pytest.mark.parametrize("read_only", [False, True])
async def test_wrong_credentials(s3_server: Server, read_only: bool) -> None:
    for wrong in ({"secret": "wrong"}, {"key": "nobody"}):
        options = {**s3_server["storage_options"], **wrong}
        with pytest.raises(StoreAccessDenied, match="HTTP 403") as caught:
            await open_store(s3_server["url"], driver="obstore", read_only=read_only, **options)
        assert s3_server["url"] in str(caught.value)
        assert "wrong" not in str(caught.value)


async def test_no_credentials_at_all(
    monkeypatch: pytest.MonkeyPatch, s3_server: Server, proxy: LossyProxy
) -> None:
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
    ):
        monkeypatch.delenv(name, raising=False)
    # The machine's metadata service: what answers here knows no credentials.
    where = {"metadata_endpoint": proxy.endpoint, "endpoint": s3_server["endpoint"]}
    proxy.lose("PUT", "token", how=404)
    with pytest.raises(StoreAccessDenied, match="no credentials were found.*AWS_ACCESS_KEY_ID"):
        await open_store(s3_server["url"], driver="obstore", **where)


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_missing_bucket(s3_server: Server, read_only: bool) -> None:
    with pytest.raises(BucketNotFound, match=r"s3://no-such-bucket.*create the bucket first"):
        await open_store(
            "s3://no-such-bucket/app",
            driver="obstore",
            read_only=read_only,
            **s3_server["storage_options"],
        )


async def test_a_bucket_that_vanishes_is_no_missing_object(s3_server: Server) -> None:
    store = obstore_store("s3", "no-such-bucket/app", s3_server["storage_options"])
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


async def test_an_address_where_nobody_is(clock: HastyClock) -> None:
    options = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9"):
        await open_store("s3://bucket/app", driver="obstore", clock=clock, **options)


# -- lost answers ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", LOSSES)
async def test_the_probe_survives_lost_answers(
    tired: ObstoreStore, proxy: LossyProxy, clock: HastyClock, how: Any
) -> None:
    proxy.lose("PUT", PROBE_PREFIX, how=how, times=2)
    await verify_store(tired, clock=clock)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("how", LOSSES)
async def test_a_lost_answer_is_success_for_the_creator_and_exists_for_others(
    tired: ObstoreStore, store: ObstoreStore, proxy: LossyProxy, how: Any, times: int
) -> None:
    clock = HastyClock()
    creator = RetryingStore(tired, clock=clock)
    other = RetryingStore(store, clock=clock)
    proxy.lose("PUT", "journal", how=how, times=times)
    await creator.create("journal/1", b"mine")
    assert str(how) in sent(proxy, "PUT"), "the proxy lost nothing"
    assert await store.get("journal/1") == b"mine"
    with pytest.raises(ObjectExists):
        await other.create("journal/1", b"theirs")
    assert await store.get("journal/1") == b"mine"
    await other.create("journal/1", b"mine")


@pytest.mark.parametrize("how", LOSSES)
async def test_no_request_is_sent_again_below_the_retrying_store(
    tired: ObstoreStore, proxy: LossyProxy, how: Any
) -> None:
    """Unlike with s3fs, whose HTTP client sends once more whatever we say."""
    proxy.lose("PUT", "key", how=how)
    with pytest.raises(StoreUnavailable):
        await tired.create("key", b"mine")
    assert sent(proxy, "PUT") == [str(how)]


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
        (404, "NoSuchBucket", BucketNotFound),
        (408, "RequestTimeout", StoreUnavailable),
        (409, "ConditionalRequestConflict", StoreUnavailable),
        (412, "PreconditionFailed", ObjectExists),
        (429, "TooManyRequests", StoreUnavailable),
        (500, "InternalError", StoreUnavailable),
        (501, "NotImplemented", UnsafeStore),
        (502, "BadGateway", StoreUnavailable),
        (503, "SlowDown", StoreUnavailable),
    ],
)
async def test_statuses(
    behind: ObstoreStore, proxy: LossyProxy, status: int, code: str, expected: type[StoreError]
) -> None:
    proxy.lose("PUT", "key", how=status, body=answer(code))
    with pytest.raises(StoreError) as caught:
        await behind.create("key", b"1")
    assert type(caught.value) is expected
    assert (caught.value.operation, caught.value.key) == ("create", "key")
    assert f"HTTP {status}, {code}" in str(caught.value)
    assert "Debug source" not in str(caught.value)


async def test_answers_without_a_body(behind: ObstoreStore, proxy: LossyProxy) -> None:
    for operation, status, expected in [
        ("put", 403, StoreAccessDenied),
        ("put", 409, StoreUnavailable),
        ("put", 412, StoreError),
        ("put", 503, StoreUnavailable),
        ("create", 409, StoreUnavailable),
        ("create", 412, ObjectExists),
        ("get", 404, ObjectNotFound),
        ("get", 409, StoreUnavailable),
    ]:
        proxy.lose("GET" if operation == "get" else "PUT", "key", how=status)
        arguments = ("key",) if operation == "get" else ("key", b"1")
        with pytest.raises(StoreError) as caught:
            await getattr(behind, operation)(*arguments)
        assert type(caught.value) is expected


async def test_statuses_of_listings(behind: ObstoreStore, proxy: LossyProxy) -> None:
    for status, code, expected in [
        (403, "AccessDenied", StoreAccessDenied),
        (404, "NoSuchBucket", BucketNotFound),
        (503, "SlowDown", StoreUnavailable),
    ]:
        proxy.lose("GET", "list-type", how=status, body=answer(code))
        with pytest.raises(StoreError, match=code) as caught:
            await keys(behind)
        assert type(caught.value) is expected


async def test_an_answer_that_is_cut_off(tired: ObstoreStore, proxy: LossyProxy) -> None:
    await tired.put("key", b"x" * 100_000)
    for how in ("drop", "stall"):
        proxy.lose("GET", "key", how=how)
        with pytest.raises(StoreUnavailable):
            await tired.get("key")
        proxy.lose("GET", "list-type", how=how)
        with pytest.raises(StoreUnavailable):
            await keys(tired)


async def test_an_answer_that_makes_no_sense(behind: ObstoreStore, proxy: LossyProxy) -> None:
    proxy.lose("GET", "list-type", how=200, body=b"<html>welcome to this hotel's wifi")
    with pytest.raises(StoreUnavailable):
        await keys(behind)


async def test_errors_that_no_answer_caused() -> None:
    exceptions = pytest.importorskip("obstore.exceptions")
    driver = ObstoreDriver(None, "s3://bucket")
    panic = type("RustPanic", (Exception,), {})
    for error, expected in [
        (exceptions.GenericError("error sending request"), StoreUnavailable),
        (exceptions.GenericError("invalid peer certificate: UnknownIssuer"), StoreError),
        (exceptions.GenericError("an incorrectly configured region"), StoreError),
        (exceptions.InvalidPathError("p//x"), StoreError),
        (exceptions.PermissionDeniedError("no"), StoreAccessDenied),
        (exceptions.UnauthenticatedError("no"), StoreAccessDenied),
        (exceptions.AlreadyExistsError("there"), ObjectExists),
        (FileNotFoundError("absent"), BucketNotFound),
        (TimeoutError(), StoreUnavailable),
        (panic("oh"), StoreError),
    ]:
        classified = driver.classify(error, "create")
        assert classified is not None
        assert classified[0] is expected
    assert driver.classify(FileNotFoundError("absent"), "get") == (ObjectNotFound, "absent")
    assert driver.classify(KeyError("a bug"), "get") is None


async def test_no_signature_is_shown() -> None:
    exceptions = pytest.importorskip("obstore.exceptions")
    driver = ObstoreDriver(None, "az://container")
    error = exceptions.GenericError("GET http://h/a?sv=1&sig=s3cr3t in 1 s - status code: 500")
    kind, words = driver.classify(error, "get")  # type: ignore[misc]
    assert kind is StoreUnavailable
    assert "s3cr3t" not in words


# -- requests --------------------------------------------------------------------------------


async def test_one_request_each(behind: ObstoreStore, proxy: LossyProxy) -> None:
    async def requests(work: Any) -> list[str]:
        del proxy.seen[:]
        await work
        return [seen.method for seen in proxy.seen]

    large = b"x" * 6_000_000  # over 5 MiB obstore likes to upload in parts
    assert await requests(behind.create("p/a", b"0123456789")) == ["PUT"]
    assert await requests(behind.put("p/b", b"1")) == ["PUT"]
    assert await requests(behind.create("p/c", large)) == ["PUT"]
    assert await requests(behind.put("p/c", large)) == ["PUT"]
    assert await requests(behind.get("p/a")) == ["GET"]
    assert await requests(behind.get_range("p/a", 2, 5)) == ["GET"]
    assert proxy.seen[0].headers["range"] == "bytes=2-4"
    assert await requests(behind.get_range("p/a", 5, 5)) == []
    assert await requests(keys(behind, "p/")) == ["GET"]
    assert await requests(behind.delete(["p/a"])) == ["POST"]
    assert await requests(behind.delete(["p/a", "p/b"])) == ["POST"]
    assert await requests(behind.delete([])) == []


async def test_many_requests_are_under_way_at_once(behind: ObstoreStore, proxy: LossyProxy) -> None:
    proxy.lose("GET", "p/", how="stall", times=100)
    getting = [asyncio.ensure_future(behind.get(f"p/{number}")) for number in range(60)]
    await proxy.arrived(60)
    for task in getting:
        task.cancel()
    await asyncio.gather(*getting, return_exceptions=True)


async def test_deletes_go_in_batches(
    behind: ObstoreStore, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taquba.objectstore._obstore._DELETE_BATCH", 3)
    names = [f"p/{number}" for number in range(8)]
    for name in names:
        await behind.put(name, b"1")
    del proxy.seen[:]
    await behind.delete(names)
    assert [seen.method for seen in proxy.seen] == ["POST"] * 3
    assert await keys(behind, "p/") == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("AccessDenied", StoreAccessDenied),
        ("SlowDown", StoreUnavailable),
        ("ObjectLocked", StoreError),
    ],
)
async def test_deletes_that_fail_within_a_success(
    behind: ObstoreStore, proxy: LossyProxy, prefix: str, code: str, expected: type[StoreError]
) -> None:
    error = f"<Error><Key>{prefix}/b</Key><Code>{code}</Code><Message>no</Message></Error>"
    proxy.lose("POST", "delete", how=200, body=f"<DeleteResult>{error}</DeleteResult>".encode())
    with pytest.raises(expected, match=rf"{prefix}/b.*{code}") as caught:
        await behind.delete(["a", "b"])
    assert type(caught.value) is expected


async def test_listing_part_of_a_segment_does_not_read_the_whole_folder(
    behind: ObstoreStore, proxy: LossyProxy
) -> None:
    """obstore's prefixes are folders."""
    names = [f"{a}{b}{c}" for a in "abc" for b in "abc" for c in "ab"]
    for name in names:
        await behind.put(f"p/{name}", b"1")
    assert await keys(behind, "p/bb") == ["p/bba", "p/bbb"]
    assert "start-after=" in proxy.seen[-1].target
    assert proxy.seen[-1].target.endswith("p%2Fb")
    assert await keys(behind, "p/b", "p/bab") == ["p/bba", "p/bbb", "p/bca", "p/bcb"]
    assert await keys(behind, "p/b", "p/c") == []
    assert await keys(behind, "p/") == [f"p/{name}" for name in names]


async def test_prefixes_do_not_see_each_other(s3_server: Server, prefix: str) -> None:
    async with (
        raw_store(s3_server, f"{prefix}/one") as one,
        raw_store(s3_server, f"{prefix}/one-b") as other,
    ):
        await one.put("x/a", b"1")
        await other.put("x/b", b"2")
        assert await keys(one) == ["x/a"]
        assert await keys(other) == ["x/b"]
        with pytest.raises(ObjectNotFound):
            await one.get("x/b")


async def test_objects_that_are_no_keys_are_left_out(
    store: ObstoreStore, s3_server: Server, prefix: str
) -> None:
    filesystem = s3_filesystem(s3_server["storage_options"])
    client = await filesystem.set_session()
    await store.put("p/a", b"1")
    # An empty folder's marker "p/" is "p" to obstore, which no listing below "p/" gives.
    for name in ("p/", "p/b c", "p/%41", "p/ü"):
        await filesystem._call_s3(
            "put_object", Bucket=s3_server["bucket"], Key=f"{prefix}/{name}", Body=b""
        )
    await client.close()
    assert await keys(store, "p/") == ["p/a"]


async def test_a_name_that_obstore_cannot_hold_is_an_error(
    behind: ObstoreStore, proxy: LossyProxy, prefix: str
) -> None:
    entry = f"<Contents><Key>{prefix}/p//a</Key><Size>1</Size>"
    entry += "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
    page = f"<ListBucketResult>{entry}</ListBucketResult>".encode()
    proxy.lose("GET", "list-type", how=200, body=page)
    with pytest.raises(StoreError, match=f"{prefix}/p//a") as caught:
        await keys(behind)
    assert type(caught.value) is StoreError


async def test_both_drivers_read_what_the_other_wrote(
    store: ObstoreStore, s3_server: Server, prefix: str
) -> None:
    other = await open_store(f"{s3_server['url']}/{prefix}", **s3_server["storage_options"])
    await store.create("x/by-obstore", b"1")
    await other.create("x/by-s3fs", b"2")
    assert await other.get("x/by-obstore") == b"1"
    assert await store.get("x/by-s3fs") == b"2"
    for mine, theirs in ((store, "x/by-s3fs"), (other, "x/by-obstore")):
        with pytest.raises(ObjectExists):
            await mine.create(theirs, b"3")
    await other.close()


# -- Azure -----------------------------------------------------------------------------------


@pytest.fixture
async def azure_proxy(azure_server: Server) -> AsyncIterator[LossyProxy]:
    async with LossyProxy(azure_server["port"]) as proxy:
        yield proxy


@pytest.fixture
async def azure(
    request: pytest.FixtureRequest, azure_server: Server, azure_proxy: LossyProxy, prefix: str
) -> ObstoreStore:
    """A store on Azurite without retries, behind a proxy."""
    old, new = f":{azure_server['port']}/", f":{azure_proxy.port}/"
    options = dict(azure_server["storage_options"])
    options["connection_string"] = options["connection_string"].replace(old, new)
    if "how" in request.fixturenames:  # it may be a stall
        options |= SOON_TIRED
    return obstore_store("az", f"{azure_server['bucket']}/{prefix}", options)


@pytest.mark.parametrize("how", LOSSES)
async def test_a_lost_answer_on_azure(
    azure: ObstoreStore, azure_proxy: LossyProxy, clock: HastyClock, how: Any
) -> None:
    azure_proxy.lose("PUT", "journal", how=how, times=2)
    retrying = RetryingStore(azure, clock=clock)
    await retrying.create("journal/1", b"mine")
    assert sent(azure_proxy, "PUT")[0] == str(how)
    with pytest.raises(ObjectExists):
        await retrying.create("journal/1", b"theirs")
    assert await azure.get("journal/1") == b"mine"


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (403, "AuthenticationFailed", StoreAccessDenied),
        (404, "ContainerNotFound", BucketNotFound),
        (409, "BlobAlreadyExists", ObjectExists),
        (409, "ContainerBeingDeleted", StoreUnavailable),
        (409, "BlobImmutableDueToPolicy", StoreError),
        (412, "ConditionNotMet", ObjectExists),
        (500, "InternalError", StoreUnavailable),
        (503, "ServerBusy", StoreUnavailable),
    ],
)
async def test_statuses_of_azure(
    azure: ObstoreStore,
    azure_proxy: LossyProxy,
    status: int,
    code: str,
    expected: type[StoreError],
) -> None:
    azure_proxy.lose("PUT", "key", how=status, body=answer(code))
    with pytest.raises(StoreError, match=f"HTTP {status}, {code}") as caught:
        await azure.create("key", b"1")
    assert type(caught.value) is expected


async def test_deleting_on_azure(
    azure: ObstoreStore, azure_proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches; one by one only when one of a batch was absent, whatever became of the rest."""
    monkeypatch.setattr("taquba.objectstore._obstore._AZURE_DELETE_BATCH", 3)
    names = [f"p/{number}" for number in range(5)]
    for name in names:
        await azure.put(name, b"1")
    del azure_proxy.seen[:]
    await azure.delete(names)
    assert [seen.method for seen in azure_proxy.seen] == ["POST"] * 2
    assert await keys(azure) == []
    for name in names:
        await azure.put(name, b"1")
    await azure.delete(["p/absent", *names, "p/absent"])
    assert await keys(azure) == []


async def test_a_container_that_vanishes_is_no_missing_object(azure_server: Server) -> None:
    store = obstore_store("az", "no-such-container/app", azure_server["storage_options"])
    for request in (
        store.get("a"),
        store.get_range("a", 0, 1),
        store.put("a", b""),
        store.create("a", b""),
        store.delete(["a"]),
        store.delete(["a", "b"]),
        keys(store),
    ):
        with pytest.raises(BucketNotFound):
            await request


async def test_the_key_of_somebody_else(azure_server: Server) -> None:
    options = dict(azure_server["obstore"])
    options["account_key"] = f"AAAAAA{options['account_key'][6:]}"
    with pytest.raises(StoreAccessDenied, match="HTTP 403") as caught:
        await open_store(f"{azure_server['url']}/app", driver="obstore", **options)
    assert options["account_key"] not in str(caught.value)
    assert "set AZURE_STORAGE_CONNECTION_STRING" in str(caught.value)  # what to do about it


# -- closing ---------------------------------------------------------------------------------


async def test_closed(store: ObstoreStore) -> None:
    await store.put("a", b"1")
    await store.close()
    await store.close()
    for request in (store.get("a"), store.put("a", b""), store.delete(["a"]), keys(store)):
        with pytest.raises(Closed, match="open another"):
            await request


async def test_a_request_that_is_given_up(behind: ObstoreStore, proxy: LossyProxy) -> None:
    """Nothing is left in the event loop, and nothing is said when the answer comes too late."""
    proxy.lose("GET", "a", how="stall")
    getting = asyncio.ensure_future(behind.get("a"))
    await proxy.arrived(1)
    getting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await getting
    assert {task for task in asyncio.all_tasks() if "get" in repr(task.get_coro())} == set()
