"""One seeded world: a store, rival writers over the real journal, and what happens to them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from taquba.errors import Closed, CommitUnknown, Fenced, StoreError, TaqubaError
from taquba.journal import (
    Checkpoint,
    Entry,
    Journal,
    JournalConfig,
    Position,
    collect,
    publish_checkpoint,
)
from tests.simulation import invariants
from tests.simulation.network import FAIR, Process, RecordingStore, Weather
from tests.simulation.virtual_loop import Stuck, run

WINDOW = 4
_HEAD = struct.Struct(">II")


@dataclass
class World:
    """Everything that a seed decides, and all that is recorded to judge it."""

    seed: int
    random: Random
    store: RecordingStore = field(default_factory=RecordingStore)
    trace: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    violations: list[str] = field(default_factory=list[str])
    acknowledged: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(writer, value), in the order of acknowledgement."""
    appended: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """By writer, in order."""
    owners: dict[int, int] = field(default_factory=dict[int, int])
    """Epoch to the writer that opened with it."""
    final: list[int] = field(default_factory=list[int])
    values: int = 0
    writers: int = 0
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def note(self, *event: Any) -> None:
        self.trace.append((asyncio.get_running_loop().time(), *event))

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def violate(self, what: str) -> None:
        self.note("VIOLATION", what)
        self.violations.append(what)

    def readable(self) -> str:
        lines = [
            f"{event[0]:10.4f}  {' '.join(str(part) for part in event[1:])}" for event in self.trace
        ]
        return "\n".join(lines)


class Numbers:
    """The state machine: the list of all numbers ever appended."""

    def __init__(self, world: World, process: Process, writer: int) -> None:
        self.world = world
        self.process = process
        self.writer = writer
        self.numbers: list[int] = []
        self.fresh: list[int] = []
        self.epoch = 0
        self.author = -1
        self.failure: TaqubaError | None = None
        self.waits: dict[int, asyncio.Future[None]] = {}
        self.doomed: set[int] = set()
        """What was not acknowledged when the journal stopped."""
        self.seq_of: dict[int, int] = {}
        """By number, the entry it was sealed into."""
        self.snapshots: list[tuple[Position, list[int]]] = []
        self.snapshot_wanted = False

    async def restore(self, checkpoint: Checkpoint | None) -> None:
        await self.process.sleep(0.001)
        self.numbers = [] if checkpoint is None else list(checkpoint.content["numbers"])
        self.epoch = 0 if checkpoint is None else checkpoint.position.epoch
        self.author = -1

    def apply(self, entry: Entry) -> None:
        author, count = _HEAD.unpack_from(entry.body)
        complaint = invariants.wrong_epoch(entry.epoch, author, self.epoch, self.author)
        if complaint:
            self.world.violate(f"{self.process.name}: {complaint}")
        self.epoch, self.author = entry.epoch, author
        self.numbers.extend(struct.unpack_from(f">{count}Q", entry.body, _HEAD.size))

    def check(self, metadata: bytes) -> None:
        if metadata != b"sim":
            self.world.violate(f"{self.process.name}: metadata is {metadata!r}")

    def seal(self, seq: int) -> bytes | None:
        fresh, self.fresh = self.fresh, []
        if not fresh:
            return None
        self.numbers += fresh
        self.seq_of.update(dict.fromkeys(fresh, seq))
        self.world.note(self.process.name, "seals", seq, fresh)
        return _HEAD.pack(self.writer, len(fresh)) + struct.pack(f">{len(fresh)}Q", *fresh)

    def sealed(self, position: Position) -> None:
        if self.snapshot_wanted:
            self.snapshot_wanted = False
            self.snapshots.append((position, list(self.numbers)))

    def failed(self, error: TaqubaError) -> None:
        self.failure = error
        self.doomed = {value for value, future in self.waits.items() if not future.done()}
        if self.process.dead:
            return
        self.world.note(self.process.name, "stopped:", repr(error)[:60])
        complaint = invariants.fenced_without_rival(error, self.epoch, self.world.store)
        if complaint:
            self.world.violate(f"{self.process.name}: {complaint}")


class Writer:
    """A process that opens the store, appends numbers, checkpoints, collects, and ends."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world = world
        self.number = world.writers
        world.writers += 1
        world.appended[self.number] = []
        self.process = Process(f"w{self.number}", world.store, world.random, weather, world.note)
        self.machine = Numbers(world, self.process, self.number)
        self.journal: Journal | None = None
        self.side_tasks: list[asyncio.Task[None]] = []
        self.stopping = False
        self.heard_before = 0
        """Every entry of ours before this seq is known to have landed."""

    def beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self.side_tasks.append(task)
        return task

    async def open(self) -> bool:
        world, random = self.world, self.world.random
        world.note(self.process.name, "opens")
        if random.random() < 0.25:
            # Long enough for the tail that it read to be passed, and collected.
            self.process.creates_take = random.uniform(0.5, 2.0)
        known = [value for _, value in world.acknowledged]
        config = JournalConfig(
            window=WINDOW,
            commit_interval=random.choice((0.0, 0.005, 0.05)),
            first_retry_delay=0.02,
            max_retry_delay=0.5,
            prefetch=random.choice((1, 3, 16)),
        )
        for _ in range(30):
            try:
                journal = self.journal = await Journal.open(
                    self.process.store,
                    self.machine,
                    clock=self.process.clock,
                    config=config,
                    metadata=b"sim",
                )
            except StoreError:
                await self.process.sleep(0.2)
                continue
            except TaqubaError as error:
                world.violate(f"{self.process.name} cannot open: {error!r}")
                return False
            break
        else:
            return False
        self.process.creates_take = 0.0
        self.machine.epoch = epoch = journal.epoch
        world.count("opened")
        world.note(self.process.name, "owns epoch", epoch, "at", journal.position.seq)
        for complaint in (
            invariants.epoch_owned_twice(epoch, self.number, world.owners),
            invariants.lost(known, self.machine.numbers),
        ):
            if complaint:
                world.violate(f"{self.process.name} opened: {complaint}")
        world.owners[epoch] = self.number
        self.heard_before = journal.position.seq
        if world.store.ahead(journal.position.epochs[-1].seq):
            world.count("ahead")
        return True

    async def work(self) -> None:
        for _ in range(self.world.random.randint(1, 3)):
            self.beside(self.append_numbers())
        self.beside(self.take_checkpoints())

    async def append_numbers(self) -> None:
        world, random, journal = self.world, self.world.random, self.journal
        assert journal is not None
        hurry = random.choice((0.0, 0.05, 0.7))
        try:
            while not self.stopping:
                if not journal.admitting:
                    await journal.admit()
                waits: list[tuple[int, asyncio.Future[None]]] = []
                for _ in range(random.choice((1, 1, 1, 2, 5))):
                    if self.machine.failure is not None:
                        return
                    world.values += 1
                    value = world.values
                    self.machine.fresh.append(value)
                    ticket = journal.append()
                    world.appended[self.number].append(value)
                    waits.append((value, journal.durable(ticket)))
                    self.machine.waits[value] = waits[-1][1]
                    if random.random() < hurry:
                        journal.seal_now()
                patience = random.choice((None, None, None, 0.03))
                if patience is not None:
                    await self.process.sleep(patience)
                    for value, future in waits:
                        if not future.cancel():
                            await self.hear(value, future)
                else:
                    for value, future in waits:
                        await self.hear(value, future)
                await self.process.sleep(random.choice((0.0, 0.001, 0.02, 0.1)))
        except (Fenced, Closed, CommitUnknown):
            return

    async def hear(self, value: int, future: asyncio.Future[None]) -> None:
        await future
        if self.process.dead:
            return
        self.world.note(self.process.name, "acknowledged", value)
        self.world.acknowledged.append((self.number, value))
        assert self.journal is not None
        seq = self.machine.seq_of[value]
        seqs = range(self.heard_before, seq + 1)
        identity = bytes.fromhex(self.journal.writer_id)
        for complaint in (
            invariants.acknowledged_after_failure(value, self.machine.doomed),
            invariants.acknowledged_early(identity, seqs, self.world.store.landed, value),
        ):
            if complaint:
                self.world.violate(f"{self.process.name}: {complaint}")
        self.heard_before = max(self.heard_before, seq + 1)

    async def take_checkpoints(self) -> None:
        random = self.world.random
        while not self.stopping and self.machine.failure is None:
            await self.process.sleep(random.uniform(0.02, 0.5))
            self.machine.snapshot_wanted = True
            for position, numbers in self.machine.snapshots:
                self.beside(self.save(position, numbers))
            self.machine.snapshots = []

    async def save(self, position: Position, numbers: list[int]) -> None:
        """Publish a checkpoint, perhaps long after another process took over; then collect."""
        world, random, journal = self.world, self.world.random, self.journal
        assert journal is not None
        try:
            await journal.wait_stored(position.seq)
        except TaqubaError:
            return
        await self.process.sleep(random.choice((0.0, 0.01, 3 * random.random())))
        checkpoint = Checkpoint(
            position=position,
            created_at_ms=self.process.clock.now_ms(),
            writer=journal.writer_id,
            content={"numbers": numbers},
        )
        for _ in range(5):
            try:
                await publish_checkpoint(self.process.store, checkpoint)
                world.count("checkpoints")
                done = await collect(
                    self.process.store,
                    checkpoint,
                    keep=random.choice((1, 1, 2)),
                    batch=random.choice((1, 5, 100)),
                )
                world.counts["collected"] = world.counts.get("collected", 0) + done.entries
                return
            except StoreError:
                await self.process.sleep(0.1)
            except TaqubaError as error:
                world.violate(f"{self.process.name} cannot checkpoint: {error!r}")
                return

    async def end(self, timeout: float | None) -> None:
        self.stopping = True
        if self.journal is None or self.process.dead:
            return
        was_failed = self.machine.failure is not None
        self.world.note(self.process.name, "closes")
        with suppress(Fenced, CommitUnknown):
            await self.journal.close(timeout=timeout)
            complaint = invariants.closed_with_something_left(self.journal, was_failed)
            if complaint and not self.process.dead:
                self.world.violate(f"{self.process.name}: {complaint}")


async def _misfortune(world: World, writer: Writer) -> None:
    """Freeze the process now and then, most of all while it opens."""
    random = world.random
    loop = asyncio.get_running_loop()
    if random.random() < 0.5:
        await asyncio.sleep(random.random() * 0.12)
        writer.process.freeze(random.choice((0.3, 1.0, 2.5)) * random.random() + 0.1)
    while not writer.process.dead:
        await asyncio.sleep(random.expovariate(0.6))
        if loop.time() < writer.process.frozen_until:
            continue
        if random.random() < 0.35:
            writer.process.die()
        else:
            writer.process.freeze(random.choice((0.2, 1.0, 4.0)) * random.random())


async def _slot(world: World, weather: Weather, writers: list[Writer]) -> None:
    """One place in the cluster: a process lives there, ends, and is replaced."""
    random = world.random
    await asyncio.sleep(random.choice((0.0, 0.3, 1.0)) * random.random())
    for _ in range(random.randint(1, 3)):
        writer = Writer(world, weather)
        writers.append(writer)
        fate = writer.beside(_misfortune(world, writer))
        life = writer.beside(_live(writer))
        await asyncio.wait([life], timeout=random.uniform(0.3, 3.0))
        if random.random() < 0.3:
            writer.process.die()
        fate.cancel()
        await asyncio.sleep(random.random() * 0.3)


async def _live(writer: Writer) -> None:
    if not await writer.open():
        return
    await writer.work()
    random = writer.world.random
    await writer.process.sleep(random.uniform(0.1, 2.0))
    while writer.machine.failure is None and random.random() < 0.7:
        await writer.process.sleep(random.uniform(0.1, 1.0))
    await writer.end(random.choice((None, None, 0.05, 1.0)))


async def _history(world: World) -> None:
    random = world.random
    weather = Weather(
        latency=random.choice((0.002, 0.01, 0.03)),
        slow=random.choice((0.0, 0.02, 0.1)),
        slowest=random.choice((0.5, 3.0)),
        lost=random.choice((0.0, 0.05, 0.15)),
        twice=random.choice((0.0, 0.05, 0.15)),
    )
    world.note("weather", weather)
    writers: list[Writer] = []
    slots = [
        asyncio.ensure_future(_slot(world, weather, writers)) for _ in range(random.randint(2, 4))
    ]
    await asyncio.gather(*slots)
    world.note("the weather clears")
    for writer in writers:
        writer.process.weather = FAIR
        writer.process.frozen_until = 0.0
        writer.stopping = True
    await asyncio.sleep(20)  # whatever is still under way lands
    for writer in writers:
        await writer.end(None)
    last = Writer(world, FAIR)
    if not await last.open():
        return
    world.final = list(last.machine.numbers)
    await last.end(None)
    world.violations += invariants.judge(world)


def simulate(seed: int) -> World:
    """Live through the world of this seed. Same seed, same trace."""
    world = World(seed, Random(seed))

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        world.violations.append(f"the loop reports: {context.get('message')} {context!r}")

    try:
        run(_history(world), on_error)
    except Stuck as error:
        world.violations.append(f"stuck: {error}")
    return world


def explain(world: World) -> str:
    """What went wrong in a world, its trace, and how to see it again."""
    return "\n".join(
        [
            world.readable(),
            "",
            f"seed {world.seed} breaks the journal's promises:",
            *(f"  - {violation}" for violation in world.violations),
            f"again: python -m tests.simulation --journal --seed {world.seed} --trace",
        ]
    )
