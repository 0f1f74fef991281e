"""FsspecStore over adlfs, on Azurite, and behind a proxy that loses answers."""

from __future__ import annotations

import gc
import ssl
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import adlfs
import aiohttp
import pytest
from azure.core import exceptions

from taquba.errors import (
    BucketNotFound,
    InvalidArgument,
    InvalidUrl,
    MissingDependency,
    ObjectExists,
    StoreAccessDenied,
    StoreError,
    StoreUnavailable,
)
from taquba.objectstore import FsspecStore, open_store, verify_store
from taquba.objectstore._azure import AzureDriver, azure_filesystem
from taquba.objectstore._azure_url import split_account
from tests.objectstore.cloud_suite import CloudSuite, Server
from tests.objectstore.harness import HastyClock, keys
from tests.servers.lossy_proxy import LossyProxy, Seen

pytestmark = pytest.mark.anyio

KEY = "c2VjcmV0"


class TestAzure(CloudSuite):
    module = "taquba.objectstore._azure"
    upload = ("PUT", "/test-bucket/")
    resent_by_client = True

    @pytest.fixture
    def server(self, azure_server: Server) -> Server:
        return azure_server

    def options(
        self, server: Server, proxy: LossyProxy | None = None, timeout: float = 30
    ) -> dict[str, Any]:
        options: dict[str, Any] = server["storage_options"]
        if proxy is None:
            return options
        there = options["connection_string"].replace(f":{server['port']}/", f":{proxy.port}/")
        return {**options, "connection_string": there, "read_timeout": timeout}

    async def filesystem(self, options: dict[str, Any]) -> Any:
        return azure_filesystem(options)

    def is_conditional(self, seen: Seen) -> bool:
        return seen.method == "PUT" and seen.headers.get("if-none-match") == "*"

    # -- what errors mean --------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("status", "code", "expected", "hint"),
        [
            (400, "InvalidHeaderValue", StoreError, ""),
            (401, "InvalidAuthenticationInfo", StoreAccessDenied, "AZURE_STORAGE_ACCOUNT_KEY"),
            (401, "NoAuthenticationInformation", StoreAccessDenied, "AZURE_STORAGE_CONNECTION_"),
            (403, "AuthenticationFailed", StoreAccessDenied, "account_key"),
            (403, "AuthorizationPermissionMismatch", StoreAccessDenied, "Blob Data Contributor"),
            (403, "AccountIsDisabled", StoreAccessDenied, ""),
            (404, "ContainerNotFound", BucketNotFound, "create the container first"),
            (409, "BlobAlreadyExists", ObjectExists, ""),
            (409, "ContainerBeingDeleted", StoreUnavailable, ""),
            (409, "LeaseAlreadyPresent", StoreUnavailable, ""),
            (409, "BlobImmutableDueToPolicy", StoreError, ""),
            (409, "PublicAccessNotPermitted", StoreAccessDenied, "AZURE_STORAGE_ACCOUNT_KEY"),
            (429, "TooManyRequests", StoreUnavailable, ""),
            (500, "InternalError", StoreUnavailable, ""),
            (500, "OperationTimedOut", StoreUnavailable, ""),
            (503, "ServerBusy", StoreUnavailable, ""),
        ],
    )
    async def test_statuses(
        self,
        behind: FsspecStore,
        proxy: LossyProxy,
        status: int,
        code: str,
        expected: type[StoreError],
        hint: str,
    ) -> None:
        proxy.lose("PUT", how=status, **answer(code))
        with pytest.raises(StoreError) as caught:
            await behind.create("key", b"1")
        assert type(caught.value) is expected
        assert (caught.value.operation, caught.value.key) == ("create", "key")
        assert f"so says {code} (HTTP {status}, {code})" in str(caught.value)
        assert hint in str(caught.value)
        assert len(proxy.seen) == 1, "repeating is the retrying store's business"

    async def test_answers_without_a_code(self, behind: FsspecStore, proxy: LossyProxy) -> None:
        for body in (b"", b"Forbidden", b"<Error/>"):
            for status, expected in [
                (403, StoreAccessDenied),
                (409, StoreUnavailable),
                (503, StoreUnavailable),
                (504, StoreUnavailable),
            ]:
                proxy.lose("PUT", how=status, body=body)
                with pytest.raises(StoreError, match=f"HTTP {status}") as caught:
                    await behind.put("key", b"1")
                assert type(caught.value) is expected
        for status in (409, 412):  # no code: nobody knows of which kind it is
            proxy.lose("PUT", how=status)
            with pytest.raises((ObjectExists, StoreUnavailable)):
                await behind.create("key", b"1")

    async def test_a_bucket_that_vanishes_is_no_missing_object(self, server: Server) -> None:
        store = FsspecStore(azure_filesystem(self.options(server)), "no-such-bucket/app")
        for request in (
            store.get("a"),
            store.get_range("a", 0, 1),
            store.put("a", b""),
            store.create("a", b""),
            store.delete(["a"]),
            keys(store),
        ):
            with pytest.raises(BucketNotFound, match="create the container first"):
                await request
        await store.close()

    async def test_wrong_credentials(self, server: Server) -> None:
        there = self.options(server)["connection_string"]
        for wrong in (
            there.replace("AccountKey=", "AccountKey=AAAA"),
            there.replace("AccountKey=", "AccountKey=no base64: "),
        ):
            with pytest.raises(StoreAccessDenied, match="AZURE_STORAGE_ACCOUNT_KEY") as caught:
                await open_store(server["url"], connection_string=wrong)
            assert server["url"] in str(caught.value)
            assert server["account_key"] not in str(caught.value)
            assert "AAAA" not in str(caught.value)

    async def test_answers_of_something_else(self, behind: FsspecStore, proxy: LossyProxy) -> None:
        await behind.put("a", b"1")
        for body, kind in [
            (b"<html>", "text/html"),
            (b"<html><p>welcome</p></html>", "application/xml"),
            (b"{}", "application/json"),
            (b"\xff", "text/plain"),
            (b"", "application/xml"),
        ]:
            for work in (
                lambda: keys(behind),
                lambda: behind.get("a"),
                lambda: behind.get_range("a", 0, 1),
                lambda: behind.put("a", b"1"),
                lambda: behind.create("b", b"1"),
            ):
                for method in ("GET", "PUT"):
                    proxy.lose(method, how=200, body=body, headers={"Content-Type": kind})
                with pytest.raises(StoreUnavailable):
                    await work()
                proxy.heal()

    # -- listings ----------------------------------------------------------------------------

    async def test_folders_of_a_hierarchical_namespace_are_left_out(
        self, store: FsspecStore
    ) -> None:
        driver: Any = store._driver
        await store.put("p/a", b"1")
        for name, metadata in [("p/folder", {"hdi_isfolder": "true"}), ("p/b", {"own": "x"})]:
            await driver._client().upload_blob(store._prefix + name, b"", metadata=metadata)
        assert await keys(store, "p/") == ["p/a", "p/b"]

    # -- filesystems -------------------------------------------------------------------------

    async def test_a_filesystem_of_your_own(
        self, server: Server, prefix: str, clock: HastyClock
    ) -> None:
        filesystem = adlfs.AzureBlobFileSystem(
            **self.options(server), asynchronous=True, skip_instance_cache=True
        )
        store = FsspecStore(filesystem, f"{server['bucket']}/{prefix}")
        await verify_store(store, clock=clock)
        await store.close()
        with pytest.raises(InvalidArgument, match="not the name of a bucket"):
            FsspecStore(filesystem, "/bucket")

    async def test_a_closed_store_is_forgotten(self, server: Server, prefix: str) -> None:
        """adlfs keeps its filesystems, with their credentials, until the process ends."""
        async with self.raw_store(server, prefix, self.options(server)) as store:
            await store.put("a", b"1")
        driver: Any = store._driver
        filesystem = weakref.ref(driver._fs)
        del store, driver
        gc.collect()
        assert filesystem() is None

    @pytest.mark.parametrize("own", [False, True])
    def test_nothing_is_said_at_the_end_of_the_process(
        self, server: Server, prefix: str, own: bool
    ) -> None:
        """adlfs, left alone, closes its client in a loop that is gone by then."""
        make = "adlfs.AzureBlobFileSystem(asynchronous=True, skip_instance_cache=True, **options)"
        ours = "await open_store('az://' + path, **options)"
        opening = f"FsspecStore({make}, path)" if own else ours
        program = (
            "import adlfs, asyncio\n"
            "from taquba.objectstore import FsspecStore, open_store\n"
            f"options, path = {self.options(server)!r}, '{server['bucket']}/{prefix}'\n"
            "async def main():\n"
            f"    store = {opening}\n"
            "    await store.put('a', b'x' * 2_000_000)\n"
            "    await store.close()\n"
            "asyncio.run(main())\n"
            "print('done')\n"
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")

    async def test_the_aliases(self, server: Server, prefix: str) -> None:
        account = f"{server['bucket']}@{server['account_name']}.dfs.core.windows.net"
        for url in (f"abfs://{server['bucket']}/{prefix}", f"abfss://{account}/{prefix}"):
            store = await open_store(url, **self.options(server))
            assert f"{server['url']}/{prefix}" in repr(store)
            await store.close()

    async def test_the_account_of_a_url_is_the_one_that_is_used(self, server: Server) -> None:
        """A connection string goes before everything else, in silence."""
        url = f"abfs://{server['bucket']}@another.dfs.core.windows.net/app"
        with pytest.raises(InvalidUrl, match=r"account of another, but account_name"):
            await open_store(url, **self.options(server))
        only = {"connection_string": self.options(server)["connection_string"]}
        with pytest.raises(InvalidArgument, match=r"'devstoreaccount1', but .* is 'another'"):
            await open_store(url, **only)


# -- credentials, and addresses ------------------------------------------------------------------


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without anything of Azure's."""
    import os

    for name in list(os.environ):
        if name.startswith("AZURE_"):
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("nowhere")
async def test_no_account_at_all() -> None:
    with pytest.raises(StoreAccessDenied, match="no account is named") as caught:
        await open_store("az://container/app")
    for advice in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_NAME", "az login"):
        assert advice in str(caught.value)


@pytest.mark.usefixtures("nowhere")
async def test_no_credentials_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    options = {"account_name": "nobody", "exclude_managed_identity_credential": True}
    with pytest.raises(StoreAccessDenied, match="failed to retrieve a token") as caught:
        await open_store("az://container/app", **options)
    assert "AZURE_STORAGE_ACCOUNT_KEY" in str(caught.value)


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"connection_string": "nonsense"}, "malformed"),
        ({"account_name": "a", "account_key": 7}, "adlfs"),
        ({"self": 1, "account_name": "a"}, "'self' is none"),
        ({"kwargs": 1, "account_name": "a"}, "'kwargs' is none"),
    ],
)
async def test_options_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        await open_store("az://container/app", **options)


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({"account_name": "acc", "account_key": KEY}, "https://acc.blob.core.windows.net/box"),
        (
            {"account_name": "acc", "sas_token": "sv=1&sig=2"},
            "https://acc.blob.core.windows.net/box?sv=1&sig=2",
        ),
        (
            {"account_name": "acc", "sas_token": "?sv=1&sig=2"},
            "https://acc.blob.core.windows.net/box?sv=1&sig=2",
        ),
        ({"account_name": "acc", "anon": True}, "https://acc.blob.core.windows.net/box"),
        (
            {
                "account_name": "acc",
                "account_key": KEY,
                "account_host": "acc.blob.core.chinacloudapi.cn",
            },
            "https://acc.blob.core.chinacloudapi.cn/box",
        ),
        (
            {"connection_string": f"AccountName=acc;AccountKey={KEY};EndpointSuffix=x.net"},
            "https://acc.blob.x.net/box",
        ),
    ],
)
async def test_the_client_is_as_adlfs_would_make_it(options: dict[str, Any], address: str) -> None:
    driver = AzureDriver(azure_filesystem(options), "box")
    client = driver._client()
    assert client.url == address
    assert client.url == driver._fs.service_client.get_container_client("box").url
    assert type(client.credential) is type(driver._fs.service_client.credential)
    await driver.close()


@pytest.mark.usefixtures("nowhere")
async def test_credentials_that_adlfs_made_are_closed() -> None:
    filesystem = azure_filesystem(
        {"account_name": "a", "client_id": "b", "client_secret": "c", "tenant_id": "d"}
    )
    closed: list[str] = []
    driver = AzureDriver(filesystem, "box")

    class Closing:
        def __init__(self, name: str) -> None:
            self.name = name

        async def get_token(self, *scopes: str) -> None: ...

        def close(self) -> Any:
            closed.append(self.name)
            return _nothing()

    await filesystem.credential.close()
    filesystem.sync_credential.close()
    filesystem.credential = Closing("one")
    filesystem.sync_credential = type("Sync", (), {"close": lambda self: closed.append("two")})()
    await driver.close()
    assert sorted(closed) == ["one", "two"]


async def _nothing() -> None: ...


@pytest.mark.parametrize(
    ("rest", "path", "options"),
    [
        ("box/a/b", "box/a/b", {}),
        ("box", "box", {}),
        ("a-b/", "a-b/", {}),
        ("box@acc.dfs.core.windows.net/a", "box/a", {"account_name": "acc"}),
        ("box@acc.blob.core.windows.net", "box", {"account_name": "acc"}),
        (
            "box@acc.dfs.core.chinacloudapi.cn/a",
            "box/a",
            {"account_name": "acc", "account_host": "acc.blob.core.chinacloudapi.cn"},
        ),
    ],
)
def test_urls(rest: str, path: str, options: dict[str, str]) -> None:
    assert split_account(rest) == (path, options)


async def test_an_extra_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(MissingDependency, match=r"pip install 'taquba\[azure\]'"):
        await open_store("az://container/app")


async def test_errors_without_an_answer() -> None:
    options = {"account_name": "acc", "account_key": KEY}
    driver = AzureDriver(azure_filesystem(options), "box")
    untrusted = exceptions.ServiceRequestError("no")
    untrusted.__cause__ = ssl.SSLCertVerificationError("certificate verify failed")
    for error, expected in [
        (exceptions.ServiceRequestError("refused"), StoreUnavailable),
        (exceptions.ServiceResponseError("cut"), StoreUnavailable),
        (exceptions.ServiceResponseTimeoutError("slow"), StoreUnavailable),
        (exceptions.IncompleteReadError("cut"), StoreUnavailable),
        (exceptions.DecodeError("<html>"), StoreUnavailable),
        (exceptions.ClientAuthenticationError("no token"), StoreAccessDenied),
        (aiohttp.ClientPayloadError("cut"), StoreUnavailable),
        (ConnectionResetError(), StoreUnavailable),
        (untrusted, StoreError),
        (exceptions.AzureError("what"), StoreError),
    ]:
        classified = driver.classify(error, "get")
        assert classified is not None
        assert classified[0] is expected
    assert driver.classify(KeyError("a bug"), "get") is None
    await driver.close()


def answer(code: str) -> dict[str, Any]:
    text = f"<Error><Code>{code}</Code><Message>so says {code}\nRequestId:1</Message></Error>"
    return {
        "body": f'<?xml version="1.0" encoding="utf-8"?>{text}'.encode(),
        "headers": {"Content-Type": "application/xml", "x-ms-error-code": code},
    }
