"""Every edge case of the original queue has a test, or a decision that says why it differs.

``python -m tests.queue.test_reference`` prints where each of them is.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.queue.reference import LATER, LINES

ROOT = Path(__file__).parents[2]

# At the beginning of a docstring: "A3", "A3, A14: what it shows", "A3-A5".
_LINE = r"[A-T]\d{1,2}"
_IDS = re.compile(rf"{_LINE}(?:(?:,? and |, | |-|–|/){_LINE})*")

DECIDED: dict[str, str] = {
    "F19": "The reaper marks a lease, and later moves its job",
    "F20": "A record that cannot be decoded stays where it is",
    "F21": "A settlement checks the registry of leases",
    "F26": "`lease_expiry` tells when",
    "G10": "Cursors of the claim scan are saved at close",
    "G11": "Cursors of the claim scan are saved at close",
    "G14": "A reader can leave out the log",
    "M17": "Payloads that are objects can be in a store",
    "R11": "A reader refuses a store that nobody has written yet",
    "R12": "A reader can leave out the log",
}
"""Lines that are otherwise here: how their row in docs/decisions.md begins."""


@cache
def shown_by() -> dict[str, list[str]]:
    """By line, the tests whose docstrings name it."""
    found: dict[str, list[str]] = defaultdict(list)
    paths = (ROOT / "tests").rglob("test_*.py")
    # The workflow layer has a list of its own.
    for path in sorted(path for path in paths if path.parent.name != "workflow"):
        module = ast.parse(path.read_text())
        among = re.search(rf"Among much else ({_IDS.pattern})", ast.get_docstring(module) or "")
        for line in _each(among[1]) if among else ():
            found[line].append(str(path.relative_to(ROOT)))
        for node in ast.walk(module):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                ids = _IDS.match(ast.get_docstring(node) or "")
                if ids is not None and node.name.startswith("test_"):
                    for line in _each(ids[0]):
                        found[line].append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def _each(text: str) -> list[str]:
    lines: list[str] = []
    for part in re.split(r",? and |, | |/", text):
        first, *last = re.split("[-–]", part)
        end = int(last[0][1:]) if last else int(first[1:])
        lines += [f"{first[0]}{number}" for number in range(int(first[1:]), end + 1)]
    return lines


def decisions() -> list[str]:
    """The first column of the table of decisions."""
    text = (ROOT / "docs/decisions.md").read_text()
    return re.findall(r"^\| (.*?) \|", text, re.MULTILINE)


def test_every_line_is_known_once() -> None:
    assert len(LINES) == 347
    assert len({line[0] for line in LINES}) == 20
    assert all(words for words in LINES.values())


@pytest.mark.parametrize("area", sorted({line[0] for line in LINES}))
def test_every_line_has_a_test_or_a_decision(area: str) -> None:
    missing = {
        line: words
        for line, words in LINES.items()
        if line[0] == area and area not in LATER
        if line not in shown_by() and line not in DECIDED
    }
    assert not missing


def test_every_decision_is_written_down() -> None:
    rows = decisions()
    assert set(DECIDED) <= set(LINES)
    for line, beginning in DECIDED.items():
        assert any(row.startswith(beginning) for row in rows), line


def test_docstrings_name_lines_that_exist() -> None:
    unknown = set(shown_by()) - set(LINES)
    assert {line: shown_by()[line] for line in unknown} == {}


def test_reading_docstrings() -> None:
    assert _each("A3") == ["A3"]
    assert _each("A3, B4 and C5") == ["A3", "B4", "C5"]
    assert _each("A3-A5, B1–B2 C1/D2") == ["A3", "A4", "A5", "B1", "B2", "C1", "D2"]


def main() -> None:
    """Print the map."""
    for line, words in LINES.items():
        where = shown_by().get(line) or [
            f"docs/decisions.md: {DECIDED[line]}" if line in DECIDED else LATER.get(line[0], "?")
        ]
        print(f"{line}\t{words}\t{'; '.join(where)}")


if __name__ == "__main__":
    main()
