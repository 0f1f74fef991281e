"""Which jobs a command is about."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict

from taquba.cli._arguments import Usage, moment

if TYPE_CHECKING:
    from taquba.clock import Clock

__all__ = ["Filters", "filters"]


class Filters(TypedDict):
    """What `QueueReader.list_jobs` and `Queue.requeue_dead_many` take."""

    headers: dict[str, str] | None
    error: str | None
    enqueued_after: datetime | None
    enqueued_before: datetime | None


def filters(options: argparse.Namespace, clock: Clock) -> Filters:
    """What the options say.

    Raises:
        Usage: A time is none, or a header is named twice.
    """
    now_ms = clock.now_ms()
    headers: dict[str, str] = {}
    for name, value in options.header:
        if headers.get(name, value) != value:
            raise Usage(f"--header {name}=… is given twice: no job has two values for it")
        headers[name] = value
    since, until = options.since, options.until
    return Filters(
        headers=headers or None,
        error=options.error,
        enqueued_after=None if since is None else moment(since, now_ms, "--since"),
        enqueued_before=None if until is None else moment(until, now_ms, "--until"),
    )
