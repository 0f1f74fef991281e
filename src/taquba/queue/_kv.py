"""The caller's own key-value store, in the same transactions as the jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from taquba.queue import _validate
from taquba.queue._kv_reading import KeyValueReader
from taquba.queue._transaction import QueueTransaction

if TYPE_CHECKING:
    from taquba.queue._core import Core
    from taquba.queue._source import Source

__all__ = ["KeyValue"]


@final
class KeyValue(KeyValueReader):
    """Keys and values that belong to the application; found at `Queue.kv`.

    Keys are `str` (stored as UTF-8) or `bytes`, at most 4,096 bytes; values are bytes, at
    most 256 KiB. An empty value is a value, and differs from absence.
    """

    __slots__ = ("_core",)

    def __init__(self, core: Core, source: Source) -> None:
        super().__init__(source)
        self._core = core

    def reader(self) -> KeyValueReader:
        """The same keys, to be read only."""
        return KeyValueReader(self._source)

    async def put(self, key: str | bytes, value: bytes) -> None:
        """Write a key, durably.

        Raises:
            ValueTooLarge: The key or the value is over its limit.
            Fenced: Another process took the store over.
        """
        stored, data = _validate.kv_key(key), _validate.kv_value(value)
        await self._core.database.admit()
        with QueueTransaction(self._core) as tx:
            tx.put(stored, data)
        await tx.confirmed()

    async def delete(self, key: str | bytes) -> None:
        """Delete a key, durably; an absent one is fine.

        Raises:
            Fenced: Another process took the store over.
        """
        stored = _validate.kv_key(key)
        await self._core.database.admit()
        with QueueTransaction(self._core) as tx:
            tx.delete(stored)
        await tx.confirmed()

    async def compare_put(self, key: str | bytes, expected: bytes | None, value: bytes) -> bool:
        """Write a key if it has the expected value, byte for byte; None: if it is absent.

        Returns:
            True: it was written. False: it has another value, and nothing was changed. Either
            answer is durable.

        Raises:
            ValueTooLarge: The key or a value is over its limit.
            Fenced: Another process took the store over.
        """
        stored, data = _validate.kv_key(key), _validate.kv_value(value)
        before = None if expected is None else _validate.kv_expected(expected)
        await self._core.database.admit()
        with QueueTransaction(self._core) as tx:
            if matches := tx.holds(stored, before):
                tx.put(stored, data)
        await tx.confirmed()
        return matches

    async def compare_delete(self, key: str | bytes, expected: bytes) -> bool:
        """Delete a key if it has the expected value, byte for byte.

        Returns:
            True: it was deleted. False: it is absent or has another value, and nothing was
            changed. Either answer is durable.

        Raises:
            ValueTooLarge: The key or the value is over its limit.
            Fenced: Another process took the store over.
        """
        stored, before = _validate.kv_key(key), _validate.kv_expected(expected)
        await self._core.database.admit()
        with QueueTransaction(self._core) as tx:
            if matches := tx.holds(stored, before):
                tx.delete(stored)
        await tx.confirmed()
        return matches
