"""What an object store is, and which keys it takes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from taquba.errors import InvalidArgument, InvalidType, ValueTooLarge

__all__ = [
    "MAX_KEY_LENGTH",
    "MAX_SEGMENT_LENGTH",
    "ObjectInfo",
    "ObjectStore",
    "check_data",
    "check_key",
    "check_keys",
    "check_prefix",
    "check_range",
    "is_key",
]

MAX_KEY_LENGTH = 512
"""Characters in a key. S3, GCS and Azure take 1,024, of which the URL's prefix needs some."""

MAX_SEGMENT_LENGTH = 255
"""Characters between two slashes of a key: the longest file name on common file systems."""

_SEGMENT = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._\-=]+"
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_PREFIX = re.compile(rf"(?:{_SEGMENT}/)*[A-Za-z0-9._\-=]*")
_RULE = "use A-Z a-z 0-9 . _ - = in segments joined by single slashes, none of them '.' or '..'"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object of a listing.

    Attributes:
        key: Its key.
        size: Its length in bytes.
    """

    key: str
    size: int


@runtime_checkable
class ObjectStore(Protocol):
    """Bytes under keys, with one conditional write: `create`.

    Keys are segments of ``A-Z a-z 0-9 . _ - =`` joined by single slashes, at most
    `MAX_KEY_LENGTH` characters, no segment longer than `MAX_SEGMENT_LENGTH` or equal to
    ``.`` or ``..``. **No key may be a folder of another** (``a`` and ``a/b``): file systems,
    and some object stores, cannot hold both. Other keys raise `InvalidArgument`.

    Every method may raise `StoreUnavailable` (trying again may help; a write may have
    happened), `StoreAccessDenied` and `BucketNotFound`. A cancelled write may have happened.
    Reading your own completed writes, and listing them, works at once.

    Run `taquba.testing.ObjectStoreConformance` over a store of your own.
    """

    async def get(self, key: str) -> bytes:
        """The whole object.

        Raises:
            ObjectNotFound: Nothing is stored under the key.
        """
        ...

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes ``[start, end)`` of the object, cut short where the object ends.

        An empty range is answered with ``b""`` without asking the store.

        Raises:
            ObjectNotFound: Nothing is stored under the key.
            InvalidArgument: Not ``0 <= start <= end``.
        """
        ...

    async def create(self, key: str, data: bytes) -> None:
        """Store the object if the key is free: atomically, whole, durable on return.

        Of any number of concurrent creators exactly one wins, and its bytes stay.

        Raises:
            ObjectExists: The key is taken. Clients resend a request whose answer was lost, so
                this does **not** prove that somebody else took it: see `RetryingStore.create`.
        """
        ...

    async def put(self, key: str, data: bytes) -> None:
        """Store the object, replacing one that is there. Readers see the old or the new bytes."""
        ...

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects; keys that hold nothing are fine.

        When this raises, some of the objects may be gone.
        """
        ...

    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """The objects whose keys start with `prefix`, ascending by key.

        Objects that are stored or deleted while the listing runs may or may not appear.
        Keep listed prefixes flat (no ``/`` after the prefix): only then does every store
        keep the order and honour `start_after`.

        Args:
            prefix: Start of the keys, for example ``"journal/"``; ``""`` lists everything.
            start_after: Only keys that sort after this one (exclusive).
        """
        ...

    async def close(self) -> None:
        """Release connections and threads. Calling it again does nothing."""
        ...


def check_key(key: object) -> None:
    """Raise unless `key` is one that every store can hold.

    Raises:
        InvalidType: It is no string.
        InvalidArgument: It breaks the rules at `ObjectStore`.
        ValueTooLarge: It is too long.
    """
    if not isinstance(key, str):
        raise InvalidType(f"object key is {key!r}: give a str")
    _check_length(key)
    if _KEY.fullmatch(key) is None:
        raise InvalidArgument(f"object key {key!r} is not allowed: {_RULE}")


def check_prefix(prefix: object, *, name: str = "prefix") -> None:
    """Raise unless `prefix` can be the start of a key; ``""`` is fine.

    Raises:
        InvalidType: It is no string.
        InvalidArgument: No key starts like this.
        ValueTooLarge: It is too long.
    """
    if not isinstance(prefix, str):
        raise InvalidType(f"{name} is {prefix!r}: give a str")
    _check_length(prefix)
    if _PREFIX.fullmatch(prefix) is None:
        raise InvalidArgument(f"{name} {prefix!r} cannot be the start of a key: {_RULE}")


def _check_length(key: str) -> None:
    if len(key) > MAX_KEY_LENGTH:
        raise ValueTooLarge(
            f"object key {key[:40]!r}… has {len(key)} characters: at most {MAX_KEY_LENGTH}"
        )
    if len(key) > MAX_SEGMENT_LENGTH:
        longest = max(map(len, key.split("/")))
        if longest > MAX_SEGMENT_LENGTH:
            raise ValueTooLarge(
                f"a segment of object key {key[:40]!r}… has {longest} characters: "
                f"at most {MAX_SEGMENT_LENGTH} between two slashes"
            )


def is_key(key: object) -> bool:
    """Whether `check_key` lets it pass."""
    try:
        check_key(key)
    except InvalidArgument:
        return False
    return True


def check_keys(keys: Iterable[str]) -> list[str]:
    """The keys as a list, each of them checked.

    Raises:
        InvalidType: `keys` is a single string, or holds something else than strings.
        InvalidArgument: One of them is not allowed.
    """
    if isinstance(keys, (str, bytes)):
        raise InvalidType(f"keys is {keys!r}: give a list of keys, not a single one")
    checked = list(keys)
    for key in checked:
        check_key(key)
    return checked


def check_range(start: int, end: int) -> bool:
    """Whether the range holds anything.

    Raises:
        InvalidArgument: Not ``0 <= start <= end``.
    """
    if not 0 <= start <= end:
        raise InvalidArgument(f"range [{start}, {end}) is not allowed: 0 <= start <= end")
    return start < end


def check_data(data: object) -> bytes:
    """`data` as immutable bytes.

    Raises:
        InvalidType: It is not bytes-like.
    """
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray):
        return bytes(data)
    if isinstance(data, memoryview):
        return data.tobytes()
    raise InvalidType(f"data is a {type(data).__name__}: give bytes")
