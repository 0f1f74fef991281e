"""Groups of jobs, and jobs over items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pytest

from taquba.errors import (
    DuplicateMemberKey,
    GroupActive,
    GroupMismatch,
    GroupNotFound,
    InvalidArgument,
    InvalidType,
    JobFailed,
    UnknownWorkflow,
)
from taquba.jobs import JobContext, JobResult, JobRunner, job
from tests.jobs.functions import Charge, Mailer, Receipt, greet, send_email
from tests.jobs.harness import World, settle

pytestmark = pytest.mark.anyio


@pytest.fixture
def world() -> World:
    return World()


@dataclass
class Luck:
    bad: set[int]
    runs: list[int]


@job("cube", max_attempts=2, idempotency_key=lambda call: str(call.arguments["number"]))
async def cube(ctx: JobContext, number: int) -> int:
    luck = ctx.state(Luck)
    luck.runs.append(number)
    if number in luck.bad:
        raise ValueError(f"{number} is bad luck")
    return int(number**3)


@job("square")
async def square(ctx: JobContext, number: int) -> int:
    return number**2


@job("stuck")
async def stuck(ctx: JobContext, number: int) -> int:
    await asyncio.get_running_loop().create_future()
    return number


async def soon(world: World, what: Any) -> Any:
    """What a task comes to, with the time that it needs."""
    task = asyncio.ensure_future(what)
    for _ in range(5):
        if not task.done():
            await world.clock.advance(600)
    return await task


async def test_a_group_with_a_failure(world: World) -> None:
    """JOB-29, JOB-32: in order, a failure as a value; only that one runs again; limits count."""
    luck = Luck({13}, [])
    async with world.runner(cube, state=[luck]) as jobs:
        group = jobs.group("g", cube)
        await group.submit([cube(3), cube(13), cube(2)])
        results = await soon(world, group.join())
        assert [(each.key, each.position, each.ok) for each in results] == [
            ("3", 0, True),
            ("13", 1, False),
            ("2", 2, True),
        ]
        assert [results[0].value, results[2].value] == [27, 8]
        error = results[1].error
        assert error is not None and (error.error, error.permanent) == ("13 is bad luck", False)
        with pytest.raises(JobFailed, match="13 is bad luck"):
            _ = results[1].value
        status = await group.status()
        assert (status.total, status.succeeded, status.failed) == (3, 2, 1)
        assert sorted(luck.runs) == [2, 3, 13, 13]  # twice, as the job has it
        luck.runs.clear()
        luck.bad.clear()
        await group.submit([cube(3), cube(13), cube(2)])
        assert [each.value for each in await soon(world, group.join())] == [27, 13**3, 8]
        assert luck.runs == [13]


async def test_limits_of_a_group_s_jobs(world: World) -> None:
    """JOB-32: the submission's limit wins over the job's, and is that of a resumed one too."""
    luck = Luck({1}, [])
    async with world.runner(cube, state=[luck]) as jobs:
        group = jobs.group("g", cube)
        await group.submit([cube(1)], max_attempts=4)
        await soon(world, group.wait())
        assert len(luck.runs) == 4
        luck.runs.clear()
        await group.resume()
        await soon(world, group.wait())
        assert len(luck.runs) == 4


async def test_keys_by_position(world: World) -> None:
    """JOB-30: calls without a key have those of their positions."""
    async with world.runner(greet, square) as jobs:
        group = jobs.group("g")
        await group.submit([greet("Ann"), square(2), greet("Ann")])
        results = await group.join()
        assert [each.key for each in results] == ["item-0", "item-1", "item-2"]
        assert [each.value for each in results] == ["Hello, Ann!", 4, "Hello, Ann!"]


async def test_one_key_twice(world: World) -> None:
    """JOB-31: is refused, before anything is written."""
    async with world.runner(cube, state=[Luck(set(), [])]) as jobs:
        group = jobs.group("g", cube)
        with pytest.raises(DuplicateMemberKey):
            await group.submit([cube(1), cube(2), cube(1)])
        with pytest.raises(GroupNotFound):
            await group.status()


async def test_alone_and_in_a_group(world: World) -> None:
    """JOB-33: a job with a key runs once alone, and once in each group."""
    luck = Luck(set(), [])
    async with world.runner(cube, state=[luck]) as jobs:
        alone = await jobs.submit(cube(2))
        for name in ("one", "two"):
            await jobs.group(name, cube).submit([cube(2)])
            [result] = await jobs.group(name, cube).join()
            assert result.job_id != alone.job_id
        assert await alone == 8
    assert luck.runs == [2, 2, 2]


async def test_results_are_kept_with_their_group(world: World) -> None:
    """JOB-34: the runner's retention takes no values of a group that goes on."""
    async with world.runner(square, stuck, retention=60, drain_timeout=0) as jobs:
        group = jobs.group("g", square, stuck)
        await group.submit([square(2), stuck(1)])
        await world.clock.advance(3600)
        await group.cancel()
        done, cancelled = await soon(world, group.join())
        assert done.value == 4
        assert cancelled.error is not None and cancelled.error.cancelled


async def test_a_group_is_streamed_and_read_after_a_restart(world: World) -> None:
    async def calls() -> AsyncIterator[Any]:
        for number in range(250):
            yield square(number)

    async with world.runner() as jobs:
        group = jobs.group("g", square)
        status = await group.submit(calls(), key=lambda call: f"number {call.data}")
        assert (status.total, status.pending, status.is_complete) == (250, 250, True)
    async with world.runner(square) as jobs:
        group = jobs.group("g", square)
        found = {each.key: each.value async for each in group.results()}
        assert sorted(found.values()) == [number**2 for number in range(250)]
        with pytest.raises(GroupMismatch):
            await group.submit([square(1)])
        await group.forget()
        with pytest.raises(GroupNotFound):
            await group.join()


async def test_classes_in_a_group(world: World) -> None:
    mailer = Mailer()
    async with world.runner(Charge, send_email, state=[mailer]) as jobs:
        group = jobs.group("g", Charge)
        await group.submit(Charge(order=n) for n in range(3))
        results: list[JobResult[Receipt]] = await group.join()
        assert [each.key for each in results] == ["item-0", "order 1", "order 2"]
        assert [each.value.to for each in results] == ["order 0", "order 1", "order 2"]


async def test_cancel_and_forget(world: World) -> None:
    async with world.runner(stuck, drain_timeout=0) as jobs:
        group = jobs.group("g", stuck)
        await group.submit([stuck(n) for n in range(3)])
        await settle(world)
        with pytest.raises(GroupActive):
            await group.forget()
        assert await group.cancel() == 3
        results = await soon(world, group.join())
        assert [each.error is not None and each.error.cancelled for each in results] == [True] * 3
        await group.forget()


async def test_a_group_s_bad_input(world: World) -> None:
    async with world.runner(square) as jobs:
        group = jobs.group("g")
        for calls in (7, "abc", [7], [square], [square.function]):
            with pytest.raises(InvalidType):
                await group.submit(calls)  # type: ignore[arg-type]
        with pytest.raises(InvalidType, match="must be a str, not None"):
            await group.submit([square(1)], key=lambda call: None)  # type: ignore[arg-type]
        with pytest.raises(UnknownWorkflow):
            await group.submit([greet("a")])
        with pytest.raises(InvalidArgument):
            jobs.group("a/b")
        with pytest.raises(InvalidType, match="a job is a function or a class"):
            jobs.group("g", 7)  # type: ignore[arg-type]
        await group.submit([square(1)])
        await group.join()
    async with world.runner(greet) as jobs:
        with pytest.raises(UnknownWorkflow, match="has a job 'square'"):
            await jobs.group("g").join()


# -- map --------------------------------------------------------------------------------------


async def all_of(values: AsyncIterator[Any]) -> list[Any]:
    return [value async for value in values]


async def test_values_come_in_the_order_of_the_items(world: World) -> None:
    async with world.runner(square) as jobs:
        assert await all_of(jobs.map(square, range(450))) == [n**2 for n in range(450)]
        assert await all_of(jobs.map(square, [])) == []
        found = await all_of(jobs.map(lambda n: square(n + 1), range(3), order="completion"))
        assert sorted(found) == [1, 4, 9]
        assert await jobs.runtime.backlog() == []
        assert not (await jobs.runtime.runs()).runs  # they were forgotten


@pytest.mark.parametrize("ahead", [1, 2, 200])
async def test_items_are_taken_while_values_are_read(world: World, ahead: int) -> None:
    taken = 0

    async def items() -> AsyncIterator[int]:
        nonlocal taken
        for taken in range(1, 501):
            yield taken

    async with world.runner(square) as jobs:
        read = 0
        async for value in jobs.map(square, items(), ahead=ahead):
            read += 1
            assert value == read**2
            await asyncio.sleep(0)
            assert taken <= read + ahead
        assert (read, taken) == (500, 500)


async def test_a_map_with_an_id_goes_on(world: World) -> None:
    luck = Luck({5}, [])
    async with world.runner(cube, state=[luck]) as jobs:
        values = jobs.map(cube, range(10), group_id="m")
        with pytest.raises(JobFailed, match="5 is bad luck"):
            await soon(world, all_of(values))
        await soon(world, jobs.group("m").wait())
    luck.runs.clear()
    luck.bad.clear()
    async with world.runner(cube, state=[luck]) as jobs:
        values = jobs.map(cube, range(10), group_id="m")
        assert await soon(world, all_of(values)) == [n**3 for n in range(10)]
        assert luck.runs == [5]
        with pytest.raises(GroupMismatch):
            await all_of(jobs.map(cube, range(11), group_id="m"))


async def test_a_map_that_is_left_is_cancelled(world: World) -> None:
    async with world.runner(square, stuck, drain_timeout=0) as jobs:
        calls = iter([square(1), *[stuck(n) for n in range(5)]])
        async with aclosing(jobs.map(lambda _: next(calls), range(6))) as values:
            async for value in values:
                assert value == 1
                break
        await world.clock.advance(3600)
        assert await jobs.runtime.backlog() == []
        assert not (await jobs.runtime.runs()).runs  # and forgotten


async def test_a_map_ends_with_its_process(world: World) -> None:
    """Nobody can go on with it, so the next runner cancels what is left, and forgets it."""
    async with world.runner(square, stuck, drain_timeout=0) as jobs:
        calls = iter([square(1), *[stuck(n) for n in range(250)]])
        values = jobs.map(lambda _: next(calls), range(251))
        assert await anext(values) == 1
        # What is left when a process is killed: nothing is told of it.
        left = await world.copy()
        await values.aclose()  # type: ignore[attr-defined]
    async with left.runner(square, stuck) as jobs:
        kept = jobs.map(square, range(3))  # this one's own, which nobody touches
        assert await anext(kept) == 0
        async with JobRunner(jobs.runtime._queue, []) as others:
            await left.clock.advance(3600)
            assert await others.runtime.backlog() == []
            assert [value async for value in kept] == [1, 4]
        await left.clock.advance(3600)
        assert await jobs.runtime._queue.read("SELECT count(*) FROM groups") == [(0,)]
        assert not (await jobs.runtime.runs()).runs


async def test_values_are_kept_for_a_slow_reader(world: World) -> None:
    async with world.runner(square, retention=60) as jobs:
        values = jobs.map(square, range(300))
        assert await anext(values) == 0
        await world.clock.advance(10 * 86400)
        assert [value async for value in values] == [n**2 for n in range(1, 300)]
        await world.clock.advance(60)
        assert not (await jobs.runtime.runs()).runs


@pytest.mark.parametrize("first", [0, 1, 150])
async def test_items_that_fail(world: World, first: int) -> None:
    def items() -> Any:
        yield from range(first)
        raise ZeroDivisionError("items")

    async with world.runner(square) as jobs:
        with pytest.raises(ZeroDivisionError, match="items"):
            await all_of(jobs.map(square, items()))
        await settle(world)
        assert await jobs.runtime.backlog() == []


async def test_keys_of_items(world: World) -> None:
    async with world.runner(square) as jobs:
        assert await all_of(jobs.map(square, [3, 2], key=lambda n: f"n{n}", group_id="g")) == [9, 4]
        assert [each.key for each in await jobs.group("g").join()] == ["n3", "n2"]
        with pytest.raises(DuplicateMemberKey):
            await all_of(jobs.map(square, [3, 2], key=lambda n: "same"))


async def test_a_map_s_bad_input(world: World) -> None:
    async with world.runner(square) as jobs:
        with pytest.raises(InvalidArgument, match="ahead is 0"):
            jobs.map(square, [1], ahead=0)
        for wrong in (7, "abc"):
            with pytest.raises(InvalidType):
                await all_of(jobs.map(square, wrong))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="order is"):
            await all_of(jobs.map(square, [1], order="random"))  # type: ignore[arg-type]
        with pytest.raises(InvalidType, match="map takes a function that makes the call of a job"):
            await all_of(jobs.map(lambda n: n, [1]))  # type: ignore[arg-type]
