"""The forms in which values of callers are stored: memoized ones, arguments and results."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from taquba._checks import shown
from taquba._msgpack import pack, unpack
from taquba.errors import InvalidType, SerializationError

if TYPE_CHECKING:
    from pydantic import ConfigDict, GetCoreSchemaHandler, TypeAdapter
    from pydantic_core import CoreSchema

__all__ = ["EXACT", "Codec", "TypedCodec", "codec_for", "content_key", "same", "typed_codec"]


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
    """JSON by pydantic, for values of a declared type.

    Fields are stored by their own names, whatever their aliases are.
    """

    def __init__(self, adapter: TypeAdapter[Any], name: str) -> None:
        from pydantic import VERSION

        self._adapter = adapter
        self._name = name
        major, minor = VERSION.split(".")[:2]
        # Before 2.11 pydantic can read a field with an alias only by that.
        self._by_name: dict[str, Any] = {}
        if (int(major), int(minor)) >= (2, 11):
            self._by_name["by_name"] = True

    def check(self, value: Any) -> Any:
        """The value as its type has it, converted if need be.

        Raises:
            pydantic.ValidationError: It is none.
        """
        return self._adapter.validate_python(value, **self._by_name)

    def encode(self, value: Any) -> tuple[bytes, Any]:
        from pydantic_core import PydanticSerializationError

        try:
            data = self._adapter.dump_json(value, by_alias=False, round_trip=True, warnings="error")
            return data, self._adapter.validate_json(data, **self._by_name)
        except (PydanticSerializationError, ValueError) as error:
            raise SerializationError(
                f"the value {shown(value)} cannot be stored as {self._name}: {error!s:.1000}"
            ) from error

    def decode(self, data: bytes) -> Any:
        try:
            return self._adapter.validate_json(data, **self._by_name)
        except ValueError as error:  # pydantic.ValidationError among them
            raise SerializationError(
                f"the stored value is no {self._name}: {error!s:.1000}"
            ) from error


Codec = PlainCodec | TypedCodec
_PLAIN = PlainCodec()


EXACT: ConfigDict = {
    "ser_json_bytes": "base64",
    "val_json_bytes": "base64",
    "ser_json_inf_nan": "constants",
}
"""So that all bytes and floats come back; models say by themselves what they do."""


def _name_of(type: Any) -> str:
    name = getattr(type, "__name__", None)
    return name if isinstance(name, str) else shown(type)


def typed_codec(type: Any, name: str, *, revalidate: bool = False) -> TypedCodec:
    """How values of this type are stored as JSON.

    Args:
        type: The type.
        name: For error messages.
        revalidate: Check the fields of dataclasses, too, which they do not do themselves.

    Raises:
        InvalidType: It is nothing that pydantic can handle.
    """
    from pydantic import PydanticUserError, TypeAdapter

    class Inherits:
        # Only a type that is none of pydantic's own passes the configuration on, to dataclasses
        # and typed dicts without one.
        @classmethod
        def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
            return handler.generate_schema(type)

    config = EXACT.copy()
    if revalidate:
        config["revalidate_instances"] = "always"
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(Inherits, config=config)
        with contextlib.suppress(ValueError):
            adapter.validate_json(b"")  # types that are still unknown show up only now
        return TypedCodec(adapter, name)
    except (PydanticUserError, NameError) as error:
        raise InvalidType(
            f"type {shown(type)} is nothing that pydantic can handle: {error!s:.1000}"
        ) from error


@lru_cache(512)
def _typed_codec(type: Any) -> TypedCodec:
    return typed_codec(type, _name_of(type))


def codec_for(type: Any) -> Codec:
    """How values of this type are stored; those of None, as they are.

    Raises:
        InvalidType: It is nothing that pydantic can handle.
    """
    if type is None:
        return _PLAIN
    if isinstance(type, str):  # nobody could say in which module it is a name
        raise InvalidType(f"type {shown(type)} is a str: give the type itself")
    try:
        return _typed_codec(type)
    except TypeError as error:
        if isinstance(error, InvalidType):
            raise
        raise InvalidType(f"type {shown(type)} is not a type: {error!s:.1000}") from error


def _pack(value: Any, name: str) -> bytes:
    try:
        return pack(value)
    except (TypeError, ValueError, OverflowError, BufferError) as error:
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


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same, NaN being itself; what cannot be compared is."""
    kind = cast(Any, type(one))
    try:
        if one is other or one == other:
            return True
    except Exception:
        return kind is type(other)
    if kind is not type(other):
        return False
    if issubclass(kind, float):
        return bool(one != one and other != other)
    if issubclass(kind, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if issubclass(kind, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if dataclasses.is_dataclass(kind):
        names = [each.name for each in dataclasses.fields(kind)]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    if kind.__eq__ is cast(Any, object).__eq__:
        return True
    inner = getattr(one, "__dict__", None)
    return bool(inner) and same(inner, other.__dict__)
