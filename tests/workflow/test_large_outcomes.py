"""What a runner returns or raises is bounded, in whatever form it comes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taquba.errors import ClaimLost, PermanentError
from taquba.queue import MAX_ERROR_LENGTH
from taquba.workflow import Cancel, Continue, Fail, Outcome, RunOutcome, Step, Succeed

from .harness import bed

pytestmark = pytest.mark.anyio

LONG = 1_000_000


def raised(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize(
    "outcome",
    [
        lambda: Fail("é" * LONG),
        lambda: Cancel("x" * LONG),
        lambda: raised(PermanentError("x" * LONG)),
        lambda: raised(ValueError("x" * LONG)),
        lambda: raised(ExceptionGroup("x" * LONG, [ValueError("y" * LONG)])),
    ],
    ids=["fail", "cancel", "permanent", "transient", "group"],
)
async def test_long_errors_are_cut(outcome: Any) -> None:
    """A long text would be in the state, in the log and in the hook's notification."""
    told: list[RunOutcome] = []

    async def runner(step: Step) -> Any:
        return outcome()

    async def hook(outcome: RunOutcome, effects: object) -> None:
        told.append(outcome)

    async with bed(runner, terminal_hook=hook) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        end = await t.end("r")
        await t.settle()
        assert end.outcome.error is not None
        assert MAX_ERROR_LENGTH < len(end.outcome.error) < MAX_ERROR_LENGTH + 50
        assert end.outcome.error.endswith("characters more)")
        assert [each.error == end.outcome.error for each in told] == [True]


@pytest.mark.parametrize("length", [MAX_ERROR_LENGTH, MAX_ERROR_LENGTH + 1])
async def test_errors_at_their_edge(length: int) -> None:
    async def runner(step: Step) -> Fail:
        return Fail("x" * length)

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        error = (await t.end("r")).outcome.error
        assert (error == "x" * length) is (length == MAX_ERROR_LENGTH)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_large_bytes_of_any_kind_are_objects(kind: Any) -> None:
    """Neither what a step goes on with, nor the result, nor what tells of it is in the state."""
    data = bytes(300_000)
    told: list[int] = []
    rows: list[Any] = []

    async def runner(step: Step) -> Any:
        return Succeed(kind(data)) if step.number else Continue(kind(data))

    async def hook(outcome: RunOutcome, effects: object) -> None:
        told.append(len(outcome.result or b""))
        rows.extend(t.queue.peek("SELECT length(payload), payload_ref IS NULL FROM jobs"))

    async with bed(runner, terminal_hook=hook) as t:
        await t.runtime.submit(b"", run_id="r")
        end = await t.end("r")
        await t.settle()
        assert len(end.outcome.result or b"") == len(data)
        assert t.queue.peek("SELECT result IS NULL, result_ref IS NULL FROM runs") == [(1, 0)]
        assert told == [len(data)]
        assert rows == [(0, 0)] or rows == [(None, 0)]


@pytest.mark.parametrize("size", [10, 100_000])
async def test_nothing_is_memoized_while_the_outcome_is_stored(size: int) -> None:
    """A step has returned when its runner has, not only when that is settled."""
    returned = asyncio.Event()
    stored: list[str] = []

    async def store_late(step: Step) -> None:
        await returned.wait()
        for memo in (step.memo, step.run_memo):
            try:
                await memo.put("k", bytes(size))
            except ClaimLost:
                stored.append("refused")
            else:
                stored.append("stored")

    tasks: list[asyncio.Task[None]] = []

    async def runner(step: Step) -> Outcome:
        if step.number:
            return Succeed(await step.run_memo.get("k"))
        tasks.append(asyncio.ensure_future(store_late(step)))
        _ = step.run_memo
        t.store.hold()
        return Continue(bytes(300_000))

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        returned.set()
        await t.settle()
        t.store.release()
        end = await t.end("r")
        await asyncio.gather(*tasks)
        assert stored == ["refused", "refused"]
        assert end.outcome.result is None
