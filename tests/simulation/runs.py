"""One seeded world of workflow runs: submitted, signalled and cancelled, over processes that fail.

Each life of a process opens the queue and a runtime, submits runs, signals and cancels. What a step
does is drawn from its run, number and attempt. At the end a process that nothing befalls brings all
runs to their ends, and what was acknowledged on the way is compared with what came of it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar
from unittest import mock

from taquba import PermanentError, TransientError
from taquba._msgpack import unpack
from taquba.errors import Closed, CommitUnknown, Fenced
from taquba.queue import Effects
from taquba.workflow import (
    Cancel,
    Continue,
    Fail,
    Outcome,
    RunOutcome,
    RunState,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)
from tests.simulation import worker_invariants as must
from tests.simulation.network import FAIR, Weather
from tests.simulation.shadow import COLUMNS, replay_all
from tests.simulation.shadow import Step as Entry
from tests.simulation.stack import Plan as StackPlan
from tests.simulation.stack import database_config, in_memory, journal_config
from tests.simulation.virtual_loop import Stuck, run
from tests.simulation.workers import Life, Plan, WorkerWorld, live_through

World = TypeVar("World", bound="RunWorld")
KEYS = tuple("uvwxyz")
STOPPED = (Fenced, Closed, CommitUnknown)
_ATTEMPTS = 9
_LAST = 4
_PATIENCE = 900.0
_LIVE = (0, 1, 2)


def plan_of(seed: int) -> Plan:
    """What the world of this seed consists of; attempts are never what ends its runs."""
    return replace(
        Plan.of(seed), max_attempts=_ATTEMPTS, keep_done=None, cancels=4, limits=must.Limits()
    )


@dataclass
class RunWorld(WorkerWorld):
    """What is recorded of a world, to judge it."""

    cancelled: set[str] = field(default_factory=set[str])
    """Runs of which `cancel` said that they are."""
    sent: set[bytes] = field(default_factory=set[bytes])
    """Signals that were acknowledged."""
    seen: dict[bytes, set[tuple[str, int]]] = field(default_factory=dict[Any, Any])
    """By signal, the steps that saw it."""
    given: dict[tuple[str, int], bytes | None] = field(default_factory=dict[Any, Any])
    """By step, the signal that it saw in its first attempt."""
    signals: int = 0
    last: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """By key, the last signal that somebody wanted to send instead of the one before."""
    replacing: set[bytes] = field(default_factory=set[bytes])
    """Such signals that were acknowledged."""
    refused: set[str] = field(default_factory=set[str])
    """Runs of whose ends the hook did not want to hear at first."""


class RunLife(Life):
    """One life of a process, with its runtime."""

    world: RunWorld
    has_hook = True

    def __init__(self, world: RunWorld, name: str, weather: Weather) -> None:
        super().__init__(world, name, weather)

    async def live(self) -> None:
        self.process.live_here()
        if not await self.open():
            return
        assert self.queue is not None
        try:
            async with WorkflowRuntime(
                self.queue,
                self.run_step,
                concurrency=self.world.plan.concurrency,
                drain_timeout=self.random.choice((None, 0, 5.0)) if not self.healed else 0,
                on_cancel=self.random.choice(("cooperate", "interrupt")),
                terminal_hook=self.hear if self.has_hook else None,
            ) as runtime:
                await self.act(runtime)
        except* STOPPED:
            pass
        await self.close()

    async def act(self, runtime: WorkflowRuntime) -> None:
        """What the application does with its runtime."""
        works = [self.submit(runtime), self.cancel_some_of(runtime), self.signal(runtime)]
        tasks = [self.start(quietly(work)) for work in works]
        await self.process.sleep(self.random.choice((1.0, 3.0, 8.0)))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def submit(self, runtime: WorkflowRuntime) -> None:
        world, random = self.world, self.random
        for _ in range(world.plan.jobs):
            world.made += 1
            name = f"r{world.made}"
            await runtime.submit(name.encode(), run_id=name)
            if not self.process.dead:
                world.acknowledged.add(name)
                world.count("runs")
            await self.process.sleep(random.choice((0.0, 0.001, 0.05, 0.3)))

    async def cancel_some_of(self, runtime: WorkflowRuntime) -> None:
        world, random = self.world, self.random
        for _ in range(world.plan.cancels):
            await self.process.sleep(random.random())
            name = f"r{random.randint(1, max(world.made, 1))}"
            if await runtime.cancel(name) and not self.process.dead:
                world.cancelled.add(name)
                world.count("runs cancelled")

    async def signal(self, runtime: WorkflowRuntime) -> None:
        world, random = self.world, self.random
        for _ in range(world.plan.jobs):
            await self.process.sleep(random.choice((0.01, 0.2, 0.5)))
            world.signals += 1
            payload = b"s%d" % world.signals
            key, replaces = random.choice(KEYS), random.random() < 0.3
            if replaces:
                world.last[key] = payload
            said = await runtime.signal(key, payload, mode="latest" if replaces else "queue")
            if not self.process.dead:
                (world.replacing if replaces else world.sent).add(payload)
                if said.replaced is not None:
                    world.count("signals replaced")
                    if said.replaced in world.sent or said.replaced in world.seen:
                        world.violate(f"replaced_wrongly: {said.replaced!r}")
                world.count(f"signals {said.outcome.value}")

    async def run_step(self, step: Step) -> Outcome:
        world, process = self.world, self.process
        if process.dead:
            raise RuntimeError("not any more")
        world.note(self.name, "runs", step.run_id, step.number, "attempt", step.attempt)
        world.check(must.runs_twice, step.run_id, self.running)
        self._look_at_signal(step)
        self.running.add(step.run_id)
        try:
            return await self.do(step)
        finally:
            self.running.discard(step.run_id)

    async def hear(self, outcome: RunOutcome, effects: Effects) -> None:
        world, name = self.world, outcome.run_id
        if self.process.dead:
            raise RuntimeError("not any more")
        if name not in world.refused and self.random.random() < 0.2:
            world.refused.add(name)
            raise TransientError("not now")
        await self.process.sleep(self.random.choice((0.0, 0.01, 0.1)))
        effects.put(f"told/{name}#{len(world.trace)}/{outcome.status.value}", b"1,")

    def _look_at_signal(self, step: Step) -> None:
        world, me = self.world, (step.run_id, step.number)
        if step.signal is not None:
            world.seen.setdefault(step.signal, set()).add(me)
        first = world.given.setdefault(me, step.signal)
        if first != step.signal:
            world.violate(f"another_signal: {me} saw {first!r}, and then {step.signal!r}")

    async def do(self, step: Step) -> Outcome:
        world, process = self.world, self.process
        random = Random(f"{world.seed}/{step.run_id}/{step.number}/{len(world.trace)}")
        kinds = ["on", "on", "wait", "wait", "later", "busy", "hang", "slow", "fail", "no", "end"]
        kind = "end" if self.healed or step.number >= _LAST else random.choice(kinds)
        if step.attempt > 2:
            kind = "on"
        world.count(f"steps: {kind}")
        await process.sleep(random.choice((0.0, 0.01, 0.1)))
        number = len(world.trace)
        step.effects.put(f"step/{step.run_id}/{step.number}#{number}", b"1,")
        match kind:
            case "busy":
                raise TransientError("busy")
            case "no":
                raise PermanentError("never")
            case "hang":
                try:
                    await _within(step.cancel_token.wait(), process.sleep(1.0))
                except asyncio.CancelledError:
                    if step.cancel_token.is_cancelled:
                        world.count("interrupted")
                    raise
                if step.cancel_token.is_cancelled and random.random() < 0.5:
                    return Cancel("as wanted")
            case "slow":
                await process.sleep(world.plan.lease * random.choice((0.9, 1.5)))
            case "wait":
                timeout = random.choice((0, 0.2, 2.0, 20.0))
                return Continue(signal=random.choice(KEYS), timeout=timeout)
            case "later":
                return Continue(after=random.choice((0.05, 1.0)))
            case "fail":
                return Fail("no")
            case "end":
                step.effects.put(f"done/{step.run_id}#{number}", b"1,")
                return Succeed(step.run_id.encode())
            case _:
                pass
        return Continue()


async def quietly(work: Coroutine[Any, Any, None]) -> None:
    with suppress(*STOPPED):
        await work


async def _within(work: Coroutine[Any, Any, Any], limit: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(limit)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


class _LastLife(RunLife):
    """Brings everything to its end, and looks at what came of it."""

    async def act(self, runtime: WorkflowRuntime) -> None:
        world, queue = self.world, self.queue
        assert queue is not None
        deadline = self.process.loop.time() + _PATIENCE
        while await runtime.unfinished() and self.process.loop.time() < deadline:
            await self.process.sleep(1.0)
        while self.process.loop.time() < deadline:
            stats = await queue.stats(runtime.hook_queue)
            if not stats.pending + stats.claimed + stats.scheduled:
                break
            await self.process.sleep(1.0)
        left = await runtime.unfinished()
        if left:
            world.violate(f"not_ended: {left} runs")
        ends: dict[str, TerminalStatus] = {}
        for (name,) in await queue.read("SELECT run_id FROM runs"):
            status = await runtime.status(name)
            if status is not None and status.termination is not None:
                assert status.state is RunState.TERMINATED
                ends[name] = status.termination.status
                world.count(f"ended {status.termination.status.value}")
        notes = {
            key.decode(): value.decode() for key, value in await queue.read("SELECT * FROM kv")
        }
        buffered = {bytes(row[0]) for row in await queue.read("SELECT payload FROM signals")}
        for key, count in await queue.read(
            "SELECT key, count(*) FROM signals WHERE latest = 1 GROUP BY key"
        ):
            if count > 1:
                world.violate(f"not_replaced: {count} under {key}")
        for complaint in judge(world, ends, notes, buffered):
            world.violate(complaint)


def judge(
    world: RunWorld, ends: dict[str, TerminalStatus], notes: dict[str, str], buffered: set[bytes]
) -> list[str]:
    """What is wrong with what came of everything."""
    end = must.End(jobs={}, notes=notes, done={})
    wrong: list[str] = []
    lost = world.acknowledged - set(ends)
    if lost:
        wrong.append(f"run_lost: {sorted(lost)[:5]}")
    uncancelled = {x for x in world.cancelled if ends.get(x) is not TerminalStatus.CANCELLED}
    if uncancelled:
        wrong.append(f"cancelled_in_vain: {sorted(uncancelled)[:5]}")
    twice = {signal: steps for signal, steps in world.seen.items() if len(steps) > 1}
    if twice:
        wrong.append(f"signal_twice: {twice}")
    again = buffered & set(world.seen)
    if again:
        wrong.append(f"signal_twice: {sorted(again)[:5]} are seen, and still there")
    missing = world.sent | (world.replacing & set(world.last.values()))
    missing -= buffered | set(world.seen)
    if missing:
        wrong.append(f"signal_lost: {sorted(missing)[:5]}")
    done = {name for name, status in ends.items() if status is TerminalStatus.SUCCEEDED}
    noted = end.under("done/")
    if set(noted) != done or any(len(times) != 1 for times in noted.values()):
        wrong.append(f"end_not_once: {sorted(set(noted) ^ done)[:5]}")
    told = end.under("told/")
    if set(told) != set(ends) or any(len(times) != 1 for times in told.values()):
        wrong.append(f"told_not_once: {sorted(set(told) ^ set(ends))[:5]}, {told}"[:500])
    steps = {name: times for name, times in end.under("step/").items() if len(times) != 1}
    if steps:
        wrong.append(f"step_not_once: {steps}")
    return wrong


def two_live_steps(entries: list[Entry]) -> str:
    """No run ever has two steps that are to be run."""
    jobs = COLUMNS["jobs"]
    state, headers = jobs["state"], jobs["headers"]
    live: dict[str, int] = {}
    for entry in entries:
        touched: set[str] = set()
        for change in entry.changes:
            if change.table != "jobs":
                continue
            for row, step in ((change.before, -1), (change.after, 1)):
                if row is not None and row[state] in _LIVE and row[headers] is not None:
                    name = unpack(row[headers]).get("workflow.run_id")
                    if name is not None:
                        live[name] = live.get(name, 0) + step
                        touched.add(name)
        for name in touched:
            if live[name] > 1:
                return f"entry {entry.seq}: {live[name]} steps of {name}"
    return ""


def simulate(seed: int, plan: Plan | None = None) -> RunWorld:
    """Live through the world of this seed. Same seed and plan, same trace."""
    return live_in(RunWorld, seed, plan or plan_of(seed), RunLife, _LastLife, {})


def live_in(
    kind: type[World],
    seed: int,
    plan: Plan,
    life: type[RunLife],
    last_life: type[RunLife],
    checks: dict[str, Callable[[list[Entry]], str]],
) -> World:
    """Live through a world of this kind. The checks look at its journal when it is over."""
    with tempfile.TemporaryDirectory(prefix="taquba-world-", dir=in_memory()) as scratch:
        world = kind(seed, plan, scratch)
        settings = StackPlan.of(seed)

        def config(**given: Any) -> Any:
            return database_config(settings, scratch, **given)

        def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            world.violations.append(f"loop_reports: {context.get('message')} {context!r}")

        async def finish() -> None:
            last = last_life(world, "last", FAIR)
            world.lives.append(last)
            await asyncio.ensure_future(last.live())

        with (
            mock.patch("taquba.queue._queue.DatabaseConfig", config),
            mock.patch("taquba.queue._queue.JournalConfig", journal_config),
        ):
            try:
                run(live_through(world, life, finish), on_error)
            except Stuck as error:
                world.violations.append(f"stuck: {error}")
            except Exception as error:
                world.violations.append(f"crashed: {error!r}")
        history = replay_all(world.store.entries, set())
        world.violations += [f"log_broken: {trouble}" for trouble in history.trouble]
        for name, check in {"two_live_steps": two_live_steps, **checks}.items():
            complaint = check(history.steps)
            if complaint:
                world.violations.append(f"{name}: {complaint}")
    return world
