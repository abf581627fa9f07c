"""The benchmarks run, their sides deliver the same records, and docs has what was measured.

What the figures are is not tested.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks import __main__ as program
from benchmarks import cases, pictures, report
from benchmarks.harness import (
    Case,
    Place,
    Side,
)

EVERY = cases.every()
GROUPS = list(dict.fromkeys(case.group for _, case in EVERY.values()))
KEPT = json.loads(report.KEPT.read_text(encoding="utf-8"))


# --- tiny runs -----------------------------------------------------------------------------------


@pytest.mark.jobs
@pytest.mark.parametrize("group", [group for group in GROUPS if group not in ("tfds", "devices")])
def test_a_tiny_run_of_every_case(
    group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "run.json"
    assert program.main([group, "--small", "--json", str(told)]) == 0
    run = json.loads(told.read_text())
    for name, (_, case) in cases.chosen([group]).items():
        for side in case.sides:
            if not side.missing:
                values = run[name]["sides"][side.name]["values"]
                assert min(map(len, values.values())) == 1
                assert values.get("records_per_s", [1])[0] > 0
    out = capsys.readouterr().out
    assert "A tiny run: its figures say nothing." in out
    for table in re.findall(r"(?:^\|.*\n)+", out, re.MULTILINE):
        assert len({len(line) for line in table.splitlines()}) == 1


def rows_of(case: Case, side: Side, setting: str, place: Place) -> npt.NDArray[Any]:
    """What a side delivers in an epoch, as sorted rows of bytes."""
    batches = [np.asarray(batch).copy() for batch in side.opened(place, setting)]
    rows = np.concatenate([batch.reshape(len(batch), -1).view(np.uint8) for batch in batches])
    return rows[np.lexsort(rows.T[::-1])]


EPOCHS = ("array_record.global", "array_record.block", "zarr.block", "zarr.global", "shards.global", "raw.global")  # fmt: skip


@pytest.mark.jobs
@pytest.mark.parametrize("name", EPOCHS)
def test_every_side_delivers_the_same_records(name: str, tmp_path: Path) -> None:
    _, case = EVERY[name]
    place = Place(tmp_path, small=True)
    case.write(place)
    ours = rows_of(case, case.side("ours"), "", place)
    for side in case.sides:
        if side.missing or side.name in ("ours", "floor"):
            continue
        for setting in side.settings:
            if "worker" not in setting or setting.startswith("no"):
                np.testing.assert_array_equal(rows_of(case, side, setting, place), ours)


# --- rounds and ratios ---------------------------------------------------------------------------


def test_bounds_name_sides_that_exist() -> None:
    for name, (_, case) in EVERY.items():
        sides = {side.name for side in case.sides}
        for bound in case.bounds:
            assert {bound.side, bound.over or bound.side} <= sides, name
            assert (bound.at_least is None) != (bound.at_most is None), name


# --- docs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", sorted({page for page, _ in report.SECTIONS.values()}))
def test_pages_have_the_tables_of_the_figures_that_are_kept(page: str) -> None:
    text = (report.DOCS / page).read_text(encoding="utf-8")
    assert report.with_tables(page, text, KEPT) == text, "run python -m benchmarks.report"
    for mark, (where, _) in report.SECTIONS.items():
        if where == page:
            assert report.placed("a table", text, mark).count("a table") == 1


def test_figures_are_kept_of_cases_and_sides_that_exist() -> None:
    for name, case in KEPT.items():
        assert set(case["sides"]) <= {side.name for side in EVERY[name][1].sides}


def test_every_row_of_the_page_about_speed_is_a_case() -> None:
    page = (report.DOCS / "performance.md").read_text(encoding="utf-8")
    assert "](images/speed.svg)" in page
    for row in pictures.ROWS:
        sides = [side.name for side in EVERY[row.case][1].sides]
        assert {"ours", row.side} <= set(sides), row


def test_the_readme_and_the_picture_have_the_figures_that_are_kept() -> None:
    readme = pictures.README.read_text(encoding="utf-8")
    current = report.placed(pictures.readme(KEPT), readme, "figures")
    assert readme == current, "run python -m benchmarks.pictures"
    picture = pictures.SPEED.read_text(encoding="utf-8")
    assert pictures.signature(KEPT) in picture, "run python -m benchmarks.pictures"
