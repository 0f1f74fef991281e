"""The forms in which values of callers are stored: memoized ones, arguments and results."""

from __future__ import annotations

import contextlib
import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from taquba._checks import shown
from taquba._msgpack import pack, unpack
from taquba.errors import InvalidType, SerializationError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["Codec", "codec_for", "content_key"]


class PlainCodec:
    """MessagePack, for values without a declared type."""

    def encode(self, value: Any) -> tuple[bytes, Any]:
        """The stored form, and what it decodes to."""
        data = _pack(value, "the value")
        try:
            return data, unpack(data)
        except ValueError as error:
            raise SerializationError(
                f"the value {shown(value)} cannot be encoded so that it can be decoded "
                f"again: {error}"
            ) from error

    def decode(self, data: bytes) -> Any:
        try:
            return unpack(data)
        except ValueError as error:
            raise SerializationError(f"the stored value cannot be decoded: {error}") from error


class TypedCodec:
    """JSON by pydantic, for values of a declared type."""

    def __init__(self, adapter: TypeAdapter[Any], name: str) -> None:
        self._adapter = adapter
        self._name = name

    def encode(self, value: Any) -> tuple[bytes, Any]:
        from pydantic_core import PydanticSerializationError

        try:
            data = self._adapter.dump_json(value, warnings="error")
            return data, self._adapter.validate_json(data)
        except (PydanticSerializationError, ValueError) as error:
            raise SerializationError(
                f"the value {shown(value)} cannot be stored as {self._name}: {error!s:.1000}"
            ) from error

    def decode(self, data: bytes) -> Any:
        try:
            return self._adapter.validate_json(data)
        except ValueError as error:  # pydantic.ValidationError among them
            raise SerializationError(
                f"the stored value is no {self._name}: {error!s:.1000}"
            ) from error


Codec = PlainCodec | TypedCodec
_PLAIN = PlainCodec()


@lru_cache(512)
def _typed_codec(type: Any) -> TypedCodec:
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter

    # So that all bytes and floats come back; models say by themselves what they do.
    exact = ConfigDict(
        ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants"
    )
    try:
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(type, config=exact)
        except PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                raise
            adapter = TypeAdapter(type)
        with contextlib.suppress(ValueError):
            adapter.validate_json(b"")  # types that are still unknown show up only now
        return TypedCodec(adapter, getattr(type, "__name__", repr(type)))
    except (PydanticUserError, NameError) as error:
        raise InvalidType(f"type {type!r} is nothing that pydantic can handle: {error}") from error


def codec_for(type: Any) -> Codec:
    """How values of this type are stored; those of None, as they are.

    Raises:
        InvalidType: It is nothing that pydantic can handle.
    """
    if type is None:
        return _PLAIN
    try:
        return _typed_codec(type)
    except TypeError as error:
        if isinstance(error, InvalidType):
            raise
        raise InvalidType(f"type {type!r} is not a type: {error}") from error


def _pack(value: Any, name: str) -> bytes:
    try:
        return pack(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SerializationError(
            f"{name} {shown(value)} cannot be encoded: {error}. Use None, bool, int, float, str, "
            "bytes, list and dict, or say its type, as in memoized(key, fn, type=…)"
        ) from error


def content_key(value: Any) -> str:
    """The key of `memoized_by_content`.

    Raises:
        SerializationError: The value cannot be encoded.
    """
    return "content:" + hashlib.sha256(_pack(value, "the content")).hexdigest()
