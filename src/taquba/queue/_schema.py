"""The tables of the queue layer.

A job is one row, and its state a number in it, so a job is in exactly one state. `seq`
ascends in the order of enqueueing and is what FIFO within a priority means.
"""

from __future__ import annotations

from taquba.database import SchemaModule

__all__ = ["QUEUE_SCHEMA"]

_NEW_IN_2 = (
    "woken_at INTEGER",
    "wake_payload BLOB",
    "payload_ref TEXT",
    "retry BLOB",
    "error_type TEXT",
    "traceback TEXT",
    "flow_key TEXT",
    "history INTEGER",
)
_ATTEMPTS = """CREATE TABLE attempts (
    seq INTEGER NOT NULL,
    number INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    claimed_at INTEGER,
    recorded_at INTEGER NOT NULL,
    outcome INTEGER NOT NULL,
    error TEXT,
    PRIMARY KEY (seq, number)
)"""
"""How the earlier attempts of a job ended; `jobs.history` says how many entries it has."""

_JOBS_STORED = "CREATE INDEX jobs_stored ON jobs (payload_ref) WHERE payload_ref IS NOT NULL"
"""Which objects are named by jobs; jobs with a payload of their own are not in it."""

_JOBS_DEAD = "CREATE INDEX jobs_dead ON jobs (queue) WHERE state = 4"
"""The dead jobs of a queue in the order of their enqueueing."""

_HEARTBEAT = """CREATE TABLE heartbeat (
    one INTEGER NOT NULL PRIMARY KEY,
    counter INTEGER NOT NULL,
    at INTEGER NOT NULL,
    interval INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    closed INTEGER NOT NULL
)"""
"""The last sign of life, if the owner gives any; with the interval 0 it gives none any more."""
_JOBS_KEYED = (
    "CREATE INDEX jobs_keyed ON jobs (queue, flow_key, priority, seq)"
    " WHERE state = 0 AND flow_key IS NOT NULL"
)
"""The pending jobs of each concurrency key, in claim order."""
_FLOW_LIMITS = """CREATE TABLE flow_limits (
    queue INTEGER NOT NULL PRIMARY KEY,
    keyed INTEGER NOT NULL,
    full_at INTEGER NOT NULL,
    scale INTEGER NOT NULL
)"""
"""Of queues with limits: whether each of its jobs has a key, and when the bucket is full."""

QUEUE_SCHEMA = SchemaModule(
    name="queue",
    version=2,
    statements=(
        """CREATE TABLE queues (
            number INTEGER NOT NULL PRIMARY KEY,
            name TEXT NOT NULL,
            pending INTEGER NOT NULL,
            scheduled INTEGER NOT NULL,
            claimed INTEGER NOT NULL,
            done INTEGER NOT NULL,
            dead INTEGER NOT NULL
        )""",
        """CREATE TABLE jobs (
            seq INTEGER NOT NULL PRIMARY KEY,
            id TEXT NOT NULL,
            queue INTEGER NOT NULL,
            state INTEGER NOT NULL,
            priority INTEGER NOT NULL,
            attempts INTEGER NOT NULL,
            max_attempts INTEGER NOT NULL,
            enqueued_at INTEGER NOT NULL,
            run_at INTEGER,
            claimed_at INTEGER,
            ended_at INTEGER,
            cancel_requested INTEGER,
            dedup_key TEXT,
            last_error TEXT,
            headers BLOB,
            payload BLOB NOT NULL,
            woken_at INTEGER,
            wake_payload BLOB,
            payload_ref TEXT,
            retry BLOB,
            error_type TEXT,
            traceback TEXT,
            flow_key TEXT,
            history INTEGER
        )""",
        "CREATE UNIQUE INDEX jobs_by_id ON jobs (id)",
        "CREATE INDEX jobs_pending ON jobs (queue, priority, seq) WHERE state = 0",
        "CREATE INDEX jobs_scheduled ON jobs (run_at) WHERE state = 1",
        "CREATE INDEX jobs_ended ON jobs (queue, state, ended_at) WHERE state >= 3",
        "CREATE UNIQUE INDEX jobs_dedup ON jobs (queue, dedup_key) WHERE dedup_key IS NOT NULL",
        _JOBS_STORED,
        _JOBS_DEAD,
        _JOBS_KEYED,
        "CREATE TABLE kv (key BLOB NOT NULL PRIMARY KEY, value BLOB NOT NULL)",
        _ATTEMPTS,
        _HEARTBEAT,
        _FLOW_LIMITS,
    ),
    migrations={
        1: (
            *(f"ALTER TABLE jobs ADD COLUMN {column}" for column in _NEW_IN_2),
            _JOBS_STORED,
            _JOBS_DEAD,
            _JOBS_KEYED,
            _ATTEMPTS,
            _HEARTBEAT,
            _FLOW_LIMITS,
        ),
    },
)
