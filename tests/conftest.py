"""Fixtures that every test folder may use."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

SERVERS = Path(__file__).parent / "servers"

_LONGEST_FIRST = ("faults", "process", "simulation", "objectstore", "database", "workflow")
"""Folders whose files take long; with one of them at the end, all but one process are idle."""


def pytest_configure(config: pytest.Config) -> None:
    # pytest-xdist would hand out the files with the most tests first, which are the quick ones.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        folder = item.path.parent.name
        return _LONGEST_FIRST.index(folder) if folder in _LONGEST_FIRST else len(_LONGEST_FIRST)

    items.sort(key=rank)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Commands and simulations that run in this process quieten the library's logger."""
    logger = logging.getLogger("taquba")
    before = logger.level
    yield
    logger.setLevel(before)


@contextlib.contextmanager
def running_server(name: str, *options: str) -> Iterator[dict[str, Any]]:
    """A server of tests/servers, for as long as the block runs; gives what it printed."""
    process = subprocess.Popen(
        [sys.executable, str(SERVERS / f"start_{name}.py"), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"start_{name}.py failed; see its stderr")
        yield json.loads(line)
    finally:
        process.stdin.close()  # this stops the server
        process.wait(30)
        process.stdout.close()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[dict[str, Any]]:
    """A real S3 server, started when first asked for.

    Open a store on it with ``open_store(f"{info['url']}/some/prefix", **info["storage_options"])``.
    Give every test a prefix of its own.
    """
    with running_server("seaweedfs") as info:
        yield info


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[dict[str, Any]]:
    """A server that speaks Google's JSON API, started when first asked for."""
    with running_server("fake_gcs") as info:
        yield info


@pytest.fixture(scope="session")
def azure_server() -> Iterator[dict[str, Any]]:
    """Azurite, started when first asked for."""
    with running_server("azurite", "--memory") as info:
        yield info


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install what no Python index has, before the time limit of a test is running."""
    needed = any(
        # In the id, it is the value of a parameter.
        "azure_server" in [*getattr(item, "fixturenames", ()), *re.split(r"[\[\]-]", item.nodeid)]
        for item in getattr(session, "items", ())
    )
    if needed and not session.config.option.collectonly:
        script = SERVERS / "start_azurite.py"
        # If it fails, the fixture will, too, and say why.
        subprocess.run([sys.executable, str(script), "--install"], stdout=subprocess.DEVNULL)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Captured text with lone surrogates cannot travel between the processes of pytest-xdist."""
    report = yield
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode())
        for title, text in report.sections
    ]
    return report
