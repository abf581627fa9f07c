"""Spans: records of files one behind the other, counted through, cut into parts.

Invariant: each record within the bounds is in one span of one part, in its order; no span is empty.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence


def cut_records(records: Sequence[int], bounds: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """The records of files, cut at `bounds`.

    Args:
        records: How many each file has.
        bounds: Where parts begin, rising, among the records of all files; and where the last ends.

    Returns:
        For each part the spans of it: number of the file, and `[start, stop)` within the file.
    """
    ends = list(itertools.accumulate(records))
    parts = []
    for start, stop in itertools.pairwise(bounds):
        spans = []
        for at in range(bisect.bisect_right(ends, start), len(ends)):
            first = ends[at] - records[at]
            if first >= stop:
                break
            begin, end = max(start - first, 0), min(stop - first, records[at])
            if begin < end:
                spans.append((at, begin, end))
        parts.append(spans)
    return parts
