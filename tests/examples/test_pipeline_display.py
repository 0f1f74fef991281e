"""What the document pipeline shows, on a terminal and piped."""

from __future__ import annotations

import io
import logging
import os
from pathlib import Path

import pytest

from _pipeline_display import CallLog, Display, LiveDisplay, PlainDisplay, Row, open_display

ROWS = [
    Row("a.txt", True, False, 3, 2, "1 min 05 s"),
    Row("b.txt", True, True, 4, 0, "2 s"),
    Row("c [bold].bin", False, False, reason="is binary"),
]
TOTALS = [("documents", "2 reported"), ("expensive calls saved", "5")]


def work(display: Display) -> None:
    """Tell a display of a short session."""
    with display:
        display.begun(["3 documents in x"], 3)
        display.ended("b-1", ROWS[1])
        display.stage_begun("a-1", "a.txt", 0, "read")
        display.stage_begun("a-1", "a.txt", 1, "analyse", 3)
        display.section_kept("a-1", 1)
        display.call_begun("a-1", 2)
        logging.getLogger("taquba.queue").warning("the store does not answer")
        logging.getLogger("taquba.queue").info("nobody needs to know")
        display.section_kept("a-1", 2)
        display.ended("a-1", ROWS[0])
        display.ended("c-1", ROWS[2])
        display.summary(ROWS, TOTALS)


def test_piped_it_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    work(PlainDisplay(CallLog(None)))
    assert capsys.readouterr().out == (
        "3 documents in x\n"
        "a.txt: stage 1, read\n"
        "a.txt: stage 2, analyse, 3 sections\n"
        "warning: the store does not answer\n"
        "a.txt: reported, 3 sections, 2 calls made, 1 saved\n"
        "c [bold].bin: failed, is binary\n"
        "\n"
        "document      result             sections  calls made  calls saved  reading time\n"
        "a.txt         reported                  3           2            1    1 min 05 s\n"
        "b.txt         reported earlier          4           0            4           2 s\n"
        "c [bold].bin  failed: is binary\n"
        "\n"
        "documents             2 reported\n"
        "expensive calls saved 5\n"
    )


def test_on_a_terminal_it_moves_and_leaves_the_same_behind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    work(LiveDisplay(CallLog(None)))
    out = capsys.readouterr().out
    assert "a.txt: reported, 3 sections, 2 calls made, 1 saved\n" in out
    assert "c [bold].bin: failed, is binary\n" in out
    assert "warning: the store does not answer\n" in out
    assert "b.txt: reported" not in out
    for row in ROWS:
        assert f"│ {row.document}" in out
    assert "expensive calls saved  5" in out


def test_with_many_documents_the_summary_shows_what_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    PlainDisplay(CallLog(None)).summary([*ROWS * 20, Row("bad", False, True, reason="empty")], [])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 1 + 20 + 1 + 1
    assert "bad           failed earlier: empty" in lines


def test_the_call_log_has_a_line_for_each_thing_that_happens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "calls.log"
    file.write_text("before\n")
    work(PlainDisplay(CallLog(str(file))))
    before, *lines = file.read_text().splitlines()
    assert before == "before"
    assert {line.split()[0] for line in lines} == {str(os.getpid())}
    assert [line.split(maxsplit=1)[1] for line in lines] == [
        "begun",
        "known b-1 reported earlier",
        "stage a-1 0",
        "stage a-1 1",
        "recalled a-1 1",
        "called a-1 2",
        "kept a-1 2",
        "ended a-1 reported",
        "ended c-1 failed",
    ]


def test_the_work_goes_on_when_nobody_reads_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        work(PlainDisplay(CallLog(None)))


def test_it_is_live_only_on_a_terminal_and_only_with_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert isinstance(open_display(CallLog(None)), PlainDisplay)
    monkeypatch.setattr("sys.stdout", Terminal())
    assert isinstance(open_display(CallLog(None)), LiveDisplay)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert isinstance(open_display(CallLog(None)), PlainDisplay)
