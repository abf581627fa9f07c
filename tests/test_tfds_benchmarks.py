"""The benchmark of tfds: a tiny run measures all sides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import tfds


@pytest.mark.tfds
def test_a_tiny_run(tmp_path: Path) -> None:
    told = tmp_path / "run.json"
    folder = tmp_path / "stores"
    assert program.main(["tfds", "--small", "--folder", str(folder), "--json", str(told)]) == 0
    sides = json.loads(told.read_text())["tfds.reading"]["sides"]
    assert list(sides) == [side.name for side in tfds.CASES[0].sides]
    assert all(side["values"]["records_per_s"][0] > 0 for side in sides.values())
