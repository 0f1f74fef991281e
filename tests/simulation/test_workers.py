"""Workers over failing processes: no world breaks a promise, and each planted fault does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from taquba import QueueConfig
from taquba.errors import StoreUnavailable
from taquba.queue import QueueTransaction
from taquba.queue._core import Lane
from taquba.queue._flow import Flow
from taquba.queue._held import Held
from taquba.queue._leases import Lease
from taquba.queue._payloads import Payloads
from taquba.queue._rate import TokenBucket
from tests.simulation import shrink
from tests.simulation.network import Weather
from tests.simulation.runner import simulate_many
from tests.simulation.worker_invariants import Limits
from tests.simulation.workers import Plan, simulate

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("quiet")]

HAPPENS = {
    "jobs": 800,
    "takeovers": 100,
    "crashes": 20,
    "freezes": 75,
    "lost answers": 250,
    "workers cancelled": 35,
    "workers drained": 35,
    "cancellations removed": 10,
    "cancellations requested": 10,
    "ended done": 600,
    "ended dead": 200,
    "ended cancelled": 10,
    "keys at their limit": 500,
    "queues at their limit": 100,
    "rates used up": 50,
    "enqueues refused": 50,
    **{
        f"handlers: {kind}": 35
        for kind in ("blocks", "bury", "chain", "fail", "gives up", "heeds", "no use", "ok")
    },
    **{f"handlers: {kind}": 35 for kind in ("release", "slow", "stubborn", "tidy")},
}
"""How often each kind of event happens in 100 worlds, at least."""


def test_no_world_breaks_a_promise_and_everything_happens(sim_seeds: int) -> None:
    totals, broken = simulate_many(range(sim_seeds // 2), jobs=1, kind="workers")
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
    within: int
    changes: dict[str, Any]


FAULTS: dict[str, Fault] = {}


def fault(
    *noticed_by: str, within: int, **changes: Any
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def register(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        FAULTS[plant.__name__] = Fault(plant, frozenset(noticed_by), within, changes)
        return plant

    return register


@fault("started_early", within=5)
def handlers_do_not_wait_for_their_claim(patch: Patch) -> None:
    async def at_once(self: QueueTransaction) -> None:
        for lease in self._claimed:
            lease.start()

    def told_at_once(
        self: QueueTransaction, callback: Callable[[BaseException | None], None]
    ) -> None:
        self._core.leases.start(self._claimed)
        asyncio.get_running_loop().call_soon(callback, None)

    patch(QueueTransaction, "durable", at_once)
    patch(QueueTransaction, "when_durable", told_at_once)


@fault("done_twice", "not_one_end", "miscounted", within=40, lease=0.4)
def an_expired_claim_settles(patch: Patch) -> None:
    def trust(self: QueueTransaction, claim: Any) -> Lane:
        self._ended[claim._lease] = None
        return self._core.lanes_by_number[claim._lease.queue_number]

    patch(QueueTransaction, "_settle", trust)


@fault("runs_twice", within=20, lease=0.4, max_attempts=3)
def handlers_outlive_their_lease(patch: Patch) -> None:
    patch(Lease, "holder", property(lambda self: None, lambda self, value: None))


@fault("too_many_attempts", within=10)
def attempts_are_without_limit(patch: Patch) -> None:
    from taquba.queue._columns import PRIORITY

    patch("taquba.queue._transaction._settling", "MAX_ATTEMPTS", PRIORITY)


@fault("not_worked_off", within=20, deaths=0.7)
def nobody_takes_back_what_the_dead_held(patch: Patch) -> None:
    patch("taquba.queue._queue", "recover", lambda core: 0)


@fault("miscounted", "not_one_end", within=20)
def effects_come_in_another_commit(patch: Patch) -> None:
    whole = QueueTransaction.put

    def later(self: QueueTransaction, key: bytes, value: bytes) -> None:
        def write() -> None:
            with QueueTransaction(self._core) as tx:
                whole(tx, key, value)

        self.after_commit(write)

    patch(QueueTransaction, "put", later)


@fault("not_worked_off", within=20, backoff=0.2, max_attempts=3)
def what_becomes_due_wakes_nobody(patch: Patch) -> None:
    whole = QueueTransaction.promote

    def quietly(self: QueueTransaction, limit: int) -> int:
        count = whole(self, limit)
        self._woken.clear()
        return count

    patch(QueueTransaction, "promote", quietly)


@fault(
    "lost_payload",
    within=40,
    slots=3,
    lives=2,
    jobs=20,
    deaths=0.7,
    lease=30.0,
    max_attempts=3,
    keep_done=None,
    offload_above=20,
    weather=Weather(latency=0.03, slow=0.3, slowest=3.0, lost=0.1, twice=0.0),
)
def payloads_go_before_their_jobs(patch: Patch) -> None:
    async def at_once(self: Payloads) -> None:
        doomed, self._doomed = self._doomed, []
        self._deleting = None
        with suppress(StoreUnavailable):
            await self.store.delete(doomed)

    patch(Payloads, "_delete", at_once)


@fault("over_a_limit", within=10, limits=Limits(per_key=1), concurrency=5)
def keys_may_do_one_more(patch: Patch) -> None:
    whole = Flow.__init__

    def loose(self: Flow, config: QueueConfig) -> None:
        whole(self, config)
        if self.held is not None:
            self._per_key += 1
            self.held = Held(self._per_key, self._running)

    patch(Flow, "__init__", loose)


@fault("over_a_limit", within=10, limits=Limits(running=2), concurrency=5)
def queues_may_do_one_more(patch: Patch) -> None:
    whole = Flow.allowed

    def one_more(self: Flow, count: int, now_ms: int) -> int:
        return min(count, whole(self, count, now_ms) + 1)

    patch(Flow, "allowed", one_more)


@fault("over_a_limit", within=10, limits=Limits(rate=(5, 1.0, 2)), concurrency=5)
def tokens_are_not_taken(patch: Patch) -> None:
    patch(TokenBucket, "take", lambda self, number, now_ms: None)


@fault("over_a_limit", within=10, limits=Limits(depth=3))
def depth_is_not_asked_for(patch: Patch) -> None:
    patch(QueueTransaction, "check_depth", lambda self: None)


@fault("not_worked_off", within=10, limits=Limits(per_key=1))
def keys_stay_blocked(patch: Patch) -> None:
    patch(Flow, "ended", lambda self, seq: self._claimed.get(seq))


@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]

    def patch(owner: Any, attribute: str, value: Any) -> None:
        if isinstance(owner, str):
            monkeypatch.setattr(f"{owner}.{attribute}", value)
        else:
            monkeypatch.setattr(owner, attribute, value)

    fault.plant(patch)
    others: set[str] = set()
    for seed in range(fault.within):
        world = simulate(seed, replace(Plan.of(seed), **fault.changes))
        broken = {shrink.promise(x) for x in world.violations}
        if broken & fault.noticed_by:
            return
        others |= broken
    pytest.fail(f"not noticed in {fault.within} worlds; but these were broken: {sorted(others)}")
