"""Reading keys in a step that runs in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from taquba.queue import KeyValuePage, KeyValueReader
    from taquba.workflow._blocking_memo import BlockingMemo

__all__ = ["BlockingKeyValueReader"]


@final
class BlockingKeyValueReader:
    """`KeyValueReader` for runners that are ordinary functions, and run in a thread."""

    __slots__ = ("_memo", "_reader")

    def __init__(self, reader: KeyValueReader, memo: BlockingMemo) -> None:
        self._reader = reader
        self._memo = memo

    def get(self, key: str | bytes) -> bytes | None:
        """The value, or None when the key is absent. What it reports is durable."""
        return self._memo._wait_for(self._reader.get, key)

    def scan(
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
        """The first keys with a prefix and within bounds; see `KeyValueReader.scan`."""
        return self._memo._wait_for(
            self._reader.scan,
            prefix,
            start_at=start_at,
            start_after=start_after,
            end_at=end_at,
            end_before=end_before,
            descending=descending,
            limit=limit,
        )
