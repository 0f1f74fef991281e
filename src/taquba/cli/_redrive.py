"""``taquba dead redrive``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from taquba.cli._arguments import Usage
from taquba.cli._filters import filters
from taquba.cli._following import following, known_queue
from taquba.cli._owning import check_unowned, owning
from taquba.cli._text import amount, json_text
from taquba.errors import InvalidState, JobNotFound

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.queue import Queue

__all__ = ["redrive_command"]


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
        await check_unowned(follower, options, clock, call="Queue.requeue_dead_many")
    async with owning(options, clock) as queue:
        if options.job:
            count, more, refused = await _named(queue, options.queue, options.job)
        else:
            done = await queue.requeue_dead_many(options.queue, limit=options.limit, **wanted)
            count, more, refused = done.count, done.more, []
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
