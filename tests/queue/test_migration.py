"""Stores that an earlier version of the queue's tables wrote."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taquba import Effects, Follower, JobState, QueueConfig
from taquba._msgpack import pack
from taquba.database import Database, DatabaseConfig, SchemaModule
from taquba.errors import IncompatibleStore
from taquba.queue._schema import QUEUE_SCHEMA
from tests.queue.harness import World, counts, drain, read, take

pytestmark = pytest.mark.anyio

VERSION_1 = SchemaModule(
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
"""The tables as the first version made them."""

CONFIG = QueueConfig(backoff_base=0, keep_done=timedelta(days=1))


def rows(now: int) -> list[tuple[Any, ...]]:
    """One job in each state, and two more that wait."""
    headers = pack({"from": "version 1"})
    return [
        (1, "plain", 1, 0, 1000, 0, 3, now, None, None, None, None, None, None, None, b"plain"),
        (2, "first", 1, 0, 5, 1, 3, now, None, None, None, None, None, "once", headers, b"first"),
        (3, "keyed", 1, 0, 1000, 0, 3, now, None, None, None, None, "k", None, None, b"keyed"),
        (4, "later", 1, 1, 1000, 0, 3, now, now + 60_000, *(None,) * 6, b"later"),
        (5, "held", 1, 2, 1000, 1, 3, now, None, now, None, 1, None, None, None, b"held"),
        (6, "done", 2, 3, 1000, 1, 3, now, None, now, now, None, None, None, None, b"done"),
        (7, "dead", 2, 4, 1000, 3, 3, now, None, None, now, None, None, "bad", None, b"dead"),
    ]


async def old_store(world: World, *, checkpointed: bool) -> None:
    """Write what a process with the first version would have left."""
    database = await Database.open(
        world.store, [VERSION_1], clock=world.clock, config=DatabaseConfig()
    )
    with database.transaction() as tx:
        tx.execute("INSERT INTO queues VALUES (1, 'q', 3, 1, 1, 0, 0), (2, 'r', 0, 0, 0, 4, 1)")
        for row in rows(world.clock.now_ms()):
            tx.execute(f"INSERT INTO jobs VALUES ({','.join('?' * 16)})", row)
        tx.execute("INSERT INTO kv VALUES (?, ?)", (b"key", b"value"))
    await tx.durable()
    if checkpointed:
        await database.checkpoint()
    await database.close()


@pytest.fixture(params=[False, True], ids=["journal", "checkpoint"])
async def old(request: pytest.FixtureRequest, world: World) -> World:
    await old_store(world, checkpointed=request.param)
    return world


async def test_every_job_is_still_there(old: World) -> None:
    queue = await old.open(config=CONFIG)
    # The claim of the process that is gone was taken back.
    assert await queue.stats("q") == counts(pending=4, scheduled=1)
    assert await queue.stats("r") == counts(done=4, dead=1)
    first = await read(queue, "first")
    assert (first.priority, first.attempts, first.last_error) == (5, 1, "once")
    assert first.headers == {"from": "version 1"}
    assert (await read(queue, "keyed")).dedup_key == "k"
    held = await read(queue, "held")
    assert (held.state, held.attempts, held.cancel_requested) == (JobState.PENDING, 1, True)
    assert (await read(queue, "done")).state is JobState.DONE
    assert (await read(queue, "dead")).last_error == "bad"
    assert await queue.kv.get("key") == b"value"


async def test_its_jobs_go_on(old: World) -> None:
    queue = await old.open(config=CONFIG)
    assert not (await queue.enqueue("q", b"again", dedup_key="k")).created
    assert await drain(queue) == [b"first", b"plain", b"keyed", b"held"]
    await old.clock.advance(60)
    claim = await take(queue)
    assert claim.job.payload == b"later"
    await queue.nack(claim, "not yet")
    claim = await take(queue)
    await queue.ack(claim, Effects().enqueue("r", b"next").put("key", b"new"))
    await queue.requeue_dead("dead")
    assert await drain(queue, "r") == [b"dead", b"next"]
    # It is the new version's store from then on, for a process that replays the journal too.
    queue = await old.crash(config=CONFIG)
    assert await queue.stats("q") == counts(done=5)
    assert await queue.stats("r") == counts(done=6)
    assert await queue.kv.get("key") == b"new"
    assert await queue.read("SELECT version FROM schema_modules WHERE name = 'queue'") == [
        (QUEUE_SCHEMA.version,)
    ]


async def test_a_migration_is_done_once_and_as_a_new_store_would_be(old: World) -> None:
    await (await old.open(config=CONFIG)).close()
    queue = await old.open(config=CONFIG)
    fresh = World()
    new = await fresh.open(config=CONFIG)
    for table in [name for (name,) in new.peek("SELECT name FROM sqlite_schema ORDER BY name")]:
        made = await queue.read(f"SELECT * FROM pragma_table_info('{table}')")
        assert made == await new.read(f"SELECT * FROM pragma_table_info('{table}')"), table
    named = "SELECT type, name, tbl_name FROM sqlite_schema ORDER BY name"
    assert await queue.read(named) == await new.read(named)
    await fresh.close()


async def test_a_follower_waits_for_the_owner_to_migrate(old: World) -> None:
    with pytest.raises(IncompatibleStore, match="have version 1, and this process reads version"):
        await Follower.open(old.store, clock=old.clock)
    queue = await old.open(config=CONFIG)
    async with Follower.open(old.store, clock=old.clock) as follower:
        await follower.refresh()
        assert await follower.stats("q") == counts(pending=4, scheduled=1)
        job = await follower.get_job("first")
        assert job is not None
        assert job == await queue.get_job("first")
        await queue.enqueue("q", b"more")
        await follower.refresh()
        assert (await follower.stats("q")).pending == 5


async def test_a_follower_of_the_old_version_says_that_the_store_has_moved_on(
    old: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("taquba.queue._follower.QUEUE_SCHEMA", VERSION_1)
        follower = await Follower.open(old.store, clock=old.clock)
    assert await follower.stats("q") == counts(pending=3, scheduled=1, claimed=1)
    await old.open(config=CONFIG)
    with pytest.raises(IncompatibleStore, match="upgrade taquba"):
        await follower.refresh()
    await follower.close()
