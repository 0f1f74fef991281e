"""Which jobs of a listing are wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from taquba._checks import wrong_type
from taquba._msgpack import unpack
from taquba.errors import InvalidArgument
from taquba.queue import _validate
from taquba.queue._columns import ENQUEUED_AT, HEADERS, LAST_ERROR

__all__ = ["JobFilter", "job_filter"]


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Conditions that must all hold; made by `job_filter`."""

    headers: dict[str, str]
    error: str | None
    enqueued_after: datetime | None
    enqueued_before: datetime | None

    def matches(self, row: Sequence[Any]) -> bool:
        """Whether a job's row is wanted."""
        enqueued_ms = row[ENQUEUED_AT]
        if self.enqueued_after is not None and enqueued_ms < _ms(self.enqueued_after):
            return False
        if self.enqueued_before is not None and enqueued_ms >= _ms(self.enqueued_before):
            return False
        if self.error is not None and self.error not in (row[LAST_ERROR] or ""):
            return False
        if not self.headers:
            return True
        if row[HEADERS] is None:
            return False
        stored = unpack(row[HEADERS])
        return all(stored.get(name) == text for name, text in self.headers.items())


def job_filter(
    headers: Mapping[str, str] | None,
    error: str | None,
    enqueued_after: datetime | None,
    enqueued_before: datetime | None,
) -> JobFilter | None:
    """The filter that these arguments make; None if every job is wanted.

    Raises:
        InvalidArgument: One of them is of the wrong kind, or a time has no time zone.
    """
    _validate.headers(headers)
    if error is not None and not isinstance(error, str):
        raise wrong_type("error must be a str", error)
    for name, at in (("enqueued_after", enqueued_after), ("enqueued_before", enqueued_before)):
        if at is None:
            continue
        if not isinstance(at, datetime):
            raise wrong_type(f"{name} must be a datetime", at)
        if at.tzinfo is None:
            raise InvalidArgument(
                f"{name} is {at!r}, without a time zone: use datetime.now(UTC) and the like"
            )
    if not headers and error is None and enqueued_after is None and enqueued_before is None:
        return None
    return JobFilter(dict(headers or {}), error, enqueued_after, enqueued_before)


def _ms(at: datetime) -> float:
    return at.timestamp() * 1000
