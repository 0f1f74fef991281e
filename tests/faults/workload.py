"""A process of the fault matrix: works on a queue, and notes what was acknowledged.

Every line goes to an append-only log, in one write, before the process goes on, and to
standard output, for who waits for it. It begins with the process's name:

==========================  ====================================================================
opened EPOCH                the store is open
trying JOB                  an enqueue begins
enqueued JOB                it was acknowledged
claimed JOB ATTEMPT         a claim was acknowledged
settling JOB ATTEMPT HOW    a settlement begins: done, retry or dead
settled JOB ATTEMPT HOW     it was acknowledged
refused JOB ATTEMPT         the settlement was refused, since the claim had ended
putting KEY NUMBER          a key is written; its numbers ascend
put KEY NUMBER              that was acknowledged
checkpointed                a checkpoint was stored
migrated VERSION            the tables have this version
fenced, failed ERROR        the end, by an error
closed                      the end
log LEVEL MESSAGE           what the library logged
==========================  ====================================================================

Commands come from standard input, one a line: ``stop``, ``jump SECONDS``, ``room BYTES`` (and
``go``, before anything else, for a process that contends). The
end of the input is a ``stop``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import zlib
from collections.abc import Callable
from typing import Any

from taquba import Queue
from taquba.clock import SystemClock
from taquba.database import SchemaModule
from taquba.errors import ClaimLost, Fenced, TaqubaError
from taquba.objectstore import ObjectStore, open_store
from taquba.queue import Claim, Effects, QueueConfig

from .disk import Disk
from .mortal import MortalStore
from .plan import Plan

__all__ = ["CONFIG", "how_to_settle", "main", "payload_of", "shop"]

CONFIG = QueueConfig(max_attempts=10**6, backoff_base=0, keep_done=86_400.0)
"""Interruptions do not use attempts up, and what is done stays to be judged."""

_FENCED, _FAILED = 3, 4


def payload_of(job: str, size: int) -> bytes:
    """What a job must carry."""
    return f"{job} {size} ".encode().ljust(size, b"%d" % (zlib.crc32(job.encode()) % 10))


def how_to_settle(job: str, attempt: int) -> str:
    """What becomes of this attempt: one in ten fails first, one in ten is given up."""
    lot = zlib.crc32(job.encode()) % 10
    if lot == 0 and attempt == 1:
        return "retry"
    return "dead" if lot == 1 else "done"


def shop(version: int) -> SchemaModule:
    """Tables of an application, whose second version doubles every price, once."""
    tables = "CREATE TABLE goods (name TEXT NOT NULL PRIMARY KEY, price INTEGER NOT NULL)"
    if version == 1:
        return SchemaModule(name="shop", version=1, statements=(tables,))
    more = ("ALTER TABLE goods ADD COLUMN currency TEXT", "UPDATE goods SET price = price * 2")
    return SchemaModule(name="shop", version=2, statements=(tables, more[0]), migrations={1: more})


class _Jumping(SystemClock):
    """A wall clock that somebody sets."""

    def __init__(self, offset: float) -> None:
        self.offset = offset

    def now_ms(self) -> int:
        return super().now_ms() + round(self.offset * 1000)


class _LogLines(logging.Handler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage().replace("\n", " ")
        if record.exc_info and record.exc_info[1] is not None:
            message += f": {record.exc_info[1]!r}"
        self._tell(f"log {record.levelname} {message}")


class Life:
    """One process, from opening to its end."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.clock = _Jumping(plan.clock_offset)
        self.disk = Disk(plan.room, lambda: self.tell("disk full"))
        self.stopping = asyncio.Event()
        self.arrived = asyncio.Event()
        self.busy = 0
        self.produced = 0
        self._log = os.open(plan.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, text: str) -> None:
        line = f"{self.plan.name} {text}\n".encode()
        os.write(self._log, line)
        self.tell(text)

    def tell(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(1, text.encode() + b"\n")

    # -- commands ---------------------------------------------------------------------------

    def obey(self, reader: int) -> None:
        commands = os.read(reader, 4096).decode()
        if not commands:
            asyncio.get_running_loop().remove_reader(reader)
            commands = "stop"
        for command in commands.splitlines():
            what, *rest = command.split()
            match what:
                case "stop":
                    self.stopping.set()
                    self.arrived.set()
                case "jump":
                    self.clock.offset += float(rest[0])
                case "room":
                    self.disk.give(int(rest[0]))
                case _:
                    raise ValueError(command)
            self.tell(f"obeyed {what}")

    # -- life -------------------------------------------------------------------------------

    async def run(self) -> int:
        logger = logging.getLogger("taquba")
        logger.setLevel(logging.INFO)
        logger.addHandler(_LogLines(self.tell))
        asyncio.get_running_loop().add_reader(0, self.obey, 0)
        self.disk.limit(self.plan.full)
        queue: Queue | None = None
        try:
            async with asyncio.TaskGroup() as group:
                target = await self._target()
                queue = await Queue.open(
                    target,
                    storage_options=None if isinstance(target, ObjectStore) else self.plan.options,
                    config=CONFIG,
                    clock=self.clock,
                    close_timeout=self.plan.close_timeout,
                    state=self.plan.state,
                )
                self.note(f"opened {queue._core.database.journal.epoch}")
                group.create_task(getattr(self, self.plan.task)(queue))
            await queue.close()
        except BaseExceptionGroup as errors:
            return await self._end(queue, _first(errors))
        except TaqubaError as error:
            return await self._end(queue, error)
        self.note("closed")
        return 0

    async def _end(self, queue: Queue | None, error: BaseException) -> int:
        if isinstance(error, Fenced):
            self.note("fenced")
        else:
            self.note(f"failed {type(error).__name__} {error}")
        if queue is not None:
            with contextlib.suppress(TaqubaError):
                await queue.close()
        return _FENCED if isinstance(error, Fenced) else _FAILED

    async def _target(self) -> Any:
        plan = self.plan
        if plan.kill is None:
            return plan.target
        store = await open_store(plan.target, **plan.options)
        return MortalStore(store, plan.kill, self.tell)

    # -- tasks ------------------------------------------------------------------------------

    async def work(self, queue: Queue) -> None:
        """Enqueue and settle jobs at the same time, until told to stop, or all is done."""
        plan = self.plan
        for name in ("work", "next"):
            queue._core.lane(name).listeners.append(self.arrived.set)
        slots = asyncio.Semaphore(plan.ahead * plan.producers)
        async with asyncio.TaskGroup() as group:
            for number in range(plan.producers):
                group.create_task(self._produce(queue, f"{plan.name}-{number}", slots))
            for _ in range(plan.consumers):
                group.create_task(self._consume(queue, slots))

    async def _produce(self, queue: Queue, name: str, slots: asyncio.Semaphore) -> None:
        plan = self.plan
        try:
            for number in range(plan.jobs):
                await slots.acquire()
                if self.stopping.is_set():
                    return
                job = f"{name}-{number}"
                self.note(f"trying {job}")
                await queue.enqueue(
                    "work",
                    payload_of(job, plan.payload),
                    job_id=job,
                    delay=plan.delay or None,
                )
                self.note(f"enqueued {job}")
                if number % 5 == 0:
                    self.note(f"putting {name} {number}")
                    await queue.kv.put(f"count/{name}", b"%d" % number)
                    self.note(f"put {name} {number}")
        finally:
            self.produced += 1
            self.arrived.set()

    async def _consume(self, queue: Queue, slots: asyncio.Semaphore) -> None:
        while True:
            claim = await queue.claim("next", self.plan.lease)
            if claim is None:
                claim = await queue.claim("work", self.plan.lease)
            if claim is None:
                if await self._is_over(queue):
                    self.arrived.set()  # for the others
                    return
                self.arrived.clear()
                await self.arrived.wait()
                continue
            self.busy += 1
            try:
                await self._settle(queue, claim)
            finally:
                self.busy -= 1
            slots.release()
            if self.stopping.is_set():
                self.arrived.set()
                return

    async def _is_over(self, queue: Queue) -> bool:
        if self.stopping.is_set():
            return True
        if self.produced < self.plan.producers or self.busy:
            return False
        left = [await queue.stats(name) for name in ("work", "next")]
        return not any(stats.pending + stats.scheduled + stats.claimed for stats in left)

    async def _settle(self, queue: Queue, claim: Claim) -> None:
        job, attempt = claim.job.id, claim.job.attempts
        self.note(f"claimed {job} {attempt}")
        if self.plan.hold:
            await self.clock.sleep(self.plan.hold)
        how = how_to_settle(job, attempt)
        self.note(f"settling {job} {attempt} {how}")
        try:
            if how == "retry":
                await queue.nack(claim, "not yet")
            elif how == "dead":
                await queue.dead_letter(claim, "for good")
            else:
                effects = Effects().put(f"done/{job}", b"%d" % attempt)
                if claim.job.queue == "work":
                    follow_up = f"{job}-next"
                    effects.enqueue("next", payload_of(follow_up, 50), job_id=follow_up)
                await queue.ack(claim, effects)
        except ClaimLost:
            self.note(f"refused {job} {attempt}")
        else:
            self.note(f"settled {job} {attempt} {how}")

    async def checkpoints(self, queue: Queue) -> None:
        """Checkpoints between changes; the later ones collect what the earlier ones need not."""
        for round_ in range(3):
            for number in range(4):
                job = f"{self.plan.name}-{round_}-{number}"
                self.note(f"trying {job}")
                await queue.enqueue("work", payload_of(job, self.plan.payload), job_id=job)
                self.note(f"enqueued {job}")
                if number % 2 == 0:
                    claim = await queue.claim("work")
                    assert claim is not None
                    await self._settle(queue, claim)
            await queue._core.database.checkpoint()
            self.note("checkpointed")

    async def migrate(self, queue: Queue) -> None:
        """Bring the tables to a version; the first one also gets rows."""
        await queue.add_tables(shop(self.plan.version))
        self.note(f"migrated {self.plan.version}")
        if self.plan.version == 1:
            for number in range(50):
                with queue.transaction() as tx:
                    tx.execute("INSERT INTO goods VALUES (?, ?)", (f"thing {number}", number))
                await tx.durable()
        await self.work(queue)

    async def contend(self, queue: Queue) -> None:
        """Write until told to stop, or until somebody else has the store."""
        number = 0
        while not self.stopping.is_set():
            job = f"{self.plan.name}-{number}"
            self.note(f"trying {job}")
            await queue.enqueue("work", payload_of(job, self.plan.payload), job_id=job)
            self.note(f"enqueued {job}")
            number += 1


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    fenced = group.subgroup(Fenced)
    first = (fenced or group).exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def main(plan: Plan) -> int:
    """Live; the exit status."""
    if plan.scratch is not None:
        tempfile.tempdir = plan.scratch
    if plan.task == "contend":
        os.read(0, len("go\n"))  # so that two of them begin at the same instant
    return asyncio.run(Life(plan).run())
