"""What the document pipeline does with text."""

from __future__ import annotations

from pathlib import Path

import pytest

from _pipeline_text import (
    Analysis,
    NotText,
    Report,
    analyse,
    combine,
    decode,
    reading_seconds,
    render,
    split_sections,
    spoken,
)

DATA = Path(__file__).parents[2] / "examples" / "data"

A = "The first paragraph has " + "many different words and " * 10 + "an end."
B = "The second one has " + "rather fewer of those but enough " * 6 + "as well."


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04\x00\x00rest", "is binary, not text: byte 4 is zero"),
        (b"caf\xe9 au lait", "is not UTF-8 text: byte 3 is 0xe9"),
        (b"\xff\xfeh\x00i\x00", "is binary"),
        (b" \n\t\n", "has no words"),
        (b"1234 --- 5678", "has no words"),
    ],
)
def test_what_is_no_text_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(NotText, match=reason):
        decode(data)


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert decode(b"\xef\xbb\xbfh\xc3\xa9llo") == "héllo"


def test_a_text_without_headings_is_split_at_blank_lines() -> None:
    assert split_sections(f"{A}\n\n{B}\n") == [A, B]
    assert split_sections(f"\r\n{A}\r\n \t\r\n\r\n\r\n{B}") == [A, B]


def test_a_text_with_headings_is_split_there_only() -> None:
    text = f"Before.\n\n# One\n\n{A}\n\n{B}\n\n## Two\n{B}"
    assert split_sections(text) == [f"Before.\n\n# One\n\n{A}\n\n{B}", f"## Two\n{B}"]


def test_a_short_piece_is_joined_to_the_next_and_the_last_one_to_the_one_before() -> None:
    assert split_sections(f"TITLE\n\n{A}\n\n{B}\n\nThe end.") == [
        f"TITLE\n\n{A}",
        f"{B}\n\nThe end.",
    ]
    assert split_sections("Short.\n\nAnd shorter.") == ["Short.\n\nAnd shorter."]


def test_no_word_is_lost_by_splitting() -> None:
    for path in DATA.iterdir():
        text = path.read_text()
        assert " ".join(split_sections(text)).split() == text.split(), path.name


def test_words_are_counted_and_those_that_mean_little_are_no_terms() -> None:
    analysis = analyse("# The Miller’s wheel\nIt's the miller who doesn't turn the WHEEL 3 times.")
    assert analysis == Analysis(
        title="The Miller’s wheel",
        words=12,
        terms={"miller": 2, "wheel": 2, "turn": 1, "times": 1},
    )


def test_a_long_first_line_is_cut_for_the_title() -> None:
    title = analyse("word " * 40).title
    assert len(title) <= 60
    assert title.endswith("word…")


def test_terms_of_all_sections_are_added_up_and_ties_go_by_the_alphabet() -> None:
    report = combine(
        "a.txt",
        "abc",
        [
            Analysis("One", 100, {"salt": 1, "bread": 2}),
            Analysis("Two", 130, {"salt": 1, "oven": 1}),
        ],
    )
    assert report == Report(
        name="a.txt",
        sha256="abc",
        words=230,
        reading_seconds=60,
        terms=[("bread", 2), ("salt", 2), ("oven", 1)],
        sections=[("One", 100), ("Two", 130)],
    )


@pytest.mark.parametrize(
    ("words", "seconds", "text"),
    [(1, 1, "1 s"), (229, 60, "1 min 00 s"), (230, 60, "1 min 00 s"), (2300, 600, "10 min 00 s")],
)
def test_reading_time_is_rounded_up(words: int, seconds: int, text: str) -> None:
    assert reading_seconds(words) == seconds
    assert spoken(seconds) == text


def test_a_report_reads_like_this() -> None:
    report = Report("bread.txt", "0f" * 32, 1234, 322, [("rye", 12)], [("One", 1000), ("Two", 234)])
    assert render(report) == (
        "bread.txt\n"
        "=========\n"
        "\n"
        f"sha256        {'0f' * 32}\n"
        "words         1,234\n"
        "reading time  5 min 22 s\n"
        "sections      2\n"
        "\n"
        "Most frequent terms\n"
        "    12  rye\n"
        "\n"
        "Sections\n"
        "  1000 words  One\n"
        "   234 words  Two\n"
    )


def test_the_texts_that_come_with_it_are_worth_working_through() -> None:
    texts = {path.name: path.read_bytes() for path in DATA.iterdir()}
    assert len(texts) >= 20
    assert all(2_000 <= len(text) <= 20_000 for text in texts.values())
    assert sum(len(text) > 8_000 for text in texts.values()) >= 2
    lines = [
        line for text in texts.values() for line in decode(text).splitlines() if len(line) > 60
    ]
    assert len(set(lines)) == len(lines)
    assert all(len(split_sections(decode(text))) >= 4 for text in texts.values())
