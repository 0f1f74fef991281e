"""What a database can be told, and what it tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from taquba._checks import whole
from taquba.clock import Duration, seconds
from taquba.errors import InvalidArgument

__all__ = ["DatabaseConfig", "DatabaseStatistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseConfig:
    """Settings of a database.

    A checkpoint is taken when the journal since the last one has as many bytes as
    `checkpoint_share` of the database (and at least `checkpoint_bytes`), or
    `checkpoint_entries` entries and a sixteenth of that share. So reopening reads little,
    and what checkpoints write stays within a small factor of what the journal writes.
    """

    checkpoint_share: float = 0.25
    """Journal bytes since the last checkpoint, as a share of the database's size."""
    checkpoint_bytes: int = 1024 * 1024
    """Journal bytes below which that share does not count."""
    checkpoint_entries: int = 1000
    """Journal entries after which a much smaller share is enough."""
    keep_checkpoints: int = 2
    """Checkpoints that are kept; what only older ones need is deleted. At least 1."""
    retain_history: Duration | None = None
    """Keep what it takes to rebuild the state as of any moment of this last span of time, too.
    None: no more than `keep_checkpoints`."""
    collection_rate: float = 1000.0
    """Objects per second that are deleted, or looked at for that, apart from a short burst."""
    chunk_size: int = 2 * 1024 * 1024
    """Bytes of database in one object of a checkpoint at most, 4 KiB to 16 MiB."""
    pages_per_step: int = 256
    """Pages (of 4 KiB) that a checkpoint copies before it looks at the clock, at most. It copies
    for a few milliseconds after each entry; longer where entries are far between."""
    transfers: int = 8
    """Chunks that are uploaded or downloaded at the same time."""
    state: Literal["memory", "disk"] = "memory"
    """Where the database is: in memory, up to 2 GiB; or in a scratch file on the local disk,
    which is deleted at the end and useless to anybody else. Then memory is bounded."""
    cache_bytes: int = 64 * 1024 * 1024
    """SQLite's page cache; in memory it comes on top of the database itself."""
    scratch: str | None = None
    """Folder for scratch files, as large as the database each; None: the system's."""

    def __post_init__(self) -> None:
        if not self.checkpoint_share > 0:
            raise InvalidArgument(f"checkpoint_share is {self.checkpoint_share}: more than 0")
        if self.state not in ("memory", "disk"):
            raise InvalidArgument(f"state is {self.state!r}: 'memory' or 'disk'")
        whole(self.checkpoint_bytes, "checkpoint_bytes", 1, 2**62)
        whole(self.checkpoint_entries, "checkpoint_entries", 1, 2**62)
        whole(self.keep_checkpoints, "keep_checkpoints", 1, 1000)
        if self.retain_history is not None:
            seconds(self.retain_history, name="retain_history")
        if not self.collection_rate > 0:
            raise InvalidArgument(f"collection_rate is {self.collection_rate}: more than 0")
        whole(self.chunk_size, "chunk_size", 4096, 16 * 1024 * 1024)
        whole(self.pages_per_step, "pages_per_step", 1, 2**31 - 1)
        whole(self.transfers, "transfers", 1, 1000)
        whole(self.cache_bytes, "cache_bytes", 1024, 2**40)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseStatistics:
    """Sizes and counts; those of checkpoints and collection since the database was opened."""

    size: int
    """Bytes of the database."""
    entries_since_checkpoint: int
    """Journal entries that reopening would read."""
    bytes_since_checkpoint: int
    """Bytes of those entries."""
    checkpoint_seq: int | None
    """Place in the journal of the newest checkpoint; None if there is none."""
    checkpoints: int
    """Checkpoints taken."""
    chunks_uploaded: int
    """Chunks that were written for those checkpoints."""
    chunks_reused: int
    """Chunks that a checkpoint took over from the one before it."""
    checkpoint_bytes: int
    """Bytes of the chunks that were written, as they are stored."""
    objects_deleted: int
    """Objects that collection deleted."""
