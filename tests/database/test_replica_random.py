"""Whatever owners do, a replica shows the state of one place in the log that they wrote."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taquba.clock import ManualClock
from taquba.database import Database, DatabaseConfig, Replica
from taquba.errors import TaqubaError
from taquba.journal import JournalConfig, Position
from taquba.objectstore import MemoryStore
from taquba.objectstore._readonly import ReadOnlyStore
from taquba.testing import FaultyStore, HeldRequests

from .harness import ITEMS, dump, put

State = dict[str, list[tuple[Any, ...]]]


class Play:
    """Owners that replace each other on one store, and replicas of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.memory = MemoryStore()
        self.clock = ManualClock(seed=seed)
        self.states: dict[tuple[int, bytes], State] = {}
        """What an owner's state was, by the place in the log that it was at."""
        self.owners: list[tuple[Database, FaultyStore]] = []
        self.held: list[HeldRequests] = []
        self.replicas: list[Replica] = []
        self.acknowledged: dict[int, int] = {}
        self.tasks: list[asyncio.Future[None]] = []
        self.counter = 0
        self.reloads = 0

    async def open(self) -> None:
        store = FaultyStore(self.memory)
        database = await Database.open(
            store,
            [ITEMS],
            clock=ManualClock(seed=self.random.randrange(2**32)),
            config=DatabaseConfig(
                checkpoint_bytes=2**40,
                checkpoint_entries=2**40,
                chunk_size=4096,
                keep_checkpoints=self.random.choice([1, 1, 2]),
            ),
            journal_config=JournalConfig(window=4),
        )
        self.record(database, database.position)
        sealed = database._machine.sealed

        def recording(position: Position) -> None:
            sealed(position)
            self.record(database, position)

        database._machine.sealed = recording  # type: ignore[method-assign]
        self.owners.append((database, store))

    def record(self, database: Database, position: Position) -> None:
        self.states[position.seq, position.digest] = dump(database)

    async def follow(self) -> None:
        replica = await Replica.open(
            ReadOnlyStore(self.memory), [ITEMS], clock=self.clock, poll_interval=1
        )
        self.replicas.append(replica)
        self.check(replica)

    def write(self, index: int = -1) -> None:
        """Commit something on an owner, which may have been replaced."""
        database, _ = self.owners[index]
        self.counter += 1
        number = self.counter

        async def work() -> None:
            with contextlib.suppress(TaqubaError):
                await put(database, self.random.randrange(50), b"%d" % number)
                self.acknowledged[number] = database.position.seq

        self.tasks.append(asyncio.ensure_future(work()))

    async def act(self, act: str) -> None:
        database, store = self.owners[-1]
        match act:
            case "write":
                self.write()
                await self.run()
            case "write much":
                for _ in range(self.random.randrange(90)):
                    self.write()
                    await self.run(3)
            case "zombie writes":
                self.write(self.random.randrange(len(self.owners)))
                await self.run()
            case "hold":
                self.held.append(store.hold("create", "journal/", skip=self.random.randrange(3)))
            case "land":
                if self.held:
                    self.held.pop(self.random.randrange(len(self.held))).release()
                    await self.run()
            case "take over":
                await self.open()
            case "checkpoint":
                checkpoint = asyncio.ensure_future(database.checkpoint())
                await self.run(200)
                if not self.held:  # or else it may wait for what is held
                    await asyncio.wait([checkpoint])
                self.tasks.append(checkpoint)
            case "follow":
                if len(self.replicas) < 3:
                    await self.follow()
            case "refresh":
                for replica in self.replicas:
                    before = replica.position.seq
                    tail = max(self.acknowledged.values(), default=0)
                    await replica.refresh()
                    assert replica.position.seq >= before
                    self.check(replica)
                    if not self.held:
                        assert replica.position.seq >= min(tail, self.owners[-1][0].position.seq)
            case "wait":
                await self.clock.advance(self.random.choice([1, 7, 70]))
                for replica in self.replicas:
                    self.check(replica)
            case _:
                raise AssertionError(act)

    def check(self, replica: Replica) -> None:
        assert replica.failure is None
        position = replica.position
        if position.seq:
            shown = dump(replica._mirror.machine.state)  # type: ignore[arg-type]
            if (position.seq, position.digest) in self.states:
                assert shown == self.states[position.seq, position.digest]
            else:
                # Right after an epoch entry whose owner went no further.
                assert position.epochs[-1].resume_at == position.seq

    async def run(self, rounds: int = 30) -> None:
        for _ in range(rounds):
            await asyncio.sleep(0)

    async def end(self) -> None:
        for held in self.held:
            held.release()
        self.held.clear()
        await self.run()
        await self.act("refresh")
        database, _ = self.owners[-1]
        await database.barrier()
        for replica in self.replicas:
            await replica.refresh()
            assert replica.position == database.position
            self.check(replica)
            await replica.close()
        for database, _ in reversed(self.owners):
            with contextlib.suppress(TaqubaError):
                await database.close()
        await asyncio.gather(*self.tasks, return_exceptions=True)


ACTS = [
    "write",
    "write",
    "write much",
    "zombie writes",
    "hold",
    "land",
    "take over",
    "checkpoint",
    "checkpoint",
    "follow",
    "refresh",
    "refresh",
    "wait",
]


@pytest.mark.timeout(120)
@given(acts=st.lists(st.sampled_from(ACTS), max_size=40), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_a_replica_only_ever_shows_prefixes(acts: list[str], seed: int) -> None:
    async def main() -> None:
        play = Play(seed)
        await play.follow()
        await play.open()
        for act in acts:
            await play.act(act)
        await play.end()

    asyncio.run(main())
