"""The benchmark of damaged data, at a tiny size."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import bad_records


@pytest.mark.jobs
def test_each_store_has_a_ratio(capsys: Any) -> None:
    assert bad_records.main(["--small"]) == 0
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) == 2 * len(bad_records.STORES)
    assert all(float(row[-1]) > 0 for row in rows)
