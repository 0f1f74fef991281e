"""How far a group is, shown on a terminal."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TextIO

from taquba.workflow._group_records import GroupStatus

__all__ = ["group_progress"]


@contextmanager
def group_progress(
    label: str = "members", *, file: TextIO | None = None
) -> Generator[Callable[[GroupStatus], None]]:
    """A progress bar for the ``progress`` of `RunGroup.results` and `RunGroup.gather`.

    It shows members that have ended, of all that are known, and how many have failed or were
    cancelled. On a terminal it is one line that changes: drawn by rich if that is installed
    (extra ``progress``). Elsewhere, in a log for example, it is one line at each tenth.

    Args:
        label: What the members are called.
        file: Where it is written; standard error by default, so that results can be piped.

    Example:
        >>> from taquba.workflow import GroupStatus
        >>> with group_progress("pages", file=sys.stdout) as progress:
        ...     progress(GroupStatus("g", 2, 1, 0, 0, is_complete=True, is_stopped=False))
        ...     progress(GroupStatus("g", 2, 1, 1, 0, is_complete=True, is_stopped=False))
        pages: 1 of 2
        pages: 2 of 2, 1 failed
    """
    out = sys.stderr if file is None else file
    if not out.isatty():
        yield _lines(label, out)
    elif importlib.util.find_spec("rich") is None:
        try:
            yield lambda status: _overwrite(out, _told(label, status))
        finally:
            out.write("\n")
            out.flush()
    else:
        with _bar(label, out) as progress:
            yield progress


def _told(label: str, status: GroupStatus) -> str:
    parts = [f"{label}: {status.ended:,} of {status.total:,}"]
    if not status.is_complete:
        parts[0] += " or more"
    if status.failed:
        parts.append(f"{status.failed:,} failed")
    if status.cancelled:
        parts.append(f"{status.cancelled:,} cancelled")
    return ", ".join(parts)


def _lines(label: str, out: TextIO) -> Callable[[GroupStatus], None]:
    shown: tuple[int, int] | None = None

    def progress(status: GroupStatus) -> None:
        nonlocal shown
        tenth = status.ended * 10 // max(status.total, 1), status.total
        if tenth != shown and (shown is None or tenth[0] != shown[0] or status.is_finished):
            shown = tenth
            print(_told(label, status), file=out, flush=True)

    return progress


def _overwrite(out: TextIO, line: str) -> None:
    out.write(f"\r\x1b[2K{line}")
    out.flush()


@contextmanager
def _bar(label: str, out: TextIO) -> Generator[Callable[[GroupStatus], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns: tuple[Any, ...] = (
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=out)) as bar:
        task = bar.add_task(label, total=None)

        def progress(status: GroupStatus) -> None:
            bar.update(
                task,
                total=status.total if status.is_complete else None,
                completed=status.ended,
                description=_told(label, status),
            )

        yield progress
