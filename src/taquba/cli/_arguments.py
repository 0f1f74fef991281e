"""What single arguments mean."""

from __future__ import annotations

import argparse
import json
import os
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from taquba.errors import InvalidArgument

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.database import DatabaseConfig
    from taquba.objectstore import ObjectStore

__all__ = [
    "Usage",
    "header",
    "moment",
    "opened",
    "price",
    "scheme",
    "scratch_config",
    "storage_option",
    "whole_number",
]

REQUESTS = ("put", "get", "list", "delete")

_RELATIVE = re.compile(r"-(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


class Usage(InvalidArgument):
    """A command that makes no sense."""


def storage_option(text: str) -> tuple[str, Any]:
    """``key=value``; the value is JSON if it can be read as such, and else text."""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def price(text: str) -> tuple[str, float]:
    """``put=0.005``: what 1,000 requests cost."""
    name, _, value = text.partition("=")
    try:
        dollars = float(value)
    except ValueError:
        dollars = -1.0
    if name not in REQUESTS or not 0 <= dollars < float("inf"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a price: write put=0.005 for $ 0.005 per 1,000 requests; and the "
            f"requests are {', '.join(REQUESTS)}"
        )
    return name, dollars


def header(text: str) -> tuple[str, str]:
    """``name=value``."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return name, value


def whole_number(text: str) -> int:
    """A number of things, at least one."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return number


def moment(text: str, now_ms: int, option: str = "--at") -> datetime:
    """A time with its offset, or one before now: ``-2h``.

    Raises:
        Usage: It is neither.
    """
    relative = _RELATIVE.fullmatch(text)
    if relative is not None and any(relative.groups()):
        days, hours, minutes, seconds = (int(number or 0) for number in relative.groups())
        try:
            ago = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
            return datetime.fromtimestamp(now_ms / 1000, UTC) - ago
        except OverflowError:
            raise Usage(f"{option} {text}: that is before the year 1") from None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise Usage(
            f"{option} {text}: write a time such as 2026-03-01T18:00:00+01:00, or one before now "
            "such as -2h, -30m or -1d12h"
        ) from None
    if at.utcoffset() is None:
        raise Usage(
            f"{option} {text} could be in any time zone: add its offset, as in {at.isoformat()}Z "
            f"for UTC or {at.isoformat()}+01:00"
        )
    return at


def scheme(url: str) -> str:
    """What comes before ``://``; ``file`` for a path."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.\-]*)://", url)
    return found[1].lower() if found else "file"


def scratch_config(options: argparse.Namespace) -> DatabaseConfig:
    """Settings of a database of whatever size, on a disk that has room for it.

    Raises:
        Usage: There is no such folder.
    """
    from taquba.database import DatabaseConfig

    if options.scratch is not None and not os.path.isdir(options.scratch):
        raise Usage(f"--scratch {options.scratch}: there is no such folder")
    return DatabaseConfig(state="disk", scratch=options.scratch)


async def opened(
    options: argparse.Namespace, clock: Clock, *, read_only: bool = True
) -> ObjectStore:
    """The store that a command names; for reading, unless it says otherwise.

    Raises:
        Usage: It is nowhere that a command could look at.
        StoreError: It cannot be read.
    """
    from taquba.objectstore import open_store

    if scheme(options.url) == "memory":
        raise Usage("memory:// is private to each process, so there is nothing to look at")
    storage_options: dict[str, Any] = dict(options.option)
    if options.endpoint_url is not None:
        storage_options["endpoint_url"] = options.endpoint_url
    for name in ("read_only", "clock", "retry", "driver", "url"):
        if name in storage_options:
            raise Usage(f"--option {name}=…: that is not an option of the store's client")
    if (
        scheme(options.url) == "file"
        and not re.match(r"(s3a?|gs|gcs|az|abfss?|file|memory|https?):", options.url, re.IGNORECASE)
        and not os.path.isdir(path := os.path.expanduser(options.url))
    ):
        if os.path.exists(path):
            raise Usage(f"{options.url!r} is a file: give the folder that holds the store")
        raise Usage(f"there is no folder {options.url!r}")
    return await open_store(
        options.url, read_only=read_only, clock=clock, driver=options.driver, **storage_options
    )
