"""The smallest world in which the same promise is still broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.network import FAIR
from tests.simulation.stack import Plan, StackWorld, simulate

MOST_TRIES = 120


def promise(violation: str) -> str:
    """Name of the predicate that a violation is about."""
    return violation.split(":", 1)[0]


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with one thing less, those that cut most first."""
    for name in ("slots", "lives", "users", "budget"):
        value: int = getattr(plan, name)
        for less in sorted({1, value // 2, value - 1}):
            if 1 <= less < value:
                yield replace(plan, **{name: less})
    if plan.followers:
        yield replace(plan, followers=0)
    if plan.audits:
        yield replace(plan, audits=plan.audits - 1)
    if plan.worker:
        yield replace(plan, worker=False)
    for name in ("deaths", "freezes", "zombies"):
        if getattr(plan, name):
            yield replace(plan, **{name: 0.0})
    if plan.weather != replace(FAIR, latency=plan.weather.latency):
        yield replace(plan, weather=replace(FAIR, latency=plan.weather.latency))
        for fault in ("slow", "lost", "twice"):
            if getattr(plan.weather, fault):
                yield replace(plan, weather=replace(plan.weather, **{fault: 0.0}))


def shrink(world: StackWorld, live: Callable[[int, Plan], StackWorld] = simulate) -> StackWorld:
    """Cut processes, users, requests and faults, as long as the same promise breaks."""
    broken = promise(world.violations[0])
    smallest = world
    tries = 0
    while tries < MOST_TRIES:
        for plan in smaller(smallest.plan):
            tries += 1
            attempt = live(world.seed, plan)
            if any(promise(violation) == broken for violation in attempt.violations):
                smallest = attempt
                break
            if tries >= MOST_TRIES:
                break
        else:
            break
    return smallest


def explain(world: StackWorld) -> str:
    """What went wrong in a world, the smallest world that shows it, and how to see it again."""
    small = shrink(world)
    return "\n".join(
        [
            f"The smallest world of seed {world.seed} that breaks the same promise:",
            small.readable(),
            "",
            f"seed {world.seed} breaks promises:",
            *(f"  - {violation}" for violation in world.violations[:10]),
            "and its smallest world:",
            *(f"  - {violation}" for violation in small.violations[:10]),
            f"again: python -m tests.simulation --seed {world.seed} --trace",
        ]
    )
