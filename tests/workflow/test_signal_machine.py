"""Random histories of signals, compared with a tiny model: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from taquba import ManualClock, QueueConfig, TransientError
from taquba.errors import InputMismatch
from taquba.objectstore import MemoryStore
from taquba.workflow import Continue, Outcome, Step, Succeed

from .harness import Process, settle

CONFIG = QueueConfig(max_attempts=9, backoff_base=1, backoff_max=1, jitter=False)
RUNS = ["a", "b", "c"]
KEYS = ["x", "y"]
WEEK_MS = 7 * 86_400_000
AT_WORK = float("inf")


@dataclass
class Sent:
    payload: bytes
    latest: bool
    signal_id: str | None


@dataclass
class Known:
    payload: bytes
    at_ms: int
    outcome: str
    run: str | None


@dataclass
class Waiting:
    """A run whose only step that matters waits, is at work, or retries."""

    key: str
    timeout_ms: float
    fails: int
    """How often the step fails after it has begun."""
    slow: bool
    """Whether the step stays at work until it is let go."""
    life: int
    registered: bool = False
    deadline_ms: float = 0
    sent: Sent | None = None
    began: bool = False
    due_ms: float = 0

    @property
    def given(self) -> bytes | None:
        return None if self.sent is None else self.sent.payload


@dataclass
class Model:
    """Buffers, and runs that wait for one signal each; one moment after the other."""

    now_ms: int = 0
    idle: bool = False
    """Nobody works on steps."""
    runs: dict[str, Waiting] = field(default_factory=dict)
    buffers: dict[str, list[Sent]] = field(default_factory=lambda: {key: [] for key in KEYS})
    ids: dict[tuple[str, str], Known] = field(default_factory=dict)
    seen: list[tuple[str, int, bytes | None]] = field(default_factory=list)
    """Every delivery of a step that waited: run, life, and what it saw."""
    ended: dict[str, tuple[str, bytes | None]] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)

    def submit(self, name: str, key: str, timeout_ms: float, fails: int, slow: bool) -> None:
        self.lives[name] = self.lives.get(name, 0) + 1
        self.ended.pop(name, None)
        self.runs[name] = Waiting(key, timeout_ms, fails, slow, self.lives[name])
        self.progress()

    def signal(self, key: str, sent: Sent) -> tuple[str, bool, str | None, bytes | None]:
        if sent.signal_id is not None:
            known = self.ids.get((key, sent.signal_id))
            if known is not None and (
                known.outcome == "buffered" or known.at_ms > self.now_ms - WEEK_MS
            ):
                if known.payload != sent.payload:
                    return "mismatch", False, None, None
                return known.outcome, False, known.run, None
            self.ids[key, sent.signal_id] = Known(sent.payload, self.now_ms, "", None)
        name, replaced = self.give(key, sent), None
        if name is None:
            buffer = self.buffers[key]
            if sent.latest:
                for before in [x for x in buffer if x.latest]:
                    buffer.remove(before)
                    replaced = before.payload
                    self.note(key, before, "replaced")
            buffer.append(sent)
            self.note(key, sent, "buffered")
        self.progress()
        return "buffered" if name is None else "delivered", True, name, replaced

    def give(self, key: str, sent: Sent) -> str | None:
        for name, run in self.runs.items():
            if run.registered and run.key == key and not run.began and run.sent is None:
                run.sent = sent
                self.note(key, sent, "delivered", name)
                return name
        return None

    def note(self, key: str, sent: Sent, outcome: str, run: str | None = None) -> None:
        if sent.signal_id is not None and (key, sent.signal_id) in self.ids:
            known = self.ids[key, sent.signal_id]
            known.outcome, known.run = outcome, run

    def clear(self, key: str) -> int:
        cleared, self.buffers[key] = self.buffers[key], []
        for sent in cleared:
            self.note(key, sent, "cleared")
        return len(cleared)

    def cancel(self, name: str) -> bool:
        run = self.runs.pop(name, None)
        if run is None:
            return False
        self.ended[name] = ("cancelled", None)
        if run.sent is not None and not run.began and self.give(run.key, run.sent) is None:
            buffer = self.buffers[run.key]
            if any(other.latest for other in buffer):
                run.sent.latest = False
            buffer.insert(0, run.sent)
            self.note(run.key, run.sent, "buffered")
        self.progress()
        return True

    # -- working ----------------------------------------------------------------------------

    def progress(self) -> None:
        """Begin the steps that are due, and end those that are done."""
        if self.idle:
            return
        for run in self.runs.values():
            if run.registered and not run.began and self.is_due(run):
                run.began = True
                run.due_ms = self.now_ms
        for name, run in list(self.runs.items()):
            if run.registered:
                self.work(name, run)
        for name, run in list(self.runs.items()):
            if not run.registered:
                self.register(name, run)

    def is_due(self, run: Waiting) -> bool:
        return run.sent is not None or run.deadline_ms <= self.now_ms

    def register(self, name: str, run: Waiting) -> None:
        for other in self.runs.values():
            if other.registered and other.key == run.key and not other.began:
                del self.runs[name]
                self.ended[name] = ("failed", None)
                return
        run.registered = True
        run.deadline_ms = self.now_ms + run.timeout_ms
        if self.buffers[run.key]:
            run.sent = self.buffers[run.key].pop(0)
            self.note(run.key, run.sent, "delivered", name)
        if self.is_due(run):
            run.began = True
            run.due_ms = self.now_ms
            self.work(name, run)

    def work(self, name: str, run: Waiting) -> None:
        if run.began and run.due_ms <= self.now_ms:
            self.seen.append((name, run.life, run.given))
            if run.slow:
                run.due_ms = AT_WORK
            else:
                self.finish(name, run)

    def finish(self, name: str, run: Waiting) -> None:
        if run.fails:
            run.fails -= 1
            run.due_ms = self.now_ms + 1000
            return
        del self.runs[name]
        self.ended[name] = ("succeeded", run.given)

    def at_work(self) -> list[str]:
        return [name for name, run in self.runs.items() if run.due_ms == AT_WORK]

    def restart(self, idle: bool) -> None:
        """Steps at work are delivered again, as soon as somebody works."""
        for name in self.at_work():
            self.runs[name].due_ms = self.now_ms
        self.idle = idle
        self.progress()

    def advance_to(self, now_ms: int) -> None:
        while not self.idle:
            moments = [run.due_ms if run.began else run.deadline_ms for run in self.runs.values()]
            due = min(moments, default=AT_WORK)
            if due > now_ms:
                break
            self.now_ms = max(self.now_ms, int(due))
            self.progress()
        self.now_ms = now_ms


class SignalMachine(RuleBasedStateMachine):
    """Signals of a real runtime, in a process that may die between any two commands."""

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
        self.model = Model()
        self.seen: list[tuple[str, int, bytes | None]] = []
        self.plans: dict[str, tuple[int, str, Any, int, bool]] = {}
        self.failed: dict[tuple[str, int], int] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.sent = 0
        self.do(self._open())

    async def _open(self, *, idle: bool = False) -> None:
        self.gates = {}
        runner = None if idle else self.run_step
        self.process = Process(self.store, runner, self.clock, config=CONFIG)
        assert await self.process.opened()
        await settle(self.clock)

    async def run_step(self, step: Step) -> Outcome:
        life, key, timeout, fails, slow = self.plans[step.run_id]
        if step.number == 0:
            assert step.signal is None
            return Continue(signal=key, timeout=timeout)
        if step.number == 2:
            assert step.signal is None
            return Succeed(step.payload or None)
        self.seen.append((step.run_id, life, step.signal))
        if slow:
            gate = self.gates[step.run_id] = asyncio.Event()
            await gate.wait()
        done = self.failed.setdefault((step.run_id, life), 0)
        if done < fails:
            self.failed[step.run_id, life] = done + 1
            raise TransientError("again")
        return Continue(step.signal or b"")

    @rule(
        name=st.sampled_from(RUNS),
        key=st.sampled_from(KEYS),
        timeout_ms=st.sampled_from([None, None, 0, 1000, 60_000]),
        fails=st.sampled_from([0, 0, 1, 2]),
        slow=st.booleans(),
    )
    def submit(self, name: str, key: str, timeout_ms: int | None, fails: int, slow: bool) -> None:
        if name in self.model.runs:
            return
        timeout = None if timeout_ms is None else timedelta(milliseconds=timeout_ms)
        self.plans[name] = (self.model.lives.get(name, 0) + 1, key, timeout, fails, slow)
        self.model.submit(
            name, key, float("inf") if timeout_ms is None else timeout_ms, fails, slow
        )
        self.do(self.process.runtime.submit(b"", run_id=name, max_attempts=9))

    @rule(
        key=st.sampled_from(KEYS),
        mode=st.sampled_from(["latest", "queue"]),
        signal_id=st.sampled_from([None, None, "1", "2"]),
        again=st.booleans(),
    )
    def signal(self, key: str, mode: Any, signal_id: str | None, again: bool) -> None:
        self.sent += 1
        payload = b"%d" % self.sent
        if again and signal_id is not None and (key, signal_id) in self.model.ids:
            payload = self.model.ids[key, signal_id].payload
        expected = self.model.signal(key, Sent(payload, mode == "latest", signal_id))
        try:
            told = self.do(
                self.process.runtime.signal(key, payload, mode=mode, signal_id=signal_id)
            )
        except InputMismatch:
            assert expected[0] == "mismatch"
            return
        assert (told.outcome.value, told.created, told.run_id, told.replaced) == expected

    @rule(key=st.sampled_from(KEYS))
    def clear(self, key: str) -> None:
        assert self.do(self.process.runtime.clear_signal(key)) == self.model.clear(key)

    @rule(name=st.sampled_from(RUNS))
    def cancel(self, name: str) -> None:
        if name in self.model.at_work():
            return  # that is a matter of other tests
        assert self.do(self.process.runtime.cancel(name)) == self.model.cancel(name)

    @rule(name=st.sampled_from(RUNS))
    def let_go(self, name: str) -> None:
        if name in self.model.at_work():
            self.model.finish(name, self.model.runs[name])
            self.model.progress()
            self.gates[name].set()

    @rule(ms=st.sampled_from([1, 999, 1000, 5000, 60_000, WEEK_MS]))
    def advance(self, ms: int) -> None:
        if any(run.slow for run in self.model.runs.values()):  # leases are for other tests
            ms = 1 if self.model.at_work() else min(ms, 5000)
        self.do(self.clock.advance(timedelta(milliseconds=ms)))
        self.model.advance_to(self.model.now_ms + ms)

    @rule(
        how=st.sampled_from(["kill", "give back", "take over"]),
        away_ms=st.sampled_from([0, 0, 5000]),
        idle=st.booleans(),
    )
    def restart(self, how: str, away_ms: int, idle: bool) -> None:
        if how == "take over":
            away_ms = 0

        async def restarted() -> None:
            old = self.process
            if how == "kill":
                await old.kill()
            elif how == "give back":
                old.task.cancel()
                await asyncio.gather(old.task, return_exceptions=True)
            self.clock.shift_wall_clock(timedelta(milliseconds=away_ms))
            await self._open(idle=idle)
            if how == "take over":
                await old.kill()

        self.do(restarted())
        self.model.now_ms += away_ms
        self.model.restart(idle)

    @invariant()
    def same(self) -> None:
        self.do(self._compare())

    async def _compare(self) -> None:
        await settle(self.clock)
        model, runtime = self.model, self.process.runtime
        assert self.clock.now_ms() - self.start_ms == model.now_ms
        assert sorted(self.seen, key=repr) == sorted(model.seen, key=repr)
        for name, run in model.runs.items():
            status = await runtime.status(name)
            assert status is not None
            waits = run.registered and not run.began and not model.is_due(run)
            assert status.waiting_for == (run.key if waits else None)
        for name, (kind, given) in model.ended.items():
            outcome = await runtime.outcome(name)
            assert outcome is not None, name
            assert outcome.status.value == kind, name
            assert outcome.result == (given or None)
        rows = self.process.queue.peek("SELECT key, payload FROM signals ORDER BY key, number")
        expected = [(key, sent.payload) for key in KEYS for sent in model.buffers[key]]
        assert rows == expected

    def teardown(self) -> None:
        if hasattr(self, "process"):
            self.do(self.process.kill())
        self.loop.close()


TestSignalMachine = SignalMachine.TestCase
TestSignalMachine.settings = settings(
    max_examples=50,
    derandomize=True,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
