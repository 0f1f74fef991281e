"""What the document pipeline does with text: plain functions that know nothing of taquba."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

WORDS_PER_MINUTE = 230
TERMS_IN_REPORT = 8

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_HEADING = re.compile(r"^#{1,6} +\S.*$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n[ \t]*\n\s*")
_SHORTEST_SECTION = 25
"""Words; a title or a one-line paragraph is read together with what follows it."""

_STOP_WORDS = """
    a about across after again all along also although always am an and another any anybody
    anything are as ask asked at away back be because been before being below between both but
    by came can cannot come could dear did do does doing done down during each either else
    enough even ever every everybody everything few first for from get go goes going gone good
    got had has have he her here hers him his how however i if in indeed into is it its itself
    just know last least less let like long look made make many may me might mine miss more most
    mrs much must my myself never next no nobody nor not nothing now of off often on once one
    only onto or other others our ours out over own perhaps put quite rather said same say see
    seem seen shall she should since so some somebody something still such take than that the
    their theirs them themselves then there these they thing things this those though three
    through till to too took two under until up upon us very was way we well went were what when
    where whether which while who whole whom whose why will with within without would yes yet
    you your yours
"""
_UNINTERESTING = frozenset(_STOP_WORDS.split())


class NotText(ValueError):
    """These bytes are not a text with words in it; the message says why."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """What the expensive call finds out about one section."""

    title: str
    words: int
    terms: dict[str, int]


@dataclass(frozen=True, slots=True)
class Report:
    """What is reported about one document."""

    name: str
    sha256: str
    words: int
    reading_seconds: int
    terms: list[tuple[str, int]]
    sections: list[tuple[str, int]]
    """Title and number of words of each."""


def decode(data: bytes) -> str:
    """The text in a file's bytes.

    Raises:
        NotText: The file is empty, is binary, or has no words.
    """
    if not data:
        raise NotText("is empty")
    if (position := data.find(0)) >= 0:
        raise NotText(f"is binary, not text: byte {position} is zero")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise NotText(f"is not UTF-8 text: byte {error.start} is 0x{byte:02x}") from None
    if not _WORD.search(text):
        raise NotText("has no words in it")
    return text


def split_sections(text: str) -> list[str]:
    """Cut a text at its ``# headings``, or else at blank lines, into pieces worth a call."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip()
    starts = [match.start() for match in _HEADING.finditer(text)]
    if len(starts) > 1:
        cuts = [0, *starts, len(text)]
        pieces = [text[start:end].strip() for start, end in itertools.pairwise(cuts)]
    else:
        pieces = _BLANK_LINES.split(text)
    return _join_short([piece for piece in pieces if piece])


def _join_short(pieces: Sequence[str]) -> list[str]:
    sections: list[str] = []
    short = ""
    for piece in pieces:
        short = f"{short}\n\n{piece}" if short else piece
        if len(_WORD.findall(short)) >= _SHORTEST_SECTION:
            sections.append(short)
            short = ""
    if short and sections:
        sections[-1] += f"\n\n{short}"
    elif short:
        sections.append(short)
    return sections


def analyse(section: str) -> Analysis:
    """Count the words of a section, and how often each one that means something occurs."""
    words = _WORD.findall(section)
    terms = Counter(term for word in words if (term := _term(word)))
    first_line = section.split("\n", 1)[0].strip("#= ").strip()
    title = first_line if len(first_line) <= 60 else first_line[:59].rstrip() + "…"
    return Analysis(title, len(words), dict(terms))


def _term(word: str) -> str:
    """The word as it is counted among the terms, or nothing if it means little."""
    term = word.lower().replace("’", "'").removesuffix("'s")
    return "" if len(term) <= 2 or "'" in term or term in _UNINTERESTING else term


def combine(name: str, sha256: str, analyses: Sequence[Analysis]) -> Report:
    """Put the analyses of all sections together."""
    terms: Counter[str] = Counter()
    for analysis in analyses:
        terms.update(analysis.terms)
    words = sum(analysis.words for analysis in analyses)
    most_frequent = sorted(terms.items(), key=lambda term: (-term[1], term[0]))
    return Report(
        name=name,
        sha256=sha256,
        words=words,
        reading_seconds=reading_seconds(words),
        terms=most_frequent[:TERMS_IN_REPORT],
        sections=[(analysis.title, analysis.words) for analysis in analyses],
    )


def reading_seconds(words: int) -> int:
    """How long reading so many words takes, rounded up."""
    return math.ceil(words * 60 / WORDS_PER_MINUTE)


def spoken(seconds: int) -> str:
    """A reading time as people say it."""
    if seconds < 60:
        return f"{seconds} s"
    return f"{seconds // 60} min {seconds % 60:02d} s"


def render(report: Report) -> str:
    """The report as a text file. The same report always gives the same text."""
    lines = [
        report.name,
        "=" * len(report.name),
        "",
        f"sha256        {report.sha256}",
        f"words         {report.words:,}",
        f"reading time  {spoken(report.reading_seconds)}",
        f"sections      {len(report.sections)}",
        "",
        "Most frequent terms",
        *(f"  {count:>4}  {term}" for term, count in report.terms),
        "",
        "Sections",
        *(f"  {words:>4} words  {title}" for title, words in report.sections),
        "",
    ]
    return "\n".join(lines)
