"""What the commands about runs are called, and what they take."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from taquba.cli._parser import add_command, loaded
from taquba.cli._queue_commands import add_filters, add_group, add_pages

if TYPE_CHECKING:
    from taquba.cli._parser import Verbs

__all__ = ["add_run_commands"]

_STATES = ("pending", "running", "cancelling", "terminated", "succeeded", "failed", "cancelled")


def add_run_commands(verbs: Verbs) -> None:
    """Declare ``runs``."""
    runs = add_group(verbs, "runs", "look at runs of workflows")
    _add_list(runs)
    _add_show(runs)


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


def _add_queue(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--queue",
        metavar="NAME",
        default="workflow-steps",
        help="queue_name of the runtime (default: workflow-steps)",
    )
