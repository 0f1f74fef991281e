"""Stores that an earlier version of the workflow's tables wrote."""

from __future__ import annotations

import hashlib

import pytest

from taquba import Queue
from taquba._msgpack import pack
from taquba.clock import ManualClock
from taquba.database import SchemaModule
from taquba.objectstore import MemoryStore
from taquba.workflow import Continue, RunState, Step, Succeed, WorkflowRuntime
from taquba.workflow._schema import WORKFLOW_SCHEMA

pytestmark = pytest.mark.anyio

VERSION_1 = SchemaModule(
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
"""The tables as the first version made them."""

STEPS = "workflow-steps"


async def old_store(store: MemoryStore, clock: ManualClock, *, checkpointed: bool) -> None:
    """One run at step 1 with a memo, and one that has ended."""
    async with Queue.open(store, clock=clock) as queue:
        await queue.add_tables(VERSION_1)
        headers = {"workflow.run_id": "going", "workflow.life": "1", "from": "version 1"}
        job = await queue.enqueue(STEPS, b"one", headers=headers)
        now = clock.now_ms()
        digest = hashlib.sha256(b"input").digest()
        with queue.transaction() as tx:
            tx.execute(
                "INSERT INTO runs VALUES"
                " (1, ?, 'going', 0, 1, ?, ?, ?, NULL, NULL, NULL, ?, NULL),"
                " (2, ?, 'ended', 1, 3, 'gone', ?, ?, ?, NULL, NULL, ?, ?)",
                (
                    *(STEPS, job.job_id, digest, now, pack(headers)),
                    *(STEPS, digest, now, now, pack({}), b"result"),
                ),
            )
            tx.execute("INSERT INTO memos VALUES (1, -1, 'k', ?)", (pack("kept"),))
        await tx.durable()
        if checkpointed:
            await queue._core.database.checkpoint()


@pytest.mark.parametrize("checkpointed", [False, True], ids=["journal", "checkpoint"])
async def test_runs_go_on(checkpointed: bool) -> None:
    store, clock = MemoryStore(), ManualClock()
    await old_store(store, clock, checkpointed=checkpointed)

    async def runner(step: Step) -> Continue | Succeed:
        if step.number == 1:
            return Continue((await step.run_memo.memoized("k", lambda: "new")).encode())
        return Succeed(step.payload)

    async with Queue.open(store, clock=clock) as queue, WorkflowRuntime(queue, runner) as runtime:
        end = await runtime.wait("going")
        assert (end.outcome.result, end.outcome.headers) == (b"kept", {"from": "version 1"})
        assert end.termination.final_step == 2
        status = await runtime.status("ended")
        assert status is not None
        assert (status.state, status.current_step) == (RunState.TERMINATED, 3)
        assert (await runtime.wait("ended")).outcome.result == b"result"


async def test_the_tables_are_those_of_a_new_store() -> None:
    store, clock = MemoryStore(), ManualClock()
    await old_store(store, clock, checkpointed=True)
    columns = (
        'SELECT m.name, x.name, x.type, x."notnull", x.pk FROM sqlite_schema AS m,'
        " pragma_table_info(m.name) AS x WHERE m.type = 'table' ORDER BY m.name, x.cid"
    )
    indexes = "SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql NOT NULL ORDER BY name"
    found: list[object] = []
    for each in (store, MemoryStore()):
        async with Queue.open(each, clock=clock) as queue:
            await queue.add_tables(WORKFLOW_SCHEMA)
            found.append((await queue.read(columns), await queue.read(indexes)))
    assert found[0] == found[1]
