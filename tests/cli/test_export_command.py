"""``taquba export``: an ordinary SQLite file, or nothing."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from taquba.cli import main

from .harness import made, objects


def test_any_sqlite_tool_opens_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = made(tmp_path / "app")
    target = tmp_path / "state.db"
    assert main(["export", url, str(target)]) == 0
    assert str(target) in capsys.readouterr().out
    connection = sqlite3.connect(target)
    counted = connection.execute(
        "SELECT name, count(*) FROM jobs JOIN queues ON queue = number GROUP BY name ORDER BY name"
    ).fetchall()
    assert counted == [("mail", 18), ("reports", 6)]
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app", "state.db"]


def test_what_exists_is_replaced_only_by_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = made(tmp_path / "app")
    target = tmp_path / "state.db"
    target.write_text("precious")
    assert main(["export", url, str(target)]) == 2
    assert "--force" in capsys.readouterr().err
    assert target.read_text() == "precious"
    assert main(["export", url, str(target), "--force"]) == 0
    assert target.read_bytes().startswith(b"SQLite format 3\0")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app", "state.db"]


def test_what_exists_stays_when_the_export_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = made(tmp_path / "app")
    target = tmp_path / "state.db"
    target.write_text("precious")
    objects(tmp_path / "app", "journal")[-2].unlink()
    assert main(["export", url, str(target), "--force"]) == 1
    assert "journal/" in capsys.readouterr().err
    assert target.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app", "state.db"]


def test_a_file_that_somebody_has_open_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = made(tmp_path / "app")
    target = tmp_path / "state.db"
    target.write_text("precious")
    (tmp_path / "state.db-wal").write_text("what would be applied to the new file")
    assert main(["export", url, str(target), "--force"]) == 2
    assert "state.db-wal" in capsys.readouterr().err
    assert target.read_text() == "precious"


def test_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = made(tmp_path / "app")
    target = tmp_path / "state.db"
    assert main(["export", url, str(target), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["file"] == str(target)
    assert told["bytes"] == target.stat().st_size
    assert told["epoch"] == 2


@pytest.mark.parametrize(
    ("at", "status", "complaint"),
    [
        ("2026-03-01T18:00:00", 2, "2026-03-01T18:00:00Z"),
        ("yesterday", 2, "-2h"),
        ("-", 2, "-2h"),
        ("-2x", 2, "-2h"),
        ("-9999999999d", 2, "year 1"),
        ("-2h", 2, "no state as of"),
        ("1999-01-01T00:00:00Z", 2, "no state as of"),
        ("2999-01-01T00:00:00+05:30", 0, ""),
        ("-0s", 0, ""),
    ],
)
def test_the_moment(
    at: str, status: int, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = made(tmp_path / "app", lives=1, jobs=2)
    target = tmp_path / "state.db"
    assert main(["export", url, str(target), "--at", at]) == status
    assert complaint in capsys.readouterr().err
    assert target.exists() == (status == 0)


@pytest.mark.parametrize("name", ["", "missing/state.db", ".", "app/"])
def test_a_file_that_cannot_be(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "app", lives=1, jobs=2)
    assert main(["export", "app", name]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "app").mkdir()
    assert main(["export", str(tmp_path / "app"), str(tmp_path / "state.db")]) == 2
    assert "no taquba store" in capsys.readouterr().err
    assert not (tmp_path / "state.db").exists()
