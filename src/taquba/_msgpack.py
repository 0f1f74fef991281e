"""MessagePack, typed, and imported when it is first needed."""

from __future__ import annotations

from typing import Any

__all__ = ["pack", "unpack"]


def pack(value: Any) -> bytes:
    """The MessagePack form.

    Raises:
        TypeError, ValueError, OverflowError: The value has none.
    """
    import msgpack  # type: ignore[import-untyped, unused-ignore]

    packed: bytes = msgpack.packb(value)  # pyright: ignore
    return packed


def unpack(data: bytes) -> Any:
    """The value; arrays come back as lists.

    Raises:
        ValueError: It is no MessagePack.
    """
    import msgpack  # type: ignore[import-untyped, unused-ignore]

    try:
        return msgpack.unpackb(data, strict_map_key=False)  # pyright: ignore
    except (  # pyright: ignore
        msgpack.UnpackException,
        msgpack.exceptions.ExtraData,
        TypeError,  # a map's key that is no key in Python
    ) as error:
        raise ValueError(f"no MessagePack: {error}") from error
