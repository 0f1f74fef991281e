"""Journal, database and queue together: no world breaks a promise, and much happens in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import shrink, stack_invariants
from tests.simulation.runner import simulate_many
from tests.simulation.stack import Plan, simulate

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("quiet")]

HAPPENS = {
    "acknowledged": 1000,
    "takeovers": 100,
    "fencings": 30,
    "crashes": 20,
    "zombies waking": 30,
    "freezes": 50,
    "lost answers": 200,
    "late writes": 20,
    "checkpoints": 200,
    "entries collected": 500,
    "chunks collected": 100,
    "leases expired": 100,
    "claims recovered": 100,
    "settlements refused": 30,
    "shown by followers": 200,
    "reloads": 20,
    "audits": 20,
}
"""How often each kind of event happens in 200 worlds, at least."""


def test_no_world_breaks_a_promise_and_everything_happens(sim_seeds: int) -> None:
    totals, broken = simulate_many(range(sim_seeds), jobs=2)
    assert not broken, shrink.explain(simulate(broken[0]))
    rare = {what: totals[what] for what, least in HAPPENS.items() if totals[what] < least}
    assert sim_seeds < 200 or not rare


def test_one_seed_gives_one_trace() -> None:
    for seed in (3, 11):
        first, second = simulate(seed), simulate(seed)
        assert first.readable() == second.readable()
        assert len(first.trace) > 50
    assert simulate(3).readable() != simulate(4).readable()


def test_the_trace_does_not_depend_on_hashes() -> None:
    root = Path(__file__).parents[2]
    traces: list[str] = []
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        traces += [
            subprocess.run(
                [sys.executable, "-m", "tests.simulation", "--seed", "8", "--trace"],
                cwd=root,
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        ]
    assert traces[0] == traces[1]
    assert "owns epoch 1" in traces[0]


def test_a_broken_world_explains_itself_with_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def complain(*_: object) -> str:
        return "planted complaint"

    complain.__name__ = "doubled"
    monkeypatch.setattr(stack_invariants, "doubled", complain)
    world = simulate(5)
    text = shrink.explain(world)
    assert "doubled: planted complaint" in text
    assert "python -m tests.simulation --seed 5 --trace" in text
    small = shrink.shrink(world)
    assert len(small.trace) < len(world.trace) / 2
    assert (small.plan.slots, small.plan.lives, small.plan.users) == (1, 1, 1)
    assert (small.plan.deaths, small.plan.weather.lost) == (0.0, 0.0)


def test_seeds_give_different_plans() -> None:
    assert len({Plan.of(seed) for seed in range(50)}) > 45
