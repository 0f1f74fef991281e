"""What all commands have in common: how they are declared, and their options."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn

from taquba.cli._arguments import price, storage_option

if TYPE_CHECKING:
    from typing import TypeAlias

    from taquba.clock import Clock

    Verbs: TypeAlias = argparse._SubParsersAction["Parser"]

__all__ = [
    "CLEAN",
    "DAMAGED",
    "FAILED",
    "Command",
    "Parser",
    "Verbs",
    "add_command",
    "add_prices",
    "add_scratch",
    "loaded",
]

CLEAN, DAMAGED, FAILED = 0, 1, 2

Command = Callable[[argparse.Namespace, "Clock"], Awaitable[int]]

_URL = "s3://…, gs://…, az://…, file:///folder, or the path of a folder"


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(FAILED, f"{self.prog}: {message} (see '{self.prog} --help')\n")


def loaded(module: str, name: str) -> Command:
    """A command that is imported when it runs, so that help costs next to nothing."""

    async def command(options: argparse.Namespace, clock: Clock) -> int:
        found: Command = getattr(importlib.import_module(f"taquba.cli.{module}"), name)
        return await found(options, clock)

    return command


def add_command(
    verbs: Verbs,
    name: str,
    *,
    command: Command,
    summary: str,
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        name,
        help=summary,
        description=description,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=command)
    parser.add_argument("url", metavar="URL", help=_URL)
    store = parser.add_argument_group("the store")
    store.add_argument(
        "--option",
        metavar="KEY=VALUE",
        action="append",
        type=storage_option,
        default=[],
        help="an argument of the store's client; the value may be JSON. May be repeated",
    )
    store.add_argument(
        "--endpoint-url", metavar="URL", help="address of a service that speaks like S3"
    )
    store.add_argument(
        "--driver",
        choices=["fsspec", "obstore"],
        default="fsspec",
        help="the client that reaches a bucket (default: fsspec)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--debug", action="store_true", help="show tracebacks, and what is done")
    return parser


def add_scratch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scratch",
        metavar="FOLDER",
        help="where temporary copies of the database go (default: where the system keeps such)",
    )


def add_prices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--price",
        metavar="REQUEST=DOLLARS",
        action="append",
        type=price,
        default=[],
        help="what 1,000 requests cost; REQUEST is put, get, list or delete. May be repeated",
    )
