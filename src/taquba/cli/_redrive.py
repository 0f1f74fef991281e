"""``taquba dead redrive``: the one command that writes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from taquba.cli._arguments import Usage, opened
from taquba.cli._filters import filters
from taquba.cli._following import following, known_queue
from taquba.cli._text import ago, amount, json_text
from taquba.errors import InvalidState, JobNotFound

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.queue import Follower, Queue

__all__ = ["redrive_command"]

_ADVICE = (
    "A process that is running can redrive itself, with Queue.requeue_dead_many. --take-over does "
    "it here all the same: that process, if there is one, is fenced, stops with an error, and has "
    "to be started again; jobs that it works on are delivered again"
)


async def redrive_command(options: argparse.Namespace, clock: Clock) -> int:
    """Put dead jobs back."""
    wanted = filters(options, clock)
    narrowed = any(value is not None for value in wanted.values())
    if not (options.job or options.all or narrowed):
        raise Usage("say which jobs: --job JOB, --all, or a filter such as --error TEXT")
    if options.job and (options.all or narrowed or options.limit is not None):
        raise Usage("--job names the jobs, so neither --all nor a filter nor --limit goes with it")
    async with following(options, clock) as follower:
        await known_queue(follower, options.queue)
        if not options.take_over:
            await _check_unowned(follower, options.url, clock)
    store = await opened(options, clock, read_only=False)
    try:
        from taquba.queue import Queue, QueueConfig

        # What the owner keeps must not be swept by a configuration that is not its own.
        config = QueueConfig(keep_dead=None)
        # Its heartbeat says that it closed, so that the next command need not take over.
        async with Queue.open(
            store, clock=clock, config=config, state="disk", heartbeat=60
        ) as queue:
            if options.job:
                count, more, refused = await _named(queue, options.queue, options.job)
            else:
                done = await queue.requeue_dead_many(options.queue, limit=options.limit, **wanted)
                count, more, refused = done.count, done.more, []
    finally:
        await store.close()
    if options.json:
        print(json_text({"requeued": count, "more": more, "refused": refused}))
    else:
        print(f"put back {amount(count, 'job')}" + ("; there are more" if more else ""))
        for reason in refused:
            print(f"not put back: {reason}")
    return 2 if refused else 0


async def _named(queue: Queue, name: str, ids: list[str]) -> tuple[int, bool, list[str]]:
    count, refused = 0, list[str]()
    for job_id in dict.fromkeys(ids):
        try:
            job = await queue.get_job(job_id, fetch_payload=False)
            if job is not None and job.queue != name:
                raise InvalidState(f"job {job_id!r} is on queue {job.queue!r}")
            await queue.requeue_dead(job_id)
            count += 1
        except (JobNotFound, InvalidState) as error:
            refused.append(str(error))
    return count, False, refused


async def _check_unowned(follower: Follower, url: str, clock: Clock) -> None:
    """Refuse, unless the last owner said that it went.

    Raises:
        Usage: There may be an owner.
    """
    beat = await follower.heartbeat()
    if beat is None:
        raise Usage(
            f"{url} may be owned by a running process: it writes no heartbeat "
            f"(Queue.open(heartbeat=…)), so nobody can tell. {_ADVICE}"
        )
    if beat.epoch < follower.lag.epoch:
        raise Usage(
            f"{url} may be owned by a running process: it was opened again since the last "
            f"heartbeat, by one that writes none. {_ADVICE}"
        )
    if not beat.closed:
        age = ago(clock.now_ms() - round(beat.at.timestamp() * 1000))
        raise Usage(
            f"{url} may be owned by a running process: its last heartbeat was {age}, and it did "
            f"not say that it closed. {_ADVICE}"
        )
