"""What the commands about queues are called, and what they take."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from taquba.cli._arguments import header, whole_number
from taquba.cli._parser import Parser, add_command, loaded

if TYPE_CHECKING:
    from taquba.cli._parser import Verbs

__all__ = ["add_filters", "add_group", "add_pages", "add_queue_commands", "add_take_over"]

_STATES = ("pending", "scheduled", "claimed", "done", "dead")


def add_queue_commands(verbs: Verbs) -> None:
    """Declare ``queues``, ``jobs``, ``dead`` and ``kv``."""
    _add_queues(verbs)
    jobs = add_group(verbs, "jobs", "look at jobs")
    _add_jobs_list(jobs)
    _add_show(jobs, "jobs")
    dead = add_group(verbs, "dead", "look at dead jobs, and give them another chance")
    _add_dead_list(dead)
    _add_show(dead, "dead")
    _add_dead_redrive(dead)
    kv = add_group(verbs, "kv", "look at the key-value store")
    _add_kv_get(kv)
    _add_kv_scan(kv)


def add_group(verbs: Verbs, name: str, summary: str) -> Verbs:
    parser = verbs.add_parser(name, help=summary, description=f"{summary.capitalize()}.")
    actions: argparse._SubParsersAction[Parser] = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, dest="action"
    )
    return actions


def _add_queues(verbs: Verbs) -> None:
    add_command(
        verbs,
        "queues",
        command=loaded("_jobs", "queues_command"),
        summary="list the queues, and how many of their jobs are where",
        description=(
            "List every queue that ever had a job, with the number of its jobs in each state and\n"
            "the age of the oldest one that is ready. 'done' counts since the queue exists."
        ),
        examples="  taquba queues s3://bucket/app\n  taquba queues ./state --json | jq .queues\n",
    )


def _add_jobs_list(actions: Verbs) -> None:
    parser = add_command(
        actions,
        "list",
        command=loaded("_jobs", "list_command"),
        summary="list the jobs of a queue",
        description="List the jobs of a queue, page by page.",
        examples=(
            "  taquba jobs list s3://bucket/app mail\n"
            "  taquba jobs list ./state mail --state scheduled --limit 20\n"
            "  taquba jobs list ./state mail --header customer=7 --since -2h --json\n"
        ),
    )
    parser.add_argument("queue", metavar="QUEUE", help="name of the queue")
    parser.add_argument("--state", choices=_STATES, help="only jobs in this state")
    add_filters(parser)
    add_pages(parser)


def _add_dead_list(actions: Verbs) -> None:
    parser = add_command(
        actions,
        "list",
        command=loaded("_jobs", "list_command"),
        summary="list the dead jobs of a queue, with their errors",
        description="List the dead jobs of a queue, with their errors, page by page.",
        examples=(
            "  taquba dead list s3://bucket/app mail\n"
            "  taquba dead list ./state mail --error Timeout --since -1d --json\n"
        ),
    )
    parser.set_defaults(state="dead")
    parser.add_argument("queue", metavar="QUEUE", help="name of the queue")
    add_filters(parser)
    add_pages(parser)


def _add_show(actions: Verbs, verb: str) -> None:
    parser = add_command(
        actions,
        "show",
        command=loaded("_jobs", "show_command"),
        summary="show one job: its error, its attempts, its payload",
        description="Show one job: everything that is known of it, and how its attempts ended.",
        examples=(
            f"  taquba {verb} show s3://bucket/app 01JDZ8Q4N2M7T5V9X0A1B2C3D4\n"
            f"  taquba {verb} show ./state order-7 --payload > payload.bin\n"
        ),
    )
    parser.add_argument("job", metavar="JOB", help="the job's id")
    parser.add_argument(
        "--payload", action="store_true", help="write the payload's bytes, and nothing else"
    )


def _add_dead_redrive(actions: Verbs) -> None:
    parser = add_command(
        actions,
        "redrive",
        command=loaded("_redrive", "redrive_command"),
        summary="give dead jobs all their attempts again",
        description=(
            "Put dead jobs back into their queue, at their old places, with all their attempts.\n"
            "This writes, so it makes this process the owner of the store for a moment. It is\n"
            "refused while another process may be the owner: that process would be fenced, which\n"
            "means that it stops with an error, and that jobs it works on are delivered again.\n"
            "--take-over does that all the same. A process that is running should redrive itself:\n"
            "Queue.requeue_dead and Queue.requeue_dead_many."
        ),
        examples=(
            "  taquba dead redrive s3://bucket/app mail --job 01JDZ8Q4N2M7T5V9X0A1B2C3D4\n"
            "  taquba dead redrive ./state mail --error Timeout --limit 1000\n"
            "  taquba dead redrive ./state mail --all --take-over\n"
        ),
    )
    parser.add_argument("queue", metavar="QUEUE", help="name of the queue")
    which = parser.add_argument_group("which jobs (at least one of these)")
    which.add_argument(
        "--job", metavar="JOB", action="append", default=[], help="this one. May be repeated"
    )
    which.add_argument("--all", action="store_true", help="all dead jobs of the queue")
    add_filters(parser)
    parser.add_argument(
        "--limit", type=whole_number, metavar="N", default=None, help="this many jobs at most"
    )
    add_take_over(parser)


def _add_kv_get(actions: Verbs) -> None:
    parser = add_command(
        actions,
        "get",
        command=loaded("_kv", "get_command"),
        summary="write the value of a key",
        description="Write the bytes of a key's value, and nothing else.",
        examples="  taquba kv get s3://bucket/app orders/7\n  taquba kv get ./state 00ff --hex\n",
    )
    parser.add_argument("key", metavar="KEY", help="the key, as text")
    parser.add_argument(
        "--hex", action="store_true", help="KEY is hexadecimal, for keys that are no text"
    )


def _add_kv_scan(actions: Verbs) -> None:
    parser = add_command(
        actions,
        "scan",
        command=loaded("_kv", "scan_command"),
        summary="list keys with a prefix, and their values",
        description="List keys with a prefix and their values, in the order of the keys' bytes.",
        examples=(
            "  taquba kv scan s3://bucket/app orders/\n"
            "  taquba kv scan ./state orders/ --limit 1000 --json | jq '.entries[].key'\n"
        ),
    )
    parser.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="default: all keys")
    parser.add_argument("--hex", action="store_true", help="PREFIX and --after are hexadecimal")
    add_pages(parser)


def add_filters(
    parser: argparse.ArgumentParser, what: str = "jobs", begun: str = "enqueued"
) -> None:
    filters = parser.add_argument_group("filters")
    filters.add_argument(
        "--header",
        metavar="KEY=VALUE",
        action="append",
        type=header,
        default=[],
        help=f"only {what} with this header. May be repeated",
    )
    filters.add_argument(
        "--error", metavar="TEXT", help=f"only {what} whose last error contains this"
    )
    filters.add_argument(
        "--since",
        metavar="TIME",
        help=f"only {what} that were {begun} then or later; see 'export --at'",
    )
    filters.add_argument("--until", metavar="TIME", help=f"only {what} that were {begun} before")


def add_take_over(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="also if another process may own the store: it is fenced, and stops with an error",
    )


def add_pages(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--limit", type=whole_number, metavar="N", default=100, help="this many at most (100)"
    )
    parser.add_argument("--after", metavar="PLACE", help="go on where the page before says")
