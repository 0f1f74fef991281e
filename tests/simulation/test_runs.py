"""Workflow runs over failing processes: no world breaks a promise, and each planted fault does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from taquba.queue import QueueTransaction
from taquba.workflow import RunOutcome, TerminalStatus
from taquba.workflow._delivery import Delivery
from taquba.workflow._hooks import Hooks
from taquba.workflow._runs import RunTable
from taquba.workflow._signals import Signals
from tests.simulation import shrink
from tests.simulation.runner import simulate_many
from tests.simulation.runs import plan_of, simulate

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("quiet")]

HAPPENS = {
    "runs": 500,
    "runs cancelled": 50,
    "signals buffered": 250,
    "signals delivered": 15,
    "signals replaced": 12,
    "interrupted": 3,
    "takeovers": 60,
    "crashes": 10,
    "ended succeeded": 250,
    "ended failed": 150,
    "ended cancelled": 55,
    **{f"steps: {kind}": 60 for kind in ("busy", "hang", "later", "slow", "wait")},
}
"""How often each kind of event happens in 50 worlds, at least."""


def test_no_world_breaks_a_promise_and_everything_happens(sim_seeds: int) -> None:
    totals, broken = simulate_many(range(sim_seeds // 4), jobs=1, kind="runs")
    if broken:
        world = simulate(broken[0])
        print(world.readable())
        pytest.fail(f"{len(broken)} worlds, of seeds {broken[:10]}: {world.violations[:5]}")
    rare = {what: totals[what] for what, least in HAPPENS.items() if totals[what] < least}
    assert sim_seeds < 200 or not rare


def test_one_seed_gives_one_trace() -> None:
    first, second = simulate(3), simulate(3)
    assert first.readable() == second.readable()
    assert len(first.trace) > 50
    assert first.readable() != simulate(4).readable()


# -- planted faults ------------------------------------------------------------------------------

Patch = Callable[[Any, str, Any], None]


@dataclass(frozen=True)
class Fault:
    """A fault, and who notices it."""

    plant: Callable[[Patch], None]
    noticed_by: frozenset[str]
    changes: dict[str, Any]


FAULTS: dict[str, Fault] = {}


def fault(
    *noticed_by: str, **changes: Any
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def register(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        FAULTS[plant.__name__] = Fault(plant, frozenset(noticed_by), changes)
        return plant

    return register


@fault("signal_twice")
def a_signal_stays_when_it_is_taken(patch: Patch) -> None:
    patch(Signals, "_remove", lambda *arguments: None)


@fault("signal_lost")
def a_signal_for_a_waiter_is_dropped(patch: Patch) -> None:
    whole = Signals.begun

    def forget(self: Signals, tx: QueueTransaction, life: int) -> None:
        tx.execute("UPDATE runs SET signal = NULL WHERE life = ?", (life,))
        whole(self, tx, life)

    patch(Signals, "begun", forget)
    patch(Signals, "_buffer", lambda self, tx, key, sent, limited: None)


@fault("not_replaced")
def a_signal_stays_beside_the_latest(patch: Patch) -> None:
    patch(Signals, "_latest", lambda self, tx, key: None)


@fault("told_not_once", cancels=20)
def nobody_is_told_that_a_run_was_cancelled(patch: Patch) -> None:
    whole = Hooks.notification

    def notification(self: Hooks, life: int, outcome: RunOutcome, step: Any) -> Any:
        is_cancelled = outcome.status is TerminalStatus.CANCELLED
        return None if is_cancelled else whole(self, life, outcome, step)

    patch(Hooks, "notification", notification)


@fault("cancelled_in_vain", jobs=20)
def what_a_step_returns_counts_although_it_is_cancelled(patch: Patch) -> None:
    patch(Delivery, "_unless_cancelled", lambda self, claim, life, number, settlement: settlement)


@fault("two_live_steps", "not_ended", "loop_reports", "crashed")
def a_step_stays_beside_its_successor(patch: Patch) -> None:
    patch(QueueTransaction, "_finish", lambda self, lane, row: None)


@fault("end_not_once", "run_lost", jobs=20, deaths=0.7)
def a_run_ends_a_moment_after_its_last_step(patch: Patch) -> None:
    whole = RunTable.end

    def later(self: RunTable, tx: QueueTransaction, *arguments: Any, **options: Any) -> None:
        core = tx._core

        def write() -> None:
            with suppress(Exception), QueueTransaction(core) as other:
                whole(self, other, *arguments, **options)

        tx.after_commit(lambda: call_later(0.5, write))

    def call_later(seconds: float, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, act)

    patch(RunTable, "end", later)


@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    fault.plant(monkeypatch.setattr)
    others: set[str] = set()
    for seed in range(40):
        world = simulate(seed, replace(plan_of(seed), **fault.changes))
        broken = {shrink.promise(x) for x in world.violations}
        if broken & fault.noticed_by:
            return
        others |= broken
    pytest.fail(f"not noticed in 40 worlds; but these were broken: {sorted(others)}")
