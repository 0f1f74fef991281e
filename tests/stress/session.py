"""One process's share of the work: it enqueues what is missing, and works until all is done.

What happens is told line by line, at once, so that it is known even if the process is killed
the next moment:

=========  ================================================================
enqueued   these jobs were acknowledged
started    a handler begins with this attempt of this job
settled    how this job ended was acknowledged: it must not start again
=========  ================================================================
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from taquba.errors import PermanentError
from taquba.queue import Claim, Queue, QueueConfig, QueueTransaction, new_job
from tests.simulation.worker_invariants import End
from tests.simulation.workers import note

LEASE = 0.5
CONFIG = QueueConfig(max_attempts=5, lease=LEASE, backoff_base=0.01, keep_dead=None)
_BATCH = 20
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What all sessions do together."""

    jobs: int
    """What is enqueued, apart from what handlers enqueue."""
    queues: int
    concurrency: int = 8
    """Slots of the worker of each queue."""
    producers: int = 8

    def names(self) -> list[str]:
        return [f"queue-{number}" for number in range(self.queues)]


class Session:
    """Does its share in one open queue."""

    def __init__(self, queue: Queue, work: Work, *, seed: str, tell: Tell) -> None:
        self._queue = queue
        self._work = work
        self._random = Random(seed)
        self._tell = tell
        self._changed = asyncio.Event()
        self._settled: list[str] = []
        self._all_made = False

    async def run(self) -> None:
        """Return when nothing is left to do."""
        queue, names = self._queue, self._work.names()
        workers = [
            queue.engine(name, self._handle, concurrency=self._work.concurrency) for name in names
        ]
        tasks = [asyncio.ensure_future(worker.run()) for worker in workers]
        telling = asyncio.ensure_future(self._tell_of_settled())
        try:
            await asyncio.gather(*(self._produce(n) for n in range(self._work.producers)))
            self._all_made = True
            while await self._left():
                self._changed.clear()
                await self._changed.wait()
            for worker in workers:
                worker.stop()
            await asyncio.gather(*tasks)
        finally:
            for task in (*tasks, telling):
                task.cancel()
            with suppress(asyncio.CancelledError):
                await telling

    async def _left(self) -> int:
        stats = [await self._queue.stats(name) for name in self._work.names()]
        return sum(each.pending + each.scheduled + each.claimed for each in stats)

    async def _produce(self, producer: int) -> None:
        """Enqueue this producer's jobs; how far it came is written along with them."""
        queue, random = self._queue, self._random
        mark = f"made/{producer}"
        numbers = range(producer, self._work.jobs, self._work.producers)
        names = self._work.names()
        made = int(await queue.kv.get(mark) or b"0")
        while made < len(numbers):
            batch = numbers[made : made + random.choice((1, 1, _BATCH))]
            made += len(batch)
            await queue.ready()
            with queue.transaction() as tx:
                for number in batch:
                    name = names[number % len(names)]
                    priority = random.choice((None, None, 5))
                    tx.enqueue(new_job(name, b"x" * 64, job_id=f"j{number}", priority=priority))
                tx.put(mark.encode(), b"%d" % made)
            await tx.durable()
            for number in batch:
                self._tell(f"enqueued j{number}")

    async def _handle(self, claim: Claim) -> Callable[[QueueTransaction], None]:
        job, random = claim.job, self._random
        self._tell(f"started {job.id} {job.attempts} {job.max_attempts}")
        fate = random.random()
        if fate < 0.05:
            raise RuntimeError("not this time")
        if fate < 0.06:
            raise PermanentError("never")
        if fate < 0.061:
            await self._queue.clock.sleep(3 * LEASE)
        elif fate < 0.0612:
            time.sleep(0.02)  # a handler that blocks the loop
        elif fate < 0.2:
            await self._queue.clock.sleep(random.random() * 0.01)
        follows = random.random() < 0.05 and not job.id.endswith("-next")

        def settle(tx: QueueTransaction) -> None:
            tx.ack(claim)
            note(tx, f"done/{job.id}", job.attempts)
            count(tx, f"total/{job.queue}")
            if follows:
                tx.enqueue(new_job(job.queue, b"", job_id=f"{job.id}-next"))
                note(tx, f"next/{job.id}", 1)
            tx.after_commit(lambda: self._note_settled(job.id))

        return settle

    def _note_settled(self, job_id: str) -> None:
        self._settled.append(job_id)
        self._changed.set()

    async def _tell_of_settled(self) -> None:
        while True:
            await self._queue.clock.sleep(0.02)
            settled, self._settled = self._settled, []
            if settled:
                await self._queue.barrier()
                for job_id in settled:
                    self._tell(f"settled {job_id}")
            if self._all_made:
                self._changed.set()  # a job that died may have been the last


def count(tx: QueueTransaction, key: str) -> None:
    """Add one to a counter."""
    row = tx.execute("SELECT value FROM kv WHERE key = ?", (key.encode(),)).fetchone()
    tx.put(key.encode(), b"%d" % (int(row[0] if row else 0) + 1))


async def look(queue: Queue, work: Work) -> End:
    """What came of everything."""
    rows = await queue.read("SELECT id, state, attempts, max_attempts, last_error FROM jobs")
    pairs = await queue.read("SELECT key, value FROM kv")
    return End(
        jobs={row[0]: row[1:] for row in rows},
        notes={key.decode(): value.decode() for key, value in pairs},
        done={name: (await queue.stats(name)).done for name in work.names()},
    )
