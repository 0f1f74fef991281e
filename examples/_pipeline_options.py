"""The command line of the document pipeline."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _pipeline_files import printable

HOME = Path(".taquba/document-pipeline")
"""Below the current folder: where state and reports are kept unless the caller says otherwise."""


def storage_option(text: str) -> tuple[str, Any]:
    """``key=value`` from the command line; a value that is JSON is taken as such."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Work through a folder of texts; can be stopped, or killed, at any moment.",
        epilog="Exit status: 0 all reported, 1 some failed or an error, 130 stopped by Ctrl-C.",
    )
    add = parser.add_argument
    add(
        "folder",
        nargs="?",
        type=Path,
        default=Path(__file__).parent / "data",
        metavar="FOLDER",
        help="files to work on, without subfolders (default: the texts beside this script)",
    )
    add(
        "--store",
        metavar="URL",
        help="s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, or a folder "
        f"(default: {HOME}/store)",
    )
    add(
        "--storage-option",
        action="append",
        type=storage_option,
        default=[],
        metavar="KEY=VALUE",
        help="for the store's driver: key, secret, endpoint_url, …; AWS_* variables work too",
    )
    add(
        "--concurrency",
        type=int,
        default=4,
        metavar="N",
        help="documents at a time (default: 4)",
    )
    add(
        "--delay",
        type=float,
        default=0.2,
        metavar="SECONDS",
        help="how long an expensive call takes (default: 0.2)",
    )
    add(
        "--reports",
        type=Path,
        default=HOME / "reports",
        metavar="FOLDER",
        help=f"where reports are written (default: {HOME}/reports)",
    )
    add("--retry-failed", action="store_true", help="also try again what failed before")
    add("--call-log", metavar="FILE", help="append a line for each thing that happens")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"there is no folder {printable(options.folder)}")
    if options.concurrency < 1 or not options.delay >= 0:
        parser.error("--concurrency must be at least 1, and --delay not negative")
    options.storage_option = dict(options.storage_option)
    return options
