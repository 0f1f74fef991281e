"""Tests, lint, types, docs, bench, simulate, stress, faults: each in its own environment."""

from __future__ import annotations

from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_external_run = True


def install(session: nox.Session) -> None:
    session.install("--editable", ".[dev]")


@nox.session
def tests(session: nox.Session) -> None:
    """Everything that pytest runs; give it arguments of pytest."""
    install(session)
    session.run("pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, formatting, layers."""
    install(session)
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """Both type checkers."""
    install(session)
    session.run("mypy")
    session.run("pyright", "--project", ".")


@nox.session
def docs(session: nox.Session) -> None:
    """Run every Python block of the README and the docs, and every docstring's example."""
    install(session)
    session.run("pytest", "tests/test_docs.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """The benchmarks, as JSON lines; give it options of theirs, such as --smoke or --check."""
    install(session)
    for script in sorted(Path("benchmarks").glob("[!_]*.py")):
        session.run("python", str(script), *session.posargs)


@nox.session
def simulate(session: nox.Session) -> None:
    """Simulated worlds; give it --seeds N and --first K, or --seed K --trace for one world."""
    install(session)
    session.run("python", "-m", "tests.simulation", *session.posargs)


@nox.session
def stress(session: nox.Session) -> None:
    """200,000 jobs over 50 queues with 20 kills; give it --jobs, --queues, --kills or --seed."""
    install(session)
    session.run("python", "-m", "tests.stress", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """The fault matrix at full length; as root, since it mounts small file systems."""
    install(session)
    session.run("pytest", "tests/faults", *session.posargs, env={"TAQUBA_LONG_FAULTS": "1"})
