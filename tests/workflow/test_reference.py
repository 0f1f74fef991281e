"""Every edge case of the original workflow runtime has a test, or a decision that says why not.

``python -m tests.workflow.test_reference`` prints where each of them is.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.workflow.reference import LINES

ROOT = Path(__file__).parents[2]

# At the beginning of a docstring: "SUB-03", "SUB-03, CAN-14: what it shows".
_LINE = r"[A-Z]{3,4}-\d\d"
_IDS = re.compile(rf"{_LINE}(?:(?:,? and |, ){_LINE})*")
_COUNTS = {
    "SUB": 35,
    "STEP": 30,
    "STAT": 26,
    "CAN": 31,
    "SIG": 35,
    "MEM": 22,
    "REP": 13,
    "EFF": 14,
    "HOOK": 22,
    "RET": 13,
    "WRK": 14,
    "GRP": 32,
    "JOB": 34,
}

_RESULT = "The result record is an object beside the terminal record"
_RECORD = "A record that cannot be read"
_REPLAY = "Outcomes can be recorded before they are settled"
DECIDED: dict[str, str] = {
    "SUB-15": "A job that an effect enqueues may not carry",
    "SUB-18": "The key `workflow/…` of the caller",
    "SUB-26": "A run id is a type",
    "STEP-26": _RESULT,
    "STAT-13": "A view that was given another place",
    "STAT-22": "A run that was cancelled while nobody had its step",
    "STAT-24": _RESULT,
    "STAT-25": _RECORD,
    "STAT-26": "A run whose step died outside a worker",
    "MEM-12": "Memos, results and replay records are objects",
    "MEM-13": "Memos, results and replay records are objects",
    "MEM-22": "Clearing a run's memos goes on",
    "REP-03": _REPLAY,
    "REP-10": _REPLAY,
    "REP-11": _REPLAY,
    "HOOK-15": _RECORD,
    "RET-08": "Retention applies to runs that end while",
    "STEP-20": "Membership travels in headers",
    "GRP-31": _RECORD,
    "WRK-02": "A worker is started by a call",
    "WRK-07": "The clock of ends",
}
"""Lines that are otherwise here: how their row in docs/decisions.md begins."""

LATER: set[str] = set()
"""Lines of parts that are put off."""

OWED: set[str] = set()
"""Lines of what is not built yet. Nothing is ever added to this."""


@cache
def shown_by() -> dict[str, list[str]]:
    """By line, the tests whose docstrings name it."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                ids = _IDS.match(ast.get_docstring(node) or "")
                if ids is not None and node.name.startswith("test_"):
                    for line in re.findall(_LINE, ids[0]):
                        found[line].append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def decisions() -> list[str]:
    """The first column of the tables of decisions."""
    text = (ROOT / "docs/decisions.md").read_text()
    return re.findall(r"^\| (.*?) \|", text, re.MULTILINE)


def test_every_line_is_known_once() -> None:
    counts = {area: sum(line.startswith(f"{area}-") for line in LINES) for area in _COUNTS}
    assert counts == _COUNTS
    assert sum(counts.values()) == len(LINES) == 321
    assert all(words for words in LINES.values())


@pytest.mark.parametrize("area", _COUNTS)
def test_every_line_has_a_test_or_a_decision(area: str) -> None:
    missing = {
        line: words
        for line, words in LINES.items()
        if line.startswith(f"{area}-")
        if line not in shown_by() and line not in {*DECIDED, *LATER, *OWED}
    }
    assert not missing


def test_no_line_is_both_decided_and_put_off() -> None:
    assert not (LATER | OWED) - set(LINES)
    assert not (LATER | OWED) & set(DECIDED)


def test_every_decision_is_written_down() -> None:
    rows = decisions()
    assert set(DECIDED) <= set(LINES)
    for line, beginning in DECIDED.items():
        assert any(row.startswith(beginning) for row in rows), line


def test_docstrings_name_lines_that_exist() -> None:
    unknown = set(shown_by()) - set(LINES)
    assert {line: shown_by()[line] for line in unknown} == {}


def main() -> None:
    """Print the map."""
    for line, words in LINES.items():
        where = shown_by().get(line) or [
            f"docs/decisions.md: {DECIDED[line]}" if line in DECIDED else "later"
        ]
        print(f"{line}\t{words}\t{'; '.join(where)}")


if __name__ == "__main__":
    main()
