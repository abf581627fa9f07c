"""Readers of boxes, for arrays that TensorStore or zarr-python reads.

Boxes of one chunk that are adjacent in a call are read together, so that the chunk is decoded once.

Invariants: a read fills all of the requested memory, or raises a `ReadError` that names the chunk
by its cells. A chunk that is not stored reads as the fill value only while the array is there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Final

import numpy as np

from windrow.errors import ReadError
from windrow.sources.base import IntArray
from windrow.sources.chunks import Box, BoxReader
from windrow.sources.scan import Checks
from windrow.sources.zarr.error_text import file_in, is_about_index
from windrow.sources.zarr.in_flight import kind_of
from windrow.sources.zarr.local.metadata import damaged, held_cells
from windrow.sources.zarr.remote import unreachable
from windrow.sources.zarr.store_array import StoreArray
from windrow.sources.zarr.tensorstore import StoreChecks, read_boxes
from windrow.sources.zarr.zarr_python import PythonArray, PythonReader

Cells = tuple[int, ...]

# The size of one read along axes whose chunks are unknown.
_UNKNOWN_BYTES: Final = 2**20


class StoreBoxReader:
    """Reads boxes through TensorStore, in chunks of a given shape."""

    def __init__(self, array: StoreArray, chunk_shape: Cells, shift: Cells) -> None:
        """Chunks have `chunk_shape`; the first one begins `shift` cells before cell 0."""
        self._array, self._checks = array, StoreChecks(array, chunk_shape, shift)

    def checks(self) -> Checks:
        """The chunks of the array."""
        return self._checks

    def start(self, boxes: Sequence[Box], pool: Executor) -> Future[None]:
        """Start reading all boxes, on TensorStore's own threads; done when they are filled.

        The future has a ReadError if one of them cannot be read.
        """
        by_chunk = itertools.groupby(boxes, lambda box: self._checks.coords_of(box.first))
        return read_boxes(self._array, [list(group) for _, group in by_chunk], self._refused)

    def _refused(self, first: Sequence[int], _: Sequence[int], error: BaseException) -> ReadError:
        array, checks = self._array, self._checks
        if array.remote is None and is_about_index(error):
            checks = _shards(array)
        number = int(np.ravel_multi_index(checks.coords_of(first), checks.grid))
        held = held_cells(list(zip(*checks.bounds(number), strict=True)))
        why = array.reason(error)
        if array.remote is not None and kind_of(error) != "other":
            return unreachable(array.name, array.where, held, why)
        return damaged(array.name, array.where, held, why, file=file_in(error))

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in memory; their bytes in storage are not known."""
        return np.full(len(chunks), self._checks.chunk_bytes, np.int64)


def box_reader(
    array: StoreArray | PythonArray, chunk: Sequence[int | None]
) -> tuple[BoxReader, Cells, Cells]:
    """The reader of an open array, the shape of its chunks, and cells of the first before cell 0.

    Args:
        array: The array, by the library that reads it.
        chunk: Shape of its chunks; None along an axis where it is unknown.
    """
    if isinstance(array, StoreArray):
        shape, shift = _chunks(array, chunk)
        return StoreBoxReader(array, shape, shift), shape, shift
    sizes = zip(array.chunk_shape, array.shape, strict=True)
    shape, shift = tuple(max(1, min(c, n)) for c, n in sizes), (0,) * len(array.shape)
    return python_reader(array, shape), shape, shift


def python_reader(array: PythonArray, boxes_of: Cells | None = None) -> PythonReader:
    """The reader of an array that zarr-python opened: of rows, or of boxes of chunks of a shape."""
    if array.cached is None or array.access is None:
        return PythonReader(array, boxes_of)
    # Few arrays have a cache: others do not load it.
    from windrow.sources.zarr.cached_readers import CachedBoxReader, CachedRowReader

    if boxes_of is None:
        return CachedRowReader(array, array.cached, array.access)
    return CachedBoxReader(array, array.cached, array.access, boxes_of)


def _chunks(array: StoreArray, chunk: Sequence[int | None]) -> tuple[Cells, Cells]:
    """Shape of the chunks to read, and cells of the first one that lie before cell 0."""
    sizes = array.shape
    origins = array.store.chunk_layout.grid_origin or (None,) * len(sizes)
    chunks, shift = list(sizes), [0] * len(sizes)
    unknown = []
    for axis, (size, cells, origin) in enumerate(zip(sizes, chunk, origins, strict=True)):
        if cells is None or origin is None:
            unknown.append(axis)
            continue
        offset = (int(array.store.domain.inclusive_min[axis]) - int(origin)) % cells
        if offset + size > cells:  # else everything lies in one chunk
            chunks[axis], shift[axis] = cells, offset
    chunks = [max(1, cells) for cells in chunks]
    known = (cells for axis, cells in enumerate(chunks) if axis not in unknown)
    room = max(1, _UNKNOWN_BYTES // max(1, math.prod(known) * array.dtype.itemsize))
    for axis in reversed(unknown):
        chunks[axis] = min(chunks[axis], room)
        room = max(1, room // chunks[axis])
    return tuple(chunks), tuple(shift)


def _shards(array: StoreArray) -> StoreChecks:
    """The shards of an array, whose layout TensorStore knows."""
    layout, first = array.store.chunk_layout, array.store.domain.inclusive_min
    sizes = tuple(map(int, layout.write_chunk.shape))
    cells = zip(first, layout.grid_origin, sizes, strict=True)
    return StoreChecks(array, sizes, tuple(int((f - o) % n) for f, o, n in cells))
