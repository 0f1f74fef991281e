"""Checks of arguments that several layers share. Each raises before anything is written."""

from __future__ import annotations

import functools
import inspect
import re
import reprlib
from datetime import UTC, datetime
from typing import Any, cast

from taquba.errors import InvalidArgument, InvalidType, ValueTooLarge

__all__ = [
    "as_datetime",
    "blob",
    "error_text",
    "flag",
    "identifier",
    "is_async",
    "moment",
    "shown",
    "utf8",
    "whole",
    "wrong_type",
]

_ID = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def blob(
    value: object,
    *,
    name: str,
    limit: int,
    hint: str = "put large data in an object of your own and pass its name",
) -> bytes:
    """Bytes of at most `limit`; a bytearray or memoryview is copied."""
    data: object = value
    if isinstance(value, bytearray):
        data = bytes(value)
    elif isinstance(value, memoryview):
        data = cast("memoryview[int]", value).tobytes()
    if not isinstance(data, bytes):
        way = ": encode it, for example with .encode() or json.dumps(…).encode()"
        raise wrong_type(f"{name} must be bytes", data, way)
    if len(data) > limit:
        raise ValueTooLarge(f"{name} has {len(data):,} bytes and may have {limit:,}: {hint}")
    return data


def identifier(value: object, *, name: str, error: type[InvalidArgument], limit: int) -> str:
    """A caller's id: 1 to `limit` characters of A-Z a-z 0-9 _ -."""
    if not isinstance(value, str):
        error_of_type = wrong_type(f"a {name} must be a str", value)
        field = name.replace(" ", "_")
        if isinstance(getattr(value, field, None), str):  # what was submitted, or its status
            error_of_type = type(error_of_type)(f"{error_of_type}: pass its .{field}")
        raise error_of_type
    if len(value) > limit:
        raise error(f"{name} {value[:40]!r}… has {len(value)} characters and may have {limit}")
    if not _ID.fullmatch(value):
        raise error(f"{name} {value!r}: use 1 to {limit} characters of A-Z a-z 0-9 _ -")
    return plain(value)


def plain(text: str) -> str:
    """The text as such: what inherits from `str`, as enumerations do, may format as another."""
    return str.__str__(text)


def flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(f"{name} must be True or False", value)
    return value


def whole(value: object, name: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidType(f"{name} must be a whole number, not {shown(value)}")
    if not least <= value <= most:
        raise InvalidArgument(f"{name} is {value}: it goes from {least} to {most}")
    return value


_SHOWN = reprlib.Repr()
_SHOWN.maxother = _SHOWN.maxstring = 200


def shown(value: object) -> str:
    """A value for an error message: short, however large or deep or odd it is."""
    return _SHOWN.repr(value)


def utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name} cannot be encoded as UTF-8: {error}") from None


def as_datetime(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else moment(at_ms)


def moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def wrong_type(rule: str, value: object, hint: str = "") -> InvalidType:
    """The error for a value of the wrong type; a forgotten `await` is named as that."""
    if inspect.isawaitable(value):
        hint = ": is an 'await' missing?"
        # Closed, so that the error is not followed by a warning about it.
        close: Any = getattr(value, "close", None)
        if close is not None:
            close()
    return InvalidType(f"{rule}, not {type(value).__name__}{hint}")


def error_text(error: BaseException | str) -> str:
    """What is stored of a failure; always something that can be stored."""
    if isinstance(error, str):
        text = error
    elif isinstance(error, BaseException):
        try:
            text = str(error)
        except Exception:
            text = ""
        text = text or type(error).__name__
    else:
        raise InvalidType(f"error must be an exception or a str, not {type(error).__name__}")
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def is_async(function: Any) -> bool:
    """Whether calling it makes a coroutine: also for objects and partial functions."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  (it is looked at, not tested for)
    )
