"""Every example does what its header shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.sessions import EXAMPLES, Command, check, session

_BY_HAND = {"document_pipeline", "email_worker"}
"""Those that have tests of their own."""


@pytest.mark.parametrize(
    "example", [x for x in EXAMPLES if x.stem not in _BY_HAND], ids=lambda x: x.stem
)
@pytest.mark.timeout(120)
def test_what_the_header_shows(example: Path, tmp_path: Path) -> None:
    check(example, tmp_path)


def _example(tmp_path: Path, header: str, body: str) -> Path:
    example = tmp_path / "one.py"
    example.write_text(f'"""{header}"""\n{body}\n')
    return example


def test_a_session_has_several_commands(tmp_path: Path) -> None:
    header = "About.\n\n    $ python a.py x\n    one\n      two\n    $ python a.py\n\nMore.\n"
    assert session(_example(tmp_path, header, "")) == [
        Command("python a.py x", "one\n  two"),
        Command("python a.py", ""),
    ]


def test_a_difference_is_an_error(tmp_path: Path) -> None:
    for prints, body in (("one", "print('two')"), ("", "print('x')"), ("one", "print('one'); 1/0")):
        example = _example(tmp_path, f"A.\n\n    $ python one.py\n    {prints}\n", body)
        with pytest.raises(AssertionError):
            check(example, tmp_path)
    with pytest.raises(AssertionError, match="shows no session"):
        check(_example(tmp_path, "A.", ""), tmp_path)


def test_dots_stand_for_anything(tmp_path: Path) -> None:
    header = "A.\n\n    $ python one.py\n    it took … s\n    end\n"
    check(_example(tmp_path, header, "print('it took 3 s'); print('end')"), tmp_path)
