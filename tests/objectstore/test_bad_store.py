"""Queues on buckets that misbehave: what is denied, what expires, and how it is said."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from taquba import Queue
from taquba.errors import BucketNotFound, CommitUnknown, StoreAccessDenied
from taquba.objectstore import open_store
from tests.objectstore.harness import keys
from tests.objectstore.test_s3 import SESSION
from tests.servers.lossy_proxy import LossyProxy

pytestmark = pytest.mark.anyio

Server = dict[str, Any]
DRIVERS = ("fsspec", "obstore")
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


@pytest.fixture
def url(request: pytest.FixtureRequest, s3_server: Server) -> str:
    """A store of the test's own."""
    return f"{s3_server['url']}/b{abs(hash(request.node.nodeid)):x}"


@pytest.fixture
async def proxy(s3_server: Server) -> AsyncIterator[LossyProxy]:
    async with LossyProxy(s3_server["port"]) as proxy:
        yield proxy


def of(server: Server, driver: str) -> dict[str, Any]:
    # A new session reads the description of the service, which takes long.
    session = {"session": SESSION} if driver == "fsspec" else {}
    return {**server["storage_options"], **session, "driver": driver}


def through(proxy: LossyProxy, server: Server, driver: str = "fsspec") -> dict[str, Any]:
    return {**of(server, driver), "endpoint_url": proxy.endpoint}


def deny(proxy: LossyProxy, *methods: str, body: bytes = DENIED, status: int = 403) -> None:
    """From now on no such request reaches the server."""
    for method in methods:
        proxy.lose(method, how=status, times=math.inf, body=body, reach=False)


async def pending(queue: Queue) -> int:
    return (await queue.stats("work")).pending


# -- URLs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", DRIVERS)
async def test_slashes_at_the_end_name_the_same_store(
    s3_server: Server, url: str, driver: str
) -> None:
    options = of(s3_server, driver)
    for number, slashes in enumerate(("", "/", "//")):
        async with Queue.open(url + slashes, storage_options=options) as queue:
            assert await pending(queue) == number
            await queue.enqueue("work", b"1")


async def test_slashes_at_the_end_of_a_folder(tmp_path: Path) -> None:
    targets = [f"{tmp_path}/app{end}" for end in ("", "/", "//")]
    for number, target in enumerate([*targets, *(f"file://{target}" for target in targets)]):
        async with Queue.open(target) as queue:
            assert await pending(queue) == number
            await queue.enqueue("work", b"1")


async def test_slashes_after_a_bucket(s3_server: Server) -> None:
    """The whole bucket; nobody may put an empty segment before the keys."""
    for slashes in ("", "/", "//"):
        store = await open_store(f"{s3_server['url']}{slashes}", **of(s3_server, "fsspec"))
        assert repr(store).endswith(f"<FsspecStore {s3_server['url']}>)")
        await store.close()


# -- denied ----------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_bucket_in_which_listing_is_denied(
    s3_server: Server, proxy: LossyProxy, url: str, driver: str
) -> None:
    options = through(proxy, s3_server, driver)
    async with Queue.open(url, storage_options=options) as queue:
        await queue.enqueue("work", b"1")
    objects = await listed(url, s3_server)
    proxy.lose("GET", "list-type", how=403, times=math.inf, body=DENIED)
    with pytest.raises(StoreAccessDenied, match=r"s3:ListBucket") as caught:
        await Queue.open(url, storage_options=options)
    assert caught.value.operation == "list"
    assert caught.value.key == "checkpoints/"
    assert url in str(caught.value)
    with pytest.raises(StoreAccessDenied, match="s3:ListBucket"):
        await open_store(url, read_only=True, **options)
    assert await listed(url, s3_server) == objects, "something was written"
    proxy.heal()
    async with Queue.open(url, storage_options=options) as queue:
        assert await pending(queue) == 1


async def listed(url: str, server: Server) -> list[str]:
    store = await open_store(url, read_only=True, **of(server, "obstore"))
    found = await keys(store)
    await store.close()
    return found


async def test_listing_that_is_denied_later_stops_no_commit(
    s3_server: Server, proxy: LossyProxy, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = through(proxy, s3_server)
    async with Queue.open(url, storage_options=options) as queue:
        proxy.lose("GET", "list-type", how=403, times=math.inf, body=DENIED)
        await queue.enqueue("work", b"1")
        await queue._core.database.checkpoint()
        await queue.enqueue("work", b"2")
    assert "s3:ListBucket" in caplog.text, "that nothing is collected was not said"
    proxy.heal()
    async with Queue.open(url, storage_options=options) as queue:
        assert await pending(queue) == 2


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_bucket_in_which_deleting_is_denied(
    s3_server: Server,
    proxy: LossyProxy,
    url: str,
    driver: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Everything works, but nothing is collected, the probe least of all."""
    caplog.set_level(logging.INFO)
    options = through(proxy, s3_server, driver)
    deny(proxy, "DELETE", "POST")
    for number in range(3):
        async with Queue.open(url, storage_options=options) as queue:
            assert await pending(queue) == number
            await queue.enqueue("work", b"1")
            await queue._core.database.checkpoint()
    assert caplog.text.count("the probe 'probes/") == 3
    assert "s3:DeleteObject" in caplog.text
    assert len([key for key in await listed(url, s3_server) if key.startswith("probes/")]) == 3
    proxy.heal()
    async with Queue.open(url, storage_options=options) as queue:
        assert await pending(queue) == 3


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    ("method", "permission"), [("PUT", "s3:PutObject"), ("GET", "s3:GetObject|s3:ListBucket")]
)
async def test_opening_says_what_is_not_allowed(
    s3_server: Server, proxy: LossyProxy, url: str, driver: str, method: str, permission: str
) -> None:
    options = through(proxy, s3_server, driver)
    await (await Queue.open(url, storage_options=options)).close()
    deny(proxy, method)
    with pytest.raises(StoreAccessDenied, match=permission) as caught:
        await Queue.open(url, storage_options=options)
    assert url in str(caught.value)


async def test_reading_is_denied_after_listing(
    s3_server: Server, proxy: LossyProxy, url: str
) -> None:
    """Else an entry that may not be read could be taken for one that is not there."""
    options = through(proxy, s3_server)
    async with Queue.open(url, storage_options=options) as queue:
        await queue.enqueue("work", b"1")
    objects = await listed(url, s3_server)
    proxy.lose("GET", "/journal/", how=403, times=math.inf, body=DENIED, reach=False)
    with pytest.raises(StoreAccessDenied, match="s3:GetObject") as caught:
        await Queue.open(url, storage_options=options)
    assert caught.value.key.startswith("journal/")
    assert await listed(url, s3_server) == objects


# -- credentials that expire -----------------------------------------------------------------


@pytest.mark.parametrize("driver", DRIVERS)
async def test_credentials_that_expire_lose_nothing_and_come_back(
    s3_server: Server,
    proxy: LossyProxy,
    url: str,
    driver: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A commit that was accepted waits: new credentials may come, as those of a role do."""
    caplog.set_level(logging.INFO)
    options = through(proxy, s3_server, driver)
    async with Queue.open(url, storage_options=options) as queue:
        await queue.enqueue("work", b"before")
        deny(proxy, "PUT", "GET", "POST", "DELETE", body=EXPIRED, status=400)
        refused = len(proxy.seen)
        waiting = [asyncio.ensure_future(queue.enqueue("work", b"%d" % n)) for n in range(5)]
        await proxy.arrived(refused + 3)
        assert not any(task.done() for task in waiting), "acknowledged what is not stored"
        proxy.heal()
        for task in waiting:
            await task
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    (warning,) = [text for text in warnings if "cannot be stored" in text]
    for words in ("StoreAccessDenied", "journal/", url, "ExpiredToken", "credentials have expired"):
        assert words in warning
    assert "are stored again" in caplog.text
    async with Queue.open(url, storage_options=options) as queue:
        assert await pending(queue) == 6


@pytest.mark.parametrize("driver", DRIVERS)
async def test_credentials_that_expire_for_good(
    s3_server: Server, proxy: LossyProxy, url: str, driver: str
) -> None:
    """Whoever waits learns why when the queue is closed, and what was acknowledged is there."""
    options = through(proxy, s3_server, driver)
    queue = await Queue.open(url, storage_options=options, close_timeout=0.3)
    await queue.enqueue("work", b"before")
    deny(proxy, "PUT", "GET", "POST", "DELETE", body=EXPIRED, status=400)
    refused = len(proxy.seen)
    waiting = asyncio.ensure_future(queue.enqueue("work", b"after"))
    await proxy.arrived(refused + 1)
    with pytest.raises(CommitUnknown, match=r"journal/.*ExpiredToken") as caught:
        await queue.close()
    assert isinstance(caught.value.__cause__, StoreAccessDenied)
    with pytest.raises(CommitUnknown, match=r"journal/.*ExpiredToken"):
        await waiting
    with pytest.raises(StoreAccessDenied, match="credentials have expired"):
        await Queue.open(url, storage_options=options)
    proxy.heal()
    async with Queue.open(url, storage_options=options) as queue:
        assert await pending(queue) == 1


async def test_the_trouble_changes(
    s3_server: Server, proxy: LossyProxy, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Then it is said again: who reads of a slow store would not look at the credentials."""
    options = through(proxy, s3_server)
    queue = await Queue.open(url, storage_options=options)
    # Not repeated by the store, which repeats only what passes; one more is the journal's.
    proxy.lose("PUT", "journal", how=404, reach=False)
    proxy.lose("PUT", "journal", how=403, times=2, body=DENIED, reach=False)
    await queue.enqueue("work", b"1")
    await queue.close()
    warnings = [text for text in caplog.messages if "cannot be stored" in text]
    assert [kind for text in warnings for kind in KINDS if kind in text] == list(KINDS)


KINDS = (BucketNotFound.__name__, StoreAccessDenied.__name__)
