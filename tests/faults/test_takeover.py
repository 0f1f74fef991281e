"""Several processes on one store: opening at once, and sleeping through a takeover."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from .harness import FENCED, Life, Nursery, World, new_world

STORES = 10
ROUNDS = 10


def test_two_processes_that_open_at_the_same_instant(nursery: Nursery, tmp_path: Path) -> None:
    """A hundred times: one is the owner in the end, the other is fenced and says so."""
    for number in range(STORES):
        with new_world(nursery, tmp_path / str(number)) as world:
            for _ in range(ROUNDS):
                pair = [world.start(task="contend"), world.start(task="contend")]
                for life in pair:
                    life.tell("go")
                loser = world.first_to_end(*pair)
                assert loser.wait() == FENCED, (loser.events[-5:], loser.errors())
                [winner] = [life for life in pair if life is not loser]
                winner.expect("enqueued", after=winner.now, count=2)
                assert winner.stop() == 0, winner.events[-5:]
            world.judge()
            epochs = [
                event.split()[1]
                for life in world.lives
                for event in life.events
                if event.startswith("opened ")
            ]
            assert len(set(epochs)) == len(epochs) >= ROUNDS, "two owners had the same epoch"


def _assert_acknowledges_nothing_begun_after(life: Life, place: int) -> None:
    begun = {"trying": "enqueued", "settling": "settled", "putting": "put"}
    for event in life.events[place:]:
        what, _, of = event.partition(" ")
        if what in begun:
            assert f"{begun[what]} {of}" not in life.events[place:], event


def test_a_process_that_slept_through_a_takeover_acknowledges_nothing(world: World) -> None:
    lease = 1.0
    sleeper = world.start(lease=lease, hold=0.2)
    sleeper.expect("settled", count=20)
    sleeper.signal(signal.SIGSTOP)
    successor = world.start(lease=lease)
    successor.expect("settled", count=50)
    time.sleep(1.5 * lease)  # longer than every lease: this is the fault itself
    place = sleeper.now
    sleeper.signal(signal.SIGCONT)
    assert sleeper.wait() == FENCED, sleeper.events[-5:]
    _assert_acknowledges_nothing_begun_after(sleeper, place)
    successor.expect("settled", after=successor.now, count=20)
    assert successor.stop() == 0
    world.judge()


def test_a_process_that_only_slept_goes_on_and_loses_no_lease(world: World) -> None:
    lease = 2.0  # stalls of less than half a second, of a busy machine, are not given back
    life = world.start(lease=lease, hold=0.4, jobs=6)
    life.expect("claimed", count=12)
    life.signal(signal.SIGSTOP)
    time.sleep(2.5 * lease)  # this is the fault itself
    life.signal(signal.SIGCONT)
    assert life.wait() == 0, life.events[-5:]
    assert life.count("refused") == 0
    assert life.count("expired") == 0
    attempts = [event.split()[1:] for event in life.events if event.startswith("claimed ")]
    retried = {event.split()[1] for event in life.events if event.endswith(" retry")}
    assert [job for job, attempt in attempts if attempt != "1" and job not in retried] == []
    world.judge()
