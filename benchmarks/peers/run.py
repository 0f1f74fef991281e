"""The same workloads against taquba, DBOS on SQLite and Restate, one after the other.

    python benchmarks/peers/run.py --setup              install the peers (once)
    python benchmarks/peers/run.py [--smoke] [--check]

`--setup` installs the peers in `benchmarks/peers/.venv`, with pip and npm. A peer that is not there
is left out, and the benchmark says so. Prints one JSON line per workload. `--smoke` is our side
alone, in small.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from _workloads import FAN_OUT, JOBS, MANY, ONE, RUNS, Sizes

HERE = Path(__file__).parent
VENV = HERE / ".venv"
PYTHON = VENV / "bin" / "python"
PACKAGES = ["dbos", "restate-sdk[serde]", "hypercorn", "aiohttp"]
SERVER = "@restatedev/restate-server"
SECONDS = 240
"""How long one side may take."""

OURS = "taquba"
SCRIPTS = {OURS: "_ours.py", "dbos": "_dbos.py", "restate": "_restate.py"}
Figures = dict[str, Any]
Bound = tuple[str, Callable[[Figures], bool]]


# -- installing -------------------------------------------------------------------------------


def set_up() -> int:
    """Install what can be installed, and say what cannot."""
    failed: list[str] = []
    npm = shutil.which("npm") or "npm"
    steps = {
        "a virtual environment": [sys.executable, "-m", "venv", str(VENV)],
        "DBOS and Restate's SDK": [str(PYTHON), "-m", "pip", "install", "-q", *PACKAGES],
        "Restate's server": [npm, "install", "--silent", "--prefix", str(VENV / "node"), SERVER],
    }
    for what, command in steps.items():
        print(f"installing {what} …", file=sys.stderr, flush=True)
        try:
            subprocess.run(command, check=True, stdout=sys.stderr)
        except (OSError, subprocess.CalledProcessError) as error:
            failed.append(what)
            print(f"cannot install {what}: {error}", file=sys.stderr)
    return 1 if failed else 0


def server_binary() -> Path | None:
    """Restate's server, if npm has brought one for this machine."""
    pattern = "node_modules/@restatedev/restate-server-*/bin/restate-server"
    return next(iter(sorted((VENV / "node").glob(pattern))), None)


def version_of(package: str) -> str | None:
    """The version of a peer, or None if it is not there."""
    if not PYTHON.exists():
        return None
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([str(PYTHON), "-c", code], capture_output=True, text=True)
    return done.stdout.strip() or None


def sides() -> dict[str, str]:
    """Those that can run, and their versions."""
    found = {OURS: "this checkout"}
    dbos, restate = version_of("dbos"), version_of("restate-sdk")
    if dbos is not None:
        found["dbos"] = dbos
    if restate is not None and server_binary() is not None:
        found["restate"] = f"SDK {restate}"
    return found


# -- running ----------------------------------------------------------------------------------


def lines_of(side: str, command: str, folder: Path, size: str) -> list[Figures]:
    """What a side prints; nothing, with a word on standard error, if it fails."""
    interpreter = sys.executable if side == OURS else str(PYTHON)
    environment = dict(os.environ)
    if server := server_binary():
        environment["RESTATE_SERVER"] = str(server)
    process = subprocess.Popen(
        [interpreter, str(HERE / SCRIPTS[side]), command, str(folder), size],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        print(f"{side}: '{command}' took more than {SECONDS} s", file=sys.stderr)
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
    if process.returncode:
        print(f"{side}: '{command}' failed; see above", file=sys.stderr)
    return [json.loads(line) for line in printed.splitlines()]


def measure(side: str, size: str) -> Figures:
    """All workloads of a side, by name, and what else it told."""
    found: Figures = {}
    print(f"{side} …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=HERE, prefix=".work-") as work:
        for name, commands in (("work", ["work"]), ("restart", ["leave", "first"])):
            folder = Path(work) / name
            folder.mkdir()
            for command in commands:
                for line in lines_of(side, command, folder, size):
                    if "workload" in line:
                        found[line["workload"]] = line
                    else:
                        found |= line
    return found


# -- reporting --------------------------------------------------------------------------------


def rate(name: str) -> Callable[[Figures], float | None]:
    def of(side: Figures) -> float | None:
        line = side.get(name)
        return line and line["count"] / line["seconds"]

    return of


def cpu(side: Figures) -> float | None:
    line = side.get(RUNS)
    return line and line["cpu"] / line["count"] * 1000


def rows(sizes: Sizes) -> Iterable[tuple[str, str, Callable[[Figures], float | None], Bound]]:
    """Each workload: its name, the unit of its figure, the figure, and what ours must reach."""

    def at_least(least: int) -> Bound:
        return f"{least:,} per second", lambda f: f[OURS] >= least

    yield (
        f"1 run of {sizes.one} steps",
        "per_s",
        rate(ONE),
        ("0.8 of the raw rate of LocalStore.create", lambda f: f["of_raw_creates"] >= 0.8),
    )
    runs = f"{sizes.runs} runs of {sizes.steps} steps"
    yield runs, "per_s", rate(RUNS), at_least(7000)
    many = f"{sizes.many:,} runs of {sizes.many_steps} steps"
    yield many, "per_s", rate(MANY), at_least(7000)
    jobs = f"{sizes.jobs:,} single-step jobs from {sizes.submitters} submitters"
    yield jobs, "per_s", rate(JOBS), at_least(3500)
    fan_out = f"a run with {sizes.children} children, all results read"
    yield fan_out, "per_s", rate(FAN_OUT), at_least(2500)
    yield (
        f"first run after a restart with {sizes.pending:,} pending",
        "s",
        lambda side: side.get("first_s"),
        ("0.3 s", lambda f: f[OURS] <= 0.3),
    )
    yield runs, "cpu_s_per_1000", cpu, ("0.2 s", lambda f: f[OURS] <= 0.2)


def report(found: dict[str, Figures], sizes: Sizes, *, judge: bool) -> list[str]:
    """Print a line for each workload; what was missed."""
    missed: list[str] = []
    for name, unit, figure, (words, holds) in rows(sizes):
        figures: Figures = {"scenario": name, "unit": unit}
        values = {side: value for side, told in found.items() if (value := figure(told))}
        figures |= {side: short(value) for side, value in values.items()}
        ours = values.get(OURS)
        if ours is None:
            missed.append(f"{name}: {OURS} told nothing")
            continue
        for side, value in values.items():
            if side != OURS:
                times = ours / value if unit == "per_s" else value / ours
                figures[f"times_{side}"] = short(times)
        if name.startswith("1 run"):
            raw = 1 / found[OURS]["raw_create_s"]
            figures |= {"raw_creates_per_s": short(raw), "of_raw_creates": short(ours / raw)}
        if judge:
            reached = holds(figures)
            figures["must_reach"] = {words: reached}
            if not reached:
                missed.append(f"{name} ({unit}): must reach {words}")
        print(json.dumps(figures), flush=True)
    return missed


def short(value: float) -> float:
    return float(f"{value:.4g}")


def main() -> int:
    parser = argparse.ArgumentParser(description="The same workloads against others.")
    parser.add_argument("--setup", action="store_true", help="install the peers, and nothing else")
    parser.add_argument("--smoke", action="store_true", help="our side alone, in small sizes")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    arguments = parser.parse_args()
    if arguments.setup:
        return set_up()
    sizes = Sizes(smoke=arguments.smoke)
    versions = {OURS: "this checkout"} if arguments.smoke else sides()
    for side in SCRIPTS.keys() - versions.keys() if not arguments.smoke else ():
        print(f"{side} is not installed, and left out: run with --setup first", file=sys.stderr)
    found = {side: measure(side, "smoke" if arguments.smoke else "full") for side in versions}
    for side, version in versions.items():
        durability = found[side].get("durability")
        line = {"scenario": f"durability: {side}", "version": version, "local": durability}
        print(json.dumps(line), flush=True)
    missed = report(found, sizes, judge=not arguments.smoke)
    for each in missed:
        print(f"missed (Python {platform.python_version()}): {each}", file=sys.stderr)
    return 1 if missed and (arguments.check or arguments.smoke) else 0


if __name__ == "__main__":
    sys.exit(main())
