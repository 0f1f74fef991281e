"""What a journal can be told, and what it tells."""

from __future__ import annotations

from dataclasses import dataclass

from taquba.errors import InvalidArgument

__all__ = ["JournalConfig", "JournalStatistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalConfig:
    """Settings of a journal; the defaults fit cloud object stores.

    Attributes:
        window: Entries in flight at most. Fixed when the store is created: later writers
            use what the store says. 1 to 1024.
        commit_interval: Seconds between seals while entries are in flight; bounds the PUTs
            per second.
        max_unacknowledged_bytes: New transactions wait while sealed entries of this many
            bytes are not stored.
        max_batch: Appends that one entry holds at most before new transactions wait for
            room in the window.
        first_retry_delay: Upper bound, in seconds, of the wait before a failed write is
            repeated; doubles with each failure.
        max_retry_delay: Upper bound of every such wait.
        open_attempts: Tries of the takeover's own write before `open` gives up on a store
            that does not answer.
        prefetch: Entries that replay fetches at the same time.
        prefetch_bytes: Bytes that replay fetches ahead at most.
    """

    window: int = 16
    commit_interval: float = 0.01
    max_unacknowledged_bytes: int = 64 * 1024 * 1024
    max_batch: int = 100_000
    first_retry_delay: float = 0.1
    max_retry_delay: float = 5.0
    open_attempts: int = 5
    prefetch: int = 64
    prefetch_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        if not 1 <= self.window <= 1024:
            raise InvalidArgument(f"window is {self.window}: give 1 to 1024")
        for name in ("commit_interval", "first_retry_delay", "max_retry_delay"):
            value: float = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InvalidArgument(f"{name} is {value}: give seconds, at least 0")
        for name in (
            "max_unacknowledged_bytes",
            "max_batch",
            "open_attempts",
            "prefetch",
            "prefetch_bytes",
        ):
            count: int = getattr(self, name)
            if count < 1:
                raise InvalidArgument(f"{name} is {count}: at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStatistics:
    """Counts since the journal was opened, and what is under way.

    Attributes:
        entries: Entries acknowledged.
        bytes: Bytes of those entries.
        puts: Creates sent, repetitions included.
        failed_puts: Creates that ended in an error and were repeated.
        in_flight: Entries sent and not yet acknowledged.
        queued: Entries sealed and not yet sent, since the window was full.
        unacknowledged_bytes: Bytes of the entries in flight and queued.
    """

    entries: int
    bytes: int
    puts: int
    failed_puts: int
    in_flight: int
    queued: int
    unacknowledged_bytes: int
