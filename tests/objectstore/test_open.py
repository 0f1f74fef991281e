"""open_store: which URLs, and what is said of the others."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taquba.clock import ManualClock
from taquba.errors import (
    BucketNotFound,
    InvalidArgument,
    InvalidType,
    InvalidUrl,
    MissingDependency,
    StoreAccessDenied,
    StoreUnavailable,
)
from taquba.objectstore import LocalStore, MemoryStore, RetryingStore, RetryPolicy, open_store
from tests.objectstore.harness import drive, keys

pytestmark = pytest.mark.anyio


async def test_memory_is_new_every_time() -> None:
    first, second = await open_store("memory://"), await open_store("memory://")
    await first.create("a", b"1")
    assert await keys(first) == ["a"]
    assert await keys(second) == []
    assert isinstance(first, RetryingStore)
    assert isinstance(first.store, MemoryStore)


@pytest.mark.parametrize(
    "form",
    [
        "{folder}/app",
        "{folder}/app/",
        "file://{folder}/app",
        "file://{folder}/app/",
        "FILE://{folder}/app",
        "file://localhost{folder}/app",
        "file://{folder}/%61pp",
    ],
)
async def test_folders(tmp_path: Path, form: str) -> None:
    store = await open_store(form.format(folder=tmp_path))
    await store.create("x/y", b"1")
    await store.close()
    assert (tmp_path / "app/x/y").read_bytes() == b"1"


async def test_opening_a_folder_leaves_nothing_in_it(tmp_path: Path) -> None:
    await (await open_store(tmp_path / "app")).close()
    assert list((tmp_path / "app").iterdir()) == []


async def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    targets = ["relative", Path("a path"), pathlib.PurePosixPath("pure"), "./dot", "~/home", "a:b"]
    stores = [await open_store(target) for target in targets]
    os.chdir("/")  # a store stays where it was opened
    for store in stores:
        await store.create("x", b"1")
        await store.close()
    assert sorted(p.parent.name for p in tmp_path.glob("*/x")) == sorted(
        ["relative", "a path", "pure", "dot", "home", "a:b"]
    )


async def test_percent_encoding(tmp_path: Path) -> None:
    store = await open_store(f"file://{tmp_path}/with%20space%20%23%3F%25%C3%A9")
    await store.create("x", b"1")
    await store.close()
    assert (tmp_path / "with space #?%é/x").exists()
    plain = await open_store(f"{tmp_path}/with%20space")
    assert isinstance(plain, RetryingStore)
    assert isinstance(plain.store, LocalStore)
    assert plain.store.root == tmp_path / "with%20space"  # a path is no URL
    await plain.close()


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("", "path is empty"),
        ("memory://name", "write memory://"),
        ("memory:", "write memory://"),
        ("file://folder/app", "three slashes"),
        ("file:/srv/app", "write file:///folder"),
        ("file://", "three slashes"),
        ("file:///", "names no folder"),
        ("file:///a?b", "%3F"),
        ("file:///a#b", "%23"),
        ("file:///a%zz", "%25"),
        ("file:///a%", "%25"),
        ("file:///%ff", "UTF-8"),
        ("file:///a%00b", "NUL"),
        ("a\0b", "NUL"),
        ("s3://", "write s3://bucket/prefix"),
        ("s3:///app", "names no bucket"),
        ("s3:bucket/app", "write s3://bucket"),
        ("s3://b", "not the name of a bucket"),
        ("s3://bucket//app", "not safe"),
        ("s3://bucket/a b", "not safe"),
        ("s3://bucket/a%20b", "not safe"),
        ("s3://bucket/../other", "not safe"),
        ("s3://bucket/" + "x" * 501, "at most 500"),
        ("s3://bucket/a?region=eu", "storage options"),
        ("s3://bucket/a#b", "no ? and #"),
        ("s3://arn:aws:s3:eu-west-1:123:accesspoint/x", "not the name of a bucket"),
        ("s3://key:s3cr3t@bucket/app", "credentials do not belong"),
        ("s3://key:with/s3cr3t@bucket/app", "credentials do not belong"),
        ("s3a://key:s3cr3t@bucket/app", "write s3://"),
        ("s3a://bucket/app", "write s3://bucket/app"),
        ("gs://", "write gs://bucket/prefix"),
        ("gcs:///app", "write gs://bucket/prefix"),
        ("gs:bucket/app", "write gs://bucket"),
        ("gs://b", "not the name of a bucket"),
        ("gs://bucket/a b", "not safe"),
        ("gs://bucket/a#1234", "no ? and #"),
        ("gs://s3cr3t@bucket/app", "credentials do not belong"),
        ("az://", "names no bucket"),
        ("az:container", "write az://bucket"),
        ("az://Container/app", "not the name of a container"),
        ("az://con--tainer/app", "not the name of a container"),
        ("az://con.tainer/app", "not the name of a container"),
        ("az://c/app", "not the name of a container"),
        ("az://container/../app", "not safe"),
        ("az://container/app?sig=s3cr3t", "no ? and #"),
        ("abfs://container@account/app", "the account's address"),
        ("abfs://container@host.example.com/app", "the account's address"),
        ("abfs://me:s3cr3t@account.dfs.core.windows.net/app", "credentials do not belong"),
        ("abfs://container/me@account.dfs.core.windows.net", "not safe"),
        ("abfss://a/b@c@account.dfs.core.windows.net", "not the name of a container"),
        ("abfss://@account.dfs.core.windows.net/app", "not the name of a container"),
        ("adl://account/app", "write az://account/app"),
        ("http://minio:9000/bucket", "endpoint_url"),
        ("https://bucket.s3.amazonaws.com/app", "endpoint_url"),
        ("ftp://host/path", "write s3://bucket/prefix"),
        ("redis://host", "memory://"),
        ("simplecache::s3://bucket/app", "write s3://bucket/prefix"),
        (" s3://bucket", "is not a URL"),
        ("://bucket", "is not a URL"),
        (Path("s3://bucket/app"), "give it as a str"),
        (Path("file:///srv/app"), "give it as a str"),
    ],
)
async def test_bad_urls(url: str, advice: str) -> None:
    with pytest.raises(InvalidUrl) as caught:
        await open_store(url)
    assert advice in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


async def test_secrets_are_not_shown() -> None:
    for url in ["az://me:s3cr3t@host/x", "x://h/p?sig=s3cr3t", "http://a:s3cr3t@h/?b=s3cr3t"]:
        with pytest.raises(InvalidUrl) as caught:
            await open_store(url)
        assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("url", [None, 7, b"/tmp/bytes", ["s3://bucket"], MemoryStore()])
async def test_other_types(url: Any) -> None:
    with pytest.raises(InvalidType, match="give a str or a path"):
        await open_store(url)


@pytest.mark.parametrize("url", ["memory://", "file:///srv/app", "folder"])
async def test_options_for_nothing(url: str) -> None:
    with pytest.raises(InvalidArgument, match="takes no storage options, but got key"):
        await open_store(url, key="x")


async def test_a_missing_parent(tmp_path: Path) -> None:
    with pytest.raises(BucketNotFound, match=r"mkdir -p .*/no"):
        await open_store(tmp_path / "no" / "app")
    (tmp_path / "file").write_text("x")
    with pytest.raises(BucketNotFound, match="is a file: give a folder"):
        await open_store(tmp_path / "file")
    with pytest.raises(BucketNotFound, match="is a file"):
        await open_store(tmp_path / "file" / "app")
    assert sorted(os.listdir(tmp_path)) == ["file"]


async def test_read_only_folders(tmp_path: Path) -> None:
    with pytest.raises(BucketNotFound, match="does not exist"):
        await open_store(tmp_path / "app", read_only=True)
    assert os.listdir(tmp_path) == []
    writer = await open_store(tmp_path / "app")
    await writer.create("a", b"123")
    reader = await open_store(tmp_path / "app", read_only=True)
    assert await reader.get("a") == b"123"
    assert await reader.get_range("a", 1, 2) == b"2"
    assert await keys(reader) == ["a"]
    for write in (reader.create("b", b""), reader.put("a", b""), reader.delete(["a"])):
        with pytest.raises(StoreAccessDenied, match="read_only=True"):
            await write
    assert await keys(writer) == ["a"]
    await reader.close()
    await writer.close()


async def test_an_extra_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingDependency, match=r"pip install 'taquba\[s3\]'") as caught:
        await open_store("s3://bucket/app")
    assert isinstance(caught.value, ImportError)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"asynchronous": False}, "'asynchronous' is set by taquba"),
        ({"skip_instance_cache": False}, "'skip_instance_cache' is set by taquba"),
        ({"endpont_url": "http://127.0.0.1:1"}, "endpont_url"),
        ({"endpoint_url": "no address"}, "no address"),
        ({"key": "a", "username": "b"}, "not both"),
        ({"config_kwargs": {"no_such_setting": 1}}, "no_such_setting"),
    ],
)
async def test_options_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        await open_store("s3://bucket/app", **options)


async def test_an_address_where_nobody_is() -> None:
    clock = ManualClock()
    policy = RetryPolicy(attempts=3)
    opening = open_store(
        "s3://bucket/app",
        clock=clock,
        retry=policy,
        key="k",
        secret="s",
        endpoint_url="http://127.0.0.1:9",
    )
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9"):
        await drive(clock, opening, limit=1e9)


async def test_no_credentials_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(StoreAccessDenied, match="NoCredentialsError.*AWS_ACCESS_KEY_ID"):
        await open_store("s3://bucket/app", endpoint_url="http://127.0.0.1:9")


def test_no_cloud_library_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, taquba.objectstore, taquba.testing\n"
        "unwanted = {'fsspec', 's3fs', 'aiohttp', 'botocore', 'pytest', 'pydantic'}\n"
        "heavy = unwanted & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
