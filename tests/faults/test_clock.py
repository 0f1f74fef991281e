"""A wall clock that somebody sets, in a running process and between two."""

from __future__ import annotations

import pytest

from taquba.queue import JobState

from .harness import World

HOUR = 3600


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_clock_that_jumps_amid_work(world: World, jump: int) -> None:
    """Leases go by the steady clock, and commits by none."""
    life = world.start(lease=2.0, hold=0.1)
    life.expect("settled", count=20)
    life.tell(f"jump {jump}")
    place = life.expect("obeyed jump")
    life.expect("settled", after=place, count=60)
    assert life.stop() == 0
    assert life.count("refused") + life.count("expired") == 0
    world.judge()


def test_a_clock_that_jumps_forward_makes_what_is_scheduled_due(world: World) -> None:
    life = world.start(jobs=5, delay=HOUR / 2)
    life.expect("enqueued", count=20)
    life.tell(f"jump {HOUR}")
    life.expect("obeyed jump")
    # It would notice when it looks next, within the hour; another process does at once.
    assert life.stop() == 0
    successor = world.start(jobs=0, clock_offset=HOUR)
    assert successor.wait() == 0
    contents = world.judge()
    assert all(job.state in (JobState.DONE, JobState.DEAD) for job in contents.jobs.values())


def test_a_clock_that_jumps_back_makes_what_is_scheduled_wait(world: World) -> None:
    life = world.start(jobs=5, delay=0.5)
    life.tell(f"jump -{HOUR}")
    life.expect("obeyed jump")
    life.expect("enqueued", count=20)
    assert life.stop() == 0
    assert world.start(jobs=0, name="on-time").wait() == 0
    contents = world.judge()
    assert all(job.state in (JobState.DONE, JobState.DEAD) for job in contents.jobs.values())


@pytest.mark.parametrize("offsets", [(HOUR, 0, -HOUR), (-HOUR, 0, HOUR)])
def test_clocks_that_differ_between_processes(world: World, offsets: tuple[int, ...]) -> None:
    for offset in offsets:
        life = world.start(clock_offset=offset)
        life.expect("settled", count=40)
        if offset == 0:
            life.kill()
        else:
            assert life.stop() == 0
        world.judge()
    assert world.start(jobs=10).wait() == 0
    world.judge()
