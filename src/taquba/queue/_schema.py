"""The tables of the queue layer.

A job is one row, and its state a number in it, so a job is in exactly one state. `seq`
ascends in the order of enqueueing and is what FIFO within a priority means.
"""

from __future__ import annotations

from taquba.database import SchemaModule

__all__ = ["QUEUE_SCHEMA"]

QUEUE_SCHEMA = SchemaModule(
    name="queue",
    version=1,
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
            payload BLOB NOT NULL
        )""",
        "CREATE UNIQUE INDEX jobs_by_id ON jobs (id)",
        "CREATE INDEX jobs_pending ON jobs (queue, priority, seq) WHERE state = 0",
        "CREATE INDEX jobs_scheduled ON jobs (run_at) WHERE state = 1",
        "CREATE INDEX jobs_ended ON jobs (queue, state, ended_at) WHERE state >= 3",
        "CREATE UNIQUE INDEX jobs_dedup ON jobs (queue, dedup_key) WHERE dedup_key IS NOT NULL",
        "CREATE TABLE kv (key BLOB NOT NULL PRIMARY KEY, value BLOB NOT NULL)",
    ),
)
