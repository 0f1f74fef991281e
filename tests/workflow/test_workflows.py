"""Several workflows and revisions in one runtime, and what becomes of runs that nobody runs."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taquba import Effects, QueueConfig
from taquba.clock import ManualClock
from taquba.errors import InputMismatch, InvalidArgument, InvalidType, ReservedName, UnknownWorkflow
from taquba.objectstore import MemoryStore
from taquba.workflow import (
    MAX_REVISION_LENGTH,
    MAX_WORKFLOW_NAME_LENGTH,
    Continue,
    GroupMember,
    Outcome,
    PermanentError,
    RunState,
    RunStatus,
    Step,
    Succeed,
    TerminalStatus,
    TransientError,
    Workflow,
    WorkflowBacklog,
    WorkflowRuntime,
)
from tests.workflow.harness import bed

pytestmark = pytest.mark.anyio


def says(text: str, *, steps: int = 2) -> Any:
    """A runner whose result tells who ran each step."""

    async def runner(step: Step) -> Outcome:
        payload = step.payload + f"{text}:{step.workflow}@{step.revision} ".encode()
        return Continue(payload) if step.number + 1 < steps else Succeed(payload)

    return runner


async def test_each_run_is_run_by_its_workflow() -> None:
    workflows = [
        Workflow("report", says("old"), "1"),
        Workflow("report", says("new"), "2"),
        Workflow("mail", says("mail")),
    ]
    async with bed(says("plain"), workflows=workflows) as t:
        submit = t.runtime.submit
        await submit(b"", run_id="plain")
        await submit(b"", run_id="newest", workflow="report")
        await submit(b"", run_id="older", workflow="report", revision="1")
        await submit(b"", run_id="mail", workflow="mail")
        results = {x: (await t.end(x)).outcome.result for x in ("plain", "newest", "older", "mail")}
        assert results == {
            "plain": b"plain:None@None plain:None@None ",
            "newest": b"new:report@2 new:report@2 ",
            "older": b"old:report@1 old:report@1 ",
            "mail": b"mail:mail@None mail:mail@None ",
        }
        status = await t.runtime.status("newest")
        assert status is not None
        assert (status.workflow, status.revision) == ("report", "2")


async def test_the_newest_revision_is_the_one_registered_last() -> None:
    workflows = [Workflow("w", says("b"), "2024-10"), Workflow("w", says("a"), "2024-9")]
    async with bed(None, workflows=workflows) as t:
        await t.runtime.submit(b"", run_id="r", workflow="w")
        assert (await t.end("r")).outcome.result == b"a:w@2024-9 a:w@2024-9 "


async def test_what_nobody_can_run_waits_visibly(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = MemoryStore(), ManualClock()
    began = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    async with bed(None, store=store, clock=clock) as t:
        for run_id in ("a", "b"):
            await t.runtime.submit(b"", run_id=run_id, workflow="report", revision="1")
            await clock.advance(60)
        await t.runtime.submit(b"", run_id="c")
        assert await t.runtime.backlog() == [
            WorkflowBacklog(None, None, 1, began + timedelta(minutes=2), False),
            WorkflowBacklog("report", "1", 2, began, False),
        ]
    assert not caplog.records
    newer = [Workflow("report", says("new"), "2")]
    async with bed(says("plain"), workflows=newer, store=store, clock=clock) as t:
        assert "2 runs of report@1 wait, since nobody here runs it" in caplog.text
        await t.end("c")
        await clock.advance(timedelta(days=30))
        assert await t.runtime.backlog() == [WorkflowBacklog("report", "1", 2, began, False)]
        expected = RunStatus("a", RunState.PENDING, 0, None, "report", "1")
        assert await t.runtime.status("a") == expected
        # It can be cancelled by whoever looks after the queue, or wait for code that runs it.
    caplog.clear()
    both = [Workflow("report", says("old"), "1"), *newer]
    async with bed(None, workflows=both, store=store, clock=clock) as t:
        assert (await t.end("a")).outcome.result == b"old:report@1 old:report@1 "
        await t.end("b")
        assert await t.runtime.backlog() == []
    assert not [x for x in caplog.records if x.levelno >= logging.WARNING]


async def test_waiting_for_what_nobody_here_runs_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Once; it waits all the same, since a runtime with a runner may be entered later."""
    async with bed(None) as t:
        await t.runtime.submit(b"", run_id="r")
        group = t.runtime.group("g")
        await group.submit([GroupMember("a", b"")])
        assert not caplog.records
        waiting = asyncio.gather(t.runtime.wait("r"), t.runtime.wait("r"), group.wait())
        await t.settle()
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 1
        assert "no runtime in this process has a runner for 'workflow-steps'" in told[0]
        async with WorkflowRuntime(t.queue, says("late")) as runtime:
            await t.settle()
            assert (await waiting)[0].outcome.result == b"late:None@None late:None@None "
            later = await runtime.submit(b"")
            await t.end(later.run_id)
    assert len(caplog.records) == 1


async def test_a_run_goes_on_under_a_revision_that_accepts_its_own() -> None:
    """Renamed and with new code, in the middle of steps and of a retry."""
    store, clock = MemoryStore(), ManualClock()

    async def first(step: Step) -> Outcome:
        if step.payload == b"retry":
            raise TransientError("not yet")
        return Continue(b"from the old", after=timedelta(hours=1))

    config = QueueConfig(jitter=False, backoff_base=3600, backoff_max=3600)
    old = [Workflow("report", first, "1")]
    async with bed(None, workflows=old, store=store, clock=clock, config=config) as t:
        for run_id, data in (("between", b"go"), ("failing", b"retry")):
            await t.runtime.submit(data, run_id=run_id, workflow="report")
        await t.settle()

    async def second(step: Step) -> Outcome:
        return Succeed(f"{step.number} {step.attempt} {step.workflow}@{step.revision}".encode())

    new = [Workflow("summary", second, "7", accepts=["report@1", "report"])]
    async with bed(None, workflows=new, store=store, clock=clock, config=config) as t:
        assert [x.runnable for x in await t.runtime.backlog()] == [True]
        assert (await t.end("between")).outcome.result == b"1 1 report@1"
        assert (await t.end("failing")).outcome.result == b"0 2 report@1"
        await t.runtime.submit(b"", run_id="next", workflow="summary")
        assert (await t.end("next")).outcome.result == b"0 1 summary@7"


async def test_a_submission_that_nobody_would_run_is_refused() -> None:
    async with bed(None, workflows=[Workflow("report", says("x"), "2")]) as t:
        for options in (
            {"workflow": "repotr"},
            {"workflow": "report", "revision": "3"},
            {},
        ):
            with pytest.raises(UnknownWorkflow, match="there is: report@2"):
                await t.runtime.submit(b"", run_id="r", **options)
        with pytest.raises(UnknownWorkflow, match="say which one with workflow=…"):
            await t.runtime.submit(b"", run_id="r")
        assert await t.runtime.status("r") is None
    async with bed(says("plain")) as t:
        with pytest.raises(UnknownWorkflow, match="there is: the default workflow"):
            await t.runtime.submit(b"", workflow="report")


async def test_runtimes_of_one_name_run_each_other_s_submissions() -> None:
    from taquba.workflow import WorkflowRuntime

    async with bed(says("plain")) as t:
        more = [Workflow("report", says("other"), "1")]
        async with WorkflowRuntime(t.queue, workflows=more) as other:
            await t.runtime.submit(b"", run_id="a", workflow="report")
            await other.submit(b"", run_id="b")
            assert (await t.end("a")).outcome.result == b"other:report@1 other:report@1 "
            assert (await t.end("b")).outcome.result == b"plain:None@None plain:None@None "
        with pytest.raises(UnknownWorkflow):
            await t.runtime.submit(b"", workflow="report")


async def test_a_step_s_death_ends_its_run_on_every_queue() -> None:
    async def fails(step: Step) -> Outcome:
        raise PermanentError("never")

    async with bed(None, workflows=[Workflow("w", fails)]) as t:
        await t.runtime.submit(b"", run_id="r", workflow="w")
        assert (await t.end("r")).termination.status is TerminalStatus.FAILED
    store, clock = MemoryStore(), ManualClock()
    config = QueueConfig(max_attempts=1)
    async with bed(None, store=store, clock=clock, config=config) as t:
        await t.runtime.submit(b"", run_id="r", workflow="w", revision="9")
        assert await t.queue.claim("workflow-steps@w@9", lease=1)
        end = await t.end("r")
        termination = end.termination
        assert (termination.status, termination.error) == (TerminalStatus.FAILED, "lease expired")


async def test_an_active_run_cannot_be_submitted_for_another_workflow() -> None:
    async with bed(None) as t:
        first = await t.runtime.submit(b"x", run_id="r", workflow="w", revision="1")
        again = await t.runtime.submit(b"x", run_id="r", workflow="w", revision="2")
        assert (again.created, again.job_id) == (False, first.job_id)
        with pytest.raises(InputMismatch, match="another workflow"):
            await t.runtime.submit(b"x", run_id="r", workflow="v")
        with pytest.raises(InputMismatch, match="another workflow"):
            await t.runtime.submit(b"x", run_id="r")


async def test_a_new_life_may_be_another_workflow() -> None:
    async with bed(says("plain"), workflows=[Workflow("w", says("w"))]) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.end("r")
        await t.runtime.submit(b"", run_id="r", workflow="w")
        assert (await t.end("r")).outcome.result == b"w:w@None w:w@None "


async def test_effects_cannot_enqueue_on_the_queue_of_a_workflow() -> None:
    async with bed(None) as t:
        for queue in ("workflow-steps", "workflow-steps@w", "workflow-steps@w@1"):
            with pytest.raises(ReservedName, match="belongs to a workflow"):
                await t.runtime.submit(b"", effects=Effects().enqueue(queue, b""))
        await t.runtime.submit(b"", effects=Effects().enqueue("workflow-steps2", b""))


async def test_workflows_get_their_shares() -> None:
    order: list[str] = []

    async def runner(step: Step) -> Outcome:
        order.append(str(step.workflow))
        return Succeed()

    workflows = [Workflow("heavy", runner, weight=3), Workflow("light", runner)]
    store, clock = MemoryStore(), ManualClock()
    async with bed(None, store=store, clock=clock) as t:
        for number in range(40):
            for name in ("heavy", "light"):
                await t.runtime.submit(b"", run_id=f"{name}{number}", workflow=name)
    async with bed(None, workflows=workflows, store=store, clock=clock, concurrency=1) as t:
        await t.settle()
        assert len(order) == 80
        assert order[:40].count("heavy") == 30


async def test_a_workflow_has_the_configuration_of_the_runtime_s_queue() -> None:
    from taquba import Queue
    from taquba.workflow import WorkflowRuntime

    queues = {
        "workflow-steps": QueueConfig(max_attempts=7),
        "workflow-steps@own": QueueConfig(max_attempts=9),
    }
    async with Queue.open(MemoryStore(), queues=queues, clock=ManualClock()) as queue:
        async with WorkflowRuntime(queue) as runtime:
            for name, attempts in ((None, 7), ("w", 7), ("own", 9)):
                job_id = (await runtime.submit(b"", workflow=name)).job_id
                job = await queue.get_job(job_id)
                assert job is not None
                assert job.max_attempts == attempts


@pytest.mark.parametrize(
    ("workflow", "revision"),
    [
        *[("", None), ("a@b", None), ("a b", None), ("ä", None), ("w", ""), ("w", "1@2")],
        ("w" * (MAX_WORKFLOW_NAME_LENGTH + 1), None),
        ("w", "r" * (MAX_REVISION_LENGTH + 1)),
    ],
)
async def test_bad_names(workflow: str, revision: str | None) -> None:
    with pytest.raises(InvalidArgument, match="characters of"):
        async with bed(None, workflows=[Workflow(workflow, says("x"), revision)]):
            pass
    async with bed(None) as t:
        with pytest.raises(InvalidArgument, match="characters of"):
            await t.runtime.submit(b"", workflow=workflow, revision=revision)


async def test_the_longest_names() -> None:
    name, revision = "w" * MAX_WORKFLOW_NAME_LENGTH, "r" * MAX_REVISION_LENGTH
    async with bed(None, workflows=[Workflow(name, says("x", steps=1), revision)]) as t:
        await t.runtime.submit(b"", run_id="r", workflow=name)
        await t.end("r")


async def test_what_cannot_be_registered() -> None:
    async def enter(*workflows: Any, **options: Any) -> None:
        async with bed(options.pop("runner", None), workflows=workflows, **options):
            pass

    one = Workflow("w", says("x"), "1")
    with pytest.raises(InvalidArgument, match="w@1 is registered twice"):
        await enter(one, one)
    with pytest.raises(InvalidArgument, match="w@1 is registered twice"):
        await enter(one, Workflow("w", says("y"), "2", accepts=["w@1"]))
    with pytest.raises(InvalidType, match=r"list of Workflow\(name, runner"):
        await enter("w")
    with pytest.raises(InvalidType, match="accepts of workflow 'w' must be a list"):
        await enter(Workflow("w", says("x"), accepts="v@1"))
    with pytest.raises(InvalidArgument, match="a revision"):
        await enter(Workflow("w", says("x"), accepts=["v@"]))
    with pytest.raises(InvalidArgument, match="weight of workflow 'w' is 0"):
        await enter(Workflow("w", says("x"), weight=0))
    with pytest.raises(InvalidType, match="runner is"):
        await enter(Workflow("w", Step))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="must not contain '@'"):
        await enter(queue_name="steps@w")
    async with bed(None) as t:
        with pytest.raises(InvalidArgument, match="a revision belongs to a workflow"):
            await t.runtime.submit(b"", revision="1")
