"""Azure Blob Storage, through adlfs."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import re
import weakref
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import aiohttp
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    DecodeError,
    HttpResponseError,
    IncompleteReadError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.core.pipeline.policies import ContentDecodePolicy
from azure.core.pipeline.transport import AioHttpTransport

from taquba.errors import (
    InvalidArgument,
    StoreAccessDenied,
    StoreError,
    StoreUnavailable,
)
from taquba.objectstore._azure_codes import AZURE_CREDENTIALS, AZURE_KINDS, azure_hint
from taquba.objectstore._bucket import kind_of_status
from taquba.objectstore._http import Body, for_each, is_untrusted_certificate

__all__ = ["AzureDriver", "azure_filesystem"]

_LIST_PAGE = 1000
"""A fifth of what the service gives: to read a page stops everything else meanwhile."""

_DELETES_AT_ONCE = 16
_LARGE = 1024 * 1024
_ONE_REQUEST = 4 * 1024**3
"""A body up to this size goes, and comes, in one request."""

_CONNECT_TIMEOUT = 10.0
_READ_TIMEOUT = 60.0

_OURS = ("asynchronous", "loop", "skip_instance_cache", "use_listings_cache")

_CREDENTIAL_OPTIONS = re.compile(
    r"exclude_\w+|authority|process_timeout|\w+_(client|tenant)_id|shared_cache_username"
)
"""What adlfs passes on to `azure.identity.DefaultAzureCredential`."""


def azure_filesystem(options: Mapping[str, Any]) -> Any:
    """An adlfs filesystem for the running event loop, with settings that fit a store.

    Args:
        options: Arguments of `adlfs.AzureBlobFileSystem`.

    Raises:
        InvalidArgument: The options make no sense.
        StoreAccessDenied: No account is named.
    """
    adlfs: Any = importlib.import_module("adlfs")
    parameters = inspect.signature(adlfs.AzureBlobFileSystem.__init__).parameters
    known = set(parameters) - {"self", "kwargs"}
    for name in options:
        if name in _OURS:
            raise InvalidArgument(f"storage option {name!r} is set by taquba: leave it out")
        if name not in known and _CREDENTIAL_OPTIONS.fullmatch(name) is None:
            raise InvalidArgument(f"storage option {name!r} is none of adlfs")
    arguments = dict(options)
    if "AZURE_STORAGE_ANON" not in os.environ:
        arguments.setdefault("anon", False)  # older versions look for no credentials by default
    try:
        filesystem: Any = adlfs.AzureBlobFileSystem(
            **arguments,
            asynchronous=True,
            loop=asyncio.get_running_loop(),  # or it would start a thread with another one
            use_listings_cache=False,
            skip_instance_cache=True,
        )
    except (TypeError, ValueError, KeyError) as error:
        if "Must provide either" in str(error):
            raise StoreAccessDenied(
                f"no account is named for az://: {AZURE_CREDENTIALS}"
            ) from error
        raise InvalidArgument(f"storage options for adlfs: {error}") from error
    _detach_finalizers(filesystem)
    named, found = options.get("account_name"), filesystem.service_client.account_name
    if named and found and named != found:  # a connection string goes before everything else
        raise InvalidArgument(
            f"the connection string is of account {found!r}, but the account named is {named!r}"
        )
    return filesystem


class AzureDriver:
    """The requests of Azure Blob Storage, by Microsoft's client with the settings of adlfs.

    adlfs's own client repeats a request after fifteen seconds, and its calls look paths up.
    """

    def __init__(self, filesystem: Any, container: str) -> None:
        self._fs = filesystem
        self._name = container
        _detach_finalizers(filesystem)
        self._service: Any = None
        self._container: Any = None
        self._closed = False

    @property
    def url(self) -> str:
        """The container, for messages."""
        return f"az://{self._name}"

    async def get(self, name: str) -> bytes:
        """The whole object."""
        return await self._download(name)

    async def get_range(self, name: str, start: int, end: int) -> bytes:
        """Bytes ``[start, end)``."""
        try:
            return await self._download(name, offset=start, length=end - start)
        except HttpResponseError as error:
            if error.status_code == 416:  # the object ends before `start`
                return b""
            raise

    async def write(self, name: str, data: bytes, *, exclusive: bool) -> None:
        """Store the object in one request."""
        with _sensible_answers():
            await self._client().upload_blob(name, data, overwrite=not exclusive)

    async def delete(self, names: list[str]) -> None:
        """Delete the objects, some at once: not every service takes batches."""
        await for_each(list(dict.fromkeys(names)), self._delete, at_once=_DELETES_AT_ONCE)

    async def _delete(self, name: str) -> None:
        try:
            await self._client().delete_blob(name)
        except ResourceNotFoundError as error:
            if _code(error) != "BlobNotFound":
                raise

    async def list(self, prefix: str, start_after: str) -> AsyncIterator[tuple[str, int]]:
        """Names and sizes, page by page.

        Always from the first name with the prefix. There is a parameter for where to start, but
        it is described in two ways (a full path, a path relative to the prefix), and emulators
        ignore it: to skip a name that should have been listed would be worse than to list some
        that were not asked for.
        """
        answers: list[Any] = []
        # Names only, and the sizes taken from the answer: a model of each object with all of
        # its properties takes the client a third of a millisecond.
        pages = self._client().list_blob_names(
            name_starts_with=prefix,
            results_per_page=_LIST_PAGE,
            include=["metadata"],
            raw_response_hook=answers.append,
        )
        walking = pages.by_page()
        while True:
            with _sensible_answers():
                try:
                    await anext(walking)
                except StopAsyncIteration:
                    return
                page = _blobs(answers.pop())
            for name, size in page:
                if name > start_after:
                    yield name, size

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        service, self._service, self._container = self._service, None, None
        if service is not None:
            await service.close()
        await self._fs.service_client.close()
        if self._fs.sync_credential is not None:  # adlfs made them both
            self._fs.sync_credential.close()
            await self._fs.credential.close()

    async def _download(self, name: str, **where: int) -> bytes:
        client = self._client()
        with _sensible_answers():
            data: bytes = await (await client.download_blob(name, **where)).readall()
        return data

    def _client(self) -> Any:
        if self._closed:
            raise RuntimeError("closed")
        if self._container is None:
            self._service = _service(self._fs)
            self._container = self._service.get_container_client(self._name)
        return self._container

    def classify(self, error: Exception, operation: str) -> tuple[type[StoreError], str] | None:
        """What an error of Microsoft's client or aiohttp means."""
        if isinstance(error, _Nonsense):
            return StoreUnavailable, str(error)
        if isinstance(error, HttpResponseError) and error.status_code is not None:
            status, code = error.status_code, _code(error)
            kind = AZURE_KINDS.get(code) or kind_of_status(status, operation)
            if status < 300:  # a success that cannot be one
                kind = StoreUnavailable
            words = f"{_first_line(error)} (HTTP {status}, {code})"
            return kind, f"{words}{azure_hint(kind, code)}"
        kind_without = _kind_without_answer(error)
        if kind_without is None:
            return None
        hint = f"; {AZURE_CREDENTIALS}" if kind_without is StoreAccessDenied else ""
        return kind_without, f"{type(error).__name__}: {_first_line(error)}{hint}"


class _Nonsense(Exception):
    """An answer that is none of the service."""


@contextmanager
def _sensible_answers() -> Generator[None]:
    """Microsoft's client stumbles over answers that are none of the service."""
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        raise _Nonsense(f"the answer makes no sense: {error}") from error


class _Transport(AioHttpTransport):  # type: ignore[misc]
    """Microsoft's way to aiohttp, for large bodies without a warning."""

    def _get_request_data(self, request: Any) -> Any:
        inherited: Any = super()
        data: Any = inherited._get_request_data(request)
        if isinstance(data, bytes) and len(data) > _LARGE:
            return Body(data)
        return data


def _service(filesystem: Any) -> Any:
    """A client as the filesystem has one, but without repetitions, and with one request each."""
    blob: Any = importlib.import_module("azure.storage.blob.aio")
    given: dict[str, Any] = filesystem._timeout_kwargs
    settings: dict[str, Any] = {
        "retry_total": 0,  # RetryingStore repeats, with a clock that a test can move
        "max_single_put_size": _ONE_REQUEST,
        "max_single_get_size": _ONE_REQUEST,
        "transport": _Transport(
            connection_timeout=given.get("connection_timeout", _CONNECT_TIMEOUT),
            read_timeout=given.get("read_timeout", _READ_TIMEOUT),
        ),
    }
    if filesystem.connection_string is not None:
        return blob.BlobServiceClient.from_connection_string(
            filesystem.connection_string, **settings
        )
    credential = filesystem.credential or filesystem.account_key
    url = filesystem.account_url
    if credential is None and filesystem.sas_token is not None:
        url += f"?{filesystem.sas_token.lstrip('?')}"
    return blob.BlobServiceClient(
        url, credential, _location_mode=filesystem.location_mode, **settings
    )


def _detach_finalizers(filesystem: Any) -> None:
    """Take back what adlfs has planned for the end of the process.

    It would close its client then, in a loop that is gone by then, and fail. Until then, it
    would keep the filesystem, and the credentials in it, in memory.
    """
    registry: Any = getattr(weakref.finalize, "_registry", {})
    for finalizer, info in list(registry.items()):
        if info.weakref() is filesystem:
            finalizer.detach()


def _blobs(answer: Any) -> list[tuple[str, int]]:
    """Names and sizes on a page of a listing."""
    page = answer.context[ContentDecodePolicy.CONTEXT_NAME]
    if page.tag != "EnumerationResults":
        raise ValueError(f"<{page.tag}> is no listing")
    return [
        (blob.findtext("Name"), int(blob.findtext("Properties/Content-Length")))
        for blob in page.iter("Blob")
        # These stand for folders, in an account with a hierarchical namespace.
        if blob.findtext("Metadata/hdi_isfolder", "").lower() != "true"
    ]


def _code(error: HttpResponseError) -> str:
    code: Any = getattr(error, "error_code", None)
    if code is None:
        response: Any = error.response
        code = response.headers.get("x-ms-error-code", "") if response is not None else ""
    return str(getattr(code, "value", code))


def _first_line(error: Exception) -> str:
    # The others hold the whole answer, with the request that it was.
    return str(error).partition("\n")[0]


def _kind_without_answer(error: Exception) -> type[StoreError] | None:
    """What it means that no answer came at all."""
    if is_untrusted_certificate(error):
        return StoreError
    if isinstance(error, ClientAuthenticationError):  # before any request was made
        return StoreAccessDenied
    passing = (
        ServiceRequestError,
        ServiceResponseError,
        IncompleteReadError,
        DecodeError,
        HttpResponseError,  # without a status: the download broke off, again and again
        aiohttp.ClientError,
        OSError,  # TimeoutError and ConnectionError among them
    )
    if isinstance(error, passing):
        return StoreUnavailable
    return StoreError if isinstance(error, AzureError) else None
