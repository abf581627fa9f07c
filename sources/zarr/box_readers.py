"""Readers of boxes, for arrays that are decoded directly and arrays that TensorStore reads.

Boxes of one chunk that are adjacent in a call are read together, so that the chunk is decoded once.

Invariants: a read fills all of the requested memory, or raises a `ReadError` that names the chunk
by its cells. A chunk that is not stored reads as the fill value only while the array is there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final

import numpy as np
import tensorstore as ts

from windrow.core.threads import Ends
from windrow.errors import ReadError
from windrow.sources.base import IntArray
from windrow.sources.chunks import AnyArray, Box, BoxReader
from windrow.sources.scan import Checks
from windrow.sources.zarr.error_text import file_in
from windrow.sources.zarr.in_flight import kind_of
from windrow.sources.zarr.local.chunks import ChunkStore, PlainChecks
from windrow.sources.zarr.local.codecs import ByteArray, ChunkDamageError, scratch
from windrow.sources.zarr.local.metadata import PlainArray, damaged, held_cells
from windrow.sources.zarr.local.native_chunks import NativeBoxReader, native_chunks
from windrow.sources.zarr.local.presence import PresenceCheck
from windrow.sources.zarr.remote import unreachable
from windrow.sources.zarr.tensorstore import StoreArray, StoreChecks
from windrow.sources.zarr.zarr_python import PythonArray, PythonBoxReader

Cells = tuple[int, ...]

# The size of one read along axes whose chunks are unknown.
_UNKNOWN_BYTES: Final = 2**20


class DirectBoxReader:
    """Reads boxes of a plain array, chunk by chunk."""

    def __init__(self, plain: PlainArray, *, most_open: int | None = None) -> None:
        """Open nothing yet; `most_open` is as for `StoredFiles`."""
        self._plain = plain
        self._chunks = ChunkStore(plain, cells=True, most_open=most_open)
        self._grid = _BoxGrid(plain.shape, plain.chunk_shape, (0,) * len(plain.shape))

    def checks(self) -> Checks:
        """The chunks of the array."""
        return PlainChecks(self._plain)

    def start(self, boxes: Sequence[Box], pool: Executor) -> Future[None]:
        """Fill the boxes in one task on `pool`; the future has a ReadError if that fails."""
        return pool.submit(self._fill, list(boxes))

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in storage, estimated from the first stored object."""
        size = math.ceil(self._plain.chunk_bytes * self._chunks.ratio())
        return np.full(len(chunks), size, np.int64)

    def _fill(self, boxes: list[Box]) -> None:
        missed = False
        for coords, together in self._grid.by_chunk(boxes):
            try:
                missed |= not self._take(coords, together)
            except (ChunkDamageError, OSError) as error:
                raise self._chunks.damaged(coords, self._grid.held(coords), error) from error
        self._chunks.check(missed)

    def _take(self, coords: Cells, boxes: list[Box]) -> bool:
        """Fill boxes of one chunk, and return whether it is stored."""
        plain = self._plain
        corner = [k * c for k, c in zip(coords, plain.chunk_shape, strict=True)]
        whole, memory = next(self._whole_chunks(boxes), (None, None))
        part = None
        if memory is None:
            memory = scratch("chunk", plain.chunk_bytes)
            part = None if plain.codecs else self._bytes_of(boxes, corner)
        if not self._chunks.decode(coords, memory, part):
            for box in boxes:
                box.out[...] = plain.fill
            return False
        block = self._chunks.values(memory)
        for box in boxes:
            if box is not whole:
                box.fill(block, corner)
        return True

    def _bytes_of(self, boxes: Sequence[Box], corner: Sequence[int]) -> slice:
        """The bytes of a chunk as it is stored, from the first to the last byte of the boxes."""
        first, stop = _bounds(boxes)
        begin = end = 0
        for axis in self._plain.axes:
            cells = self._plain.chunk_shape[axis]
            begin = begin * cells + first[axis] - corner[axis]
            end = end * cells + stop[axis] - 1 - corner[axis]
        itemsize = self._plain.dtype.itemsize
        return slice(begin * itemsize, (end + 1) * itemsize)

    def _whole_chunks(self, boxes: Sequence[Box]) -> Iterator[tuple[Box, ByteArray]]:
        """The boxes whose bytes are exactly one decoded chunk, with these bytes."""
        plain = self._plain
        for box in boxes:
            out = box.out
            if plain.is_native_order and out.shape == plain.chunk_shape and out.flags.c_contiguous:
                yield box, out.reshape(-1).view(np.uint8)


class StoreBoxReader:
    """Reads boxes through TensorStore, in chunks of a given shape."""

    def __init__(self, array: StoreArray, chunk_shape: Cells, shift: Cells) -> None:
        """Chunks have `chunk_shape`; the first one begins `shift` cells before cell 0."""
        self._array, self._chunk_shape, self._shift = array, chunk_shape, shift
        self._grid = _BoxGrid(array.shape, chunk_shape, shift)
        self._origin: Cells = tuple(map(int, array.store.domain.inclusive_min))
        self._chunk_bytes = math.prod(chunk_shape) * array.dtype.itemsize

    def checks(self) -> Checks:
        """The chunks of the array."""
        return StoreChecks(self._array, self._chunk_shape, self._shift)

    def start(self, boxes: Sequence[Box], pool: Executor) -> Future[None]:
        """Start reading all boxes, on TensorStore's own threads; done when they are filled.

        The future has a ReadError if one of them cannot be read.
        """
        groups = list(self._grid.by_chunk(boxes))
        if not groups:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return _BoxReads(self._array, self._origin, self._grid, groups).done

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in memory; their bytes in storage are not known."""
        return np.full(len(chunks), self._chunk_bytes, np.int64)


def box_reader(
    array: PlainArray | StoreArray | PythonArray,
    chunk: Sequence[int | None],
    *,
    most_open: int | None = None,
) -> tuple[BoxReader, Cells, Cells]:
    """The reader of an open array, the shape of its chunks, and cells of the first before cell 0.

    Args:
        array: The array, by the library that reads it.
        chunk: Shape of its chunks; None along an axis where it is unknown.
        most_open: As for `StoredFiles`.
    """
    if isinstance(array, StoreArray):
        shape, shift = _chunks(array, chunk)
        return StoreBoxReader(array, shape, shift), shape, shift
    sizes = zip(array.chunk_shape, array.shape, strict=True)
    shape, shift = tuple(max(1, min(c, n)) for c, n in sizes), (0,) * len(array.shape)
    if isinstance(array, PlainArray):
        direct = DirectBoxReader(array, most_open=most_open)
        chunks = native_chunks(array)
        return direct if chunks is None else NativeBoxReader(array, chunks, direct), shape, shift
    return PythonBoxReader(array), shape, shift


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


class _BoxGrid:
    """The chunks of an array."""

    def __init__(self, shape: Cells, chunk_shape: Cells, shift: Cells) -> None:
        self._shape, self._chunk, self._shift = shape, chunk_shape, shift

    def by_chunk(self, boxes: Sequence[Box]) -> Iterator[tuple[Cells, list[Box]]]:
        """Adjacent boxes that lie in one chunk, with its coordinates."""
        for coords, together in itertools.groupby(boxes, self._coords):
            yield coords, list(together)

    def _coords(self, box: Box) -> Cells:
        axes = zip(box.first, self._shift, self._chunk, strict=True)
        return tuple((first + shift) // chunk for first, shift, chunk in axes)

    def held(self, coords: Cells) -> str:
        """The cells of a chunk, for a message."""
        axes = zip(coords, self._chunk, self._shift, self._shape, strict=True)
        spans = [(max(0, k * c - s), min(n, (k + 1) * c - s)) for k, c, s, n in axes]
        return held_cells(spans)


class _BoxReads:
    """Reads of boxes, one read for the boxes of a chunk."""

    def __init__(
        self,
        array: StoreArray,
        origin: Cells,
        grid: _BoxGrid,
        groups: list[tuple[Cells, list[Box]]],
    ) -> None:
        self._ends = Ends(len(groups))
        self._array, self._origin, self._grid = array, origin, grid
        for number, (coords, boxes) in enumerate(groups):
            self._begin(number, coords, boxes)

    @property
    def done(self) -> Future[None]:
        """Done when all boxes are filled."""
        return self._ends.done

    def _begin(self, number: int, coords: Cells, boxes: list[Box]) -> None:
        whole = boxes[0] if len(boxes) == 1 else _around(boxes)
        axes = zip(self._origin, whole.first, whole.out.shape, strict=True)
        wanted = tuple(slice(o + first, o + first + size) for o, first, size in axes)
        remote = self._array.remote
        if remote is not None:  # into memory of its own: see `remote`
            cells = self._array.store[wanted]
            read = remote.start(cells, lambda error: self._refused(coords, error))
            read.add_done_callback(lambda ended: self._copy(number, whole, boxes, ended))
            return
        try:
            # `write` reads into that memory; there is no read that takes any.
            future = ts.array(whole.out).write(self._array.store[wanted])
        except (ValueError, RuntimeError, OSError) as error:
            self._end(number, coords, whole, boxes, error)
            return
        future.add_done_callback(
            lambda ended: self._end(number, coords, whole, boxes, ended.exception())
        )

    def _end(
        self, number: int, coords: Cells, whole: Box, boxes: list[Box], error: Exception | None
    ) -> None:
        array = self._array
        if error is not None:
            error = self._refused(coords, error)
        else:
            try:
                if array.presence is not None:
                    _check(array.presence, whole.out, array.where)
                if whole is not boxes[0]:
                    for box in boxes:
                        box.fill(whole.out, whole.first)
            except Exception as other:
                error = other
        self._ends.end(number, error)

    def _copy(self, number: int, whole: Box, boxes: list[Box], ended: Future[AnyArray]) -> None:
        """Copy values that were read into other memory to boxes."""
        error: Exception | None = None
        try:
            values = ended.result()
            for box in boxes:
                box.fill(values, whole.first)
        except Exception as other:
            error = other
        self._ends.end(number, error)

    def _refused(self, coords: Cells, error: BaseException) -> ReadError:
        array, held = self._array, self._grid.held(coords)
        why = array.reason(error)
        if array.remote is not None and kind_of(error) != "other":
            return unreachable(array.name, array.where, held, why)
        return damaged(array.name, array.where, held, why, file=file_in(error))


def _bounds(boxes: Sequence[Box]) -> tuple[Cells, Cells]:
    """The cells `[first, stop)` along each axis of the smallest box around some boxes."""
    stops = ([f + n for f, n in zip(b.first, b.out.shape, strict=True)] for b in boxes)
    first = tuple(map(min, zip(*(box.first for box in boxes), strict=True)))
    return first, tuple(map(max, zip(*stops, strict=True)))


def _around(boxes: Sequence[Box]) -> Box:
    """The smallest box around some boxes, in memory of its own."""
    first, stop = _bounds(boxes)
    shape = [s - f for f, s in zip(first, stop, strict=True)]
    return Box(first, np.empty(shape, boxes[0].out.dtype))


def _check(presence: PresenceCheck, out: AnyArray, where: str) -> None:
    """Check that the array is still there, if the values look like the fill value."""
    sampled: Any = out[tuple(slice(None, None, max(1, size // 3)) for size in out.shape)]
    presence.check(np.ascontiguousarray(sampled)[None], [0], where)
