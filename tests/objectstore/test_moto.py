"""S3 on a second implementation, which words its answers as AWS does: moto.

Its errors differ from SeaweedFS's where it matters: a refused create names the condition in
its body, so that s3fs raises another exception; keys are listed by bytes and not by folders;
an empty range is the whole object; and it checks no signature, so that a proxy may drop a
header without anybody noticing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import pytest

from taquba.errors import BucketNotFound, ObjectExists, ObjectNotFound, UnsafeStore
from taquba.objectstore import ObjectStore, open_store
from taquba.testing import ObjectStoreConformance
from tests.conftest import running_server
from tests.objectstore.harness import keys
from tests.objectstore.test_s3 import SESSION
from tests.servers.lossy_proxy import LossyProxy

pytestmark = pytest.mark.anyio

Server = dict[str, Any]
DriverName = Literal["fsspec", "obstore"]
DRIVERS: tuple[DriverName, ...] = ("fsspec", "obstore")


@pytest.fixture(scope="module")
def moto() -> Iterator[Server]:
    with running_server("moto") as info:
        yield info


class TestFsspec(ObjectStoreConformance):
    many = 25
    largest = 12 * 1024 * 1024  # it is slow, and has no limit of its own below

    driver: ClassVar[DriverName] = "fsspec"

    @pytest.fixture(autouse=True)
    def _server(self, moto: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = moto
        monkeypatch.setattr("taquba.objectstore._s3._LIST_PAGE", 10)
        monkeypatch.setattr("taquba.objectstore._s3._DELETE_BATCH", 10)
        monkeypatch.setattr("taquba.objectstore._obstore._DELETE_BATCH", 10)

    async def open_store(self) -> ObjectStore:
        url = f"{self.server['url']}/conformance-{self.driver}"
        # A new session reads the description of the service, which takes long.
        session = {"session": SESSION} if self.driver == "fsspec" else {}
        options = {**self.server["storage_options"], **session}
        return await open_store(url, driver=self.driver, **options)

    # It looks at the condition and then stores, without a lock: two have been seen to win.
    test_exactly_one_of_many_creators_wins_with_small_objects = None  # type: ignore[assignment]
    test_exactly_one_of_many_creators_wins_with_larger_objects = None  # type: ignore[assignment]


class TestObstore(TestFsspec):
    driver = "obstore"


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_proxy_that_drops_the_condition_makes_the_store_unsafe(
    moto: Server, driver: DriverName
) -> None:
    """As an old proxy or gateway does: every create succeeds, and overwrites."""
    url = f"{moto['url']}/dropped-{driver}"
    options = moto["storage_options"]
    async with LossyProxy(moto["port"], without="if-none-match") as proxy:
        with pytest.raises(UnsafeStore) as caught:
            await open_store(url, driver=driver, **{**options, "endpoint_url": proxy.endpoint})
        assert url in str(caught.value)
        assert "overwrites it" in str(caught.value)
        puts = [seen for seen in proxy.seen if seen.method == "PUT"]
        assert [seen.headers["if-none-match"] for seen in puts] == ["*", "*"], "it was asked for"
    store = await open_store(url, driver=driver, **options)
    assert await keys(store) == []
    await store.close()


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_bucket_that_is_not_there(moto: Server, driver: DriverName) -> None:
    with pytest.raises(BucketNotFound, match="s3://no-such-bucket"):
        await open_store("s3://no-such-bucket", driver=driver, **moto["storage_options"])


@pytest.mark.parametrize("driver", DRIVERS)
async def test_statuses_are_read_whatever_the_exception_is(
    moto: Server, driver: DriverName
) -> None:
    store = await open_store(f"{moto['url']}/{driver}", driver=driver, **moto["storage_options"])
    await store.create("a", b"1")
    with pytest.raises(ObjectExists, match="HTTP 412"):
        await store.create("a", b"2")
    with pytest.raises(ObjectNotFound, match="HTTP 404"):
        await store.get("b")
    await store.put("empty", b"")
    assert await store.get_range("empty", 0, 5) == b""
    assert await store.get_range("a", 7, 9) == b""
    await store.close()
