"""The judgement over sessions must be able to condemn, or its acquittals mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.harness import Event, Pipeline, broken_promises, copy_texts

FORGETFUL = Path(__file__).parent / "forgetful_pipeline.py"

GOOD = """
1 begun
1 stage a 0
1 stage a 1
1 called a 1
1 kept a 1
1 called a 2
2 begun
2 stage a 1
2 recalled a 1
2 called a 2
2 kept a 2
2 stage a 2
3 begun
3 stage a 2
3 ended a
4 begun
4 known a
"""


def events(text: str) -> list[Event]:
    lines = [line.split() for line in text.strip().splitlines()]
    return [Event(int(pid), what, *rest[:1], *map(int, rest[1:])) for pid, what, *rest in lines]


def test_what_may_happen_is_not_condemned() -> None:
    assert broken_promises(events(GOOD), slots=1, kills=2) == []


def test_a_result_whose_line_was_cut_off_by_the_kill_may_be_recalled() -> None:
    log = "1 stage a 1\n1 called a 1\n2 stage a 1\n2 recalled a 1"
    assert broken_promises(events(log), slots=1, kills=1) == []


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("4 called a 1", "session 3 repeats the call ('a', 1) of session 0"),
        ("4 kept a 2", "session 3 keeps ('a', 2) again, after session 1"),
        ("4 recalled a 3", "session 3 recalls ('a', 3), which nobody has called"),
        ("4 stage a 1", "a fell back from stage 2 to 1"),
        ("4 stage a 2", "session 3 works on a, which had ended"),
        ("4 ended a", "a is reported again by session 3"),
    ],
)
def test_what_must_not_happen_is_condemned(line: str, verdict: str) -> None:
    assert verdict in broken_promises(events(GOOD + line), slots=1, kills=3)


def test_repeating_more_calls_than_could_be_in_flight_is_condemned() -> None:
    [verdict] = broken_promises(events(GOOD), slots=1, kills=0)
    assert verdict == "1 calls were repeated, with 0 kills and 1 slots"


def test_lines_of_a_fenced_session_that_stand_late_are_condemned_all_the_same() -> None:
    log = "1 stage a 1\n2 stage a 1\n2 called a 1\n1 called a 1\n1 kept a 1\n2 kept a 1"
    assert broken_promises(events(log), slots=1, kills=1, overlapping=True) == [
        "session 1 repeats the call ('a', 1) of session 0",
        "session 1 keeps ('a', 1) again, after session 0",
    ]


def test_a_memo_that_forgets_is_found_out_by_one_kill(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, "--concurrency", "1", "--delay", "0.01", script=FORGETFUL)
    copy_texts(pipeline.texts, documents=2, sections=6)
    with pipeline.session("--delay", "0.5") as session:
        session.read_until("stage 2")
        while not any(event.what == "kept" for event in pipeline.events()):
            assert not session.ends_within(0.02)
        session.kill()
    assert pipeline.run().code == 0
    verdict, *_ = broken_promises(pipeline.events(), slots=1, kills=1)
    assert verdict.startswith("session 1 repeats the call (")
