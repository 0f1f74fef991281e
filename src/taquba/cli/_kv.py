"""``taquba kv``."""

from __future__ import annotations

import argparse
import base64
import shlex
import sys
from typing import TYPE_CHECKING, Any

from taquba.cli._arguments import Usage
from taquba.cli._following import following
from taquba.cli._text import json_text, one_line, table

if TYPE_CHECKING:
    from taquba.clock import Clock

__all__ = ["get_command", "scan_command"]


async def get_command(options: argparse.Namespace, clock: Clock) -> int:
    """Write one value."""
    key = _key(options, "KEY", options.key)
    async with following(options, clock) as follower:
        value = await follower.kv.get(key)
    if value is None:
        raise Usage(f"there is no key {options.key!r}")
    if options.json:
        print(json_text(_entry(key, value)))
    else:
        sys.stdout.buffer.write(value)
        sys.stdout.buffer.flush()
    return 0


async def scan_command(options: argparse.Namespace, clock: Clock) -> int:
    """List keys and values."""
    prefix = _key(options, "PREFIX", options.prefix)
    after = None if options.after is None else _key(options, "--after", options.after)
    async with following(options, clock) as follower:
        page = await follower.kv.scan(prefix, limit=options.limit, start_after=after)
    place = _place(page.entries[-1][0], options) if page.more else None
    if options.json:
        entries = [_entry(key, value) for key, value in page.entries]
        print(json_text({"entries": entries, "next": place}))
        return 0
    if not page.entries:
        print("no such keys")
        return 0
    rows = [["key", "value"]]
    rows += [[_shown(key), one_line(_shown(value))] for key, value in page.entries]
    print(table(rows))
    if place is not None:
        print(f"\nmore: {place}")
    return 0


def _key(options: argparse.Namespace, name: str, text: str) -> bytes:
    if not options.hex:
        return text.encode("utf-8", "surrogateescape")
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        raise Usage(f"{name} {text!r} is not hexadecimal, as --hex says") from None


def _place(last: bytes, options: argparse.Namespace) -> str:
    """The options that go on after a key."""
    if options.hex:
        return f"--after {last.hex()}"
    text = _text(last)
    if text is None:
        prefix = options.prefix.encode("utf-8", "surrogateescape").hex()
        return f"--hex {prefix} --after {last.hex()}"
    return f"--after {shlex.quote(text)}"


def _text(data: bytes) -> str | None:
    """Bytes as text, if that is what they seem to be."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def _shown(data: bytes) -> str:
    text = _text(data)
    return f"0x{data.hex()}" if text is None else text


def _entry(key: bytes, value: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    for name, data in (("key", key), ("value", value)):
        try:
            entry[name] = data.decode()
        except UnicodeDecodeError:
            entry[name] = None
            entry[f"{name}_base64"] = base64.b64encode(data).decode()
    return entry
