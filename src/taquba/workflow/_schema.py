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
    "group_number INTEGER",
    "position INTEGER",
    "ended_number INTEGER",
)
"""What runs it; the key of the signal that its step waits for, the signal that it was given, and
how that was sent; the object that holds a large result; and the group that it is a member of,
its position there, and the number of its end among those of the group."""

_RUNS_BY_STATUS = "CREATE INDEX runs_by_status ON runs (queue, status, life)"
"""Runs in the order of their submission: those that go on, and those that ended in some way."""
_RUNS_ENDED = "CREATE INDEX runs_ended ON runs (queue, ended_at, life) WHERE status > 0"
"""Runs in the order of their ends."""
_RUNS_OF_GROUP = (
    "CREATE INDEX runs_of_group ON runs (group_number, ended_number) WHERE ended_number IS NOT NULL"
)
"""Members of a group in the order of their ends."""
_RUNS_BY_AGE = (
    "CREATE INDEX runs_by_age ON runs (queue, ended_at, life)"
    " WHERE status > 0 AND group_number IS NULL"
)
"""The same without members of groups, which are kept as long as these."""
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

_GROUPS = """CREATE TABLE groups (
    number INTEGER NOT NULL PRIMARY KEY,
    queue TEXT NOT NULL,
    group_id TEXT,
    created_at INTEGER NOT NULL,
    total INTEGER NOT NULL,
    sealed INTEGER NOT NULL,
    succeeded INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    ends INTEGER NOT NULL,
    stopped INTEGER NOT NULL,
    stop_after INTEGER,
    forgiven INTEGER NOT NULL,
    forgiven_until INTEGER NOT NULL,
    temporary INTEGER NOT NULL,
    signal_key TEXT,
    retention INTEGER,
    finished_at INTEGER,
    options BLOB NOT NULL
)"""
"""Run groups: how many members are known, whether that is all, how many ended how, and how many
ends there were. One without an id is forgotten, and is being removed.

`forgiven` of those that have failed are going to run again, or were known when the group was
submitted again: their ends were not after the one numbered `forgiven_until`. A temporary group is
of no use when the process has gone that submitted it."""
_GROUPS_BY_ID = "CREATE UNIQUE INDEX groups_by_id ON groups (queue, group_id)"

_MEMBERS = """CREATE TABLE members (
    group_number INTEGER NOT NULL,
    position INTEGER NOT NULL,
    life INTEGER NOT NULL,
    key TEXT NOT NULL,
    input BLOB,
    ref TEXT,
    PRIMARY KEY (group_number, position)
) WITHOUT ROWID"""
"""Members of groups in the order of their submission, with the current lives of their runs.

The input is there if the member may have to run again and the job of its first step, which has
it too, is no longer there; a large one is an object of the member's own."""
_MEMBERS_STORED = "CREATE INDEX members_stored ON members (ref) WHERE ref IS NOT NULL"

_ENDED_LIVES = "CREATE TABLE ended_lives (life INTEGER NOT NULL PRIMARY KEY)"
"""Lives that are over and have left more rows than could go with their end."""

_TIMELINE = """CREATE TABLE timeline (
    life INTEGER NOT NULL,
    number INTEGER NOT NULL,
    step INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    outcome INTEGER NOT NULL,
    claimed_at INTEGER,
    started_at INTEGER,
    recorded_at INTEGER NOT NULL,
    due INTEGER,
    error TEXT,
    error_type TEXT,
    woken_by TEXT,
    waits_for TEXT,
    memo_hits INTEGER,
    memo_misses INTEGER,
    PRIMARY KEY (life, number)
) WITHOUT ROWID"""
"""The attempts of the steps of runs, in the order of their ends, where history is kept."""

_OF_GROUPS = (_RUNS_BY_AGE, _RUNS_OF_GROUP, _GROUPS, _GROUPS_BY_ID, _MEMBERS, _MEMBERS_STORED)

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
        _TIMELINE,
        *_OF_GROUPS,
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
            _TIMELINE,
            *_OF_GROUPS,
        ),
    },
)
