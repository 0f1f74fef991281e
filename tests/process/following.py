"""An owner and a follower, each for a process of its own.

Usage: following.py owner FOLDER | following.py follower FOLDER [UID]

Each does what the lines say that it reads, and answers each with a line.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys

from taquba import Follower, Queue, QueueConfig
from taquba.objectstore import LocalStore, open_store


async def own(folder: str) -> None:
    async with Queue.open(folder, config=QueueConfig(backoff_base=0)) as queue:
        say("open", queue.position)
        numbers = itertools.count()
        for line in sys.stdin:
            what, _, rest = line.strip().partition(" ")
            match what:
                case "enqueue":
                    for _ in range(int(rest)):
                        await queue.enqueue("q", b"%d" % next(numbers))
                case "work":
                    for claim in await queue.claim_many("q", int(rest)):
                        await queue.ack(claim)
                case "checkpoint":
                    await queue._core.database.checkpoint()
                case _:
                    raise AssertionError(line)
            say("done", queue.position)


async def follow(folder: str, uid: str = "") -> None:
    if uid:
        os.setuid(int(uid))
    store = await open_store(folder, read_only=True)
    async with Follower.open(store, poll_interval=0.02, max_poll_interval=0.05) as follower:
        say("open", follower.position, may_write(folder))
        for line in sys.stdin:
            await follower.wait_for(int(line))
            stats = await follower.stats("q")
            page = await follower.list_jobs("q", limit=10_000)
            assert [job.payload for job in page.jobs] == sorted(
                (job.payload for job in page.jobs), key=int
            )
            say(follower.position, stats.pending, stats.done, len(page.jobs))
    await store.close()


def may_write(folder: str) -> bool:
    try:
        with open(os.path.join(folder, "x"), "wb"):
            return True
    except PermissionError:
        return False


def say(*words: object) -> None:
    print(*words, flush=True)


if __name__ == "__main__":
    # What is imported late may be out of reach for another user.
    import concurrent.futures.thread  # noqa: F401

    LocalStore(".")
    asyncio.run({"owner": own, "follower": follow}[sys.argv[1]](*sys.argv[2:]))
