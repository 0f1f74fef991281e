"""The sessions that the headers of examples show: run, and compared with what they print.

    python tests/examples/sessions.py examples/single_step.py

A header shows commands behind a ``$`` and below each what it prints, all of it indented. ``…``
stands for anything. The commands of one header are run one after the other in an empty folder.
"""

from __future__ import annotations

import ast
import doctest
import os
import shlex
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

__all__ = ["EXAMPLES", "Command", "check", "session"]

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(ROOT.glob("examples/[!_]*.py"))
_PROMPT = "$ "
_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Command:
    line: str
    prints: str


def session(example: Path) -> list[Command]:
    """The commands that an example's header shows, and what they print."""
    text = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8")), clean=False) or ""
    lines = text.splitlines()
    commands: list[Command] = []
    number = 0
    while number < len(lines):
        line = lines[number].strip()
        number += 1
        if not line.startswith(_PROMPT) or not lines[number - 1].startswith("    "):
            continue
        printed: list[str] = []
        while number < len(lines) and lines[number].startswith("    "):
            if lines[number].strip().startswith(_PROMPT):
                break
            printed.append(lines[number])
            number += 1
        commands.append(Command(line.removeprefix(_PROMPT), textwrap.dedent("\n".join(printed))))
    return commands


def check(example: Path, folder: Path) -> list[str]:
    """Run the session of an example in this folder; what it printed, or an error that tells.

    Raises:
        AssertionError: It printed something else, or failed.
    """
    commands = session(example)
    assert commands, f"the header of {example.name} shows no session: '    $ python examples/…'"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    outputs: list[str] = []
    for command in commands:
        words = [
            sys.executable if word == "python" else str(ROOT / word) if _is_script(word) else word
            for word in shlex.split(command.line)
        ]
        ended = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, env=environment
        )
        outputs.append(ended.stdout)
        told = f"$ {command.line}\n{ended.stdout}{ended.stderr}"
        assert ended.returncode == 0, f"exit status {ended.returncode}:\n{told}"
        wanted = command.prints.rstrip() + "\n" if command.prints else ""
        found = ended.stdout.rstrip() + "\n" if ended.stdout.strip() else ""
        matches = doctest.OutputChecker().check_output(
            wanted.replace("…", "..."), found.replace("…", "..."), doctest.ELLIPSIS
        )
        assert matches, f"the header of {example.name} says:\n{wanted}\nbut it went:\n{told}"
    return outputs


def _is_script(word: str) -> bool:
    return word.startswith("examples/") and word.endswith(".py")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as place:
            for output in check(Path(argument).resolve(), Path(place)):
                print(output, end="")
