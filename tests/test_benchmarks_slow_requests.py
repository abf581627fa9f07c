"""The benchmark of second requests: a tiny run measures and prints."""

from __future__ import annotations

import re

import pytest

from benchmarks import slow_requests
from benchmarks.slow_requests import Run


def test_a_tiny_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert slow_requests.main(["--small", "--repeats", "1"]) == 0
    told = capsys.readouterr().out
    rows = re.findall(
        r"^\| (off|on|none slow) \| [\d,]+ \| ([\d,]+) \| ([\d,]+) \| (\d+) \|", told, re.M
    )
    assert [row[0] for row in rows] == ["off", "on", "none slow"]
    assert rows[0][3] == rows[2][3] == "0"
    assert all(int(row[1].replace(",", "")) > 400 * slow_requests.RECORD_BYTES for row in rows)
    line = r"^\d+\.\d\d times the records/s, \d\.\d{3} times the bytes; \d+\.\d\d of the records/s where no"
    assert re.search(line, told, re.M)


def test_the_ratios_are_of_medians() -> None:
    off, on = [Run(n, 1000, 100, 0) for n in (9, 10, 90)], [Run(40, 1020, 102, 2)] * 3
    found = slow_requests.table({"off": off, "on": on, "none slow": [Run(50, 1000, 100, 0)]})
    assert "4.00 times the records/s, 1.020 times the bytes; 0.80 of the records/s" in found
