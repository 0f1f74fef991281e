"""Lists and counts of runs, by their runtime and by a view in another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taquba import Follower, ManualClock, PermanentError, Queue, TransientError
from taquba.database import SchemaModule
from taquba.errors import (
    IncompatibleStore,
    InconsistentRunState,
    InvalidArgument,
    InvalidQueueName,
    InvalidType,
)
from taquba.objectstore import MemoryStore
from taquba.workflow import (
    Cancel,
    Continue,
    ErrorKind,
    Fail,
    Outcome,
    RunCounts,
    RunPage,
    RunState,
    RunSummary,
    Step,
    Succeed,
    TerminalStatus,
    Workflow,
    WorkflowRuntime,
    WorkflowView,
)

from .harness import Bed, bed
from .test_migration import old_store

pytestmark = pytest.mark.anyio

P, R, C, T = RunState.PENDING, RunState.RUNNING, RunState.CANCELLING, RunState.TERMINATED


async def by_payload(step: Step) -> Outcome:
    match step.payload.decode():
        case "fail":
            return Fail("does not work")
        case "cancel":
            return Cancel("not wanted")
        case "dead":
            raise PermanentError("broken for good")
        case "retry":
            raise TransientError("busy")
        case "delay":
            return Continue(b"done", after=3600)
        case "signal":
            return Continue(b"done", signal=f"go/{step.run_id}", timeout=60)
        case "run":
            await asyncio.get_running_loop().create_future()
        case _:
            pass
    return Succeed(step.payload)


@asynccontextmanager
async def view_of(t: Bed) -> AsyncIterator[WorkflowView]:
    async with Follower.open(t.store.below, clock=t.clock) as follower:
        await follower.wait_for(t.queue.position)
        yield WorkflowView(follower)


async def submit(t: Bed, *payloads: str, **options: Any) -> None:
    """Runs of these names, in that order."""
    for payload in payloads:
        await t.runtime.submit(payload.encode(), run_id=payload, **options)
        await t.settle()


def ids(page: RunPage) -> list[str]:
    return [run.run_id for run in page.runs]


async def pages(reader: Any, size: int, **wanted: Any) -> list[str]:
    """All the pages of a list."""
    found: list[str] = []
    after = None
    while True:
        page = await reader.runs(limit=size, after=after, **wanted)
        assert len(page.runs) == size or page.next is None
        found += ids(page)
        if page.next is None:
            return found
        after = page.next


EVERY = ("ok", "fail", "cancel", "dead", "retry", "delay", "signal", "run")


async def test_what_a_list_says() -> None:
    """STAT-12: and a view says the same."""
    async with bed(by_payload, drain_timeout=0) as t:
        now = datetime.fromtimestamp(t.clock.now_ms() / 1000, UTC)
        await submit(t, *EVERY, headers={"who": "ann"})
        page = await t.runtime.runs()
        assert page.next is None
        assert {run.run_id: run.state for run in page.runs} == {
            **dict.fromkeys(("ok", "fail", "cancel", "dead"), T),
            **dict.fromkeys(("retry", "delay", "signal"), P),
            "run": R,
        }
        assert ids(page) == list(EVERY)
        found = {run.run_id: run for run in page.runs}
        assert found["ok"] == RunSummary(
            run_id="ok",
            state=T,
            status=TerminalStatus.SUCCEEDED,
            current_step=0,
            submitted_at=now,
            ended_at=now,
            error=None,
            error_kind=None,
            error_type=None,
            headers={"who": "ann"},
            workflow=None,
            revision=None,
            waiting_for=None,
            due=None,
        )
        dead = found["dead"]
        assert (dead.error, dead.error_type) == ("broken for good", "taquba.errors.PermanentError")
        assert dead.error_kind is ErrorKind.PERMANENT
        assert (found["fail"].error, found["fail"].error_type) == ("does not work", None)
        assert found["cancel"].status is TerminalStatus.CANCELLED
        assert found["delay"].due == now + timedelta(hours=1)
        assert found["signal"].waiting_for == "go/signal"
        assert found["signal"].due == now + timedelta(minutes=1)
        assert found["retry"].due is not None and found["retry"].waiting_for is None
        assert await t.runtime.run_counts() == RunCounts(3, 1, 0, 1, 2, 1)
        async with view_of(t) as view:
            assert await view.runs() == page
            assert await view.run_counts() == await t.runtime.run_counts()
            assert await view.unfinished() == await t.runtime.unfinished() == 4
            for run_id in (*EVERY, "unknown"):
                assert await view.status(run_id) == await t.runtime.status(run_id)
                assert await view.outcome(run_id) == await t.runtime.outcome(run_id)


async def test_a_view_follows() -> None:
    """STAT-11, STAT-12: also over an open queue; and a large result is fetched."""
    go = asyncio.Event()
    large = bytes(2_000_000)

    async def runner(step: Step) -> Outcome:
        await go.wait()
        return Succeed(large)

    async with bed(runner) as t:
        async with view_of(t) as view:
            assert await view.status("r") is None
            await submit(t, "r")
            for expected in (R, T):
                for reader in (view, WorkflowView(t.queue)):
                    await view._reader.wait_for(t.queue.position)  # type: ignore[union-attr]
                    status = await reader.status("r")
                    assert status is not None and status.state is expected
                go.set()
                await t.settle()
            outcome = await view.outcome("r")
            assert outcome is not None and outcome.result == large
            assert outcome == await t.runtime.outcome("r")


async def test_cancelling() -> None:
    """STAT-05"""
    async with bed(by_payload, drain_timeout=0) as t:
        await submit(t, "run")
        await t.runtime.cancel("run")
        page = await t.runtime.runs(C)
        assert ids(page) == ["run"]
        assert ids(await t.runtime.runs(R)) == []
        assert (await t.runtime.run_counts()).cancelling == 1
        async with view_of(t) as view:
            assert await view.runs(C) == page


async def test_a_job_that_is_gone() -> None:
    """STAT-08: a view says so, too; a list does not stop for it."""
    async with bed(None) as t:
        run = await t.runtime.submit(b"", run_id="r")
        await t.queue.cancel(run.job_id)
        async with view_of(t) as view:
            with pytest.raises(InconsistentRunState):
                await view.status("r")
            assert [each.state for each in (await view.runs()).runs] == [P]


@pytest.mark.parametrize("version", [None, 1])
async def test_stores_without_these_tables(version: int | None) -> None:
    """STAT-13: nobody ever ran a workflow; or a version of taquba did that knew less."""
    store, clock = MemoryStore(), ManualClock()
    if version is None:
        async with Follower.open(store, clock=clock) as follower:
            await nothing(WorkflowView(follower))
        async with Queue.open(store, clock=clock) as queue:
            await queue.enqueue("q", b"")
            await nothing(WorkflowView(queue))
        async with Follower.open(store, clock=clock) as follower:
            await nothing(WorkflowView(follower))
    else:
        await old_store(store, clock, checkpointed=False)
        async with Follower.open(store, clock=clock) as follower:
            with pytest.raises(IncompatibleStore, match="version 1"):
                await WorkflowView(follower).runs()


async def nothing(view: WorkflowView) -> None:
    assert await view.status("r") is None
    assert await view.outcome("r") is None
    assert await view.runs() == RunPage((), None)
    assert await view.run_counts() == RunCounts()
    assert await view.unfinished() == 0


async def test_tables_of_a_later_version() -> None:
    store, clock = MemoryStore(), ManualClock()
    later = SchemaModule(
        name="workflow",
        version=99,
        statements=("CREATE TABLE runs (life INTEGER NOT NULL PRIMARY KEY)",),
    )
    async with Queue.open(store, clock=clock) as queue:
        await queue.add_tables(later)
        with pytest.raises(IncompatibleStore, match="99"):
            await WorkflowView(queue).status("r")


STATES: list[Any] = [None, P, R, T, *TerminalStatus]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("newest_first", [False, True])
async def test_pages(size: int, newest_first: bool) -> None:
    """Every run once, in order, whatever the page's size; of this queue name only."""
    names = [f"{kind}-{number}" for number in range(4) for kind in ("ok", "fail", "cancel", "run")]

    async def runner(step: Step) -> Outcome:
        return await by_payload(step)

    async with (
        bed(runner, concurrency=100, drain_timeout=0) as t,
        WorkflowRuntime(t.queue, runner, queue_name="other", drain_timeout=0) as other,
    ):
        for name in names:
            payload = name.partition("-")[0].encode()
            await t.runtime.submit(payload, run_id=name)
            await other.submit(payload, run_id=name)
            await t.settle()
        expected = names[::-1] if newest_first else names
        kinds: dict[Any, tuple[str, ...]] = {
            None: ("ok", "fail", "cancel", "run"),
            P: (),
            R: ("run",),
            T: ("ok", "fail", "cancel"),
            TerminalStatus.SUCCEEDED: ("ok",),
            TerminalStatus.FAILED: ("fail",),
            TerminalStatus.CANCELLED: ("cancel",),
        }
        async with view_of(t) as view:
            for state in STATES:
                wanted = [name for name in expected if name.partition("-")[0] in kinds[state]]
                for reader in (t.runtime, view):
                    found = await pages(reader, size, state=state, newest_first=newest_first)
                    assert found == wanted, state


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("newest_first", [False, True])
async def test_pages_by_the_time_of_the_end(size: int, newest_first: bool) -> None:
    """Also where many ended at one moment."""
    async with bed(by_payload, drain_timeout=0) as t:
        ends: list[tuple[str, datetime]] = []
        await t.runtime.submit(b"delay", run_id="later")
        for second in range(4):
            for number in range(3):
                name = f"{second}-{number}"
                await t.runtime.submit(b"fail" if number else b"ok", run_id=name)
                ends.append((name, datetime.fromtimestamp(t.clock.now_ms() / 1000, UTC)))
            await t.clock.advance(1)
        start = ends[0][1]
        for low, high in ((None, 2), (1, None), (1, 3), (0, 4), (4, None), (1.001, 2.001)):
            after = None if low is None else start + timedelta(seconds=low)
            before = None if high is None else start + timedelta(seconds=high)
            wanted = [
                name
                for name, at in ends
                if (after is None or at >= after) and (before is None or at < before)
            ]
            options = {
                "ended_after": after,
                "ended_before": before,
                "newest_first": newest_first,
            }
            found = await pages(t.runtime, size, **options)
            assert found == (wanted[::-1] if newest_first else wanted), (low, high)
            succeeded = [name for name in wanted if name.endswith("0")]
            found = await pages(t.runtime, size, state=TerminalStatus.SUCCEEDED, **options)
            assert sorted(found) == sorted(succeeded)
            assert await pages(t.runtime, size, state=P, **options) == []
        await t.clock.advance(3600)
        assert (await pages(t.runtime, size, ended_after=start))[-1] == "later"


async def test_filters() -> None:
    workflows = [Workflow("pay", by_payload), Workflow("pay", by_payload, revision="2")]
    async with bed(by_payload, workflows=workflows, drain_timeout=0) as t:
        start = datetime.fromtimestamp(t.clock.now_ms() / 1000, UTC)
        await submit(t, "ok", headers={"who": "ann", "at": "1"})
        await submit(t, "fail", headers={"who": "bob"})
        await t.clock.advance(10)
        await submit(t, "dead", headers={"who": "ann"}, workflow="pay", revision="2")
        await submit(t, "delay")
        for wanted, expected in (
            ({"headers": {"who": "ann"}}, ["ok", "dead"]),
            ({"headers": {"who": "ann", "at": "1"}}, ["ok"]),
            ({"headers": {"who": ""}}, []),
            ({"headers": {}}, ["ok", "fail", "dead", "delay"]),
            ({"headers": {"workflow.run_id": "ok"}}, []),
            ({"error": "not work"}, ["fail"]),
            ({"error": "%"}, []),
            ({"error_type": "taquba.errors.PermanentError"}, ["dead"]),
            ({"workflow": "pay"}, ["dead"]),
            ({"workflow": "pay", "revision": "1"}, []),
            ({"revision": "2"}, ["dead"]),
            ({"submitted_after": start + timedelta(seconds=10)}, ["dead", "delay"]),
            ({"submitted_before": start + timedelta(seconds=10)}, ["ok", "fail"]),
            ({"headers": {"who": "ann"}, "state": TerminalStatus.FAILED}, ["dead"]),
            ({"headers": {"who": "ann"}, "ended_before": start + timedelta(1)}, ["ok", "dead"]),
            ({"headers": {"who": "ann"}, "newest_first": True}, ["dead", "ok"]),
        ):
            for size in (1, 100):
                assert await pages(t.runtime, size, **wanted) == expected, wanted
        assert ids(await t.runtime.runs(limit=0)) == []


async def test_a_run_that_died_by_its_lease_has_no_error_type() -> None:
    async with bed(None) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        await t.queue.claim("workflow-steps")
        await t.clock.advance(600)
        [run] = (await t.runtime.runs()).runs
        assert (run.status, run.error_type) == (TerminalStatus.FAILED, None)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"state": "failed"}, InvalidType),
        ({"state": 1}, InvalidType),
        ({"headers": ["who"]}, InvalidType),
        ({"headers": {"who": 1}}, InvalidType),
        ({"error": b"x"}, InvalidType),
        ({"error_type": ValueError}, InvalidType),
        ({"workflow": 1}, InvalidType),
        ({"revision": 1}, InvalidType),
        ({"submitted_after": 0}, InvalidType),
        ({"ended_before": datetime(2026, 1, 1)}, InvalidArgument),  # noqa: DTZ001
        ({"newest_first": 1}, InvalidType),
        ({"limit": -1}, InvalidArgument),
        ({"limit": 10_001}, InvalidArgument),
        ({"limit": "1"}, InvalidType),
        ({"after": 1}, InvalidType),
        ({"after": ""}, InvalidArgument),
        ({"after": "s+.1"}, InvalidArgument),
        ({"after": "s+.1.x"}, InvalidArgument),
        ({"after": "s-.0.1"}, InvalidArgument),
        ({"after": "e+.0.1"}, InvalidArgument),
        ({"after": f"s+.0.{2**80}"}, InvalidArgument),
    ],
)
async def test_wrong_arguments(wrong: dict[str, Any], error: type[Exception]) -> None:
    async with bed(None) as t:
        with pytest.raises(error):
            await t.runtime.runs(**wrong)
        with pytest.raises(error):
            await WorkflowView(t.queue).runs(**wrong)


async def test_views_of_nothing() -> None:
    with pytest.raises(InvalidType, match="reader"):
        WorkflowView("memory://")  # type: ignore[arg-type]
    async with Queue.open("memory://") as queue:
        with pytest.raises(InvalidQueueName):
            WorkflowView(queue, queue_name="")
        with pytest.raises(InvalidArgument, match="not entered"):
            await WorkflowRuntime(queue, None).runs()


class Steps:
    """Counts what SQLite does for reads, in steps of its virtual machine."""

    def __init__(self, queue: Queue) -> None:
        self.count = 0
        self._connection = queue._core.database._state.connection

    def __enter__(self) -> Steps:
        self._connection.set_progress_handler(self._step, 1)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.set_progress_handler(None, 0)

    def _step(self) -> bool:
        self.count += 1
        return False


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"newest_first": True},
        {"state": P},
        {"state": T},
        {"state": TerminalStatus.FAILED},
        {"state": TerminalStatus.FAILED, "newest_first": True},
        {"ended_after": datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)},
        {"ended_before": datetime(2026, 1, 1, 0, 0, 9, tzinfo=UTC), "newest_first": True},
    ],
    ids=str,
)
async def test_a_page_costs_the_same_however_many_runs_there_are(wanted: dict[str, Any]) -> None:
    """The first page as well as a later one."""
    costs: list[list[int]] = []
    for count in (800, 20_000):
        async with bed(None) as t:
            await many(t, count)
            cost: list[int] = []
            after = None
            for _ in range(3):
                with Steps(t.queue) as steps:
                    page = await t.runtime.runs(limit=20, after=after, **wanted)
                assert len(page.runs) == 20
                after = page.next
                cost.append(steps.count)
            costs.append(cost)
    for few, more in zip(*costs, strict=True):
        assert more <= few * 1.1, costs


async def many(t: Bed, count: int) -> None:
    """Runs of two names in turn, of every kind, as their rows are; spread over ten seconds."""
    now = t.clock.now_ms()
    with t.queue.transaction() as tx:
        for life in range(1, count + 1):
            status = life // 2 % 4
            tx.execute(
                "INSERT INTO runs (life, queue, run_id, status, step, job_id, input_digest,"
                " submitted_at, ended_at, headers) VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?, ?)",
                (
                    *(life, "workflow-steps" if life % 2 else "other", f"r{life}", status),
                    *(f"j{life}", b"d", now, now + life * 10_000 // count if status else None),
                    b"\x80",
                ),
            )
    await tx.durable()


async def test_a_search_lets_the_loop_go_on() -> None:
    """A filter without an index looks through all runs, and counting counts all, in slices."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with bed(None) as t:
        await many(t, 20_000)
        task = asyncio.ensure_future(others())
        assert ids(await t.runtime.runs(error="nothing has this")) == []
        assert turns >= 10_000 // 200
        turns = 0
        counts = await t.runtime.run_counts()
        assert counts == RunCounts(pending=2500, succeeded=2500, failed=2500, cancelled=2500)
        assert turns >= 2500 // 200
        task.cancel()
