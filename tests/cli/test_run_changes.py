"""``taquba runs cancel``, ``runs timeline`` and ``signal``."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taquba import Queue, QueueConfig
from taquba.cli import main
from taquba.workflow import (
    MAX_SIGNAL_SIZE,
    Continue,
    Outcome,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)

Show = Callable[..., Any]


async def runner(step: Step) -> Outcome:
    if step.payload == b"wait" and step.number == 0:
        await step.memo.memoized("a", lambda: 1)
        return Continue(step.payload, signal="go", timeout=36000)
    if step.payload == b"retry" and step.attempt == 1:
        raise OSError("the printer\nis on fire")
    return Succeed(step.signal)


def live(url: str, script: Any, *, heartbeat: float | None = 60, **options: Any) -> None:
    """One process that owns the store, and closes."""

    async def process() -> None:
        config = QueueConfig(backoff_base=0)
        async with Queue.open(url, heartbeat=heartbeat, config=config) as queue:
            async with WorkflowRuntime(queue, runner, **options) as runtime:
                await script(runtime)

    asyncio.run(process())


async def fill(runtime: WorkflowRuntime) -> None:
    for name in ("done", "retry", "wait"):
        await runtime.submit(name.encode(), run_id=name)
    for name in ("done", "retry"):
        await runtime.wait(name)
    while (await runtime.status("wait")).waiting_for is None:  # type: ignore[union-attr]
        await asyncio.sleep(0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    live(str(tmp_path), fill, keep_history=True)
    return str(tmp_path)


def test_a_timeline(url: str, shown: Show, told: Show) -> None:
    lines = shown("runs", "timeline", url, "retry").splitlines()
    assert lines[0].split() == ["step", "attempt", "claimed", "took", "outcome", "memo", "what"]
    assert "retried" in lines[1] and "OSError: the printer is on fire" in lines[1]
    assert "succeeded" in lines[2] and len(lines) == 3
    waiting = shown("runs", "timeline", url, "wait")
    assert "waits for signal 'go'; until" in waiting and "0 of 1" in waiting
    answer = told("runs", "timeline", url, "retry", "--limit", "1")
    [attempt] = answer["attempts"]
    assert (attempt["step"], attempt["attempt"], attempt["outcome"]) == (0, 1, "retried")
    assert (attempt["error"], attempt["error_type"]) == ("the printer\nis on fire", "OSError")
    assert attempt["claimed_at"] <= attempt["started_at"] <= attempt["recorded_at"]
    assert answer["dropped"] == 0 and answer["run_id"] == "retry"
    rest = told("runs", "timeline", url, "retry", "--after", answer["next"])
    assert [each["outcome"] for each in rest["attempts"]] == ["succeeded"]
    assert rest["next"] is None
    assert "--after" in shown("runs", "timeline", url, "retry", "--limit", "1")
    assert "there is no run 'x'" in shown("runs", "timeline", url, "x", status=2)
    assert "no run" in shown("runs", "timeline", url, "retry", "--queue", "other", status=2)


def test_no_timeline(tmp_path: Path, shown: Show) -> None:
    live(str(tmp_path), fill)
    assert "keep_history=True" in shown("runs", "timeline", str(tmp_path), "done")


def test_cancelling(url: str, shown: Show, told: Show) -> None:
    assert told("runs", "cancel", url, "wait") == {
        "run_id": "wait",
        "cancelled": True,
        "changed": True,
    }
    before = sorted(os.listdir(Path(url) / "journal"))
    assert told("runs", "cancel", url, "wait")["changed"] is False
    assert shown("runs", "cancel", url, "wait") == "run wait was cancelled before\n"
    assert sorted(os.listdir(Path(url) / "journal")) == before
    assert told("runs", "show", url, "wait")["outcome"]["status"] == "cancelled"
    # It goes on with the timeline that the runtime keeps.
    attempts = told("runs", "timeline", url, "wait")["attempts"]
    assert [each["outcome"] for each in attempts] == ["waiting", "cancelled"]
    assert attempts[-1]["claimed_at"] is None
    assert "never" in shown("runs", "timeline", url, "wait")


def test_cancelling_says_so(url: str, shown: Show) -> None:
    assert shown("runs", "cancel", url, "wait") == "cancelled run wait\n"


def test_what_cannot_be_cancelled(url: str, shown: Show) -> None:
    before = sorted(os.listdir(Path(url) / "journal"))
    assert "has succeeded already" in shown("runs", "cancel", url, "done", status=2)
    assert "'taquba runs list'" in shown("runs", "cancel", url, "nobody", status=2)
    assert "of the runtime 'other'" in shown(
        "runs", "cancel", url, "wait", "--queue", "other", status=2
    )
    assert sorted(os.listdir(Path(url) / "journal")) == before


def test_a_signal_that_is_waited_for(url: str, told: Show, shown: Show) -> None:
    answer = told("signal", url, "go", "yes", "--signal-id", "1")
    assert answer == {
        "outcome": "delivered",
        "created": True,
        "run_id": "wait",
        "replaced_base64": None,
    }
    again = shown("signal", url, "go", "yes", "--signal-id", "1")
    assert (
        again == "nothing was sent, since one with this id was: signal 'go' was given to run wait\n"
    )
    assert "another payload" in shown("signal", url, "go", "no", "--signal-id", "1", status=2)
    ends: list[Any] = []

    async def look(runtime: WorkflowRuntime) -> None:
        ends.append(await runtime.wait("wait"))

    live(url, look, keep_history=True)
    assert ends[0].termination.status is TerminalStatus.SUCCEEDED
    assert ends[0].outcome.result == b"yes"
    last = told("runs", "timeline", url, "wait")["attempts"][-1]
    assert (last["outcome"], last["woken_by"]) == ("succeeded", "go")
    assert "woken by signal 'go'" in shown("runs", "timeline", url, "wait")


def test_signals_that_nobody_waits_for(url: str, told: Show, shown: Show) -> None:
    assert "is buffered" in shown("signal", url, "other", "one")
    answer = told("signal", url, "other")
    assert (answer["outcome"], answer["replaced_base64"]) == ("buffered", "b25l")
    assert "replaces one of 0 bytes" in shown("signal", url, "other", "three")
    answer = told("signal", url, "other", "four", "--mode", "queue")
    assert answer["replaced_base64"] is None


@pytest.mark.parametrize("way", ["file", "stdin"])
def test_a_payload_of_bytes(
    url: str, way: str, shown: Show, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(256))
    name = "-"
    if way == "file":
        path = tmp_path_factory.mktemp("payload") / "data"
        path.write_bytes(data)
        name = str(path)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    shown("signal", url, "go", "--file", name)
    got: list[Any] = []

    async def look(runtime: WorkflowRuntime) -> None:
        got.append((await runtime.wait("wait")).outcome.result)

    live(url, look)
    assert got == [data]


def test_signals_that_make_no_sense(url: str, shown: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(os.listdir(Path(url) / "journal"))
    assert "not both" in shown("signal", url, "go", "x", "--file", "y", status=2)
    assert "no-such-file" in shown("signal", url, "go", "--file", "no-such-file", status=2)
    assert "no run was ever submitted" in shown("signal", url, "go", "--queue", "q", status=2)
    assert "signal_id is empty" in shown("signal", url, "go", "--signal-id", "", status=2)
    for size in (MAX_SIGNAL_SIZE + 1, MAX_SIGNAL_SIZE * 3):
        stdin = SimpleNamespace(buffer=io.BytesIO(b"x" * size))
        monkeypatch.setattr("sys.stdin", stdin)
        assert "262,144" in shown("signal", url, "go", "--file", "-", status=2)
    assert sorted(os.listdir(Path(url) / "journal")) == before


@pytest.mark.parametrize(
    ("argv", "call"),
    [
        (["runs", "cancel", "URL", "wait"], "WorkflowRuntime.cancel"),
        (["signal", "URL", "go"], "WorkflowRuntime.signal"),
    ],
)
def test_they_are_refused_while_there_may_be_an_owner(
    url: str, argv: list[str], call: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [url if each == "URL" else each for each in argv]

    async def process() -> None:
        async with Queue.open(url, heartbeat=60) as queue:
            assert await asyncio.to_thread(main, argv) == 2
            await queue.enqueue("mail", b"")  # it is not fenced

    asyncio.run(process())
    complaint = capsys.readouterr().err
    assert "may be owned by a running process" in complaint
    assert call in complaint and "--take-over" in complaint
    live(url, lambda runtime: asyncio.sleep(0), heartbeat=None, keep_history=True)
    assert main(argv) == 2
    assert main([*argv, "--take-over"]) == 0
