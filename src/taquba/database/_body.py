"""The body of a journal entry: what changed since the entry before.

MessagePack of ``[1, statements, patchset]``: DDL statements that come first, then a SQLite
patchset (https://www.sqlite.org/sessionintro.html) of rows.
"""

from __future__ import annotations

from typing import Any, cast

from taquba._msgpack import pack, unpack
from taquba.errors import CorruptStore, IncompatibleStore

__all__ = ["BODY_VERSION", "decode_body", "encode_body"]

BODY_VERSION = 1


def encode_body(statements: list[str], patchset: bytes) -> bytes:
    """The body that holds these."""
    return pack((BODY_VERSION, statements, patchset))


def decode_body(name: str, body: bytes) -> tuple[list[str], bytes]:
    """Statements and patchset of a body; `name` is for errors.

    Raises:
        CorruptStore: It is no such body.
        IncompatibleStore: A newer taquba wrote it.
    """
    try:
        decoded: Any = unpack(body)
    except ValueError as error:
        raise CorruptStore(f"{name} is damaged: {error}") from error
    if not isinstance(decoded, list) or not decoded:
        raise CorruptStore(f"{name} is damaged: its body is no list")
    parts: list[Any] = [*decoded]  # pyright: ignore
    if isinstance(parts[0], int) and parts[0] > BODY_VERSION:
        raise IncompatibleStore(
            f"{name} has body version {parts[0]}, and this process reads up to {BODY_VERSION}: "
            "upgrade taquba here. Nothing was changed"
        )
    match parts:
        case [1, list(), bytes()]:
            return cast("list[str]", parts[1]), parts[2]
        case _:
            raise CorruptStore(f"{name} is damaged: its body has the wrong shape")
