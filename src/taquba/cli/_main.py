"""Arguments in, exit status out."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from taquba.cli._arguments import Usage
from taquba.cli._parser import (
    DAMAGED,
    FAILED,
    Command,
    Parser,
    add_command,
    add_prices,
    add_scratch,
    loaded,
)
from taquba.cli._queue_commands import add_queue_commands
from taquba.cli._run_commands import add_run_commands
from taquba.errors import CorruptStore, TaqubaError

if TYPE_CHECKING:
    from taquba.cli._parser import Verbs
    from taquba.clock import Clock

__all__ = ["run"]

_TIMES = ("--at", "--since", "--until", "--ended-since", "--ended-until")
"""Options whose value may begin with a minus."""
_INTERRUPTED = 128 + signal.SIGINT
_BROKEN_PIPE = 128 + 13  # SIGPIPE, which Windows does not have

_DESCRIPTION = "Look after a taquba store: a bucket or a folder that holds queues and workflows."
_EPILOG = """\
exit status:
  0    done, and no damage found
  1    damage found: what is stored is not what was written
  2    not done: a mistake in the command, or the store cannot be reached or read
  130  interrupted

Every command but 'dead redrive', 'runs cancel', 'groups cancel', 'groups forget' and 'signal' only
reads the store, and may run beside the process that owns it. Credentials come from the
environment, as for any other program that uses the same store. 'taquba COMMAND --help' has
examples.
"""


def run(argv: Sequence[str] | None = None, *, clock: Clock | None = None) -> int:
    """Run one command, and give its exit status."""
    options = _parsed(sys.argv[1:] if argv is None else argv)
    if isinstance(options, int):
        return options
    import asyncio
    import logging

    if options.debug:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
        logging.getLogger("taquba").setLevel(logging.DEBUG)
    else:
        # What is worth saying is in the command's own words.
        logging.getLogger("taquba").setLevel(logging.ERROR)
    try:
        status = asyncio.run(_run(options, clock))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read this has seen enough. Python would complain again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except Usage as error:
        return _failed(options, error, FAILED)
    except CorruptStore as error:
        return _failed(options, error, DAMAGED)
    except (TaqubaError, OSError) as error:
        return _failed(options, error, FAILED)
    except Exception as error:
        if not options.debug:
            hint = f"{type(error).__name__}: {error} (a mistake in taquba; --debug says where)"
            error = RuntimeError(hint).with_traceback(error.__traceback__)
        return _failed(options, error, FAILED)


def _parsed(argv: Sequence[str]) -> argparse.Namespace | int:
    """The options; or the exit status, if that was all."""
    try:
        return _parser().parse_args(_joined(argv))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED


async def _run(options: argparse.Namespace, clock: Clock | None) -> int:
    from taquba.clock import SystemClock

    command: Command = options.command
    return await command(options, SystemClock() if clock is None else clock)


def _failed(options: argparse.Namespace, error: Exception, status: int) -> int:
    if options.debug:
        import traceback

        traceback.print_exception(error)
    else:
        message = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, CorruptStore) and options.verb != "verify":
            message += "; 'taquba verify' tells what is lost, if anything"
        print(f"taquba {_name(options)}: {message}", file=sys.stderr)
    return status


def _name(options: argparse.Namespace) -> str:
    action: str | None = getattr(options, "action", None)
    return options.verb if action is None else f"{options.verb} {action}"


def _joined(argv: Sequence[str]) -> list[str]:
    """The arguments, with ``--at -2h`` as one: argparse takes -2h for an option."""
    joined: list[str] = []
    for argument in argv:
        if joined and joined[-1] in _TIMES and re.match(r"-[0-9]", argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="taquba",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="verb")
    _add_verify(verbs)
    _add_export(verbs)
    _add_info(verbs)
    add_queue_commands(verbs)
    add_run_commands(verbs)
    return parser


class _Version(argparse.Action):
    """Prints the version, which is looked up only if somebody asks."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"taquba {version('taquba')}")
        parser.exit()


def _add_verify(verbs: Verbs) -> None:
    parser = add_command(
        verbs,
        "verify",
        command=loaded("_verify", "verify_command"),
        summary="read everything that is kept, and tell what is damaged",
        description=(
            "Walk the whole journal that is kept, check every digest, replay every entry, and\n"
            "compare the result with every checkpoint. Tell what is damaged, what that means,\n"
            "and which objects nobody needs. Payloads that are objects of their own must be\n"
            "there, and of the right length. Nothing is written."
        ),
        examples=(
            "  taquba verify s3://bucket/app\n"
            "  taquba verify ./state --json | jq .findings\n"
            "  taquba verify s3://bucket/app --endpoint-url http://localhost:9000 \\\n"
            "      --option key=minio --option secret=minio123\n"
        ),
    )
    parser.add_argument(
        "--payloads", action="store_true", help="also read the payloads that are objects"
    )
    add_scratch(parser)
    add_prices(parser)


def _add_export(verbs: Verbs) -> None:
    parser = add_command(
        verbs,
        "export",
        command=loaded("_export", "export_command"),
        summary="write the state as an ordinary SQLite file",
        description=(
            "Write the state, as it is or as it was, into an SQLite file that any tool can open.\n"
            "The file appears whole or not at all."
        ),
        examples=(
            "  taquba export s3://bucket/app state.db\n"
            "  taquba export ./state yesterday.db --at 2026-03-01T18:00:00+01:00\n"
            "  taquba export ./state before.db --at -2h --force\n"
        ),
    )
    parser.add_argument("file", metavar="FILE", help="the SQLite file to write")
    parser.add_argument(
        "--at",
        metavar="TIME",
        help=(
            "the state as of then: an ISO 8601 time with its offset, or a time before now such as "
            "-2h, -30m, -1d12h. Only what the store keeps can be rebuilt"
        ),
    )
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")


def _add_info(verbs: Verbs) -> None:
    parser = add_command(
        verbs,
        "info",
        command=loaded("_info", "info_command"),
        summary="tell what is stored, by whom and when, and what it costs",
        description=(
            "Tell who wrote the store and when, how much is stored, what is in it, and what its\n"
            "requests cost at the rate at which it was written."
        ),
        examples=(
            "  taquba info s3://bucket/app\n"
            "  taquba info s3://bucket/app --quick\n"
            "  taquba info ./state --json | jq .queues\n"
            "  taquba info s3://bucket/app --price put=0.0054 --price list=0.0054\n"
        ),
    )
    how_much = parser.add_mutually_exclusive_group()
    how_much.add_argument(
        "--quick", action="store_true", help="do not load the database, whatever its size"
    )
    how_much.add_argument(
        "--full",
        action="store_true",
        help="load the database, whatever its size (default: if it is at most 64 MiB)",
    )
    parser.add_argument("--epochs", type=int, metavar="N", default=10, help="epochs to list")
    add_scratch(parser)
    add_prices(parser)
