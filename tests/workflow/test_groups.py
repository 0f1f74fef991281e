"""Run groups: submitted, watched, cancelled and forgotten together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from taquba import TransientError
from taquba.errors import (
    DuplicateMemberKey,
    GroupActive,
    GroupIncomplete,
    GroupMismatch,
    GroupNotFound,
    GroupStopped,
    InputMismatch,
    InvalidArgument,
    InvalidType,
    UnknownWorkflow,
    ValueTooLarge,
)
from taquba.objectstore import MemoryStore
from taquba.queue import MAX_PAYLOAD_SIZE
from taquba.workflow import (
    MAX_GROUP_ID_LENGTH,
    MAX_MEMBER_KEY_SIZE,
    Continue,
    Fail,
    GroupMember,
    GroupStatus,
    MemberResult,
    Outcome,
    RunGroup,
    RunState,
    Step,
    Succeed,
    TerminalStatus,
    Workflow,
)
from taquba.workflow._group_records import member_run_id
from taquba.workflow._group_removal import remove_some

from .harness import Bed, bed

pytestmark = pytest.mark.anyio


class Runner:
    """Succeeds with the input in upper case; what it does otherwise stands in the input."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, int, int]] = []
        self.steps: list[Step] = []
        self.mended = False
        self.gate = asyncio.Event()

    async def __call__(self, step: Step) -> Outcome:
        self.seen.append((step.payload, step.number, step.attempt))
        self.steps.append(step)
        match step.payload.partition(b" ")[0]:
            case b"two" if step.number == 0:
                return Continue(step.payload)
            case b"hold":
                await self.gate.wait()
            case b"fail" if not self.mended:
                return Fail("no")
            case b"retry" if not self.mended:
                raise TransientError("not now", retry_after=1)
            case _:
                pass
        return Succeed(step.payload.upper())


def members(*inputs: str) -> list[GroupMember]:
    return [GroupMember(f"k{n}", text.encode()) for n, text in enumerate(inputs)]


async def collect(t: Bed, group: RunGroup, **options: object) -> list[MemberResult]:
    async def read() -> list[MemberResult]:
        return [result async for result in group.results(**options)]  # type: ignore[arg-type]

    reading = asyncio.ensure_future(read())
    await t.settle()
    assert reading.done(), "not all members have ended"
    return await reading


def counts(status: GroupStatus) -> tuple[int, int, int, int]:
    return status.total, status.succeeded, status.failed, status.cancelled


async def test_members_are_runs_with_derived_ids() -> None:
    """GRP-01"""
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group("g")
        status = await group.submit([GroupMember("a", b"hold 1"), GroupMember("b", b"hold 2")])
        assert status == GroupStatus("g", 2, 0, 0, 0, is_complete=True, is_stopped=False)
        assert (status.pending, status.ended, status.is_finished) == (2, 0, False)
        for key in "ab":
            run = await t.runtime.status(member_run_id("g", key))
            assert run is not None and run.state is not RunState.TERMINATED
        runner.gate.set()
        ends = await collect(t, group)
        assert [(end.key, end.outcome.result) for end in ends] == [
            ("a", b"HOLD 1"),
            ("b", b"HOLD 2"),
        ]
        assert [end.run_id for end in ends] == [member_run_id("g", key) for key in "ab"]
        assert (await group.status()).is_finished


async def test_a_key_that_comes_twice() -> None:
    """GRP-02, JOB-31"""
    async with bed(Runner()) as t:
        group = t.runtime.group("g")
        twice = [GroupMember("a", b""), GroupMember("b", b""), GroupMember("a", b"")]
        with pytest.raises(DuplicateMemberKey, match="members 0 and 2"):
            await group.submit(twice)
        with pytest.raises(GroupNotFound):
            await group.status()
        with pytest.raises(DuplicateMemberKey, match="members 0 and 2"):
            await group.submit(iter(twice))
        with pytest.raises(GroupNotFound):
            await group.status()
        many = [GroupMember(f"k{n % 150}", b"") for n in range(151)]
        with pytest.raises(DuplicateMemberKey, match="members 0 and 150"):
            await group.submit(iter(many))
        status = await group.status()
        assert (status.total, status.is_complete) == (100, False)


@pytest.mark.parametrize(
    "others",
    [
        members("x", "y", "z"),
        members("x"),
        [],
        members("x", "other"),
        members("x", "y")[::-1],
        [GroupMember("k0", b"x"), GroupMember("k2", b"y")],
    ],
)
async def test_other_members(others: list[GroupMember]) -> None:
    """GRP-03"""
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group("g")
        await group.submit(members("x", "y"))
        await collect(t, group)
        seen = len(runner.seen)
        with pytest.raises(GroupMismatch, match="group 'g'"):
            await group.submit(others)
        assert counts(await group.status()) == (2, 2, 0, 0)
        await t.settle()
        assert len(runner.seen) == seen


async def test_the_same_members_with_other_options() -> None:
    """GRP-04"""
    async with bed(Runner()) as t:
        group = t.runtime.group("g")
        await group.submit(members("x", "y"))
        await group.submit(iter(members("x", "y")), priority=3, headers={"a": "b"}, max_attempts=1)
        assert len(await collect(t, group)) == 2


async def test_membership_holds_over_all_steps() -> None:
    """GRP-05"""
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group("g")
        await group.submit(members("two", "hold"))
        await t.settle()
        assert counts(await group.status()) == (2, 1, 0, 0)
        assert runner.steps[0].headers == {}, "membership is not for the runner"
        runner.gate.set()
        await collect(t, group)
        assert (b"two", 1, 1) in runner.seen


async def test_a_retried_member_is_pending() -> None:
    """GRP-06, HOOK-16"""
    async with bed(Runner()) as t:
        group = t.runtime.group("g")
        await group.submit(members("retry"), max_attempts=2)
        await t.settle()
        assert counts(await group.status()) == (1, 0, 0, 0)
        await t.clock.advance(2)
        [end] = await collect(t, group)
        assert end.termination.status is TerminalStatus.FAILED
        assert end.outcome.error == end.termination.error == "not now"
        assert counts(await group.status()) == (1, 0, 1, 0)


async def test_options_are_every_members() -> None:
    """GRP-07"""
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group("g")
        own = GroupMember("own", b"", headers={"h": "own", "i": "2"})
        await group.submit(
            [GroupMember("a", b""), own], headers={"h": "1"}, priority=7, max_attempts=9
        )
        await collect(t, group)
        assert [step.headers for step in runner.steps] == [{"h": "1"}, {"h": "own", "i": "2"}]
        assert [step.max_attempts for step in runner.steps] == [9, 9]
        for end in await group.gather():
            assert end.outcome.headers["h"] in ("1", "own")


async def test_members_that_fail_while_others_are_submitted_are_not_run_again() -> None:
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group("g")
        more = asyncio.Event()

        async def stream() -> AsyncIterator[GroupMember]:
            for n in range(101):
                if n == 100:
                    await more.wait()
                yield GroupMember(str(n), b"fail" if n == 5 else b"x")

        submitting = asyncio.ensure_future(group.submit(stream()))
        await t.settle()
        assert (await group.status()).failed == 1
        more.set()
        await submitting
        await collect(t, group)
        assert counts(await group.status()) == (101, 100, 1, 0)
        assert [payload for payload, *_ in runner.seen].count(b"fail") == 1


@pytest.mark.parametrize("again", ["submit", "resume"])
async def test_only_what_failed_is_run_again(again: str) -> None:
    """GRP-08, GRP-32"""
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group("g")
        wanted = members("x", "fail", "y")
        await group.submit(wanted, headers={"a": "1"}, max_attempts=4)
        await collect(t, group)
        assert counts(await group.status()) == (3, 2, 1, 0)
        runner.mended = True
        runner.steps.clear()
        status = await (group.submit(wanted) if again == "submit" else group.resume())
        assert (status.total, status.failed) == (3, 0)
        await t.settle()
        assert [step.payload for step in runner.steps] == [b"fail"]
        if again == "resume":
            assert runner.steps[0].headers == {"a": "1"}
            assert runner.steps[0].max_attempts == 4
        ends = await collect(t, group, order="submission")
        assert [end.outcome.result for end in ends] == [b"X", b"FAIL", b"Y"]
        assert counts(await group.status()) == (3, 3, 0, 0)


async def test_active_members_are_not_doubled() -> None:
    """GRP-09"""
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group("g")
        await group.submit(members("hold", "x"))
        await t.settle()
        await group.resume()
        await group.submit(members("hold", "x"))
        await t.settle()
        assert [payload for payload, *_ in runner.seen] == [b"hold", b"x"]
        runner.gate.set()


async def test_an_unknown_group() -> None:
    """GRP-10, GRP-20"""
    async with bed(Runner()) as t:
        group = t.runtime.group("g")
        for call in (group.resume, group.status, group.wait, group.gather):
            with pytest.raises(GroupNotFound, match="no group 'g'"):
                await call()
        assert await group.cancel() == 0
        await group.forget()


async def test_results_are_read_again() -> None:
    """GRP-11"""
    async with bed(Runner()) as t:
        group = t.runtime.group("g")
        await group.submit(members("x", "two", "fail"))
        first = await collect(t, group)
        again = await collect(t, group)
        assert again == first
        assert sorted(end.key for end in first) == ["k0", "k1", "k2"]
        in_order = await collect(t, group, order="submission")
        assert [end.key for end in in_order] == ["k0", "k1", "k2"]
        assert await group.gather() == in_order


async def test_a_submission_that_was_broken_off() -> None:
    """GRP-12"""
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group("g")
        wanted = members(*(f"x{n}" for n in range(250)))

        async def broken() -> AsyncIterator[GroupMember]:
            for member in wanted[:230]:
                yield member
            raise OSError("the list ends here")

        with pytest.raises(OSError, match="ends here"):
            await group.submit(broken())
        assert (await group.status()).total == 200
        with pytest.raises(GroupIncomplete, match="broken off after 200 members"):
            await collect(t, group)
        with pytest.raises(GroupIncomplete):
            await group.resume()
        with pytest.raises(GroupIncomplete):
            await group.wait()
        with pytest.raises(GroupMismatch):
            await group.submit(wanted[:150])
        await group.submit(wanted)
        assert len(await collect(t, group)) == 250
        assert sorted(payload for payload, *_ in runner.seen) == sorted(m.input for m in wanted)


async def test_cancelled_members() -> None:
    """GRP-14, GRP-15"""
    runner = Runner()
    async with bed(runner, concurrency=1, on_cancel="interrupt") as t:
        group = t.runtime.group("g")
        wanted = members("hold 1", "hold 2", "hold 3")
        await group.submit(wanted)
        await t.settle()
        assert await group.cancel() == 3
        assert await group.cancel() == 0
        ends = await collect(t, group)
        assert {end.termination.status for end in ends} == {TerminalStatus.CANCELLED}
        assert {end.outcome.result for end in ends} == {None}
        status = await group.status()
        assert counts(status) == (3, 0, 0, 3)
        assert status.is_stopped and status.is_finished
        runner.gate.set()
        status = await group.submit(wanted)
        assert not status.is_stopped
        assert len(await collect(t, group)) == 3
        assert counts(await group.status()) == (3, 3, 0, 0)


async def test_a_members_run_id_is_submitted_directly() -> None:
    """GRP-16"""
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group("g")
        await group.submit(members("hold", "fail"))
        await t.settle()
        held, failed = (member_run_id("g", f"k{n}") for n in range(2))
        assert not (await t.runtime.submit(b"hold", run_id=held)).created
        with pytest.raises(InputMismatch):
            await t.runtime.submit(b"other", run_id=held)
        with pytest.raises(InputMismatch, match="member of a group"):
            await t.runtime.submit(b"other", run_id=failed)
        runner.mended = True
        assert (await t.runtime.submit(b"fail", run_id=failed)).created
        runner.gate.set()
        await collect(t, group)
        assert counts(await group.status()) == (2, 2, 0, 0), "a new life of a member is one, too"


@pytest.mark.parametrize("adopted", [False, True])
async def test_every_step_of_a_member_tells_its_group(adopted: bool) -> None:
    """So that it does not begin in a group that stops, also if it was submitted alone."""
    run_id = member_run_id("g", "k0")
    async with bed(None) as t:
        group = t.runtime.group("g")
        if adopted:
            await t.runtime.submit(b"x", run_id=run_id, headers={"a": "b"})
            await group.submit(members("x"))
        else:
            await group.submit(members("x"))
            await t.runtime.cancel(run_id)
            await t.runtime.submit(b"x", run_id=run_id, headers={"a": "b"})
        [job] = (await t.queue.list_jobs("workflow-steps")).jobs
        assert (job.headers["workflow.group"], job.headers["a"]) == ("g", "b")
        assert job.headers["workflow.run_id"] == run_id


async def test_an_active_group_is_not_forgotten() -> None:
    """GRP-17, GRP-18"""
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group("g")
        await group.submit(members("hold", "x"))
        await t.settle()
        with pytest.raises(GroupActive, match="1 members"):
            await group.forget()
        assert counts(await group.status()) == (2, 1, 0, 0)
        runner.gate.set()
        assert len(await collect(t, group)) == 2


async def test_a_forgotten_group() -> None:
    """GRP-19"""
    async with bed(Runner()) as t:
        group = t.runtime.group("g")
        await group.submit(members(*(f"x{n}" for n in range(250))))
        await collect(t, group)
        await group.forget()
        for table in ("groups", "members", "runs"):
            assert t.queue.peek(f"SELECT count(*) FROM {table}") == [(0,)]
        for call in (group.status, group.resume, group.gather):
            with pytest.raises(GroupNotFound):
                await call()
        await group.submit(members("other"))
        assert [end.outcome.result for end in await collect(t, group)] == [b"OTHER"]


async def test_groups_share_nothing() -> None:
    """GRP-25, WRK-14"""
    runner = Runner()
    async with bed(runner) as t:
        for name in ("g", "h"):
            await t.runtime.group(name).submit(members("x"))
        for name in ("g", "h"):
            assert len(await collect(t, t.runtime.group(name))) == 1
        assert len(runner.seen) == 2


@pytest.mark.parametrize("key", ["", "/", "a b", "ä€𝄞", "../..", "\0", "x" * MAX_MEMBER_KEY_SIZE])
async def test_any_text_is_a_key(key: str) -> None:
    """GRP-26"""
    async with bed(Runner()) as t:
        group = t.runtime.group("g")
        await group.submit([GroupMember(key, b"x")])
        [end] = await collect(t, group)
        assert end.key == key
        assert len(end.run_id) == 64 and end.outcome.result == b"X"


async def test_no_members() -> None:
    """GRP-27"""
    async with bed(Runner()) as t:
        group = t.runtime.group("g")
        status = await group.submit([])
        assert counts(status) == (0, 0, 0, 0)
        assert status.is_finished
        assert await collect(t, group) == []
        assert counts(await group.submit([])) == (0, 0, 0, 0)


async def test_many_members() -> None:
    """GRP-28, GRP-29"""
    runner = Runner()
    async with bed(runner, concurrency=100) as t:
        group = t.runtime.group("g")

        async def stream() -> AsyncIterator[GroupMember]:
            for n in range(2500):
                yield GroupMember(str(n), b"x%d" % n)

        await group.submit(stream())
        ends = await collect(t, group)
        assert sorted(int(end.key) for end in ends) == list(range(2500))
        assert counts(await group.status()) == (2500, 2500, 0, 0)
        await group.forget()
        assert t.queue.peek("SELECT count(*) FROM runs") == [(0,)]


async def test_results_are_read_while_members_are_submitted() -> None:
    async with bed(Runner()) as t:
        group = t.runtime.group("g")
        more = asyncio.Event()

        async def stream() -> AsyncIterator[GroupMember]:
            for n in range(200):
                if n == 150:
                    await more.wait()
                yield GroupMember(str(n), b"x")

        submitting = asyncio.ensure_future(group.submit(stream()))
        await t.settle()
        seen: list[str] = []

        async def read() -> None:
            async for end in group.results():
                seen.append(end.key)

        reading = asyncio.ensure_future(read())
        await t.settle()
        assert len(seen) == 150 and not reading.done()
        with pytest.raises(GroupActive):
            await group.forget()
        more.set()
        await submitting
        await t.settle()
        await reading
        assert sorted(map(int, seen)) == list(range(200))


@pytest.mark.parametrize("apart", [1, 7, 100, 130])
async def test_members_are_submitted_as_they_come(apart: int) -> None:
    """Nobody waits for the next member, however many come at once."""
    async with bed(Runner(), concurrency=500) as t:
        group = t.runtime.group("g")

        async def stream() -> AsyncIterator[GroupMember]:
            for n in range(400):
                if n and n % apart == 0:
                    await t.clock.sleep(60)
                yield GroupMember(str(n), b"x")

        submitting = asyncio.ensure_future(group.submit(stream()))
        for there in range(apart, 400, apart):
            await t.settle()
            status = await group.status()
            assert (status.total, status.succeeded) == (there, there)
            await t.clock.advance(60)
        assert counts(await submitting) == (400, 400, 0, 0)


async def test_members_that_come_at_once_share_transactions() -> None:
    async with bed(None) as t:

        async def stream() -> AsyncIterator[GroupMember]:
            for n in range(1000):
                yield GroupMember(str(n), b"x")

        writes = t.store.writes
        await t.runtime.group("g").submit(stream())
        assert t.store.writes - writes <= 12


class Broken(Exception):
    pass


async def test_an_iterator_that_raises() -> None:
    """What it gave before stays, as after a crash."""
    async with bed(Runner()) as t:
        group = t.runtime.group("g")

        async def stream() -> AsyncIterator[GroupMember]:
            yield GroupMember("a", b"x")
            await asyncio.sleep(0)
            yield GroupMember("b", b"x")
            raise Broken("the source is gone")

        with pytest.raises(Broken, match="the source is gone"):
            await group.submit(stream())
        await t.settle()
        status = await group.status()
        assert not status.is_complete and status.total in (1, 2)
        await group.submit(iter([GroupMember("a", b"x"), GroupMember("b", b"x")]))
        assert (await group.status()).is_complete


async def test_a_submission_that_fails_ends_a_slow_iterator() -> None:
    async with bed(Runner()) as t:
        group = t.runtime.group("g")
        ended: list[str] = []

        async def stream() -> AsyncIterator[GroupMember]:
            try:
                for key in ("a", "b", "a"):
                    yield GroupMember(key, b"x")
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        submitting = asyncio.ensure_future(group.submit(stream()))
        await t.settle()
        with pytest.raises(DuplicateMemberKey):
            await submitting
        assert ended == ["cancelled"]
        task = asyncio.current_task()
        assert task is not None and not task.cancelling()


async def test_a_submission_that_is_cancelled() -> None:
    async with bed(Runner()) as t:
        group = t.runtime.group("g")

        async def stream() -> AsyncIterator[GroupMember]:
            yield GroupMember("a", b"x")
            await asyncio.get_running_loop().create_future()

        submitting = asyncio.ensure_future(group.submit(stream()))
        await t.settle()
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        assert counts(await group.status()) == (1, 1, 0, 0)
        assert t.runtime._opened().groups.is_submitting("g") is False


async def test_too_many_failures() -> None:
    runner = Runner()
    async with bed(runner, concurrency=1) as t:
        group = t.runtime.group("g", stop_after_failures=2)
        await group.submit(members("x", "fail 1", "y", "fail 2", "never 1", "never 2"))
        ends = await collect(t, group, order="submission")
        assert [end.termination.status.value for end in ends] == [
            "succeeded",
            "failed",
            "succeeded",
            "failed",
            "cancelled",
            "cancelled",
        ]
        assert [payload for payload, *_ in runner.seen][-1] == b"fail 2"
        assert (await group.status()).is_stopped


@pytest.mark.parametrize("again", ["resume", "submit", "broken off"])
async def test_failures_from_before_do_not_stop_a_group_that_goes_on(again: str) -> None:
    """Those that are to run again count no more, however many slices that takes."""
    runner = Runner()
    async with bed(runner, concurrency=1) as t:
        several = [GroupMember(str(n), b"fail") for n in range(260)]
        group = t.runtime.group("g", stop_after_failures=250)
        if again == "broken off":

            async def stream() -> AsyncIterator[GroupMember]:
                for member in several[:240]:
                    yield member
                await asyncio.sleep(0)
                await t.settle()
                raise Broken

            with pytest.raises(Broken):
                await group.submit(stream())
        else:
            await group.submit(several)
        await t.settle()
        status = await group.status()
        assert status.is_stopped is (again != "broken off")
        group = t.runtime.group("g", stop_after_failures=3)
        runner.mended = True
        await (group.resume() if again == "resume" else group.submit(several))
        await t.settle()
        assert counts(await group.status()) == (260, 260, 0, 0)


async def test_failures_count_anew_when_a_group_goes_on() -> None:
    runner = Runner()
    async with bed(runner, concurrency=1) as t:
        several = [GroupMember(str(n), b"fail") for n in range(10)]
        group = t.runtime.group("g", stop_after_failures=4)
        for _ in range(3):
            await group.submit(several)
            await t.settle()
            assert counts(await group.status()) == (10, 0, 4, 6)
            await group.resume()
            await t.settle()
            assert counts(await group.status()) == (10, 0, 4, 6)
        runner.mended = True
        await group.resume()
        await t.settle()
        assert counts(await group.status()) == (10, 10, 0, 0)


async def test_only_failures_from_before_are_forgiven() -> None:
    async with bed(Runner()) as t:
        group = t.runtime.group("g", stop_after_failures=5)
        more = asyncio.Event()
        several = [GroupMember(str(n), b"fail") for n in range(4)]

        async def stream(*, breaks: bool) -> AsyncIterator[GroupMember]:
            for member in several[: 2 if breaks else 3]:
                yield member
            await more.wait()
            if breaks:
                raise Broken
            yield several[3]

        first = asyncio.ensure_future(group.submit(stream(breaks=True)))
        await t.settle()
        more.set()
        with pytest.raises(Broken):
            await first
        more.clear()
        second = asyncio.ensure_future(group.submit(stream(breaks=False)))
        await t.settle()
        for _ in range(2):  # it failed after those two, and fails again: that counts once
            await t.runtime.submit(b"fail", run_id=member_run_id("g", "2"))
            await t.settle()
        more.set()
        await t.settle()
        assert not (await group.status()).is_stopped
        await second


async def test_too_many_failures_while_members_are_submitted() -> None:
    async with bed(Runner()) as t:
        group = t.runtime.group("g", stop_after_failures=1)
        more = asyncio.Event()

        async def stream() -> AsyncIterator[GroupMember]:
            for n in range(300):
                if n == 100:
                    await more.wait()
                yield GroupMember(str(n), b"fail" if n == 50 else b"x")

        submitting = asyncio.ensure_future(group.submit(stream()))
        await t.settle()
        more.set()
        with pytest.raises(GroupStopped, match="100 were, of which 1 have failed"):
            await submitting
        status = await group.status()
        assert (status.total, status.failed, status.is_finished) == (100, 1, True)
        assert len(await collect(t, group)) == 100


async def test_a_step_waits_for_a_group() -> None:
    """GRP-32: the step that fans out may be repeated."""
    attempts = 0

    async def runner(step: Step) -> Outcome:
        nonlocal attempts
        if step.payload != b"parent":
            return Succeed(step.payload)
        children = t.runtime.group(f"{step.run_id}-children", signal_when_finished=step.run_id)
        if step.number == 0:
            await children.submit(members("1", "2", "3"))
            attempts += 1
            if attempts == 1:
                raise TransientError("once more")
            return Continue(b"parent", signal=step.run_id)
        total = sum(int(end.outcome.result or b"") for end in await children.gather())
        assert step.signal == children.group_id.encode()
        return Succeed(b"%d" % total)

    async with bed(runner, concurrency=1) as t:
        await t.runtime.submit(b"parent", run_id="p")
        end = await t.end("p")
        assert end.outcome.result == b"6"
        assert attempts == 2


async def test_members_of_several_workflows() -> None:
    async def shout(step: Step) -> Outcome:
        return Succeed(step.payload.upper())

    async def no(step: Step) -> Outcome:
        return Fail("never")

    workflows = [Workflow("shout", shout), Workflow("no", no)]
    async with bed(None, workflows=workflows) as t:
        group = t.runtime.group("g")
        wanted = [GroupMember("a", b"x", "shout"), GroupMember("b", b"x", "no")]
        await group.submit(wanted)
        ends = await collect(t, group, order="submission")
        assert [end.outcome.workflow for end in ends] == ["shout", "no"]
        assert [end.outcome.error for end in ends] == [None, "never"]
        await group.resume()
        await collect(t, group)
        assert counts(await group.status()) == (2, 1, 1, 0)
        with pytest.raises(UnknownWorkflow):
            await t.runtime.group("h").submit([GroupMember("a", b"x")])


async def test_bad_input() -> None:
    async with bed(Runner()) as t:
        group = t.runtime.group("g")
        for group_id in ("", "a b", "x" * (MAX_GROUP_ID_LENGTH + 1)):
            with pytest.raises(InvalidArgument, match="group id"):
                t.runtime.group(group_id)
        t.runtime.group("x" * MAX_GROUP_ID_LENGTH)
        with pytest.raises(InvalidArgument, match="stop_after_failures"):
            t.runtime.group("g", stop_after_failures=0)
        with pytest.raises(InvalidType, match="GroupMember"):
            await group.submit(["x"])  # type: ignore[list-item]
        with pytest.raises(InvalidType, match="iterable"):
            await group.submit("x")  # type: ignore[arg-type]
        with pytest.raises(InvalidType, match="key"):
            await group.submit([GroupMember(3, b"")])  # type: ignore[arg-type]
        with pytest.raises(ValueTooLarge, match="1,024 bytes"):
            await group.submit([GroupMember("ä" * 513, b"")])
        with pytest.raises(InvalidArgument, match="UTF-8"):
            await group.submit([GroupMember("\ud800", b"")])
        with pytest.raises(ValueTooLarge, match="input"):
            await group.submit([GroupMember("a", bytes(MAX_PAYLOAD_SIZE + 1))])
        with pytest.raises(InvalidType, match="headers"):
            await group.submit([GroupMember("a", b"", headers=[])])  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="priority"):
            await group.submit([], priority="x")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="max_attempts"):
            await group.submit(members("x"), max_attempts=0)
        with pytest.raises(GroupNotFound):
            await group.status()
        await group.submit([])
        with pytest.raises(InvalidArgument, match="order"):
            await collect(t, group, order="random")
        with pytest.raises(InvalidArgument, match="concurrency_hint"):
            await collect(t, group, concurrency_hint=0)
        with pytest.raises(InvalidType, match="progress must be a function"):
            await collect(t, group, progress=3)


async def test_a_group_outlives_its_process() -> None:
    store = MemoryStore()
    async with bed(Runner(), store=store) as t:
        group = t.runtime.group("g", stop_after_failures=1)
        await group.submit(members("x", "y"))
        await collect(t, group)
    async with bed(Runner(), store=store) as t:
        group = t.runtime.group("g")
        assert counts(await group.status()) == (2, 2, 0, 0)
        assert [end.key for end in await collect(t, group)] == ["k0", "k1"]


async def test_members_are_kept_as_long_as_their_group() -> None:
    """GRP-21, GRP-22, GRP-23, GRP-24, JOB-34"""
    runner = Runner()
    async with bed(runner, retention=10) as t:
        await t.runtime.submit(b"plain", run_id="plain")
        first = t.runtime.group("first")
        await first.submit(members("x", "hold"))
        second = t.runtime.group("second", retention=100)
        await second.submit(members("x"))
        await t.clock.advance(11)
        assert await t.runtime.status("plain") is None
        assert counts(await first.status()) == (2, 1, 0, 0)
        runner.gate.set()
        await t.settle()
        await t.clock.advance(9)
        assert len(await collect(t, first)) == 2
        await t.clock.advance(2)
        with pytest.raises(GroupNotFound):
            await first.status()
        assert len(await collect(t, second)) == 1
        await t.clock.advance(100)
        with pytest.raises(GroupNotFound):
            await second.status()
        for table in ("groups", "members", "runs"):
            assert t.queue.peek(f"SELECT count(*) FROM {table}") == [(0,)]


async def test_large_inputs_and_results() -> None:
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group("g")
        wanted = [GroupMember(str(n), b"fail " + bytes([97 + n]) * 2_000_000) for n in range(3)]
        await group.submit(wanted)
        assert {end.termination.status for end in await collect(t, group)} == {
            TerminalStatus.FAILED
        }
        runner.mended = True
        await group.resume()
        ends = await collect(t, group, order="submission")
        for end, member in zip(ends, wanted, strict=True):
            assert end.outcome.result == member.input.upper(), "another input came back"
        await group.forget()
        await t.settle()
        left = [info.key async for info in t.store.list("") if "payload" in info.key]
        assert left == []


async def test_a_forgotten_group_and_the_next_one_share_nothing() -> None:
    """GRP-19: whoever is still removing the one removes nothing of the other."""
    async with bed(Runner()) as t:
        group, table = t.runtime.group("g"), t.runtime._opened().groups
        await group.submit(members("x", "y"))
        await collect(t, group)
        number = table.get("g").number
        await group.forget()
        await group.submit(members("z"))
        assert remove_some(t.queue, number)
        assert [end.outcome.result for end in await collect(t, group)] == [b"Z"]


async def test_a_member_of_a_forgotten_group_is_submitted_alone() -> None:
    async with bed(Runner()) as t:
        group, table = t.runtime.group("g"), t.runtime._opened().groups
        await group.submit(members("x"))
        await collect(t, group)
        found = table.get("g")
        with t.queue.transaction() as tx:
            table.forget(tx, found)
            run_id = member_run_id("g", "k0")
            t.runtime.submission(b"other", run_id=run_id).apply(tx)
        await t.settle()
        assert (await t.end(run_id)).outcome.result == b"OTHER"
        assert t.queue.peek("SELECT count(*) FROM groups") == [(0,)]


async def test_a_group_that_is_submitted_again_is_not_finished() -> None:
    """Nor is it forgotten, although all members that were known before have ended."""
    async with bed(Runner(), retention=60) as t:
        group = t.runtime.group("g")
        several = members("x", "y")
        more = asyncio.Event()

        async def stream(*, breaks: bool) -> AsyncIterator[GroupMember]:
            for member in several:
                yield member
            await more.wait()
            if breaks:
                raise Broken

        first = asyncio.ensure_future(group.submit(stream(breaks=True)))
        await t.settle()
        await group.cancel()
        more.set()
        with pytest.raises(Broken):
            await first
        assert t.queue.peek("SELECT finished_at IS NULL FROM groups") == [(False,)]
        more.clear()
        second = asyncio.ensure_future(group.submit(stream(breaks=True)))
        await t.settle()
        more.set()
        with pytest.raises(Broken):
            await second
        assert t.queue.peek("SELECT finished_at IS NULL FROM groups") == [(True,)]
        await t.clock.advance(86400)
        assert counts(await group.status()) == (2, 2, 0, 0)


async def test_a_stopped_group_that_goes_on_is_not_forgotten() -> None:
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group("g", retention=10)
        wanted = members(*("x" for _ in range(200)), "hold")
        breaks = asyncio.Event()

        async def broken() -> AsyncIterator[GroupMember]:
            for member in wanted[:200]:
                yield member
            await breaks.wait()
            raise OSError("the list ends here")

        submitting = asyncio.ensure_future(group.submit(broken()))
        await t.settle()
        await group.cancel()
        breaks.set()
        with pytest.raises(OSError, match="ends here"):
            await submitting
        status = await group.status()
        assert (counts(status), status.is_finished) == ((200, 200, 0, 0), True)
        await t.clock.advance(5)
        await group.submit(wanted)
        await t.clock.advance(60)
        assert (await group.status()).pending == 1
        runner.gate.set()
        assert len(await collect(t, group)) == 201
        await t.clock.advance(11)
        with pytest.raises(GroupNotFound):
            await group.status()


async def test_the_end_of_a_group_is_signalled_once() -> None:
    runner = Runner()
    async with bed(runner) as t:
        group = t.runtime.group("g", signal_when_finished="done")
        stopped = asyncio.Event()

        async def stream() -> AsyncIterator[GroupMember]:
            for member in members(*("x" for _ in range(100))):
                yield member
            await stopped.wait()

        submitting = asyncio.ensure_future(group.submit(stream()))
        await t.settle()
        await group.cancel()
        assert await t.runtime.clear_signal("done") == 1
        stopped.set()
        await submitting
        await t.settle()
        assert await t.runtime.clear_signal("done") == 0


async def test_a_group_that_is_resumed_is_not_cancelled_any_more() -> None:
    runner = Runner()
    async with bed(runner, concurrency=1) as t:
        group, table = t.runtime.group("g"), t.runtime._opened().groups
        await group.submit(members("hold", *(f"x{n}" for n in range(249))))
        await t.settle()
        find, looks = table.active_runs, 0

        def active_runs(number: int, first: int, limit: int) -> tuple[list[str], int | None]:
            nonlocal looks
            looks += 1
            found = find(number, first, limit)
            with t.queue.transaction() as tx:
                table.reopen(tx, table.get("g"))
            return found

        table.active_runs = active_runs  # type: ignore[method-assign]
        assert await group.cancel() == 100
        assert looks == 1
        status = await group.status()
        assert (status.pending, status.is_stopped) == (151, False)
        runner.gate.set()


@pytest.mark.parametrize("order", ["completion", "submission"])
async def test_reading_begins_with_the_submission(order: str) -> None:
    """Results are waited for as soon as `submit` has begun, before any member is there."""
    async with bed(Runner()) as t:
        group = t.runtime.group("g")
        gate = asyncio.Event()

        async def slow() -> AsyncIterator[GroupMember]:
            await gate.wait()
            for member in members("a", "b"):
                yield member

        submitting = asyncio.ensure_future(group.submit(slow()))
        await t.settle()
        reading = asyncio.ensure_future(collect(t, group, order=order))
        waiting = asyncio.ensure_future(group.wait())
        with pytest.raises(TimeoutError, match="has no members yet"):
            await group.wait(timeout=0)
        gate.set()
        await t.settle()
        assert (await submitting).total == 2
        assert [end.key for end in await reading] == ["k0", "k1"]
        assert (await waiting).succeeded == 2


async def test_reading_ends_with_a_submission_that_fails() -> None:
    async with bed(Runner()) as t:
        group = t.runtime.group("g")
        gate = asyncio.Event()

        async def broken() -> AsyncIterator[GroupMember]:
            await gate.wait()
            raise OSError("no disk")
            yield

        submitting = asyncio.ensure_future(group.submit(broken()))
        await t.settle()
        waiting = asyncio.ensure_future(group.wait())
        await t.settle()
        gate.set()
        with pytest.raises(OSError, match="no disk"):
            await submitting
        with pytest.raises(GroupNotFound):
            await waiting


async def test_a_failure_names_its_workflow(caplog: pytest.LogCaptureFixture) -> None:
    async with bed(None, workflows=[Workflow("parcel", Runner())]) as t:
        await t.runtime.submit(b"retry", run_id="r", workflow="parcel")
        await t.settle()
        assert "step 0 of run r of 'parcel' failed on attempt 1 of" in caplog.text
