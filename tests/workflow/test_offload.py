"""Runs whose inputs, and whose steps' effects, have payloads that become objects."""

from __future__ import annotations

import pytest

from taquba import ManualClock, Queue
from taquba.errors import InputMismatch
from taquba.objectstore import MemoryStore
from taquba.queue import PAYLOAD_PREFIX
from taquba.workflow import (
    Continue,
    RunState,
    RunStatus,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)

pytestmark = pytest.mark.anyio

LARGE = bytes(range(256)) * 4


async def objects(store: MemoryStore, clock: ManualClock) -> int:
    await clock.advance(0)
    await clock.advance(0)
    return len([info async for info in store.list(PAYLOAD_PREFIX)])


async def test_a_large_input_and_large_effects_are_objects_for_a_while() -> None:
    store, clock = MemoryStore(), ManualClock()
    seen: list[bytes] = []

    async def step(step: Step) -> Continue | Succeed:
        seen.append(step.payload)
        if step.number == 0:
            step.effects.enqueue("other", LARGE + b"effect")
            return Continue(LARGE + b"next")
        return Succeed(step.payload)

    async with Queue.open(store, clock=clock, offload_payloads_above=64) as queue:
        async with WorkflowRuntime(queue, step) as runtime:
            submitted = await runtime.submit(LARGE, run_id="r")
            end = await runtime.wait(submitted.run_id)
            assert end.termination.status is TerminalStatus.SUCCEEDED
        assert seen == [LARGE, LARGE + b"next"]
        # What is left is the job that the effects enqueued.
        assert await objects(store, clock) == 1
        claim = await queue.claim("other")
        assert claim is not None and claim.job.payload == LARGE + b"effect"


async def test_a_large_input_that_is_gone() -> None:
    """SUB-33: the run can still be asked for, and fails when it would be run."""
    store, clock = MemoryStore(), ManualClock()

    async def never(step: Step) -> Succeed:
        raise AssertionError("there is nothing to give to it")

    async with Queue.open(store, clock=clock, offload_payloads_above=64) as queue:
        async with WorkflowRuntime(queue, None) as runtime:
            await runtime.submit(LARGE, run_id="r")
            await store.delete([info.key async for info in store.list(PAYLOAD_PREFIX)])
            assert await runtime.status("r") == RunStatus("r", RunState.PENDING, 0)
            assert not (await runtime.submit(LARGE, run_id="r")).created
        async with WorkflowRuntime(queue, never) as runtime:
            end = await runtime.wait("r")
            assert end.termination.status is TerminalStatus.FAILED
            assert end.termination.error is not None and "gone" in end.termination.error


async def test_a_large_input_that_is_not_taken_leaves_no_object() -> None:
    store, clock = MemoryStore(), ManualClock()

    async with (
        Queue.open(store, clock=clock, offload_payloads_above=64) as queue,
        WorkflowRuntime(queue, None) as runtime,
    ):
        await runtime.submit(LARGE, run_id="r")
        assert await objects(store, clock) == 1
        assert not (await runtime.submit(LARGE, run_id="r")).created
        with pytest.raises(InputMismatch):
            await runtime.submit(LARGE + b"!", run_id="r")
        assert await objects(store, clock) == 1
