"""The tables of the workflow layer.

Each life of a run id has its own number, so that what belongs to an earlier life (memos,
outcome) can never be taken for the current one's.
"""

from __future__ import annotations

from taquba.database import SchemaModule

__all__ = ["WORKFLOW_SCHEMA"]

WORKFLOW_SCHEMA = SchemaModule(
    name="workflow",
    version=1,
    statements=(
        """CREATE TABLE runs (
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
            result BLOB
        )""",
        "CREATE UNIQUE INDEX runs_by_id ON runs (queue, run_id)",
        "CREATE INDEX runs_active ON runs (queue, life) WHERE status = 0",
        """CREATE TABLE memos (
            life INTEGER NOT NULL,
            step INTEGER NOT NULL,
            key TEXT NOT NULL,
            value BLOB NOT NULL,
            PRIMARY KEY (life, step, key)
        ) WITHOUT ROWID""",
    ),
)
