"""A fenced, group-committed, pipelined log of opaque entries on an object store.

`Journal` writes it, `replay` reads it, `Tail` goes on reading it, `Checkpoint` says from where,
and `collect` deletes what no checkpoint needs. What entries and checkpoints contain is their
owner's business.
"""

from __future__ import annotations

from taquba.journal._checkpoint import (
    Checkpoint,
    newest_checkpoint,
    publish_checkpoint,
    read_checkpoint,
)
from taquba.journal._collect import Collected, collect
from taquba.journal._config import JournalConfig, JournalStatistics
from taquba.journal._entry import Entry, Kind
from taquba.journal._history import checkpoint_as_of, checkpoints
from taquba.journal._journal import Journal
from taquba.journal._machine import StateMachine
from taquba.journal._position import START, EpochMark, JournalGap, Position
from taquba.journal._replay import replay
from taquba.journal._tail import Overtaken, Tail

__all__ = [
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
    "Overtaken",
    "Position",
    "StateMachine",
    "Tail",
    "checkpoint_as_of",
    "checkpoints",
    "collect",
    "newest_checkpoint",
    "publish_checkpoint",
    "read_checkpoint",
    "replay",
]
