"""Records of files cut into parts: each once, in its order, whatever the files and the bounds."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from windrow.converters.records.record_files import cut_records


@given(records=st.lists(st.integers(0, 9), max_size=8), data=st.data())
def test_each_record_within_the_bounds_comes_once_and_in_order(
    records: list[int], data: st.DataObject
) -> None:
    all_of_them = [(at, k) for at, count in enumerate(records) for k in range(count)]
    bounds = sorted(data.draw(st.lists(st.integers(0, len(all_of_them)), max_size=6)))
    parts = cut_records(records, bounds)
    assert [
        [(at, k) for at, start, stop in part for k in range(start, stop)] for part in parts
    ] == [all_of_them[start:stop] for start, stop in itertools.pairwise(bounds)]
    assert all(start < stop for part in parts for _, start, stop in part)
