"""A fenced, group-committed, pipelined log of opaque entries on an object store.

`Journal` writes it, `replay` reads it, `Tail` goes on reading it, `Checkpoint` says from where,
and `collect` deletes what no checkpoint needs. What entries and checkpoints contain is their
owner's business.
"""

from __future__ import annotations

from taquba.journal._audit import LogWalk, Manifests, contradiction, read_entry, read_manifests
from taquba.journal._checkpoint import (
    CHECKPOINT_PREFIX,
    Checkpoint,
    checkpoint_key,
    list_checkpoints,
    newest_checkpoint,
    publish_checkpoint,
    read_checkpoint,
)
from taquba.journal._collect import Collected, Pace, collect
from taquba.journal._config import JournalConfig, JournalStatistics
from taquba.journal._entry import Entry, Kind
from taquba.journal._history import checkpoint_as_of, checkpoints
from taquba.journal._journal import Journal
from taquba.journal._machine import StateMachine
from taquba.journal._position import (
    JOURNAL_PREFIX,
    START,
    EpochMark,
    JournalGap,
    Position,
    entry_key,
    seq_of_key,
)
from taquba.journal._replay import replay
from taquba.journal._tail import Overtaken, Tail

__all__ = [
    "CHECKPOINT_PREFIX",
    "JOURNAL_PREFIX",
    "START",
    "Checkpoint",
    "Collected",
    "Entry",
    "EpochMark",
    "Journal",
    "JournalConfig",
    "JournalGap",
    "JournalStatistics",
    "Kind",
    "LogWalk",
    "Manifests",
    "Overtaken",
    "Pace",
    "Position",
    "StateMachine",
    "Tail",
    "checkpoint_as_of",
    "checkpoint_key",
    "checkpoints",
    "collect",
    "contradiction",
    "entry_key",
    "list_checkpoints",
    "newest_checkpoint",
    "publish_checkpoint",
    "read_checkpoint",
    "read_entry",
    "read_manifests",
    "replay",
    "seq_of_key",
]
