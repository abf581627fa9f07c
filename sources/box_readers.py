"""Readers of boxes: chunks decoded directly, or read by TensorStore.

Boxes of one chunk that follow one another in a call are read together: the chunk is decoded once.

Invariants: memory that was asked for is filled whole or there is a `ReadError` that names the chunk
by its cells; a chunk that is not there is the fill value only while the array is there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final

import numpy as np
import tensorstore as ts

from windrow.errors import ReadError
from windrow.sources.base import IntArray
from windrow.sources.checks import Checks
from windrow.sources.pieces import AnyArray, Box, BoxReader
from windrow.sources.threads import Ends
from windrow.sources.zarr_chunks import ChunkStore, PlainChecks
from windrow.sources.zarr_codecs import ByteArray, DamageError, scratch
from windrow.sources.zarr_far import unreachable
from windrow.sources.zarr_flight import kind_of
from windrow.sources.zarr_guard import Guard
from windrow.sources.zarr_plain import PlainArray, damaged, held_cells
from windrow.sources.zarr_read import Rows, StoreChecks
from windrow.sources.zarr_reasons import file_in

Cells = tuple[int, ...]

# Along axes of which no chunks are known, as much is read as one.
_UNKNOWN_BYTES: Final = 2**20


class DirectBoxReader:
    """Reads boxes of a plain array; its pieces are the array's chunks."""

    def __init__(self, plain: PlainArray, *, most_open: int | None = None) -> None:
        """Open nothing yet; `most_open` is as for `StoredFiles`."""
        self._plain = plain
        self._chunks = ChunkStore(plain, cells=True, most_open=most_open)
        self._grid = _Grid(plain.shape, plain.chunk_shape, (0,) * len(plain.shape))

    def checks(self) -> Checks:
        """The chunks of the array."""
        return PlainChecks(self._plain)

    def start(self, boxes: Sequence[Box], pool: Executor) -> Future[None]:
        """Fill the boxes in one task on `pool`; the future has a ReadError if that fails."""
        return pool.submit(self._fill, list(boxes))

    def stored_bytes(self, pieces: IntArray) -> IntArray:
        """Bytes of chunks in storage, judged by the first stored object."""
        size = math.ceil(self._plain.chunk_bytes * self._chunks.ratio())
        return np.full(len(pieces), size, np.int64)

    def _fill(self, boxes: list[Box]) -> None:
        missed = False
        for coords, together in self._grid.by_chunk(boxes):
            try:
                missed |= not self._take(coords, together)
            except (DamageError, OSError) as error:
                raise self._chunks.damaged(coords, self._grid.held(coords), error) from error
        self._chunks.check(missed)

    def _take(self, coords: Cells, boxes: list[Box]) -> bool:
        """Fill boxes of one chunk; whether it is stored."""
        plain = self._plain
        corner = [k * c for k, c in zip(coords, plain.chunk_shape, strict=True)]
        straight, memory = next(self._straight(boxes), (None, None))
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
            if box is not straight:
                box.fill(block, corner)
        return True

    def _bytes_of(self, boxes: Sequence[Box], corner: Sequence[int]) -> slice:
        """The bytes of a chunk, as it is stored, from the first to the last that boxes want."""
        first, stop = _bounds(boxes)
        begin = end = 0
        for axis in self._plain.axes:
            cells = self._plain.chunk_shape[axis]
            begin = begin * cells + first[axis] - corner[axis]
            end = end * cells + stop[axis] - 1 - corner[axis]
        itemsize = self._plain.dtype.itemsize
        return slice(begin * itemsize, (end + 1) * itemsize)

    def _straight(self, boxes: Sequence[Box]) -> Iterator[tuple[Box, ByteArray]]:
        """The boxes whose bytes are exactly one decoded chunk, and these bytes."""
        plain = self._plain
        for box in boxes:
            out = box.out
            if plain.straight and out.shape == plain.chunk_shape and out.flags.c_contiguous:
                yield box, out.reshape(-1).view(np.uint8)


class StoreBoxReader:
    """Reads boxes through TensorStore; what is read as one has a shape of the caller's."""

    def __init__(self, array: Rows, chunk_shape: Cells, shift: Cells) -> None:
        """Pieces are chunks of `chunk_shape`, of which the first begins `shift` before cell 0."""
        self._array, self._chunk_shape, self._shift = array, chunk_shape, shift
        shape = (array.length, *array.row_shape)
        self._grid = _Grid(shape, chunk_shape, shift)
        self._origin: Cells = tuple(map(int, array.store.domain.inclusive_min))
        self._chunk_bytes = math.prod(chunk_shape) * array.dtype.itemsize

    def checks(self) -> Checks:
        """The pieces of the array."""
        return StoreChecks(self._array, self._chunk_shape, self._shift)

    def start(self, boxes: Sequence[Box], pool: Executor) -> Future[None]:
        """Start reading all boxes, on TensorStore's own threads; done when they are filled.

        The future has a ReadError if one of them can not be read.
        """
        groups = list(self._grid.by_chunk(boxes))
        if not groups:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return _Reads(self._array, self._origin, self._grid, groups).done

    def stored_bytes(self, pieces: IntArray) -> IntArray:
        """Bytes of pieces in memory: what they take in storage is not known."""
        return np.full(len(pieces), self._chunk_bytes, np.int64)


def box_reader(
    plain: PlainArray | None, rows: Rows | None, chunk: Sequence[int | None]
) -> tuple[BoxReader, Cells, Cells]:
    """The reader of an open array, the shape of its pieces, and cells of the first before cell 0.

    Args:
        plain: Set if the array is decoded directly.
        rows: Set if TensorStore reads it.
        chunk: Shape of its chunks; None along an axis where that is not known.
    """
    if plain is not None:
        whole = tuple(
            max(1, min(c, n)) for c, n in zip(plain.chunk_shape, plain.shape, strict=True)
        )
        return DirectBoxReader(plain), whole, (0,) * len(whole)
    if rows is None:
        raise TypeError("an open array is decoded directly, or TensorStore reads it")
    shape, shift = _pieces(rows, chunk)
    return StoreBoxReader(rows, shape, shift), shape, shift


def _pieces(array: Rows, chunk: Sequence[int | None]) -> tuple[Cells, Cells]:
    """Shape of what is read as one, and cells of the first one that lie before cell 0."""
    sizes = (array.length, *array.row_shape)
    origins = array.store.chunk_layout.grid_origin or (None,) * len(sizes)
    pieces, shift = list(sizes), [0] * len(sizes)
    unknown = []
    for axis, (size, cells, origin) in enumerate(zip(sizes, chunk, origins, strict=True)):
        if cells is None or origin is None:
            unknown.append(axis)
            continue
        begun = (int(array.store.domain.inclusive_min[axis]) - int(origin)) % cells
        if begun + size > cells:  # else it all lies in one chunk
            pieces[axis], shift[axis] = cells, begun
    pieces = [max(1, cells) for cells in pieces]
    known = (cells for axis, cells in enumerate(pieces) if axis not in unknown)
    room = max(1, _UNKNOWN_BYTES // max(1, math.prod(known) * array.dtype.itemsize))
    for axis in reversed(unknown):
        pieces[axis] = min(pieces[axis], room)
        room = max(1, room // pieces[axis])
    return tuple(pieces), tuple(shift)


class _Grid:
    """The chunks of an array."""

    def __init__(self, shape: Cells, chunk_shape: Cells, shift: Cells) -> None:
        self._shape, self._chunk, self._shift = shape, chunk_shape, shift

    def by_chunk(self, boxes: Sequence[Box]) -> Iterator[tuple[Cells, list[Box]]]:
        """Boxes that follow one another and lie in one chunk, with its coordinates."""
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


class _Reads:
    """Boxes that are being read, one read for those of a chunk."""

    def __init__(
        self, array: Rows, origin: Cells, grid: _Grid, groups: list[tuple[Cells, list[Box]]]
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
        far = self._array.far
        if far is not None:  # into memory of its own: see `zarr_far`
            cells = self._array.store[wanted]
            read = far.start(cells, lambda error: self._refused(coords, error))
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
                if array.guard is not None:
                    _check(array.guard, whole.out, array.where)
                if whole is not boxes[0]:
                    for box in boxes:
                        box.fill(whole.out, whole.first)
            except Exception as other:
                error = other
        self._ends.end(number, error)

    def _copy(self, number: int, whole: Box, boxes: list[Box], ended: Future[AnyArray]) -> None:
        """Fill boxes from what was read into other memory."""
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
        if array.far is not None and kind_of(error) != "other":
            return unreachable(array.name, array.where, held, why)
        return damaged(array.name, array.where, held, why, file=file_in(error))


def _bounds(boxes: Sequence[Box]) -> tuple[Cells, Cells]:
    """The cells `[first, stop)` along each axis of the smallest box around some."""
    stops = ([f + n for f, n in zip(b.first, b.out.shape, strict=True)] for b in boxes)
    first = tuple(map(min, zip(*(box.first for box in boxes), strict=True)))
    return first, tuple(map(max, zip(*stops, strict=True)))


def _around(boxes: Sequence[Box]) -> Box:
    """The smallest box around some, in memory of its own."""
    first, stop = _bounds(boxes)
    shape = [s - f for f, s in zip(first, stop, strict=True)]
    return Box(first, np.empty(shape, boxes[0].out.dtype))


def _check(guard: Guard, out: AnyArray, where: str) -> None:
    """Check that the array is there still, if what was read looks like the fill value."""
    seen: Any = out[tuple(slice(None, None, max(1, size // 3)) for size in out.shape)]
    guard.check(np.ascontiguousarray(seen)[None], [0], where)
