"""Run groups, looked at from outside, and what members that end without a worker leave."""

from __future__ import annotations

import asyncio

import pytest

from taquba import Follower, Queue
from taquba.errors import InvalidArgument, InvalidType
from taquba.workflow import (
    Fail,
    GroupMember,
    Outcome,
    RunState,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowView,
)
from taquba.workflow._group_records import member_run_id

from .harness import bed

pytestmark = pytest.mark.anyio


async def test_a_view_shows_groups() -> None:
    """GRP-30"""
    gate = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        if step.payload == b"hold":
            await gate.wait()
        return Fail("no") if step.payload == b"fail" else Succeed()

    async with bed(runner) as t:
        view = WorkflowView(t.queue)
        assert await view.group_status("g") is None
        inputs = (b"x", b"fail", b"hold")
        await t.runtime.group("g").submit(
            [GroupMember(str(n), data) for n, data in enumerate(inputs)]
        )
        for name in ("a", "z"):
            await t.runtime.group(name).submit([GroupMember("one", b"x")])
        await t.settle()
        async with Follower.open(t.store.below, clock=t.clock) as follower:
            for reader in (view, WorkflowView(follower), t.runtime):
                status = await reader.group_status("g")
                assert status == await t.runtime.group("g").status()
                assert status is not None
                assert (status.succeeded, status.failed, status.pending) == (1, 1, 1)
                assert await reader.group_status("unknown") is None
                listed = [group.group_id for group in await reader.groups()]
                assert listed == ["a", "g", "z"]
                [only] = await reader.groups(after="a", limit=1)
                assert only == status
                assert await reader.groups(after="z") == []
        other = WorkflowView(t.queue, queue_name="another")
        assert await other.group_status("g") is None
        assert await other.groups() == []
        with pytest.raises(InvalidArgument, match="group id"):
            await view.group_status("")
        with pytest.raises(InvalidArgument, match="limit"):
            await view.groups(limit=10_001)
        gate.set()


async def test_a_view_lists_members() -> None:
    """In the order of their submission, page by page, also by their state."""
    gate = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        if step.payload == b"hold":
            await gate.wait()
        return Fail("no") if step.payload == b"fail" else Succeed()

    async with bed(runner, concurrency=500) as t:
        inputs = [b"fail" if n % 3 == 0 else b"hold" if n % 3 == 1 else b"x" for n in range(600)]
        group = t.runtime.group("g")
        await group.submit([GroupMember(f"k{n}", data) for n, data in enumerate(inputs)])
        await t.runtime.group("other").submit([GroupMember("k0", b"x")])
        await t.settle()
        async with Follower.open(t.store.below, clock=t.clock) as follower:
            for reader in (WorkflowView(t.queue), WorkflowView(follower), t.runtime):
                page = await reader.group_members("g", limit=3)
                assert page is not None and page.next is not None
                assert [(each.key, each.position) for each in page.members] == [
                    ("k0", 0),
                    ("k1", 1),
                    ("k2", 2),
                ]
                assert [each.run.status for each in page.members] == [
                    TerminalStatus.FAILED,
                    None,
                    TerminalStatus.SUCCEEDED,
                ]
                assert page.members[0].run.error == "no"
                assert page.members[1].run.state is RunState.RUNNING
                assert page.members[0].run.run_id == member_run_id("g", "k0")
                rest = await reader.group_members("g", limit=10_000, after=page.next)
                assert rest is not None and rest.next is None
                assert [each.position for each in rest.members] == list(range(3, 600))
                seen: list[int] = []
                after = None
                while True:
                    failed = await reader.group_members(
                        "g", TerminalStatus.FAILED, limit=67, after=after
                    )
                    assert failed is not None
                    seen += [each.position for each in failed.members]
                    after = failed.next
                    if after is None:
                        break
                assert seen == list(range(0, 600, 3))
                running = await reader.group_members("g", RunState.RUNNING, limit=1000)
                assert running is not None and len(running.members) == 200
                assert await reader.group_members("unknown") is None
        view = WorkflowView(t.queue)
        for wrong in ("x", "-1", "1" * 19, "²"):
            with pytest.raises(InvalidArgument, match="give the `next` of a page"):
                await view.group_members("g", after=wrong)
        with pytest.raises(InvalidType, match="after is 7"):
            await view.group_members("g", after=7)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="limit"):
            await view.group_members("g", limit=10_001)
        with pytest.raises(InvalidType, match="state"):
            await view.group_members("g", "failed")  # type: ignore[arg-type]
        gate.set()


async def test_no_runtime_was_ever_there() -> None:

    async with Queue.open("memory://") as queue:
        view = WorkflowView(queue)
        assert await view.group_status("g") is None
        assert await view.groups() == []
        assert await view.group_members("g") is None


async def test_a_forgotten_group_is_not_shown() -> None:
    async def runner(step: Step) -> Outcome:
        return Succeed()

    async with bed(runner) as t:
        group = t.runtime.group("g")
        await group.submit([GroupMember("one", b"")])
        await t.settle()
        await group.forget()
        assert await t.runtime.group_status("g") is None
        assert await t.runtime.groups() == []


async def test_a_member_that_is_run_again_and_ends_without_a_worker() -> None:
    """GRP-13: it has an outcome, too, which is that of its new life."""
    gate = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        if step.payload == b"hold":
            await gate.wait()
        return Fail("at first")

    async with bed(runner, concurrency=1) as t:
        group = t.runtime.group("g")
        await group.submit([GroupMember("a", b"x")])
        await t.settle()
        assert (await group.status()).failed == 1
        await t.runtime.submit(b"hold")
        await t.settle()  # nobody is free now
        await group.resume()
        assert (await group.status()).pending == 1
        assert await t.runtime.cancel(member_run_id("g", "a"))
        reading = asyncio.ensure_future(group.gather())
        await t.settle()
        [end] = await reading
        assert end.termination.status is TerminalStatus.CANCELLED
        assert end.termination.error is None
        assert end.outcome.result is None
        status = await group.status()
        assert (status.failed, status.cancelled, status.is_finished) == (0, 1, True)
        gate.set()
