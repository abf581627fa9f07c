"""The example of a dataset that is built, read and trained on: it runs, and says what the docs say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.tfds
def test_the_program(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "train_tfds.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    lines = done.stdout.splitlines()
    assert lines[0].startswith("built dataset_info.json, features.json, ")
    assert lines[0].endswith(", zarr")
    assert lines[1:] == [
        "train[:80%]: 1600 examples of disc, square, cross",
        "the stream by two workers has the same 50 batches",
        "the Zarr group has the same 62 batches",
        "stopped in the middle of epoch 3, after 116 steps",
        "resumed in a new process: the same parameters",
        *lines[-2:],
    ]
    shares = [re.fullmatch(r"(\S+): ([\d.]+)% right", line) for line in lines[-2:]]
    assert [share and share[1] for share in shares] == ["train[80%:]", "test"]
    assert all(float(share[2]) > 80 for share in shares if share)
