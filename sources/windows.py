"""Windows of Zarr arrays as records: record `i` is a run of rows of every array.

Invariants: all arrays give the same rows to a window, and a window lies in them as a whole.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.errors import ArgumentError, SourceError
from windrow.sources.base import Columns, IntArray, checked_indices
from windrow.sources.pieces import AnyArray, ArrayPart, LaidOutSource, WindowRows
from windrow.sources.zarr import ZarrDataSource

_WHAT: Final = "WindowDataSource"


class WindowDataSource(LaidOutSource):
    """Windows along the first axis of a Zarr array, or of the arrays of a group or dict."""

    def __init__(
        self,
        arrays: Any,
        sizes: Mapping[int, int],
        strides: Mapping[int, int] | None = None,
        *,
        direct: bool | None = None,
    ) -> None:
        """Open the arrays; only metadata is read.

        Args:
            arrays: As for `ZarrDataSource`. An array gives windows `(size, ...)`; anything with
                several gives a dict of them per record.
            sizes: `{0: size}`, the rows of a window. Axis 0 is the only one so far; the others are
                taken whole.
            strides: `{0: stride}`, rows from one window's first row to the next one's; by default
                the size, so that windows do not overlap. Rows at the end that make no whole window
                are left out.
            direct: As for `ZarrDataSource`.

        Raises:
            ArgumentError: If the arguments are of a wrong kind, or name another axis.
            NotFoundError: If there is nothing where `arrays` points.
            SourceError: If a size or stride is below 1, or the arrays are shorter than one window;
                and where `ZarrDataSource` raises it.
            ConversionError: If the conversion that writes the folder has not finished.
            ReadError: If this process was forked from one that had used TensorStore.
        """
        size = _along_first(sizes, "sizes")
        if size is None:
            raise ArgumentError(
                f"{_WHAT}: sizes says nothing of axis 0, got {sizes!r}; give the rows of a window"
                " as sizes={0: 1024}"
            )
        stride = None if strides is None else _along_first(strides, "strides")
        self._size = size
        self._stride = size if stride is None else stride
        self._inner = ZarrDataSource(arrays, direct=direct)
        if size > len(self._inner):
            raise SourceError(
                f"{_WHAT}: a window of {size:,} rows does not fit into {len(self._inner):,} rows;"
                f" choose 1 <= sizes[0] <= {len(self._inner):,}"
                if len(self._inner)
                else f"{_WHAT}: the arrays have no rows, and a window has {size:,}"
            )
        self._length = (len(self._inner) - size) // self._stride + 1

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        left = len(self._inner) - (self._length - 1) * self._stride - self._size
        return (
            f"{_WHAT}({self._length:,} windows of {self._size:,} rows, {self._stride:,} apart,"
            f" {left:,} rows left over at the end, of {self._inner!r})"
        )

    @property
    def fingerprint(self) -> str:
        """Size and stride of the windows; names, dtypes, shapes and chunks of the arrays."""
        cut = f"sizes {{0: {self._size}}}, strides {{0: {self._stride}}}"
        return f"windows({cut}, {self._inner.fingerprint})"

    @property
    def parts(self) -> Sequence[ArrayPart]:
        """One part per array, in the order of the tree; pieces are the chunks of the first axis.

        Raises:
            ReadError: If this process was forked from one that had used TensorStore.
        """
        return [
            part.in_windows(self._size, lambda indices: indices * self._stride)
            for part in self._inner.parts
        ]

    def assembled(self, columns: Sequence[Any], indices: IntArray) -> Columns:
        """The tree of `read`, from one array of windows per part."""
        return self._inner.assembled(columns, indices)

    def blocks(self) -> IntArray:
        """Bounds of the windows whose first rows lie in one chunk, of the array with most bytes."""
        # A window begins at or after a chunk's first row from the quotient rounded up on.
        bounds: IntArray = np.unique(-(-self._inner.blocks() // self._stride))
        return np.unique(np.minimum(bounds, self._length))

    def read(self, indices: IntArray) -> Columns:
        """Windows at `indices`: an array `(n, size, ...)`, or a dict of them, in new memory.

        Raises:
            ReadError: If a chunk can not be read; the message names array, file and records. Or
                if this process was forked from one that had used TensorStore.
        """
        wanted = checked_indices(indices, self._length, _WHAT)
        windows = WindowRows(wanted * self._stride, self._size)
        return _cut(self._inner.read(windows.rows), windows)


def _cut(rows: Columns, windows: WindowRows) -> Columns:
    if isinstance(rows, dict):
        return {name: _cut(item, windows) for name, item in rows.items()}
    found: AnyArray = windows.taken_from(rows)
    return found


def _along_first(given: Any, name: str) -> int | None:
    """What a mapping by axes says of axis 0; None if that is nothing."""
    if not isinstance(given, Mapping):
        raise ArgumentError(
            f"{_WHAT}: {name} must be a dict by axis, such as {{0: 1024}}, got {given!r}"
        )
    for axis in given:
        if isinstance(axis, bool) or axis != 0:
            raise ArgumentError(
                f"{_WHAT}: {name} names axis {axis!r}, and windows lie along axis 0 only so far;"
                f" give {name}={{0: ...}}, the other axes are taken whole"
            )
    if 0 not in given:
        return None
    value = given[0]
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or isinstance(value, bool):
        raise ArgumentError(f"{_WHAT}: {name}[0] must be an integer, got {value!r}")
    if count < 1:
        raise SourceError(f"{_WHAT}: {name}[0] must be at least 1, got {count}")
    return count
