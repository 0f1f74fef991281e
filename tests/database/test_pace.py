"""How long a turn takes, by the clock that is injected."""

from __future__ import annotations

from taquba.clock import ManualClock
from taquba.database._pace import Pace


class _Worker:
    """Work of which each unit takes a time."""

    def __init__(self, units: int, seconds_each: float) -> None:
        self.clock = _Clock()
        self.left = units
        self.seconds_each = seconds_each
        self.portions: list[int] = []

    def work(self, amount: int) -> bool:
        self.portions.append(amount)
        self.left -= amount
        self.clock.pass_by(amount * self.seconds_each)
        return self.left <= 0

    def turn(self, pace: Pace) -> float:
        """How long it took."""
        before = self.clock.monotonic()
        pace.turn(self.work, lambda: self.left)
        return self.clock.monotonic() - before


class _Clock(ManualClock):
    def pass_by(self, seconds: float) -> None:
        self._elapsed += seconds


def test_a_turn_is_short_and_longer_where_turns_are_rare() -> None:
    worker = _Worker(10**6, 1e-5)
    pace = Pace(worker.clock, 256)
    for _ in range(5):
        worker.turn(pace)  # learns how fast the work is
    assert 0.001 < worker.turn(pace) < 0.004
    worker.clock.pass_by(0.05)
    assert 0.005 < worker.turn(pace) < 0.009
    worker.clock.pass_by(10)
    assert 0.008 < worker.turn(pace) < 0.012


def test_a_slow_disk_makes_portions_smaller_and_a_fast_one_larger_again() -> None:
    worker = _Worker(10**6, 1e-4)
    pace = Pace(worker.clock, 256)
    for _ in range(10):
        worker.turn(pace)
    assert worker.portions[-1] in range(8, 13)
    worker.seconds_each = 1e-6
    for _ in range(10):
        worker.turn(pace)
    assert worker.portions[-1] == 256


def test_turns_grow_when_the_work_grows_faster() -> None:
    worker = _Worker(10**4, 1e-4)
    pace = Pace(worker.clock, 256)
    for turn in range(200):
        worker.clock.pass_by(1)
        worker.left += 300  # takes 30 ms to do
        worker.turn(pace)
        if worker.left <= 0:
            assert turn > 10
            return
    raise AssertionError("it never ends")


def test_a_clock_that_stands_still_allows_one_portion_a_turn() -> None:
    worker = _Worker(1000, 0.0)
    pace = Pace(worker.clock, 10)
    worker.turn(pace)
    worker.turn(pace)
    assert worker.portions == [10, 10]
    assert pace.turn(lambda amount: True, lambda: 0)
