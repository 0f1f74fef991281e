"""Work through a folder of texts, in a way that survives being killed at any moment.

    python examples/document_pipeline.py [FOLDER] [--store URL]

Each file is one run of three stages:

1. read:    read the file, hash it, split it into sections
2. analyse: make one expensive call for each section (here: a pause, and counting words)
3. report:  put the results together, and write a report

Stop it with Ctrl-C or with kill -9, wherever you like, and run the same command again: it
goes on at the last stage that was committed, and inside stage 2 at the first section whose
result was not kept yet. A file that is changed is a new run.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from _pipeline_display import CallLog, Display, Row, open_display
from _pipeline_files import printable, read_file, report_file, write_whole
from _pipeline_options import HOME, parse_arguments
from _pipeline_text import (
    Analysis,
    NotText,
    Report,
    analyse,
    combine,
    decode,
    render,
    split_sections,
    spoken,
)
from taquba import Queue, TaqubaError
from taquba.errors import Fenced
from taquba.workflow import (
    Continue,
    Fail,
    Outcome,
    RunEnd,
    RunStatus,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)

STAGES = ("read", "analyse", "report")
QUEUE_NAME = "documents"
MAX_ATTEMPTS = 1000
"""A kill costs each step that was under way an attempt, and you may kill this one for sport."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text, known by its name and its content. This is a run's input."""

    name: str
    sha256: str
    """Empty if the file could not be read."""

    @property
    def run_id(self) -> str:
        """Always the same for this name and content, so that running again goes on."""
        digest = hashlib.sha256(f"{self.name}\0{self.sha256}".encode()).hexdigest()
        return f"{re.sub(r'[^A-Za-z0-9]+', '-', self.name)[:60]}-{digest[:16]}"


@dataclass(frozen=True, slots=True)
class Split:
    """What stage 1 hands on to stage 2."""

    document: Document
    sections: list[str]


@dataclass(frozen=True, slots=True)
class Analysed:
    """What stage 2 hands on to stage 3."""

    document: Document
    analyses: list[Analysis]


# Inputs, payloads and results are bytes: pydantic turns dataclasses into JSON and back.
DOCUMENT = TypeAdapter(Document)
SPLIT = TypeAdapter(Split)
ANALYSED = TypeAdapter(Analysed)
REPORT = TypeAdapter(Report)


class DocumentPipeline:
    """The runner: takes documents through the stages, one call of `run_step` for each stage.

    A stage that was interrupted before its outcome was committed is run again, so each must
    come to the same end when it is run twice.
    """

    def __init__(
        self, paths: Mapping[str, Path], reports: Path, delay: float, display: Display
    ) -> None:
        self.paths = paths
        self.reports = reports
        self.delay = delay
        self.display = display

    async def run_step(self, step: Step) -> Outcome:
        match step.number:
            case 0:
                return await self.read(step)
            case 1:
                return await self.analyse(step)
            case _:
                return await self.report(step)

    async def read(self, step: Step) -> Outcome:
        """Stage 1: read the file, hash it, split it into sections."""
        document = DOCUMENT.validate_json(step.payload)
        self.display.stage_begun(step.run_id, document.name, 0, STAGES[0])
        # The folder may have moved since the run was submitted: this session knows better.
        path = self.paths.get(step.run_id) or Path(step.headers["path"])
        try:
            data = await asyncio.to_thread(read_file, path)
            if hashlib.sha256(data).hexdigest() != document.sha256:
                return Fail("was changed while it waited for its turn: run the pipeline again")
            sections = split_sections(decode(data))
        except OSError as error:
            return Fail(f"cannot be read: {error.strerror or error}")
        except NotText as error:
            return Fail(str(error))
        return Continue(SPLIT.dump_json(Split(document, sections)))

    async def analyse(self, step: Step) -> Outcome:
        """Stage 2: one expensive call for each section, never repeated once it is kept."""
        split = SPLIT.validate_json(step.payload)
        total = len(split.sections)
        self.display.stage_begun(step.run_id, split.document.name, 1, STAGES[1], total)
        analyses: list[Analysis] = []
        for number, section in enumerate(split.sections, start=1):
            call = partial(self.expensive_call, step.run_id, number, section)
            analyses.append(await step.memo.memoized(f"section {number}", call, type=Analysis))
            self.display.section_kept(step.run_id, number)
        return Continue(ANALYSED.dump_json(Analysed(split.document, analyses)))

    async def expensive_call(self, run_id: str, number: int, section: str) -> Analysis:
        """Stands for what costs time and money: asking a language model, say."""
        self.display.call_begun(run_id, number)
        await asyncio.sleep(self.delay)
        return analyse(section)

    async def report(self, step: Step) -> Outcome:
        """Stage 3: put the results together. The report is the run's result, and a file."""
        analysed = ANALYSED.validate_json(step.payload)
        document = analysed.document
        self.display.stage_begun(step.run_id, document.name, 2, STAGES[2])
        report = combine(document.name, document.sha256, analysed.analyses)
        file = report_file(self.reports, step.run_id)
        try:
            await asyncio.to_thread(write_whole, file, render(report))
        except OSError as error:
            return Fail(f"the report cannot be written: {error}")
        return Succeed(REPORT.dump_json(report))


class Session:
    """One go at a folder: see how far it is, submit what is new, work until all has ended."""

    def __init__(
        self, options: argparse.Namespace, documents: Mapping[Document, Path], display: Display
    ) -> None:
        self.options = options
        self.documents = documents
        self.display = display
        self.before: dict[Document, RunStatus | None] = {}
        # In the order of the folder, and each to its end before others are begun.
        self.priorities = {document: n for n, document in enumerate(documents)}

    async def run(self) -> list[Row]:
        """Take every document to its end; what became of each."""
        options = self.options
        async with Queue.open(options.store, storage_options=options.storage_option) as queue:
            # Without a runner a runtime only looks and submits, so nothing moves on meanwhile.
            async with WorkflowRuntime(queue, None, queue_name=QUEUE_NAME) as runtime:
                for document in self.documents:
                    self.before[document] = await runtime.status(document.run_id)
                self.display.begun(self.overview(), len(self.documents))
                await asyncio.gather(*map(partial(self.submit, runtime), self.documents))
            paths = {document.run_id: path for document, path in self.documents.items()}
            pipeline = DocumentPipeline(paths, options.reports, options.delay, self.display)
            async with WorkflowRuntime(
                queue, pipeline, queue_name=QUEUE_NAME, concurrency=options.concurrency
            ) as runtime:
                return await asyncio.gather(*map(partial(self.follow, runtime), self.documents))

    async def submit(self, runtime: WorkflowRuntime, document: Document) -> None:
        """Begin a document's run, unless it has ended before. If it is active, it goes on."""
        if not self.is_done(document):
            await runtime.submit(
                DOCUMENT.dump_json(document),
                run_id=document.run_id,
                headers={"path": printable(self.documents[document].absolute())},
                priority=self.priorities[document],
                max_attempts=MAX_ATTEMPTS,
            )

    async def follow(self, runtime: WorkflowRuntime, document: Document) -> Row:
        """Wait for the end of a document's run, and show it."""
        end = await runtime.wait(document.run_id)
        row = self.row(document, end)
        self.display.ended(document.run_id, row)
        return row

    def row(self, document: Document, end: RunEnd) -> Row:
        earlier = self.is_done(document)
        if end.termination.status is not TerminalStatus.SUCCEEDED:
            reason = end.termination.error or "no reason was given"
            return Row(document.name, False, earlier, reason=reason)
        report = REPORT.validate_json(end.outcome.result or b"")
        file = report_file(self.options.reports, document.run_id)
        if not file.exists():  # reported by another machine, or deleted: the result is the truth
            write_whole(file, render(report))
        calls = self.display.calls_made[document.run_id]
        reading_time = spoken(report.reading_seconds)
        return Row(document.name, True, earlier, len(report.sections), calls, reading_time)

    def is_done(self, document: Document) -> bool:
        """Whether the document had ended before this session, and is left at that."""
        status = self.before[document]
        if status is None or status.termination is None:
            return False
        failed = status.termination.status is not TerminalStatus.SUCCEEDED
        return not (failed and self.options.retry_failed)

    def overview(self) -> list[str]:
        """What there is to do, in words."""
        done = sum(map(self.is_done, self.documents))
        active = {
            document.name: status.current_step
            for document, status in self.before.items()
            if status is not None and status.termination is None
        }
        begun = {name: step for name, step in active.items() if step > 0}
        new = len(self.documents) - done - len(active)
        lines = [
            f"{len(self.documents)} documents in {printable(self.options.folder)}",
            f"store:   {self.options.store}",
            f"reports: {printable(self.options.reports)}",
        ]
        if done or active:
            lines.append(
                f"resuming: {done} done before, {len(begun)} interrupted, "
                f"{len(active) - len(begun)} waiting, {new} new"
            )
            lines += [f"  {x} goes on at stage {n + 1}, {STAGES[n]}" for x, n in begun.items()]
        return lines


def find_documents(folder: Path) -> dict[Document, Path]:
    """Everything in a folder that is not a folder and not hidden, by name."""
    found: dict[Document, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_dir():
            continue
        try:
            sha256 = hashlib.sha256(read_file(path)).hexdigest()
        except OSError:
            sha256 = ""  # its run will find out, and fail for this reason
        found[Document(printable(path.name), sha256)] = path
    return found


def totals(rows: Sequence[Row], seconds: float) -> list[tuple[str, str]]:
    """What the summary ends with."""
    results = Counter(row.result for row in rows)
    kinds = [x for x in ("reported", "reported earlier", "failed", "failed earlier") if results[x]]
    return [
        ("documents", ", ".join(f"{results[kind]} {kind}" for kind in kinds) or "none"),
        ("expensive calls made", str(sum(row.calls_made for row in rows))),
        ("expensive calls saved", str(sum(row.calls_saved for row in rows))),
        ("time", f"{seconds:.1f} s"),
    ]


async def run(options: argparse.Namespace, display: Display) -> int:
    loop = asyncio.get_running_loop()
    started = loop.time()
    documents = await asyncio.to_thread(find_documents, options.folder)
    if options.store is None:
        HOME.mkdir(parents=True, exist_ok=True)
        options.store = str(HOME / "store")
    options.reports.mkdir(parents=True, exist_ok=True)
    rows = await Session(options, documents, display).run()
    display.summary(rows, totals(rows, loop.time() - started))
    return 0 if all(row.succeeded for row in rows) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        with open_display(CallLog(options.call_log)) as display:
            return asyncio.run(run(options, display))
    except KeyboardInterrupt:
        python = min(sys.executable, os.path.relpath(sys.executable), key=len)
        command = shlex.join([python, *sys.argv])
        print(f"\nStopped. What was finished is kept; to go on, run the same again:\n  {command}")
        return 130
    except Fenced:
        print("error: another process took the store over, and goes on from here", file=sys.stderr)
    except TaqubaError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: {error.filename or 'system'}: {error.strerror or error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
