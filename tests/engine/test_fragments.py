"""The native core and NumPy make the same table of which chunks records lie in."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laid_out import CountingRows
from windrow.core import native
from windrow.engine.chunk_cache import Fragments, WantedChunks, fragments_of, in_numpy
from windrow.sources.chunks import ArrayPart
from windrow.sources.ragged_column import PiecePlaces, bounds_of

ROWS = 60
needs_core = pytest.mark.skipif(native.native() is None, reason="compares the core with NumPy")


def part_of(chunk_rows: int, shift: int, size: int | None, stride: int = 1) -> ArrayPart:
    reader = CountingRows(np.zeros((ROWS, 2)))
    return ArrayPart(
        "",
        ROWS,
        (2,),
        np.dtype("f8"),
        chunk_rows,
        reader,
        shift=min(shift, chunk_rows - 1),
        size=size,
        starts=None if stride == 1 else lambda indices: indices * stride,
    )


def listed(found: tuple[Fragments, WantedChunks]) -> list[Any]:
    """All numbers of a table, as lists."""
    fragments, chunks = found
    columns = (fragments.records, fragments.sources, fragments.targets, fragments.lengths)
    arrays: list[npt.NDArray[np.int64] | None] = [*columns, chunks.which]
    return [
        chunks.numbers,
        chunks.rows,
        *(None if array is None else (array.dtype.str, array.tolist()) for array in arrays),
    ]


@needs_core
@given(data=st.data())
def test_the_core_plans_as_numpy_does(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([None, 1, 2, 7]))
    stride = data.draw(st.sampled_from([1, 3]))
    part = part_of(data.draw(st.integers(1, 70)), data.draw(st.integers(0, 9)), size, stride)
    records = (ROWS - (size or 1)) // stride + 1
    drawn = data.draw(st.lists(st.integers(0, records - 1), max_size=40))
    indices = np.array(sorted(drawn) if data.draw(st.booleans()) else drawn, np.int64)
    assert listed(fragments_of(part, indices)) == listed(in_numpy(part, indices))


@needs_core
@given(data=st.data())
def test_the_core_plans_runs_as_numpy_does(data: st.DataObject) -> None:
    lengths = np.array(data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=5)), np.int64)
    bounds = bounds_of(lengths)
    part = dataclasses.replace(
        part_of(data.draw(st.integers(1, 70)), data.draw(st.integers(0, 9)), None),
        starts=lambda records: bounds[records],
        lengths=lambda records: lengths[records],
    )
    indices = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=20)), np.int64)
    assert listed(fragments_of(part, indices)) == listed(in_numpy(part, indices))
    starts = np.array([data.draw(st.integers(0, n)) for n in lengths[indices].tolist()], np.int64)
    left = (lengths[indices] - starts).tolist()
    some = np.array([data.draw(st.integers(0, n)) for n in left], np.int64)
    places = PiecePlaces(starts, some, bounds_of(some + 1)[:-1], int((some + 1).sum()))
    found = listed(fragments_of(part, indices, places))
    assert found == listed(in_numpy(part, indices, places))
    assert sum(found[1]) == some.sum()


@needs_core
def test_records_in_very_many_chunks_are_left_to_numpy() -> None:
    core: Any = native.native()
    assert core.plan_rows(np.array([0]), 64, 1) is None
    part = ArrayPart("", 100, (), np.dtype("f4"), 1, CountingRows(np.zeros(100)), size=80)
    fragments, chunks = fragments_of(part, np.array([20]))
    assert chunks.numbers == list(range(20, 100))
    assert len(fragments) == 80


@needs_core
def test_rows_that_are_not_int64_are_refused() -> None:
    core: Any = native.native()
    with pytest.raises(ValueError, match="rows must be int64"):
        core.plan_rows(np.array([1], np.int32), None, 4)
