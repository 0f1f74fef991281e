"""``taquba groups``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taquba import Queue
from taquba.workflow import (
    Continue,
    Fail,
    GroupMember,
    Outcome,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)
from taquba.workflow._group_records import member_run_id

Show = Callable[..., Any]


async def runner(step: Step) -> Outcome:
    match step.payload:
        case b"wait" if step.number == 0:
            return Continue(step.payload, signal=step.run_id)
        case b"fail":
            return Fail("no total\non page 2")
        case _:
            return Succeed()


async def fill(url: str) -> None:
    async with Queue.open(url, heartbeat=60) as queue, WorkflowRuntime(queue, runner) as runtime:
        done = runtime.group("batch-41", signal_when_finished="done")
        await done.submit([GroupMember("one", b"x")])
        await done.wait()
        inputs = {"a": b"x", "b/ä": b"fail", "c": b"wait", "d": b"wait"}
        group = runtime.group("batch-42")
        await group.submit([GroupMember(key, data) for key, data in inputs.items()])
        for key in inputs:
            run_id = member_run_id("batch-42", key)
            while True:
                status = await runtime.status(run_id)
                assert status is not None
                if status.termination is not None or status.waiting_for is not None:
                    break
                await asyncio.sleep(0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    asyncio.run(fill(str(tmp_path)))
    return str(tmp_path)


def entries(url: str) -> list[str]:
    return sorted(os.listdir(Path(url) / "journal"))


def test_listing(url: str, shown: Show, told: Show) -> None:
    lines = [line.split() for line in shown("groups", "list", url).splitlines()]
    assert lines == [
        ["group", "state", "members", "succeeded", "failed", "cancelled", "pending"],
        ["batch-41", "finished", "1", "1", "0", "0", "0"],
        ["batch-42", "running", "4", "1", "1", "0", "2"],
    ]
    first = told("groups", "list", url, "--limit", "1")
    assert [each["group_id"] for each in first["groups"]] == ["batch-41"]
    assert first["groups"][0]["is_finished"] is True
    assert "more: --after batch-41" in shown("groups", "list", url, "--limit", "1")
    rest = told("groups", "list", url, "--after", first["next"])
    assert [each["group_id"] for each in rest["groups"]] == ["batch-42"]
    assert rest["next"] is None
    assert rest["groups"][0] == told("groups", "show", url, "batch-42")
    nothing = shown("groups", "list", url, "--queue", "other")
    assert nothing == "the runtime 'other' has no such groups; --queue names another\n"


def test_showing(url: str, shown: Show) -> None:
    lines = [line.split() for line in shown("groups", "show", url, "batch-42").splitlines()]
    assert ["state", "running"] in lines
    assert ["members", "4"] in lines
    assert ["failed", "1"] in lines
    told = shown("groups", "show", url, "batch-4", status=2)
    assert "there is no group 'batch-4'" in told and "'taquba groups list'" in told


def test_members(url: str, shown: Show, told: Show) -> None:
    lines = shown("groups", "members", url, "batch-42").splitlines()
    assert lines[0].split() == ["position", "key", "state", "step", "run", "what"]
    assert [line.split()[1:3] for line in lines[1:]] == [
        ["a", "succeeded"],
        ["b/ä", "failed"],
        ["c", "pending"],
        ["d", "pending"],
    ]
    assert lines[2].endswith("no total on page 2")
    assert "waits for signal" in lines[3]
    [failed] = told("groups", "members", url, "batch-42", "--state", "failed")["members"]
    assert (failed["key"], failed["position"], failed["status"]) == ("b/ä", 1, "failed")
    assert failed["run_id"] == member_run_id("batch-42", "b/ä")
    page = told("groups", "members", url, "batch-42", "--limit", "3")
    rest = told("groups", "members", url, "batch-42", "--after", page["next"])
    assert [each["key"] for each in (*page["members"], *rest["members"])] == ["a", "b/ä", "c", "d"]
    assert "more: --after 3" in shown("groups", "members", url, "batch-42", "--limit", "3")
    nobody = shown("groups", "members", url, "batch-41", "--state", "failed")
    assert nobody == "no such members\n"
    assert "there is no group" in shown("groups", "members", url, "none", status=2)
    assert "next" in shown("groups", "members", url, "batch-42", "--after", "x", status=2)


def test_cancelling_and_forgetting(url: str, shown: Show, told: Show) -> None:
    before = entries(url)
    assert "2 members that have not ended" in shown("groups", "forget", url, "batch-42", status=2)
    assert "nothing to cancel" in shown("groups", "cancel", url, "batch-41")
    assert entries(url) == before
    assert shown("groups", "cancel", url, "batch-42") == "cancelled 2 members of group batch-42\n"
    status = told("groups", "show", url, "batch-42")
    assert (status["cancelled"], status["is_stopped"]) == (2, True)
    assert told("groups", "cancel", url, "batch-42") == {"group_id": "batch-42", "cancelled": 0}
    assert shown("groups", "forget", url, "batch-42") == "forgot group batch-42 with 4 members\n"
    assert "there is no group" in shown("groups", "show", url, "batch-42", status=2)
    assert told("groups", "forget", url, "batch-41") == {"group_id": "batch-41", "forgotten": 1}
    assert told("runs", "list", url)["runs"] == []
    assert "there is no group" in shown("groups", "forget", url, "batch-41", status=2)


@pytest.mark.parametrize("action", ["cancel", "forget"])
def test_a_store_that_may_have_an_owner(tmp_path: Path, shown: Show, action: str) -> None:
    url = str(tmp_path)

    async def silent() -> None:
        async with Queue.open(url) as queue:
            async with WorkflowRuntime(queue, runner if action == "forget" else None) as runtime:
                group = runtime.group("g")
                await group.submit([GroupMember("one", b"x")])
                if action == "forget":
                    assert (await group.wait()).succeeded == 1

    asyncio.run(silent())
    before = entries(url)
    told = shown("groups", action, url, "g", status=2)
    assert "--take-over" in told and f"RunGroup.{action}" in told
    assert entries(url) == before
    shown("groups", action, url, "g", "--take-over")
    assert entries(url) != before


def test_a_group_that_was_stopped(tmp_path: Path, shown: Show) -> None:
    url = str(tmp_path)

    async def stopped() -> None:
        async with Queue.open(url) as queue, WorkflowRuntime(queue, runner) as runtime:
            group = runtime.group("g", stop_after_failures=1)
            await group.submit([GroupMember(str(n), b"fail") for n in range(20)])
            ends = [end async for end in group.results()]
            assert ends[0].termination.status is TerminalStatus.FAILED

    asyncio.run(stopped())
    assert "stopped" in shown("groups", "list", url)
