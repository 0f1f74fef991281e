"""One process owns a folder, and another one, which may not write there, follows it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.process.harness import environment

SCRIPT = Path(__file__).with_name("following.py")
NOBODY = "65534"

pytestmark = pytest.mark.timeout(120)


class Speaker:
    """A process that answers each line with one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def tell(self, line: object) -> list[str]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.hear()

    def hear(self) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(self.process.stderr.read())
        return line.split()


@contextmanager
def speaker(*arguments: str) -> Iterator[Speaker]:
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Speaker(process)
        finally:
            process.kill()


@pytest.fixture
def folder() -> Iterator[str]:
    """A folder below no private one, so that every user can come to it."""
    with tempfile.TemporaryDirectory() as parent:
        os.chmod(parent, 0o755)
        path = os.path.join(parent, "state")
        os.mkdir(path)
        os.chmod(path, 0o755)
        yield path


@pytest.mark.parametrize(
    "user",
    [
        "",
        pytest.param(
            NOBODY,
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users"),
        ),
    ],
)
def test_a_follower_in_another_process(folder: str, user: str) -> None:
    with speaker("owner", folder) as owner:
        owner.hear()
        with speaker("follower", folder, *([user] if user else [])) as follower:
            _, _, may_write = follower.hear()
            assert may_write == str(not user)
            pending = done = 0
            for enqueue, work in ((5, 2), (40, 0), (1, 30)):
                owner.tell(f"enqueue {enqueue}")
                _, position = owner.tell(f"work {work}")
                pending += enqueue - work
                done += work
                if enqueue == 40:
                    for _ in range(3):
                        owner.tell("enqueue 0")
                        owner.tell("checkpoint")
                shown = [int(word) for word in follower.tell(position)]
                assert shown == [int(position), pending, done, pending]
            # The owner dies, and another process takes over.
            owner.process.kill()
            with speaker("owner", folder) as successor:
                successor.hear()
                _, position = successor.tell("work 3")
                shown = [int(word) for word in follower.tell(position)]
                assert shown == [int(position), pending - 3, done + 3, pending - 3]
            with speaker("follower", folder, *([user] if user else [])) as late:
                late.hear()
                assert late.tell(position) == [str(word) for word in shown]
