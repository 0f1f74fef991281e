"""Numbers, times and tables for people."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

__all__ = [
    "ago",
    "amount",
    "dollars",
    "json_text",
    "one_line",
    "paragraph",
    "size",
    "table",
    "time",
    "when",
]

_WIDTH = 100
_LONGEST_CELL = 72
_UNITS = ("kB", "MB", "GB", "TB", "PB")


def size(count: int) -> str:
    """Bytes, in three digits or so."""
    if count < 1000:
        return f"{count:,} B"
    value = float(count)
    for unit in _UNITS:
        value /= 1000
        if value < 999.5 or unit == _UNITS[-1]:
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:,.0f} {unit}"
    raise AssertionError


def amount(count: int, one: str, many: str | None = None) -> str:
    """``1 entry``, ``1,234 entries``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def time(milliseconds: int | None) -> str:
    """A time, in UTC."""
    if milliseconds is None:
        return "never"
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms after 1970"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def ago(milliseconds: int) -> str:
    """How long ago something was; a clock may be ahead."""
    seconds = abs(milliseconds) // 1000
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * length:
            span = amount(seconds // length, unit)
            break
    else:
        span = amount(seconds, "second")
    return f"{span} ago" if milliseconds >= 0 else f"{span} ahead of this machine's clock"


def when(moment: datetime, now_ms: int) -> str:
    """A time, and how far it is from now."""
    milliseconds = round(moment.timestamp() * 1000)
    away = now_ms - milliseconds
    distance = ago(away) if away >= 0 else f"in {ago(-away).removesuffix(' ago')}"
    return f"{time(milliseconds)}, {distance}"


def one_line(text: str) -> str:
    """Text that fits a row of a table; nothing in it moves the cursor."""
    flat = "".join(c if c.isprintable() else " " for c in text)
    flat = " ".join(flat.split())
    return flat if len(flat) <= _LONGEST_CELL else flat[: _LONGEST_CELL - 1] + "…"


def dollars(value: float) -> str:
    """Money, with as many digits as say something."""
    if value == 0:
        return "$ 0"
    return f"$ {value:,.2f}" if value >= 0.1 else f"$ {value:.2g}"


def table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: str = "") -> str:
    """Rows in columns; `right` are the columns that are aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        indent
        + "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def paragraph(text: str, *, indent: str) -> str:
    """Text in lines that fit a terminal; keys and numbers stay whole."""
    return textwrap.fill(
        text,
        width=_WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def json_text(value: dict[str, Any]) -> str:
    """A JSON object, readable."""
    return json.dumps(value, indent=2, ensure_ascii=False)
