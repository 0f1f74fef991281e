"""Which files the document pipeline takes, and what it calls them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import _pipeline_files as files
from _pipeline_options import parse_arguments
from document_pipeline import Document, find_documents


def test_name_and_content_make_the_run_id() -> None:
    run_id = Document("a letter.txt", "abc").run_id
    assert re.fullmatch(r"a-letter-txt-[0-9a-f]{16}", run_id)
    assert Document("a letter.txt", "abc").run_id == run_id
    assert Document("a letter.txt", "abd").run_id != run_id
    assert Document("a-letter.txt", "abc").run_id != run_id


@pytest.mark.parametrize("name", ["x" * 300, "…", "日本.txt", "a/b\\c d", "-"])
def test_every_name_makes_a_run_id_that_taquba_takes(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,128}", Document(name, "").run_id)


def test_everything_but_folders_and_hidden_files_is_a_document(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("text")
    (tmp_path / "a.bin").write_bytes(b"\0")
    (tmp_path / ".hidden").write_text("text")
    (tmp_path / "folder").mkdir()
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    found = find_documents(tmp_path)
    assert [document.name for document in found] == ["a.bin", "b.txt", "gone.txt"]
    assert [document.sha256 == "" for document in found] == [False, False, True]
    assert list(found.values()) == [tmp_path / document.name for document in found]


def test_names_of_any_bytes_are_made_printable(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    try:
        (tmp_path / name).write_text("text")
    except OSError:  # a file system that takes only UTF-8
        pytest.skip("this file system refuses such a name")
    [(document, path)] = find_documents(tmp_path).items()
    assert document.name == "caf\\xe9.txt"
    assert files.read_file(path) == b"text"


def test_pipes_and_huge_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is not a regular file"):
        files.read_file(tmp_path / "pipe")
    monkeypatch.setattr(files, "LARGEST_FILE", 3)
    (tmp_path / "big").write_bytes(b"1234")
    with pytest.raises(OSError, match="is larger than 3 bytes"):
        files.read_file(tmp_path / "big")


def test_writing_again_replaces_the_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    files.write_whole(tmp_path / "report.txt", "a long first version")
    files.write_whole(tmp_path / "report.txt", "short")
    assert (tmp_path / "report.txt").read_text() == "short"
    assert [path.name for path in tmp_path.iterdir()] == ["report.txt"]


def test_a_failed_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_whole(tmp_path / "report.txt", "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_whole(tmp_path / "report.txt", "new")
    assert (tmp_path / "report.txt").read_text() == "old"


def test_storage_options_are_text_or_json() -> None:
    given = ["--storage-option", "key=a=b", "--storage-option", 'client_kwargs={"region_name":"x"}']
    options = parse_arguments(given)
    assert options.storage_option == {"key": "a=b", "client_kwargs": {"region_name": "x"}}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["/no/such/folder"], "there is no folder /no/such/folder"),
        (["--concurrency", "0"], "--concurrency must be at least 1"),
        (["--concurrency", "many"], "invalid int value"),
        (["--delay", "-1"], "--delay not negative"),
        (["--delay", "nan"], "--delay not negative"),
        (["--storage-option", "key"], "'key' is not KEY=VALUE"),
        (["--no-such-option"], "unrecognized arguments"),
    ],
)
def test_wrong_arguments_are_explained(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(arguments)
    assert complaint in capsys.readouterr().err
