"""The benchmark of explain(): a tiny run explains all chains, judges them and has its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import explaining, figures


# Each explanation has a process of its own.
@pytest.mark.jobs
def test_a_tiny_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--share", "0.0002", "--rounds", "1", "--folder", str(tmp_path)]
    assert explaining.main(["in order", "a mixture of two", *arguments]) == 0
    out, _ = capsys.readouterr()
    lines = out.splitlines()
    assert [line.startswith("| in order ") for line in lines[2:]] == [True] * 3 + [False] * 3
    # Stores of metadata alone.
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["zarr.json"] * 2


@pytest.mark.parametrize("case", explaining.CHAINS)
def test_what_a_case_gives(case: str, tmp_path: Path) -> None:
    explaining.write_store(tmp_path / "store", 2_000)
    found = explaining.explained(case, tmp_path / "store")
    keys = [figure.key for figure in explaining.FIGURES if figure.case == case]
    assert list(found) == keys
    assert found["took_s"] > 0


def test_two_seconds_are_wanted_of_every_chain() -> None:
    bounds = {f.case: f.bound for f in explaining.FIGURES if f.key == "took_s" and f.most}
    assert bounds == dict.fromkeys(explaining.CHAINS, 2)


def test_the_page_has_its_marks() -> None:
    page = figures.PAGE.read_text(encoding="utf-8")
    assert figures.placed("a table", page, "explaining").count("a table") == 1
