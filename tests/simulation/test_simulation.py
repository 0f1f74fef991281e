"""The journal alone: no world breaks a promise; without any of its rules some world does."""

from __future__ import annotations

import pytest

from taquba.errors import ObjectExists, StoreUnavailable
from taquba.journal import Checkpoint
from taquba.journal import _collect as collecting
from taquba.journal import _pipeline as writing
from taquba.journal import _takeover as opening
from taquba.journal._position import Position
from taquba.journal._settle import create_or_read
from taquba.objectstore import ObjectStore
from tests.simulation import invariants
from tests.simulation.runner import simulate_many
from tests.simulation.world import explain, simulate

# A busy machine may be slow; the worlds do not mind.
pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("quiet")]


def first_broken(limit: int, expected: str) -> str:
    """The first complaint that contains `expected`, within so many seeds."""
    for seed in range(limit):
        for violation in simulate(seed).violations:
            if expected in violation:
                return violation
    pytest.fail(f"the simulation misses it: no '{expected}' in {limit} worlds")


def test_no_world_breaks_a_promise(sim_seeds: int) -> None:
    totals, broken = simulate_many(range(sim_seeds), jobs=2, kind="journal")
    assert not broken, explain(simulate(broken[0]))
    # A simulation in which nothing happens proves nothing.
    assert totals["opened"] > 3 * sim_seeds
    assert totals["acknowledged"] > 30 * sim_seeds
    assert totals["collected"] > 3 * sim_seeds
    assert totals["checkpoints"] > sim_seeds
    assert totals["ahead"] > sim_seeds // 20


def test_one_seed_gives_one_trace() -> None:
    for seed in (3, 11):
        first, second = simulate(seed), simulate(seed)
        assert first.readable() == second.readable()
        assert len(first.trace) > 100
    assert simulate(3).readable() != simulate(4).readable()


def test_a_broken_world_explains_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariants, "doubled", lambda _log: "planted complaint")
    text = explain(simulate(5))
    assert "planted complaint" in text
    assert "python -m tests.simulation --journal --seed 5 --trace" in text
    assert "acknowledged" in text


def test_without_the_second_look_some_world_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look_away(store: ObjectStore, trail: object) -> bool:
        return True

    monkeypatch.setattr(opening, "second_look", look_away)
    assert first_broken(300, "acknowledged, and lost")


def test_with_epoch_entries_collected_some_world_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_none(checkpoint: Checkpoint) -> frozenset[int]:
        return frozenset()

    monkeypatch.setattr(collecting, "epochs_to_keep", keep_none)
    assert first_broken(200, "acknowledged, and lost")


def test_acknowledging_out_of_order_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def eager(self: writing.Pipeline, flight: writing.Flight) -> None:
        if not self._halted:
            self._flights.remove(flight)
            self._sent -= 1
            self.unacknowledged_bytes -= len(flight.data)
            self._acknowledge(flight.seq, flight.ticket)
            self._send()
            self._progress()

    monkeypatch.setattr(writing.Pipeline, "_on_stored", eager)
    assert first_broken(50, "never landed")


def test_taking_a_lost_answer_for_a_lost_race_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def believe(store: ObjectStore, key: str, data: bytes) -> bytes | None:
        try:
            await store.create(key, data)
        except ObjectExists:
            return await store.get(key)
        return None

    monkeypatch.setattr(writing, "create_or_read", believe)
    assert first_broken(50, "there is no newer one")


def test_taking_a_lost_answer_for_a_failure_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def give_up(store: ObjectStore, key: str, data: bytes) -> bytes | None:
        try:
            return await create_or_read(store, key, data)
        except StoreUnavailable:
            return data

    monkeypatch.setattr(writing, "create_or_read", give_up)
    assert first_broken(50, "there is no newer one")


def test_acknowledging_after_the_end_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def never_halt(self: writing.Pipeline) -> None:
        pass

    def only_note(self: object, error: object) -> None:
        pass

    monkeypatch.setattr(writing.Pipeline, "halt", never_halt)
    monkeypatch.setattr("taquba.journal._journal.Journal._end_waiters", only_note)
    monkeypatch.setattr("taquba.journal._supervisor.Supervisor.cancel", never_halt)
    assert first_broken(100, "after the journal stopped")


def test_creating_further_ahead_than_a_window_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_far(position: Position) -> int:
        return position.seq + 2 * position.window - 1

    monkeypatch.setattr(opening, "place_ahead", too_far)
    assert first_broken(200, "cannot open")


def test_more_in_flight_than_the_window_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    build = writing.Pipeline.__init__

    def wide(self: writing.Pipeline, store: ObjectStore, *, window: int, **rest: object) -> None:
        build(self, store, window=8 * window, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(writing.Pipeline, "__init__", wide)
    assert first_broken(200, "cannot open")
