"""The example of a remote store: it runs, and finds what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).resolve().parent.parent


def test_the_program(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "read_far_away.py"), "--latency-ms", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    same = re.findall(
        r"(\w+): 23 batches and the state are the same from disk and URL", done.stdout
    )
    assert same == ["ArrayRecord", "Zarr"]
    rows = re.findall(r"^(\w+)(, 10% fail)? +(\d+) +(\d+) +(\d+)", done.stdout, re.MULTILINE)
    counts = {name + fail: tuple(map(int, numbers)) for name, fail, *numbers in rows}
    orders = ["one_by_one", "global_shuffle", "block_shuffle"]
    assert list(counts) == [*orders, *(f"{name}, 10% fail" for name in orders)]
    for name in orders:
        records, _, retries = counts[name]
        assert (records, retries) == (64 if name == "one_by_one" else 726, 0)
        failing_records, failing_requests, failing_retries = counts[f"{name}, 10% fail"]
        assert failing_records == records
        assert failing_requests > failing_retries > 0
    assert counts["one_by_one"][1] >= 64
    assert counts["block_shuffle"][1] < counts["global_shuffle"][1] < 726 / 4
    assert not list(tmp_path.iterdir())
