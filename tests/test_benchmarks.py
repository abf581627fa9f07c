"""The benchmarks run, their sides deliver the same records, and docs has what was measured.

What the figures are is not tested.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks import __main__ as program
from benchmarks import cases, measure, pictures, report
from benchmarks.harness import (
    Bound,
    Case,
    Measured,
    Metrics,
    Place,
    Regime,
    Run,
    Side,
    beside_the_floor,
    in_turns,
    judged,
    ratios,
)
from tests.pictures import check_that_the_extra_is_named, width_and_height

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


@pytest.mark.jobs
def test_a_measurement_has_a_process_of_its_own(tmp_path: Path) -> None:
    topic, case = EVERY["zarr.block"]
    case.write(Place(tmp_path, small=True))
    found = measure.ask(topic, case, "expert", "2 ahead", 5, Place(tmp_path))
    assert found["ended_after"] > 0
    assert min(found[name] for name in ("records_per_s", "mb_per_s", "cpu_s_per_gb")) > 0
    with pytest.raises(RuntimeError, match=r"(?s)it failed.*Error"):
        measure.ask(topic, case, "expert", "2 ahead", 1, Place(tmp_path / "none"))


def test_memory_of_children_counts() -> None:
    def opened(place: Place) -> Any:
        child = "kept = bytes(b'1') * 60_000_000; print(flush=True); input()"
        process = subprocess.Popen(
            [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()

        def batches() -> Any:
            try:
                while True:
                    yield np.zeros((4, 8), np.uint8)
            finally:
                process.communicate(b"\n")

        return batches()

    case = Case("a.case", "", (Side("ours", opened),), Regime.STEADY)
    baseline = measure.now_bytes() / 1e6
    found = measure.measured(case, case.sides[0], "", Place(Path(), small=True), 0.05)
    # What a child shares with its parent is counted in each; here it is of another program.
    assert found["memory_mb"] + baseline > 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["zar"], r"no such case: zar; choose from array_record, "),
        (["zarr", "--rounds", "0"], r"--rounds must be at least 1"),
        (["zarr", "--seconds", "0"], r"--seconds above 0"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        program.main(arguments)
    assert re.search(message, capsys.readouterr().err)


# --- rounds and ratios ---------------------------------------------------------------------------


def told(*rounds: Metrics) -> Measured:
    return Measured("", {}, rounds)


def test_sides_take_turns() -> None:
    assert [in_turns("abc", number) for number in (0, 1, 2)] == [
        list("abc"),
        list("cba"),
        list("abc"),
    ]


def test_ratios_are_taken_within_a_round() -> None:
    ours = told({"records_per_s": 8}, {"records_per_s": 30}, {"records_per_s": 90})
    peer = told({"records_per_s": 10}, {"records_per_s": 20}, {"records_per_s": 100})
    assert ratios("records_per_s", ours, peer) == [0.8, 1.5, 0.9]
    bound = Bound("times the peer", over="peer", at_least=0.85)
    values = judged(bound, {"ours": ours, "peer": peer})
    assert values == [0.8, 1.5, 0.9]
    assert bound.is_met(0.9)
    assert not bound.is_met(0.8)
    assert judged(bound, {"ours": ours}) == judged(bound, {}) == []
    own = Bound("records/s", at_most=30)
    assert judged(own, {"ours": ours}) == [8, 30, 90]
    assert (own.is_met(30), own.is_met(31)) == (True, False)


def test_shares_of_the_floor() -> None:
    found = beside_the_floor(
        {
            "ours": {"mb_per_s": 30.0, "cpu_s_per_gb": 3.0},
            "floor": {"mb_per_s": 40.0, "cpu_s_per_gb": 2.0},
        }
    )
    assert (found["ours"]["of_floor"], found["ours"]["cpu_of_floor"]) == (0.75, 1.5)
    assert found["floor"]["of_floor"] == 1
    assert beside_the_floor({"ours": {"mb_per_s": 1.0}}) == {"ours": {"mb_per_s": 1.0}}


def test_figures_survive_json() -> None:
    each = Measured("2 ahead", {"1 ahead": 3.0}, ({"a": 1.0, "b": 2.0}, {"a": 3.0}))
    assert Measured.of(json.loads(json.dumps(each.to_json()))) == each


def nothing(place: Place, setting: object = None) -> None:
    raise AssertionError("it is not opened")


def run_of(ask: Any, *sides: Side, rounds: int = 3, small: bool = False) -> Run:
    case = Case("a.case", "a case", sides, rounds=0)
    run = Run(case, Place(Path(), small), ask, rounds=rounds, seconds=1)
    list(run.go())
    return run


def test_the_quickest_setting_is_measured() -> None:
    asked: list[tuple[str, str, float]] = []

    def ask(case: Case, side: str, setting: str, seconds: float) -> Metrics:
        asked.append((side, setting, seconds))
        return {"records_per_s": {"slow": 1.0, "quick": 5.0}.get(setting, 2.0)}

    run = run_of(ask, Side("ours", nothing), Side("peer", nothing, {"slow": 1, "quick": 2}))
    assert run.results["peer"].setting == "quick"
    assert run.results["peer"].tried == {"slow": 1.0, "quick": 5.0}
    assert ratios("records_per_s", run.results["ours"], run.results["peer"]) == [0.4] * 3
    assert [side for side, _, seconds in asked if seconds == 1] == [
        "ours", "peer", "peer", "ours", "ours", "peer",
    ]  # fmt: skip
    assert not run.failed
    small = run_of(ask, Side("peer", nothing, {"slow": 1, "quick": 2}), rounds=1, small=True)
    assert small.results["peer"].setting == "slow"


def test_a_run_goes_on_without_a_side_that_fails_or_is_missing() -> None:
    def ask(case: Case, side: str, setting: str, seconds: float) -> Metrics:
        if side == "broken":
            raise RuntimeError("it failed")
        return {"records_per_s": 1.0}

    missing = Side("absent", nothing, needs=("a_package_that_is_not_there",))
    run = run_of(ask, Side("ours", nothing), Side("broken", nothing), missing)
    assert list(run.results) == ["ours"]
    assert run.failed
    assert run.left_out == [
        "absent is left out: pip install a_package_that_is_not_there",
        "broken is left out of a.case: it failed",
    ]


def test_an_epoch_that_ends_early_is_no_figure() -> None:
    def ask(case: Case, side: str, setting: str, seconds: float) -> Metrics:
        return {"records_per_s": 1.0, "ended_after": 600.0 if side == "ours" else 599.0}

    run = run_of(ask, Side("ours", nothing), Side("peer", nothing), rounds=1)
    assert run.failed
    assert run.results["ours"].rounds == ()
    assert re.search(r"a round of a\.case is left out: epochs differ: .*599", run.left_out[0])


def test_a_slow_epoch_is_cut() -> None:
    def opened(place: Place) -> Any:
        return (np.zeros((2, 8), np.uint8) for _ in range(10))

    side = Side("ours", opened)
    place = Place(Path(), small=True)
    case = Case("a.case", "", (side,))
    assert measure.measured(case, side, "", place, 60)["ended_after"] == 20
    assert "ended_after" not in measure.measured(case, side, "", place, 0)


def test_bytes_of_a_batch() -> None:
    assert measure.size_of({"a": np.zeros(3, np.int32), "b": [b"12", b"3"]}) == 15
    assert measure.size_of([1, 2]) == 16


def test_bounds_name_sides_that_exist() -> None:
    for name, (_, case) in EVERY.items():
        sides = {side.name for side in case.sides}
        for bound in case.bounds:
            assert {bound.side, bound.over or bound.side} <= sides, name
            assert (bound.at_least is None) != (bound.at_most is None), name


# --- docs ----------------------------------------------------------------------------------------


def test_tables_leave_out_columns_without_figures() -> None:
    found = report.table(("case", "range", "MB/s"), [("a", "", "1"), ("bc", "", "10")], left=1)
    assert found == "| case | MB/s |\n|------|-----:|\n| a    |    1 |\n| bc   |   10 |"


def test_tables_show_what_is_not_met() -> None:
    case = Case("a.case", "a case", (), bounds=(Bound("MB/s", "mb_per_s", at_least=5),))
    run = report.told({"a.case": {"ours": told({"mb_per_s": 4.0}, {"mb_per_s": 2.0})}}, "here")
    text = report.markdown(run, {"a.case": case})
    assert re.search(r"\| `a.case` \| MB/s +\| +≥ 5 \| +3 \(2 to 4\) \| \*\*no\*\* \|", text)
    assert "- `a.case`: a case" in text


def test_tables_take_their_place_in_a_page() -> None:
    page = "# Speed\n\n<!-- a -->\nold\n<!-- end of a -->\n\nmore\n"
    once = report.placed("new\n", page, "a")
    assert once == page.replace("\nold\n", "\n\nnew\n\n")
    assert report.placed("new\n", once, "a") == once
    with pytest.raises(ValueError, match="no marks <!-- b -->"):
        report.placed("new", page, "b")


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


@pytest.mark.parametrize(
    ("times", "text"), [(0.8, "**0.80**: slower"), (1.456, "1.46 times"), (1284, "1,284 times")]
)
def test_a_figure_as_text(times: float, text: str) -> None:
    assert pictures.shown(times) == text


def test_the_picture_of_latency(tmp_path: Path) -> None:
    metrics = {"records_per_s": 100.0, "requests_per_batch": 3.4, "received_per_byte": 2.0}
    sides = {way: told(metrics) for way in pictures.WAYS}
    run = report.told({f"latency.{ms}": sides for ms in (0, 5, 19)}, "here")
    assert pictures.by_latency(run, "records_per_s")["block_shuffle"] == dict.fromkeys(
        (0, 5, 19), 100
    )
    pictures.draw_remote(tmp_path / "picture.png", run)
    assert width_and_height(tmp_path / "picture.png") == (1380, 540)
    assert width_and_height(pictures.REMOTE) == (1380, 540)
    assert "](images/remote.png)" in (report.DOCS / "remote.md").read_text(encoding="utf-8")


def test_without_matplotlib_the_extra_is_named() -> None:
    check_that_the_extra_is_named("benchmarks.pictures")
