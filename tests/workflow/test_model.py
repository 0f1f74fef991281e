"""Random histories of runs, compared with the model after every command."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from taquba import ManualClock, PermanentError, QueueConfig, TransientError
from taquba.errors import InputMismatch, RunNotFound
from taquba.objectstore import MemoryStore
from taquba.workflow import Cancel, Continue, Fail, Outcome, Step, Succeed

from .harness import Process, settle
from .model import FOR_EVER_MS, Act, Model, Script

CONFIG = QueueConfig(max_attempts=3, backoff_base=1, backoff_max=6, jitter=False)
NAMES = ["a", "b", "c"]
DELAYS = [1, 999, 1000, 2500, 60_000]

acts = st.one_of(
    st.sampled_from(["continue", "continue", "busy", "busy", "succeed", "fail", "cancel"]).map(
        lambda kind: Act(kind)
    ),
    st.sampled_from(["broken", "hang", "hang"]).map(lambda kind: Act(kind)),
    st.sampled_from(DELAYS).map(lambda ms: Act("later", ms)),
    st.sampled_from([0, 1000, 60_000, FOR_EVER_MS, FOR_EVER_MS]).map(lambda ms: Act("signal", ms)),
)
scripts = st.lists(acts, max_size=7).map(tuple)
WAITING: dict[str, Script] = {
    "a": (Act("signal", FOR_EVER_MS), Act("busy"), Act("signal", FOR_EVER_MS), Act("hang")),
    "b": (Act("signal", 1000), Act("busy"), Act("signal", 60_000), Act("signal", 1000)),
    "c": (Act("hang"), Act("hang"), Act("succeed")),
}


class Runs(RuleBasedStateMachine):
    """Runs of a real runtime, in a process that may die between any two commands."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.process: Process

    def do(self, work: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(30):
                return await work

        return self.loop.run(bounded())

    @initialize()
    def begin(self) -> None:
        self.store, self.clock = MemoryStore(), ManualClock()
        self.start_ms = self.clock.now_ms()
        self.model = Model(backoff_base_ms=1000, backoff_max_ms=6000)
        self.calls: list[tuple[str, int, int, bytes | None]] = []
        self.signals = 0
        self.scripts: dict[str, tuple[Script, int]] = {}
        self.do(self._open())

    async def _open(self) -> None:
        self.process = Process(
            self.store, self.run_step, self.clock, config=CONFIG, drain_timeout=0, renew=None
        )
        assert await self.process.opened()
        await settle(self.clock)

    async def run_step(self, step: Step) -> Outcome:
        self.calls.append((step.run_id, step.number, step.attempt, step.signal))
        script, first = self.scripts[step.run_id]
        done = sum(call[0] == step.run_id for call in self.calls) - first
        act = script[done - 1] if done <= len(script) else Act("succeed")
        counted = await step.memo.memoized("calls", lambda: step.attempt)
        assert counted == 1, "the first attempt's value is there for the later ones"
        step.effects.put(f"at/{step.run_id}", b"%d" % step.number)
        if step.signal is not None:
            step.effects.put(f"got/{step.signal.decode()}", step.run_id.encode())
        match act.kind:
            case "continue":
                return Continue(json.dumps([step.number]).encode())
            case "later":
                return Continue(after=timedelta(milliseconds=act.after_ms))
            case "signal":
                for_ever = act.after_ms == FOR_EVER_MS
                timeout = None if for_ever else timedelta(milliseconds=act.after_ms)
                return Continue(signal=step.run_id, timeout=timeout)
            case "hang":
                await step.cancel_token.wait()
                step.effects.put(f"late/{step.run_id}", b"")
                return Succeed(b"too late")
            case "succeed":
                return Succeed(b"%d" % step.number)
            case "fail":
                return Fail("failed")
            case "cancel":
                return Cancel("cancelled")
            case "busy":
                raise TransientError("busy")
            case "broken":
                raise PermanentError("broken")

    @rule(
        name=st.sampled_from(NAMES),
        text=st.sampled_from([b"one", b"two"]),
        script=scripts,
        max_attempts=st.integers(1, 4),
        delay_ms=st.sampled_from([0, 0, 0, -5, 1, 3000]),
    )
    def submit(
        self, name: str, text: bytes, script: Script, max_attempts: int, delay_ms: int
    ) -> None:
        due_ms = self.model.now_ms + delay_ms
        expected = self.model.submit(name, text, script, max_attempts, due_ms)
        if expected == "new":
            self.scripts[name] = (script, sum(call[0] == name for call in self.calls))
        at = datetime.fromtimestamp((self.start_ms + due_ms) / 1000, UTC)
        got: str
        try:
            run = self.do(
                self.process.runtime.submit(text, run_id=name, max_attempts=max_attempts, run_at=at)
            )
            got = "new" if run.created else "duplicate"
        except InputMismatch:
            got = "mismatch"
        assert got == expected

    @rule(ms=st.sampled_from([100_000, 10_000, 1, 500, 1000, 2000, 2001]))
    def advance(self, ms: int) -> None:
        self.do(self.clock.advance(timedelta(milliseconds=ms)))
        self.model.advance_to(self.model.now_ms + ms)

    @rule(name=st.sampled_from(NAMES[::-1]))
    def cancel(self, name: str) -> None:
        assert self.do(self.process.runtime.cancel(name)) == self.model.cancel(name)

    @precondition(lambda self: self.model.runs)
    @rule(place=st.integers(0, 2), mode=st.sampled_from(["latest", "queue"]))
    def signal(self, place: int, mode: Any) -> None:
        waiting = [name for name, run in self.model.runs.items() if run.waiting]
        name = [*waiting, *NAMES][place]
        self.signals += 1
        payload = b"%d" % self.signals
        sent = self.do(self.process.runtime.signal(name, payload, mode=mode))
        expected = self.model.signal(name, payload, latest=mode == "latest")
        assert (sent.outcome.value, sent.replaced) == expected
        assert sent.run_id == (name if expected[0] == "delivered" else None)

    @rule(name=st.sampled_from(NAMES))
    def clear(self, name: str) -> None:
        assert self.do(self.process.runtime.clear_signal(name)) == self.model.clear(name)

    @rule(how=st.sampled_from(["kill", "leave", "take over"]), away_ms=st.sampled_from([0, 5000]))
    def restart(self, how: str, away_ms: int) -> None:
        async def stop() -> None:
            old = self.process
            if how == "leave":
                await old.leave()
            elif how == "kill":
                await old.kill()
            self.clock.shift_wall_clock(timedelta(milliseconds=away_ms))
            await self._open()
            if how == "take over":
                await old.kill()

        if how == "take over":
            away_ms = 0
        self.do(stop())
        # What was due while nobody was there is done when somebody is there again.
        self.model.now_ms += away_ms
        self.model.restart(given_back=how == "leave")

    @precondition(lambda self: self.model.runs)
    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.runs)))
        expected = self.model.runs[name].ended
        self.do(settle(self.clock))
        try:
            end = self.do(self.process.runtime.wait(name, timeout=0))
        except TimeoutError:
            assert expected is None
            return
        assert expected is not None
        assert end.outcome.result == expected.result
        assert end.outcome.status is end.termination.status is expected.status

    @invariant()
    def same(self) -> None:
        self.do(self._compare())

    async def _compare(self) -> None:
        await settle(self.clock)
        model, runtime, queue = self.model, self.process.runtime, self.process.queue
        assert self.clock.now_ms() - self.start_ms == model.now_ms
        assert Counter(self.calls) == Counter(model.calls)
        for name in NAMES:
            status = await runtime.status(name)
            outcome = await runtime.outcome(name)
            expected = model.state(name)
            if expected is None:
                assert status is None and outcome is None
                try:
                    await runtime.wait(name)
                except RunNotFound:
                    continue
                raise AssertionError("an unknown run was waited for")
            assert status is not None
            assert (status.state, status.current_step) == expected
            run = model.runs[name]
            ended = run.ended
            if ended is None:
                assert status.termination is None and outcome is None
                continue
            told = status.termination
            assert told is not None and outcome is not None
            assert (told.status, told.error, told.error_kind) == (
                ended.status,
                ended.error,
                ended.kind,
            )
            assert told.final_step == outcome.final_step == ended.step
            assert outcome.result == ended.result
            assert round(told.terminated_at.timestamp() * 1000) - self.start_ms == ended.at_ms
        active = sum(run.ended is None for run in model.runs.values())
        assert await runtime.unfinished() == active
        stats = await queue.stats("workflow-steps")
        hanging = sum(run.hangs for run in model.runs.values())
        assert (stats.pending, stats.claimed, stats.scheduled) == (0, hanging, active - hanging)
        waiting = {name for name, run in model.runs.items() if run.waiting}
        assert waiting == {
            name
            for (name,) in queue.peek(
                "SELECT run_id FROM runs JOIN jobs ON jobs.id = job_id WHERE signal IS NULL"
                " AND signal_key IS NOT NULL AND jobs.state = 1 AND jobs.attempts = 0"
            )
        }
        assert queue.peek("SELECT count(*) FROM signals") == [
            (sum(len(kept) for kept in model.buffered.values()),)
        ]
        assert not (await queue.kv.scan("late/")).entries
        assert queue.peek("SELECT count(*) FROM runs") == [(len(model.runs),)]
        assert queue.peek(
            "SELECT count(*) FROM memos WHERE life NOT IN (SELECT life FROM runs WHERE status = 0)"
        ) == [(0,)]

    def teardown(self) -> None:
        try:
            if hasattr(self, "process"):
                self.do(self.process.leave())
        finally:
            self.loop.close()


Runs.TestCase.settings = settings(
    max_examples=75,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestRuns = Runs.TestCase


class WaitingRuns(Runs):
    """Runs that wait for signals, or hang, from the beginning."""

    @initialize()
    def begin(self) -> None:
        super().begin()
        for name, script in WAITING.items():
            self.submit(name, b"one", script, 2, 0)

    @rule(name=st.sampled_from(NAMES))
    def submit_again(self, name: str) -> None:
        self.submit(name, b"one", WAITING[name], 2, 0)


WaitingRuns.TestCase.settings = Runs.TestCase.settings
TestWaitingRuns = WaitingRuns.TestCase
