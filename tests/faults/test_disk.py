"""A disk that is full: the store's own, and the one for temporary files."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from taquba.queue import JobState

from .harness import FAILED, Nursery, World, new_world, snapshot


def _assert_holds_up_and_goes_on(world: World, life_place: int) -> None:
    life = world.lives[-1]
    life.expect("are stored again", after=life_place)
    life.expect("settled", after=life.now, count=30)
    assert life.stop() == 0, life.events[-10:]
    assert life.count("refused") == 0
    assert not [name for name in snapshot(Path(world.target)) if "~tmp-" in name]
    world.judge()


def test_a_folder_on_a_full_disk_holds_commits_up_until_there_is_room(world: World) -> None:
    life = world.start(room=300_000)
    place = life.expect("cannot be stored")
    assert "No space left on device" in life.events[place - 1]
    life.tell("room 100000000")
    _assert_holds_up_and_goes_on(world, place)


def test_a_kill_while_the_disk_is_full_loses_nothing(world: World) -> None:
    life = world.start(room=300_000)
    life.expect("disk full", count=3)
    life.kill()
    world.judge()
    assert world.start(jobs=5).wait() == 0
    contents = world.judge()
    assert all(job.state in (JobState.DONE, JobState.DEAD) for job in contents.jobs.values())


@pytest.mark.long  # takes a minute
def test_opening_on_a_full_disk_is_refused(world: World) -> None:
    assert world.start(jobs=5).wait() == 0
    before = snapshot(Path(world.target))
    life = world.start(room=0)
    assert life.wait() == FAILED
    assert "failed StoreUnavailable" in life.events[-1]
    assert "No space left on device" in life.events[-1]
    assert snapshot(Path(world.target)) == before
    world.judge()


def test_full_scratch_space_stops_checkpoints_and_no_commit(
    nursery: Nursery, tmp_path: Path
) -> None:
    (tmp_path / "scratch").mkdir()
    with new_world(nursery, tmp_path / "world", payload=20_000) as world:
        life = world.start(room=200_000, full="scratch", scratch=str(tmp_path / "scratch"))
        place = life.expect("a checkpoint failed and will be tried again")
        assert str(tmp_path / "scratch") in life.events[place - 1]
        life.expect("settled", after=place, count=30)
        assert life.stop() == 0, life.events[-10:]
        assert list((tmp_path / "scratch").iterdir()) == []
        world.judge()


def test_full_scratch_space_stops_a_queue_whose_state_is_there(
    nursery: Nursery, tmp_path: Path
) -> None:
    """It can neither go on nor forget: it stops, and all that it acknowledged is in the store."""
    (tmp_path / "scratch").mkdir()
    with new_world(nursery, tmp_path / "world", payload=20_000) as world:
        life = world.start(
            state="disk", room=400_000, full="scratch", scratch=str(tmp_path / "scratch")
        )
        life.expect("enqueued", count=3)
        assert life.wait() == FAILED, life.events[-10:]
        assert "failed StateFull" in life.events[-1]
        assert "The scratch disk is full" in life.events[-1], life.events[-1]
        world.judge()
        successor = world.start(state="disk", scratch=str(tmp_path / "scratch"), jobs=5)
        assert successor.wait() == 0
        world.judge()
        assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("state", ["memory", "disk"])
def test_opening_with_full_scratch_space_is_refused(
    nursery: Nursery, tmp_path: Path, state: str
) -> None:
    (tmp_path / "scratch").mkdir()
    with new_world(nursery, tmp_path / "world", payload=20_000) as world:
        assert world.start(task="checkpoints").wait() == 0
        before = snapshot(Path(world.target))
        life = world.start(
            state=state, room=1000, full="scratch", scratch=str(tmp_path / "scratch")
        )
        assert life.wait() == FAILED
        assert "failed StateFull" in life.events[-1]
        assert str(tmp_path / "scratch") in life.events[-1], life.events[-1]
        assert snapshot(Path(world.target)) == before
        assert list((tmp_path / "scratch").iterdir()) == []
        world.judge()


# -- a real file system, for which one needs the right to mount it -----------------------------


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "mounted"
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)],
        check=True,
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _enlarge(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=200m", str(folder)], check=True)


@pytest.mark.long  # mounts a file system, as root
class TestMounted:
    def test_a_folder(self, nursery: Nursery, tmp_path: Path, mounted: Path) -> None:
        target = str(mounted / "store")
        with new_world(nursery, tmp_path / "world", target=target, payload=5_000) as world:
            life = world.start()
            place = life.expect("cannot be stored")
            assert "No space left on device" in life.events[place - 1]
            _enlarge(mounted)
            _assert_holds_up_and_goes_on(world, place)

    def test_scratch_space(self, nursery: Nursery, tmp_path: Path, mounted: Path) -> None:
        with new_world(nursery, tmp_path / "world", payload=20_000) as world:
            life = world.start(scratch=str(mounted), ahead=200)
            place = life.expect("a checkpoint failed and will be tried again")
            life.expect("settled", after=place, count=30)
            assert life.stop() == 0, life.events[-10:]
            assert world.start(task="checkpoints").wait() == 0
            failed = world.start(scratch=str(mounted))
            assert failed.wait() == FAILED
            assert str(mounted) in failed.events[-1], failed.events[-1]
            assert list(mounted.iterdir()) == []
            world.judge()
