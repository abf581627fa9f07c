"""Reads of arrays by TensorStore: rows and boxes, and the chunks that are checked.

Boxes of one chunk that are adjacent in a call are read together, so that the chunk is decoded once.

Invariants: a read fills all of the requested memory, or has a `ReadError` that names the rows, or the chunk
by its cells. A chunk that is not stored reads as the fill value only while the array is there.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final

import numpy as np
import tensorstore as ts

from windrow.core.threads import Ends, InlineExecutor
from windrow.errors import ReadError
from windrow.sources.base import AnyArray, IntArray, run_of
from windrow.sources.chunks import Box, Span, groups_read
from windrow.sources.scan import Checks
from windrow.sources.zarr.error_text import held_cells, is_about_index
from windrow.sources.zarr.presence import PresenceCheck, spec_of
from windrow.sources.zarr.reads import IN_FLIGHT_BYTES, as_boxes, filled, rows_read
from windrow.sources.zarr.store_array import StoreArray, refused_chunk, refused_rows
from windrow.sources.zarr.urls import drivers

Cells = tuple[int, ...]

# The size of one read along axes whose chunks are unknown.
_UNKNOWN_BYTES: Final = 2**20


class StoreReader:
    """Reads rows or boxes through TensorStore; a `RowReader` or a `BoxReader`."""

    def __init__(self, array: StoreArray, *, rows: bool) -> None:
        """Read rows of the chunks of the first axis, or boxes of chunks."""
        self._array, self._rows = array, rows
        self.chunk_shape, self.shift = _chunks(array)

    @functools.cached_property
    def _checks(self) -> StoreChecks:
        return StoreChecks(self._array, self.chunk_shape, self.shift)

    def checks(self) -> Checks:
        """The chunks of the array, as far as they are known."""
        return self._checks

    def start(self, wanted: Sequence[Span] | Sequence[Box], pool: Executor) -> Future[None]:
        """Start reading spans or boxes on TensorStore's own threads; done when their memory is filled.

        The future has a ReadError if one of them cannot be read.
        """
        boxes = as_boxes(wanted)
        if not self._rows:
            by_chunk = itertools.groupby(boxes, lambda box: self._checks.coords_of(box.first))
            return _read(self._array, [list(group) for _, group in by_chunk], self._refused)
        # Adjacent boxes inside a shard are one request over a network.
        groups = _neighbours(boxes) if self._array.is_remote_source else [[box] for box in boxes]
        return _read(self._array, groups, self._refused, apart=True)

    def read(self, rows: IntArray) -> AnyArray:
        """Rows `(n, ...)` in new memory. Waits; raises ReadError."""
        array = self._array
        if array.remote is None:
            # TensorStore copies the wanted rows alone; if that fails, each chunk is read by itself.
            with contextlib.suppress(ValueError, RuntimeError, OSError):
                return self._read_at_once(rows)
        start = functools.partial(self.start, pool=InlineExecutor())
        return rows_read(rows, array.chunk_of, start, array.row_shape, array.dtype)

    def _read_at_once(self, rows: IntArray) -> AnyArray:
        array = self._array
        distinct, take = np.unique(rows, return_inverse=True)
        found = np.empty((len(distinct), *array.row_shape), array.dtype)
        run, wanted = run_of(distinct), distinct + array.origin
        size = len(rows) if run is not None else IN_FLIGHT_BYTES // max(1, array.row_bytes)
        for first in range(0, len(wanted), max(1, size)):
            some = wanted[first : first + max(1, size)]
            cells = some if run is None else slice(int(some[0]), int(some[-1]) + 1)
            ts.array(found[first : first + len(some)]).write(array.store.oindex[cells]).result()
        if array.presence is not None and len(rows):
            chunk_begins = np.flatnonzero(np.diff(array.chunk_of(distinct), prepend=-1))
            array.presence.check(found, chunk_begins, array.where)
        return found if run_of(take) is not None else found[take]

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in memory; their bytes in storage are not known."""
        array = self._array
        size = array.read_rows * array.row_bytes if self._rows else self._checks.chunk_bytes
        return np.full(len(chunks), size, np.int64)

    def _refused(
        self, first: Sequence[int], stop: Sequence[int], error: BaseException
    ) -> ReadError:
        array, records = self._array, (first[0], stop[0])
        if self._rows and array.remote is not None:
            return refused_rows(array, records, error)
        begin, end = _lost(array, self._checks, first, error)
        if not self._rows:
            return refused_chunk(array, held_cells(list(zip(begin, end, strict=True))), error)
        if not array.chunk_rows:
            return refused_rows(array, (first[0], first[0] + 1), error)
        return refused_rows(array, (begin[0], end[0]), error)


class StoreChecks(Checks):
    """The chunks of an array that TensorStore reads."""

    def __init__(
        self, array: StoreArray, chunk_shape: tuple[int, ...], shift: tuple[int, ...]
    ) -> None:
        """Chunks have `chunk_shape`; the first one begins `shift` cells before cell 0."""
        super().__init__(array.shape, chunk_shape, shift, array.dtype.itemsize)
        self._array = array
        # Whether its driver knows which chunks are stored. The driver of precomputed volumes looks
        # for chunks in the wrong place: it reports all as missing, or raises.
        self._knows_stored = "neuroglancer_precomputed" not in drivers(spec_of(array.store))
        self._across = math.prod(self.grid[1:])

    @property
    def waits(self) -> bool:
        return True

    def check_run(self, first: int, stop: int) -> tuple[int, int] | None:
        if self._across != 1 or stop - first < 2:
            return None
        begin, end = self.bounds(first)[0], self.bounds(stop - 1)[1]
        cells = self._array.cells(begin, end)
        try:
            self._array.begin(cells, (begin[0], end[0])).result()
            if self._array.holds is not None:
                return sum(not self.is_stored(number) for number in range(first, stop)), 0
            if not self._knows_stored:
                return 0, stop - first
            statistics = self._statistics(cells, query_fully_stored=True)
        except (NotImplementedError, ValueError, RuntimeError, OSError):
            return None
        return (0, 0) if statistics.fully_stored else None

    def check(self, number: int) -> bool | None:
        try:
            first, past = (bounds[0] for bounds in self.bounds(number))
            found = self._array.begin(self._cells(number), (first, past)).result()
        except ReadError:
            raise  # it names the place already
        except (ValueError, RuntimeError, OSError) as error:
            raise self._refused(number, error) from error
        presence = self._array.presence
        if presence is not None:
            values = found.reshape(1, -1)
            presence.check(values, [0], self._array.where)
            if not presence.may_be_fill(values, [0]):
                return True  # it holds other values, so it is stored
        return self.is_stored(number)

    @property
    def knows_stored(self) -> bool:
        array = self._array
        return array.holds is not None or (array.knows_chunks and self._knows_stored)

    def is_stored(self, number: int) -> bool | None:
        if self._array.holds is not None:
            try:
                return self._array.holds(self.coords(number))
            except (ValueError, RuntimeError, OSError) as error:
                raise self._refused(number, error) from error
        if not self._knows_stored:
            return None
        try:
            statistics = self._statistics(self._cells(number), query_not_stored=True)
        except NotImplementedError:
            self._knows_stored = False
            return None
        except (ValueError, RuntimeError, OSError) as error:
            if "UNIMPLEMENTED" in str(error):
                self._knows_stored = False
                return None
            raise self._refused(number, error) from error
        return not statistics.not_stored

    def _statistics(self, cells: Any, **query: bool) -> Any:
        """TensorStore's statistics of the storage of cells. Waits."""
        if self._array.remote is None:
            return cells.storage_statistics(**query).result()
        in_flight = self._array.remote.access.in_flight
        return in_flight.start(lambda: cells.storage_statistics(**query)).result()

    def file(self, number: int) -> None:
        return None

    def orphans(self) -> list[str]:
        return []

    def _cells(self, number: int) -> Any:
        return self._array.cells(*self.bounds(number))

    def _refused(self, number: int, error: Exception) -> ReadError:
        begin, end = _lost(self._array, self, self.bounds(number)[0], error)
        records = begin[0], end[0]
        if not self._array.chunk_rows and self._array.remote is None:
            records = self._narrowed(*records)
        return refused_rows(self._array, records, error)

    def _narrowed(self, first: int, stop: int) -> tuple[int, int]:
        """The rows `[first, stop)` around all that cannot be read, if chunks are unknown."""
        rows = range(first, stop)
        least = bisect.bisect_left(rows, True, key=lambda row: self._fails(first, row + 1))
        most = bisect.bisect_left(rows, True, key=lambda row: not self._fails(row + 1, stop))
        if least > most or max(least, most) >= len(rows):
            return first, stop  # now it can be read
        return first + least, first + most + 1

    def _fails(self, first: int, stop: int) -> bool:
        try:
            origin = self._array.origin
            self._array.store[origin + first : origin + stop].read().result()
        except (ValueError, RuntimeError, OSError):
            return True
        return False


def _read(
    array: StoreArray,
    groups: Sequence[Sequence[Box]],
    refused: Callable[[Sequence[int], Sequence[int], BaseException], ReadError],
    *,
    apart: bool = False,
) -> Future[None]:
    """Start one read for each group of boxes, on TensorStore's own threads; done when all are filled.

    Args:
        array: The array.
        groups: Boxes that are read together.
        refused: Makes the error of a read from its cells `[first, stop)` and TensorStore's error.
        apart: Whether the boxes of a group lie in different chunks.

    Returns:
        A future, with the errors of reads that failed.
    """
    remote = array.remote
    if remote is not None:

        def begin(boxes: Sequence[Box]) -> tuple[Sequence[int], Future[AnyArray]]:
            first, stop = _bounds_of(boxes)
            fail = functools.partial(refused, first, stop)
            return first, remote.start(array.cells(first, stop), fail)

        return filled(groups, begin, apart=apart, exact=array.knows_chunks)
    ends = Ends(len(groups), functools.partial(groups_read, groups, exact=array.knows_chunks))
    for number, boxes in enumerate(groups):
        bounds = _bounds_of(boxes)
        fail = functools.partial(refused, *bounds)
        _fill(array, boxes, bounds, fail, functools.partial(ends.end, number))
    return ends.done


def _fill(
    array: StoreArray,
    boxes: Sequence[Box],
    bounds: tuple[Sequence[int], Sequence[int]],
    refused: Callable[[BaseException], ReadError],
    end: Callable[[Exception | None], None],
) -> None:
    """Start to fill boxes of a local array, and call `end` with the error, or None without one."""
    shape = np.subtract(bounds[1], bounds[0])
    out = boxes[0].out if len(boxes) == 1 else np.empty(shape, array.dtype)

    def ended(future: Any) -> None:
        error = future.exception()
        if error is not None:
            failed = refused(error)
            failed.__cause__ = error
            end(failed)
            return
        try:
            if array.presence is not None:
                _check_presence(array.presence, out, array.where)
            for box in boxes if len(boxes) > 1 else ():
                box.fill(out, bounds[0])
        except Exception as other:
            end(other)
        else:
            end(None)

    try:
        # `write` reads into that memory; there is no read that takes any.
        ts.array(out).write(array.cells(*bounds)).add_done_callback(ended)
    except (ValueError, RuntimeError, OSError) as error:
        end(refused(error))


def _bounds_of(boxes: Sequence[Box]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The cells `[first, stop)` along each axis of the smallest box around some boxes."""
    stops = ([f + n for f, n in zip(b.first, b.out.shape, strict=True)] for b in boxes)
    first = tuple(map(min, zip(*(box.first for box in boxes), strict=True)))
    return first, tuple(map(max, zip(*stops, strict=True)))


def _check_presence(presence: PresenceCheck, out: AnyArray, where: str) -> None:
    """Check that the array is still there, if the values look like the fill value."""
    sampled: Any = out[tuple(slice(None, None, max(1, size // 3)) for size in out.shape)]
    presence.check(np.ascontiguousarray(sampled)[None], [0], where)


def _neighbours(boxes: Sequence[Box]) -> list[list[Box]]:
    """Runs of boxes of rows in which each box begins where the previous one ends."""
    runs: list[list[Box]] = []
    for box in boxes:
        if runs and runs[-1][-1].first[0] + len(runs[-1][-1].out) == box.first[0]:
            runs[-1].append(box)
        else:
            runs.append([box])
    return runs


def _chunks(array: StoreArray) -> tuple[Cells, Cells]:
    """Shape of the chunks to read, and cells of the first one that lie before cell 0."""
    sizes, layout = array.shape, array.store.chunk_layout
    chunk = layout.read_chunk.shape or (None,) * len(sizes)
    origins = layout.grid_origin or (None,) * len(sizes)
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


def _lost(
    array: StoreArray, checks: StoreChecks, first: Sequence[int], error: BaseException
) -> tuple[Cells, Cells]:
    """The cells `[first, stop)` that an error is about: a chunk, or with a damaged index all of its shard."""
    if array.remote is None and is_about_index(error):
        checks = _shards(array)
    return checks.bounds(int(np.ravel_multi_index(checks.coords_of(first), checks.grid)))


def _shards(array: StoreArray) -> StoreChecks:
    """The shards of an array, whose layout TensorStore knows."""
    layout, first = array.store.chunk_layout, array.store.domain.inclusive_min
    sizes = tuple(map(int, layout.write_chunk.shape))
    cells = zip(first, layout.grid_origin, sizes, strict=True)
    return StoreChecks(array, sizes, tuple(int((f - o) % n) for f, o, n in cells))
