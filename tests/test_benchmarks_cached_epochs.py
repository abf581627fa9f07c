"""The benchmark of second epochs from the cache on disk: a tiny run measures and prints."""

from __future__ import annotations

import re

import pytest

from benchmarks import cached_epochs
from benchmarks.cached_epochs import CachedRound


def test_a_tiny_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cached_epochs.main(["--small", "--rounds", "1"]) == 0
    told = capsys.readouterr().out
    rows = re.findall(r"^\| (\w+) \| [\d,]+ \| [\d,]+ \| \d+\.\d\d \| ([\d,]+) \|$", told, re.M)
    assert [name for name, _ in rows] == ["ArrayRecord", "Zarr"]
    assert rows[0][1] == "0"


def test_the_ratio_is_the_median_of_rounds() -> None:
    rounds = [CachedRound(n, 100, 7 * n) for n in (90, 80, 10)]
    assert "| a | 80 | 100 | 0.80 | 630 |" in cached_epochs.table({"a": rounds})
