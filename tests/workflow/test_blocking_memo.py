"""Memo in a runner that is an ordinary function, that is, in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import BaseModel

from taquba import TransientError
from taquba.errors import (
    ClaimLost,
    Closed,
    EffectsSealed,
    InvalidState,
    InvalidType,
    SerializationError,
)
from taquba.workflow import (
    BlockingStep,
    Continue,
    ErrorKind,
    Outcome,
    Succeed,
    TerminalStatus,
)

from .harness import bed

pytestmark = pytest.mark.anyio


class Page(BaseModel):
    url: str


async def test_all_of_memo_in_a_thread() -> None:
    """MEM-01, MEM-02, MEM-06, MEM-10, MEM-17: as in a coroutine."""
    calls: list[str] = []

    def compute(value: Any) -> Any:
        calls.append(threading.current_thread().name)
        return value

    def runner(step: BlockingStep) -> Outcome:
        memo = step.memo
        assert memo.get("k") is None
        memo.put("k", b"one")
        memo.put("k", b"two")
        assert memo.get("k") == b"two"
        for _ in range(2):
            assert memo.memoized("m", lambda: compute((1, 2))) == [1, 2]
            assert memo.memoized("t", lambda: compute(Page(url="u")), Page) == Page(url="u")
            assert memo.memoized("b", lambda: compute(b"\xff"), bytes) == b"\xff"
            assert memo.memoized_by_content("hello", lambda: compute(3)) == 3
        assert len(calls) == 4 * (step.number + 1)
        assert set(calls[-4:]) == {threading.current_thread().name}, "in the runner's own thread"
        if step.number == 0:
            step.run_memo.put("run", b"kept")
            return Continue()
        assert step.run_memo.get("run") == b"kept"
        return Succeed(b"ok")

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        end = await t.runtime.wait("r")
        assert end.termination.error is None
        assert end.outcome.result == b"ok"


async def test_a_retry_finds_what_was_stored() -> None:
    """MEM-16"""
    calls = 0

    def compute() -> int:
        nonlocal calls
        calls += 1
        return calls

    failed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def runner(step: BlockingStep) -> Outcome:
        value = step.memo.memoized("k", compute)
        if step.attempt == 1:
            loop.call_soon_threadsafe(failed.set)
            raise TransientError("busy")
        return Succeed(b"%d" % value)

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        await failed.wait()
        waiting = asyncio.ensure_future(t.runtime.wait("r"))
        while (await t.queue.stats("workflow-steps")).scheduled == 0:
            await asyncio.sleep(0)
        await t.clock.advance(1)
        assert (await waiting).outcome.result == b"1"
    assert calls == 1


async def test_wrong_use() -> None:
    """MEM-07, MEM-08, MEM-09, MEM-11; and async functions are refused, and closed."""

    async def compute() -> int:
        return 1

    def fails() -> int:
        raise ZeroDivisionError

    def runner(step: BlockingStep) -> Outcome:
        memo: Any = step.memo
        with pytest.raises(InvalidType, match="async"):
            memo.memoized("k", compute)
        with pytest.raises(InvalidType, match="callable"):
            memo.memoized("k", 5)
        with pytest.raises(InvalidType, match="callable"):
            memo.memoized("k", compute())
        with pytest.raises(InvalidType, match="key"):
            memo.get(5)
        with pytest.raises(InvalidType, match="bytes"):
            memo.put("k", "text")
        with pytest.raises(SerializationError):
            memo.memoized("k", object)
        with pytest.raises(SerializationError):
            memo.memoized_by_content(object(), lambda: 1)
        with pytest.raises(ZeroDivisionError):
            memo.memoized("k", fails)
        assert memo.get("k") is None
        memo.put("k", b"\xc1")
        assert memo.memoized("k", lambda: 7) == 7
        return Succeed(b"ok")

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        end = await t.runtime.wait("r")
        assert end.termination.error is None
        assert end.outcome.result == b"ok"
    gc.collect()


async def test_a_value_is_durable_when_the_call_returns() -> None:
    """6: the thread stands still until the write is stored."""
    put, stored = threading.Event(), threading.Event()

    def runner(step: BlockingStep) -> Outcome:
        put.wait(20)
        step.memo.put("k", b"v")
        stored.set()
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        t.store.hold()
        put.set()
        while not t.queue.peek("SELECT 1 FROM memos"):
            await asyncio.sleep(0)
        await t.clock.advance(1)
        assert not stored.is_set()
        t.store.release()
        await t.runtime.wait("r")
        assert stored.is_set()


async def test_a_thread_whose_step_was_cancelled() -> None:
    """A thread cannot be stopped, but what it still stores is refused, and it is told why."""
    entered, go, over = threading.Event(), threading.Event(), threading.Event()
    told: list[Any] = []

    def attempt(call: Any) -> None:
        try:
            told.append(call())
        except BaseException as error:
            told.append(error)

    def runner(step: BlockingStep) -> Outcome:
        if step.attempt == 2:
            return Succeed(b"in time")
        step.memo.put("early", b"1")
        entered.set()
        go.wait(20)
        attempt(lambda: step.memo.put("k", b"late"))
        attempt(lambda: step.memo.memoized("k", lambda: 1))
        attempt(lambda: step.run_memo.put("k", b"late"))
        attempt(lambda: step.lease.ensure_at_least(10))
        attempt(lambda: step.effects.put("k", b"late"))
        over.set()
        return Succeed(b"late")

    async with bed(runner, renew=None) as t:
        await t.runtime.submit(b"", run_id="r")
        await asyncio.to_thread(entered.wait, 20)
        await t.clock.advance(31)
        assert (await t.runtime.wait("r")).outcome.result == b"in time"
        go.set()
        await asyncio.to_thread(over.wait, 20)
        assert [type(x) for x in told] == [ClaimLost] * 4 + [EffectsSealed], told
        assert t.queue.peek("SELECT * FROM memos") == []


async def test_a_thread_that_is_left_behind_by_the_runtime() -> None:
    """The block was left by an exception: the thread's late calls fail, and nothing hangs."""
    entered, go, over = threading.Event(), threading.Event(), threading.Event()
    told: list[BaseException] = []

    def runner(step: BlockingStep) -> Outcome:
        entered.set()
        go.wait(20)
        try:
            step.memo.put("k", b"late")
        except BaseException as error:
            told.append(error)
        over.set()
        return Succeed()

    with pytest.raises(ZeroDivisionError):
        async with bed(runner) as t:
            await t.runtime.submit(b"", run_id="r")
            await asyncio.to_thread(entered.wait, 20)
            raise ZeroDivisionError
    go.set()
    await asyncio.to_thread(over.wait, 20)
    assert [type(error) for error in told] == [Closed], told


async def test_a_step_that_spreads_its_work_over_threads_of_its_own() -> None:
    """The usual way to do several blocking calls at once; each key is computed once."""
    calls: list[int] = []

    def compute(number: int) -> int:
        calls.append(number)
        return number * number

    def runner(step: BlockingStep) -> Outcome:
        def section(number: int) -> int:
            return step.memo.memoized(f"section {number % 5}", lambda: compute(number % 5))

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(section, range(40))) == [(n % 5) ** 2 for n in range(40)]
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        end = await t.runtime.wait("r")
        assert end.termination.error is None
    assert sorted(calls) == list(range(5))


async def test_blocking_memo_from_the_event_loop_is_refused() -> None:
    """It would wait for itself, for ever."""
    kept: list[BlockingStep] = []
    leave = threading.Event()

    def runner(step: BlockingStep) -> Outcome:
        kept.append(step)
        leave.wait(20)
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        while not kept:
            await asyncio.sleep(0)
        try:
            with pytest.raises(InvalidState, match="event loop"):
                kept[0].memo.get("k")
        finally:
            leave.set()


async def test_context_variables_reach_the_thread() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []

    def runner(step: BlockingStep) -> Outcome:
        seen.append(variable.get())
        return Succeed()

    variable.set("outer")
    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.runtime.wait("r")
    assert seen == ["outer"]


async def test_an_error_of_a_memo_in_a_thread_is_classified() -> None:
    """As in a coroutine: what cannot be encoded stays so."""

    def runner(step: BlockingStep) -> Outcome:
        step.memo.memoized("k", object)
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        end = await t.runtime.wait("r")
        assert end.termination.status is TerminalStatus.FAILED
        assert end.termination.error_kind is ErrorKind.PERMANENT


def test_a_thread_that_outlives_the_event_loop() -> None:
    """It is told, whether it asks before or after the end of the loop; the process can end."""
    entered, go, over = threading.Event(), threading.Event(), threading.Event()
    told: list[BaseException] = []

    def runner(step: BlockingStep) -> Outcome:
        entered.set()
        go.wait(20)
        try:
            step.memo.put("k", b"late")
        except BaseException as error:
            told.append(error)
        over.set()
        return Succeed()

    async def main() -> None:
        async with bed(runner) as t:
            await t.runtime.submit(b"", run_id="r")
            await asyncio.to_thread(entered.wait, 20)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    go.set()
    assert over.wait(20)
    assert [type(error) for error in told] == [Closed]
    gc.collect()
