"""Runs the document pipeline in processes of its own, and judges what they did.

Every session appends to one call log: a line when something happens, written at once, so that
it is there even if the process is killed the next moment. What the lines mean for this:

=========  ======================================================================
begun      the store is open; from here on this process may work
stage      a stage begins, so the stage before it was acknowledged
called     an expensive call is made
kept       its result was acknowledged as durable
recalled   a result that was kept before is used instead of a call
ended      the end of a run was acknowledged, and is reported as news
known      the run was found to have ended in an earlier session
=========  ======================================================================

``called`` is written before the call, ``kept`` after the acknowledgement. So whatever stands
under ``kept`` must never be called again, and what was called but not kept when its process
was killed, at most one call for each slot, may be.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _pipeline_text import analyse, combine, decode, render, split_sections
from document_pipeline import Document, find_documents

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "document_pipeline.py"

PATIENCE = 60.0
"""Seconds that a session may take for what takes it one or two."""


_IS_LINUX_ROOT = sys.platform == "linux" and os.geteuid() == 0
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the call log."""

    pid: int
    what: str
    run_id: str = ""
    number: int = 0
    """Stage or section."""
    result: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """A session that is over."""

    code: int
    out: str
    err: str


class Session:
    """One process of the pipeline."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._read: list[str] = []

    def read_line(self) -> bool:
        """Wait for the next line of output; False if there is none any more."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self._read.append(line)
        return bool(line)

    def read_until(self, text: str) -> None:
        """Wait until a line of output contains this."""
        while self.read_line():
            if text in self._read[-1]:
                return
        raise AssertionError(f"ended without saying {text!r}: {self.wait()}")

    def ends_within(self, seconds: float) -> bool:
        """Let it run for so long; whether it has come to its end by then."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> Ended:
        self._process.kill()
        return self.wait()

    def interrupt(self) -> Ended:
        """As Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> Ended:
        out, err = self._process.communicate(timeout=PATIENCE)
        return Ended(self._process.returncode, "".join(self._read) + out, err)


class Pipeline:
    """The pipeline as somebody uses it: a folder of texts, and sessions that work on it."""

    def __init__(self, home: Path, *options: str, script: Path = SCRIPT) -> None:
        self.home = home
        self.texts = home / "texts"
        self.texts.mkdir()
        self.reports = home / ".taquba/document-pipeline/reports"
        self.log = home / "calls.log"
        self._options = options
        self._script = script

    @contextmanager
    def session(self, *options: str) -> Iterator[Session]:
        """A process that works; it is gone when the block is left."""
        arguments = [str(self.texts), "--call-log", str(self.log), *self._options, *options]
        process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", str(self._script), *arguments],
            cwd=self.home,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_become_like_any_other,
        )
        with process:
            try:
                yield Session(process)
            finally:
                process.kill()

    def run(self, *options: str) -> Ended:
        """One session, to its end."""
        with self.session(*options) as session:
            return session.wait()

    def events(self) -> list[Event]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [_parse(line) for line in lines]

    def is_done(self) -> bool:
        """Whether the end of every document's run was acknowledged."""
        ended = {event.run_id for event in self.events() if event.what in ("ended", "known")}
        return ended >= set(self.documents())

    def documents(self) -> dict[str, Document]:
        """By run id."""
        return {document.run_id: document for document in find_documents(self.texts)}

    def expected_reports(self) -> dict[str, str]:
        """What must stand in the folder of reports, by file name."""
        return {
            f"{run_id}.txt": expected_report(document, self.texts / document.name)
            for run_id, document in self.documents().items()
        }

    def found_reports(self) -> dict[str, str]:
        return {
            path.name: path.read_text()
            for path in self.reports.iterdir()
            if not path.name.startswith(".")  # a kill may leave half of a file under such a name
        }


def environment() -> dict[str, str]:
    """This process's, without what could change how a session behaves."""
    clouds = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(clouds)}
    return {**kept, "PYTHONWARNINGS": "error", "AWS_EC2_METADATA_DISABLED": "true"}


def _become_like_any_other() -> None:
    """What differs between the processes that may run these tests, and must not matter."""
    # A shell that starts the tests in the background makes them, and so us, ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if _IS_LINUX_ROOT:
        _obey_permissions()


def _obey_permissions() -> None:
    """Give up root's right to read and write everything, so that root sees what others see."""
    drop_from_bounding_set, override, read_and_search = 24, 1, 2
    for capability in (override, read_and_search):
        if _LIBC.prctl(drop_from_bounding_set, capability, 0, 0, 0) != 0:
            raise OSError("this root may not give up its capabilities")


def storage_arguments(options: Mapping[str, Any]) -> list[str]:
    """Options of a store's driver, as arguments of the pipeline."""
    return [
        f"--storage-option={key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in options.items()
    ]


def expected_report(document: Document, path: Path) -> str:
    sections = split_sections(decode(path.read_bytes()))
    return render(combine(document.name, document.sha256, [analyse(x) for x in sections]))


def copy_texts(folder: Path, *, documents: int, sections: int) -> None:
    """Put some short texts into a folder: the beginnings of those that come with the example."""
    for path in sorted((EXAMPLES / "data").iterdir())[:documents]:
        beginning = split_sections(decode(path.read_bytes()))[:sections]
        (folder / path.name).write_text("\n\n".join(beginning))


def _parse(line: str) -> Event:
    pid, what, *rest = line.split(" ", 3)
    match what:
        case "begun":
            return Event(int(pid), what)
        case "ended" | "known":
            return Event(int(pid), what, rest[0], result=rest[1])
        case _:
            return Event(int(pid), what, rest[0], int(rest[1]))


def broken_promises(
    events: Sequence[Event], *, slots: int, kills: int, overlapping: bool = False
) -> list[str]:
    """Everything in a log that a durable workflow must not do.

    Args:
        events: The log.
        slots: Documents that a session works on at the same time.
        kills: Sessions that did not end by themselves.
        overlapping: The sessions did not run one after the other, so that lines of an earlier
            one may stand behind those of a later one, and their order proves nothing.
    """
    broken: list[str] = []
    sessions = {pid: n for n, pid in enumerate(dict.fromkeys(event.pid for event in events))}
    kept: dict[tuple[str, int], int] = {}
    reached: dict[str, tuple[int, int]] = {}
    ended: dict[str, int] = {}
    if overlapping:
        events = sorted(events, key=lambda event: sessions[event.pid])
    for event in events:
        session, key = sessions[event.pid], (event.run_id, event.number)
        match event.what:
            case "called" if key in kept:
                broken.append(f"session {session} repeats the call {key} of session {kept[key]}")
            case "kept" if key in kept:
                broken.append(f"session {session} keeps {key} again, after session {kept[key]}")
            case "kept":
                kept[key] = session
            case "recalled" if key not in kept and not _called_before(event, events):
                broken.append(f"session {session} recalls {key}, which nobody has called")
            case "stage":
                before = reached.get(event.run_id, (0, 0))[0]
                if event.number < before:
                    broken.append(f"{event.run_id} fell back from stage {before} to {event.number}")
                reached[event.run_id] = (event.number, session)
                if event.run_id in ended:
                    broken.append(f"session {session} works on {event.run_id}, which had ended")
            case "ended" if event.run_id in ended:
                broken.append(f"{event.run_id} is reported again by session {session}")
            case "ended":
                ended[event.run_id] = session
            case _:
                pass
    calls = Counter((x.run_id, x.number) for x in events if x.what == "called")
    repeated = sum(count - 1 for count in calls.values())
    if repeated > slots * kills:
        broken.append(f"{repeated} calls were repeated, with {kills} kills and {slots} slots")
    return broken


def _called_before(event: Event, events: Sequence[Event]) -> bool:
    # Killed between the acknowledgement and the line 'kept': the result is there all the same.
    return any(
        (x.what, x.run_id, x.number) == ("called", event.run_id, event.number) for x in events
    )


def assert_all_is_well(
    pipeline: Pipeline, last: Ended, *, slots: int, kills: int, overlapping: bool = False
) -> None:
    """Every document is reported, once and rightly, and no promise was broken on the way."""
    assert last.code == 0, last
    assert last.err == ""
    events = pipeline.events()
    assert broken_promises(events, slots=slots, kills=kills, overlapping=overlapping) == []
    documents = pipeline.documents()
    reported = Counter(x.run_id for x in events if x.what in ("ended", "known"))
    assert set(reported) == set(documents)
    assert pipeline.found_reports() == pipeline.expected_reports()
    assert_summary(last.out, events, documents)


def assert_summary(out: str, events: Sequence[Event], documents: Mapping[str, Document]) -> None:
    """The last session's summary has one row for each document, and its sums are right."""
    table = out.split("\n\n")[-2].splitlines()
    names = [document.name for document in documents.values()]
    assert [row.split()[0] for row in table] == ["document", *names]
    made = sum(event.what == "called" and event.pid == events[-1].pid for event in events)
    sections = len({(x.run_id, x.number) for x in events if x.what == "called"})
    assert f"expensive calls made  {made}\n" in out
    assert f"expensive calls saved {sections - made}\n" in out
