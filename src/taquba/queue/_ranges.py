"""Which keys a scan of the key-value store is about, and in which order."""

from __future__ import annotations

from typing import Any, NamedTuple

from taquba.errors import InvalidArgument, InvalidType
from taquba.queue import _validate

__all__ = ["KeyRange", "key_range"]


class KeyRange(NamedTuple):
    """A part of the key-value store."""

    where: str
    parameters: tuple[bytes, ...]
    descending: bool
    last: bytes | None = None
    """Where to go on: behind this key."""

    def select(self, limit: int) -> tuple[str, tuple[Any, ...]]:
        """The statement for its first keys and their values."""
        where, parameters = self.where, self.parameters
        if self.last is not None:
            where += " AND key < ?" if self.descending else " AND key > ?"
            parameters = (*parameters, self.last)
        order = "DESC" if self.descending else "ASC"
        return (
            f"SELECT key, value FROM kv WHERE {where} ORDER BY key {order} LIMIT ?",
            (*parameters, limit),
        )

    def after(self, key: bytes) -> KeyRange:
        """What is left of it behind a key."""
        return self._replace(last=key)


def key_range(
    prefix: str | bytes,
    *,
    start_at: str | bytes | None = None,
    start_after: str | bytes | None = None,
    end_at: str | bytes | None = None,
    end_before: str | bytes | None = None,
    descending: bool = False,
) -> KeyRange:
    """Check the arguments of a scan."""
    if start_at is not None and start_after is not None:
        raise InvalidArgument("give start_at or start_after, not both")
    if end_at is not None and end_before is not None:
        raise InvalidArgument("give end_at or end_before, not both")
    if not isinstance(descending, bool):
        raise InvalidType(f"descending must be True or False, not {descending!r}")
    first = _validate.kv_key(prefix)
    bounds = [
        (">=", first),
        ("<", _end_of_prefix(first)),
        (">=", start_at),
        (">", start_after),
        ("<=", end_at),
        ("<", end_before),
    ]
    given = [(sign, _validate.kv_key(bound)) for sign, bound in bounds if bound is not None]
    where = " AND ".join(f"key {sign} ?" for sign, _ in given)
    return KeyRange(where, tuple(bound for _, bound in given), descending)


def _end_of_prefix(prefix: bytes) -> bytes | None:
    """The first key after all that begin with `prefix`; None if there is no such key."""
    shortened = prefix.rstrip(b"\xff")
    return shortened[:-1] + bytes([shortened[-1] + 1]) if shortened else None
