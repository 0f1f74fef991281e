"""Run groups over failing processes: no world breaks a promise, and each planted fault does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from taquba.queue import QueueTransaction
from taquba.workflow import _group as grouping
from taquba.workflow._clearing import Clearing
from taquba.workflow._delivery import Delivery
from taquba.workflow._group_rows import Group
from taquba.workflow._group_submission import GroupSubmission
from taquba.workflow._group_table import GroupTable
from tests.simulation import shrink
from tests.simulation.groups import simulate
from tests.simulation.runner import simulate_many

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("quiet")]

HAPPENS = {
    "groups submitted": 150,
    "groups broken off": 60,
    "groups cancelled": 40,
    "groups resumed": 60,
    "groups read": 35,
    "groups forgotten": 40,
    "takeovers": 90,
    "crashes": 10,
    **{f"steps: {kind}": 60 for kind in ("busy", "later", "slow", "fail", "no", "end")},
}
"""How often each kind of event happens in 50 worlds, at least."""


def test_no_world_breaks_a_promise_and_everything_happens(sim_seeds: int) -> None:
    totals, broken = simulate_many(range(sim_seeds // 4), jobs=1, kind="groups")
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
FAULTS: dict[str, tuple[Callable[[Patch], None], frozenset[str]]] = {}


def fault(*noticed_by: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def register(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        FAULTS[plant.__name__] = plant, frozenset(noticed_by)
        return plant

    return register


@fault("false_books")
def a_member_that_runs_again_stays_counted(patch: Patch) -> None:
    whole = GroupTable.replaced

    def counted(self: Any, tx: Any, place: Any, status: int, end: int, life: int) -> None:
        tx.execute("UPDATE groups SET failed = failed + 1 WHERE number = ?", (place[0],))
        whole(self, tx, place, status, end, life)

    patch(GroupTable, "replaced", counted)


@fault("false_books")
def a_group_is_told_of_an_end_a_moment_later(patch: Patch) -> None:
    whole = GroupTable.ended

    def later(self: GroupTable, tx: QueueTransaction, *arguments: Any) -> None:
        core = tx._core

        def write() -> None:
            with suppress(Exception), QueueTransaction(core) as other:
                whole(self, other, *arguments)

        tx.after_commit(lambda: asyncio.get_running_loop().call_later(0.01, write))  # type: ignore[arg-type, return-value]

    patch(GroupTable, "ended", later)


@fault("false_books")
def a_group_that_goes_on_is_still_finished(patch: Patch) -> None:
    whole = GroupTable.renew

    def renew(self: Any, tx: Any, group: Group, *rest: Any) -> None:
        [at] = tx.execute(
            "SELECT finished_at FROM groups WHERE number = ?", (group.number,)
        ).fetchone()
        whole(self, tx, group, *rest)
        tx.execute("UPDATE groups SET finished_at = ? WHERE number = ?", (at, group.number))

    patch(GroupTable, "renew", renew)


@fault("results_missing")
def the_cursor_of_results_skips_one(patch: Patch) -> None:
    whole = grouping.page_by_completion

    def skip(table: GroupTable, number: int, after: int) -> Any:
        page, at = whole(table, number, after)
        return page[1:] if len(page) > 2 else page, at

    patch(grouping, "page_by_completion", skip)


@fault("result_twice")
def the_cursor_of_results_stays_behind(patch: Patch) -> None:
    whole = grouping.page_by_completion

    def again(table: GroupTable, number: int, after: int) -> Any:
        page, at = whole(table, number, after)
        return page, at - (len(page) > 2)

    patch(grouping, "page_by_completion", again)


@fault("begun_in_stopped")
def members_of_a_group_that_has_stopped_begin(patch: Patch) -> None:
    whole = Delivery.__init__

    def forgetful(self: Delivery, *arguments: Any, **options: Any) -> None:
        whole(self, *arguments, **options)
        self._stopped = set()

    patch(Delivery, "__init__", forgetful)
    patch(grouping, "cancel_members", _nobody)


async def _nobody(*arguments: Any) -> int:
    return 0


@fault("run_again", "end_not_once")
def members_that_have_succeeded_are_run_again(patch: Patch) -> None:
    whole = GroupTable.members

    def all_of(self: GroupTable, number: int, *rest: Any, **options: Any) -> Any:
        if "where" in options:
            options["where"] = options["where"].replace("> 1", "> 0")
        found = whole(self, number, *rest, **options)
        return [each if each.input is not None else each._replace(input=b"g0 ") for each in found]

    patch(GroupTable, "members", all_of)
    again = GroupSubmission.run_again

    async def run_again(self: GroupSubmission, group: Group, headers: Any) -> None:
        await again(self, replace(group, failed=group.total), headers)

    patch(GroupSubmission, "run_again", run_again)


@fault("left_behind")
def what_belongs_to_runs_outlasts_a_group(patch: Patch) -> None:
    def leave(self: Clearing, tx: QueueTransaction, life: int) -> None:
        tx.execute("INSERT OR IGNORE INTO ended_lives VALUES (?)", (-life,))

    patch(Clearing, "forget", leave)


@fault("another_input", "group_raised", "not_succeeded", "crashed")
def a_member_runs_again_with_what_its_last_step_was_given(patch: Patch) -> None:
    whole = GroupTable.keep_input

    def keep(self: GroupTable, tx: Any, life: int, data: bytes | None = None) -> None:
        whole(self, tx, life, None if data is None else data + b"!")

    patch(GroupTable, "keep_input", keep)


@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, noticed_by = FAULTS[name]
    plant(monkeypatch.setattr)
    others: set[str] = set()
    for seed in range(40):
        broken = {shrink.promise(x) for x in simulate(seed).violations}
        if broken & noticed_by:
            return
        others |= broken
    pytest.fail(f"not noticed in 40 worlds; but these were broken: {sorted(others)}")
