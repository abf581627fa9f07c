"""What rows are made of, for the tests of traces and of the order's quality."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.engine.record_trace import Trace


def in_rows(found: Trace) -> npt.NDArray[Any]:
    """The one record of each row."""
    records = np.full(int(found.counts.sum()), -1)
    for taken in found.taken:
        assert (records[taken.rows] == -1).all()
        records[taken.rows] = taken.records
    return records
