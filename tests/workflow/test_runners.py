"""The kinds of runner, and what may be wrong with one or with what it returns."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from typing import Any

import pytest

from taquba import PermanentError, Queue
from taquba.errors import InvalidType
from taquba.workflow import (
    BlockingStep,
    Cancel,
    Continue,
    ErrorKind,
    Fail,
    Outcome,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)

from .harness import bed

pytestmark = pytest.mark.anyio


async def async_function(step: Step) -> Outcome:
    assert isinstance(step, Step)
    await asyncio.sleep(0)
    return Succeed(step.payload)


def blocking_function(step: BlockingStep) -> Outcome:
    assert isinstance(step, BlockingStep)
    assert threading.current_thread() is not threading.main_thread()
    return Succeed(step.payload)


class AsyncObject:
    async def run_step(self, step: Step) -> Outcome:
        return await async_function(step)


class BlockingObject:
    def run_step(self, step: BlockingStep) -> Outcome:
        return blocking_function(step)


class StaticObject:
    @staticmethod
    async def run_step(step: Step) -> Outcome:
        return await async_function(step)


class AsyncCallable:
    async def __call__(self, step: Step) -> Outcome:
        return await async_function(step)


class BlockingCallable:
    def __call__(self, step: BlockingStep) -> Outcome:
        return blocking_function(step)


class Methods:
    async def go(self, step: Step) -> Outcome:
        return await async_function(step)

    def go_blocking(self, step: BlockingStep) -> Outcome:
        return blocking_function(step)


async def with_option(step: Step, option: str) -> Outcome:
    assert option == "o"
    return await async_function(step)


def with_option_blocking(option: str, step: BlockingStep) -> Outcome:
    assert option == "o"
    return blocking_function(step)


RUNNERS = {
    "async function": async_function,
    "blocking function": blocking_function,
    "lambda": lambda step: blocking_function(step),
    "async object": AsyncObject(),
    "blocking object": BlockingObject(),
    "static method": StaticObject(),
    "async callable": AsyncCallable(),
    "blocking callable": BlockingCallable(),
    "async method": Methods().go,
    "blocking method": Methods().go_blocking,
    "async partial": functools.partial(with_option, option="o"),
    "blocking partial": functools.partial(with_option_blocking, "o"),
    "partial of a partial": functools.partial(functools.partial(with_option, option="o")),
    "partial of a callable": functools.partial(AsyncCallable()),
}


async def wait_in_threads(t: Any, run_id: str) -> Any:
    """The clock does not know of threads: wait for them, not for it."""
    return await t.runtime.wait(run_id)


@pytest.mark.parametrize("kind", RUNNERS)
async def test_kinds_of_runner(kind: str) -> None:
    async with bed(RUNNERS[kind]) as t:
        await t.runtime.submit(b"in", run_id="r")
        assert (await t.runtime.wait("r")).outcome.result == b"in"


@pytest.mark.parametrize(
    "runner",
    [
        AsyncObject,
        Methods,
        AsyncCallable,
        Step,
        5,
        "runner",
        b"",
        object(),
        [async_function],
        type("Odd", (), {"run_step": 5})(),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_is_no_runner(runner: Any) -> None:
    with pytest.raises(InvalidType, match="runner is"):
        async with bed(runner):
            raise AssertionError("not reached")


async def test_a_runner_that_was_called_too_early() -> None:
    """The forgotten coroutine is named and closed; no warning follows."""
    with pytest.raises(InvalidType, match="give an async function"):
        async with bed(async_function(None)):  # type: ignore[arg-type]
            raise AssertionError("not reached")
    gc.collect()


async def test_a_step_as_both_kinds_see_it() -> None:
    seen: list[dict[str, Any]] = []

    def look(step: Any) -> Outcome:
        seen.append(
            {
                "run_id": step.run_id,
                "number": step.number,
                "payload": step.payload,
                "headers": step.headers,
                "attempt": step.attempt,
                "max_attempts": step.max_attempts,
                "is_last_attempt": step.is_last_attempt,
                "cancelled": step.cancel_token.is_cancelled,
                "repr": repr(step).partition("(")[2],
            }
        )
        return Succeed()

    async def look_async(step: Step) -> Outcome:
        return look(step)

    for runner in (look, look_async):
        async with bed(runner) as t:
            await t.runtime.submit(b"in", run_id="r", headers={"a": "b"}, max_attempts=1)
            await t.runtime.wait("r")
    assert seen[0] == seen[1]
    assert seen[0] == {
        "run_id": "r",
        "number": 0,
        "payload": b"in",
        "headers": {"a": "b"},
        "attempt": 1,
        "max_attempts": 1,
        "is_last_attempt": True,
        "cancelled": False,
        "repr": "run_id='r', number=0, attempt=1/1)",
    }


# -- wrong returns ---------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, str]] = {
    "None": (None, "'return' missing"),
    "str": ("done", "Succeed"),
    "bytes": (b"done", "Succeed"),
    "class": (Succeed, r"Succeed\(…\)"),
    "other class": (int, "instance"),
    "tuple": ((Succeed(),), "wrap it"),
    "exception": (ValueError("x"), "wrap it"),
    "True": (True, "wrap it"),
    "payload str": (Continue("next"), "payload of Continue must be bytes, not str"),  # type: ignore[arg-type]
    "payload None": (Continue(None), "payload of Continue must be bytes"),  # type: ignore[arg-type]
    "result str": (Succeed("out"), "result of Succeed must be bytes, not str"),  # type: ignore[arg-type]
    "result int": (Succeed(7), "must be bytes, not int"),  # type: ignore[arg-type]
    "reason None": (Fail(None), "reason must be a str"),  # type: ignore[arg-type]
    "reason bytes": (Cancel(b"x"), "reason must be a str"),  # type: ignore[arg-type]
    "after str": (Continue(after="5"), "after"),  # type: ignore[arg-type]
    "after negative": (Continue(after=-1), "after is -1"),
    "after nan": (Continue(after=float("nan")), "after is nan"),
    "after bool": (Continue(after=True), "after is True"),
    "payload too large": (Continue(bytes(16 * 1024 * 1024 + 1)), "16,777,217"),
    "result too large": (Succeed(bytes(16 * 1024 * 1024 + 1)), "16,777,217"),
}


async def test_a_runner_that_yields() -> None:
    """It is told what to write, whether it is async or not."""

    async def yields(step: Step) -> Any:
        yield Succeed()

    def yields_in_a_thread(step: BlockingStep) -> Any:
        yield Succeed()

    runners: list[Any] = [yields, yields_in_a_thread]
    for runner in runners:
        async with bed(runner) as t:
            await t.runtime.submit(b"", run_id="r")
            end = await t.runtime.wait("r")
            assert "'return' instead of 'yield'" in str(end.termination.error)


async def test_a_runner_that_cannot_take_a_step_alone() -> None:
    """It is refused when the runtime is made, not at every attempt of every step."""

    async def none() -> Outcome:
        return Succeed()

    def none_in_a_thread() -> Outcome:
        return Succeed()

    async def two(step: Step, clients: object) -> Outcome:
        return Succeed()

    async def keyword(step: Step, *, clients: object) -> Outcome:
        return Succeed()

    class Runs:
        async def run_step(self) -> Outcome:
            return Succeed()

    wrong: list[Any] = [none, none_in_a_thread, two, keyword, lambda: Succeed(), Runs()]
    async with Queue.open("memory://") as queue:
        for runner in wrong:
            with pytest.raises(InvalidType, match="called with one argument, the step"):
                WorkflowRuntime(queue, runner)
        WorkflowRuntime(queue, functools.partial(two, clients=1))  # takes a step
        WorkflowRuntime(queue, lambda *steps: Succeed())


async def test_what_was_submitted_is_no_run_id() -> None:
    async with bed(succeed) as t:
        run = await t.runtime.submit(b"")
        with pytest.raises(InvalidType, match=r"a run id must be a str.*pass its \.run_id"):
            await t.runtime.wait(run)  # type: ignore[arg-type]


async def succeed(step: Step) -> Outcome:
    return Succeed()


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("name", WRONG)
async def test_wrong_returns(name: str, blocking: bool) -> None:
    """The run fails for good, with a reason that says what is wrong; nothing else is written."""
    value, message = WRONG[name]
    calls = 0

    def runner(step: BlockingStep) -> Any:
        nonlocal calls
        calls += 1
        step.effects.put("k", b"v")
        return value

    async def async_runner(step: Step) -> Any:
        return runner(step)  # type: ignore[arg-type]

    async with bed(runner if blocking else async_runner) as t:
        await t.runtime.submit(b"", run_id="r")
        end = await t.runtime.wait("r")
        assert calls == 1
        assert end.termination.status is TerminalStatus.FAILED
        assert end.termination.error_kind is ErrorKind.PERMANENT
        assert end.termination.error is not None
        import re

        assert re.search(message, end.termination.error), end.termination.error
        assert await t.queue.kv.get("k") is None
        assert len(end.termination.error) < 1000


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("where", ["outcome", "payload", "result"])
async def test_forgotten_coroutines(where: str, blocking: bool) -> None:
    """Named, and closed: no 'never awaited' warning follows."""

    async def call() -> Any:
        return b""

    def runner(step: Any) -> Any:
        match where:
            case "outcome":
                return call()
            case "payload":
                return Continue(call())  # type: ignore[arg-type]
            case _:
                return Succeed(call())  # type: ignore[arg-type]

    async def async_runner(step: Step) -> Any:
        return runner(step)

    async with bed(runner if blocking else async_runner) as t:
        await t.runtime.submit(b"", run_id="r")
        end = await t.runtime.wait("r")
        assert end.termination.error_kind is ErrorKind.PERMANENT
        assert end.termination.error is not None
        assert "await" in end.termination.error
    gc.collect()


async def test_the_largest_payload_and_result() -> None:
    """16 MiB to the byte."""
    big = bytes(16 * 1024 * 1024)

    async def runner(step: Step) -> Outcome:
        assert len(step.payload) == (0 if step.number == 0 else len(big))
        return Continue(big) if step.number == 0 else Succeed(big)

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        assert (await t.end("r")).outcome.result == big


@pytest.mark.parametrize("value", [bytearray(b"x"), memoryview(b"x")])
async def test_other_bytes_are_copied(value: Any) -> None:
    async def runner(step: Step) -> Outcome:
        return Continue(value) if step.number == 0 else Succeed(value)

    async with bed(runner) as t:
        await t.runtime.submit(value, run_id="r")
        assert (await t.end("r")).outcome.result == b"x"


async def test_subclasses_of_outcomes() -> None:
    class Mine(Succeed):
        pass

    async def runner(step: Step) -> Outcome:
        return Mine(b"x")

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        assert (await t.end("r")).outcome.result == b"x"


async def test_errors_of_a_blocking_runner() -> None:
    def runner(step: BlockingStep) -> Outcome:
        match step.payload:
            case b"permanent":
                raise PermanentError("p")
            case b"stop":
                raise StopIteration
            case _:
                raise ValueError("t")

    async with bed(runner) as t:
        kinds: dict[bytes, Any] = {}
        for payload in (b"permanent", b"stop", b"other"):
            run = await t.runtime.submit(payload, max_attempts=1)
            kinds[payload] = (await t.runtime.wait(run.run_id)).termination.error_kind
        assert kinds == {
            b"permanent": ErrorKind.PERMANENT,
            b"stop": ErrorKind.TRANSIENT,
            b"other": ErrorKind.TRANSIENT,
        }


async def test_blocking_steps_run_side_by_side() -> None:
    """As many threads as `concurrency` says, whatever anyio's own limit is."""
    together = threading.Barrier(60, timeout=30)

    def runner(step: BlockingStep) -> Outcome:
        together.wait()
        return Succeed()

    async with bed(runner, concurrency=60) as t:
        runs = [await t.runtime.submit(b"") for _ in range(60)]
        for run in runs:
            end = await t.runtime.wait(run.run_id)
            assert end.termination.status is TerminalStatus.SUCCEEDED
