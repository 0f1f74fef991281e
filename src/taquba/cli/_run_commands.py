"""What the commands about runs are called, and what they take."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from taquba.cli._parser import add_command, loaded
from taquba.cli._queue_commands import add_filters, add_group, add_pages, add_take_over

if TYPE_CHECKING:
    from taquba.cli._parser import Verbs

__all__ = ["add_run_commands"]

_STATES = ("pending", "running", "cancelling", "terminated", "succeeded", "failed", "cancelled")


def add_run_commands(verbs: Verbs) -> None:
    """Declare ``runs``, ``groups`` and ``signal``."""
    runs = add_group(verbs, "runs", "look at runs of workflows, and cancel them")
    _add_list(runs)
    _add_show(runs)
    _add_timeline(runs)
    _add_cancel(runs)
    _add_groups(verbs)
    _add_signal(verbs)


def _add_list(actions: Verbs) -> None:
    parser = add_command(
        actions,
        "list",
        command=loaded("_runs", "list_command"),
        summary="list runs",
        description="List runs, page by page, in the order of their submission.",
        examples=(
            "  taquba runs list s3://bucket/app --newest-first\n"
            "  taquba runs list ./state --state failed --ended-since -1d\n"
            "  taquba runs list ./state --header customer=7 --json | jq .runs\n"
        ),
    )
    _add_queue(parser)
    parser.add_argument("--state", choices=_STATES, help="only runs in this state, or ended so")
    parser.add_argument("--workflow", metavar="NAME", help="only runs of this workflow")
    parser.add_argument("--revision", metavar="TEXT", help="only runs of this revision")
    parser.add_argument("--error-type", metavar="NAME", help="only runs ended by this exception")
    parser.add_argument("--ended-since", metavar="TIME", help="only runs that ended then or later")
    parser.add_argument("--ended-until", metavar="TIME", help="only runs that ended earlier")
    parser.add_argument("--newest-first", action="store_true", help="in the opposite order")
    add_filters(parser, "runs", "submitted")
    add_pages(parser)


def _add_show(actions: Verbs) -> None:
    parser = add_command(
        actions,
        "show",
        command=loaded("_runs", "show_command"),
        summary="show one run: where it is, or what it came to",
        description="Show one run: where it is, what it waits for, or what it came to.",
        examples=(
            "  taquba runs show s3://bucket/app order-7\n"
            "  taquba runs show ./state order-7 --json | jq -r .outcome.result\n"
        ),
    )
    parser.add_argument("run", metavar="RUN", help="the run's id")
    _add_queue(parser)


def _add_timeline(actions: Verbs) -> None:
    parser = add_command(
        actions,
        "timeline",
        command=loaded("_timeline", "timeline_command"),
        summary="show every attempt of every step of a run",
        description=(
            "Show every attempt of every step of a run: when it was claimed, how long it took,\n"
            "and how it ended. It is kept by runtimes with keep_history=True; without that, only\n"
            "what is known of the step that the run is at is shown."
        ),
        examples=(
            "  taquba runs timeline s3://bucket/app order-7\n"
            "  taquba runs timeline ./state order-7 --json | jq .attempts\n"
        ),
    )
    parser.add_argument("run", metavar="RUN", help="the run's id")
    _add_queue(parser)
    add_pages(parser)


_WRITES = (
    "This writes, so it makes this process the owner of the store for a moment. It is\n"
    "refused while another process may be the owner: that process would be fenced, which\n"
    "means that it stops with an error, and that jobs it works on are delivered again.\n"
    "--take-over does that all the same. A process that is running should do it itself:\n"
)


def _add_cancel(actions: Verbs) -> None:
    parser = add_command(
        actions,
        "cancel",
        command=loaded("_run_changes", "cancel_command"),
        summary="cancel a run",
        description=f"Cancel a run that has not ended.\n{_WRITES}WorkflowRuntime.cancel.",
        examples=(
            "  taquba runs cancel s3://bucket/app order-7\n"
            "  taquba runs cancel ./state order-7 --take-over\n"
        ),
    )
    parser.add_argument("run", metavar="RUN", help="the run's id")
    _add_queue(parser)
    add_take_over(parser)


def _add_groups(verbs: Verbs) -> None:
    groups = add_group(verbs, "groups", "look at groups of runs, cancel and forget them")
    parser = add_command(
        groups,
        "list",
        command=loaded("_groups", "list_command"),
        summary="list groups, and how many of their members ended how",
        description="List groups, page by page, in the order of their ids.",
        examples="  taquba groups list s3://bucket/app\n  taquba groups list ./state --json\n",
    )
    _add_queue(parser)
    add_pages(parser)
    _add_group_command(
        groups,
        "show",
        summary="show how many members of a group ended how",
        description="Show how many members of a group ended how.",
        examples="  taquba groups show ./state batch-42 --json | jq .failed\n",
    )
    parser = _add_group_command(
        groups,
        "members",
        summary="list the members of a group, and their runs",
        description="List the members of a group, page by page, in the order of their submission.",
        examples=(
            "  taquba groups members ./state batch-42 --state failed\n"
            "  taquba groups members ./state batch-42 --json | jq -r .members[].run_id\n"
        ),
    )
    parser.add_argument("--state", choices=_STATES, help="only those in this state, or ended so")
    add_pages(parser)
    parser = _add_group_command(
        groups,
        "cancel",
        summary="cancel the members of a group that have not ended",
        description=(
            "Cancel the members of a group that have not ended, for good: the group stops.\n"
            f"{_WRITES}RunGroup.cancel."
        ),
        examples="  taquba groups cancel ./state batch-42\n",
    )
    add_take_over(parser)
    parser = _add_group_command(
        groups,
        "forget",
        summary="remove a group with its members' runs",
        description=(
            "Remove a group, all of whose members have ended, with their runs.\n"
            f"{_WRITES}RunGroup.forget."
        ),
        examples="  taquba groups forget ./state batch-42\n",
    )
    add_take_over(parser)


def _add_group_command(
    actions: Verbs, name: str, *, summary: str, description: str, examples: str
) -> argparse.ArgumentParser:
    parser = add_command(
        actions,
        name,
        command=loaded("_groups", f"{name}_command"),
        summary=summary,
        description=description,
        examples=examples,
    )
    parser.add_argument("group", metavar="GROUP", help="the group's id")
    _add_queue(parser)
    return parser


def _add_signal(verbs: Verbs) -> None:
    parser = add_command(
        verbs,
        "signal",
        command=loaded("_run_changes", "signal_command"),
        summary="send a signal to the run that waits for it",
        description=(
            "Give a payload to the run that waits for this key, or buffer it for the next one.\n"
            f"{_WRITES}WorkflowRuntime.signal."
        ),
        examples=(
            "  taquba signal s3://bucket/app approve/order-7 yes\n"
            "  taquba signal ./state reply/7 --file answer.json --signal-id answer-7\n"
            "  echo yes | taquba signal ./state approve/order-7 --file - --take-over\n"
        ),
    )
    parser.add_argument("key", metavar="KEY", help="the key that the run waits for")
    parser.add_argument("payload", metavar="PAYLOAD", nargs="?", help="text (default: nothing)")
    parser.add_argument("--file", metavar="FILE", help="the payload's bytes; - is standard input")
    parser.add_argument(
        "--signal-id", metavar="ID", help="sending again with the same id changes nothing"
    )
    parser.add_argument(
        "--mode",
        choices=("latest", "queue"),
        default="latest",
        help="of signals that are buffered, keep the latest (default) or all",
    )
    _add_queue(parser)
    add_take_over(parser)


def _add_queue(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--queue",
        metavar="NAME",
        default="workflow-steps",
        help="queue_name of the runtime (default: workflow-steps)",
    )
