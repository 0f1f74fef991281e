"""Where queues and key-value store are read: what their owner and a follower have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from taquba.queue._payload_objects import PayloadReader

__all__ = ["Source"]


class Source(Protocol):
    """Where the state is read: the owner's database, or a follower's copy."""

    payloads: PayloadReader
    """Reads the payloads that are no part of it."""

    async def enter(self) -> None:
        """Return when reading may begin. Between this and the reads nothing is awaited."""
        ...

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of the state as this process sees it."""
        ...

    def select(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """As `rows`, for statements that users wrote: refuses those that change something."""
        ...

    def queue_name(self, number: int) -> str:
        """The name of a queue that has this number in the tables."""
        ...

    def queue_number(self, name: str) -> int | None:
        """A queue's number in the tables; None if nobody has used it."""
        ...

    def queue_names(self) -> list[str]:
        """Every queue that ever had a job."""
        ...

    def counts(self, name: str) -> Sequence[int]:
        """How many jobs of a queue are in which state; nothing if nobody has used it."""
        ...

    def now_ms(self) -> int:
        """The time of the process that reads."""
        ...

    async def catch_up(self) -> None:
        """See at least what was committed before the call."""
        ...

    async def leave(self) -> None:
        """Return when what was read is durable."""
        ...
