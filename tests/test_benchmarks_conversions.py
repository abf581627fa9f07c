"""The benchmark of conversions: a tiny run measures all cases, judges them and writes its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import conversions, figures

pytestmark = pytest.mark.jobs


def test_a_tiny_run_of_every_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--share", "0.0005", "--rounds", "1", "--folder", str(tmp_path)]
    assert conversions.main(arguments) == 0
    out, _ = capsys.readouterr()
    for figure in conversions.FIGURES:
        assert f"| {figure.case}" in out
    assert len(out.splitlines()) == 2 + len(conversions.FIGURES)


def test_bounds() -> None:
    at_least = next(figure for figure in conversions.FIGURES if not figure.most)
    at_most = next(figure for figure in conversions.FIGURES if figure.most)
    assert at_least.bound is not None
    assert at_most.bound is not None
    assert at_least.is_met(at_least.bound)
    assert not at_least.is_met(at_least.bound * 0.99)
    assert at_most.is_met(at_most.bound)
    assert not at_most.is_met(at_most.bound * 1.01)
    runs = {at_least.case: [{at_least.key: value} for value in (1.0, 9.0, 2.0)]}
    others = {f.key: 1.0 for f in conversions.FIGURES if f.case == at_least.case}
    table = figures.markdown(
        conversions.FIGURES, {at_least.case: [{**others, **run} for run in runs[at_least.case]]}
    )
    assert "2 (1 to 9)" in table
    told = figures.Figure("a case", "a word", "key", None)
    line = figures.markdown([told], {"a case": [{"key": 0.0}]}).splitlines()[-1]
    assert " ".join(line.split()) == "| a case | a word | - | 0 (0 to 0) | - |"


@pytest.mark.parametrize("name", ["conversions", "tfds"])
def test_the_page_has_its_marks_once(name: str) -> None:
    page = figures.PAGE.read_text(encoding="utf-8")
    placed = figures.placed("a table", page, name)
    assert placed.count("a table") == 1
    assert figures.placed("another", placed, name) == figures.placed("another", page, name)


def test_a_page_without_marks() -> None:
    with pytest.raises(ValueError, match="no marks <!-- tfds -->"):
        figures.placed("a table", "a page", "tfds")


def test_an_unknown_case(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        conversions.main(["nothing"])
    assert "no such case: nothing" in capsys.readouterr().err
