"""A column of rows that differ in length, as one flat array and the bounds of the rows in it.

As a list of arrays such a column would cost an object per row. Flat, its rows are read, cut, taken
and merged by a few calls in C; they become arrays of their own when they are handed out.

Invariant: row `k` is `values[bounds[k] : bounds[k + 1]]`; bounds begin with 0, never fall, and end
with the length of `values`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final, overload

import numpy as np

from windrow.core import buffer_pool, native
from windrow.sources.base import AnyArray, IntArray

# Copying a run takes as long as taking these bytes of small items by their numbers.
_RUN_BYTES: Final = 512


class RaggedColumn(Sequence[AnyArray]):
    """Rows of one dtype and one shape, but for their first axis. A sequence of arrays."""

    __slots__ = ("bounds", "values")

    def __init__(self, values: AnyArray, bounds: IntArray) -> None:
        """Takes both without copying or checking them.

        Args:
            values: All rows end to end, `(items, ...)`.
            bounds: Where each row begins, and where the last one ends: int64 `(rows + 1,)`.
        """
        self.values, self.bounds = values, bounds

    @classmethod
    def empty(cls, lengths: IntArray, row_shape: Sequence[int], dtype: Any) -> RaggedColumn:
        """Makes a column of rows of these lengths, to be filled."""
        bounds = bounds_of(lengths)
        return cls(buffer_pool.empty((int(bounds[-1]), *row_shape), dtype), bounds)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def lengths(self) -> IntArray:
        """Items of each row."""
        return np.diff(self.bounds)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, without their bounds."""
        return self.values.nbytes

    @overload
    def __getitem__(self, at: int) -> AnyArray: ...

    @overload
    def __getitem__(self, at: slice | IntArray) -> RaggedColumn: ...

    def __getitem__(self, at: int | slice | IntArray) -> AnyArray | RaggedColumn:
        """One row, in its own memory; a slice, as a view; or the rows of an array of numbers."""
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step == 1:
                bounds = self.bounds[start : max(start, stop) + 1]
                return RaggedColumn(self.values[bounds[0] : bounds[-1]], bounds - bounds[0])
            at = np.arange(start, stop, step)
        if isinstance(at, np.ndarray) and at.ndim:
            return self._taken(at)
        row = range(len(self))[int(at)]
        return self.values[self.bounds[row] : self.bounds[row + 1]].copy()

    def __iter__(self) -> Iterator[AnyArray]:
        """The rows, each in its own memory."""
        values, bounds = self.values, self.bounds.tolist()
        return (values[start:stop].copy() for start, stop in itertools.pairwise(bounds))

    def _taken(self, at: IntArray) -> RaggedColumn:
        starts, lengths = self.bounds[:-1][at], self.lengths[at]
        found = RaggedColumn.empty(lengths, self.values.shape[1:], self.values.dtype)
        copy_runs(self.values, starts, found.values, found.bounds[:-1], lengths)
        return found

    def put(self, at: IntArray, rows: RaggedColumn) -> None:
        """Copies `rows`, which are as long as the rows at `at`, to these."""
        copy_runs(rows.values, rows.bounds[:-1], self.values, self.bounds[:-1][at], rows.lengths)

    def is_like(self, other: RaggedColumn) -> bool:
        """Whether both have one dtype and one shape of items."""
        return (self.values.dtype, self.values.shape[1:]) == (
            other.values.dtype,
            other.values.shape[1:],
        )

    def as_array(self) -> AnyArray | None:
        """The rows as one array, a view; None if they differ in length or there are no rows."""
        rows = len(self)
        size = len(self.values) // rows if rows else 0
        if not rows or (self.lengths != size).any():
            return None
        return self.values.reshape(rows, size, *self.values.shape[1:])


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PiecePlaces:
    """Where parts of rows go, among cells that lie end to end.

    Items `[starts[k], starts[k] + lengths[k])` of row `k` go to the cells from `targets[k]` on; no two
    parts share a cell.
    """

    starts: IntArray
    lengths: IntArray
    targets: IntArray
    cells: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PlacedColumn:
    """Parts of rows in their places: `values` is `(cells, ...)`, and arbitrary between the parts."""

    values: AnyArray
    places: PiecePlaces

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        each = self.values.nbytes // max(1, len(self.values))
        return int(self.places.lengths.sum()) * each


def bounds_of(lengths: IntArray) -> IntArray:
    """Where runs of these lengths begin end to end, and where the last one ends."""
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def items_of(starts: IntArray, lengths: IntArray) -> IntArray:
    """The numbers of all items of runs, one run after the other."""
    begin = np.cumsum(lengths) - lengths
    found: IntArray = np.repeat(starts - begin, lengths) + np.arange(int(lengths.sum()))
    return found


def copy_runs(
    source: AnyArray, starts: IntArray, out: AnyArray, targets: IntArray, lengths: IntArray
) -> None:
    """Copies items `[starts[k], starts[k] + lengths[k])` of `source` to `[targets[k], ...)` of `out`."""
    total = int(lengths.sum())
    if not total:
        return
    item_bytes = max(1, source.nbytes // max(1, len(source)))
    core = native.native()
    if core is not None and source.flags.c_contiguous and out.flags.c_contiguous and out.nbytes:
        # As bytes, since not every dtype has a buffer: bfloat16 has none.
        given, written = (array.reshape(-1).view(np.uint8) for array in (source, out))
        runs_of = (np.ascontiguousarray(part) for part in (starts, targets, lengths))
        core.copy_runs(given, item_bytes, *runs_of, written, False)
        return
    if total * item_bytes >= _RUN_BYTES * len(lengths):
        runs = zip(starts.tolist(), targets.tolist(), lengths.tolist(), strict=True)
        for start, target, length in runs:
            out[target : target + length] = source[start : start + length]
        return
    is_whole = total == len(out) and bool((np.diff(targets) == lengths[:-1]).all())
    if is_whole and not targets[0]:
        # In the default mode NumPy would first copy into a buffer of its own.
        np.take(source, items_of(starts, lengths), axis=0, out=out, mode="clip")
    else:
        out[items_of(targets, lengths)] = source[items_of(starts, lengths)]
