"""What a group knows of its members' inputs: one copy of each, for as long as it may be needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from taquba import ManualClock, TransientError
from taquba.errors import GroupIncomplete
from taquba.objectstore import MemoryStore
from taquba.workflow import Continue, Fail, GroupMember, Outcome, Step, Succeed
from taquba.workflow._group_records import member_run_id

from .harness import Bed, Process, bed, settle

pytestmark = pytest.mark.anyio

INPUT = b"input-of-the-first-step"
RUN_ID = member_run_id("g", "k")
MEMBER = GroupMember("k", INPUT)


class Runner:
    """Does as it is told, until it is mended; then it succeeds with the input of step 0."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.inputs: list[bytes] = []
        self.mended = False

    async def __call__(self, step: Step) -> Outcome:
        if step.number == 0:
            self.inputs.append(step.payload)
        if self.mended:
            return Succeed(step.payload)
        match self.way, step.number:
            case ("fail", 0) | ("fail later", 2):
                return Fail("no")
            case ("exhaust", 0) | ("exhaust later", 1):
                raise TransientError("not now")
            case ("fail later" | "exhaust later", _):
                return Continue(b"another payload")
            case ("wait", 0):
                return Continue(b"another payload", signal="s")
            case ("sleep", 0):
                return Continue(b"another payload", after=3600)
            case ("hang", 0) | ("hang later", 1):
                await asyncio.get_running_loop().create_future()
            case ("hang later", 0):
                return Continue(b"another payload")
            case _:
                pass
        return Succeed(step.payload)


async def cancel(t: Bed) -> None:
    await t.runtime.cancel(RUN_ID)


async def cancel_group(t: Bed) -> None:
    await t.runtime.group("g").cancel()


async def pass_time(t: Bed) -> None:
    await t.clock.advance(3600)


def stored(t: Bed, column: str = "input") -> list[object]:
    return [value for (value,) in t.queue.peek(f"SELECT {column} FROM members")]


@pytest.mark.parametrize(
    ("way", "end"),
    [
        ("fail", pass_time),
        ("fail later", pass_time),
        ("exhaust", pass_time),
        ("exhaust later", pass_time),
        ("wait", cancel),
        ("wait", cancel_group),
        ("sleep", cancel),
        ("hang", cancel),
        ("hang", cancel_group),
        ("hang later", cancel),
    ],
)
@pytest.mark.parametrize("again", ["resume", "submit"])
async def test_a_member_runs_again_with_its_input(
    way: str, end: Callable[[Bed], Awaitable[None]], again: str
) -> None:
    """However it ended, whatever its later steps were given."""
    runner = Runner(way)
    async with bed(runner, on_cancel="interrupt") as t:
        group = t.runtime.group("g")
        await group.submit([MEMBER])
        await t.settle()
        await end(t)
        await t.settle()
        status = await group.status()
        assert (status.pending, status.succeeded) == (0, 0)
        runner.mended = True
        runner.inputs.clear()
        await (group.resume() if again == "resume" else group.submit([MEMBER]))
        await t.end(RUN_ID)
        assert runner.inputs == [INPUT]


async def test_a_member_that_never_began_runs_again_with_its_input() -> None:
    async with bed(None) as t:
        group = t.runtime.group("g")
        await group.submit([MEMBER])
        assert stored(t) == [None]
        await group.cancel()
        assert stored(t) == [INPUT]
        await group.resume()
        [job] = (await t.queue.list_jobs("workflow-steps")).jobs
        assert job.payload == INPUT


@pytest.mark.parametrize("way", ["fail", "exhaust", "hang"])
async def test_a_member_whose_process_dies_runs_again_with_its_input(way: str) -> None:
    store = MemoryStore()
    runner = Runner(way)
    clock = ManualClock()
    first = Process(store, runner, clock)
    assert await first.opened()
    await first.runtime.group("g").submit([MEMBER], max_attempts=1)
    await settle(clock)
    await first.kill()
    async with bed(runner, store=store, clock=clock) as t:
        await t.settle()
        await t.clock.advance(3600)
        group = t.runtime.group("g")
        assert (await group.status()).failed == 1
        runner.mended = True
        runner.inputs.clear()
        await group.resume()
        await t.end(RUN_ID)
        assert runner.inputs == [INPUT]


async def test_there_is_one_copy_of_an_input() -> None:
    runner = Runner("sleep")
    async with bed(runner) as t:
        group = t.runtime.group("g")
        await group.submit([MEMBER])
        await t.settle()
        assert stored(t) == [INPUT]  # the job that had it is gone, and this may have to run again
        await t.clock.advance(3600)
        assert (await group.status()).succeeded == 1
        assert stored(t) == [None]


async def test_an_active_run_that_becomes_a_member_runs_again_with_its_input() -> None:
    runner = Runner("wait")
    async with bed(runner) as t:
        await t.runtime.submit(INPUT, run_id=RUN_ID)
        await t.settle()  # it is at its second step
        group = t.runtime.group("g")
        await group.submit([MEMBER])
        await t.runtime.cancel(RUN_ID)
        runner.mended = True
        runner.inputs.clear()
        await group.resume()
        await t.end(RUN_ID)
        assert runner.inputs == [INPUT]


async def test_a_job_that_was_removed_by_hand_takes_the_input_with_it() -> None:
    store = MemoryStore()
    runner = Runner("fail")
    async with bed(None, store=store) as t:
        await t.runtime.group("g").submit([MEMBER, GroupMember("other", b"x")])
        [job, _] = (await t.queue.list_jobs("workflow-steps")).jobs
        await t.queue.cancel(job.id)
    async with bed(runner, store=store) as t:
        await t.settle()
        group = t.runtime.group("g")
        assert (await group.status()).failed == 2
        runner.mended = True
        runner.inputs.clear()
        with pytest.raises(GroupIncomplete, match="1 members of group 'g' were not run again"):
            await group.resume()
        await t.settle()
        assert runner.inputs == [b"x"]
        await group.submit([MEMBER, GroupMember("other", b"x")])
        await t.settle()
        assert runner.inputs == [b"x", INPUT]
        assert (await group.status()).succeeded == 2
