"""How the document pipeline is seen: live on a terminal, as plain lines when piped.

Nothing here decides anything: a display is told what happens, and counts and shows it.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

_MOST_ROWS = 40
"""With more documents than this, the summary shows only those that failed."""


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one document."""

    document: str
    succeeded: bool
    earlier: bool
    """It had ended before this session began."""
    sections: int = 0
    calls_made: int = 0
    """Expensive calls made for it in this session."""
    reading_time: str = ""
    reason: str = ""
    """Why it failed."""

    @property
    def calls_saved(self) -> int:
        """Expensive calls that were not made again, since their results were kept."""
        return max(self.sections - self.calls_made, 0)

    @property
    def result(self) -> str:
        return ("reported" if self.succeeded else "failed") + (" earlier" if self.earlier else "")


class CallLog:
    """Appends what happens to a file: a line at a time, whole, and there even after kill -9."""

    def __init__(self, path: str | None) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = None if path is None else os.open(path, flags, 0o666)

    def write(self, *words: object) -> None:
        if self._file is not None:
            line = " ".join(str(word) for word in (os.getpid(), *words))
            os.write(self._file, f"{line}\n".encode())


class Display(ABC):
    """Counts and logs what the pipeline tells; how that looks is up to the two kinds below."""

    def __init__(self, log: CallLog) -> None:
        self._log = log
        self._warnings = _Warnings(self)
        self._called: set[tuple[str, int]] = set()
        self.calls_made: Counter[str] = Counter()

    def __enter__(self) -> Self:
        logger = logging.getLogger("taquba")
        logger.addHandler(self._warnings)
        logger.propagate = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        logging.getLogger("taquba").removeHandler(self._warnings)

    def begun(self, lines: Sequence[str], documents: int) -> None:
        """The store is open, and it is known what there is to do."""
        self._log.write("begun")
        for line in lines:
            self.line(line)

    def stage_begun(self, run_id: str, name: str, number: int, stage: str, total: int = 0) -> None:
        """A stage of a document begins, with `total` sections to work on."""
        self._log.write("stage", run_id, number)

    def call_begun(self, run_id: str, section: int) -> None:
        """An expensive call is really made."""
        self._log.write("called", run_id, section)
        self._called.add((run_id, section))
        self.calls_made[run_id] += 1

    def section_kept(self, run_id: str, section: int) -> None:
        """A section's result is durable, from the call just made or from an earlier one."""
        made_now = (run_id, section) in self._called
        self._called.discard((run_id, section))
        self._log.write("kept" if made_now else "recalled", run_id, section)

    def ended(self, run_id: str, row: Row) -> None:
        """A document has come to its end, in this session or in an earlier one."""
        self._log.write("known" if row.earlier else "ended", run_id, row.result)

    @abstractmethod
    def line(self, text: str) -> None:
        """Show a line that stays."""

    @abstractmethod
    def summary(self, rows: Sequence[Row], totals: Sequence[tuple[str, str]]) -> None:
        """Show the table at the end."""


class PlainDisplay(Display):
    """A line for each thing that happens."""

    def stage_begun(self, run_id: str, name: str, number: int, stage: str, total: int = 0) -> None:
        super().stage_begun(run_id, name, number, stage, total)
        self.line(f"{name}: stage {number + 1}, {stage}" + (f", {total} sections" * bool(total)))

    def ended(self, run_id: str, row: Row) -> None:
        super().ended(run_id, row)
        if not row.earlier:
            self.line(_end_text(row))

    def line(self, text: str) -> None:
        try:
            print(text, flush=True)
        except BrokenPipeError:  # nobody reads any more; the work is worth finishing all the same
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def summary(self, rows: Sequence[Row], totals: Sequence[tuple[str, str]]) -> None:
        cells = [_HEADINGS, *map(_cells, _worth_showing(rows))]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        self.line("")
        for row in cells:
            aligned = zip(row, widths, _JUSTIFY, strict=True)
            self.line("  ".join(getattr(cell, how)(width) for cell, width, how in aligned).rstrip())
        self.line("")
        for name, value in totals:
            self.line(f"{name:<22}{value}")


class LiveDisplay(Display):
    """A bar for the whole, one for each document under way, and lines for those that ended."""

    def __init__(self, log: CallLog) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        super().__init__(log)
        self._console = Console(highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("[dim]{task.fields[doing]}"),
            console=self._console,
            transient=True,
        )
        self._whole: Any = None
        self._bars: dict[str, Any] = {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()
        super().__exit__(kind, error, trace)

    def begun(self, lines: Sequence[str], documents: int) -> None:
        super().begun(lines, documents)
        self._whole = self._progress.add_task("all documents", total=documents, doing="")
        self._progress.start()

    def stage_begun(self, run_id: str, name: str, number: int, stage: str, total: int = 0) -> None:
        super().stage_begun(run_id, name, number, stage, total)
        if run_id not in self._bars:
            self._bars[run_id] = self._progress.add_task(name, total=None, doing=stage)
        self._progress.update(self._bars[run_id], doing=stage, total=total or None)

    def section_kept(self, run_id: str, section: int) -> None:
        super().section_kept(run_id, section)
        self._progress.update(self._bars[run_id], completed=section)
        self._progress.update(self._whole, doing=f"{self.calls_made.total()} expensive calls made")

    def ended(self, run_id: str, row: Row) -> None:
        super().ended(run_id, row)
        if (bar := self._bars.pop(run_id, None)) is not None:
            self._progress.remove_task(bar)
        self._progress.advance(self._whole)
        if not row.earlier:
            self._console.print(_end_text(row), markup=False, style=_style(row))

    def line(self, text: str) -> None:
        self._console.print(text, markup=False)

    def summary(self, rows: Sequence[Row], totals: Sequence[tuple[str, str]]) -> None:
        from rich.table import Table
        from rich.text import Text

        self._progress.stop()
        table = Table(*_HEADINGS)
        for column, how in zip(table.columns, _JUSTIFY, strict=True):
            column.justify = "right" if how == "rjust" else "left"
        for row in _worth_showing(rows):
            table.add_row(*(Text(cell, style=_style(row)) for cell in _cells(row)))
        sums = Table.grid(padding=(0, 2))
        for name, value in totals:
            sums.add_row(name, Text(value, style="bold"))
        self._console.print(table, sums, sep="\n")


def open_display(log: CallLog) -> Display:
    """The live display on a terminal that has `rich` installed, and else plain lines."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names can be anything
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        return LiveDisplay(log)
    return PlainDisplay(log)


class _Warnings(logging.Handler):
    """Shows what taquba warns of (a store that does not answer, say) as lines like any other."""

    def __init__(self, display: Display) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        self._display.line(f"{record.levelname.lower()}: {record.getMessage()}")


_HEADINGS = (
    "document",
    "result",
    "sections",
    "calls made",
    "calls saved",
    "reading time",
)
_JUSTIFY = ("ljust", "ljust", "rjust", "rjust", "rjust", "rjust")


def _cells(row: Row) -> tuple[str, ...]:
    if not row.succeeded:
        return row.document, f"{row.result}: {row.reason}", "", "", "", ""
    numbers = (row.sections, row.calls_made, row.calls_saved)
    return row.document, row.result, *map(str, numbers), row.reading_time


def _worth_showing(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if len(rows) <= _MOST_ROWS or not row.succeeded]


def _end_text(row: Row) -> str:
    if not row.succeeded:
        return f"{row.document}: failed, {row.reason}"
    calls = f"{row.calls_made} calls made, {row.calls_saved} saved"
    return f"{row.document}: reported, {row.sections} sections, {calls}"


def _style(row: Row) -> str:
    if not row.succeeded:
        return "red"
    return "dim" if row.earlier else "green"
