"""The benchmark of processes with devices: what it counts in a tiny run, and its table."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import devices, report

TINY = dataclasses.replace(devices.SMALL, cells=64, patch=32, rows=1_000)


def test_patches_share_no_chunk(tmp_path: Path) -> None:
    devices.write(TINY, tmp_path)
    stored = devices.chunk_bytes(tmp_path / "fields.zarr")
    assert len(stored) == 8 * 8
    assert min(stored.values()) > 0
    for kind in ("bounds", "random"):
        first = np.load(tmp_path / f"{kind}.npy") - TINY.patch // 2
        assert len(np.unique(first // 32, axis=0)) == 8
        assert first.min() >= 0
        # Chunks of 32 cells: the last one of a patch is in its own half of the volume.
        half = TINY.cells // 2
        assert np.array_equal(first // half, (first + TINY.patch - 1) // half)


def test_the_page_has_the_table() -> None:
    page = (devices.ROOT / "docs" / "jax.md").read_text(encoding="utf-8")
    assert report.between("a table", page, begin="<!-- devices -->", end="<!-- end of devices -->")
    for case in ("latitude over 2 processes", "patches of 128^3", "block_shuffle over 4 processes"):
        assert case in page


def test_lines_of_several_runs_make_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        line = devices.Line(f"case {number}", "a figure", "1", "2", is_met=number == 0)
        (tmp_path / f"{number}.json").write_text(
            f"{json.dumps(dataclasses.asdict(line))}\n| other |\n"
        )
    assert devices.main(["--from-json", str(tmp_path / "0.json"), str(tmp_path / "1.json")]) == 0
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(row[1].strip(), row[5].strip()) for row in rows] == [
        ("case 0", "yes"),
        ("case 1", "no"),
    ]


@pytest.mark.jobs
def test_a_tiny_run_of_what_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert devices.main(["--small", "fields", "volume", "rows"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line[0] == "{"]
    assert [line["is_met"] for line in lines] == [True] * 6


@pytest.mark.jobs
def test_a_tiny_run_of_what_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    assert devices.main(["--small", "training", "grain", "restoring"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if line[0] == "{"]) == 6
