"""What the tests of the command line share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from taquba.cli import main

Show = Callable[..., Any]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Show:
    """Runs a command, which is to exit with this status: what it printed."""

    def show(*argv: str, status: int = 0) -> str:
        assert main(argv) == status
        out, err = capsys.readouterr()
        assert (err == "") == (status == 0), err
        return out if status == 0 else err

    return show


@pytest.fixture
def told(shown: Show) -> Show:
    """The same with ``--json``, decoded."""

    def tell(*argv: str) -> Any:
        return json.loads(shown(*argv, "--json"))

    return tell
