"""A small service that sends e-mails: a durable queue in a folder or bucket, and a worker.

    python examples/email_worker.py --store mail-state --outbox sent ann@example.org ben@example.org

Each address given is enqueued; then the worker sends until nothing is left (or, with --serve,
until SIGTERM or Ctrl-C). Sending is played: a message is written to a file of the outbox, and the
server is busy at the first attempt, so that a retry can be seen. Kill it at any moment and start
it again: what was enqueued is sent, and what is noted as sent is not sent again.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path

from taquba import Dead, Delivery, Effects, Queue, QueueConfig, Retry

EMAILS = "emails"


class Mailer:
    """Sends the e-mails of one process."""

    def __init__(self, outbox: Path) -> None:
        self.outbox = outbox

    def send(self, delivery: Delivery) -> Effects | Retry | Dead:
        """The handler. It blocks, so the worker calls it in a thread."""
        address = delivery.payload.decode()
        if "@" not in address:
            return Dead(f"{address!r} is no e-mail address")
        if delivery.attempt == 1:
            return Retry("the server is busy", after=0.05)
        # The job's id is the same in each attempt: a second one writes the same file.
        (self.outbox / f"{delivery.id}.eml").write_text(f"To: {address}\n\nHello!\n")
        print(f"sent to {address}, at attempt {delivery.attempt}")
        return Effects().put(f"sent/{address}", delivery.id.encode())


async def enqueue(queue: Queue, addresses: list[str]) -> None:
    for address in addresses:
        if await queue.kv.get(f"sent/{address}") is not None:
            print(f"{address} has been sent one already")
            continue
        await queue.enqueue(EMAILS, address.encode(), dedup_key=address)


async def until_nothing_is_left(queue: Queue) -> None:
    while True:
        stats = await queue.stats(EMAILS)
        if stats.pending + stats.scheduled + stats.claimed == 0:
            return
        await asyncio.sleep(0.05)


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("addresses", nargs="*", metavar="ADDRESS")
    parser.add_argument("--store", default="email-state", help="folder or URL of the queue")
    parser.add_argument("--outbox", type=Path, default=Path("outbox"))
    parser.add_argument("--serve", action="store_true", help="run until SIGTERM or Ctrl-C")
    options = parser.parse_args()
    options.outbox.mkdir(parents=True, exist_ok=True)

    config = QueueConfig(max_attempts=5, backoff_base=0.05)
    async with Queue.open(options.store, queues={EMAILS: config}) as queue:
        await enqueue(queue, options.addresses)
        worker = queue.worker(
            EMAILS, Mailer(options.outbox).send, concurrency=4, job_timeout=60, drain_timeout=10
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.stop)
        async with worker:
            if options.serve:
                print("serving", flush=True)
                await worker.drained()
            else:
                await until_nothing_is_left(queue)
        stats = await queue.stats(EMAILS)
        print(f"{stats.done} sent, {stats.dead} given up, {stats.pending + stats.scheduled} left")


if __name__ == "__main__":
    asyncio.run(main())
