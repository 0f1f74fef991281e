"""Checks of what callers pass in. Each raises before anything is written."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from taquba.clock import Duration, seconds
from taquba.errors import (
    InvalidArgument,
    InvalidJobId,
    InvalidQueueName,
    InvalidType,
    ValueTooLarge,
)
from taquba.queue._config import (
    MAX_DEDUP_KEY_LENGTH,
    MAX_HEADERS_SIZE,
    MAX_JOB_ID_LENGTH,
    MAX_KV_KEY_SIZE,
    MAX_KV_VALUE_SIZE,
    MAX_PAYLOAD_SIZE,
    MAX_PRIORITY,
    MAX_QUEUE_NAME_LENGTH,
)

__all__ = [
    "attempts",
    "blob",
    "due_ms",
    "dedup_key",
    "error_text",
    "headers",
    "identifier",
    "job_id",
    "kv_key",
    "kv_value",
    "lease_seconds",
    "payload",
    "priority",
    "queue_name",
]

_ID = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_LATEST_MS = 253_402_300_799_000  # the end of the year 9999, where datetime ends


def blob(value: object, *, name: str, limit: int) -> bytes:
    """Bytes of at most `limit`; a bytearray or memoryview is copied."""
    if isinstance(value, (bytearray, memoryview)):
        value = bytes(value)
    if not isinstance(value, bytes):
        hint = "encode it, for example with .encode() or json.dumps(…).encode()"
        if inspect.isawaitable(value):
            _close(value)
            hint = "is an 'await' missing?"
        raise InvalidType(f"{name} must be bytes, not {type(value).__name__}: {hint}")
    if len(value) > limit:
        raise ValueTooLarge(
            f"{name} has {len(value):,} bytes and may have {limit:,}: "
            "put large data in an object of your own and pass its name"
        )
    return value


def payload(value: object) -> bytes:
    return blob(value, name="payload", limit=MAX_PAYLOAD_SIZE)


def queue_name(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidType(f"a queue name must be a str, not {type(value).__name__}")
    size = len(value) if value.isascii() else len(_utf8(value, "a queue name"))
    if not 1 <= size <= MAX_QUEUE_NAME_LENGTH:
        raise InvalidQueueName(
            f"queue name {value[:40]!r} has {size} bytes: "
            f"it must have 1 to {MAX_QUEUE_NAME_LENGTH} bytes of UTF-8"
        )
    return value


def identifier(value: object, *, name: str, error: type[InvalidArgument], limit: int) -> str:
    """A caller's id: 1 to `limit` characters of A-Z a-z 0-9 _ -."""
    if not isinstance(value, str):
        raise InvalidType(f"a {name} must be a str, not {type(value).__name__}")
    if len(value) > limit:
        raise error(f"{name} {value[:40]!r}… has {len(value)} characters and may have {limit}")
    if not _ID.fullmatch(value):
        raise error(f"{name} {value!r}: use 1 to {limit} characters of A-Z a-z 0-9 _ -")
    return value


def job_id(value: object) -> str:
    return identifier(value, name="job id", error=InvalidJobId, limit=MAX_JOB_ID_LENGTH)


def headers(value: Mapping[str, str] | None) -> bytes | None:
    """The stored form of headers: MessagePack, or None when there are none."""
    if not value:
        if value is None or isinstance(value, Mapping):
            return None
    if not isinstance(value, Mapping):
        raise InvalidType(f"headers must be a mapping of str to str, not {type(value).__name__}")
    size = 0
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise InvalidType(f"headers must map str to str, not {key!r} to {text!r}")
        size += len(_utf8(key, "a header name")) + len(_utf8(text, f"header {key!r}"))
    if size > MAX_HEADERS_SIZE:
        raise ValueTooLarge(f"headers have {size:,} bytes and may have {MAX_HEADERS_SIZE:,}")
    import msgpack

    packed: bytes = msgpack.packb(dict(value))
    return packed


def priority(value: object) -> int:
    return _whole(value, "priority", 0, MAX_PRIORITY)


def attempts(value: object) -> int:
    return _whole(value, "max_attempts", 1, 2**31 - 1)


def count(value: object, limit: int) -> int:
    return _whole(value, "the number of jobs", 0, limit)


def dedup_key(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidType(f"dedup_key must be a str, not {type(value).__name__}")
    size = len(_utf8(value, "dedup_key"))
    if size > MAX_DEDUP_KEY_LENGTH:
        raise ValueTooLarge(f"dedup_key has {size} bytes and may have {MAX_DEDUP_KEY_LENGTH}")
    return value


def kv_key(value: object) -> bytes:
    if isinstance(value, str):
        value = _utf8(value, "a key")
    if not isinstance(value, bytes):
        raise InvalidType(f"a key must be str or bytes, not {type(value).__name__}")
    if len(value) > MAX_KV_KEY_SIZE:
        raise ValueTooLarge(f"the key has {len(value):,} bytes and may have {MAX_KV_KEY_SIZE:,}")
    return value


def kv_value(value: object) -> bytes:
    return blob(value, name="a value", limit=MAX_KV_VALUE_SIZE)


def due_ms(run_at: datetime | None, delay: Duration | None, now_ms: int) -> int | None:
    """When a job becomes due, or None for at once (also when that moment is not after now)."""
    if run_at is not None and delay is not None:
        raise InvalidArgument("give run_at or delay, not both")
    if delay is not None:
        due = now_ms + round(min(seconds(delay, name="delay"), 2**40) * 1000)
    elif run_at is not None:
        if not isinstance(run_at, datetime):
            raise InvalidType(f"run_at must be a datetime, not {type(run_at).__name__}")
        if run_at.tzinfo is None:
            raise InvalidArgument(
                f"run_at is {run_at!r}, without a time zone: use datetime.now(UTC) and the like"
            )
        due = int(run_at.timestamp() * 1000)
    else:
        return None
    if due > _LATEST_MS:
        raise InvalidArgument("a job can be scheduled until the end of the year 9999")
    return due if due > now_ms else None


def lease_seconds(value: Duration) -> float:
    return seconds(value, name="lease")


def error_text(error: BaseException | str) -> str:
    """What is stored of a failure."""
    if isinstance(error, str):
        return error
    if not isinstance(error, BaseException):
        raise InvalidType(f"error must be an exception or a str, not {type(error).__name__}")
    return str(error) or type(error).__name__


def as_datetime(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)


def _whole(value: object, name: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidType(f"{name} must be a whole number, not {value!r}")
    if not least <= value <= most:
        raise InvalidArgument(f"{name} is {value}: it goes from {least} to {most}")
    return value


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name} cannot be encoded as UTF-8: {error}") from None


def _close(awaitable: Any) -> None:
    """Close a forgotten coroutine, so that the error is not followed by a warning about it."""
    close = getattr(awaitable, "close", None)
    if close is not None:
        close()
