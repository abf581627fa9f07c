"""The word list: what it finds in comments, strings and pages, and what it leaves alone."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tools import words

TOY = '''
    """What is told of a chunk, of
    which some can
    not be read."""

    told = {"told_bytes": 1}  # names and keys are not prose; nobody reads them

    # A message in
    # words, as a comment of two lines.

    def f(told):
        raise ValueError(
            f"the array is no Zarr array, as {told.beside} tells;"
            " a source that is far"
            " away\\ngoes on"
        )
        return told is None  # there is no other
'''


def found(tmp_path: Path, text: str, name: str = "toy.py") -> list[tuple[int, str]]:
    path = tmp_path / name
    path.write_text(textwrap.dedent(text).lstrip("\n"))
    return [(finding.line, finding.phrase) for finding in words.findings(path)]


def test_docstrings_comments_and_messages_are_read_and_code_is_not(tmp_path: Path) -> None:
    assert found(tmp_path, TOY) == [
        (1, "told"),
        (1, "of which"),
        (2, "can not"),
        (5, "nobody"),
        (7, "in words"),
        (12, "is no"),
        (12, "tells"),
        (13, "far away"),
        (14, "goes on"),
    ]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "room").mkdir()
    bad, good = tmp_path / "room" / "bad.py", tmp_path / "good.md"
    bad.write_text("x = 1\n# It can not be told.\n")
    good.write_text("It cannot be read.\n")

    assert words.main(["--files", str(good)]) == 0
    assert capsys.readouterr().out.strip() == ""
    assert words.main(["--files", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{bad}:2: 'can not'; write: cannot"
    assert lines[1].startswith(f"{bad}:2: 'told'; write: report")
    assert lines[2:] == ["2 found"]
    assert words.main(["--count", "--files", str(tmp_path)]) == 0
    assert f"     2  {tmp_path}/room\n     2  in all\n" in capsys.readouterr().out
