"""Typed jobs: submitted, run, retried, and what they give back."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import pytest

from taquba import Effects
from taquba.clock import SystemClock
from taquba.errors import (
    InputMismatch,
    InvalidArgument,
    InvalidType,
    JobFailed,
    RunNotFound,
    SerializationError,
    UnknownWorkflow,
)
from taquba.jobs import BlockingJobContext, JobContext, job
from taquba.queue import JobView
from taquba.workflow import RunState, StepAttemptOutcome
from tests.jobs.functions import (
    Mailer,
    Receipt,
    blocking,
    die,
    digest,
    greet,
    picky,
    send_email,
)
from tests.jobs.harness import World, ended, settle
from tests.queue.harness import counts

R = TypeVar("R")

pytestmark = pytest.mark.anyio


@pytest.fixture
def world() -> World:
    return World()


async def test_a_job_s_result_is_typed_and_awaited(world: World) -> None:
    mailer = Mailer()
    async with world.runner(send_email, greet, state=[mailer]) as jobs:
        handle = await jobs.submit(send_email(to="a@example.com", subject="hi"))
        assert handle.created
        assert await ended(world, handle) == Receipt(to="a@example.com", number=1)
        assert await ended(world, await jobs.submit(greet("Ann"))) == "Hello, Ann!"
    assert mailer.sent == ["a@example.com: hi"]


async def test_the_attempts_of_a_job_are_kept(world: World) -> None:
    async with world.runner(greet, keep_history=True) as jobs:
        handle = await jobs.submit(greet("Ann"))
        await ended(world, handle)
        page = await jobs.runtime.timeline(handle.job_id)
        assert page is not None
        [attempt] = page.attempts
        assert attempt.outcome is StepAttemptOutcome.SUCCEEDED
    async with world.runner(greet) as jobs:
        handle = await jobs.submit(greet("Bob"))
        await ended(world, handle)
        page = await jobs.runtime.timeline(handle.job_id)
        assert page is not None and page.attempts == ()


async def test_defaults_are_stored_with_the_call(world: World) -> None:
    mailer = Mailer()
    async with world.runner(send_email, state=[mailer]) as jobs:
        await ended(world, await jobs.submit(send_email("a")))
    assert mailer.sent == ["a: (none)"]
    assert send_email("a").data == b'{"to":"a","subject":"(none)"}'


async def test_a_handle_is_awaited_from_many_tasks_and_again(world: World) -> None:
    async with world.runner(greet) as jobs:
        handle = await jobs.submit(greet("Ann"))
        assert await asyncio.gather(*(handle.result() for _ in range(5))) == ["Hello, Ann!"] * 5
        assert await ended(world, handle) == "Hello, Ann!"
        assert await handle.fetch_result() == "Hello, Ann!"


async def test_an_ordinary_function_runs_in_a_thread_with_its_memo(world: World) -> None:
    world.clock = SystemClock()
    async with world.runner(blocking) as jobs:
        assert await ended(world, await jobs.submit(blocking(["a", "bcd"]))) == {"a": 1, "bcd": 3}


async def test_errors_are_retried_and_then_the_job_fails(world: World) -> None:
    mailer = Mailer(failures=2)
    async with world.runner(send_email, state=[mailer]) as jobs:
        handle = await jobs.submit(send_email("a"))
        await world.clock.advance(60)
        assert (await ended(world, handle)).number == 3
        mailer.failures = 100
        handle = await jobs.submit(send_email("b"), max_attempts=2)
        await world.clock.advance(60)
        with pytest.raises(JobFailed, match=r"job \w+ \('email.send'\) failed: the server is busy"):
            await ended(world, handle)
        with pytest.raises(JobFailed):
            await handle.fetch_result()
    assert mailer.sent.count("failed") == 4


async def test_a_job_says_which_errors_are_final(world: World) -> None:
    async with world.runner(picky) as jobs:
        for what, message in (("value", "it never will be"), ("permanent", "no")):
            handle = await jobs.submit(picky(what))
            await settle(world)
            with pytest.raises(JobFailed, match=message):
                await handle.result(timeout=0)
        handle = await jobs.submit(picky("else"))
        await settle(world)
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0)
        await world.clock.advance(60)
        with pytest.raises(JobFailed, match="maybe later"):
            await ended(world, handle)


async def test_what_a_job_stages_and_memoizes(world: World) -> None:
    calls: list[int] = []

    @job("staging")
    async def staging(ctx: JobContext, key: str) -> str:
        ctx.effects.put(key, str(ctx.attempt).encode())
        value = await ctx.memo.memoized("call", lambda: calls.append(1) or "computed")
        if ctx.attempt == 1:
            raise OSError("once")
        return f"{value} {ctx.is_last_attempt} {ctx.max_attempts} {dict(ctx.headers)}"

    async with world.runner(staging) as jobs:
        handle = await jobs.submit(staging("k"), headers={"a": "b"}, max_attempts=2)
        await world.clock.advance(60)
        assert await ended(world, handle) == "computed True 2 {'a': 'b'}"
        assert await jobs.runtime._queue.kv.get("k") == b"2"
    assert calls == [1]


# -- idempotency ------------------------------------------------------------------------------


async def test_a_key_is_used_once(world: World) -> None:
    mailer = Mailer()
    async with world.runner(send_email, greet, state=[mailer]) as jobs:
        first = await jobs.submit(send_email("a"), idempotency_key="order 7/ä")
        second = await jobs.submit(send_email("a"), idempotency_key="order 7/ä")
        assert (first.created, second.created) == (True, False)
        assert first.job_id == second.job_id
        assert await ended(world, first) == await ended(world, second)
        for call in (send_email("b"), greet("a")):
            with pytest.raises(InputMismatch, match="idempotency_key 'order 7/ä' was used"):
                await jobs.submit(call, idempotency_key="order 7/ä")
        effects = Effects().put("not", b"applied")
        again = await jobs.submit(send_email("a"), idempotency_key="order 7/ä", effects=effects)
        assert await ended(world, again) == await ended(world, first)
        assert await jobs.runtime._queue.kv.get("not") is None
    assert len(mailer.sent) == 1
    async with world.runner(send_email, state=[mailer]) as jobs:  # another process
        again = await jobs.submit(send_email("a"), idempotency_key="order 7/ä")
        assert (again.created, await ended(world, again)) == (False, Receipt(to="a", number=1))
        assert await ended(world, jobs.handle_of_key(send_email, "order 7/ä")) == Receipt(
            to="a", number=1
        )
    assert len(mailer.sent) == 1


async def test_a_failed_or_cancelled_job_is_not_run_again_by_its_key(world: World) -> None:
    async with world.runner(picky) as jobs:
        failed = await jobs.submit(picky("value"), idempotency_key="f")
        await settle(world)
        with pytest.raises(JobFailed):
            await ended(world, await jobs.submit(picky("value"), idempotency_key="f"))
        at = datetime.now(UTC) + timedelta(days=365 * 100)
        waiting = await jobs.submit(picky("else"), idempotency_key="c", run_at=at)
        assert await waiting.cancel()
        again = await jobs.submit(picky("else"), idempotency_key="c")
        with pytest.raises(JobFailed, match="was cancelled$"):
            await ended(world, again)
        assert (failed.created, again.created) == (True, False)


async def test_known_answer_of_a_key(world: World) -> None:
    async with world.runner() as jobs:
        handle = jobs.handle_of_key(greet, "fixed")
        assert handle.job_id == "992a93455c71fedd36ac9bbc439952c041cf61445958472af479269b8d873513"
        assert await handle.status() is None
        assert await handle.fetch_result() is None
        with pytest.raises(RunNotFound):
            await ended(world, handle)


# -- restarts and names -----------------------------------------------------------------------


async def test_results_are_read_after_a_restart(world: World) -> None:
    async with world.runner(greet) as jobs:
        job_id = (await jobs.submit(greet("Ann"))).job_id
        await settle(world)
    async with world.runner() as jobs:
        handle = jobs.handle(greet, job_id)
        assert await handle.fetch_result() == "Hello, Ann!"
        status = await handle.status()
        assert status is not None
        assert (status.state, status.workflow) == (RunState.TERMINATED, "greet")


async def test_a_job_that_nobody_knows_waits(world: World) -> None:
    async with world.runner() as jobs:
        handle = await jobs.submit(greet("Ann"))
    async with world.runner(send_email) as jobs:
        await settle(world)
        status = await jobs.handle(greet, handle.job_id).status()
        assert status is not None
        assert status.state is RunState.PENDING
        assert [x.workflow for x in await jobs.runtime.backlog()] == ["greet"]
        with pytest.raises(UnknownWorkflow, match="there is: email.send"):
            await jobs.submit(greet("Ann"))
    async with world.runner(greet) as jobs:
        assert await ended(world, jobs.handle(greet, handle.job_id)) == "Hello, Ann!"


async def test_a_job_that_takes_something_else_now_fails(world: World) -> None:
    @job("changed")
    async def before(ctx: JobContext, word: str) -> str:
        raise NotImplementedError

    @job("changed")
    async def after(ctx: JobContext, number: int) -> str:
        raise NotImplementedError

    async with world.runner() as jobs:
        handle = await jobs.submit(before("x"))
    async with world.runner(after) as jobs:
        await settle(world)
        with pytest.raises(JobFailed, match="is not what it takes now"):
            await ended(world, jobs.handle(after, handle.job_id))


async def test_a_result_of_another_type_fails_the_job(world: World) -> None:
    @job("wrong")
    async def wrong(ctx: JobContext) -> int:
        return "text"  # type: ignore[return-value]

    async with world.runner(wrong) as jobs:
        handle = await jobs.submit(wrong())
        await settle(world)
        with pytest.raises(JobFailed, match="cannot be stored as int"):
            await handle.result(timeout=0)


async def test_a_job_without_a_result(world: World) -> None:
    @job("nothing")
    async def nothing(ctx: JobContext) -> None:
        pass

    @job("unsaid")
    async def unsaid(ctx: JobContext):  # type: ignore[no-untyped-def]
        return [1, {"a": b"raw"}]

    async with world.runner(nothing, unsaid) as jobs:
        assert await ended(world, await jobs.submit(nothing())) is None
        assert await ended(world, await jobs.submit(unsaid())) == [1, {"a": b"raw"}]


# -- executors --------------------------------------------------------------------------------


async def test_a_job_runs_in_another_process() -> None:
    world = World()
    world.clock = SystemClock()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        async with world.runner(digest, executors={"cpu": pool}) as jobs:
            import os

            pid, data = await ended(world, await jobs.submit(digest(b"\x00\xff", 2)))
            assert (pid != os.getpid(), data) == (True, b"\x00\xff" * 2)


async def test_a_process_that_dies_is_a_failed_attempt(tmp_path: Path) -> None:
    world = World()
    world.clock = SystemClock()
    marker = str(tmp_path / "died")
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    async with world.runner(die, executors={"cpu": pool}) as jobs:
        handle = await jobs.submit(die(marker), max_attempts=1)
        with pytest.raises(JobFailed, match="the executor broke"):
            await ended(world, handle)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        async with world.runner(die, executors={"cpu": pool}) as jobs:
            assert await ended(world, await jobs.submit(die(marker))) == 1


async def test_any_executor_will_do(world: World) -> None:
    world.clock = SystemClock()
    with ThreadPoolExecutor(2) as pool:
        async with world.runner(digest, executors={"cpu": pool}) as jobs:
            assert (await ended(world, await jobs.submit(digest(b"x", 3))))[1] == b"xxx"


# -- bad input --------------------------------------------------------------------------------


async def test_arguments_are_checked_at_the_call() -> None:
    for call in (
        lambda: send_email(),  # type: ignore[call-arg]
        lambda: send_email("a", "b", "c"),  # type: ignore[call-arg]
        lambda: send_email("a", topic="b"),  # type: ignore[call-arg]
        lambda: send_email(to=1),  # type: ignore[arg-type]
        lambda: blocking("word"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidType, match=r"job '(email.send|blocking)': "):
            call()

    @job("surrogates")
    async def surrogates(ctx: JobContext, text: str) -> None: ...

    with pytest.raises((InvalidType, SerializationError)):
        surrogates("\ud800")


async def test_what_is_no_call_is_refused(world: World) -> None:
    async with world.runner(greet) as jobs:
        for wrong in (greet.function, b"x", "greet", None):
            with pytest.raises(InvalidType, match="submit takes the call of a job"):
                await jobs.submit(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidType, match=r"call it, with its arguments: submit\(greet\(…\)\)"):
            await jobs.submit(greet)  # type: ignore[arg-type]
        with pytest.raises(InvalidType, match="idempotency_key"):
            await jobs.submit(greet("a"), idempotency_key=7)  # type: ignore[arg-type]
        with pytest.raises(InvalidType, match="a job is a function"):
            jobs.handle(greet.function, "x")  # type: ignore[arg-type]


def test_functions_that_cannot_be_jobs() -> None:
    with pytest.raises(InvalidType, match="must take a context first"):

        @job("none")  # type: ignore[arg-type]
        async def none() -> None: ...

    with pytest.raises(InvalidType, match=r"use a list or a dict instead of \* and \*\*"):

        @job("many")
        async def many(ctx: JobContext, *words: str) -> None: ...

    with pytest.raises(InvalidType, match="parameter 'word' of job 'untyped' needs a type"):

        @job("untyped")
        async def untyped(ctx: JobContext, word) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(InvalidArgument, match="is async, so it runs on the event loop"):

        @job("both", executor="cpu")
        async def both(ctx: JobContext) -> None: ...

    for name in ("", "a@b", "ä", "x" * 65):
        with pytest.raises(InvalidArgument, match="characters of"):
            job(name)(greet.function)
    with pytest.raises(InvalidType, match="must be a function or class"):
        job("x")(7)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="max_attempts is 0"):
        job("x", max_attempts=0)(greet.function)


async def test_runners_that_cannot_be(world: World) -> None:
    async def enter(*jobs: Any, **options: Any) -> None:
        async with world.runner(*jobs, **options):
            pass

    with pytest.raises(InvalidType, match="a function or a class with the decorator @job"):
        await enter(greet.function)
    with pytest.raises(InvalidArgument, match="runs in executor 'cpu': pass it"):
        await enter(digest)
    with pytest.raises(InvalidArgument, match="two of the jobs have the name 'greet'"):
        await enter(greet, greet)


async def test_state(world: World) -> None:
    @job("looks")
    async def looks(ctx: JobContext, what: str) -> str:
        match what:
            case "missing":
                return str(ctx.state(Receipt))
            case "maybe":
                return str(ctx.try_state(Receipt))
            case "base":
                return type(ctx.state(Base)).__name__
            case _:
                return str(ctx.state(int))

    class Base:
        pass

    class Derived(Base):
        pass

    async with world.runner(looks, state=[Derived(), 1, 2]) as jobs:
        assert await ended(world, await jobs.submit(looks("maybe"))) == "None"
        assert await ended(world, await jobs.submit(looks("base"))) == "Derived"
        assert await ended(world, await jobs.submit(looks("int"))) == "2"
        handle = await jobs.submit(looks("missing"))
        await settle(world)
        with pytest.raises(JobFailed, match="there is no state of type Receipt: pass one"):
            await handle.result(timeout=0)


async def test_a_function_can_be_called_directly() -> None:
    assert send_email.__doc__ == "Send an e-mail."
    assert repr(send_email) == "<job 'email.send'>"
    mailer = Mailer()
    context = JobContext.detached(state=[mailer], attempt=2)
    assert await send_email.function(context, "a") == Receipt(to="a", number=2)
    assert mailer.sent == ["a: (none)"]
    assert blocking.function(BlockingJobContext.detached(), ["ab"]) == {"ab": 2}
    view = JobView("id", "q", b"", {}, 0, 1, 3, datetime.now(UTC))
    assert digest.function(view, b"x", 2)[1] == b"xx"


# -- how long ---------------------------------------------------------------------------------


@job("slow")
async def slow(ctx: JobContext) -> int:
    await asyncio.get_running_loop().create_future()
    return ctx.attempt


async def test_a_job_is_held_as_long_as_it_runs(world: World) -> None:
    async with world.runner(slow, drain_timeout=0) as jobs:
        handle = await jobs.submit(slow())
        await world.clock.advance(3600)
        status = await handle.status()
        assert status is not None
        assert status.state is RunState.RUNNING
        assert await jobs.runtime._queue.stats("jobs@slow") == counts(claimed=1)
        await handle.cancel()
    async with world.runner(slow, renew=None) as jobs:
        handle = await jobs.submit(slow(), max_attempts=1)
        await world.clock.advance(31)
        with pytest.raises(JobFailed, match="lease expired"):
            await handle.result(timeout=0)


async def test_a_job_may_take_so_long(world: World) -> None:
    async with world.runner(slow, job_timeout=600) as jobs:
        handle = await jobs.submit(slow(), max_attempts=1)
        await world.clock.advance(599)
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0)
        await world.clock.advance(1)
        with pytest.raises(JobFailed, match="failed"):
            await handle.result(timeout=0)
    for wrong, message in (
        ({"renew": "yes"}, "renew is"),
        ({"job_timeout": 0}, "step_timeout is 0"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            async with world.runner(slow, **wrong):
                pass


async def test_jobs_are_forgotten_after_a_while(world: World) -> None:
    async with world.runner(greet, retention=3600) as jobs:
        handle = await jobs.submit(greet("Ann"), idempotency_key="k")
        assert await ended(world, handle) == "Hello, Ann!"
        await world.clock.advance(3601)
        assert await handle.status() is None
        assert (await jobs.submit(greet("Ann"), idempotency_key="k")).created


async def pass_time(world: World) -> None:
    for _ in range(30):
        await world.clock.advance(10)


async def test_leaving_ends_although_a_function_runs_on_in_its_executor() -> None:
    """Its lease is over, so its place is held; but who leaves must not wait for ever."""
    world = World()
    begun, go = threading.Event(), threading.Event()

    @job("stuck", executor="cpu")
    def stuck(view: JobView) -> None:
        begun.set()
        go.wait(60)

    with ThreadPoolExecutor(1) as pool:
        try:
            async with world.runner(
                stuck, executors={"cpu": pool}, renew=None, drain_timeout=0
            ) as jobs:
                await jobs.submit(stuck())
                await settle(world)
                await asyncio.to_thread(begun.wait, 10)
                await world.clock.advance(31)
                passing = asyncio.create_task(pass_time(world))
            assert not go.is_set()  # it has not ended by itself
            await passing
        finally:
            go.set()
