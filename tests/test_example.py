"""The main job runs to its end: it fails by itself unless a resumed run is the uninterrupted one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).resolve().parent.parent


def test_train_digits(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "examples" / "train_digits.py"),
        "--folder",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "killed at step 99, in the middle of epoch 4" in done.stdout
    finals = re.findall(r"(\w+): 224 batches, final loss (\S+)", done.stdout)
    assert [run for run, _ in finals] == ["array_record", "zarr", "killed"]
    assert len({loss for _, loss in finals}) == 1
    assert 0 < float(finals[0][1]) < 0.2
    assert re.search(r"windrow [\d,]+, grain [\d,]+, \d", done.stdout)
    # One file of each input, and an array for each field.
    names = sorted(path.name for path in (tmp_path / "array_record").glob("*.array_record*"))
    assert names == [f"digits.array_record-{i:05d}-of-00004" for i in range(4)]
    assert {path.name for path in (tmp_path / "zarr").iterdir()} >= {"image", "label"}
