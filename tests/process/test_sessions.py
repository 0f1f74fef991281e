"""Sessions that are stopped, taken over, or go wrong: what they say, and what is left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.process.harness import (
    Ended,
    Pipeline,
    assert_all_is_well,
    copy_texts,
    storage_arguments,
)

SLOTS = 2
OPTIONS = ("--concurrency", str(SLOTS), "--delay", "0.02")


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    pipeline = Pipeline(tmp_path, *OPTIONS)
    copy_texts(pipeline.texts, documents=6, sections=4)
    return pipeline


def assert_one_clear_line(ended: Ended, *parts: str, code: int = 1) -> None:
    assert ended.code == code, ended
    lines = ended.err.splitlines()
    assert len(lines) == 1, ended.err
    assert lines[0].startswith("error: ")
    for part in parts:
        assert part in lines[0]


# -- stopped, and taken over ------------------------------------------------------------------


def test_from_beginning_to_end_and_once_more(pipeline: Pipeline) -> None:
    first = pipeline.run()
    assert_all_is_well(pipeline, first, slots=SLOTS, kills=0)
    assert "6 documents in " in first.out
    assert "resuming" not in first.out
    assert "documents             6 reported\n" in first.out
    written = {path: path.stat().st_mtime_ns for path in pipeline.reports.iterdir()}

    second = pipeline.run()
    assert_all_is_well(pipeline, second, slots=SLOTS, kills=0)
    assert "resuming: 6 done before, 0 interrupted, 0 waiting, 0 new" in second.out
    assert "documents             6 reported earlier\n" in second.out
    assert "stage" not in second.out
    assert {path: path.stat().st_mtime_ns for path in pipeline.reports.iterdir()} == written


def test_a_changed_file_is_a_new_run_and_a_new_file_is_one_too(pipeline: Pipeline) -> None:
    pipeline.run()
    changed = sorted(pipeline.texts.iterdir())[0]
    changed.write_text(changed.read_text() + "\n\nOne more thought, which comes late.\n")
    (pipeline.texts / "zz.txt").write_text("A new text, and a short one.")
    ended = pipeline.run()
    assert "resuming: 5 done before, 0 interrupted, 0 waiting, 2 new" in ended.out
    assert "documents             2 reported, 5 reported earlier\n" in ended.out
    assert pipeline.expected_reports().items() <= pipeline.found_reports().items()


def test_a_report_that_is_gone_is_written_from_the_result_without_any_work(
    pipeline: Pipeline,
) -> None:
    pipeline.run()
    for path in list(pipeline.reports.iterdir())[:3]:
        path.unlink()
    ended = pipeline.run()
    assert_all_is_well(pipeline, ended, slots=SLOTS, kills=0)
    assert "expensive calls made  0\n" in ended.out


def test_the_folder_may_move_while_runs_are_under_way(pipeline: Pipeline) -> None:
    with pipeline.session() as session:
        session.read_until("stage 2")
        session.kill()
    pipeline.texts = pipeline.texts.rename(pipeline.home / "elsewhere")
    assert_all_is_well(pipeline, pipeline.run(), slots=SLOTS, kills=1)


def test_ctrl_c_stops_in_good_order_and_says_how_to_go_on(pipeline: Pipeline) -> None:
    with pipeline.session() as session:
        session.read_until("reported")
        stopped = session.interrupt()
    assert stopped.code == 130, stopped
    assert stopped.err == ""
    assert "Stopped. What was finished is kept; to go on, run the same again:" in stopped.out
    last = stopped.out.splitlines()[-1]
    assert "document_pipeline.py" in last
    assert str(pipeline.texts) in last
    assert_all_is_well(pipeline, pipeline.run(), slots=SLOTS, kills=1)


def test_ctrl_c_at_any_stage(pipeline: Pipeline) -> None:
    stages = ("6 documents", "stage 1", "stage 2", "stage 3", "reported")
    for stage in stages:
        with pipeline.session() as session:
            session.read_until(stage)
            stopped = session.interrupt()
        assert (stopped.code, stopped.err) == (130, ""), stopped
    assert_all_is_well(pipeline, pipeline.run(), slots=SLOTS, kills=len(stages))


def test_of_two_processes_that_start_together_one_is_fenced_and_the_other_does_it_all(
    pipeline: Pipeline,
) -> None:
    with pipeline.session("--delay", "0.2") as first, pipeline.session("--delay", "0.2") as second:
        # Whichever opened the store first is the one that is fenced.
        both = (first.wait(), second.wait())
    finisher, fenced = sorted(both, key=lambda ended: ended.code)
    assert_one_clear_line(fenced, "another process took the store over, and goes on from here")
    assert "expensive calls" not in fenced.out
    assert_all_is_well(pipeline, finisher, slots=SLOTS, kills=1, overlapping=True)


def test_a_second_process_takes_over_and_the_first_acknowledges_nothing_more(
    pipeline: Pipeline,
) -> None:
    short = sorted(pipeline.texts.iterdir())[0]
    short.write_text("This one is reported soon, and the others take their time.")
    with pipeline.session("--delay", "1") as first:
        first.read_until("reported")
        finisher = pipeline.run()
        fenced = first.wait()
    assert_one_clear_line(fenced, "another process took the store over, and goes on from here")
    assert "resuming: " in finisher.out
    assert_all_is_well(pipeline, finisher, slots=SLOTS, kills=1, overlapping=True)
    # The one that was fenced began with something, and the other did the rest.
    sessions = list(dict.fromkeys(event.pid for event in pipeline.events()))
    ended = [event.pid for event in pipeline.events() if event.what == "ended"]
    assert set(ended) == set(sessions)
    assert len(sessions) == 2


# -- bad files --------------------------------------------------------------------------------


def test_bad_files_fail_with_a_reason_and_the_rest_goes_on(pipeline: Pipeline) -> None:
    good = pipeline.expected_reports()
    texts = pipeline.texts
    (texts / "binary.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    (texts / "empty.txt").write_bytes(b"")
    (texts / "latin.txt").write_bytes("Grüße aus dem Süden".encode("latin-1"))
    (texts / "loop.txt").symlink_to(texts / "loop.txt")
    (texts / "lost.txt").symlink_to(texts / "nowhere")
    os.mkfifo(texts / "pipe.txt")
    (texts / "secret.txt").write_text("for nobody")
    (texts / "secret.txt").chmod(0)
    reasons = {
        "binary.png": "is binary, not text: byte 8 is zero",
        "empty.txt": "is empty",
        "latin.txt": "is not UTF-8 text: byte 2 is 0xfc",
        "loop.txt": "cannot be read: Too many levels of symbolic links",
        "lost.txt": "cannot be read: No such file or directory",
        "pipe.txt": "cannot be read: is not a regular file",
        "secret.txt": "cannot be read: Permission denied",
    }
    ended = pipeline.run()
    assert (ended.code, ended.err) == (1, ""), ended
    for name, reason in reasons.items():
        assert f"{name}: failed, {reason}\n" in ended.out
    assert f"documents             6 reported, {len(reasons)} failed\n" in ended.out
    assert pipeline.found_reports() == good

    again = pipeline.run()
    assert again.code == 1
    assert f"6 reported earlier, {len(reasons)} failed earlier\n" in again.out
    assert ": failed, " not in again.out

    retried = pipeline.run("--retry-failed")
    assert f"documents             6 reported earlier, {len(reasons)} failed\n" in retried.out


def test_a_file_that_was_mended_is_taken_up(pipeline: Pipeline) -> None:
    (pipeline.texts / "later.txt").write_bytes(b"")
    assert pipeline.run().code == 1
    (pipeline.texts / "later.txt").write_text("Now there is something in it.")
    ended = pipeline.run()
    assert ended.code == 0
    assert "documents             1 reported, 6 reported earlier\n" in ended.out


def test_an_empty_folder_is_no_error(tmp_path: Path) -> None:
    ended = Pipeline(tmp_path).run()
    assert (ended.code, ended.err) == (0, "")
    assert "documents             none\n" in ended.out


# -- stores that cannot be used ---------------------------------------------------------------


def test_a_folder_of_texts_that_does_not_exist(pipeline: Pipeline) -> None:
    pipeline.texts = pipeline.home / "nowhere"
    ended = pipeline.run()
    assert ended.code == 2
    assert f"error: there is no folder {pipeline.texts}" in ended.err
    assert "Traceback" not in ended.err


def test_a_store_that_cannot_be_a_folder(pipeline: Pipeline) -> None:
    (pipeline.home / "file").write_text("in the way")
    assert_one_clear_line(pipeline.run("--store", "file/store"), "file/store")
    assert_one_clear_line(pipeline.run("--store", "file"), "file")
    assert_one_clear_line(pipeline.run("--store", "gone/store"), "gone")


def test_a_store_that_is_not_writable(pipeline: Pipeline) -> None:
    (closed := pipeline.home / "closed").mkdir()
    closed.chmod(0o500)
    assert_one_clear_line(pipeline.run("--store", str(closed)), str(closed))


def test_a_folder_for_reports_that_cannot_be_made(pipeline: Pipeline) -> None:
    (pipeline.home / "file").write_text("in the way")
    assert_one_clear_line(pipeline.run("--reports", "file/reports"), "file/reports")


def test_a_store_of_a_kind_that_nobody_knows(pipeline: Pipeline) -> None:
    assert_one_clear_line(pipeline.run("--store", "ftp://host/folder"), "ftp")


def test_a_damaged_store(pipeline: Pipeline) -> None:
    pipeline.run()
    newest = max((pipeline.home / ".taquba/document-pipeline/store/journal").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])
    assert_one_clear_line(pipeline.run(), newest.name)


def test_a_bucket_that_does_not_exist(pipeline: Pipeline, s3_server: dict[str, Any]) -> None:
    storage = storage_arguments(s3_server["storage_options"])
    ended = pipeline.run("--store", "s3://no-such-bucket/pipeline", *storage)
    assert_one_clear_line(ended, "no-such-bucket")


@pytest.mark.parametrize("option", ["key", "secret"])
def test_wrong_credentials(pipeline: Pipeline, s3_server: dict[str, Any], option: str) -> None:
    storage = storage_arguments({**s3_server["storage_options"], option: "wrong"})
    ended = pipeline.run("--store", f"{s3_server['url']}/pipeline", *storage)
    assert_one_clear_line(ended, s3_server["bucket"])
