"""The tables of the workflow layer.

Each life of a run id has its own number, so that what belongs to an earlier life (memos,
outcome) can never be taken for the current one's.
"""

from __future__ import annotations

from taquba.database import SchemaModule

__all__ = ["WORKFLOW_SCHEMA"]

_RUNS_NEW_IN_2 = (
    "workflow TEXT",
    "revision TEXT",
    "signal_key TEXT",
    "signal BLOB",
    "signal_sent BLOB",
    "error_type TEXT",
    "result_ref TEXT",
)
"""What runs it; the key of the signal that its step waits for, the signal that it was given, and
how that was sent; and the object that holds a large result."""

_RUNS_BY_STATUS = "CREATE INDEX runs_by_status ON runs (queue, status, life)"
"""Runs in the order of their submission: those that go on, and those that ended in some way."""
_RUNS_ENDED = "CREATE INDEX runs_ended ON runs (queue, ended_at, life) WHERE status > 0"
"""Runs in the order of their ends."""
_RUNS_WAITING = (
    "CREATE UNIQUE INDEX runs_waiting ON runs (queue, signal_key)"
    " WHERE signal_key IS NOT NULL AND signal IS NULL"
)
"""Who waits for a signal; there is at most one for each key."""
_RUNS_STORED = "CREATE INDEX runs_stored ON runs (result_ref) WHERE result_ref IS NOT NULL"
_MEMOS_STORED = "CREATE INDEX memos_stored ON memos (ref) WHERE ref IS NOT NULL"

_SIGNALS = """CREATE TABLE signals (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    number INTEGER NOT NULL,
    payload BLOB NOT NULL,
    sent_at INTEGER NOT NULL,
    latest INTEGER NOT NULL,
    signal_id TEXT,
    PRIMARY KEY (queue, key, number)
) WITHOUT ROWID"""
"""Signals that nobody waits for yet, in the order in which they were sent.

One of each key at most is the latest, which a later one replaces."""

_SIGNAL_IDS = """CREATE TABLE signal_ids (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    signal_id TEXT NOT NULL,
    sent_at INTEGER NOT NULL,
    outcome INTEGER NOT NULL,
    run_id TEXT,
    digest BLOB NOT NULL,
    PRIMARY KEY (queue, key, signal_id)
) WITHOUT ROWID"""
"""Signals that were sent with an id: sending one again changes nothing."""
_SIGNAL_IDS_SENT = "CREATE INDEX signal_ids_sent ON signal_ids (queue, sent_at) WHERE outcome <> 1"
"""Which of them can be forgotten: those whose signals are not buffered any more."""

_ENDED_LIVES = "CREATE TABLE ended_lives (life INTEGER NOT NULL PRIMARY KEY)"
"""Lives that are over and have left more rows than could go with their end."""

WORKFLOW_SCHEMA = SchemaModule(
    name="workflow",
    version=2,
    statements=(
        f"""CREATE TABLE runs (
            life INTEGER NOT NULL PRIMARY KEY,
            queue TEXT NOT NULL,
            run_id TEXT NOT NULL,
            status INTEGER NOT NULL,
            step INTEGER NOT NULL,
            job_id TEXT NOT NULL,
            input_digest BLOB NOT NULL,
            submitted_at INTEGER NOT NULL,
            ended_at INTEGER,
            error TEXT,
            error_kind INTEGER,
            headers BLOB,
            result BLOB,
            {", ".join(_RUNS_NEW_IN_2)}
        )""",
        "CREATE UNIQUE INDEX runs_by_id ON runs (queue, run_id)",
        _RUNS_BY_STATUS,
        _RUNS_ENDED,
        _RUNS_WAITING,
        _RUNS_STORED,
        """CREATE TABLE memos (
            life INTEGER NOT NULL,
            step INTEGER NOT NULL,
            key TEXT NOT NULL,
            value BLOB NOT NULL,
            ref TEXT,
            PRIMARY KEY (life, step, key)
        ) WITHOUT ROWID""",
        _MEMOS_STORED,
        _SIGNALS,
        _SIGNAL_IDS,
        _SIGNAL_IDS_SENT,
        _ENDED_LIVES,
    ),
    migrations={
        1: (
            *(f"ALTER TABLE runs ADD COLUMN {column}" for column in _RUNS_NEW_IN_2),
            "ALTER TABLE memos ADD COLUMN ref TEXT",
            "DROP INDEX runs_active",
            _RUNS_BY_STATUS,
            _RUNS_ENDED,
            _RUNS_WAITING,
            _RUNS_STORED,
            _MEMOS_STORED,
            _SIGNALS,
            _SIGNAL_IDS,
            _SIGNAL_IDS_SENT,
            _ENDED_LIVES,
        ),
    },
)
