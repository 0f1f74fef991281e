"""``taquba queues``, ``taquba jobs`` and ``taquba dead``, as far as they read."""

from __future__ import annotations

import argparse
import base64
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

from taquba.cli._arguments import Usage
from taquba.cli._filters import filters
from taquba.cli._following import following, known_queue
from taquba.cli._text import ago, json_text, one_line, size, table, when

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.queue import Attempt, Job, QueueStats

__all__ = ["list_command", "queues_command", "show_command"]

_STATES = ("pending", "scheduled", "claimed", "done", "dead")
_SHOWN = 2000
"""Bytes of a payload that are shown to people."""


async def queues_command(options: argparse.Namespace, clock: Clock) -> int:
    """List the queues."""
    async with following(options, clock) as follower:
        stats = {name: await follower.stats(name) for name in await follower.list_queues()}
    if options.json:
        print(json_text({"queues": {name: _counts(each) for name, each in stats.items()}}))
        return 0
    if not stats:
        print("no queue ever had a job")
        return 0
    rows = [["queue", *_STATES, "oldest ready"]]
    for name, each in stats.items():
        age = each.oldest_ready_age
        oldest = "" if age is None else ago(round(age * 1000)).removesuffix(" ago")
        rows.append([name, *(f"{getattr(each, state):,}" for state in _STATES), oldest])
    print(table(rows, right=range(1, 7)))
    return 0


async def list_command(options: argparse.Namespace, clock: Clock) -> int:
    """List jobs of one queue."""
    from taquba.queue import JobState

    state = None if options.state is None else JobState[options.state.upper()]
    wanted = filters(options, clock)
    async with following(options, clock) as follower:
        queue = await known_queue(follower, options.queue)
        page = await follower.list_jobs(
            queue, state, limit=options.limit, after=options.after, **wanted
        )
    if options.json:
        jobs = [_as_json(job) for job in page.jobs]
        print(json_text({"queue": queue, "jobs": jobs, "next": page.next}))
        return 0
    if not page.jobs:
        print("no such jobs")
        return 0
    now_ms = clock.now_ms()
    failing = any(job.last_error for job in page.jobs)
    rows = [["job", "state", "attempts", "enqueued", *(["last error"] if failing else [])]]
    for job in page.jobs:
        row = [
            job.id,
            job.state.name.lower(),
            f"{job.attempts} of {job.max_attempts}",
            ago(now_ms - round(job.enqueued_at.timestamp() * 1000)),
        ]
        rows.append([*row, *([one_line(job.last_error or "")] if failing else [])])
    print(table(rows))
    if page.next is not None:
        print(f"\nmore: --after {page.next}")
    return 0


async def show_command(options: argparse.Namespace, clock: Clock) -> int:
    """Show one job."""
    if options.payload and options.json:
        raise Usage("--payload writes bytes, so it does not go with --json")
    async with following(options, clock) as follower:
        job = await follower.get_job(options.job, fetch_payload=False)
        if job is None:
            raise Usage(
                f"there is no job {options.job!r}: it never was, or it is done or cancelled and "
                "its record is not kept"
            )
        if options.verb == "dead" and job.failed_at is None:
            raise Usage(f"job {job.id} is {job.state.name.lower()}: 'taquba jobs show' shows it")
        if options.payload:
            async for part in follower.stream_payload(job):
                sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
            return 0
        attempts = await follower.attempt_history(job.id)
    if options.json:
        history = [_attempt_as_json(attempt) for attempt in attempts]
        print(json_text({**_as_json(job), **_content(job), "history": history}))
    else:
        print(_as_text(job, attempts, clock.now_ms()))
    return 0


def _as_text(job: Job, attempts: tuple[Attempt, ...], now_ms: int) -> str:
    rows = [
        ["job", job.id],
        ["queue", job.queue],
        ["state", job.state.name.lower()],
        ["attempts", f"{job.attempts} of {job.max_attempts}"],
        ["priority", f"{job.priority:,}"],
    ]
    for name, moment in _times(job).items():
        if moment is not None:
            rows.append([name.removesuffix("_at"), when(moment, now_ms)])
    if job.cancel_requested:
        rows.append(["cancel", "was asked for"])
    if job.dedup_key is not None:
        rows.append(["dedup key", job.dedup_key])
    rows += [["header", f"{name}: {value}"] for name, value in job.headers.items()]
    if job.last_error is not None:
        kind = f"{job.error_type}: " if job.error_type else ""
        rows.append(["last error", one_line(kind + job.last_error)])
    parts = [table(rows)]
    if job.traceback:
        parts.append(job.traceback.rstrip())
    if attempts:
        parts.append(
            table(
                [
                    ["attempt", "outcome", "recorded", "error"],
                    *(
                        [
                            str(each.attempt),
                            each.outcome.name.lower().replace("_", " "),
                            when(each.recorded_at, now_ms),
                            one_line(each.error or ""),
                        ]
                        for each in attempts
                    ),
                ],
                right=(0,),
            )
        )
    parts.append(_shown(job))
    return "\n\n".join(parts)


def _shown(job: Job) -> str:
    if not job.payload_fetched:
        return f"payload, {size(job.payload_size)}, an object of its own (--payload writes it)"
    payload = job.payload
    head = payload[:_SHOWN]
    more = "" if len(payload) <= _SHOWN else "\n… (--payload writes all of it)"
    try:
        # A cut may be amid a character.
        text = head.decode("utf-8", "ignore" if more else "strict")
    except UnicodeDecodeError:
        text = head[:64].hex(" ", 4)
        more = "" if len(payload) <= 64 else "\n… (--payload writes all of it)"
    title = f"payload, {size(len(payload))}"
    return f"{title}:\n{text}{more}" if payload else title


def _times(job: Job) -> dict[str, datetime | None]:
    return {
        "enqueued_at": job.enqueued_at,
        "run_at": job.run_at,
        "woken_at": job.woken_at,
        "claimed_at": job.claimed_at,
        "completed_at": job.completed_at,
        "failed_at": job.failed_at,
    }


def _as_json(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "queue": job.queue,
        "state": job.state.name.lower(),
        "priority": job.priority,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        **{name: moment and moment.isoformat() for name, moment in _times(job).items()},
        "cancel_requested": job.cancel_requested,
        "dedup_key": job.dedup_key,
        "payload_size": job.payload_size,
        "headers": job.headers,
        "last_error": job.last_error,
        "error_type": job.error_type,
        "traceback": job.traceback,
    }


def _attempt_as_json(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "outcome": attempt.outcome.name.lower(),
        "claimed_at": attempt.claimed_at and attempt.claimed_at.isoformat(),
        "recorded_at": attempt.recorded_at.isoformat(),
        "error": attempt.error,
    }


def _counts(stats: QueueStats) -> dict[str, Any]:
    counts = {state: getattr(stats, state) for state in _STATES}
    return {**counts, "oldest_ready_age_seconds": stats.oldest_ready_age}


def _content(job: Job) -> dict[str, Any]:
    """The payload, unless it is an object of its own: as text if it is some."""
    if not job.payload_fetched:
        return {"payload": None, "payload_base64": None}
    payload = job.payload
    try:
        return {"payload": payload.decode(), "payload_base64": None}
    except UnicodeDecodeError:
        return {"payload": None, "payload_base64": base64.b64encode(payload).decode()}
