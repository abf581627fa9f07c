"""The benchmarks run, and every side delivers its figures. What the figures are is not tested."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import benchmarks.__main__
from benchmarks import cases, process, report, setting, timing

FIGURES = {
    "array_record": ["records_per_s"],
    "zarr": ["records_per_s"],
    "chain": ["records_per_s"],
    "elements": ["records_per_s"],
    "checkpoint": ["first_batch_ms", "set_state_us", "get_state_us"],
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_side_delivers_its_figures(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert benchmarks.__main__.main([name, "--small", "--repeats", "1", "--json"]) == 0
    lines = capfd.readouterr().out.splitlines()
    results = [json.loads(line) for line in lines]
    assert [result["metric"] for result in results] == FIGURES[name]
    for result in results:
        metric = result["metric"]
        keys = [f"{side}_{metric}" for side in ("ours", "peer", "peer_best")]
        keys += ["ratio", "ratio_to_peer_best", "ours_peak_mb", "peer_peak_mb", "repeats"]
        if metric in ("records_per_s", "first_batch_ms"):
            keys += [f"floor_{metric}", "ratio_to_floor"]
        if name in ("array_record", "zarr"):
            keys += [f"expert_{metric}", "expert_peak_mb"]
        assert {key: result[key] for key in keys if not result[key] > 0} == {}
        assert result["page_cache"] == "warm"
    table = report.table(results)
    assert len(table.splitlines()) == 2 + len(results)
    assert len({len(line) for line in table.splitlines()}) == 1


def test_table_has_rows_without_memory() -> None:
    order = {
        "case": "orders",
        "chain": "index shuffle",
        "ns_per_index": 10.0,
        "grain_ns_per_index": 2_000.0,
        "floor_ns_per_index": 0.5,
    }
    imports = {"case": "import", "ours_s": 0.2, "peer_s": 0.1}
    rows = report.table([order, imports]).splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert cells[0][:5] == ["index shuffle", "ns/index", "10", "2,000", "200.0x"]
    assert cells[0][8:10] == ["0.5", "0.05"]
    assert cells[1][2:5] == ["0.2", "0.1", "0.5x"]


def test_unknown_case_is_refused_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmarks.__main__.main(["zar", "--small"])
    assert re.search(r"no such case: zar; choose from array_record, zarr", capsys.readouterr().err)


def test_lost_record_is_an_error_not_a_figure() -> None:
    one_round = timing.of_iteration(lambda: [[1, 2], [3]], 4)
    with pytest.raises(RuntimeError, match=r"3 of 4 records came"):
        one_round()


def test_side_that_fails_shows_why(tmp_path: Path) -> None:
    side = process.Side("ours", "ours", "array_record")
    empty = setting.small(str(tmp_path))
    with pytest.raises(RuntimeError, match=r"(?s)side Side.*failed:.*records\.array_record"):
        process.measure([side], empty, repeats=1, said=lambda _: None)


def test_setting_survives_json(tmp_path: Path) -> None:
    where = setting.small(str(tmp_path))
    assert setting.Setting.loads(where.dumps()) == where


def test_every_case_is_told_of() -> None:
    page = (Path(__file__).parents[1] / "docs" / "benchmarks.md").read_text()
    assert [name for name in cases.NAMES if f"`{name}`" not in page] == []
