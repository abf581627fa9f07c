"""Programs without standard streams, as daemons are, have workers too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
import numpy as np, windrow

def printing(n):
    for stream in (1, 2):
        os.write(stream, b"of a library " * 100)
    return np.full(50_000, n)

dataset = windrow.MapDataset.range(6).map(printing).mp_prefetch(1)
found = [(int(each.min()), int(each.max())) for each in dataset]
open(sys.argv[1], "w").write(str(found == [(n, n) for n in range(6)]))
"""


@pytest.mark.jobs
@pytest.mark.parametrize("closing", ["<&-", "<&- >&- 2>&-"])
def test_workers_start_without_standard_streams(tmp_path: Path, closing: str) -> None:
    command = f'exec "$1" -c "$2" "$3" {closing}'
    result = tmp_path / "result"
    subprocess.run(["sh", "-c", command, "sh", sys.executable, PROGRAM, result], timeout=100)
    assert result.read_text() == "True"
