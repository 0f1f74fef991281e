"""``taquba runs cancel`` and ``taquba signal``."""

from __future__ import annotations

import argparse
import base64
import os
import sys
from typing import TYPE_CHECKING

from taquba.cli._arguments import Usage
from taquba.cli._following import following
from taquba.cli._owning import check_unowned, owning
from taquba.cli._text import amount, json_text, when

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.queue import Follower, Queue
    from taquba.workflow import Signalled, WorkflowRuntime

__all__ = ["cancel_command", "runtime_on", "signal_command"]


async def cancel_command(options: argparse.Namespace, clock: Clock) -> int:
    """Cancel a run."""
    from taquba.workflow import TerminalStatus, WorkflowView

    async with following(options, clock) as follower:
        status = await WorkflowView(follower, queue_name=options.queue).status(options.run)
        if status is None:
            raise Usage(
                f"there is no run {options.run!r} of the runtime {options.queue!r}: 'taquba runs "
                "list' shows those that there are, and --queue names another runtime"
            )
        end = status.termination
        if end is None:
            await check_unowned(follower, options, clock, call="WorkflowRuntime.cancel")
        elif end.status is not TerminalStatus.CANCELLED:
            raise Usage(
                f"run {options.run!r} has {end.status.value} already, at "
                f"{when(end.terminated_at, clock.now_ms())}: there is nothing to cancel"
            )
    changed = end is None
    if changed:
        async with owning(options, clock) as queue, runtime_on(queue, options.queue) as runtime:
            if not await runtime.cancel(options.run):
                raise Usage(
                    f"run {options.run!r} has ended meanwhile: 'taquba runs show' tells how"
                )
    if options.json:
        print(json_text({"run_id": options.run, "cancelled": True, "changed": changed}))
    elif changed:
        print(f"cancelled run {options.run}")
    else:
        print(f"run {options.run} was cancelled before")
    return 0


async def signal_command(options: argparse.Namespace, clock: Clock) -> int:
    """Send a signal."""
    payload = _payload(options)
    from taquba.workflow._signal import new_signal

    new_signal(options.key, payload, options.signal_id, options.mode)  # before anything is opened
    async with following(options, clock) as follower:
        await _check_runtime(follower, options.queue)
        await check_unowned(follower, options, clock, call="WorkflowRuntime.signal")
    async with owning(options, clock) as queue, runtime_on(queue, options.queue) as runtime:
        signalled = await runtime.signal(
            options.key, payload, signal_id=options.signal_id, mode=options.mode
        )
    if options.json:
        replaced = signalled.replaced
        encoded = None if replaced is None else base64.b64encode(replaced).decode()
        print(
            json_text(
                {
                    "outcome": signalled.outcome.value,
                    "created": signalled.created,
                    "run_id": signalled.run_id,
                    "replaced_base64": encoded,
                }
            )
        )
    else:
        print(_told(options.key, signalled))
    return 0


def _told(key: str, signalled: Signalled) -> str:
    from taquba.workflow import SignalOutcome

    match signalled.outcome:
        case SignalOutcome.DELIVERED:
            text = f"signal {key!r} was given to run {signalled.run_id}"
        case SignalOutcome.BUFFERED:
            text = f"signal {key!r} is buffered: no run waits for it now, and the next gets it"
        case SignalOutcome.REPLACED:
            text = f"signal {key!r} was replaced by a later one, before a run waited for it"
        case _:
            text = f"signal {key!r} was cleared, before a run waited for it"
    if signalled.replaced is not None:
        text += f"; it replaces one of {amount(len(signalled.replaced), 'byte')}"
    return text if signalled.created else f"nothing was sent, since one with this id was: {text}"


def _payload(options: argparse.Namespace) -> bytes:
    if options.file is None:
        return b"" if options.payload is None else os.fsencode(options.payload)
    if options.payload is not None:
        raise Usage("give the payload or --file, not both")
    from taquba.workflow import MAX_SIGNAL_SIZE

    if options.file == "-":
        return sys.stdin.buffer.read(MAX_SIGNAL_SIZE + 1)
    with open(options.file, "rb") as file:
        return file.read(MAX_SIGNAL_SIZE + 1)


async def _check_runtime(follower: Follower, name: str) -> None:
    """Refuse a name that no runtime has had: who would wait there for a signal?

    Raises:
        Usage: Nothing was ever submitted with it.
    """
    queues = await follower.list_queues()
    if not any(queue.partition("@")[0] == name for queue in queues):
        raise Usage(
            f"no run was ever submitted to a runtime {name!r}: --queue gives the queue_name of the "
            "runtime, and 'taquba queues' shows the queues that there are"
        )


def runtime_on(queue: Queue, name: str) -> WorkflowRuntime:
    """A runtime that runs nothing; it goes on with the timelines that others keep."""
    from taquba.workflow import WorkflowRuntime

    kept = queue.peek("SELECT 1 FROM sqlite_master WHERE name = 'timeline'") and queue.peek(
        "SELECT 1 FROM timeline LIMIT 1"
    )
    return WorkflowRuntime(queue, queue_name=name, keep_history=bool(kept))
