"""From a URL to a store."""

from __future__ import annotations

import importlib
import os
import re
from typing import Any, Literal
from urllib.parse import unquote

from taquba.clock import Clock, SystemClock
from taquba.errors import InvalidArgument, InvalidType, InvalidUrl, MissingDependency
from taquba.objectstore._azure_url import split_account
from taquba.objectstore._bucket import BucketStore, split_path
from taquba.objectstore._fsspec import FsspecStore
from taquba.objectstore._local import LocalStore
from taquba.objectstore._memory import MemoryStore
from taquba.objectstore._protocol import ObjectStore
from taquba.objectstore._readonly import ReadOnlyStore
from taquba.objectstore._retry import RetryingStore, RetryPolicy
from taquba.objectstore._verify import PROBE_PREFIX, verify_store

__all__ = ["open_store"]

_WORKING = (
    "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///folder, a path, "
    "or memory://"
)

_BUCKETS = {"s3": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
"""Schemes of buckets, and the one of each service."""

_PACKAGES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "az": ("adlfs", "azure")}
"""The package of each service, and the extra that installs it."""

_ALIASES = {"s3a": "s3", "s3n": "s3", "adl": "az"}

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(//)?")
_PATH_OF_URL = re.compile(r"(s3a?|gs|gcs|az|abfss?|file|memory|https?):/", re.IGNORECASE)
_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


async def open_store(
    url: str | os.PathLike[str],
    *,
    read_only: bool = False,
    clock: Clock | None = None,
    retry: RetryPolicy | None = None,
    driver: Literal["fsspec", "obstore"] = "fsspec",
    **storage_options: Any,
) -> ObjectStore:
    """Open the store that a URL or a path names; requests that fail for a moment are repeated.

    =============================  ===========================================================
    ``s3://bucket/prefix``         S3, or a service that speaks like it (``endpoint_url=…``);
                                   needs ``pip install 'taquba[s3]'``
    ``gs://bucket/prefix``         Google Cloud Storage; needs ``pip install 'taquba[gcs]'``
    ``az://container/prefix``      Azure Blob Storage; needs ``pip install 'taquba[azure]'``. The
                                   account comes with the storage options, or the environment,
                                   or a URL ``abfs://container@account.dfs.core.windows.net/…``
    ``file:///folder``, or a path  a folder, made if its parent exists
    ``memory://``                  the memory of this process; every call makes a new, empty one
    =============================  ===========================================================

    It is found out at once whether the store is there, may be written, and refuses to create
    an object twice. In a bucket that costs three requests, of which the last removes what the
    first created: see `verify_store`. It is done at every opening, since the client, a proxy
    or the service may have changed since the last.

    Args:
        url: A URL as above, or a path.
        read_only: Write nothing, and refuse writes. The verification is left out, and a folder
            that does not exist is not made.
        clock: Where the waits between repetitions come from.
        retry: How often to repeat.
        driver: The client that sends the requests to a bucket. ``"obstore"`` needs less of the
            processor, for S3 and Azure; needs ``pip install 'taquba[obstore]'``.
        **storage_options: Arguments of the filesystem: for s3:// of `s3fs.S3FileSystem`
            (``key``, ``secret``, ``endpoint_url``, ``profile``, …), for gs:// of
            `gcsfs.GCSFileSystem` (``token``, …), for az:// of `adlfs.AzureBlobFileSystem`
            (``account_name``, ``account_key``, ``connection_string``, …); with
            ``driver="obstore"`` of `obstore.store.S3Store` or `obstore.store.AzureStore`.

    Raises:
        InvalidUrl: Not a URL as above.
        InvalidArgument: The storage options make no sense.
        MissingDependency: The extra is not installed.
        BucketNotFound: The bucket, or the folder's parent, does not exist.
        StoreAccessDenied: Credentials are missing or wrong, or the folder is not writable.
        UnsafeStore: The store does not refuse the second create.
        StoreUnavailable: It could not be reached.
    """
    clock = SystemClock() if clock is None else clock
    retry = RetryPolicy() if retry is None else retry
    if driver not in ("fsspec", "obstore"):
        raise InvalidArgument(f"driver is {driver!r}: 'fsspec' or 'obstore'")
    store = await _parse(url, driver, storage_options)
    try:
        if read_only:
            await _look(store, clock, retry)
        else:
            await _verify(store, clock, retry)
    except BaseException:
        await store.close()
        raise
    retrying = RetryingStore(store, clock=clock, policy=retry)
    return ReadOnlyStore(retrying) if read_only else retrying


async def _verify(
    store: MemoryStore | LocalStore | BucketStore, clock: Clock, policy: RetryPolicy
) -> None:
    if isinstance(store, LocalStore):
        await store.prepare()  # tries hard links out, and leaves nothing behind
    elif isinstance(store, BucketStore):
        await verify_store(store, clock=clock, policy=policy)


async def _look(store: ObjectStore, clock: Clock, policy: RetryPolicy) -> None:
    async for _ in RetryingStore(store, clock=clock, policy=policy).list(PROBE_PREFIX):
        pass


async def _parse(
    url: str | os.PathLike[str], driver: str, storage_options: dict[str, Any]
) -> MemoryStore | LocalStore | BucketStore:
    text = _text(url)
    if isinstance(url, str):
        scheme, rest = _split(text)
    elif _PATH_OF_URL.match(text):
        raise InvalidUrl(f"{_shown(text)} was a URL before it became a path: give it as a str")
    else:
        scheme, rest = None, text
    if scheme in _BUCKETS:
        return await _bucket(text, _BUCKETS[scheme], rest, driver, storage_options)
    if driver != "fsspec":
        raise InvalidArgument(f"{_shown(text)}: driver={driver!r} is for buckets; leave it out")
    if storage_options:
        raise InvalidArgument(
            f"{_shown(text)} takes no storage options, but got {', '.join(storage_options)}"
        )
    if scheme == "memory":
        if rest:
            raise InvalidUrl(
                f"{_shown(text)}: memory has no names, since nothing is shared; write memory://, "
                "and to share one, make a MemoryStore and pass it on"
            )
        return MemoryStore()
    return LocalStore(_folder(text, rest) if scheme == "file" else _path(text))


def _text(url: str | os.PathLike[str]) -> str:
    try:
        return _only_str(os.fspath(url))
    except TypeError:
        raise InvalidType(f"url is {url!r}: give a str or a path") from None


def _only_str(path: object) -> str:
    if not isinstance(path, str):  # a path of bytes
        raise TypeError
    return path


def _split(text: str) -> tuple[str | None, str]:
    """Scheme and what follows its slashes; no scheme if it is a path."""
    found = _SCHEME.match(text)
    if found is None or (not found[2] and not _looks_like_a_known_scheme(found[1])):
        if "://" in text:
            raise InvalidUrl(f"{_shown(text)} is not a URL: write {_WORKING}")
        return None, text
    scheme = found[1].lower()
    rest = text[found.end() :]
    if scheme in _ALIASES:
        raise InvalidUrl(f"{_shown(text)}: write {_ALIASES[scheme]}://{_shown(rest, quote=False)}")
    if scheme in ("http", "https"):
        raise InvalidUrl(
            f"{_shown(text)}: for a service that speaks S3 write s3://bucket/prefix, and give "
            "its address as the storage option endpoint_url"
        )
    if scheme not in {"file", "memory", *_BUCKETS} or "::" in text:
        raise InvalidUrl(f"{_shown(text)} names nothing that taquba can open: write {_WORKING}")
    if not found[2]:
        examples = {"file": "file:///folder", "memory": "memory://"}
        example = examples.get(scheme, f"{scheme}://bucket")
        raise InvalidUrl(f"{_shown(text)} lacks slashes: write {example}")
    return scheme, rest


def _looks_like_a_known_scheme(name: str) -> bool:
    # Any other word before a colon is the start of a path, or a drive.
    known = {"file", "memory", "http", "https"} | _BUCKETS.keys() | _ALIASES.keys()
    return name.lower() in known


async def _bucket(
    text: str, service: str, rest: str, driver: str, options: dict[str, Any]
) -> BucketStore:
    if "@" in rest and service != "az":
        raise InvalidUrl(
            f"{_shown(text)}: credentials do not belong into a URL, which gets logged; give them "
            "as storage options, or by the environment"
        )
    if "?" in rest or "#" in rest:
        raise InvalidUrl(f"{_shown(text)}: no ? and # here; give options as storage options")
    if not rest or rest.startswith("/"):
        raise InvalidUrl(f"{_shown(text)} names no bucket: write {service}://bucket/prefix")
    try:
        if service == "az":
            rest, account = split_account(rest)
            options = _with_account(options, account)
        split_path(rest)
    except InvalidArgument as error:
        raise InvalidUrl(f"{_shown(text)}: {error}") from error
    if driver == "obstore":
        if service == "gs":
            raise InvalidArgument(
                f"{_shown(text)}: driver='obstore' is for s3:// and az://; leave it out"
            )
        from taquba.objectstore._obstore import obstore_store

        return obstore_store(service, rest, options)
    return FsspecStore(await _filesystem(service, options), rest)


def _with_account(options: dict[str, Any], account: dict[str, str]) -> dict[str, Any]:
    for name, value in account.items():
        if options.get(name, value) != value:
            raise InvalidArgument(f"it means the account of {value}, but {name} is another one")
    return options | account


async def _filesystem(service: str, options: dict[str, Any]) -> Any:
    package, extra = _PACKAGES[service]
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise MissingDependency(
            f"{service}:// needs {package}, which is not installed: pip install 'taquba[{extra}]'"
        ) from error
    if service == "gs":
        from taquba.objectstore._gcs import gcs_filesystem

        return await gcs_filesystem(options)
    if service == "az":
        from taquba.objectstore._azure import azure_filesystem

        return azure_filesystem(options)
    from taquba.objectstore._s3 import s3_filesystem

    return s3_filesystem(options)


def _folder(text: str, rest: str) -> str:
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise InvalidUrl(
            f"{_shown(text)}: a file URL has three slashes and a whole path, as in "
            "file:///srv/app; for a relative path, write the path alone"
        )
    if "?" in path or "#" in path:
        raise InvalidUrl(f"{_shown(text)}: write ? as %3F and # as %23 in a file URL")
    if _PERCENT.search(path):
        raise InvalidUrl(f"{_shown(text)}: write % as %25 in a file URL")
    try:
        decoded = unquote(path, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidUrl(f"{_shown(text)}: its percent signs encode no UTF-8") from error
    if not decoded.strip("/"):
        raise InvalidUrl(f"{_shown(text)} names no folder: write file:///srv/app")
    if re.match(r"[A-Za-z]:(/|\Z)", decoded):  # file:///C:/folder
        return _path(decoded)
    return _path(f"/{decoded}")


def _path(text: str) -> str:
    if not text:
        raise InvalidUrl(f"the path is empty: write {_WORKING}")
    if "\0" in text:
        raise InvalidUrl(f"{text!r} has a NUL character, which no path can have")
    if text.startswith("~"):
        return os.path.expanduser(text)
    return text


def _shown(url: str, *, quote: bool = True) -> str:
    """The URL without what may be secret in it."""
    shown = re.sub(r"^([A-Za-z0-9+.:\-]*//)?.*@", r"\1…@", url, flags=re.DOTALL)
    shown = re.sub(r"\?.*", "?…", shown, flags=re.DOTALL)
    return repr(shown) if quote else shown
