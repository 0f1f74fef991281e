"""Runs whose inputs, and whose steps' effects, have payloads that become objects."""

from __future__ import annotations

import pytest

from taquba import ManualClock, Queue
from taquba.errors import InputMismatch
from taquba.objectstore import MemoryStore
from taquba.queue import PAYLOAD_PREFIX
from taquba.workflow import Continue, Step, Succeed, TerminalStatus, WorkflowRuntime

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
