"""S3 and Azure through obstore, a client in Rust that needs less of the processor."""

from __future__ import annotations

import importlib
import re
from collections.abc import AsyncIterator, Mapping
from types import NoneType
from typing import Any

from taquba.errors import (
    BucketNotFound,
    InvalidArgument,
    MissingDependency,
    ObjectExists,
    ObjectNotFound,
    StoreAccessDenied,
    StoreError,
    StoreUnavailable,
)
from taquba.objectstore._azure_codes import AZURE_CREDENTIALS, AZURE_KINDS, azure_hint
from taquba.objectstore._bucket import BucketStore, kind_of_status, split_path
from taquba.objectstore._s3 import CREDENTIALS_HINT, hint_of_answer, kind_of_code

__all__ = ["ObstoreDriver", "ObstoreStore", "obstore_store"]

_DELETE_BATCH = 1000
_AZURE_DELETE_BATCH = 256
_LIST_PAGE = 1000

_TIMEOUTS: dict[str, Any] = {
    "connect_timeout": "5 seconds",
    # The losers of a race wait long on some servers, and 64 MiB take their time.
    "read_timeout": "60 seconds",
    "timeout": "600 seconds",
}

_OURS = ("bucket", "container_name", "prefix", "retry_config", "config")

_S3FS_NAMES = {
    "anon": "skip_signature",
    "endpoint_url": "endpoint",
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
}
"""What s3fs calls it, and what obstore does: so that changing the driver changes nothing else."""

_CONNECTION_STRING = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "blobendpoint": "endpoint",
    "sharedaccesssignature": "sas_token",
}

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
_DELETE_FAILED = re.compile(r"request failed for key (?s:.*)\(code: (\w{1,100})\)")
_PAST_THE_END = re.compile(r"Wanted range starting at \d+, but object was only \d+ bytes long")
_SECRET = re.compile(r"\b(sig|X-Amz-Signature)=[^&\s]+")
_ASKS_FOR_CREDENTIALS = re.compile(
    r"Error performing \w+ \S*"
    r"(/latest/api/token|/meta-data/iam/|//169\.254\.|/metadata/identity/|/oauth2/)"
)
"""A request to the machine's metadata service, which is asked when nothing else is configured."""
_LONGEST = 500


class ObstoreStore(BucketStore):
    """A store on a bucket, reached through obstore."""


def obstore_store(scheme: str, path: str, options: Mapping[str, Any]) -> ObstoreStore:
    """A store on a bucket of S3 or a container of Azure.

    Args:
        scheme: ``"s3"`` or ``"az"``.
        path: The bucket, and optionally a prefix of all keys: ``"bucket/app"``.
        options: Arguments of `obstore.store.S3Store` or `obstore.store.AzureStore`; the most
            common names that s3fs and adlfs have for them work too.

    Raises:
        MissingDependency: obstore is not installed.
        InvalidArgument: The options make no sense, or not a bucket and prefix.
        StoreAccessDenied: No account of Azure is named.
    """
    bucket, prefix = split_path(path)
    try:
        module: Any = importlib.import_module("obstore.store")
        exceptions: Any = importlib.import_module("obstore.exceptions")
    except ImportError as error:
        raise MissingDependency(
            "driver='obstore' needs obstore, which is not installed: pip install 'taquba[obstore]'"
        ) from error
    make = module.S3Store if scheme == "s3" else module.AzureStore
    arguments = _arguments(scheme, options)
    try:
        # RetryingStore repeats, with a clock that a test can move; layers of repetition multiply.
        store = make(bucket, retry_config={"max_retries": 0}, **arguments)
    except (TypeError, ValueError, exceptions.BaseError) as error:
        if "Account must be specified" in str(error):
            raise StoreAccessDenied(
                f"no account is named for az://: {AZURE_CREDENTIALS}"
            ) from error
        raise InvalidArgument(f"storage options for obstore: {_words(error)}") from error
    return ObstoreStore(ObstoreDriver(store, f"{scheme}://{bucket}"), prefix)


def _arguments(scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    arguments = dict(options)
    for name in _OURS:
        if name in arguments:
            raise InvalidArgument(f"storage option {name!r} is set by taquba: leave it out")
    arguments = _from_s3fs(arguments) if scheme == "s3" else _from_adlfs(arguments)
    client = _TIMEOUTS | _mapping(arguments, "client_options")
    endpoint = arguments.get("endpoint")
    if endpoint is not None:
        if not re.match(r"https?://[^/]", str(endpoint)):
            raise InvalidArgument(f"endpoint is {endpoint!r}: write http://… or https://…")
        # Whoever writes it means it.
        client.setdefault("allow_http", str(endpoint).startswith("http://"))
    return {**arguments, "client_options": client}


def _from_s3fs(arguments: dict[str, Any]) -> dict[str, Any]:
    named = {_S3FS_NAMES.get(name, name): value for name, value in arguments.items()}
    if len(named) < len(arguments):
        raise InvalidArgument("a storage option is given twice, under two names")
    for name, value in _mapping(named, "client_kwargs").items():
        if name not in ("region_name", "endpoint_url"):
            raise InvalidArgument(
                f"client_kwargs has {name!r}, which only s3fs knows: leave it out, or do not "
                "use driver='obstore'"
            )
        named.setdefault("region" if name == "region_name" else "endpoint", value)
    return {name: value for name, value in named.items() if value is not None}


def _from_adlfs(arguments: dict[str, Any]) -> dict[str, Any]:
    named = {name: value for name, value in arguments.items() if value is not None}
    if "account_host" in named:
        named.setdefault("endpoint", f"https://{named.pop('account_host')}")
    text = named.pop("connection_string", None)
    if text is None:
        return named
    if not isinstance(text, str):
        raise InvalidArgument("connection_string must be a str")
    pairs = [part.partition("=") for part in text.split(";")]
    parts = {name.strip().lower(): value for name, _, value in pairs}
    suffix = parts.get("endpointsuffix")
    if suffix and "accountname" in parts:
        scheme = parts.get("defaultendpointsprotocol", "https")
        parts.setdefault("blobendpoint", f"{scheme}://{parts['accountname']}.blob.{suffix}")
    meant = {_CONNECTION_STRING[name]: parts[name] for name in parts.keys() & _CONNECTION_STRING}
    if meant.get("account_name", "") != named.get("account_name", meant.get("account_name", "")):
        raise InvalidArgument("the connection string is of another account than account_name")
    return named | meant


def _mapping(arguments: dict[str, Any], name: str) -> dict[str, Any]:
    """Take the option with this name out."""
    value: Mapping[str, Any] | None = arguments.pop(name, None)
    if not isinstance(value, (Mapping, NoneType)):
        raise InvalidArgument(f"storage option {name} is {value!r}: give a mapping")
    return dict(value or {})


class ObstoreDriver:
    """The requests of S3 and Azure, by the functions of obstore.

    Its errors say little by their types (a 409, which on S3 means 'try again', is an
    `AlreadyExistsError`; throttling, an absent bucket and a lost connection are all
    `GenericError`), but hold the status and the body of the answer in their texts.
    """

    def __init__(self, store: Any, url: str) -> None:
        self._store = store
        self._url = url
        self._azure = url.startswith("az:")
        self._closed = False

    @property
    def url(self) -> str:
        """The bucket, for messages."""
        return self._url

    async def get(self, name: str) -> bytes:
        """The whole object."""
        answer = await self._open.get_async(name)
        data: bytes = (await answer.bytes_async()).to_bytes()
        return data

    async def get_range(self, name: str, start: int, end: int) -> bytes:
        """Bytes ``[start, end)``."""
        try:
            found = await self._open.get_range_async(name, start=start, end=end)
        except Exception as error:
            if _status_and_code(error)[0] == 416:  # the object ends before `start`
                return b""
            raise
        data: bytes = found.to_bytes()
        return data

    async def write(self, name: str, data: bytes, *, exclusive: bool) -> None:
        """Store the object in one request."""
        # Without use_multipart=False, 5 MiB and more would go in parts, without the condition.
        mode = "create" if exclusive else "overwrite"
        await self._open.put_async(name, data, mode=mode, use_multipart=False)

    async def delete(self, names: list[str]) -> None:
        """Delete the objects, in batches."""
        size = _AZURE_DELETE_BATCH if self._azure else _DELETE_BATCH
        for first in range(0, len(names), size):
            batch = names[first : first + size]
            try:
                await self._open.delete_async(batch)
            except FileNotFoundError:
                if not self._azure:
                    raise
                # One was absent, which is fine; what became of the others is not told.
                for name in batch:
                    await self._delete_one(name)

    async def _delete_one(self, name: str) -> None:
        try:
            await self._open.delete_async(name)
        except FileNotFoundError as error:
            if "container" in _text(error):
                raise

    async def list(self, prefix: str, start_after: str) -> AsyncIterator[tuple[str, int]]:
        """Names and sizes, page by page.

        obstore lists folders, so names that do not begin like the last segment of `prefix`
        are left out here.
        """
        folder, slash, begin = prefix.rpartition("/")
        offset = max(start_after, f"{folder}{slash}{begin[:-1]}" if len(begin) > 1 else "")
        pages = self._open.list(folder or None, offset=offset or None, chunk_size=_LIST_PAGE)
        async for page in pages:
            for entry in page:
                name: str = entry["path"]
                if name.startswith(prefix):
                    yield name, entry["size"]
                elif name > prefix and "/" not in name[len(folder) + len(slash) :]:
                    return  # at this level, all that follows sorts after the prefix

    async def close(self) -> None:
        """Send no more requests; obstore drops its connections by itself."""
        self._closed = True

    @property
    def _open(self) -> Any:
        if self._closed:
            raise RuntimeError("closed")
        return self._store

    def classify(self, error: Exception, operation: str) -> tuple[type[StoreError], str] | None:
        """What an error of obstore means."""
        status, code = _status_and_code(error)
        if _ASKS_FOR_CREDENTIALS.search(_text(error)) and (status is None or status < 500):
            words = f"no credentials were found: {_words(error)}"
            hint = f"; {AZURE_CREDENTIALS}" if self._azure else CREDENTIALS_HINT
            return StoreAccessDenied, f"{words}{hint}"
        if status is not None:
            kind = self._kind_of_answer(status, code, operation)
            hint = self._hint(status, code, operation)
            return kind, f"{_words(error)} (HTTP {status}, {code}){hint}"
        return _without_status(error, operation)

    def _hint(self, status: int, code: str, operation: str) -> str:
        if not self._azure:
            return hint_of_answer(status, code, operation)
        return azure_hint(self._kind_of_answer(status, code, operation), code)

    def _kind_of_answer(self, status: int, code: str, operation: str) -> type[StoreError]:
        if not self._azure:
            return kind_of_code(status, code, operation)
        return AZURE_KINDS.get(code) or kind_of_status(status, operation)


def _text(error: Exception) -> str:
    """What happened, without the structures of Rust behind it, and without secrets."""
    text = str(error).partition("\n\nDebug source:")[0]
    return _SECRET.sub(r"\1=…", text)


def _words(error: Exception) -> str:
    text = " ".join(_text(error).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _status_and_code(error: Exception) -> tuple[int | None, str]:
    """HTTP status and error code of an answer."""
    text = _text(error)
    if _PAST_THE_END.search(text):
        return 416, ""  # Azurite answers as if there were something
    deleting = _DELETE_FAILED.search(text)
    if deleting is not None:  # of one object, in a batch that was a success as a whole
        code = deleting[1]
        return (int(code), "") if code.isdigit() else (200, code)
    status = _STATUS.search(text)
    if status is None:
        return None, ""
    found = _CODE.search(text)
    return int(status[1]), "" if found is None else found[1]


def _without_status(error: Exception, operation: str) -> tuple[type[StoreError], str] | None:
    exceptions: Any = importlib.import_module("obstore.exceptions")
    words = _words(error)
    if isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)):
        return StoreAccessDenied, words
    if isinstance(error, (exceptions.NotFoundError, FileNotFoundError)):
        reading = operation in ("get", "get_range")
        return (ObjectNotFound if reading else BucketNotFound), words
    if isinstance(error, exceptions.AlreadyExistsError) and operation == "create":
        return ObjectExists, words
    if isinstance(error, exceptions.GenericError):
        if "certificate" in str(error) or "incorrectly configured region" in words:
            return StoreError, words
        return StoreUnavailable, words
    if isinstance(error, exceptions.BaseError):
        return StoreError, words
    if isinstance(error, OSError):  # TimeoutError and ConnectionError among them
        return StoreUnavailable, f"{type(error).__name__}: {words}"
    if type(error).__name__ == "RustPanic":
        return StoreError, f"obstore failed: {words}"
    return None
