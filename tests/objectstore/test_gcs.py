"""FsspecStore over gcsfs, on fake-gcs-server, and behind a proxy that loses answers."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import threading
from pathlib import Path
from typing import Any

import aiohttp
import gcsfs
import gcsfs.core
import gcsfs.retry
import google.auth.exceptions
import pytest
import requests
from google.auth.credentials import Credentials

from taquba.errors import (
    BucketNotFound,
    InvalidArgument,
    MissingDependency,
    ObjectExists,
    ObjectNotFound,
    StoreAccessDenied,
    StoreError,
    StoreUnavailable,
    UnsafeStore,
)
from taquba.objectstore import FsspecStore, open_store, verify_store
from taquba.objectstore._gcs import GcsDriver, _boundary, gcs_filesystem
from tests.objectstore.cloud_suite import CloudSuite, Server
from tests.objectstore.harness import HastyClock, keys
from tests.servers.lossy_proxy import LossyProxy, Seen

pytestmark = pytest.mark.anyio


class TestGcs(CloudSuite):
    module = "taquba.objectstore._gcs"
    upload = ("POST", "/upload/")
    resent_by_client = False

    @pytest.fixture
    def server(self, gcs_server: Server) -> Server:
        return gcs_server

    def options(
        self, server: Server, proxy: LossyProxy | None = None, timeout: float = 30
    ) -> dict[str, Any]:
        options: dict[str, Any] = server["storage_options"]
        if proxy is None:
            return options
        return {**options, "endpoint_url": proxy.endpoint, "requests_timeout": timeout}

    async def filesystem(self, options: dict[str, Any]) -> Any:
        return await gcs_filesystem(options)

    def is_conditional(self, seen: Seen) -> bool:
        return seen.method == "POST" and "ifGenerationMatch=0" in seen.target

    # -- what errors mean --------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("status", "reason", "message", "expected", "hint"),
        [
            (400, "invalid", "Invalid argument.", StoreError, ""),
            (400, "required", "Bucket is requester pays bucket", StoreError, "requester_pays"),
            (401, "required", "Anonymous caller", StoreAccessDenied, "GOOGLE_APPLICATION_CRED"),
            (401, "authError", "Invalid Credentials", StoreAccessDenied, "token"),
            (403, "forbidden", "no access", StoreAccessDenied, "Storage Object User"),
            (403, "rateLimitExceeded", "slow down", StoreUnavailable, ""),
            (403, "userRateLimitExceeded", "slow down", StoreUnavailable, ""),
            (404, "notFound", "The specified bucket does not exist.", BucketNotFound, "create"),
            (404, "notFound", "Not Found", BucketNotFound, "create the bucket"),
            (408, "timeout", "too slow", StoreUnavailable, ""),
            (409, "conflict", "try again", StoreUnavailable, ""),
            (412, "conditionNotMet", "At least one", ObjectExists, ""),
            (429, "rateLimitExceeded", "hot object", StoreUnavailable, ""),
            (500, "internalError", "oops", StoreUnavailable, ""),
            (502, "badGateway", "oops", StoreUnavailable, ""),
            (503, "backendError", "invalid", StoreUnavailable, ""),
            (504, "gatewayTimeout", "oops", StoreUnavailable, ""),
        ],
    )
    async def test_statuses(
        self,
        behind: FsspecStore,
        proxy: LossyProxy,
        status: int,
        reason: str,
        message: str,
        expected: type[StoreError],
        hint: str,
    ) -> None:
        proxy.lose("POST", how=status, body=answer(status, reason, message))
        with pytest.raises(StoreError) as caught:
            await behind.create("key", b"1")
        assert type(caught.value) is expected
        assert (caught.value.operation, caught.value.key) == ("create", "key")
        assert f"{message} (HTTP {status}, {reason})" in str(caught.value)
        assert hint in str(caught.value)
        assert len(proxy.seen) == 1, "repeating is the retrying store's business"

    async def test_answers_without_a_reason(self, behind: FsspecStore, proxy: LossyProxy) -> None:
        for body in (b"", b"Forbidden", b'{"error": "invalid_grant"}', b"[]", b"\xff"):
            for status, expected in [(403, StoreAccessDenied), (503, StoreUnavailable)]:
                proxy.lose("POST", how=status, body=body)
                with pytest.raises(StoreError, match=f"HTTP {status}") as caught:
                    await behind.put("key", b"1")
                assert type(caught.value) is expected

    async def test_a_precondition_matters_to_creates_alone(
        self, behind: FsspecStore, proxy: LossyProxy
    ) -> None:
        """gcsfs says FileExistsError to every 412."""
        proxy.lose("POST", how=412)
        with pytest.raises(StoreError) as caught:
            await behind.put("key", b"1")
        assert type(caught.value) is StoreError

    async def test_a_bucket_that_vanishes_is_no_missing_object(
        self, behind: FsspecStore, proxy: LossyProxy
    ) -> None:
        gone = "The specified bucket does not exist."
        for method, request in [
            ("GET", lambda: behind.get("a")),
            ("GET", lambda: behind.get_range("a", 0, 1)),
            ("GET", lambda: keys(behind)),
            ("DELETE", lambda: behind.delete(["a"])),
            ("POST", lambda: behind.put("a", b"")),
        ]:
            for body in (answer(404, "notFound", gone), gone.encode()):
                proxy.lose(method, how=404, body=body)
                with pytest.raises(BucketNotFound, match="create the bucket first"):
                    await request()
        proxy.lose("GET", how=404, body=b"No such object: bucket/a")
        with pytest.raises(ObjectNotFound):
            await behind.get("a")

    async def test_an_upload_that_was_answered_by_something_else(
        self, behind: FsspecStore, proxy: LossyProxy
    ) -> None:
        for body in (b"<html>", b"", b"[1]", b"{}", b'{"size": "2"}'):
            proxy.lose("POST", how=200, body=body)
            with pytest.raises(StoreUnavailable):
                await behind.create(f"key{len(body)}", b"1")

    async def test_a_server_that_ignores_ranges(
        self, behind: FsspecStore, proxy: LossyProxy
    ) -> None:
        await behind.put("a", b"0123456789")
        proxy.lose("GET", how=200, body=b"0123456789")
        assert await behind.get_range("a", 2, 5) == b"234"

    async def test_a_listing_does_not_read_what_lies_before_its_start(
        self, behind: FsspecStore, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("taquba.objectstore._gcs._LIST_PAGE", 2)
        for number in range(7):
            await behind.put(f"p/{number}", b"1")
        del proxy.seen[:]
        assert await keys(behind, "p/", "p/5") == ["p/6"]
        assert len(proxy.seen) == 1

    # -- bodies ------------------------------------------------------------------------------

    @pytest.mark.parametrize("mark", ["==0==", "==taquba==", "==%s=="])
    async def test_a_body_that_holds_a_boundary(self, store: FsspecStore, mark: str) -> None:
        """Of gcsfs, whose uploads are cut there; of ours; and of ours for a body with ours."""
        if "%s" in mark:
            mark = _boundary(b"==taquba==")
        for number, end in enumerate(["", "--", "--\r\n", "\r\n\r\n{}"]):
            for start in ("\n--", "\r\n--", "--", ""):
                body = f"==taquba==abc{start}{mark}{end}def".encode()
                await store.put("body", body)
                assert await store.get("body") == body
                await store.create(f"body{number}{len(start)}", body)
                assert await store.get(f"body{number}{len(start)}") == body

    # -- filesystems -------------------------------------------------------------------------

    async def test_the_class_that_asks_for_the_bucket_type_is_refused(self) -> None:
        extended = gcsfs.GCSFileSystem
        assert extended is not gcsfs.core.GCSFileSystem
        pretended = extended.__new__(extended)
        with pytest.raises(UnsafeStore, match=r"use .*gcsfs\.core\.GCSFileSystem \(not the sub"):
            FsspecStore(pretended, "bucket/app")
        assert type(await gcs_filesystem({"token": "anon"})) is gcsfs.core.GCSFileSystem

    async def test_a_filesystem_of_your_own(
        self, server: Server, prefix: str, clock: HastyClock
    ) -> None:
        filesystem = gcsfs.core.GCSFileSystem(
            **self.options(server), asynchronous=True, skip_instance_cache=True
        )
        store = FsspecStore(filesystem, f"{server['bucket']}/{prefix}")
        await verify_store(store, clock=clock)
        await store.close()
        with pytest.raises(InvalidArgument, match="not the name of a bucket"):
            FsspecStore(filesystem, "/bucket")

    async def test_session_options_that_make_no_sense(self, server: Server) -> None:
        wrong = {"session_kwargs": {"no_such_option": 1}, **self.options(server)}
        with pytest.raises(InvalidArgument, match="no_such_option"):
            await open_store(server["url"], **wrong)
        with pytest.raises(InvalidArgument, match="access must be one of"):
            await open_store(server["url"], access="some", **self.options(server))

    async def test_the_alias(self, server: Server, prefix: str) -> None:
        url = f"gcs://{server['bucket']}/{prefix}"
        store = await open_store(url, **self.options(server))
        assert server["url"] in repr(store)
        await store.close()

    # -- credentials -------------------------------------------------------------------------

    async def test_a_token_is_renewed_once_and_beside_the_event_loop(
        self, server: Server, prefix: str
    ) -> None:
        credentials = SlowCredentials()
        options = {**self.options(server), "token": credentials}
        store = await open_store(f"{server['url']}/{prefix}", **options)
        await asyncio.gather(*(store.put(f"a/{number}", b"1") for number in range(20)))
        assert credentials.threads == [credentials.threads[0]]
        assert credentials.threads[0] is not threading.current_thread()
        credentials.expiry = datetime.datetime(2000, 1, 1)  # noqa: DTZ001 - google-auth wants it
        await store.get("a/1")
        assert len(credentials.threads) == 2
        await store.close()

    async def test_a_token_that_cannot_be_renewed(self, server: Server, prefix: str) -> None:
        for error, expected in [
            (google.auth.exceptions.RefreshError("revoked"), StoreAccessDenied),
            (google.auth.exceptions.TransportError("unreachable"), StoreUnavailable),
            (google.auth.exceptions.RefreshError("busy", retryable=True), StoreUnavailable),
        ]:
            credentials = SlowCredentials(error)
            filesystem = await gcs_filesystem({**self.options(server), "token": credentials})
            store = FsspecStore(filesystem, f"{server['bucket']}/{prefix}")
            with pytest.raises(StoreError) as caught:
                await store.get("a")
            assert type(caught.value) is expected
            await store.close()


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where no credentials of Google's lie."""
    for name in list(os.environ):
        if name.startswith(("GOOGLE_", "GCLOUD_", "STORAGE_EMULATOR_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gcsfs.core.GoogleCredentials, "tokens", {})
    return tmp_path


async def test_no_credentials_at_all(nowhere: Path) -> None:
    with pytest.raises(StoreAccessDenied) as caught:
        await open_store("gs://bucket/app")
    for advice in ("GOOGLE_APPLICATION_CREDENTIALS", "gcloud auth application-default", "token"):
        assert advice in str(caught.value)


async def test_credentials_of_no_use(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in [("a.json", "no JSON"), ("b.json", "{}"), ("c", '{"type": "x"}')]:
        (nowhere / name).write_text(content)
        with pytest.raises(StoreAccessDenied, match="of no use.*GOOGLE_APPLICATION_CREDENTIALS"):
            await open_store("gs://bucket/app", token=str(nowhere / name))
    with pytest.raises(StoreAccessDenied, match="of no use"):
        await open_store("gs://bucket/app", token="google_default")
    with pytest.raises(StoreAccessDenied, match="of no use"):
        await open_store("gs://bucket/app", token=7)
    with pytest.raises(InvalidArgument, match=r"there is no file '.*/none\.json'"):
        await open_store("gs://bucket/app", token=str(nowhere / "none.json"))

    def get(*args: Any, **kwargs: Any) -> None:
        raise requests.exceptions.ConnectionError("unreachable")

    monkeypatch.setattr("gcsfs.credentials.requests.get", get)
    with pytest.raises(StoreUnavailable, match="could not be checked"):
        await open_store("gs://bucket/app", token="ya29.abc")


async def test_an_extra_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(MissingDependency, match=r"pip install 'taquba\[gcs\]'"):
        await open_store("gs://bucket/app")


async def test_the_other_driver_is_not_for_this_service() -> None:
    with pytest.raises(InvalidArgument, match="driver='obstore' is for s3:// and az://"):
        await open_store("gs://bucket/app", driver="obstore")


async def test_errors_without_an_answer() -> None:
    driver = GcsDriver(await gcs_filesystem({"token": "anon"}), "bucket")
    for passing in (
        aiohttp.ClientPayloadError("cut"),
        requests.exceptions.ConnectTimeout(),
        TimeoutError(),
        ConnectionResetError(),
    ):
        classified = driver.classify(passing, "get")
        assert classified is not None
        assert classified[0] is StoreUnavailable
    import ssl

    cause = ssl.SSLCertVerificationError("certificate verify failed")
    untrusted = aiohttp.ClientConnectionError()
    untrusted.__cause__ = cause
    classified = driver.classify(untrusted, "get")
    assert classified is not None
    assert classified[0] is StoreError
    refused = gcsfs.retry.NonRetryableError("Got error while refreshing credentials.")
    classified = driver.classify(refused, "get")
    assert classified is not None
    assert classified[0] is StoreAccessDenied
    assert driver.classify(KeyError("a bug"), "get") is None
    await driver.close()


@pytest.mark.parametrize("data", [b"", b"==taquba==", b"x==taquba==x" * 3])
def test_a_boundary_is_never_in_the_data(data: bytes) -> None:
    mark = _boundary(data)
    assert mark.encode() not in data
    assert len(mark) <= 70, "longer ones are not allowed"
    assert _boundary(data + mark.encode()) != mark


def answer(status: int, reason: str, message: str) -> bytes:
    errors = [{"domain": "global", "reason": reason, "message": message}]
    return json.dumps({"error": {"code": status, "message": message, "errors": errors}}).encode()


class SlowCredentials(Credentials):
    """Credentials that say where they were renewed."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error
        self.threads: list[threading.Thread] = []

    def refresh(self, request: Any) -> None:
        self.threads.append(threading.current_thread())
        if self.error is not None:
            raise self.error
        self.token = "token"
        self.expiry = datetime.datetime(2100, 1, 1)  # noqa: DTZ001 - google-auth wants it
