"""``taquba info``: who, when, how much."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from taquba import Queue
from taquba.cli import main
from taquba.cli._gather import Rate
from taquba.cli._main import run
from taquba.cli._prices import PRICES, Prices, Requests, prices_for
from taquba.clock import ManualClock

from .harness import made, objects


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = made(tmp_path / "app")
    assert main(["info", url]) == 0
    shown = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    assert lines["mail"] == ["mail", "18", "0", "0", "2", "0"]
    assert lines["reports"] == ["reports", "6", "0", "0", "0", "0"]
    assert lines["jobs"] == ["jobs", "24"]
    assert "ago" in shown


def test_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = made(tmp_path / "app", lives=3)
    assert main(["info", url, "--json", "--epochs", "2"]) == 0
    info = told(capsys)
    assert info["epoch"] == 3
    assert [epoch["epoch"] for epoch in info["epochs"]] == [2, 3]
    assert all(len(epoch["writer"]) == 32 for epoch in info["epochs"])
    assert info["epochs"][-1]["writer"] == info["writer"]
    assert info["queues"]["mail"]["pending"] == 27
    assert info["database"]["tables"]["jobs"] == 36
    assert info["last_commit_age_seconds"] < 3600
    files = [path for path in (tmp_path / "app").rglob("*") if path.is_file()]
    assert info["stored"]["total"] == {
        "count": len(files),
        "bytes": sum(path.stat().st_size for path in files),
    }
    assert info["stored"]["entries_since"]["count"] == 3


def test_a_short_time_foretells_no_month(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = made(tmp_path / "app")
    assert main(["info", url]) == 0
    assert "too short a time to tell what a month costs" in capsys.readouterr().out
    assert main(["info", url, "--json"]) == 0
    assert told(capsys)["rate"]["dollars_per_month"] is None


@pytest.mark.parametrize("price", [(), ("--price", "put=0.01")])
def test_a_folder_costs_nothing_unless_a_price_is_given(
    price: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taquba.cli._info._SHORTEST", 0.0)
    url = made(tmp_path / "app")
    assert main(["info", url, *price]) == 0
    shown = capsys.readouterr().out
    assert "a month at this rate" in shown
    assert ("$" in shown) == bool(price)


def test_epochs_that_only_loading_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = made(tmp_path / "app")

    async def open_once_more() -> None:
        async with Queue.open(url):
            pass

    asyncio.run(open_once_more())
    assert main(["info", url, "--quick"]) == 0
    assert "(1 newer than the newest checkpoint: --full lists them" in capsys.readouterr().out
    assert main(["info", url]) == 0
    assert "newer than the newest checkpoint" not in capsys.readouterr().out


def test_quick_loads_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = made(tmp_path / "app")
    objects(tmp_path / "app", "chunks")[-1].unlink()
    assert main(["info", url, "--quick", "--json"]) == 0
    info = told(capsys)
    assert info["database"]["loaded"] is False
    assert info["database"]["bytes"] > 0
    assert info["epoch"] == 2
    assert main(["info", url, "--quick"]) == 0
    assert "--full" in capsys.readouterr().out


def test_what_cannot_be_loaded_hides_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = made(tmp_path / "app")
    victim = objects(tmp_path / "app", "journal")[-2]
    victim.write_bytes(victim.read_bytes()[:-1])
    assert main(["info", url]) == 1
    shown = capsys.readouterr().out
    assert victim.name in shown
    assert "taquba verify" in shown
    assert "chunks" in shown


def test_a_clock_that_is_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = made(tmp_path / "app")
    assert run(["info", url], clock=ManualClock()) == 0
    assert "ahead of this machine's clock" in capsys.readouterr().out


@pytest.mark.parametrize("content", [[], ["notes.txt", "photos/one.jpg"]])
def test_no_store(content: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in content:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    for verb in ("info", "verify"):
        assert main([verb, str(tmp_path)]) == 2
        assert "holds no taquba store" in capsys.readouterr().err


def test_a_url_that_lacks_a_slash_is_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("info", "verify"):
        assert main([verb, "s3:/bucket/app"]) == 2
        assert "lacks slashes: write s3://bucket" in capsys.readouterr().err


def test_a_file_is_not_called_absent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    assert main(["info", str(tmp_path / "file")]) == 2
    assert "is a file: give the folder" in capsys.readouterr().err


def test_what_a_month_costs() -> None:
    """One entry a second, and every 1,000 seconds a checkpoint of 9 new chunks."""
    rate = Rate(
        seconds=10_000, entries=10_000, checkpoint_seconds=10_000, checkpoints=10, new_chunks=90
    )
    month = rate.per_month()
    seconds = 365.25 * 86400 / 12
    assert month.put == pytest.approx(seconds * 1.01)
    assert month.list == pytest.approx(seconds * 0.003)
    cost = month.cost(PRICES["s3"])
    assert cost == pytest.approx(seconds * (1.01 + 0.003) * 0.005 / 1000)
    assert 13 < cost < 14


def test_prices() -> None:
    assert prices_for("file", []) == Prices()
    assert prices_for("s3", [("put", 1.0)]) == Prices(put=1.0, get=0.0004, list=0.005)
    assert Requests(put=1000, get=1000, list=1000, delete=1000).cost(
        Prices(put=1, get=2, list=3, delete=4)
    ) == pytest.approx(10)
    assert (
        Rate(seconds=0, entries=5, checkpoint_seconds=0, checkpoints=0, new_chunks=0).per_month()
        == Requests()
    )
