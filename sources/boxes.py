"""Reads records that are cut out of an array of any rank, and maps them to chunks.

A record takes one or several fields of an array. Cuts tile a field. A cut is a box of the array at
some offset from the record's origin. The cells of a box outside the array are padding.

Each cut of each record has a core: the cells of the array that give its values. Without padding the
core is the box itself. A core is never longer than its box, so it is read into the box's memory. Then
the rest of the box is filled from it. Where the array wraps around, a box is cut first into
pieces that lie within the array along that axis.

Invariants: chunks are numbered in C order of their grid. All arithmetic on cells and chunks is exact,
in int64. `read` decodes each chunk once.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from windrow.core import buffer_pool
from windrow.core.native import native
from windrow.core.threads import InlineExecutor, shared_pool
from windrow.errors import ReadError, SourceError
from windrow.sources.base import AnyArray, IntArray
from windrow.sources.chunks import Box, BoxReader, Needs, Part, partly_read

if TYPE_CHECKING:
    from windrow.sources.padding import Mode, Padding

# Bytes of chunks being read in one call of `read`, and bytes of chunks in one task of a thread.
_IN_FLIGHT_BYTES: Final = 256 * 2**20
_TASK_BYTES: Final = 256 * 2**10
# For fewer bytes, one thread is done before a second one has started.
_WORTH_THREADS_BYTES: Final = 2**20
_MOST_CHUNKS: Final = 2**62

Fields: TypeAlias = tuple[AnyArray, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """One box of a field.

    Args:
        offset: Cells from the record's origin to the box, per axis; may be negative.
        target: The first cell of the field that the box fills.
        shape: Cells per axis.
    """

    offset: tuple[int, ...]
    target: tuple[int, ...]
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class BoxField:
    """A field of a record: an array of this shape, which its cuts tile."""

    shape: tuple[int, ...]
    cuts: tuple[Cut, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Pads:
    """The boxes that reach out of the array: box `k` is of cut `cuts[k]` of record `records[k]`.

    Cells along each axis, int64 `(k, rank)`: the box fills `[targets, ends)` of its field and begins at
    `first` of the array. Its core is `[low, high)` of the array and was read into the box from the
    box's cell `places` on.
    """

    records: IntArray
    cuts: IntArray
    targets: IntArray
    ends: IntArray
    first: IntArray
    low: IntArray
    high: IntArray
    places: IntArray


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Cores:
    """The cores `[low, high)` of boxes, the place of each core in its box, and the pads."""

    low: IntArray
    high: IntArray
    places: IntArray
    pads: _Pads | None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BoxFragments:
    """Parts of boxes, each in one chunk, with their places in the array and in a field.

    Fragment `k` belongs to record `records[k]` and cut `cuts[k]`, counted over all fields, and lies
    in chunk `chunks[k]`. Its cells, int64 `(k, rank)`: it begins at `first` of the array and at
    `targets` of its field, and has `lengths` along each axis.
    """

    records: IntArray
    cuts: IntArray
    chunks: IntArray
    first: IntArray
    targets: IntArray
    lengths: IntArray
    pads: _Pads | None = None

    def __len__(self) -> int:
        return len(self.records)

    def taken(self, at: IntArray | slice) -> BoxFragments:
        """The fragments at `at`, without their padding."""
        return BoxFragments(
            self.records[at],
            self.cuts[at],
            self.chunks[at],
            self.first[at],
            self.targets[at],
            self.lengths[at],
        )


class _CutTable:
    """The fields of a part as arrays with one row per cut, shared by all reads."""

    def __init__(
        self,
        shape: tuple[int, ...],
        chunk_shape: tuple[int, ...],
        shift: tuple[int, ...],
        fields: tuple[BoxField, ...],
        readable: Sequence[range],
    ) -> None:
        cuts = [(number, cut) for number, field in enumerate(fields) for cut in field.cuts]
        rows = (len(cuts), len(shape))
        self.shape = np.array(shape, np.int64)
        self.begin = np.array([cells.start for cells in readable], np.int64)
        self.extent = np.array([len(cells) for cells in readable], np.int64)
        self.chunk = np.array(chunk_shape, np.int64)
        self.shift = np.array(shift, np.int64)
        self.grid = -(-(self.shape + self.shift) // self.chunk)
        sizes = [int(count) for count in self.grid]
        self.chunks = math.prod(sizes)
        # Chunk numbers from one chunk to the next along each axis; Python's integers do not overflow.
        weights = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
        self.weights = np.array([min(weight, _MOST_CHUNKS) for weight in weights], np.int64)
        self.field_of = [number for number, _ in cuts]
        self.fields = np.array(self.field_of, np.int64)
        self.offsets = np.array([cut.offset for _, cut in cuts], np.int64).reshape(rows)
        self.targets = np.array([cut.target for _, cut in cuts], np.int64).reshape(rows)
        self.sizes = np.array([cut.shape for _, cut in cuts], np.int64).reshape(rows)

    def cut(self, low: IntArray, high: IntArray) -> tuple[IntArray, ...]:
        """Cuts boxes with the cells `[low, high)`, `(boxes, rank)`, where chunks begin.

        Returns:
            For each fragment its box and chunk, `(k,)`, and its first cell, that cell's place in the
            box and its lengths, `(k, rank)`.
        """
        core = native()
        rank = low.shape[1]
        if core is not None:
            ends = np.ascontiguousarray(low), np.ascontiguousarray(high)
            found = core.plan_boxes(*ends, self.chunk, self.shift, self.weights)
            if found is not None:
                boxes, chunks, *cells = (np.frombuffer(column, np.int64) for column in found)
                return boxes, chunks, *(column.reshape(-1, rank) for column in cells)
        return self.cut_in_numpy(low, high)

    def cut_in_numpy(self, low: IntArray, high: IntArray) -> tuple[IntArray, ...]:
        """What `cut` returns where there is no core."""
        begin = (low + self.shift) // self.chunk
        counts = np.maximum((high + self.shift - 1) // self.chunk - begin + 1, 0)
        counts[(high <= low).any(axis=1)] = 0
        boxes, coords = _spread(begin, counts, counts.prod(axis=1))
        low, high = low[boxes], high[boxes]
        corner = coords * self.chunk - self.shift
        start = np.maximum(low, corner)
        stop = np.minimum(high, corner + self.chunk)
        return boxes, coords @ self.weights, start, start - low, stop - start


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BoxPart(Part):
    """A part whose records are cut out of one array of any rank.

    The column of a part is a tuple with one array `(n, *field.shape)` per field.

    Args:
        name: Name of the array in the source.
        shape: Shape of the array; at least one axis.
        dtype: The dtype delivered.
        chunk_shape: Cells of a chunk along each axis.
        reader: Reads boxes of the array.
        origins: A function from record indices `(n,)` to the first cell of each record, int64
            `(n, rank)`, or of each cut of it, `(n, cuts, rank)`; cells may lie outside the array if
            there is padding.
        fields: The fields of a record, at least one.
        padding: The values outside the array; None if all boxes lie within it.
        shift: Cells of the first chunk that lie before cell 0, along each axis; () for 0.
        readable: The cells that may be read, along each axis; others count as outside of the array.
            () for all.

    Raises:
        SourceError: If the array has more chunks than can be numbered.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    reader: BoxReader
    origins: Callable[[IntArray], IntArray]
    fields: tuple[BoxField, ...]
    padding: Padding | None = None
    shift: tuple[int, ...] = ()
    readable: tuple[range, ...] = ()
    _table: _CutTable = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        shift = self.shift or (0,) * len(self.shape)
        object.__setattr__(self, "shift", shift)
        readable = self.readable or tuple(map(range, self.shape))
        object.__setattr__(self, "readable", readable)
        table = _CutTable(self.shape, self.chunk_shape, shift, self.fields, readable)
        if table.chunks > _MOST_CHUNKS:
            named = f"array {self.name!r}" if self.name else "the array"
            raise SourceError(
                f"{named} has {table.chunks:,} chunks, shape {list(self.shape)} in chunks of"
                f" {list(self.chunk_shape)}, and at most {_MOST_CHUNKS:,} can be numbered; open a"
                " part of it with TensorStore and give that"
            )
        object.__setattr__(self, "_table", table)

    @property
    def chunk_count(self) -> int:
        return self._table.chunks

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the largest chunk in memory."""
        whole = map(min, self.chunk_shape, self.shape)
        return math.prod(whole) * self.dtype.itemsize

    @property
    def record_bytes(self) -> int:
        """Bytes of all fields of one record."""
        return sum(math.prod(field.shape) for field in self.fields) * self.dtype.itemsize

    @property
    def usual_chunks(self) -> float:
        """The number of chunks that a record lies in, on average over all places."""
        table = self._table
        along = np.where(table.sizes > 0, (table.sizes - 1) / table.chunk + 1, 0)
        return float(np.minimum(along, table.grid).prod(axis=1).sum())

    @property
    def alone(self) -> bool:
        return False

    def needs(self, indices: IntArray) -> Needs:
        fragments = self.fragments(indices)
        return Needs(fragments.records, fragments.chunks)

    def decoded_bytes(self, chunks: IntArray) -> IntArray:
        first, stop = self._bounds(chunks)
        cells: IntArray = np.prod(stop - first, axis=1, dtype=np.int64)
        return cells * self.dtype.itemsize

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        return self.reader.stored_bytes(chunks)

    def bounds(self, chunk: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The cells `[first, stop)` of a chunk, along each axis."""
        first, stop = self._bounds(np.array([chunk], np.int64))
        return tuple(first[0].tolist()), tuple(stop[0].tolist())

    def _bounds(self, chunks: IntArray) -> tuple[IntArray, IntArray]:
        table = self._table
        coords = chunks[:, None] // table.weights % table.grid
        first = coords * table.chunk - table.shift
        return np.maximum(first, 0), np.minimum(first + table.chunk, table.shape)

    def home(self, indices: IntArray) -> IntArray:
        """The chunk in which the first box of each record begins, clipped into the array."""
        return self.home_of_cells(self._cuts(indices)[:, 0])

    def _cuts(self, indices: IntArray) -> IntArray:
        """The first cell of each cut of each record, `(n, cuts, rank)`."""
        found = self.origins(indices)
        return (found[:, None] if found.ndim == 2 else found) + self._table.offsets

    def home_of_cells(self, cells: IntArray) -> IntArray:
        """The chunk that holds each of `cells` `(n, rank)`, clipped into the array; 0 if empty."""
        table = self._table
        if not table.chunks:
            return np.zeros(len(cells), np.int64)
        inside = np.clip(cells, 0, table.shape - 1)
        found: IntArray = (inside + table.shift) // table.chunk @ table.weights
        return found

    # --- which cells -----------------------------------------------------------------------------

    def fragments(self, indices: IntArray) -> BoxFragments:
        """The fragments of the records at `indices`; their records never decrease."""
        table = self._table
        first = self._cuts(indices).reshape(-1, len(self.shape))
        sizes, targets = (
            np.broadcast_to(of, (len(indices), *of.shape)).reshape(first.shape)
            for of in (table.sizes, table.targets)
        )
        numbers = np.arange(len(first))
        for axis, mode in enumerate(self._modes):
            if mode == "wrap":
                at, first, sizes, targets = self._pieces(axis, first, sizes, targets)
                numbers = numbers[at]
        cores = self._cores(numbers, first, sizes, targets)
        boxes, chunks, start, within, lengths = table.cut(cores.low, cores.high)
        records, cuts = np.divmod(numbers[boxes], max(1, len(table.offsets)))
        placed = within + targets[boxes]
        if cores.pads is not None:
            placed += cores.places[boxes]
        return BoxFragments(records, cuts, chunks, start, placed, lengths, cores.pads)

    @property
    def _modes(self) -> tuple[Mode | None, ...]:
        return () if self.padding is None else self.padding.modes

    def _pieces(
        self, axis: int, first: IntArray, sizes: IntArray, targets: IntArray
    ) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Cuts boxes where the array ends along an axis, and moves all pieces into the array.

        Returns:
            The number of the box of each piece; the first cells, sizes and targets of the pieces.
        """
        begin, extent = int(self._table.begin[axis]), max(1, int(self._table.extent[axis]))
        cells = first[:, axis] - begin
        ends = cells + sizes[:, axis]
        turn = cells // extent
        counts = np.maximum((ends - 1) // extent - turn + 1, 1)
        if (counts == 1).all() and not turn.any():
            return np.arange(len(first)), first, sizes, targets
        at = np.repeat(np.arange(len(first)), counts)
        turn = turn[at] + np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
        low = np.maximum(cells[at], turn * extent)
        high = np.minimum(ends[at], (turn + 1) * extent)
        first, sizes, targets = first[at], sizes[at], targets[at]
        first[:, axis] = low - turn * extent + begin
        sizes[:, axis] = high - low
        targets[:, axis] += low - cells[at]
        return at, first, sizes, targets

    def _cores(
        self, numbers: IntArray, first: IntArray, sizes: IntArray, targets: IntArray
    ) -> _Cores:
        """The cores of boxes; `numbers` counts the cuts of all records."""
        table, modes = self._table, self._modes
        stop = first + sizes
        plain = _Cores(first, stop, first, None)
        if not modes:
            return plain
        begin, extent = table.begin, table.extent
        reaches = ((first < begin) | (stop > begin + extent)).any(axis=1)
        outside = np.flatnonzero(reaches & (sizes > 0).all(axis=1))
        if not len(outside):
            return plain
        from windrow.sources.padding import inside  # few windows are padded

        low, high, places = first.copy(), stop.copy(), np.zeros_like(first)
        core = inside(modes, first[outside] - begin, stop[outside] - begin, extent)
        low[outside], high[outside] = core[0] + begin, core[1] + begin
        # The core keeps its own place if that is in the box.
        places[outside] = np.clip(
            low[outside] - first[outside], 0, sizes[outside] - (high - low)[outside]
        )
        records, cuts = np.divmod(numbers[outside], len(table.offsets))
        ends = targets + sizes
        columns = (array[outside] for array in (targets, ends, first, low, high, places))
        return _Cores(low, high, places, _Pads(records, cuts, *columns))

    # --- columns ---------------------------------------------------------------------------------

    def empty(self, count: int) -> Fields:
        """An uninitialised column for `count` records."""
        return tuple(self.empty_field(number, count) for number in range(len(self.fields)))

    def empty_field(self, number: int, count: int) -> AnyArray:
        """One uninitialised field of a column for `count` records."""
        return buffer_pool.empty((count, *self.fields[number].shape), self.dtype)

    def views(self, out: Fields, fragments: BoxFragments) -> list[AnyArray]:
        """A view of each fragment's place in the column `out`."""
        field_of = self._table.field_of
        found = zip(
            fragments.records.tolist(),
            fragments.cuts.tolist(),
            fragments.targets.tolist(),
            (fragments.targets + fragments.lengths).tolist(),
            strict=True,
        )
        return [
            out[field_of[cut]][(record, *map(slice, first, stop))]
            for record, cut, first, stop in found
        ]

    def columns(self, fragments: BoxFragments) -> tuple[IntArray, ...]:
        """What the core takes of fragments, and first the field of each cut."""
        return (
            self._table.fields,
            fragments.records,
            fragments.cuts,
            fragments.first,
            fragments.targets,
            fragments.lengths,
        )

    def boxes(self, out: Fields, fragments: BoxFragments) -> list[Box]:
        """The boxes to read so that fragments fill their places in the column `out`."""
        firsts = map(tuple, fragments.first.tolist())
        return list(map(Box, firsts, self.views(out, fragments)))

    def pad(self, out: Fields, fragments: BoxFragments) -> None:
        """Fills the cells outside the array, in a column whose fragments have been read."""
        pads, padding, table = fragments.pads, self.padding, self._table
        if pads is None or padding is None:
            return
        from windrow.sources.padding import extend, surround

        ends = (pads.places + pads.high - pads.low).tolist()
        rows = zip(
            pads.records.tolist(),
            pads.cuts.tolist(),
            map(_within, pads.targets, pads.ends),
            pads.first,
            pads.low,
            pads.places,
            ends,
            strict=True,
        )
        constant = [mode == "constant" for mode in self._modes]
        for record, cut, box, first, low, places, end in rows:
            target = out[table.field_of[cut]][(record, *box)]
            if not all(constant):
                shift = places - low + table.begin
                extend(target, self._modes, first - table.begin, table.extent, shift)
            if any(constant):
                surround(target, constant, places.tolist(), end, padding.value)

    # --- reading ---------------------------------------------------------------------------------

    def read(self, indices: IntArray) -> Fields:
        fragments = self.fragments(indices)
        out, errors = self.empty(len(indices)), dict[int, ReadError]()
        if len(fragments):
            ordered = fragments.taken(np.argsort(fragments.chunks, kind="stable"))
            errors = self._read_all(out, ordered)
        self.pad(out, fragments)
        if errors:
            raise partly_read(out, errors)
        return out

    def _read_all(self, out: Fields, fragments: BoxFragments) -> dict[int, ReadError]:
        """Reads fragments in parallel, in the order of their chunks; returns errors of records alone."""
        begins = np.flatnonzero(np.diff(fragments.chunks, prepend=-1))
        chunk_bytes = max(1, self.chunk_bytes)
        few = len(begins) * chunk_bytes <= _WORTH_THREADS_BYTES
        pool: Executor = InlineExecutor() if few else shared_pool()
        per_task = max(1, _TASK_BYTES // chunk_bytes)
        most = max(4, _IN_FLIGHT_BYTES // (per_task * chunk_bytes))
        waiting: collections.deque[tuple[int, Future[None]]] = collections.deque()
        failed, errors = list[BaseException](), dict[int, ReadError]()

        def wait() -> None:
            first, read = waiting.popleft()
            error = read.exception()
            if isinstance(error, ReadError) and error.rest is not None:
                for number, each in error.rest.errors.items():
                    errors.setdefault(int(fragments.records[first + number]), each)
            elif error is not None:
                failed.append(error)

        bounds = [*begins[::per_task].tolist(), len(fragments)]
        for begin, stop in itertools.pairwise(bounds):
            if len(waiting) == most:
                wait()
            if failed:
                break
            boxes = self.boxes(out, fragments.taken(slice(begin, stop)))
            waiting.append((begin, self.reader.start(boxes, pool)))
        while waiting:
            wait()
        if failed:
            raise failed[0]
        return errors


def _spread(begin: IntArray, counts: IntArray, per_box: IntArray) -> tuple[IntArray, IntArray]:
    """The box, and the coordinates in the grid, for each chunk of each box."""
    boxes = np.repeat(np.arange(len(begin)), per_box)
    number = np.arange(len(boxes)) - np.repeat(np.cumsum(per_box) - per_box, per_box)
    coords = np.empty((len(boxes), begin.shape[1]), np.int64)
    for axis in range(begin.shape[1] - 1, -1, -1):
        along = counts[boxes, axis]
        number, coords[:, axis] = np.divmod(number, along)
    coords += begin[boxes]
    return boxes, coords


def _within(first: IntArray, stop: IntArray) -> tuple[slice, ...]:
    return tuple(map(slice, first.tolist(), stop.tolist()))
