"""Run every benchmark, and write what came of it as a table.

    python benchmarks/_results.py [NAME …] > benchmarks/RESULTS.md

Takes some minutes, and the machine for itself. With names (`steps`, `peers/run`, …), only
those.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HIDDEN = ("scenario", "must_reach")
PEERS = "peers/run"


def machine() -> str:
    """What the figures were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), {memory:.0f} GiB of memory, "
        f"{platform.system()}, Python {platform.python_version()}"
    )


def commit() -> str:
    """The commit that was measured."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True).stdout.strip()


def lines_of(name: str) -> list[dict[str, Any]]:
    """The JSON lines that a benchmark prints."""
    print(f"{name} …", file=sys.stderr, flush=True)
    command = [sys.executable, str(HERE / f"{name}.py")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def section(name: str, lines: list[dict[str, Any]]) -> str:
    """One benchmark's table."""
    rows = [f"## {name}.py", "", "| scenario | figures | must reach |", "|---|---|---|"]
    for line in lines:
        figures = ", ".join(
            f"{name} {value:,}" if isinstance(value, (int, float)) else f"{name} {value}"
            for name, value in line.items()
            if name not in HIDDEN
        )
        bounds = [
            words if holds else f"**missed: {words}**"
            for words, holds in line.get("must_reach", {}).items()
        ]
        rows.append(f"| {line['scenario']} | {figures} | {'; '.join(bounds) or '–'} |")
    return "\n".join([*rows, ""])


def main() -> None:
    every = sorted(p.stem for p in HERE.glob("*.py") if p.stem[0] != "_")
    names = sys.argv[1:] or [*every, PEERS]
    sections = [section(name, lines_of(name)) for name in names]
    today = datetime.now(UTC).date()
    print(
        "# Results\n\n"
        f"Measured on {today} at commit `{commit()}`, on {machine()}, with\n"
        "`python benchmarks/_results.py`. What the figures mean is in [README.md](README.md).\n"
    )
    print("\n".join(sections), end="")


if __name__ == "__main__":
    main()
