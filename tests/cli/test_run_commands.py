"""``taquba runs``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taquba import PermanentError, Queue
from taquba.workflow import Continue, Outcome, Step, Succeed, WorkflowRuntime

Show = Callable[..., Any]


async def runner(step: Step) -> Outcome:
    match step.payload:
        case b"dead":
            raise PermanentError("broken\nfor good")
        case b"wait":
            return Continue(signal="go", timeout=3600)
        case _:
            return Succeed(step.payload)


@pytest.fixture
def url(tmp_path: Path) -> str:
    async def fill() -> None:
        async with Queue.open(str(tmp_path)) as queue, WorkflowRuntime(queue, runner) as runtime:
            for payload in (b"text", b"\xff\x00", b"dead", b"wait"):
                name = {b"\xff\x00": "bytes"}.get(payload) or payload.decode()
                await runtime.submit(payload, run_id=name, headers={"who": name[0]})
            for name in ("text", "bytes", "dead"):
                await runtime.wait(name)

    asyncio.run(fill())
    return str(tmp_path)


def names(answer: Any) -> list[str]:
    return [run["run_id"] for run in answer["runs"]]


def test_list(url: str, shown: Show, told: Show) -> None:
    lines = shown("runs", "list", url).splitlines()
    assert lines[0].split() == ["run", "state", "step", "submitted", "what"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["text", "succeeded"],
        ["bytes", "succeeded"],
        ["dead", "failed"],
        ["wait", "pending"],
    ]
    assert "broken for good" in lines[3]
    assert "waits for signal 'go' until" in lines[4]
    answer = told("runs", "list", url)
    assert names(answer) == ["text", "bytes", "dead", "wait"]
    assert answer["next"] is None
    assert answer["runs"][2]["error_type"] == "taquba.errors.PermanentError"
    assert answer["runs"][3]["waiting_for"] == "go"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--state failed", ["dead"]),
        ("--state terminated --newest-first", ["dead", "bytes", "text"]),
        ("--state pending", ["wait"]),
        ("--header who=b", ["bytes"]),
        ("--error broken", ["dead"]),
        ("--error-type taquba.errors.PermanentError", ["dead"]),
        ("--workflow none", []),
        ("--revision none", []),
        ("--since -1h", ["text", "bytes", "dead", "wait"]),
        ("--until -1h", []),
        ("--ended-since -1h --state succeeded", ["text", "bytes"]),
        ("--ended-until -1h", []),
        ("--queue other", []),
    ],
)
def test_filters(url: str, told: Show, arguments: str, expected: list[str]) -> None:
    assert sorted(names(told("runs", "list", url, *arguments.split()))) == sorted(expected)


def test_pages(url: str, shown: Show, told: Show) -> None:
    found: list[str] = []
    after: list[str] = []
    while True:
        answer = told("runs", "list", url, "--limit", "3", *after)
        found += names(answer)
        if answer["next"] is None:
            break
        assert f"more: --after {answer['next']}" in shown("runs", "list", url, "--limit", "3")
        after = ["--after", answer["next"]]
    assert found == ["text", "bytes", "dead", "wait"]
    assert "no such runs" in shown("runs", "list", url, "--queue", "other")


def test_show(url: str, shown: Show, told: Show) -> None:
    text = shown("runs", "show", url, "text")
    assert "succeeded" in text and "who: t" in text and text.endswith("result, 4 bytes:\ntext\n")
    assert "ff00" in shown("runs", "show", url, "bytes")
    assert "broken for good (permanent)" in shown("runs", "show", url, "dead")
    assert "waits for signal" in shown("runs", "show", url, "wait")
    assert told("runs", "show", url, "text")["outcome"]["result"] == "text"
    assert told("runs", "show", url, "bytes")["outcome"]["result_base64"] == "/wA="
    waiting = told("runs", "show", url, "wait")
    assert (waiting["outcome"], waiting["waiting_for"], waiting["current_step"]) == (None, "go", 1)


def test_mistakes(url: str, shown: Show) -> None:
    assert "no run 'nobody'" in shown("runs", "show", url, "nobody", status=2)
    assert "run id" in shown("runs", "show", url, "no/id", status=2)
    assert "time" in shown("runs", "list", url, "--ended-since", "soon", status=2)


def test_a_store_without_runs(tmp_path: Path, shown: Show) -> None:
    async def fill() -> None:
        async with Queue.open(str(tmp_path)) as queue:
            await queue.enqueue("mail", b"")

    asyncio.run(fill())
    assert "no such runs" in shown("runs", "list", str(tmp_path))
    assert "no run" in shown("runs", "show", str(tmp_path), "r", status=2)
