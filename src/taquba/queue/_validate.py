"""Checks of what callers pass in. Each raises before anything is written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import cast

from taquba._checks import blob, error_text, identifier, plain, shown, utf8, whole, wrong_type
from taquba._msgpack import pack
from taquba.clock import Duration, seconds
from taquba.errors import (
    InvalidArgument,
    InvalidJobId,
    InvalidQueueName,
    InvalidType,
    ValueTooLarge,
)
from taquba.queue._config import (
    MAX_CONCURRENCY_KEY_LENGTH,
    MAX_DEDUP_KEY_LENGTH,
    MAX_HEADERS_SIZE,
    MAX_JOB_ID_LENGTH,
    MAX_KV_KEY_SIZE,
    MAX_KV_VALUE_SIZE,
    MAX_PAYLOAD_SIZE,
    MAX_PRIORITY,
    MAX_QUEUE_NAME_LENGTH,
    MAX_WAKE_PAYLOAD_SIZE,
)
from taquba.queue._records import JobState
from taquba.queue._retry import RetryPolicy

__all__ = [
    "attempts",
    "compares",
    "concurrency_key",
    "count",
    "dedup_key",
    "due_ms",
    "error_text",
    "folder",
    "headers",
    "job_id",
    "job_state",
    "keeps_leases",
    "kv_expected",
    "kv_key",
    "kv_value",
    "lease_seconds",
    "limit",
    "payload",
    "priority",
    "queue_name",
    "retry_policy",
    "time_for_work",
    "wait_seconds",
    "wake_payload",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS = 253_402_300_799_000  # the end of the year 9999, where datetime ends


def payload(value: object) -> bytes:
    hint = "pass an opened file or an async iterable of bytes to enqueue, which may be larger"
    return blob(value, name="payload", limit=MAX_PAYLOAD_SIZE, hint=hint)


def queue_name(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidType(f"a queue name must be a str, not {type(value).__name__}")
    size = len(value) if value.isascii() else len(utf8(value, "a queue name"))
    if not 1 <= size <= MAX_QUEUE_NAME_LENGTH:
        raise InvalidQueueName(
            f"queue name {value[:40]!r} has {size} bytes: "
            f"it must have 1 to {MAX_QUEUE_NAME_LENGTH} bytes of UTF-8"
        )
    return plain(value)


def job_id(value: object) -> str:
    return identifier(value, name="job id", error=InvalidJobId, limit=MAX_JOB_ID_LENGTH)


def headers(value: Mapping[str, str] | None) -> bytes | None:
    """The stored form of headers: MessagePack, or None when there are none."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidType(f"headers must be a mapping of str to str, not {type(value).__name__}")
    size = 0
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise InvalidType(f"headers must map str to str, not {key!r} to {text!r}")
        size += len(utf8(key, "a header name")) + len(utf8(text, f"header {key!r}"))
    if size > MAX_HEADERS_SIZE:
        raise ValueTooLarge(f"headers have {size:,} bytes and may have {MAX_HEADERS_SIZE:,}")
    if not value:
        return None
    return pack(dict(value))


def priority(value: object) -> int:
    return whole(value, "priority", 0, MAX_PRIORITY)


def attempts(value: object) -> int:
    return whole(value, "max_attempts", 1, 2**31 - 1)


def retry_policy(value: object) -> bytes:
    """The stored form of a policy."""
    if not isinstance(value, RetryPolicy):
        raise wrong_type("retry must be a RetryPolicy", value)
    return value._stored()


def count(value: object, limit: int) -> int:
    return whole(value, "the number of jobs", 0, limit)


def folder(value: str | os.PathLike[str] | None) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) and not hasattr(value, "__fspath__"):
        raise wrong_type("scratch must be the path of a folder", value)
    return os.fsdecode(value)


def limit(value: object, largest: int) -> int:
    return whole(value, "limit", 0, largest)


def job_state(value: object) -> JobState | None:
    if value is not None and not isinstance(value, JobState):
        raise InvalidType(f"state is {value!r}: give a JobState, or None for any")
    return value


def dedup_key(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidType(f"dedup_key must be a str, not {type(value).__name__}")
    size = len(utf8(value, "dedup_key"))
    if size > MAX_DEDUP_KEY_LENGTH:
        raise ValueTooLarge(f"dedup_key has {size} bytes and may have {MAX_DEDUP_KEY_LENGTH}")
    return value


def concurrency_key(value: object) -> str:
    if not isinstance(value, str):
        raise wrong_type("concurrency_key must be a str", value)
    size = len(value) if value.isascii() else len(utf8(value, "concurrency_key"))
    if not size:
        raise InvalidArgument("concurrency_key is empty: leave it out for a job without one")
    if size > MAX_CONCURRENCY_KEY_LENGTH:
        raise ValueTooLarge(
            f"concurrency_key has {size} bytes and may have {MAX_CONCURRENCY_KEY_LENGTH}"
        )
    return value


def kv_key(value: object) -> bytes:
    if isinstance(value, str):
        value = utf8(value, "a key")
    if not isinstance(value, bytes):
        raise InvalidType(f"a key must be str or bytes, not {type(value).__name__}")
    if len(value) > MAX_KV_KEY_SIZE:
        raise ValueTooLarge(f"the key has {len(value):,} bytes and may have {MAX_KV_KEY_SIZE:,}")
    return value


def kv_value(value: object) -> bytes:
    return blob(value, name="a value", limit=MAX_KV_VALUE_SIZE)


def kv_expected(value: object) -> bytes:
    """What a key must hold for a compare to match."""
    return blob(value, name="the expected value", limit=MAX_KV_VALUE_SIZE)


def compares(value: object) -> dict[bytes, bytes | None]:
    """What keys must hold (or, with None, that they must be absent) for a commit."""
    if not isinstance(value, Mapping):
        raise wrong_type("compares must map keys to the bytes expected, or None", value)
    checked: dict[bytes, bytes | None] = {}
    for key, expected in cast("Mapping[object, object]", value).items():
        stored = kv_key(key)
        if stored in checked:
            raise InvalidArgument(f"key {key!r} is compared twice, as str and as bytes")
        checked[stored] = None if expected is None else kv_expected(expected)
    return checked


def wake_payload(value: object) -> bytes:
    return blob(value, name="the payload of a wake", limit=MAX_WAKE_PAYLOAD_SIZE)


def wait_seconds(value: Duration | None, name: str) -> float:
    """How long to wait at most; infinitely where None was given."""
    return float("inf") if value is None else seconds(value, name=name)


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
        # Whole numbers, rounded up: floats could make it a millisecond too early.
        due = -((_EPOCH - run_at) // timedelta(milliseconds=1))
    else:
        return None
    if due > _LATEST_MS:
        raise InvalidArgument("a job can be scheduled until the end of the year 9999")
    return due if due > now_ms else None


def lease_seconds(value: Duration) -> float:
    return seconds(value, name="lease")


def keeps_leases(renew: object) -> bool:
    """Whether leases last as long as the work: what a caller's ``renew="auto"`` means."""
    if renew not in ("auto", None):
        raise InvalidArgument(f"renew is {shown(renew)}: give 'auto' or None")
    return renew == "auto"


def time_for_work(timeout: Duration | None, name: str) -> float | None:
    """Seconds that the work on a job may take; None is without end."""
    limit = None if timeout is None else seconds(timeout, name=name)
    if limit == 0:
        raise InvalidArgument(f"{name} is 0: nothing could be done in time")
    return limit
