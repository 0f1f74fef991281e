"""Google Cloud Storage, through gcsfs."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import inspect
import json
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote

import aiohttp

from taquba.errors import (
    BucketNotFound,
    InvalidArgument,
    StoreAccessDenied,
    StoreError,
    StoreUnavailable,
)
from taquba.objectstore._bucket import kind_of_status
from taquba.objectstore._http import Body, causes, for_each, is_untrusted_certificate

__all__ = ["GcsDriver", "gcs_filesystem"]

_LIST_PAGE = 1000
_DELETES_AT_ONCE = 16

_CONNECT_TIMEOUT = 10.0
_READ_TIMEOUT = 60.0

_OURS = ("asynchronous", "loop", "skip_instance_cache", "use_listings_cache")

_CREDENTIALS = (
    "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account, run 'gcloud auth "
    "application-default login', or give the storage option token"
)

_THROTTLED = {"quotaExceeded", "rateLimitExceeded", "userRateLimitExceeded"}
"""Reasons of a 403 that pass by themselves."""

_NO_BUCKET = "bucket does not exist"


async def gcs_filesystem(options: Mapping[str, Any]) -> Any:
    """A gcsfs filesystem for the running event loop, with settings that fit a store.

    It is `gcsfs.core.GCSFileSystem`. What gcsfs exports by that name is a subclass that asks
    for the bucket's type, over gRPC, before it does anything.

    Args:
        options: Arguments of `gcsfs.core.GCSFileSystem`.

    Raises:
        InvalidArgument: The options make no sense.
        StoreAccessDenied: There are no credentials, or they cannot be read.
        StoreUnavailable: They could not be checked.
    """
    gcsfs: Any = importlib.import_module("gcsfs.core")
    google: Any = importlib.import_module("google.auth.exceptions")
    requests: Any = importlib.import_module("requests")
    _check_options(gcsfs.GCSFileSystem, options)

    def make(arguments: Mapping[str, Any]) -> Any:
        return gcsfs.GCSFileSystem(
            **arguments, asynchronous=True, use_listings_cache=False, skip_instance_cache=True
        )

    try:
        anonymous = make({**options, "token": "anon"})
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"storage options for gcsfs: {error}") from error
    if options.get("token") == "anon":
        return anonymous
    try:
        # Looking for credentials asks other machines, and waits for them.
        filesystem: Any = await asyncio.to_thread(make, options)
    except (google.TransportError, requests.RequestException) as error:
        raise StoreUnavailable(
            f"the credentials for gs:// could not be checked: {error}"
        ) from error
    except (google.GoogleAuthError, OSError, TypeError, ValueError, KeyError) as error:
        raise StoreAccessDenied(
            f"the credentials for gs:// are of no use: {type(error).__name__}: {error}; "
            f"{_CREDENTIALS}"
        ) from error
    if filesystem.credentials.credentials is None and not _is_emulated(options):
        raise StoreAccessDenied(
            f"there are no credentials for gs://: {_CREDENTIALS} (token='anon' for a public bucket)"
        )
    return filesystem


def _check_options(filesystem: Any, options: Mapping[str, Any]) -> None:
    # gcsfs takes any name, and says nothing.
    known = set(inspect.signature(filesystem.__init__).parameters) - {"self", "kwargs"}
    for name in options:
        if name in _OURS:
            raise InvalidArgument(f"storage option {name!r} is set by taquba: leave it out")
        if name not in known:
            raise InvalidArgument(f"storage option {name!r} is none of gcsfs")
    token: Any = options.get("token")
    # gcsfs would send it to Google, taking it for an access token.
    is_path = isinstance(token, str) and ("/" in token or token.endswith(".json"))
    if is_path and not os.path.exists(token):
        raise InvalidArgument(f"storage option token: there is no file {token!r}")


def _is_emulated(options: Mapping[str, Any]) -> bool:
    return bool(options.get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST"))


class GcsDriver:
    """The requests of Google's JSON API, sent with the session and the credentials of gcsfs.

    gcsfs's own calls repeat requests on their own, keep the status of an answer to
    themselves, and cut a body at the boundary that all its uploads have in common.
    """

    def __init__(self, filesystem: Any, bucket: str) -> None:
        self._fs = filesystem
        self._bucket = bucket
        self._objects = f"storage/v1/b/{quote(bucket, safe='')}/o"
        self._timeout = aiohttp.ClientTimeout(
            total=filesystem.requests_timeout,
            sock_connect=_CONNECT_TIMEOUT,
            sock_read=_READ_TIMEOUT,
        )
        self._session: Any = None
        self._connecting = asyncio.Lock()
        self._closed = False

    @property
    def url(self) -> str:
        """The bucket, for messages."""
        return f"gs://{self._bucket}"

    async def get(self, name: str) -> bytes:
        """The whole object."""
        return (await self._download(name))[1]

    async def get_range(self, name: str, start: int, end: int) -> bytes:
        """Bytes ``[start, end)``."""
        try:
            status, data = await self._download(name, {"Range": f"bytes={start}-{end - 1}"})
        except _Refused as refused:
            if refused.status == 416:  # the object ends before `start`
                return b""
            raise
        return data if status == 206 else data[start:end]

    async def write(self, name: str, data: bytes, *, exclusive: bool) -> None:
        """Store the object in one request."""
        mark = _boundary(data)
        head = (
            f"--{mark}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n"
            f"{json.dumps({'name': name})}"
            f"\r\n--{mark}\r\nContent-Type: application/octet-stream\r\n\r\n"
        )
        condition = {"ifGenerationMatch": "0"} if exclusive else {}
        answer = await self._call_json(
            "POST",
            f"upload/{self._objects}",
            {"uploadType": "multipart", "fields": "size", **condition},
            headers={"Content-Type": f'multipart/related; boundary="{mark}"'},
            body=Body(head.encode(), data, f"\r\n--{mark}--".encode()),
        )
        if answer.get("size") != str(len(data)):
            raise _Nonsense(f"{len(data)} bytes were sent, and {answer.get('size')} stored")

    async def delete(self, names: list[str]) -> None:
        """Delete the objects, some at once: batches exist on Google's own host only."""
        await for_each(list(dict.fromkeys(names)), self._delete, at_once=_DELETES_AT_ONCE)

    async def _delete(self, name: str) -> None:
        try:
            await self._call("DELETE", f"{self._objects}/{quote(name, safe='')}")
        except _Refused as refused:
            if refused.status != 404 or _NO_BUCKET in refused.message:
                raise

    async def list(self, prefix: str, start_after: str) -> AsyncIterator[tuple[str, int]]:
        """Names and sizes, page by page."""
        where = {
            "prefix": prefix,
            "maxResults": str(_LIST_PAGE),
            "fields": "items(name,size),nextPageToken",
        }
        if start_after:
            where["startOffset"] = start_after
        while True:
            page = await self._call_json("GET", self._objects, where)
            for entry in page.get("items") or ():
                if entry["name"] != start_after:  # with which startOffset begins
                    yield entry["name"], int(entry["size"])
            token = page.get("nextPageToken")
            if not token:
                return
            where["pageToken"] = token

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        async with self._connecting:
            session, self._session = self._session, None
            if session is not None:
                await session.close()

    async def _download(
        self, name: str, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        path = f"download/{self._objects}/{quote(name, safe='')}"
        return await self._call("GET", path, {"alt": "media"}, headers=headers)

    async def _call_json(self, method: str, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        _, data = await self._call(method, path, *args, **kwargs)
        try:
            answer: Any = json.loads(data)
            if isinstance(answer, dict):
                return answer  # pyright: ignore[reportUnknownVariableType]
        except ValueError:
            pass
        raise _Nonsense(f"the answer is no JSON object: {data[:60]!r}")

    async def _call(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
    ) -> tuple[int, bytes]:
        """Status and body of the answer to one request, if it is a success."""
        if self._session is None or self._is_refresh_due():
            await self._prepare()
        session: Any = self._session
        async with session.request(
            method,
            f"{self._fs._location}/{path}",
            params=self._fs._get_params(parameters or {}),
            headers=self._fs._get_headers(headers),
            data=body,
            timeout=self._timeout,
        ) as answer:
            data: bytes = await answer.read()
            if answer.status >= 300:
                raise _Refused(answer.status, data)
            return answer.status, data

    def _is_refresh_due(self) -> bool:
        owner = self._fs.credentials
        if owner.credentials is None:
            return False
        # Versions differ in how long before its end they renew a token.
        is_valid = getattr(owner, "_credentials_valid", None)
        return not (owner.credentials.valid if is_valid is None else is_valid(_refresh_buffer()))

    async def _prepare(self) -> None:
        async with self._connecting:
            if self._closed:  # gcsfs would open another session, which nobody closes
                raise RuntimeError("closed")
            if self._session is None:
                try:
                    self._session = await self._fs._set_session()
                except (TypeError, ValueError) as error:
                    raise InvalidArgument(f"storage options for gcsfs: {error}") from error
            if self._is_refresh_due():
                # gcsfs would do it in the event loop, and stop everything meanwhile.
                await asyncio.to_thread(self._fs.credentials.maybe_refresh)

    def classify(self, error: Exception, operation: str) -> tuple[type[StoreError], str] | None:
        """What an error of the service, aiohttp, gcsfs or google-auth means."""
        if isinstance(error, _Refused):
            kind_of_answer = error.kind(operation)
            return kind_of_answer, f"{error}{_hint(error, kind_of_answer)}"
        if isinstance(error, _Nonsense):
            return StoreUnavailable, str(error)
        kind = _kind_without_answer(error)
        if kind is None:
            return None
        hint = f"; {_CREDENTIALS}" if kind is StoreAccessDenied else ""
        return kind, f"{type(error).__name__}: {error}{hint}"


class _Refused(Exception):
    """The answer to a request is no success."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.reason = ""
        text = body.decode("utf-8", "replace")
        self.message = text[:200].strip()  # downloads are refused in plain text
        try:
            error: Any = json.loads(text)["error"]
            self.message = str(error["message"])
            self.reason = str(error["errors"][0]["reason"])
        except (ValueError, TypeError, KeyError, IndexError):
            pass
        what = ", ".join(filter(None, [f"HTTP {status}", self.reason]))
        super().__init__(f"{self.message} ({what})".lstrip())

    def kind(self, operation: str) -> type[StoreError]:
        if self.status == 404 and _NO_BUCKET in self.message:
            return BucketNotFound
        if self.status == 403 and self.reason in _THROTTLED:
            return StoreUnavailable
        return kind_of_status(self.status, operation)


class _Nonsense(Exception):
    """A success that cannot be one."""


def _boundary(data: bytes) -> str:
    """A line to put around the data that is not in it.

    Whoever chooses the data must not be able to choose one that holds it; and nobody can
    choose data that holds its own digest.
    """
    mark = "==taquba=="
    return mark if mark.encode() not in data else f"=={hashlib.sha256(data).hexdigest()}=="


def _refresh_buffer() -> float:
    module: Any = importlib.import_module("gcsfs.credentials")
    return float(getattr(module, "LOCAL_REFRESH_BUFFER", 300))


def _hint(refused: _Refused, kind: type[StoreError]) -> str:
    if kind is BucketNotFound:
        return "; create the bucket first"
    if refused.status == 401:
        return f"; {_CREDENTIALS}"
    if kind is StoreAccessDenied:
        return "; the credentials need the role Storage Object User on the bucket"
    if refused.status == 400 and "requester pays" in refused.message:
        return "; give the storage option requester_pays"
    return ""


def _kind_without_answer(error: Exception) -> type[StoreError] | None:
    """What it means that no answer came at all."""
    if is_untrusted_certificate(error):
        return StoreError
    google: Any = importlib.import_module("google.auth.exceptions")
    requests: Any = importlib.import_module("requests")
    gcsfs: Any = importlib.import_module("gcsfs.retry")
    # From Google's token service, or the machine's metadata service. In the whole chain, since
    # gcsfs makes a plain 401 of everything, and google-auth a RefreshError.
    chain = tuple(causes(error))
    if any(
        isinstance(cause, google.TransportError) or getattr(cause, "retryable", False)
        for cause in chain
    ):
        return StoreUnavailable
    # The last one is younger than the oldest gcsfs that works.
    hopeless: Any = getattr(gcsfs, "NonRetryableError", gcsfs.HttpError)
    refused = (google.GoogleAuthError, gcsfs.HttpError, hopeless)
    if any(isinstance(cause, refused) for cause in chain):
        return StoreAccessDenied
    passing = (
        aiohttp.ClientError,
        requests.RequestException,
        OSError,  # TimeoutError and ConnectionError among them
    )
    return StoreUnavailable if isinstance(error, passing) else None
