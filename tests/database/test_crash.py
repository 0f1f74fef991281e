"""A process that dies at any moment loses nothing that it acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taquba.clock import ManualClock
from taquba.database import Database, DatabaseConfig, SchemaModule, Transaction
from taquba.errors import TaqubaError
from taquba.journal import JournalConfig
from taquba.objectstore import MemoryStore, ObjectInfo
from taquba.testing import FaultyStore

from .harness import EAGER, ITEMS, LAZY, dump, kept, keys, open_database, opened, put

pytestmark = pytest.mark.usefixtures("state")

EXTRA = SchemaModule(
    name="extra", version=1, statements=("CREATE TABLE extra (id INTEGER NOT NULL PRIMARY KEY)",)
)
_TRANSACTIONS = 60


class MortalStore:
    """A store whose client dies at its n-th write.

    Writes take a while each, so that they overtake one another. Of those under way at the
    death some happen and some do not; none is answered, nor is anything after it.
    """

    def __init__(self, below: MemoryStore, *, writes: int, seed: int) -> None:
        self._below = below
        self._left = writes
        self._random = random.Random(seed)
        self.dead = asyncio.Event()

    async def _write(self, work: Callable[[], Awaitable[None]]) -> None:
        self._left -= 1
        if self._left < 0:
            self.dead.set()
        for _ in range(self._random.randrange(6)):
            await asyncio.sleep(0)
        if not self.dead.is_set() or self._random.random() < 0.5:
            await work()
        await self._answer()

    async def _answer(self) -> None:
        if self.dead.is_set():
            await asyncio.Event().wait()

    async def create(self, key: str, data: bytes) -> None:
        await self._write(lambda: self._below.create(key, data))

    async def put(self, key: str, data: bytes) -> None:
        await self._write(lambda: self._below.put(key, data))

    async def delete(self, keys: Iterable[str]) -> None:
        doomed = list(keys)
        await self._write(lambda: self._below.delete(doomed))

    async def get(self, key: str) -> bytes:
        await self._answer()
        return await self._below.get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        await self._answer()
        return await self._below.get_range(key, start, end)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._answer()
        async for info in self._below.list(prefix, start_after):
            yield info

    async def close(self) -> None: ...


@given(writes=st.integers(0, 150), seed=st.integers(0, 2**32), eager=st.booleans())
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_what_is_left_is_a_prefix_that_holds_all_that_was_acknowledged(
    writes: int, seed: int, eager: bool
) -> None:
    asyncio.run(_die_and_reopen(writes, seed, EAGER if eager else LAZY))


async def _die_and_reopen(writes: int, seed: int, config: DatabaseConfig) -> None:
    below = MemoryStore()
    acknowledged: set[int] = set()
    for life in range(3):
        store = MortalStore(below, writes=writes if life < 2 else 10**6, seed=seed + life)
        begun = await _live_until_death(store, config, life, acknowledged, seed)
        async with opened(below, ITEMS, config=config) as database:
            rows = dump(database)
        found = sorted(key for key, _, _ in rows["items"] if key // 1000 == life)
        assert found == [life * 1000 + n for n in range(len(found))], "not a prefix"
        assert acknowledged <= {key for key, _, _ in rows["items"]}
        assert len(found) <= begun
        acknowledged |= {key for key, _, _ in rows["items"]}  # all that is there was stored
        for key, _, tag in rows["items"]:
            assert tag == f"tag {key}", "a transaction is there in part"
        if "extra" in rows:
            assert len(rows["extra"]) <= len(rows["items"])


async def _live_until_death(
    store: MortalStore, config: DatabaseConfig, life: int, acknowledged: set[int], seed: int
) -> int:
    """How many transactions were begun."""
    choices = random.Random(seed)
    begun = 0
    database: Database | None = None
    waiting: list[asyncio.Future[Any]] = []

    async def acknowledge(key: int, tx: Transaction) -> None:
        await tx.durable()
        acknowledged.add(key)

    async def live() -> None:
        nonlocal begun, database
        database = await Database.open(
            store,
            [ITEMS],
            clock=ManualClock(seed=life),
            config=kept(config),
            journal_config=JournalConfig(commit_interval=0, window=4),
        )
        for n in range(_TRANSACTIONS):
            key = life * 1000 + n
            with database.transaction() as tx:
                tx.execute("INSERT INTO items VALUES (?, ?, NULL)", (key, bytes(300)))
                tx.execute("UPDATE items SET tag = ? WHERE key = ?", (f"tag {key}", key))
            begun += 1
            waiting.append(asyncio.ensure_future(acknowledge(key, tx)))
            for _ in range(choices.randrange(8)):
                await asyncio.sleep(0)
            if n == 20:
                await database.add_module(EXTRA)
            if n > 20 and n % 7 == 0:
                with database.transaction() as tx:
                    tx.execute("INSERT INTO extra VALUES (?)", (key,))
            if n == 40:
                await database.checkpoint()
        await database.barrier()
        store.dead.set()

    living = asyncio.ensure_future(live())
    await asyncio.wait(
        [living, asyncio.ensure_future(store.dead.wait())], return_when=asyncio.FIRST_COMPLETED
    )
    for _ in range(10):  # what was answered before the death is still being told
        await asyncio.sleep(0)
    for task in (living, *waiting):
        task.cancel()
    results = await asyncio.gather(living, *waiting, return_exceptions=True)
    assert all(result is None or _is_death(result) for result in results), results
    if database is not None:  # only to end its tasks: nothing that it does reaches the store
        with contextlib.suppress(TaqubaError):
            await database.close(timeout=0)
    return begun


def _is_death(result: BaseException) -> bool:
    return isinstance(result, asyncio.CancelledError)


@pytest.mark.anyio
@pytest.mark.parametrize("checkpoints_of_the_new_owner", [0, 1, 2])
@pytest.mark.parametrize(
    ("operation", "prefix"),
    [("put", "chunks/"), ("create", "checkpoints/"), ("delete", "journal/"), ("delete", "chunks/")],
)
async def test_a_replaced_owner_that_goes_on_with_a_checkpoint_hurts_nobody(
    operation: Any, prefix: str, checkpoints_of_the_new_owner: int
) -> None:
    """It sleeps amid a checkpoint, is replaced, and then publishes and collects."""
    below = MemoryStore()
    slow = FaultyStore(below)
    config = DatabaseConfig(
        checkpoint_bytes=2**40, checkpoint_entries=2**40, keep_checkpoints=1, chunk_size=4096
    )
    old = await open_database(slow, config=config)
    for i in range(30):
        await put(old, i, bytes([i]) * 500)
    await old.checkpoint()
    for i in range(0, 30, 3):
        await put(old, i, b"changed" * 50)
    held = slow.hold(operation, prefix=prefix)
    checkpoint = asyncio.ensure_future(old.checkpoint())
    await held.arrived()

    new = await open_database(below, config=config)
    for i in range(checkpoints_of_the_new_owner):
        await put(new, 1000 + i, b"new" * 100)
        await new.checkpoint()
    await put(new, 2000, b"tail")
    before = dump(new)

    held.release()
    await checkpoint  # it has not heard that it was replaced
    assert old.failure is None
    await slow.settle()
    async with opened(below, config=config) as again:
        assert dump(again) == before
        await again.checkpoint()
        await again.collect()  # what began beside it would end with the database
    async with opened(below, config=config) as again:
        assert dump(again) == before
    assert len(await keys(below, "checkpoints/")) <= 2
    await old.close()
    await new.close()
