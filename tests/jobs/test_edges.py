"""Edge cases of typed jobs: keys, ends, limits, restarts, jobs that submit jobs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taquba import Effects, Queue
from taquba.errors import (
    InputMismatch,
    InvalidArgument,
    InvalidType,
    JobFailed,
    ReservedName,
    RunNotFound,
    SerializationError,
)
from taquba.jobs import BlockingJobContext, JobContext, JobHandle, JobRunner, JobView, job
from taquba.workflow import RunState
from tests.jobs.functions import Mailer, Receipt, greet, picky, send_email
from tests.jobs.harness import World, ended, settle

pytestmark = pytest.mark.anyio


@pytest.fixture
def world() -> World:
    return World()


@dataclass
class Seen:
    attempts: list[int] = field(default_factory=list[int])


@job("flaky", max_attempts=4)
async def flaky(ctx: JobContext, failures: int) -> int:
    ctx.state(Seen).attempts.append(ctx.attempt)
    if ctx.attempt <= failures:
        raise OSError("not yet")
    return ctx.attempt


def in_an_hour(world: World) -> datetime:
    return datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC) + timedelta(hours=1)


async def failure(world: World, handle: JobHandle[Any]) -> JobFailed:
    with pytest.raises(JobFailed) as caught:
        await ended(world, handle)
    assert caught.value.job_id == handle.job_id
    return caught.value


async def test_a_decorator_without_a_name() -> None:
    def function(ctx: JobContext) -> None: ...

    with pytest.raises(InvalidType, match=r'write @job\("…"\)'):
        job(function)  # type: ignore[arg-type]


async def test_a_job_that_is_not_in_a_list() -> None:
    async with Queue.open("memory://") as queue:
        with pytest.raises(InvalidType, match=r"jobs must be a list.*put it in \[ \]"):
            JobRunner(queue, greet)  # type: ignore[arg-type]


async def test_jobs_without_a_key(world: World) -> None:
    """JOB-01: two submissions are two jobs."""
    async with world.runner(greet) as jobs:
        one, two = [await jobs.submit(greet("Ann")) for _ in range(2)]
        assert (one.created, two.created, one.job_id == two.job_id) == (True, True, False)


async def test_a_pending_job_is_joined(world: World) -> None:
    """JOB-02: one execution, whose value both handles give."""
    mailer = Mailer()
    async with world.runner(send_email, state=[mailer]) as jobs:
        later = in_an_hour(world)
        one = await jobs.submit(send_email("a"), idempotency_key="k", run_at=later)
        two = await jobs.submit(send_email("a"), idempotency_key="k")
        assert (one.created, two.created) == (True, False)
        assert await ended(world, one) == await ended(world, two) == Receipt(to="a", number=1)
    assert len(mailer.sent) == 1


async def test_a_key_stands_for_one_call(world: World) -> None:
    """JOB-03, JOB-07: another payload or job is refused, active or ended, restart or not."""

    async def refused(jobs: JobRunner) -> None:
        for call in (send_email("b"), greet("a")):
            with pytest.raises(InputMismatch, match=jobs.handle_of_key(greet, "k").job_id):
                await jobs.submit(call, idempotency_key="k")

    later = in_an_hour(world)
    async with world.runner(send_email, greet, state=[Mailer()]) as jobs:
        handle = await jobs.submit(send_email("a"), idempotency_key="k", run_at=later)
        await refused(jobs)
    async with world.runner(send_email, greet, state=[Mailer()]) as jobs:
        await refused(jobs)
        await ended(world, jobs.handle(send_email, handle.job_id))
        await refused(jobs)
    async with world.runner() as jobs:
        await refused(jobs)


async def test_an_ended_job_is_not_run_again(world: World) -> None:
    """JOB-04, JOB-05, JOB-16: its value or its failure is told again, also after a restart."""
    mailer = Mailer()
    async with world.runner(send_email, picky, state=[mailer]) as jobs:
        sent = await jobs.submit(send_email("a"), idempotency_key="s")
        bad = await jobs.submit(picky("value"), idempotency_key="f")
        assert await ended(world, sent) == await ended(world, sent) == Receipt(to="a", number=1)
        assert (await failure(world, bad)).permanent
    for known in ([send_email, picky], []):
        async with world.runner(*known, state=[mailer]) as jobs:
            again = await jobs.submit(send_email("a"), idempotency_key="s")
            assert (again.created, await ended(world, again)) == (False, Receipt(to="a", number=1))
            again_bad = await jobs.submit(picky("value"), idempotency_key="f")
            assert not again_bad.created
            assert (await failure(world, again_bad)).error == "it never will be"
    assert len(mailer.sent) == 1


async def test_a_cancelled_job_is_not_run_again(world: World) -> None:
    """JOB-06: who submits it again is told that it was cancelled."""
    async with world.runner(send_email, state=[Mailer()]) as jobs:
        later = in_an_hour(world)
        handle = await jobs.submit(send_email("a"), idempotency_key="k", run_at=later)
        assert await handle.cancel()
        again = await jobs.submit(send_email("a"), idempotency_key="k")
        told = await failure(world, again)
        assert (again.created, told.cancelled, told.permanent, told.error) == (
            False,
            True,
            False,
            None,
        )


async def test_retention_frees_a_key(world: World) -> None:
    """JOB-08, JOB-09, JOB-18: then there is no result, nothing to wait for, and a new job."""
    mailer = Mailer()
    async with world.runner(send_email, state=[mailer], retention=3600) as jobs:
        handle = await jobs.submit(send_email("a"), idempotency_key="k")
        await ended(world, handle)
        await world.clock.advance(3601)
        assert await handle.fetch_result() is None
        assert await handle.status() is None
        with pytest.raises(RunNotFound):
            await handle
        again = await jobs.submit(send_email("b"), idempotency_key="k")
        assert (again.created, again.job_id) == (True, handle.job_id)
        assert await ended(world, handle) == Receipt(to="b", number=1)


async def test_names_that_nobody_knows_wait(world: World) -> None:
    """JOB-10: also those that are submitted where nothing runs; they are no failures."""
    async with world.runner() as jobs:
        handle = await jobs.submit(greet("Ann"), max_attempts=1)
    async with world.runner(send_email, state=[Mailer()]) as jobs:
        await world.clock.advance(10**6)
        status = await jobs.handle(greet, handle.job_id).status()
        assert status is not None and status.state is RunState.PENDING
    async with world.runner(greet) as jobs:
        assert await ended(world, jobs.handle(greet, handle.job_id)) == "Hello, Ann!"


async def test_attempts_and_their_limits(world: World) -> None:
    """JOB-11, JOB-24: the submission's limit wins, then the job's, then the queue's."""
    seen = Seen()

    @job("flaky")
    async def unlimited(ctx: JobContext, failures: int) -> int:
        raise NotImplementedError

    async with world.runner(flaky, state=[seen]) as jobs:
        told = await failure(world, await jobs.submit(flaky(99), max_attempts=2))
        assert (told.permanent, told.error, seen.attempts) == (False, "not yet", [1, 2])
        assert (await jobs.runtime._queue.stats("jobs@flaky")).dead == 1
        for call, most in ((flaky(99), 4), (unlimited(99), 3)):
            seen.attempts.clear()
            await failure(world, await jobs.submit(call))
            assert seen.attempts == list(range(1, most + 1))


async def test_a_permanent_failure_is_one_attempt(world: World) -> None:
    """JOB-12: dead at once, with the message."""
    async with world.runner(picky) as jobs:
        told = await failure(world, await jobs.submit(picky("value")))
        assert (told.permanent, told.error) == (True, "it never will be")
        status = await jobs.handle(picky, told.job_id).status()
        assert status is not None
        assert (await jobs.runtime._queue.stats("jobs@picky")).dead == 1


async def test_what_survives_a_failed_attempt(world: World) -> None:
    """JOB-13: memos do, effects do not: each happens once."""
    computed: list[int] = []

    @job("counting")
    async def counting(ctx: JobContext) -> int:
        value = await ctx.memo.memoized("value", lambda: computed.append(1) or len(computed))
        ctx.effects.put(f"attempt-{ctx.attempt}", b"")
        if ctx.attempt == 1:
            raise OSError("once")
        return value

    async with world.runner(counting) as jobs:
        assert await ended(world, await jobs.submit(counting())) == 1
        kv = jobs.runtime._queue.kv
        assert [await kv.get(f"attempt-{n}") for n in (1, 2)] == [None, b""]
    assert computed == [1]


async def test_values_that_do_not_fit_are_permanent_failures(world: World) -> None:
    """JOB-14, JOB-15: a result that is not of its type, and arguments that are not any more."""

    @job("fits")
    async def before(ctx: JobContext, word: str) -> int:
        raise NotImplementedError

    @job("fits")
    async def after(ctx: JobContext, word: int | None = None) -> int:
        return "text"  # type: ignore[return-value]

    async with world.runner() as jobs:
        old = await jobs.submit(before("x"))
    async with world.runner(after) as jobs:
        for handle, message in (
            (jobs.handle(after, old.job_id), "is not what it takes now"),
            (await jobs.submit(after(1)), "cannot be stored as int"),
        ):
            told = await failure(world, handle)
            assert message in str(told)
            status = await handle.status()
            assert status is not None
        assert (await jobs.runtime._queue.stats("jobs@fits")).dead == 2


async def test_waiting_has_an_end(world: World) -> None:
    """JOB-17: with `TimeoutError`; the job goes on."""
    async with world.runner(flaky, state=[Seen()]) as jobs:
        handle = await jobs.submit(flaky(1))
        waiting = asyncio.create_task(handle.result(timeout=1e-3))
        await world.clock.advance(0.001)
        with pytest.raises(TimeoutError):
            await waiting
        assert await ended(world, handle) == 2


async def test_a_job_for_later(world: World) -> None:
    """JOB-19: it is scheduled until then."""
    async with world.runner(greet) as jobs:
        handle = await jobs.submit(greet("a"), run_at=in_an_hour(world))
        for seconds, state in ((3599, RunState.PENDING), (1, RunState.TERMINATED)):
            await world.clock.advance(seconds)
            status = await handle.status()
            assert status is not None and status.state is state


async def test_a_lease_that_ends(world: World) -> None:
    """JOB-20: is a failed attempt; the next one is the second."""

    @job("hangs-once")
    async def hangs_once(ctx: JobContext) -> int:
        if ctx.attempt == 1:
            await asyncio.get_running_loop().create_future()
        return ctx.attempt

    async with world.runner(hangs_once, renew=None) as jobs:
        handle = await jobs.submit(hangs_once())
        await world.clock.advance(31)
        assert await ended(world, handle) == 2


async def test_one_name_twice(world: World) -> None:
    """JOB-21: no runner is made of two jobs of one name."""

    @job("greet")
    async def other(ctx: JobContext) -> None: ...

    with pytest.raises(InvalidArgument, match="two of the jobs have the name 'greet'"):
        async with world.runner(greet, other):
            pass


async def test_what_state_there_is(world: World) -> None:
    """JOB-22, JOB-23: of two objects of a type the later; none is an error, or None."""
    context = JobContext.detached(state=[1, "one", 2])
    assert (context.state(int), context.state(str), context.try_state(float)) == (2, "one", None)
    with pytest.raises(InvalidArgument, match="there is no state of type float"):
        context.state(float)


async def test_headers_of_the_runtime_s_own(world: World) -> None:
    """JOB-25: they are refused."""
    async with world.runner(greet) as jobs:
        with pytest.raises(ReservedName):
            await jobs.submit(greet("a"), headers={"workflow.run_id": "x"})
        assert await jobs.runtime.backlog() == []


async def test_jobs_that_submit_jobs(world: World) -> None:
    """JOB-27: by a runner in their state; once, however often they run themselves."""

    class Spawner:
        runner: JobRunner

    @job("parent")
    async def parent(ctx: JobContext, names: list[str]) -> list[str]:
        jobs = ctx.state(Spawner).runner
        children = [
            await jobs.submit(greet(name), idempotency_key=f"{ctx.job_id}/{name}") for name in names
        ]
        greetings = [await child for child in children]
        if ctx.attempt == 1:
            raise OSError("after all that")
        assert not any(child.created for child in children)
        return greetings

    spawner = Spawner()
    async with world.runner(parent, greet, state=[spawner], concurrency=2) as jobs:
        spawner.runner = jobs
        handle = await jobs.submit(parent(["Ann", "Ben"]))
        assert await ended(world, handle) == ["Hello, Ann!", "Hello, Ben!"]
        assert (await jobs.runtime._queue.stats("jobs@greet")).done in (0, 2)


async def test_an_outcome_is_there_as_long_as_its_job(world: World) -> None:
    """JOB-28: no end is kept without its result, so no wait ends without one."""
    async with world.runner(greet, retention=60) as jobs:
        handle = await jobs.submit(greet("Ann"))
        await ended(world, handle)
        await world.clock.advance(59)
        assert await handle == "Hello, Ann!"
        await world.clock.advance(2)
        assert await handle.status() is None


# -- attacks ----------------------------------------------------------------------------------


async def test_a_renamed_function_goes_on_with_its_calls(world: World) -> None:
    @job("old-name")
    async def before(ctx: JobContext, word: str) -> str:
        raise NotImplementedError

    @job("old-name")
    async def quite_another(ctx: JobContext, word: str, times: int = 2) -> str:
        return word * times

    async with world.runner() as jobs:
        handle = await jobs.submit(before("ab"))
    async with world.runner(quite_another) as jobs:
        assert await ended(world, jobs.handle(quite_another, handle.job_id)) == "abab"


async def test_two_runners_share_the_work(world: World) -> None:
    async with world.runner(send_email, greet, state=[Mailer()]) as one:
        queue = one.runtime._queue
        async with JobRunner(queue, [greet]) as two, JobRunner(queue, []) as looker:
            handles = [await looker.submit(greet(str(n)), idempotency_key=str(n)) for n in range(9)]
            again = [await two.submit(greet(str(n)), idempotency_key=str(n)) for n in range(9)]
            assert [each.created for each in again] == [False] * 9
            for number, handle in enumerate(handles):
                assert await ended(world, handle) == f"Hello, {number}!"
        # One of them has left; the other goes on.
        assert await ended(world, await one.submit(greet("Ann"))) == "Hello, Ann!"


async def test_waiting_can_be_cancelled_and_the_job_goes_on(world: World) -> None:
    async with world.runner(flaky, state=[Seen()]) as jobs:
        handle = await jobs.submit(flaky(1))
        tasks = [asyncio.create_task(handle.result()) for _ in range(3)]
        await settle(world)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert await ended(world, handle) == 2
        assert await asyncio.gather(*tasks[1:]) == [2, 2]


async def test_a_submission_that_is_cancelled_happens_or_does_not(world: World) -> None:
    async with world.runner(greet) as jobs:
        task = asyncio.create_task(jobs.submit(greet("Ann"), idempotency_key="k"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        handle = await jobs.submit(greet("Ann"), idempotency_key="k")
        assert await ended(world, handle) == "Hello, Ann!"


async def test_a_job_that_is_cancelled_while_it_runs(world: World) -> None:
    begun = asyncio.Event()

    @job("cleans-up")
    async def cleans_up(ctx: JobContext) -> None:
        try:
            begun.set()
            await asyncio.get_running_loop().create_future()
        finally:
            assert ctx.cancel_token.is_cancelled

    async with world.runner(cleans_up) as jobs:
        handle = await jobs.submit(cleans_up())
        await settle(world)
        assert begun.is_set()
        assert await handle.cancel()
        assert (await failure(world, handle)).cancelled


async def test_an_error_in_what_says_whether_to_retry(world: World) -> None:
    def broken(error: Exception) -> bool:
        raise ZeroDivisionError("broken")

    @job("broken", retry_if=broken, max_attempts=2)
    async def fails(ctx: JobContext) -> None:
        raise OSError("first")

    async with world.runner(fails) as jobs:
        told = await failure(world, await jobs.submit(fails()))
        assert (told.error, told.permanent) == ("broken", False)


async def test_large_arguments_and_results(world: World) -> None:
    @job("large")
    async def large(ctx: JobContext, data: bytes) -> bytes:
        return data + b"!"

    async with world.runner(large) as jobs:
        data = bytes(range(256)) * 20_000  # 5 MiB, as text more
        handle = await jobs.submit(large(data), idempotency_key="k")
        result = await ended(world, handle)
        assert len(result) == len(data) + 1
        assert result == data + b"!"
        assert not (await jobs.submit(large(data), idempotency_key="k")).created
        with pytest.raises(InvalidArgument, match="may have"):
            await jobs.submit(large(b"x" * (13 * 2**20)))


async def test_effects_of_a_submission(world: World) -> None:
    async with world.runner(greet) as jobs:
        await jobs.submit(greet("a"), effects=Effects().put("k", b"v"))
        assert await jobs.runtime._queue.kv.get("k") == b"v"
        with pytest.raises(SerializationError):
            greet("\ud800")


async def test_a_job_that_runs_after_a_while(world: World) -> None:
    async with world.runner(greet) as jobs:
        handle = await jobs.submit(greet("a"), delay=3600)
        await world.clock.advance(3599)
        assert await handle.fetch_result() is None
        await world.clock.advance(1)
        assert await handle.fetch_result() is not None


async def test_what_the_function_is_given_must_be_what_it_says() -> None:
    async def on_loop(ctx: BlockingJobContext) -> None: ...
    def in_thread(ctx: JobContext) -> None: ...
    def remote(ctx: BlockingJobContext) -> None: ...

    @dataclass
    class Remote:
        def run(self, view: JobView) -> None: ...

    for function, executor, says in (
        (on_loop, None, "job 'x' is async: it is given a JobContext, not a BlockingJobContext"),
        (in_thread, None, "called in a thread: it is given a BlockingJobContext, not a JobContext"),
        (remote, "cpu", "runs in executor 'cpu': it is given a JobView, not a BlockingJobContext"),
        (Remote, None, "called in a thread: it is given a BlockingJobContext, not a JobView"),
    ):
        with pytest.raises(InvalidType, match=says):
            job("x", executor=executor)(function)  # type: ignore


async def test_mistakes_of_a_newcomer(world: World) -> None:
    with pytest.raises(InvalidType, match=r"state must be a list of objects, .*: put it in \[ \]"):
        JobContext.detached(state=Mailer())  # type: ignore[arg-type]
    async with world.runner(greet) as jobs:
        queue = jobs.runtime._queue
        with pytest.raises(InvalidType, match="state must be a list"):
            JobRunner(queue, [greet], state=Mailer())  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="two of the jobs have the name 'greet'"):
            JobRunner(queue, [greet, greet])
        with pytest.raises(InvalidArgument, match=r"use 'async with JobRunner\(…\) as jobs:'"):
            await JobRunner(queue, [greet]).submit(greet("a"))
        with pytest.raises(InvalidType, match="the key of an item must be a str, not 1"):
            async for _ in jobs.map(lambda n: greet(str(n)), [1], key=lambda n: n):  # type: ignore
                pass
        with pytest.raises(InvalidType, match="map takes a function that makes the call of a job"):
            async for _ in jobs.map(lambda n: n, [1]):  # type: ignore
                pass


def test_a_function_of_an_executor_is_tested_alone() -> None:
    @job("view", executor="cpu")
    def view(view: JobView, more: int) -> int:
        return view.attempt + more

    assert view.function(JobView.detached(attempt=2), 3) == 5
