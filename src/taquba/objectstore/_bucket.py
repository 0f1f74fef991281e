"""A store on a bucket: what the clients of all services have in common."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Generator, Iterable
from contextlib import contextmanager
from typing import Protocol

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
from taquba.objectstore._protocol import (
    ObjectInfo,
    check_data,
    check_key,
    check_keys,
    check_prefix,
    check_range,
    is_key,
)

__all__ = ["BucketStore", "Driver", "kind_of_status", "split_path"]

_MAX_PREFIX_LENGTH = 500
"""With the longest key, and the slash between, this stays under the 1,024 of every service."""

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{1,62}")


class Driver(Protocol):
    """The requests of one service, spelled as its client needs them.

    Names are whole object names in the bucket. A driver sends each request once, or lets
    its client resend it; it raises what its client raises, and tells in `classify` what
    that means.
    """

    @property
    def url(self) -> str:
        """The bucket, for messages."""
        ...

    async def get(self, name: str) -> bytes:
        """The whole object."""
        ...

    async def get_range(self, name: str, start: int, end: int) -> bytes:
        """Bytes ``[start, end)``, not empty; ``b""`` if the object ends before `start`."""
        ...

    async def write(self, name: str, data: bytes, *, exclusive: bool) -> None:
        """Store the object in one request; if `exclusive`, only if the name is free."""
        ...

    async def delete(self, names: list[str]) -> None:
        """Delete the objects; absent ones are fine. Raises if a single one fails."""
        ...

    def list(self, prefix: str, start_after: str) -> AsyncIterator[tuple[str, int]]:
        """Names and sizes, ascending, from the first name after `start_after`."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...

    def classify(self, error: Exception, operation: str) -> tuple[type[StoreError], str] | None:
        """What an error means, and in which words; None if it is none of the service."""
        ...


class BucketStore:
    """Keys below a prefix in a bucket, whose requests a driver sends."""

    def __init__(self, driver: Driver, prefix: str) -> None:
        """Args:
        driver: Sends the requests; closed with this store.
        prefix: What all keys start with: empty, or with a slash at its end.
        """
        self._driver = driver
        self._prefix = prefix
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._url}>"

    @property
    def _url(self) -> str:
        return f"{self._driver.url}/{self._prefix}".rstrip("/")

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        check_key(key)
        with self._translated("get", key):
            return await self._driver.get(self._prefix + key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """See `ObjectStore.get_range`."""
        check_key(key)
        if not check_range(start, end):
            return b""
        with self._translated("get_range", key):
            return await self._driver.get_range(self._prefix + key, start, end)

    async def create(self, key: str, data: bytes) -> None:
        """See `ObjectStore.create`."""
        check_key(key)
        data = check_data(data)
        with self._translated("create", key):
            await self._driver.write(self._prefix + key, data, exclusive=True)

    async def put(self, key: str, data: bytes) -> None:
        """See `ObjectStore.put`."""
        check_key(key)
        data = check_data(data)
        with self._translated("put", key):
            await self._driver.write(self._prefix + key, data, exclusive=False)

    async def delete(self, keys: Iterable[str]) -> None:
        """See `ObjectStore.delete`."""
        names = [self._prefix + key for key in check_keys(keys)]
        if names:
            with self._translated("delete", ""):
                await self._driver.delete(names)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        check_prefix(prefix)
        check_prefix(start_after, name="start_after")
        with self._translated("list", prefix):
            names = self._driver.list(
                self._prefix + prefix, self._prefix + start_after if start_after else ""
            )
        while True:
            # Not around the yield: what the caller raises there is no error of the store.
            with self._translated("list", prefix):
                try:
                    name, size = await anext(names)
                except StopAsyncIteration:
                    return
            key = name[len(self._prefix) :]
            if key > start_after and is_key(key):  # consoles leave 'folder/' objects behind
                yield ObjectInfo(key, size)

    async def close(self) -> None:
        """Close the connections. Calling it again does nothing."""
        if not self._closed:
            self._closed = True
            await self._driver.close()

    @contextmanager
    def _translated(self, operation: str, key: str) -> Generator[None]:
        if self._closed:
            raise Closed(f"{self!r} was closed; open another")
        try:
            yield
        except Exception as error:
            if self._closed:
                raise Closed(f"{self!r} was closed during {operation} {key!r}") from error
            found = self._driver.classify(error, operation)
            if found is None:
                raise
            kind, words = found
            what = f"{operation} {key!r} in {self._url}" if key else f"{operation} {self._url}"
            raise kind(f"{what}: {words}", operation=operation, key=key) from error


def kind_of_status(status: int, operation: str) -> type[StoreError]:
    """What an HTTP status means for an operation, alike for every service."""
    if status == 412 and operation == "create":
        return ObjectExists
    if status == 404:
        return ObjectNotFound if operation in ("get", "get_range") else BucketNotFound
    if status in (401, 403):
        return StoreAccessDenied
    if status == 501:
        # What a service answers that does not know the condition.
        return UnsafeStore if operation == "create" else StoreError
    if status in (408, 409, 425, 429) or status >= 500:
        return StoreUnavailable
    return StoreError


def split_path(path: str) -> tuple[str, str]:
    """Bucket, and prefix with a slash at its end (or ``""``), of ``bucket/some/prefix/``.

    Raises:
        InvalidArgument: It names no bucket, or a prefix that is not safe everywhere.
    """
    bucket, _, prefix = path.partition("/")
    if _BUCKET.fullmatch(bucket) is None:
        raise InvalidArgument(
            f"{bucket!r} is not the name of a bucket: 3 to 63 of A-Z a-z 0-9 . _ -"
        )
    prefix = prefix.rstrip("/")
    if not prefix:
        return bucket, ""
    if len(prefix) > _MAX_PREFIX_LENGTH:
        raise InvalidArgument(
            f"the prefix {prefix[:40]!r}… has {len(prefix)} characters: at most "
            f"{_MAX_PREFIX_LENGTH}"
        )
    if not is_key(prefix):
        raise InvalidArgument(
            f"the prefix {prefix!r} is not safe on every service: use A-Z a-z 0-9 . _ - = in "
            "segments joined by single slashes, none of them '.' or '..'"
        )
    return bucket, f"{prefix}/"
