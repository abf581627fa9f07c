"""The example of a conversion that is killed: it runs, and says what the docs say of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples import convert_records as example

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).resolve().parent.parent


def test_the_program(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "convert_records.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
    lines = done.stdout.splitlines()
    assert lines[0] == "4000 records in 8 TFRecord files"
    found = re.search(r"first run: killed, with (\d) of 8 files in their place", done.stdout)
    again = re.search(r"second run: (\d) files kept, (\d) written; 4000 records", done.stdout)
    assert found is not None
    assert again is not None
    assert 0 < int(again[1]) <= int(found[1]) < 8
    assert int(again[1]) + int(again[2]) == 8
    assert "a source refuses the folder: ConversionError" in lines
    assert "the group has what the records have" in lines
    shares = [float(share) for share in re.findall(r"epoch \d: ([\d.]+)% right", done.stdout)]
    assert len(shares) == example.EPOCHS
    assert shares[-1] > max(90, shares[0])
