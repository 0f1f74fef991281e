"""Groups and callers that do what they like: odd keys, calls that cross, buffers that are full."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator

import pytest

from taquba import Queue, QueueConfig
from taquba.errors import GroupActive, GroupNotFound
from taquba.objectstore import MemoryStore
from taquba.workflow import GroupMember, TerminalStatus, Workflow
from taquba.workflow._group_records import member_run_id

from .harness import bed
from .test_groups import Runner, collect, counts, members

pytestmark = pytest.mark.anyio


class Key(str, enum.Enum):  # noqa: UP042  this one formats as its name
    """A text that formats as another one."""

    FIRST = "first"


class Shy(str):
    """Another."""

    __slots__ = ()

    def __str__(self) -> str:
        return "shy"

    def __format__(self, spec: str) -> str:
        return "shy"


@pytest.mark.parametrize("key", [Key.FIRST, Shy("first")])
async def test_a_key_is_its_text_however_it_formats(key: str) -> None:
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group(Shy("g"))
        await group.submit([GroupMember(key, b"fail")])
        [end] = await collect(t, group)
        assert (end.run_id, end.key) == (member_run_id("g", "first"), "first")
        assert type(end.key) is str
        runner.mended = True
        assert (await group.resume()).pending == 1
        [end] = await collect(t, group)
        assert end.termination.status is TerminalStatus.SUCCEEDED


async def test_two_keys_that_format_alike_are_two() -> None:
    async with bed(Runner()) as t:
        group = t.runtime.group("g")
        await group.submit([GroupMember(Shy("a"), b"x"), GroupMember(Shy("b"), b"y")])
        assert [end.key for end in await collect(t, group, order="submission")] == ["a", "b"]


@pytest.mark.parametrize("how", ["succeed", "fail", "cancel"])
async def test_the_end_of_a_group_whose_signals_are_full(how: str) -> None:
    runner = Runner()
    async with bed(runner, config=QueueConfig(jitter=False, max_attempts=2)) as t:
        for n in range(1000):
            await t.runtime.signal("done", b"%d" % n, mode="queue")
        group = t.runtime.group("g", signal_when_finished="done")
        await group.submit(members({"succeed": "x", "fail": "fail", "cancel": "hold"}[how]))
        await t.settle()
        if how == "cancel":
            await group.cancel()
            runner.gate.set()
        await t.clock.advance(3600)
        assert (await group.status()).pending == 0
        assert (await group.status()).succeeded == (how == "succeed")
        assert len(runner.seen) == 1


async def test_a_group_that_is_resumed_is_not_forgotten_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group("g", retention=5)
        wanted = members(*("fail " + "x" * 2_000_000 for _ in range(3)))
        await group.submit(wanted)
        await t.settle()
        assert (await group.status()).failed == 3
        runner.mended = True
        more = asyncio.Event()
        fetch = Queue.fetch_value

        async def slowly(self: Queue, ref: str) -> bytes:
            await more.wait()
            return await fetch(self, ref)

        monkeypatch.setattr(Queue, "fetch_value", slowly)
        resuming = asyncio.ensure_future(group.resume())
        await t.settle()
        with pytest.raises(GroupActive):
            await group.forget()
        await t.clock.advance(60)
        more.set()
        await resuming
        assert len(await collect(t, group)) == 3


@pytest.mark.parametrize("again", ["submit", "resume"])
async def test_a_group_that_is_cancelled_while_its_members_are_run_again(again: str) -> None:
    runner = Runner()
    async with bed(runner, concurrency=1) as t:
        group = t.runtime.group("g")
        wanted = members(*("fail" for _ in range(350)))
        await group.submit(wanted)
        await t.settle()
        assert (await group.status()).failed == 350
        runner.mended = True
        await t.runtime.submit(b"hold", run_id="in-the-only-place")
        await t.settle()
        going = asyncio.ensure_future(group.submit(wanted) if again == "submit" else group.resume())
        while t.queue.peek("SELECT failed FROM groups") == [(350,)]:
            await asyncio.sleep(0)
        await group.cancel()
        status = await going
        assert (status.is_stopped, (await group.status()).pending) == (True, 0)
        runner.gate.set()
        await t.settle()
        assert len(runner.seen) == 351
        assert counts(await group.resume())[0] == 350
        await t.settle()
        assert counts(await group.status()) == (350, 350, 0, 0)


async def test_an_iterator_that_calls_methods_of_its_group() -> None:
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group("g")
        wanted = members(*"abcd")

        async def hostile() -> AsyncIterator[GroupMember]:
            yield wanted[0]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            with pytest.raises(TimeoutError):
                await group.wait(0)
            yield wanted[1]
            await asyncio.sleep(0)
            with pytest.raises(GroupActive):
                await group.forget()
            yield wanted[2]
            await group.submit(wanted)
            yield wanted[3]

        assert (await group.submit(hostile())).total == 4
        await t.settle()
        assert counts(await group.status()) == (4, 4, 0, 0)


async def test_two_submissions_at_once() -> None:
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group("g")
        wanted = members(*(f"{n} " + "x" * (n % 50 == 0) * 2_000_000 for n in range(250)))

        async def stream(pause: int) -> AsyncIterator[GroupMember]:
            for n, member in enumerate(wanted):
                if n % pause == 0:
                    await asyncio.sleep(0)
                yield member

        await asyncio.gather(*(group.submit(stream(n)) for n in (3, 7, 11)), group.submit(wanted))
        assert len(await collect(t, group)) == len(runner.seen) == 250
        await group.forget()
        await t.clock.advance(3600 * 24 * 3)
        for table in ("groups", "members", "runs", "jobs"):
            assert t.queue.peek(f"SELECT count(*) FROM {table}") == [(0,)], table


async def test_a_group_that_is_forgotten_while_results_are_read() -> None:
    async with bed(Runner()) as t:
        group = t.runtime.group("g")
        await group.submit(members(*("x" * 2_000_000 for _ in range(8))))
        await t.settle()
        seen = 0
        with pytest.raises(GroupNotFound):
            async for _ in group.results(concurrency_hint=3):
                seen += 1
                if seen == 2:
                    await group.forget()
        assert seen < 4


class Name(str, enum.Enum):  # noqa: UP042
    """Names as an application may keep them."""

    WORK = "work"


async def test_names_of_an_enumeration() -> None:
    """They are their texts, and not what they format as."""
    runner = Runner()
    store = MemoryStore()
    async with bed(
        None, store=store, workflows=[Workflow(Name.WORK, runner)], queue_name=Name.WORK
    ) as t:
        await t.runtime.submit(b"x", run_id=Name.WORK, workflow=Name.WORK)
        await t.runtime.group(Name.WORK).submit([GroupMember(Name.WORK, b"x", Name.WORK)])
        await t.settle()
        assert len(runner.seen) == 2
    async with bed(None, store=store, workflows=[Workflow("work", runner)], queue_name="work") as t:
        assert (await t.runtime.wait("work")).outcome.result == b"X"
        assert counts(await t.runtime.group("work").status()) == (1, 1, 0, 0)
