"""``taquba runs``."""

from __future__ import annotations

import argparse
import base64
from datetime import datetime
from typing import TYPE_CHECKING, Any

from taquba.cli._arguments import Usage, moment
from taquba.cli._filters import filters
from taquba.cli._following import following
from taquba.cli._text import ago, json_text, one_line, table, when

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.workflow import RunOutcome, RunState, RunStatus, RunSummary, TerminalStatus

__all__ = ["list_command", "run_as_json", "show_command", "wanted_state", "what_of"]

_SHOWN = 2000
"""Bytes of a result that are shown to people."""


async def list_command(options: argparse.Namespace, clock: Clock) -> int:
    """List runs."""
    from taquba.workflow import WorkflowView

    wanted = filters(options, clock)
    ended: dict[str, datetime | None] = {
        name: None if text is None else moment(text, clock.now_ms(), option)
        for name, text, option in (
            ("ended_after", options.ended_since, "--ended-since"),
            ("ended_before", options.ended_until, "--ended-until"),
        )
    }
    async with following(options, clock) as follower:
        view = WorkflowView(follower, queue_name=options.queue)
        page = await view.runs(
            wanted_state(options),
            headers=wanted["headers"],
            error=wanted["error"],
            submitted_after=wanted["enqueued_after"],
            submitted_before=wanted["enqueued_before"],
            ended_after=ended["ended_after"],
            ended_before=ended["ended_before"],
            workflow=options.workflow,
            revision=options.revision,
            error_type=options.error_type,
            newest_first=options.newest_first,
            limit=options.limit,
            after=options.after,
        )
    if options.json:
        print(json_text({"runs": [run_as_json(run) for run in page.runs], "next": page.next}))
        return 0
    if not page.runs:
        print(f"the runtime {options.queue!r} has no such runs; --queue names another")
        return 0
    now_ms = clock.now_ms()
    rows = [["run", "state", "step", "submitted", "what"]]
    rows += [
        [
            run.run_id,
            run.state.value if run.status is None else run.status.value,
            str(run.current_step),
            ago(now_ms - round(run.submitted_at.timestamp() * 1000)),
            one_line(what_of(run, now_ms)),
        ]
        for run in page.runs
    ]
    print(table(rows, right=(2,)))
    if page.next is not None:
        print(f"\nmore: --after {page.next}")
    return 0


async def show_command(options: argparse.Namespace, clock: Clock) -> int:
    """Show one run."""
    from taquba.workflow import WorkflowView

    async with following(options, clock) as follower:
        view = WorkflowView(follower, queue_name=options.queue)
        status = await view.status(options.run)
        if status is None:
            raise Usage(
                f"there is no run {options.run!r} of the runtime {options.queue!r}: it never was, "
                "or it has been forgotten"
            )
        outcome = await view.outcome(options.run)
    if options.json:
        print(json_text(_status_as_json(status, outcome)))
    else:
        print(_as_text(status, outcome, clock.now_ms()))
    return 0


def wanted_state(options: argparse.Namespace) -> RunState | TerminalStatus | None:
    """What ``--state`` says."""
    from taquba.workflow import RunState, TerminalStatus

    states = {each.value: each for each in (*RunState, *TerminalStatus)}
    return None if options.state is None else states[options.state]


def what_of(run: RunSummary, now_ms: int) -> str:
    """What else is worth a look in a list."""
    if run.error is not None:
        return run.error
    if run.waiting_for is not None:
        until = "" if run.due is None else f" until {when(run.due, now_ms)}"
        return f"waits for signal {run.waiting_for!r}{until}"
    return "" if run.due is None else f"due {when(run.due, now_ms)}"


def _as_text(status: RunStatus, outcome: RunOutcome | None, now_ms: int) -> str:
    rows = [["run", status.run_id], ["state", status.state.value]]
    if status.workflow is not None:
        rows.append(["workflow", status.workflow])
    if status.revision is not None:
        rows.append(["revision", status.revision])
    rows.append(["step", str(status.current_step)])
    if status.waiting_for is not None:
        rows.append(["waits for signal", one_line(status.waiting_for)])
    if status.due is not None:
        rows.append(["due", when(status.due, now_ms)])
    if outcome is None:
        return table(rows)
    rows.append(["status", outcome.status.value])
    rows.append(["ended", when(outcome.terminated_at, now_ms)])
    rows += [["header", f"{name}: {value}"] for name, value in outcome.headers.items()]
    if outcome.error is not None:
        kind = "" if outcome.error_kind is None else f" ({outcome.error_kind.value})"
        rows.append(["error", one_line(outcome.error) + kind])
    if outcome.result is None:
        return table(rows)
    text = _text(outcome.result)
    if text is None:
        text = outcome.result[:64].hex(" ", 4)
    more = "" if len(outcome.result) <= _SHOWN else "\n… (--json has all of it)"
    return f"{table(rows)}\n\nresult, {len(outcome.result):,} bytes:\n{text[:_SHOWN]}{more}"


def run_as_json(run: RunSummary) -> dict[str, Any]:
    """A run of a list."""
    return {
        "run_id": run.run_id,
        "state": run.state.value,
        "status": run.status and run.status.value,
        "current_step": run.current_step,
        "submitted_at": run.submitted_at.isoformat(),
        "ended_at": run.ended_at and run.ended_at.isoformat(),
        "error": run.error,
        "error_kind": run.error_kind and run.error_kind.value,
        "error_type": run.error_type,
        "headers": run.headers,
        "workflow": run.workflow,
        "revision": run.revision,
        "waiting_for": run.waiting_for,
        "due": run.due and run.due.isoformat(),
    }


def _status_as_json(status: RunStatus, outcome: RunOutcome | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "run_id": status.run_id,
        "state": status.state.value,
        "current_step": status.current_step,
        "workflow": status.workflow,
        "revision": status.revision,
        "waiting_for": status.waiting_for,
        "due": status.due and status.due.isoformat(),
        "outcome": None,
    }
    if outcome is not None:
        result = outcome.result
        text = None if result is None else _text(result)
        encoded = result is not None and text is None
        found["outcome"] = {
            "status": outcome.status.value,
            "ended_at": outcome.terminated_at.isoformat(),
            "error": outcome.error,
            "error_kind": outcome.error_kind and outcome.error_kind.value,
            "headers": outcome.headers,
            "result": text,
            "result_base64": base64.b64encode(result or b"").decode() if encoded else None,
        }
    return found


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
