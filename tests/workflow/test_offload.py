"""Runs whose inputs, payloads, results and effects are large, and become objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from taquba import ManualClock, Queue
from taquba.errors import CorruptStore, InputMismatch, PayloadMissing, StoreUnavailable
from taquba.objectstore import MemoryStore
from taquba.queue import PAYLOAD_PREFIX, verify_queue
from taquba.workflow import (
    Cancel,
    Continue,
    ErrorKind,
    Outcome,
    RunState,
    RunStatus,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)

from .harness import Process, settle

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
        # What is left is the result, and the job that the effects enqueued.
        assert await objects(store, clock) == 2
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


# -- what steps go on with -------------------------------------------------------------------


class CountingStore(MemoryStore):
    """Counts, and fails, requests for payload objects."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = self.puts = 0
        self.refuse: Callable[[], bool] = lambda: False

    async def get(self, key: str) -> bytes:
        self.gets += key.startswith(PAYLOAD_PREFIX)
        return await super().get(key)

    async def put(self, key: str, data: bytes) -> None:
        if key.startswith(PAYLOAD_PREFIX):
            self.puts += 1
            if self.refuse():
                raise StoreUnavailable("down")
        await super().put(key, data)

    async def objects(self) -> list[str]:
        return [info.key async for info in self.list(PAYLOAD_PREFIX)]


async def test_a_large_payload_is_an_object_and_not_read_when_the_step_goes_on_at_once() -> None:
    store, clock = CountingStore(), ManualClock()
    seen: list[tuple[bytes, int]] = []

    async def runner(step: Step) -> Outcome:
        seen.append((step.payload, store.gets))
        return Continue(LARGE + b"%d" % step.number) if step.number < 5 else Succeed(b"done")

    async with (
        Queue.open(store, clock=clock, offload_payloads_above=64) as queue,
        WorkflowRuntime(queue, runner) as runtime,
    ):
        await runtime.submit(b"small", run_id="r")
        assert (await runtime.wait("r")).outcome.result == b"done"
        await settle(clock)
        assert await store.objects() == []
    assert seen == [(b"small", 0), *((LARGE + b"%d" % number, 0) for number in range(5))]
    assert store.puts == 5


async def test_a_large_payload_of_a_step_that_waits_is_read_when_it_comes() -> None:
    """For a time, for a signal, for a retry, and for another process."""
    store, clock = CountingStore(), ManualClock()
    seen: list[bytes] = []

    async def runner(step: Step) -> Outcome:
        seen.append(step.payload)
        if step.number == 0:
            return Continue(LARGE + b"later", after=60)
        if step.number == 1:
            return Continue(LARGE + b"signal", signal="go")
        if step.attempt == 1:
            raise ConnectionError("busy")
        return Succeed(step.payload + step.signal)  # type: ignore[operator]

    async with (
        Queue.open(store, clock=clock, offload_payloads_above=64) as queue,
        WorkflowRuntime(queue, runner) as runtime,
    ):
        await runtime.submit(b"", run_id="r")
        await clock.advance(59)
        assert len(await store.objects()) == 1
    async with (
        Queue.open(store, clock=clock, offload_payloads_above=64) as queue,
        WorkflowRuntime(queue, runner) as runtime,
    ):
        await clock.advance(1)
        assert len(await store.objects()) == 1
        assert queue.peek("SELECT length(payload) FROM jobs") == [(0,)]
        await runtime.signal("go", b"!")
        await clock.advance(60)
        end = await runtime.wait("r")
        assert end.outcome.result == LARGE + b"signal!"
        await settle(clock)
        assert len(await store.objects()) == 1
    assert seen == [b"", LARGE + b"later", LARGE + b"signal", LARGE + b"signal"]


async def test_many_runs_with_large_payloads_side_by_side() -> None:
    """They are claimed by others than those that made them, too."""
    store, clock = CountingStore(), ManualClock()
    seen: dict[str, list[bytes]] = {}

    async def runner(step: Step) -> Outcome:
        seen.setdefault(step.run_id, []).append(step.payload)
        await asyncio.sleep(0)
        me = f"{step.run_id}/{step.number}".encode()
        large = LARGE if step.number % 2 else b""
        return Continue(large + me) if step.number < 4 else Succeed(LARGE + me)

    async with (
        Queue.open(store, clock=clock, offload_payloads_above=64) as queue,
        WorkflowRuntime(queue, runner, concurrency=3) as runtime,
    ):
        for number in range(12):
            await runtime.submit(b"", run_id=f"r{number}", priority=number % 3)
        for number in range(12):
            name = f"r{number}"
            assert (await runtime.wait(name)).outcome.result == LARGE + f"{name}/4".encode()
            assert seen[name] == [
                b"",
                *((LARGE if n % 2 else b"") + f"{name}/{n}".encode() for n in range(4)),
            ]
        await settle(clock)
        assert len(await store.objects()) == 12


@pytest.mark.parametrize("what", ["payload", "result"])
async def test_a_store_that_fails_while_an_outcome_is_stored(what: str) -> None:
    """STEP-24, STEP-25: the attempt fails; the step is run again, and nothing is left behind."""
    store, clock = CountingStore(), ManualClock()
    attempts = 0

    async def runner(step: Step) -> Outcome:
        nonlocal attempts
        attempts = step.attempt
        if what == "payload" and step.number == 0:
            return Continue(LARGE)
        return Succeed(LARGE)

    store.refuse = lambda: attempts < 3
    async with (
        Queue.open(store, clock=clock, offload_payloads_above=64) as queue,
        WorkflowRuntime(queue, runner) as runtime,
    ):
        await runtime.submit(b"", run_id="r")
        waiting = asyncio.ensure_future(runtime.wait("r"))
        await clock.advance(3600)
        if what == "payload":  # then the last step fails in the same way
            assert attempts == 3
        assert (await waiting).outcome.result == LARGE
        await settle(clock)
        assert len(await store.objects()) == 1

        store.refuse = lambda: True
        await runtime.submit(b"", run_id="r", max_attempts=2)
        waiting = asyncio.ensure_future(runtime.wait("r"))
        await clock.advance(3600)
        end = await waiting
        assert (end.termination.error, end.termination.error_kind) == ("down", ErrorKind.TRANSIENT)
        await settle(clock)
        assert await store.objects() == []


@pytest.mark.parametrize("outcome", [Continue(LARGE), Succeed(LARGE)], ids=["next", "end"])
async def test_a_run_that_is_cancelled_while_its_outcome_is_stored(outcome: Outcome) -> None:
    """The outcome does not count, and its object goes."""
    store, clock = CountingStore(), ManualClock()
    storing, go = asyncio.Event(), asyncio.Event()

    class Slow(CountingStore):
        async def put(self, key: str, data: bytes) -> None:
            if key.startswith(PAYLOAD_PREFIX):
                storing.set()
                await go.wait()
            await super().put(key, data)

    async def runner(step: Step) -> Outcome:
        return outcome

    store = Slow()
    async with (
        Queue.open(store, clock=clock, offload_payloads_above=64) as queue,
        WorkflowRuntime(queue, runner) as runtime,
    ):
        await runtime.submit(b"", run_id="r")
        await storing.wait()
        assert await runtime.cancel("r")
        go.set()
        end = await runtime.wait("r")
        assert (end.termination.status, end.outcome.result) == (TerminalStatus.CANCELLED, None)
        await settle(clock)
        await settle(clock)
        assert await store.objects() == []


async def test_wrong_outcomes_leave_no_object() -> None:
    store, clock = CountingStore(), ManualClock()
    wrong: list[Any] = [
        Continue(LARGE, after=-1),
        Continue(LARGE, timeout=5),
        Continue(LARGE, after=5, signal="s"),
        Continue(LARGE, signal=5),  # type: ignore[arg-type]
        Continue(5),  # type: ignore[arg-type]
        Succeed("text" * 100),  # type: ignore[arg-type]
        Continue(bytes(16 * 1024 * 1024 + 1)),
        Succeed(bytes(16 * 1024 * 1024 + 1)),
        Cancel(5),  # type: ignore[arg-type]
    ]

    async def runner(step: Step) -> Outcome:
        return wrong[int(step.run_id)]  # type: ignore[no-any-return]

    async with (
        Queue.open(store, clock=clock, offload_payloads_above=64) as queue,
        WorkflowRuntime(queue, runner) as runtime,
    ):
        for number in range(len(wrong)):
            await runtime.submit(b"", run_id=str(number))
            end = await runtime.wait(str(number))
            assert end.termination.error_kind is ErrorKind.PERMANENT, wrong[number]
        await settle(clock)
        assert await store.objects() == []


# -- results ---------------------------------------------------------------------------------


async def test_a_large_result_is_an_object_as_long_as_the_run_is_known() -> None:
    store, clock = CountingStore(), ManualClock()

    async def runner(step: Step) -> Outcome:
        return Succeed(LARGE + step.payload)

    async with (
        Queue.open(store, clock=clock, offload_payloads_above=64) as queue,
        WorkflowRuntime(queue, runner) as runtime,
    ):
        await runtime.submit(b"1", run_id="r")
        assert (await runtime.wait("r")).outcome.result == LARGE + b"1"
        assert store.gets == 0, "who waited gets it without a request"
        assert queue.peek("SELECT result FROM runs") == [(None,)]
    async with (
        Queue.open(store, clock=clock) as queue,
        WorkflowRuntime(queue, runner) as runtime,
    ):
        for number in range(1, 3):
            outcome = await runtime.outcome("r")
            assert outcome is not None and outcome.result == LARGE + b"1"
            assert (await runtime.wait("r")).outcome == outcome
            assert store.gets == 2 * number
        [first] = await store.objects()
        status = await runtime.status("r")
        assert status is not None and status.termination is not None
        assert store.gets == 4, "a status needs none"
        report = await verify_queue(store, clock=clock, read_payloads=True)
        assert report.clean and report.survey.others.count == 1
        # A new life begins: the old result goes. This one is small enough to be a part of it.
        await runtime.submit(b"2", run_id="r")
        assert (await runtime.wait("r")).outcome.result == LARGE + b"2"
        await settle(clock)
        assert first not in await store.objects()
        assert await store.objects() == []


async def test_a_lost_result() -> None:
    """The run is known to have succeeded; who asks for the result is told that it is lost."""
    store, clock = CountingStore(), ManualClock()

    async def runner(step: Step) -> Outcome:
        return Succeed(LARGE)

    async with (
        Queue.open(store, clock=clock, offload_payloads_above=64) as queue,
        WorkflowRuntime(queue, runner) as runtime,
    ):
        await runtime.submit(b"", run_id="r")
        await runtime.wait("r")
        [key] = await store.objects()
        data = await MemoryStore.get(store, key)
        await store.put(key, data[:-1] + b"?")
        for call in (runtime.outcome, runtime.wait):
            with pytest.raises(CorruptStore, match="result of the run is lost"):
                await call("r")
        [finding] = (await verify_queue(store, clock=clock, read_payloads=True)).findings
        assert finding.key == key
        await store.delete([key])
        for call in (runtime.outcome, runtime.wait):
            with pytest.raises(PayloadMissing, match="result of the run is lost"):
                await call("r")
        [finding] = (await verify_queue(store, clock=clock)).findings
        assert "'runs' needs it" in finding.reason
        status = await runtime.status("r")
        assert status is not None and status.termination is not None
        assert status.termination.status is TerminalStatus.SUCCEEDED


async def test_a_result_that_goes_while_it_is_read() -> None:
    """A new life began: the caller is told of that."""
    store, clock = CountingStore(), ManualClock()

    async def runner(step: Step) -> Outcome:
        if step.payload == b"blocks":
            await go.wait()
        return Succeed(LARGE + step.payload)

    go = asyncio.Event()

    async with (
        Queue.open(store, clock=clock, offload_payloads_above=64) as queue,
        WorkflowRuntime(queue, runner) as runtime,
    ):
        fetch = queue.fetch_value
        replacement = b""

        async def slow(ref: str) -> bytes:
            queue.fetch_value = fetch  # type: ignore[method-assign]
            await runtime.submit(replacement, run_id="r")
            await settle(clock)
            return await fetch(ref)

        await runtime.submit(b"1", run_id="r")
        await runtime.wait("r")
        queue.fetch_value, replacement = slow, b"2"  # type: ignore[method-assign]
        outcome = await runtime.outcome("r")
        assert outcome is not None and outcome.result == LARGE + b"2"
        queue.fetch_value, replacement = slow, b"3"  # type: ignore[method-assign]
        assert (await runtime.wait("r")).outcome.result == LARGE + b"3"
        queue.fetch_value, replacement = slow, b"blocks"  # type: ignore[method-assign]
        assert await runtime.outcome("r") is None
        go.set()


async def test_without_offloading_everything_is_part_of_the_state() -> None:
    store, clock = CountingStore(), ManualClock()

    async def runner(step: Step) -> Outcome:
        return Continue(LARGE * 1000) if step.number == 0 else Succeed(step.payload)

    async with (
        Queue.open(store, clock=clock, offload_payloads_above=None) as queue,
        WorkflowRuntime(queue, runner) as runtime,
    ):
        await runtime.submit(b"", run_id="r")
        assert (await runtime.wait("r")).outcome.result == LARGE * 1000
    assert store.puts == 0


async def test_the_hook_is_told_of_a_large_result() -> None:
    store, clock = CountingStore(), ManualClock()
    told: list[Any] = []

    async def hook(outcome: Any, effects: Any) -> None:
        told.append(outcome.result)

    async def runner(step: Step) -> Outcome:
        return Succeed(LARGE)

    async with (
        Queue.open(store, clock=clock, offload_payloads_above=64) as queue,
        WorkflowRuntime(queue, runner, terminal_hook=hook) as runtime,
    ):
        await runtime.submit(b"", run_id="r")
        await runtime.wait("r")
        await settle(clock)
        assert told == [LARGE]
        assert len(await store.objects()) == 1


# -- crashes ---------------------------------------------------------------------------------


async def test_dying_after_every_number_of_objects() -> None:
    """WRK-11: each step has the payload it should have, and the run its result; nothing is left."""
    interrupted = 0
    for die_after in range(1, 60):
        store, clock = MemoryStore(), ManualClock()
        wrong: list[Any] = []

        async def runner(step: Step, wrong: list[Any] = wrong) -> Outcome:
            expected = LARGE + b"%d" % (step.number - 1) if step.number else LARGE
            if step.payload != expected:
                wrong.append((step.number, step.payload))
            step.effects.enqueue("log", LARGE + b"%d" % step.number)
            me = LARGE + b"%d" % step.number
            if step.number == 1:
                return Continue(me, after=5)
            return Continue(me) if step.number < 3 else Succeed(me)

        ends: list[bytes | None] = []
        for limit in (die_after, None):
            process = Process(
                store,
                runner,
                clock,
                die_after=limit,
                queue_options={"offload_payloads_above": 64},
            )
            dead = asyncio.ensure_future(process.store.dead.wait())
            driving = asyncio.ensure_future(_drive(process, ends))
            for _ in range(100):
                await settle(clock)
                if driving.done() or dead.done():
                    break
                await clock.advance(1)
            if dead.done():
                interrupted += 1
                driving.cancel()
                await asyncio.gather(driving, return_exceptions=True)
                await process.kill()
                continue
            await driving
            await settle(clock)
            await process.leave()
            dead.cancel()
            break
        else:
            raise AssertionError("the last process died")
        assert wrong == [] and set(ends) == {LARGE + b"3"}
        report = await verify_queue(store, clock=clock, read_payloads=True)
        assert report.clean and report.survey.others.count == 5, "four effects and the result"
        async with Queue.open(store, clock=clock) as queue:
            await collected(queue, clock)
            told = [claim.job.payload for claim in await queue.claim_many("log", 10)]
            assert sorted(told) == [LARGE + b"%d" % number for number in range(4)]
        assert len([info async for info in store.list(PAYLOAD_PREFIX)]) == 5
        if not process.store.dead.is_set() and limit == die_after:
            break
    assert interrupted > 10


async def _drive(process: Process, ends: list[bytes | None]) -> None:
    if await process.opened():
        if await process.runtime.status("r") is None:
            await process.runtime.submit(LARGE, run_id="r", max_attempts=9)
        ends.append((await process.runtime.wait("r")).outcome.result)


async def collected(queue: Queue, clock: ManualClock, days: int = 4) -> None:
    """Checkpoints and collections over some days."""
    database = queue._core.database
    for number in range(2 * days):
        await queue.kv.put("k", b"%d" % number)
        await database.checkpoint()
        await database.collect()
        await clock.advance(86400 / 2)
