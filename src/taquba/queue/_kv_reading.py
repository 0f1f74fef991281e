"""What can be read of the key-value store: the same by its owner and by a follower."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from taquba._checks import whole
from taquba.queue import _validate
from taquba.queue._config import MAX_BATCH_SIZE
from taquba.queue._ranges import KeyRange, key_range
from taquba.queue._records import (
    KeyValuePage,
)
from taquba.queue._source import Source

__all__ = ["KeyValueReader"]


class KeyValueReader:
    """Keys and values that belong to the application, to be read.

    Keys are `str` (stored as UTF-8) or `bytes`, at most 4,096 bytes; values are bytes. An empty
    value is a value, and differs from absence.
    """

    __slots__ = ("_source",)

    def __init__(self, source: Source) -> None:
        """Not for callers: use `Queue.kv` or `Follower.kv`."""
        self._source = source

    async def get(self, key: str | bytes) -> bytes | None:
        """The value, or None when the key is absent. What it reports is durable."""
        stored = _validate.kv_key(key)
        await self._source.enter()
        rows = self._source.rows("SELECT value FROM kv WHERE key = ?", (stored,))
        await self._source.leave()
        return rows[0][0] if rows else None

    async def scan(
        self,
        prefix: str | bytes = b"",
        *,
        start_at: str | bytes | None = None,
        start_after: str | bytes | None = None,
        end_at: str | bytes | None = None,
        end_before: str | bytes | None = None,
        descending: bool = False,
        limit: int = 100,
    ) -> KeyValuePage:
        """The first keys with a prefix and within bounds. What it reports is durable.

        Pages are separate reads: a change between two of them may be seen or not. What is there
        all the while is always seen. `entries` goes through all of them.

        Args:
            prefix: What the keys begin with; empty: all keys.
            start_at: No smaller keys than this one. Bounds are keys that need not exist, nor
                have the prefix; keys are compared by their bytes.
            start_after: Only keys greater than this one. For the next page, the last key of the
                one before.
            end_at: No greater keys than this one.
            end_before: Only keys smaller than this one. For the next page of a descending scan,
                the last key of the one before.
            descending: From the greatest key to the smallest.
            limit: Keys on the page at most, up to 10,000.

        Raises:
            InvalidArgument: Two lower or two upper bounds, or the limit is over its own.
            ValueTooLarge: A key has more than 4,096 bytes.
        """
        keys = key_range(
            prefix,
            start_at=start_at,
            start_after=start_after,
            end_at=end_at,
            end_before=end_before,
            descending=descending,
        )
        return await self._page(keys, _validate.limit(limit, MAX_BATCH_SIZE))

    def entries(
        self,
        prefix: str | bytes = b"",
        *,
        start_at: str | bytes | None = None,
        start_after: str | bytes | None = None,
        end_at: str | bytes | None = None,
        end_before: str | bytes | None = None,
        descending: bool = False,
        page_size: int = 100,
    ) -> AsyncGenerator[tuple[bytes, bytes], None]:
        """``async for key, value in kv.entries("orders/")``: all that `scan` would give.

        It reads a page at a time, and the next one only when you go on, so that keys may be
        changed meanwhile.

        Args:
            prefix: See `scan`, as for the bounds and the order.
            start_at: No smaller keys.
            start_after: Only greater keys.
            end_at: No greater keys.
            end_before: Only smaller keys.
            descending: From the greatest key to the smallest.
            page_size: Keys to read at once, 1 to 10,000.
        """
        keys = key_range(
            prefix,
            start_at=start_at,
            start_after=start_after,
            end_at=end_at,
            end_before=end_before,
            descending=descending,
        )
        return self._entries(keys, whole(page_size, "page_size", 1, MAX_BATCH_SIZE))

    async def _entries(
        self, keys: KeyRange, size: int
    ) -> AsyncGenerator[tuple[bytes, bytes], None]:
        more = True
        while more:
            page = await self._page(keys, size)
            for entry in page.entries:
                yield entry
            more = page.more
            if more:
                keys = keys.after(page.entries[-1][0])

    async def _page(self, keys: KeyRange, count: int) -> KeyValuePage:
        await self._source.enter()
        rows = self._source.rows(*keys.select(count + 1 if count else 0))
        await self._source.leave()
        return KeyValuePage(tuple((key, value) for key, value in rows[:count]), len(rows) > count)
