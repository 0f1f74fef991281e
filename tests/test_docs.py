"""What readers copy works: Python blocks of README and docs, and examples in docstrings.

Each fenced ``python`` block is a whole program. It is run in an empty folder, just as a reader
who copied it into a file would run it.
"""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import taquba

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
MODULES = sorted(
    ["taquba", *(module.name for module in pkgutil.walk_packages(taquba.__path__, "taquba."))]
)

FENCED = re.compile(r"^```(?P<language>\S*)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start()) + 2, found["language"], found["code"])
        for found in FENCED.finditer(text)
    ]


ALL_BLOCKS = [block for page in PAGES for block in blocks(page)]
PROGRAMS = [block for block in ALL_BLOCKS if block.language == "python"]


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_a_python_block_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The empty lines let a traceback show the line of the page.
    code = compile("\n" * (block.line - 1) + block.code, str(block.page), "exec")
    exec(code, {"__name__": "__main__"})


def test_the_readme_has_programs() -> None:
    assert sum(block.page.name == "README.md" for block in PROGRAMS) >= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_its_language(page: Path) -> None:
    assert page.read_text(encoding="utf-8").count("\n```") == 2 * len(blocks(page))
    silent = [str(block) for block in blocks(page) if not block.language]
    assert not silent, "a block without a language is neither run nor meant not to be"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = {found["target"] for found in LINK.finditer(page.read_text(encoding="utf-8"))}
    local = {target.partition("#")[0] for target in targets if "://" not in target} - {""}
    broken = sorted(target for target in local if not (page.parent / target).exists())
    assert not broken


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert not failed, "see the output above"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("taquba.queue", "Queue"),
        ("taquba.queue", "Effects"),
        ("taquba.workflow", "WorkflowRuntime"),
        ("taquba.clock", "ManualClock"),
    ],
)
def test_the_main_classes_have_examples(module: str, name: str) -> None:
    documented = getattr(importlib.import_module(module), name)
    assert doctest.DocTestFinder(recurse=False).find(documented)[0].examples
