"""``taquba verify``: what it prints, and with which status it ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from taquba import Queue
from taquba.cli import main

from .harness import made, objects


def test_a_healthy_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = made(tmp_path / "app")
    assert main(["verify", url]) == 0
    shown = capsys.readouterr()
    assert "clean" in shown.out
    assert "replayed from" in shown.out
    assert "compared" in shown.out
    assert shown.err == ""


def test_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = made(tmp_path / "app")
    assert main(["verify", url, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["clean"] is True
    assert report["findings"] == []
    assert report["epoch"] == 2
    assert report["settled"] is True
    assert report["replayed"] > 0
    assert report["stored"]["total"]["count"] == sum(
        path.is_file() for path in (tmp_path / "app").rglob("*")
    )


@pytest.mark.parametrize("prefix", ["journal", "checkpoints", "chunks"])
def test_damage_is_named_with_its_meaning(
    prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = made(tmp_path / "app")
    victim = objects(tmp_path / "app", prefix)[-1]
    victim.write_bytes(victim.read_bytes()[:-1])
    assert main(["verify", url]) == 1
    shown = capsys.readouterr()
    assert f"{prefix}/{victim.name}\n" in shown.out
    assert "DAMAGED: 1 finding" in shown.out
    assert "opening the store" in shown.out
    assert main(["verify", url, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [finding["key"] for finding in report["findings"]] == [f"{prefix}/{victim.name}"]
    assert report["findings"][0]["meaning"]


def test_what_nobody_needs_is_counted_and_priced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = made(tmp_path / "app")
    (tmp_path / "app" / "notes.txt").write_text("mine")
    (tmp_path / "app" / "chunks" / f"{1:010d}-{'0' * 64}").write_bytes(b"x" * 2000)
    assert main(["verify", url, "--price", "list=5", "--price", "delete=1"]) == 0
    shown = capsys.readouterr().out
    assert "foreign objects" in shown
    assert "unnamed chunks" in shown
    assert "1 list and 1 delete, $ 0.006" in shown


def test_nothing_is_called_superfluous_that_a_damaged_manifest_may_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = made(tmp_path / "app")
    warning = "While there is damage, delete none of these"
    (tmp_path / "app" / "chunks" / f"{1:010d}-{'0' * 64}").write_bytes(b"x" * 2000)
    assert main(["verify", url]) == 0
    assert warning not in capsys.readouterr().out
    for manifest in objects(tmp_path / "app", "checkpoints"):
        manifest.write_bytes(manifest.read_bytes()[:-9])
    assert main(["verify", url]) == 1
    shown = capsys.readouterr().out
    assert "unnamed chunks" in shown
    assert warning in shown
    assert main(["export", url, str(tmp_path / "state.db")]) == 1
    assert "'taquba verify' tells what is lost" in capsys.readouterr().err


def test_counters_that_lie_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A queue counts wrong: every byte is as it was written, and yet something is not right."""

    async def lie() -> None:
        async with Queue.open(str(tmp_path / "app")) as queue:
            await queue.enqueue("mail", b"one")
            with queue.transaction() as tx:
                tx.execute("UPDATE jobs SET state = 4, ended_at = 1")
            await tx.durable()

    asyncio.run(lie())
    assert main(["verify", str(tmp_path / "app")]) == 1
    shown = capsys.readouterr().out
    assert "queue 'mail' counts 1 pending jobs, and has 0" in shown
    assert "queue 'mail' counts 0 dead jobs, and has 1" in shown


@pytest.mark.parametrize("verb", ["verify", "info"])
def test_no_scratch_files_stay(verb: str, tmp_path: Path) -> None:
    url = made(tmp_path / "app")
    (tmp_path / "scratch").mkdir()
    assert main([verb, url, "--scratch", str(tmp_path / "scratch")]) == 0
    assert list((tmp_path / "scratch").iterdir()) == []


def test_beside_the_owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "app")

    async def work() -> int:
        async with Queue.open(url) as queue:
            await queue.enqueue("mail", b"one")
            return await asyncio.to_thread(main, ["verify", url])

    assert asyncio.run(work()) == 0
    assert "clean" in capsys.readouterr().out
