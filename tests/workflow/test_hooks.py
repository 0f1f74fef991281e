"""The terminal hook: who is told of the end of a run, when, and how often."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from taquba import Effects, ManualClock, PermanentError, Queue, QueueConfig, TransientError
from taquba.errors import EffectsSealed, InvalidArgument, InvalidQueueName, InvalidType
from taquba.objectstore import MemoryStore
from taquba.queue import PAYLOAD_PREFIX, JobState
from taquba.workflow import (
    Cancel,
    Continue,
    ErrorKind,
    Fail,
    Outcome,
    RunOutcome,
    Step,
    Succeed,
    TerminalStatus,
    Workflow,
    WorkflowRuntime,
)

from .harness import Bed, Process, bed, settle

pytestmark = pytest.mark.anyio

STEPS, HOOK = "workflow-steps", "workflow-steps@@hook"


async def runner(step: Step) -> Outcome:
    """Does what its input says."""
    match step.payload:
        case b"fail":
            return Fail("no such page")
        case b"cancel":
            return Cancel("not wanted")
        case b"raise":
            raise TransientError("unavailable")
        case b"hang":
            await asyncio.Event().wait()
        case b"two" if step.number == 0:
            return Continue(b"end")
        case _:
            pass
    return Succeed(step.payload)


class Told:
    """A hook that notes what it is told, and fails as often as it is to."""

    def __init__(self, *errors: BaseException, only: TerminalStatus | None = None) -> None:
        self.outcomes: list[RunOutcome] = []
        self.asked: list[RunOutcome] = []
        self._errors = list(errors)
        self._only = only

    def observes(self, outcome: RunOutcome) -> bool:
        self.asked.append(outcome)
        return self._only in (None, outcome.status)

    async def on_termination(self, outcome: RunOutcome, effects: Effects) -> None:
        self.outcomes.append(outcome)
        effects.put(f"told/{len(self.outcomes)}", outcome.run_id.encode())
        if self._errors:
            raise self._errors.pop(0)

    @property
    def names(self) -> list[str]:
        return [outcome.run_id for outcome in self.outcomes]


async def ended(t: Bed, *inputs: bytes, **options: Any) -> None:
    """Runs with these inputs, which are their ids, too, have ended; the hook is told."""
    for each in inputs:
        await t.runtime.submit(each, run_id=each.decode(), **options)
    for each in inputs:
        await t.end(each.decode())
    await t.settle()


# -- who is told of what --------------------------------------------------------------------------


async def test_without_a_hook_there_is_no_notification() -> None:
    """HOOK-01: neither without a hook, nor with one that observes nothing."""
    nothing = Told()
    nothing.observes = lambda outcome: False  # type: ignore[method-assign]
    for options in ({}, {"terminal_hook": nothing}):
        async with bed(runner, **options) as t:
            await ended(t, b"ok", b"fail")
            assert (await t.queue.stats(HOOK)).done == 0
            assert await t.queue.read("SELECT count(*) FROM jobs") == [(0,)]
    assert nothing.outcomes == []


async def test_a_hook_that_observes_one_status_only() -> None:
    """HOOK-02"""
    told = Told(only=TerminalStatus.FAILED)
    async with bed(runner, terminal_hook=told) as t:
        await ended(t, b"ok", b"fail", b"cancel")
        assert told.names == ["fail"]
        assert await t.queue.read("SELECT count(*) FROM jobs") == [(0,)]


async def test_what_a_hook_is_told() -> None:
    """10.1: all that there is to know, in the very moment's words."""
    told = Told()
    workflows = [Workflow("report", runner, "3")]
    config = QueueConfig(jitter=False, max_attempts=1)
    async with bed(runner, workflows=workflows, terminal_hook=told, config=config) as t:
        await t.runtime.submit(b"two", run_id="a", headers={"to": "ann"}, workflow="report")
        await t.settle()
        at = t.clock.now_ms()
        await ended(t, b"fail", b"cancel", b"raise")
        by_id = {outcome.run_id: outcome for outcome in told.outcomes}
        assert by_id["a"] == RunOutcome(
            run_id="a",
            status=TerminalStatus.SUCCEEDED,
            result=b"end",
            error=None,
            error_kind=None,
            final_step=1,
            terminated_at=datetime.fromtimestamp(at / 1000, UTC),
            headers={"to": "ann"},
            workflow="report",
            revision="3",
        )
        errors = {run_id: (o.status, o.error, o.error_kind) for run_id, o in by_id.items()}
        assert errors == {
            "a": (TerminalStatus.SUCCEEDED, None, None),
            "fail": (TerminalStatus.FAILED, "no such page", ErrorKind.PERMANENT),
            "cancel": (TerminalStatus.CANCELLED, "not wanted", None),
            "raise": (TerminalStatus.FAILED, "unavailable", ErrorKind.TRANSIENT),
        }
        for run_id, outcome in by_id.items():
            assert await t.runtime.outcome(run_id) == outcome


async def test_it_works_after_the_records_are_gone_and_the_id_is_used_again() -> None:
    """HOOK-22, 10.1: each life has a notification of its own, even while one still waits."""
    store, clock = MemoryStore(), ManualClock()
    told = Told()
    async with bed(runner, store=store, clock=clock, terminal_hook=told) as t:
        pass  # from now on the store knows that there is a hook
    async with bed(None, store=store, clock=clock, terminal_hook=Told()) as t:
        await t.runtime.submit(b"1", run_id="r")
    async with Queue.open(store, clock=clock) as queue:
        # The hook's worker is not there: a runtime that only runs steps takes no notification.
        async with WorkflowRuntime(queue, runner, queue_name="other"):
            pass
        hook = Told()
        blocked = asyncio.Event()

        async def blocks(outcome: RunOutcome, effects: Effects) -> None:
            await blocked.wait()
            await hook.on_termination(outcome, effects)

        async with WorkflowRuntime(queue, runner, terminal_hook=blocks, concurrency=1) as runtime:
            await runtime.wait("r")
            for life in (b"2", b"3"):
                await runtime.submit(life, run_id="r")
                await runtime.wait("r")
            stats = await queue.stats(HOOK)
            assert (stats.claimed, stats.pending) == (1, 2)
            with queue.transaction() as tx:
                tx.execute("DELETE FROM runs")
            blocked.set()
            await settle(clock)
        assert [outcome.result for outcome in hook.outcomes] == [b"1", b"2", b"3"]


async def test_several_runtimes_of_one_name_share_the_notifications() -> None:
    """13.5: whoever has a hook is told, wherever the run ended, and one of them once."""
    first, second = Told(only=TerminalStatus.FAILED), Told(only=TerminalStatus.FAILED)
    async with bed(runner, terminal_hook=first) as t:
        async with (
            WorkflowRuntime(t.queue, runner),
            WorkflowRuntime(t.queue, runner, terminal_hook=second),
        ):
            await ended(t, b"ok", b"fail", b"two")
        assert first.names + second.names == ["fail"]
        await ended(t, b"raise")
        assert first.names[-1] == "raise"


async def test_runtimes_of_different_names_tell_their_own_hooks() -> None:
    """WRK-12, WRK-13"""
    ours, theirs = Told(), Told()
    async with bed(runner, terminal_hook=ours) as t:
        async with WorkflowRuntime(
            t.queue, runner, queue_name="other", terminal_hook=theirs
        ) as other:
            await ended(t, b"ok")
            await other.submit(b"", run_id="ok")
            await other.wait("ok")
        await t.settle()
    assert (len(ours.outcomes), len(theirs.outcomes)) == (1, 1)


async def test_where_nobody_runs_steps_notifications_are_left_to_who_has_the_hook() -> None:
    """10.1, WRK-13: the hook belongs to another process, which comes later."""
    store, clock = MemoryStore(), ManualClock()
    config = QueueConfig(max_attempts=1, jitter=False)
    for known in (False, True):
        async with bed(None, store=store, clock=clock, config=config) as t:
            await t.runtime.submit(b"", run_id="r", priority=3)
            assert await t.queue.claim(STEPS, lease=1)
            assert (await t.end("r")).termination.error == "lease expired"
            assert (await t.queue.stats(HOOK)).pending == known
        if not known:
            async with bed(None, store=store, clock=clock, terminal_hook=Told()) as t:
                await t.runtime.submit(b"", run_id="other")
    # One that runs steps, and has no hook, takes no notification; and makes none.
    async with bed(runner, store=store, clock=clock) as t:
        await t.end("other")
        assert (await t.queue.stats(HOOK)).pending == 1
    told = Told()
    async with bed(runner, store=store, clock=clock, terminal_hook=told) as t:
        await t.settle()
    assert [(o.run_id, o.error) for o in told.outcomes] == [("r", "lease expired")]
    # Whether it wants to be told of that could be asked only now.
    assert told.asked == told.outcomes


# -- how it is delivered --------------------------------------------------------------------------


async def test_what_a_hook_stages_is_committed_with_its_notification() -> None:
    """HOOK-03"""
    go = asyncio.Event()

    async def hook(outcome: RunOutcome, effects: Effects) -> None:
        effects.put("at", b"end").enqueue("mail", outcome.result or b"")
        await go.wait()

    async with bed(runner, terminal_hook=hook) as t:
        await ended(t, b"ok")
        assert (await t.queue.stats(HOOK)).claimed == 1
        assert await t.queue.kv.get("at") is None
        go.set()
        await t.settle()
        assert await t.queue.kv.get("at") == b"end"
        mail = await t.queue.claim("mail")
        assert mail is not None and mail.job.payload == b"ok"
        assert (await t.queue.stats(HOOK)).claimed == 0


async def test_a_hook_that_fails_once() -> None:
    """HOOK-04"""
    told = Told(TransientError("unavailable"))
    async with bed(runner, terminal_hook=told) as t:
        await ended(t, b"ok")
        assert (await t.queue.stats(HOOK)).scheduled == 1
        await t.clock.advance(60)
        assert told.names == ["ok", "ok"]
        assert [await t.queue.kv.get(f"told/{n}") for n in (1, 2)] == [None, b"ok"]


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(PermanentError("never"), 1), (TransientError("unavailable"), 3), (KeyError("k"), 3)],
    ids=["permanent", "transient", "other"],
)
async def test_a_hook_that_cannot(error: Exception, attempts: int) -> None:
    """HOOK-05, HOOK-06: its notification is dead; of the run nothing changes, then or later."""
    store, clock = MemoryStore(), ManualClock()
    told = Told(*[error] * 3)
    async with bed(runner, store=store, clock=clock, terminal_hook=told) as t:
        await ended(t, b"ok", max_attempts=3)
        await t.clock.advance(600)
        before = await t.runtime.status("ok")
        assert len(told.outcomes) == attempts
        [dead] = (await t.queue.list_jobs(HOOK, JobState.DEAD)).jobs
        assert (dead.last_error, dead.attempts) == (str(error), attempts)
        assert dead.headers == {
            "workflow.run_id": "ok",
            "workflow.life": "1",
            "workflow.terminal": "succeeded",
        }
    async with bed(runner, store=store, clock=clock, terminal_hook=told) as t:
        await t.clock.advance(600)
        assert await t.runtime.status("ok") == before
        assert before is not None and before.termination is not None
        assert before.termination.status is TerminalStatus.SUCCEEDED
        assert len(told.outcomes) == attempts
        # It can be tried again, as any dead job, and tells the same.
        await t.queue.requeue_dead(dead.id)
        await t.settle()
        assert len(told.outcomes) == attempts + 1
        assert told.outcomes[0] == told.outcomes[-1]


async def test_a_notification_has_priority_and_limit_of_the_step_that_was_the_last() -> None:
    """HOOK-07"""

    async def fails(outcome: RunOutcome, effects: Effects) -> None:
        raise PermanentError("so that its job is kept")

    config = QueueConfig(jitter=False, max_attempts=5)
    async with bed(runner, terminal_hook=fails, config=config, renew=None) as t:
        inputs = (b"ok", b"two", b"fail", b"cancel", b"raise", b"hang")
        for each in inputs:
            await t.runtime.submit(each, run_id=each.decode(), priority=3, max_attempts=4)
        for each in inputs:
            await t.end(each.decode())
        await t.settle()
        jobs = (await t.queue.list_jobs(HOOK, JobState.DEAD)).jobs
        assert {job.headers["workflow.run_id"] for job in jobs} == {x.decode() for x in inputs}
        assert {(job.priority, job.max_attempts) for job in jobs} == {(3, 4)}


@pytest.mark.parametrize("through", ["own", "other", "tool"])
async def test_cancelling_a_run_that_waits(through: str) -> None:
    """HOOK-08, WRK-13: whoever cancels it, the name's hook is told, with the step's terms."""
    store, clock = MemoryStore(), ManualClock()
    told = Told(PermanentError("so that its job is kept"))
    later = datetime(2100, 1, 1, tzinfo=UTC)
    async with bed(runner, store=store, clock=clock, terminal_hook=told) as t:
        await t.runtime.submit(b"", run_id="r", priority=3, max_attempts=5, run_at=later)
        if through == "own":
            assert await t.runtime.cancel("r")
        elif through == "other":
            async with WorkflowRuntime(t.queue, runner) as other:
                assert await other.cancel("r")
        await t.settle()
    if through == "tool":
        async with bed(None, store=store, clock=clock) as t:
            assert await t.runtime.cancel("r")
    async with bed(runner, store=store, clock=clock, terminal_hook=told) as t:
        await t.settle()
        [dead] = (await t.queue.list_jobs(HOOK, JobState.DEAD)).jobs
        assert (dead.priority, dead.max_attempts) == (3, 5)
    assert [(o.run_id, o.status, o.error) for o in told.outcomes] == [
        ("r", TerminalStatus.CANCELLED, None)
    ]


async def test_cancelling_a_run_whose_step_is_run() -> None:
    """10.1: told when the step has ended, as cancelled, whatever its result was."""
    told, go = Told(), asyncio.Event()

    async def slow(step: Step) -> Outcome:
        await go.wait()
        return Succeed(b"r" * 300_000)

    async with bed(slow, terminal_hook=told) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        assert await t.runtime.cancel("r")
        await t.settle()
        assert told.outcomes == []
        go.set()
        await t.end("r")
        await t.settle()
        assert [info async for info in t.store.list(PAYLOAD_PREFIX)] == []
    assert [(o.status, o.result) for o in told.outcomes] == [(TerminalStatus.CANCELLED, None)]


async def test_a_step_that_is_interrupted() -> None:
    """4.3, 10.1: told once, whatever becomes of the step."""
    told = Told()
    async with bed(runner, terminal_hook=told, on_cancel="interrupt") as t:
        await t.runtime.submit(b"hang", run_id="r", priority=3)
        await t.settle()
        assert await t.runtime.cancel("r")
        await t.end("r")
        await t.settle()
        assert await t.queue.read("SELECT count(*) FROM jobs") == [(0,)]
    assert [(o.status, o.error) for o in told.outcomes] == [(TerminalStatus.CANCELLED, None)]


async def test_effects_are_refused_when_the_hook_has_returned() -> None:
    """HOOK-09"""
    kept: list[Effects] = []

    async def hook(outcome: RunOutcome, effects: Effects) -> None:
        kept.append(effects)

    async with bed(runner, terminal_hook=hook) as t:
        await ended(t, b"ok")
    for stage in (
        lambda: kept[0].put("k", b""),
        lambda: kept[0].delete("k"),
        lambda: kept[0].enqueue("q", b""),
    ):
        with pytest.raises(EffectsSealed):
            stage()


@pytest.mark.parametrize("queue", [STEPS, HOOK, "workflow-steps@report"])
async def test_a_hook_cannot_enqueue_on_the_runtime_s_queues(queue: str) -> None:
    """HOOK-10; elsewhere it can, with whatever headers."""

    async def hook(outcome: RunOutcome, effects: Effects) -> None:
        effects.enqueue("elsewhere" if outcome.run_id == "ok" else queue, b"", headers={"w": "1"})

    Effects().enqueue(queue, b"")  # on their own, effects know of no runtime
    async with bed(runner, terminal_hook=hook) as t:
        await ended(t, b"ok", b"fail")
        assert (await t.queue.stats("elsewhere")).pending == 1
        [dead] = (await t.queue.list_jobs(HOOK, JobState.DEAD)).jobs
        assert queue in str(dead.last_error) and dead.attempts == 1


async def test_a_step_that_dies_outside_a_worker() -> None:
    """HOOK-11, HOOK-14: by its lease; or with its job, whoever removed that."""
    told = Told()
    store, clock = MemoryStore(), ManualClock()
    options: Any = {"terminal_hook": told, "drain_timeout": 0, "renew": None}
    async with bed(runner, store=store, clock=clock, **options) as t:
        await ended(t, b"hang", max_attempts=1)
    async with bed(None, store=store, clock=clock) as t:
        gone = await t.runtime.submit(b"", run_id="gone", priority=3)
        await t.queue.cancel(gone.job_id)
    async with bed(runner, store=store, clock=clock, terminal_hook=told) as t:
        await t.settle()
    assert [(o.run_id, o.status, o.error_kind) for o in told.outcomes] == [
        ("hang", TerminalStatus.FAILED, None),
        ("gone", TerminalStatus.FAILED, None),
    ]
    assert told.outcomes[0].error == "lease expired"
    assert "the job of its step is gone" in str(told.outcomes[1].error)


async def test_a_crash_at_the_limit_is_told_when_a_runtime_comes() -> None:
    """HOOK-12, HOOK-17: once, however often one comes."""
    store, clock = MemoryStore(), ManualClock()
    told = Told()
    process = Process(store, runner, clock, terminal_hook=told)
    assert await process.opened()
    await process.runtime.submit(b"hang", run_id="r", max_attempts=1)
    await settle(clock)
    await process.kill()
    for _ in range(2):
        async with bed(runner, store=store, clock=clock, terminal_hook=told) as t:
            await t.settle()
            assert (await t.queue.stats(STEPS)).dead == 1
    assert [(o.run_id, o.error) for o in told.outcomes] == [
        ("r", "claim interrupted by process exit")
    ]


async def test_the_dead_job_of_an_earlier_life_ends_nothing() -> None:
    """HOOK-13"""
    store, clock = MemoryStore(), ManualClock()
    told = Told()
    async with bed(runner, store=store, clock=clock, terminal_hook=told) as t:
        await t.runtime.submit(b"raise", run_id="r", max_attempts=1)
        await t.end("r")
        await t.runtime.submit(b"later", run_id="r", run_at=datetime(2100, 1, 1, tzinfo=UTC))
        await t.settle()
    async with bed(runner, store=store, clock=clock, terminal_hook=told) as t:
        await t.settle()
        assert (await t.queue.stats(STEPS)).dead == 1
        assert await t.runtime.unfinished() == 1
    assert [o.error for o in told.outcomes] == ["unavailable"]


async def test_a_crash_between_the_hook_and_the_end_of_its_notification() -> None:
    """HOOK-18: it is told again, the same."""
    store, clock = MemoryStore(), ManualClock()
    told = Told()
    first = Process(store, runner, clock, terminal_hook=told)
    assert await first.opened()

    async def dies(outcome: RunOutcome, effects: Effects) -> None:
        await Told.on_termination(told, outcome, effects)
        first.store.hold()

    told.on_termination = dies  # type: ignore[method-assign]
    await first.leave()
    first = Process(store, runner, clock, terminal_hook=told)
    assert await first.opened()
    await first.runtime.submit(b"ok", run_id="ok")
    await settle(clock)
    await first.kill()
    assert told.names == ["ok"]
    second = Told()
    async with bed(runner, store=store, clock=clock, terminal_hook=second) as t:
        await t.settle()
        assert await t.queue.kv.get("told/1") == b"ok"
    assert second.outcomes == told.outcomes


async def test_dying_after_every_number_of_objects() -> None:
    """The end of a run and its notification are one commit: who has ended is told of."""
    for after in range(1, 100):
        store, clock, told = MemoryStore(), ManualClock(), Told()
        process = Process(store, runner, clock, die_after=after, terminal_hook=told)
        accepted = False
        if await process.opened():
            submitting = asyncio.ensure_future(process.runtime.submit(b"two", run_id="two"))
            dead = asyncio.ensure_future(process.store.dead.wait())
            await asyncio.wait({submitting, dead}, return_when=asyncio.FIRST_COMPLETED)
            accepted = submitting.done() and not dead.done()
            dead.cancel()
            submitting.cancel()
            await asyncio.gather(submitting, dead, return_exceptions=True)
            await settle(clock)
        died = process.store.dead.is_set()
        await process.kill()
        calls = len(told.outcomes)
        async with bed(runner, store=store, clock=clock, terminal_hook=told) as t:
            await t.settle()
            status = await t.runtime.status("two")
            assert status is not None or not accepted
            if status is not None:
                assert status.termination is not None and told.outcomes
                assert await t.queue.read("SELECT count(*) FROM jobs") == [(0,)]
                assert await t.queue.kv.get(f"told/{len(told.outcomes)}") == b"two"
            assert len(told.outcomes) - calls <= 1
        if not died:
            assert after > 5
            return
    raise AssertionError("one process alone does not finish")


async def test_leaving_the_block_leaves_the_rest_to_the_next() -> None:
    """10.2, 13.3: what a last step leads to is durable, and told by whoever comes."""
    store, clock = MemoryStore(), ManualClock()
    told, go = Told(), asyncio.Event()

    async def slow(step: Step) -> Outcome:
        await go.wait()
        return Succeed()

    async with bed(slow, store=store, clock=clock, terminal_hook=told) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        asyncio.get_running_loop().call_soon(go.set)
    assert told.outcomes == []
    async with bed(slow, store=store, clock=clock, terminal_hook=told) as t:
        await t.settle()
    assert told.names == ["r"]


async def test_a_hook_that_outlasts_the_drain_is_given_back() -> None:
    calls = 0

    async def hangs(outcome: RunOutcome, effects: Effects) -> None:
        nonlocal calls
        calls += 1
        await asyncio.Event().wait()

    store, clock, told = MemoryStore(), ManualClock(), Told()
    process = Process(store, runner, clock, terminal_hook=hangs, drain_timeout=5)
    assert await process.opened()
    await process.runtime.submit(b"", run_id="r")
    await settle(clock)
    leaving = asyncio.ensure_future(process.leave())
    await settle(clock)
    assert not leaving.done()
    await clock.advance(5)
    await leaving
    async with bed(runner, store=store, clock=clock, terminal_hook=told) as t:
        await t.settle()
    assert (calls, told.names) == (1, ["r"])


async def test_a_notification_that_cannot_be_read() -> None:
    """10.2"""
    told = Told()
    async with bed(runner, terminal_hook=told) as t:
        for payload in (b"", b"\xc1", b"\x91\x02", b"\x01", b"\x92\x01\xa1r"):
            await t.queue.enqueue(HOOK, payload)
        await t.settle()
        assert told.outcomes == []
        dead = (await t.queue.list_jobs(HOOK, JobState.DEAD)).jobs
        assert len(dead) == 5
        assert all("cannot be read" in str(job.last_error) for job in dead)


async def test_a_hook_s_effects_that_cannot_be_applied() -> None:
    async def hook(outcome: RunOutcome, effects: Effects) -> None:
        effects.enqueue("mail", b"", job_id="taken")

    async with bed(runner, terminal_hook=hook) as t:
        await t.queue.enqueue("mail", b"", job_id="taken")
        await ended(t, b"ok")
        [dead] = (await t.queue.list_jobs(HOOK, JobState.DEAD)).jobs
        assert "taken" in str(dead.last_error)


# -- observes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [ValueError("broken"), None, 1], ids=str)
async def test_an_observes_that_fails_keeps_no_run_from_ending(answer: object) -> None:
    """10.3: the run ends, and its notification fails with that error, until it is mended."""
    told = Told()
    broken: list[object] = [answer]

    def observes(outcome: RunOutcome) -> Any:
        if broken and isinstance(broken[0], Exception):
            raise broken[0]
        return broken[0] if broken else True

    told.observes = observes  # type: ignore[method-assign]
    async with bed(runner, terminal_hook=told) as t:
        await ended(t, b"ok")
        status = await t.runtime.status("ok")
        assert status is not None and status.termination is not None
        assert told.outcomes == []
        broken.clear()
        for job in (await t.queue.list_jobs(HOOK, JobState.DEAD)).jobs:
            await t.queue.requeue_dead(job.id)
        await t.clock.advance(60)
        assert told.names == ["ok"]


async def test_observes_is_asked_while_the_run_ends_and_again_before_it_is_told() -> None:
    """10.3: about the whole outcome, result and headers included."""
    told = Told()
    async with bed(runner, terminal_hook=told) as t:
        await ended(t, b"ok", headers={"a": "b"})
    assert told.asked == told.outcomes * 2
    assert (told.asked[0].result, told.asked[0].headers) == (b"ok", {"a": "b"})


# -- kinds of hook --------------------------------------------------------------------------------


async def test_ordinary_functions_are_called_in_a_thread() -> None:
    threads: list[int] = []

    def hook(outcome: RunOutcome, effects: Effects) -> object:
        threads.append(threading.get_ident())
        return effects.put("at", b"end")

    class Methods:
        def on_termination(self, outcome: RunOutcome, effects: Effects) -> None:
            hook(outcome, effects)

    for each in (hook, Methods(), lambda outcome, effects: hook(outcome, effects)):
        async with bed(runner, terminal_hook=each) as t:
            await ended(t, b"ok")
            async with asyncio.timeout(20):
                while await t.queue.kv.get("at") is None:
                    await asyncio.sleep(0.001)
    assert len(threads) == 3 and threading.get_ident() not in threads


async def test_a_forgotten_await_is_named() -> None:
    told = Told()
    hook = lambda outcome, effects: told.on_termination(outcome, effects)  # noqa: E731
    async with bed(runner, terminal_hook=hook) as t:
        await ended(t, b"ok")
        async with asyncio.timeout(20):
            while not (dead := (await t.queue.list_jobs(HOOK, JobState.DEAD)).jobs):
                await asyncio.sleep(0.001)
        assert "async def" in str(dead[0].last_error)


@pytest.mark.parametrize("hook", [Told, 1, "hook", object()], ids=["class", "int", "str", "object"])
async def test_what_is_no_hook_is_refused(hook: Any) -> None:
    async with Queue.open("memory://") as queue:
        with pytest.raises(InvalidType, match="terminal_hook"):
            WorkflowRuntime(queue, runner, terminal_hook=hook)


async def test_an_observes_that_is_no_ordinary_method_is_refused() -> None:
    class Wrong(Told):
        async def observes(self, outcome: RunOutcome) -> bool:  # type: ignore[override]
            return True

    told: Any = Told()
    told.observes = True
    async with Queue.open("memory://") as queue:
        for hook in (Wrong(), told):
            with pytest.raises(InvalidType, match="observes"):
                WorkflowRuntime(queue, runner, terminal_hook=hook)


async def test_names_of_queues_leave_room_for_the_hook_s() -> None:
    async with Queue.open("memory://") as queue:
        WorkflowRuntime(queue, runner, queue_name="q" * 255)
        runtime = WorkflowRuntime(queue, runner, queue_name="q" * 249, terminal_hook=Told())
        assert runtime.hook_queue == "q" * 249 + "@@hook"
        with pytest.raises(InvalidQueueName):
            WorkflowRuntime(queue, runner, queue_name="q" * 250, terminal_hook=Told())


async def test_no_workflow_has_the_hook_s_queue() -> None:
    async with bed(runner, terminal_hook=Told()) as t:
        for name, revision in (("", "hook"), ("@hook", None), ("@", "hook")):
            with pytest.raises(InvalidArgument):
                await t.runtime.submit(b"", workflow=name, revision=revision)


# -- cost -----------------------------------------------------------------------------------------


async def test_large_results_are_objects_of_their_own_for_a_while() -> None:
    """Also the largest, of which the notification is more than a job may be."""
    store, clock, told = MemoryStore(), ManualClock(), Told()
    large = bytes(16 * 1024 * 1024)

    async def succeeds(step: Step) -> Outcome:
        step.effects.enqueue("mail", b"m" * 300_000)
        return Succeed(large if step.run_id == "large" else bytearray(300_000))

    async with bed(succeeds, store=store, clock=clock, terminal_hook=told) as t:
        # Not told yet: the payload is an object.
        go = asyncio.Event()

        async def waits(outcome: RunOutcome, effects: Effects) -> None:
            await go.wait()
            await Told.on_termination(told, outcome, effects)

        told.on_termination = waits  # type: ignore[method-assign]
        async with WorkflowRuntime(
            t.queue, succeeds, queue_name="other", terminal_hook=told
        ) as other:
            told.on_termination = waits  # type: ignore[method-assign]
            for name in ("large", "mutable"):
                await other.submit(b"", run_id=name)
                await other.wait(name)
            await settle(clock)
            refs = await t.queue.read(
                "SELECT payload_ref IS NOT NULL, length(payload) < 100 FROM jobs"
                " JOIN queues ON queues.number = jobs.queue WHERE name = 'other@@hook'"
            )
            assert (1, 1) in refs
            go.set()
            await settle(clock)
        while claim := await t.queue.claim("mail"):
            await t.queue.ack(claim)
        await settle(clock)
        # What is left are the results themselves, as `outcome` tells them.
        assert len([info async for info in store.list(PAYLOAD_PREFIX)]) == 2
    assert [o.result for o in told.outcomes] == [large, bytes(300_000)]


async def test_a_hook_costs_one_write_a_run() -> None:
    """The notification is claimed with the end of the run."""

    async def nothing(outcome: RunOutcome, effects: Effects) -> None:
        pass

    writes: list[int] = []
    for hook in (None, nothing):
        async with bed(runner, terminal_hook=hook) as t:
            await ended(t, b"first")
            before = t.store.writes
            for number in range(20):
                await ended(t, b"%d" % number)
            writes.append(t.store.writes - before)
    assert writes[1] - writes[0] <= 40, writes


async def test_a_hook_that_does_not_take_an_outcome_and_effects() -> None:
    async def one(outcome: RunOutcome) -> None: ...

    def three(outcome: RunOutcome, effects: Effects, mailer: object) -> None: ...

    wrong: list[Any] = [one, three]
    async with Queue.open("memory://") as queue:
        for hook in wrong:
            with pytest.raises(InvalidType, match="two arguments, the outcome and effects"):
                WorkflowRuntime(queue, terminal_hook=hook)
