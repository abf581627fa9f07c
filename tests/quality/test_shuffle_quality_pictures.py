"""The pictures of shuffling: a tiny run trains, reports and draws."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import shuffling
from tests.pictures import ROOT, check_that_the_extra_is_named, width_and_height

pytestmark = pytest.mark.jobs

PICTURES = {"shuffle_orders": (1380, 420), "shuffle_quality": (1380, 600), "shuffle_losses": (1380, 600)}  # fmt: skip


def test_a_tiny_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "pictures"
    assert shuffling.main(["--small", "--folder", str(folder)]) == 0
    told = capsys.readouterr().out
    rows = re.findall(r"^\| (.+?) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", told, re.MULTILINE)
    assert [name for name, *_ in rows] == list(shuffling.SMALL.orders())
    shuffled, windows, plain = (float(ratio) for _, _, ratio, _ in rows)
    assert shuffled < windows < plain
    assert {path.stem: width_and_height(path) for path in folder.iterdir()} == PICTURES


def test_the_page_has_the_pictures_and_a_row_for_each_order() -> None:
    page = (ROOT / "docs" / "shuffling.md").read_text(encoding="utf-8")
    for name, size in PICTURES.items():
        assert width_and_height(ROOT / "docs" / "images" / f"{name}.png") == size
        assert f"](images/{name}.png)" in page
    table = page.partition("<!-- losses -->")[2].partition("<!-- end of losses -->")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines()[3:]]
    assert rows == [f"| {name}" for name in shuffling.Sizes().orders()]


def test_without_matplotlib_the_extra_is_named() -> None:
    check_that_the_extra_is_named("benchmarks.shuffling")
