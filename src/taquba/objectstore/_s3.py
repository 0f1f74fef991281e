"""S3 and what speaks like it, through s3fs."""

from __future__ import annotations

import asyncio
import importlib
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from taquba.errors import (
    BucketNotFound,
    InvalidArgument,
    MissingDependency,
    StoreAccessDenied,
    StoreError,
    StoreUnavailable,
    UnsafeStore,
)
from taquba.objectstore._bucket import kind_of_status

__all__ = ["CREDENTIALS_HINT", "S3Driver", "hint_of_answer", "kind_of_code", "s3_filesystem"]

_DELETE_BATCH = 1000
_LIST_PAGE = 1000

_SETTINGS: dict[str, Any] = {
    "max_pool_connections": 64,
    "connect_timeout": 5,
    # The losers of a race wait long on some servers, and 64 MiB take their time.
    "read_timeout": 60,
    # RetryingStore repeats, with a clock that a test can move; layers of repetition multiply.
    "retries": {"total_max_attempts": 1},
}

_OURS = ("asynchronous", "loop", "skip_instance_cache", "use_listings_cache")

_DENIED = {
    "AccessDenied",
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
_PERMISSIONS = {
    "create": "s3:PutObject",
    "delete": "s3:DeleteObject",
    "get": "s3:GetObject, and s3:ListBucket (without it S3 says this of absent objects, too)",
    "get_range": "s3:GetObject, and s3:ListBucket",
    "list": "s3:ListBucket",
    "put": "s3:PutObject",
}

_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError"}

CREDENTIALS_HINT = (
    "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the storage options key and "
    "secret, or run where the machine has a role"
)

_PASSING = {
    "BadDigest",
    "IncompleteBody",
    "InternalError",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "XAmzContentSHA256Mismatch",
}


def s3_filesystem(options: Mapping[str, Any]) -> Any:
    """An s3fs filesystem for the running event loop, with settings that fit a store.

    Args:
        options: Arguments of `s3fs.S3FileSystem`.

    Raises:
        MissingDependency: s3fs is not installed.
        InvalidArgument: The options make no sense.
    """
    try:
        s3fs = importlib.import_module("s3fs")
    except ImportError as error:
        raise MissingDependency(
            "s3:// needs s3fs, which is not installed: pip install 'taquba[s3]'"
        ) from error
    for name in _OURS:
        if name in options:
            raise InvalidArgument(f"storage option {name!r} is set by taquba: leave it out")
    arguments = dict(options)
    arguments["config_kwargs"] = _SETTINGS | dict(arguments.get("config_kwargs") or {})
    try:
        filesystem: Any = s3fs.S3FileSystem(
            **arguments, asynchronous=True, use_listings_cache=False, skip_instance_cache=True
        )
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidArgument(f"storage options for s3fs: {error}") from error
    filesystem.retries = 1
    return filesystem


class S3Driver:
    """The requests of S3, by the low-level calls of s3fs.

    The file-like ones look paths up first, hide errors of deletes, read in parts, and drop
    a mode that they do not know.
    """

    def __init__(self, filesystem: Any, bucket: str) -> None:
        self._fs = filesystem
        self._bucket = bucket
        self._connecting = asyncio.Lock()
        self._connected = False
        self._closed = False

    @property
    def url(self) -> str:
        """The bucket, for messages."""
        return f"s3://{self._bucket}"

    async def get(self, name: str) -> bytes:
        """The whole object."""
        return await _body(await self._call("get_object", Key=name))

    async def get_range(self, name: str, start: int, end: int) -> bytes:
        """Bytes ``[start, end)``."""
        try:
            answer = await self._call("get_object", Key=name, Range=f"bytes={start}-{end - 1}")
        except Exception as error:
            if _status_and_code(error)[0] == 416:  # the object ends before `start`
                return b""
            raise
        return await _body(answer)

    async def write(self, name: str, data: bytes, *, exclusive: bool) -> None:
        """Store the object in one request."""
        condition = {"IfNoneMatch": "*"} if exclusive else {}
        await self._call("put_object", Key=name, Body=data, **condition)

    async def delete(self, names: list[str]) -> None:
        """Delete the objects, in batches."""
        if len(names) == 1:
            await self._call("delete_object", Key=names[0])
            return
        for first in range(0, len(names), _DELETE_BATCH):
            batch = [{"Key": name} for name in names[first : first + _DELETE_BATCH]]
            answer = await self._call("delete_objects", Delete={"Objects": batch, "Quiet": True})
            failed = [e for e in answer.get("Errors") or () if e.get("Code") != "NoSuchKey"]
            if failed:
                raise _NotDeleted(failed)

    async def list(self, prefix: str, start_after: str) -> AsyncIterator[tuple[str, int]]:
        """Names and sizes, page by page."""
        where: dict[str, str] = {"StartAfter": start_after} if start_after else {}
        while True:
            page = await self._call("list_objects_v2", Prefix=prefix, MaxKeys=_LIST_PAGE, **where)
            for entry in page.get("Contents") or ():
                yield entry["Key"], entry["Size"]
            token = page.get("NextContinuationToken")
            if not page.get("IsTruncated") or not token:
                return
            where = {"ContinuationToken": token}

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        async with self._connecting:
            if not self._connected:
                return
            self._connected = False
            creator = self._fs._s3creator
            if hasattr(creator, "clear"):  # with cache_regions, one client for every region
                await creator.clear()
            else:
                await self._fs._s3.close()

    async def _call(self, method: str, **arguments: Any) -> Any:
        if not self._connected:
            await self._connect()
        return await self._fs._call_s3(method, Bucket=self._bucket, **arguments)

    async def _connect(self) -> None:
        async with self._connecting:
            if self._closed:  # s3fs would open another session, which nobody closes
                raise RuntimeError("closed")
            if self._connected:
                return
            try:
                await self._fs.set_session()
            except (TypeError, ValueError) as error:
                hint = ""
                if str(error).startswith("Invalid endpoint"):
                    hint = "; write endpoint_url as http://… or https://…"
                raise InvalidArgument(f"storage options for s3fs: {error}{hint}") from error
            self._connected = True

    def classify(self, error: Exception, operation: str) -> tuple[type[StoreError], str] | None:
        """What an error of s3fs, botocore or aiohttp means."""
        if isinstance(error, _NotDeleted):
            return error.kind(), str(error)
        status, code = _status_and_code(error)
        if status is not None:
            words = f"{error} (HTTP {status}, {code}){hint_of_answer(status, code, operation)}"
            return kind_of_code(status, code, operation), words
        kind = _kind_without_answer(error)
        if kind is None:
            return None
        hint = CREDENTIALS_HINT if type(error).__name__ in _NO_CREDENTIALS else ""
        if type(error).__name__ == "EndpointConnectionError":
            hint = "; check the address (endpoint_url, or the region) and the network"
        return kind, f"{type(error).__name__}: {error}{hint}"


class _NotDeleted(Exception):
    """Some keys of a batch were not deleted, in an answer that is a success as a whole."""

    def __init__(self, failed: list[dict[str, Any]]) -> None:
        self.codes = {str(entry.get("Code")) for entry in failed}
        first = failed[0]
        super().__init__(
            f"{len(failed)} objects were not deleted, for example {first.get('Key')!r}: "
            f"{first.get('Code')}: {first.get('Message')}"
        )

    def kind(self) -> type[StoreError]:
        if self.codes <= _PASSING:
            return StoreUnavailable
        if self.codes & _DENIED:
            return StoreAccessDenied
        return StoreError


async def _body(answer: Any) -> bytes:
    async with answer["Body"] as body:
        data: bytes = await body.read()
    return data


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _status_and_code(error: BaseException) -> tuple[int | None, str]:
    """HTTP status and S3 error code of an answer, which s3fs hides behind an OSError."""
    cause = error.__cause__ if isinstance(error, OSError) and error.__cause__ else error
    response: Any = getattr(cause, "response", None)
    try:
        return (
            int(response["ResponseMetadata"]["HTTPStatusCode"]),
            str(response["Error"].get("Code")),
        )
    except (TypeError, KeyError):
        return None, ""


def kind_of_code(status: int, code: str, operation: str) -> type[StoreError]:
    """What an answer of S3 means, which may be a success as a whole with errors in it."""
    if code == "NoSuchBucket":
        return BucketNotFound
    if code in _DENIED:
        return StoreAccessDenied
    if code in _PASSING:
        return StoreUnavailable
    if code == "NotImplemented" and operation == "create":
        return UnsafeStore
    return kind_of_status(status, operation)


def hint_of_answer(status: int, code: str, operation: str) -> str:
    """What helps against an answer of S3, in words, or ``""``."""
    if code == "NoSuchBucket":
        return "; create the bucket first"
    if code in ("ExpiredToken", "TokenRefreshRequired"):
        return "; the credentials have expired: give new ones"
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch"):
        return "; check the key and the secret"
    if status == 403 and operation in _PERMISSIONS:
        return f"; the credentials need the permission {_PERMISSIONS[operation]}"
    if status in (301, 307):
        return "; name the bucket's region: client_kwargs={'region_name': …}"
    return ""


def _kind_without_answer(error: Exception) -> type[StoreError] | None:
    """What it means that no answer came at all."""
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error)):
        return StoreError
    exceptions: Any = importlib.import_module("botocore.exceptions")
    parsers: Any = importlib.import_module("botocore.parsers")
    aiohttp: Any = importlib.import_module("aiohttp")
    denied = (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.SSOError,
    )
    if isinstance(error, denied):
        return StoreAccessDenied
    passing = (
        exceptions.ConnectionError,
        exceptions.HTTPClientError,
        exceptions.IncompleteReadError,
        exceptions.ChecksumError,
        exceptions.FlexibleChecksumError,
        # From the machine's metadata service, which has its bad moments too.
        exceptions.CredentialRetrievalError,
        exceptions.MetadataRetrievalError,
        parsers.ResponseParserError,
        aiohttp.ClientError,
        OSError,  # TimeoutError and ConnectionError among them
    )
    if isinstance(error, passing):
        return StoreUnavailable
    if isinstance(error, exceptions.BotoCoreError):
        return StoreError
    return None
