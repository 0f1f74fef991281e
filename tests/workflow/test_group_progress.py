"""How far a group is, on terminals and elsewhere."""

from __future__ import annotations

import importlib.util
import io

import pytest

from taquba.workflow import GroupMember, GroupStatus, Outcome, Step, Succeed
from taquba.workflow.progress import group_progress

from .harness import bed


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at(ended: int, total: int, *, failed: int = 0, complete: bool = True) -> GroupStatus:
    return GroupStatus("g", total, ended - failed, failed, 0, complete, False)


def test_lines_for_a_log() -> None:
    out = io.StringIO()
    with group_progress("pages", file=out) as progress:
        for ended in range(101):
            progress(at(ended, 100, failed=int(ended == 100)))
        progress(at(100, 100, failed=1))
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["pages: 0 of 100", "pages: 10 of 100"]
    assert lines[-1] == "pages: 100 of 100, 1 failed"
    assert len(lines) == 11


def test_while_members_are_submitted() -> None:
    out = io.StringIO()
    with group_progress(file=out) as progress:
        progress(at(1, 2, complete=False))
        progress(GroupStatus("g", 2, 0, 0, 2, is_complete=True, is_stopped=True))
    assert out.getvalue() == "members: 1 of 2 or more\nmembers: 2 of 2, 2 cancelled\n"


def test_one_line_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    out = Terminal()
    with group_progress("pages", file=out) as progress:
        progress(at(1, 2))
        progress(at(2, 2))
    assert out.getvalue() == "\r\x1b[2Kpages: 1 of 2\r\x1b[2Kpages: 2 of 2\n"


def test_a_bar_with_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    out = Terminal()
    with group_progress("pages", file=out) as progress:
        progress(at(1, 2))
        progress(at(2, 2, failed=1))
    assert "pages: 2 of 2, 1 failed" in out.getvalue()


@pytest.mark.anyio
async def test_results_tell_it() -> None:
    async def runner(step: Step) -> Outcome:
        return Succeed()

    async with bed(runner) as t:
        group = t.runtime.group("g")
        await group.submit([GroupMember(str(n), b"") for n in range(20)])
        await t.settle()
        out = io.StringIO()
        with group_progress(file=out) as progress:
            await group.gather(progress=progress)
        assert out.getvalue().splitlines()[-1] == "members: 20 of 20"
