"""Reading rows of arrays: which pieces to ask for, and putting them in the order wanted.

Invariants: every read is started before the first is waited for, in rounds of at most
`IN_FLIGHT_BYTES`; and the answer is new memory that nothing else refers to.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tensorstore as ts

from windrow.errors import ReadError
from windrow.sources.base import IntArray, run_of
from windrow.sources.checks import Checks
from windrow.sources.pieces import Span
from windrow.sources.threads import Ends
from windrow.sources.zarr_access import drivers
from windrow.sources.zarr_far import FarArray, unreachable
from windrow.sources.zarr_flight import kind_of
from windrow.sources.zarr_guard import Guard, guard_of, spec_of
from windrow.sources.zarr_plain import damaged, held_records
from windrow.sources.zarr_reasons import file_in, reason

AnyArray = npt.NDArray[Any]

IN_FLIGHT_BYTES: Final = 256 * 2**20
# Rows read for nothing cost a copy; TensorStore's reading by index costs about as much per row as
# copying this much.
_WORTH_BYTES: Final = 64 * 2**10
# Of an array whose chunks are unknown, as much is read as one.
_UNKNOWN_BYTES: Final = 2**20


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """An array whose first axis counts records; `chunk_rows` is 0 where chunks are unknown."""

    store: Any = dataclasses.field(repr=False)  # its spec may hold credentials
    name: str
    where: str
    length: int
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    origin: int
    chunk_rows: int
    chunk_origin: int
    guard: Guard | None
    far: FarArray | None = None  # set if it waits for a network

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory."""
        return int(np.prod(self.row_shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def piece_rows(self) -> int:
        """Rows that are read as one."""
        return self.chunk_rows or max(1, _UNKNOWN_BYTES // max(1, self.row_bytes))

    @property
    def shift(self) -> int:
        """Rows of the first chunk that lie before row 0."""
        return (self.origin - self.chunk_origin) % self.chunk_rows if self.chunk_rows else 0

    def start(self, rows: slice | IntArray) -> Any:
        """Start reading `rows`, counted from 0; a future of an array."""
        if isinstance(rows, slice):
            cells = self.store[self.origin + rows.start : self.origin + rows.stop]
            return self.begin(cells, (rows.start, rows.stop))
        cells = self.store.oindex[rows + self.origin]
        if self.far is None:
            return cells.read()
        records = int(rows.min()), int(rows.max()) + 1
        return self.begin(cells, records, len(np.unique(self.chunk_of(rows))))

    def begin(self, cells: Any, records: tuple[int, int], scattered: int | None = None) -> Any:
        """Start reading a view of the store; a future of an array, in memory of its own.

        Args:
            cells: The view.
            records: The rows `[first, stop)` that it lies in, for an error.
            scattered: Chunks along the first axis, where the view is of rows one by one.
        """
        if self.far is None:
            return cells.read()
        refused = functools.partial(_refused, self, records)
        return self.far.start(cells, refused, scattered=scattered)

    def reason(self, error: BaseException) -> str:
        """What went wrong, for people."""
        return reason(error) if self.far is None else self.far.access.reason(error)

    def chunk_of(self, rows: IntArray) -> IntArray:
        """Number of the chunk that holds each row; the row itself where chunks are unknown."""
        chunk: IntArray = (rows + self.origin - self.chunk_origin) // max(1, self.chunk_rows)
        return chunk


class StoreReader:
    """Reads rows through TensorStore; a `RowReader` for what is not decoded directly."""

    def __init__(self, array: Rows) -> None:
        self._array = array

    def checks(self) -> Checks:
        """The chunks of the array, as far as they are known."""
        array = self._array
        layout, domain = array.store.chunk_layout, array.store.domain
        sizes = layout.read_chunk.shape or (None,) * array.store.rank
        origins = layout.grid_origin or (None,) * array.store.rank
        chunk, shift = [array.piece_rows], [array.shift]
        for axis, length in enumerate(array.row_shape, 1):
            size, origin = sizes[axis], origins[axis]
            known = size is not None and origin is not None
            chunk.append(int(size) if known else max(1, length))
            shift.append((int(domain.inclusive_min[axis]) - int(origin)) % size if known else 0)
        return StoreChecks(array, tuple(chunk), tuple(shift))

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        """Start reading all spans, on TensorStore's own threads; done when their memory is filled.

        The future has a ReadError if one of them can not be read.
        """
        if not spans:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return _Spans(self._array, spans).done

    def read(self, rows: IntArray) -> AnyArray:
        """Rows `(n, ...)` in new memory. Waits; raises ReadError."""
        return read_rows([self._array], rows)[0]

    def stored_bytes(self, pieces: IntArray) -> IntArray:
        """Bytes of pieces in memory: what they take in storage is not known."""
        array = self._array
        return np.full(len(pieces), array.piece_rows * array.row_bytes, np.int64)


class StoreChecks(Checks):
    """The chunks of an array that TensorStore reads."""

    def __init__(self, array: Rows, chunk_shape: tuple[int, ...], shift: tuple[int, ...]) -> None:
        """Chunks of `chunk_shape`, of which the first begins `shift` before cell 0."""
        shape = (array.length, *array.row_shape)
        super().__init__(shape, chunk_shape, shift, array.dtype.itemsize)
        self._array = array
        self._origin = tuple(map(int, array.store.domain.inclusive_min))
        # Whether its driver tells what is stored. That of precomputed volumes looks for chunks
        # where there are none: all are missing then, or the question is an error.
        self._tells = "neuroglancer_precomputed" not in drivers(spec_of(array.store))
        self._across = math.prod(self.grid[1:])

    @property
    def waits(self) -> bool:
        return True

    def check_run(self, first: int, stop: int) -> tuple[int, int] | None:
        if self._across != 1 or stop - first < 2:
            return None
        begin, end = self.bounds(first)[0][0], self.bounds(stop - 1)[1][0]
        cells = self._array.store[self._origin[0] + begin : self._origin[0] + end]
        try:
            self._array.begin(cells, (begin, end)).result()
            if not self._tells:
                return 0, stop - first
            told = self._asked(cells, query_fully_stored=True)
        except (NotImplementedError, ValueError, RuntimeError, OSError):
            return None
        return (0, 0) if told.fully_stored else None

    def check(self, number: int) -> bool | None:
        try:
            first, past = (bounds[0] for bounds in self.bounds(number))
            found = self._array.begin(self._cells(number), (first, past)).result()
        except ReadError:
            raise  # it says where already
        except (ValueError, RuntimeError, OSError) as error:
            raise self._refused(number, error) from error
        guard = self._array.guard
        if guard is not None:
            values = found.reshape(1, -1)
            guard.check(values, [0], self._array.where)
            if not guard.may_be_fill(values, [0]):
                return True  # no need to look: other values are there
        return self.is_stored(number)

    def is_stored(self, number: int) -> bool | None:
        if not self._tells:
            return None
        try:
            told = self._asked(self._cells(number), query_not_stored=True)
        except NotImplementedError:
            self._tells = False
            return None
        except (ValueError, RuntimeError, OSError) as error:
            if "UNIMPLEMENTED" in str(error):
                self._tells = False
                return None
            raise self._refused(number, error) from error
        return not told.not_stored

    def _asked(self, cells: Any, **query: bool) -> Any:
        """What TensorStore tells of cells. Waits."""
        if self._array.far is None:
            return cells.storage_statistics(**query).result()
        flight = self._array.far.access.flight
        return flight.start(lambda: cells.storage_statistics(**query)).result()

    def file(self, number: int) -> None:
        return None

    def strays(self) -> list[str]:
        return []

    def _cells(self, number: int) -> Any:
        axes = zip(self._origin, *self.bounds(number), strict=True)
        return self._array.store[tuple(slice(o + a, o + b) for o, a, b in axes)]

    def _refused(self, number: int, error: Exception) -> ReadError:
        first, stop = (bounds[0] for bounds in self.bounds(number))
        if not self._array.chunk_rows and self._array.far is None:
            first, stop = self._narrowed(first, stop)
        return _refused(self._array, (first, stop), error)

    def _narrowed(self, first: int, stop: int) -> tuple[int, int]:
        """From the first to the last row that can not be read, where chunks are unknown."""
        rows = range(first, stop)
        least = bisect.bisect_left(rows, True, key=lambda row: self._fails(first, row + 1))
        most = bisect.bisect_left(rows, True, key=lambda row: not self._fails(row + 1, stop))
        if least > most or max(least, most) >= len(rows):
            return first, stop  # it can be read by now
        return first + least, first + most + 1

    def _fails(self, first: int, stop: int) -> bool:
        begin = self._origin[0]
        try:
            self._array.store[begin + first : begin + stop].read().result()
        except (ValueError, RuntimeError, OSError):
            return True
        return False


class _Spans:
    """Spans that are being read, each by itself."""

    def __init__(self, array: Rows, spans: Sequence[Span]) -> None:
        self._ends = Ends(len(spans))
        self._array = array
        if array.far is not None:
            for together in _neighbours(spans):
                self._begin_far(together)
            return
        for span in spans:
            self._begin(span)

    @property
    def done(self) -> Future[None]:
        """Done when all spans are filled."""
        return self._ends.done

    def _begin(self, span: Span) -> None:
        array = self._array
        try:
            rows = array.store[array.origin + span.first : array.origin + span.stop]
            # `write` reads into that memory; there is no read that takes any.
            future = ts.array(span.out).write(rows)
        except (ValueError, RuntimeError, OSError) as error:
            self._end(span, error)
            return
        future.add_done_callback(lambda ended: self._end(span, ended.exception()))

    def _begin_far(self, spans: list[Span]) -> None:
        """Start one read of spans that follow one another: of a shard it is one request."""
        array = self._array
        first, stop = spans[0].first, spans[-1].stop
        rows = array.store[array.origin + first : array.origin + stop]
        read = array.begin(rows, (first, stop))
        read.add_done_callback(lambda ended: self._copy(spans, ended))

    def _copy(self, spans: list[Span], ended: Future[AnyArray]) -> None:
        """Take over what was read into other memory: what comes too late must not be."""
        for span in spans:
            error: Exception | None = None
            try:
                begin = span.first - spans[0].first
                span.out[...] = ended.result()[begin : begin + len(span.out)]
            except Exception as other:
                error = other
            self._ends.end(span.first, error)

    def _end(self, span: Span, error: Exception | None) -> None:
        array = self._array
        if error is not None:
            error = _refused(array, _records_of(array, span.first), error)
        elif array.guard is not None:
            try:
                array.guard.check(span.out[:1], [0], array.where)
            except ReadError as gone:
                error = gone
        self._ends.end(span.first, error)


def _neighbours(spans: Sequence[Span]) -> list[list[Span]]:
    """Runs of spans each of which begins where the one before it ends."""
    runs: list[list[Span]] = []
    for span in spans:
        if runs and runs[-1][-1].stop == span.first:
            runs[-1].append(span)
        else:
            runs.append([span])
    return runs


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """A read of `rows`; row `take[k]` of it goes to place `to[k]` of the answer."""

    rows: slice | IntArray
    to: IntArray | None = None
    take: IntArray | None = None


def rows_of(store: Any, name: str, where: str, far: FarArray | None = None) -> Rows:
    """`store` as rows; its domain may begin anywhere. `far` reads it if that needs a network."""
    shape = tuple(int(n) for n in store.shape)
    chunk = store.chunk_layout.read_chunk.shape
    origins = store.chunk_layout.grid_origin
    dtype = np.dtype(store.dtype.numpy_dtype)
    known = bool(chunk) and chunk[0] is not None and bool(origins) and origins[0] is not None
    return Rows(
        store=store,
        name=name,
        where=where,
        length=shape[0],
        row_shape=shape[1:],
        dtype=dtype,
        origin=int(store.domain.inclusive_min[0]),
        chunk_rows=int(chunk[0]) if known else 0,
        chunk_origin=int(origins[0]) if known else 0,
        guard=guard_of(store, dtype),
        far=far,
    )


def read_rows(arrays: Sequence[Rows], wanted: IntArray) -> list[AnyArray]:
    """Rows `wanted` of each array, in that order, in new memory.

    Raises:
        ReadError: If a chunk can not be read; the message names array, chunk and records. Or if
            the array is gone, which would read as fill values.
    """
    budget = IN_FLIGHT_BYTES // max(1, len(arrays))
    plans = [_plan(array, wanted, budget) for array in arrays]
    answers: list[AnyArray | None] = [None] * len(arrays)
    for turn in range(max((len(plan) for plan in plans), default=0)):
        started = [
            (at, piece, arrays[at].start(piece.rows))
            for at, plan in enumerate(plans)
            if turn < len(plan)
            for piece in plan[turn]
        ]
        for at, piece, future in started:
            array = arrays[at]
            try:
                block = future.result()
            except ReadError as error:
                raise _of_one_chunk(array, piece, error) from None
            except (ValueError, RuntimeError, OSError) as error:
                raise _damage(array, piece, error) from error
            if piece.to is None:
                answers[at] = block
                continue
            answer = answers[at]
            if answer is None:
                answer = answers[at] = _empty(array, len(wanted))
            answer[piece.to] = block if piece.take is None else block[piece.take]
    for array, plan, answer in zip(arrays, plans, answers, strict=True):
        if array.guard is not None and answer is not None:
            array.guard.check(answer, _a_row_per_chunk(array, plan[0][0], wanted), array.where)
    return [
        _empty(array, 0) if answer is None else answer
        for array, answer in zip(arrays, answers, strict=True)
    ]


def _a_row_per_chunk(array: Rows, first: _Piece, wanted: IntArray) -> Sequence[int] | IntArray:
    """Places in `wanted` that together lie in all its chunks; `first` is the first piece read."""
    if isinstance(first.rows, slice) and first.to is None:
        size = max(1, array.chunk_rows)
        begun = (first.rows.start + array.origin - array.chunk_origin) % size
        return [0, *range(size - begun, len(wanted), size)]
    chunk = array.chunk_of(wanted)
    begins = np.ones(len(chunk), np.bool_)
    np.not_equal(chunk[1:], chunk[:-1], out=begins[1:])
    return np.flatnonzero(begins)


def _empty(array: Rows, count: int) -> AnyArray:
    return np.empty((count, *array.row_shape), array.dtype)


def _plan(array: Rows, wanted: IntArray, budget: int) -> list[list[_Piece]]:
    """The reads for `wanted`, in rounds of at most `budget` bytes."""
    if not len(wanted):
        return []
    run = run_of(wanted)
    if run is not None:
        return [[_Piece(run)]]
    order = np.argsort(wanted, kind="stable")
    rows = wanted[order]
    chunk = array.chunk_of(rows)
    cuts = np.flatnonzero(np.diff(chunk)) + 1
    starts, stops = np.r_[0, cuts], np.r_[cuts, len(rows)]
    spans = rows[stops - 1] + 1 - rows[starts]
    distinct = 1 + int(np.count_nonzero(np.diff(rows)))
    row_bytes = max(1, array.row_bytes)
    worth = int(spans.sum()) * row_bytes <= distinct * (row_bytes + _WORTH_BYTES)
    if array.chunk_rows <= 1 or distinct < 2 * len(starts) or not worth:
        return _plan_by_row(array, rows, order, max(1, budget // row_bytes))
    turn_of = np.cumsum(spans * row_bytes) // budget
    plan: list[list[_Piece]] = [[] for _ in range(int(turn_of[-1]) + 1)]
    for turn, a, b in zip(turn_of.tolist(), starts.tolist(), stops.tolist(), strict=True):
        first, stop = int(rows[a]), int(rows[b - 1]) + 1
        plan[turn].append(_Piece(slice(first, stop), order[a:b], rows[a:b] - first))
    return plan


def _plan_by_row(array: Rows, rows: IntArray, order: IntArray, most: int) -> list[list[_Piece]]:
    plan = []
    for at in range(0, len(rows), most):
        part, to = rows[at : at + most], order[at : at + most]
        cuts = _cuts_of_flight(array, part)
        pairs = zip(np.split(part, cuts), np.split(to, cuts), strict=True)
        plan.append([_piece_by_row(*pair) for pair in pairs])
    return plan


def _piece_by_row(rows: IntArray, to: IntArray) -> _Piece:
    distinct, take = np.unique(rows, return_inverse=True)
    return _Piece(distinct, to, None if len(distinct) == len(take) else take)


def _cuts_of_flight(array: Rows, rows: IntArray) -> IntArray:
    """Where to cut sorted rows far away, so that chunks of each part fit in `in_flight_bytes`."""
    if array.far is None:
        return np.empty(0, np.int64)
    limit = array.far.access.options.in_flight_bytes
    most = max(1, limit // max(1, max(1, array.chunk_rows) * array.row_bytes))
    number = np.cumsum(np.diff(array.chunk_of(rows), prepend=-1) != 0) - 1
    return np.flatnonzero(np.diff(number // most)) + 1


def _damage(array: Rows, piece: _Piece, error: Exception) -> ReadError:
    """The error for a piece that failed: each of its chunks is read again to find the one."""
    rows = _rows_in(piece)
    records = int(rows[0]), int(rows[-1]) + 1
    for part in np.split(rows, np.flatnonzero(np.diff(array.chunk_of(rows))) + 1):
        try:
            array.start(slice(int(part[0]), int(part[-1]) + 1)).result()
        except (ValueError, RuntimeError, OSError) as single:
            error, records = single, _records_of(array, int(part[0]))
            break
    return _refused(array, records, error)


def _rows_in(piece: _Piece) -> IntArray:
    if isinstance(piece.rows, slice):
        return np.arange(piece.rows.start, piece.rows.stop, dtype=np.int64)
    return piece.rows


def _of_one_chunk(array: Rows, piece: _Piece, error: ReadError) -> ReadError:
    """The error of the one chunk that is damaged, of a piece far away; each is read again."""
    if kind_of(error) == "other":  # else the network failed, and would again
        rows = _rows_in(piece)
        for part in np.split(rows, np.flatnonzero(np.diff(array.chunk_of(rows))) + 1):
            try:
                array.start(slice(int(part[0]), int(part[-1]) + 1)).result()
            except ReadError as single:
                return single
    return error


def _refused(array: Rows, records: tuple[int, int], error: BaseException) -> ReadError:
    held, file = held_records(*records), file_in(error)
    why = array.reason(error)
    if array.far is not None and kind_of(error) != "other":
        return unreachable(array.name, array.where, held, why, records)
    return damaged(array.name, array.where, held, why, file=file, records=records)


def _records_of(array: Rows, row: int) -> tuple[int, int]:
    """Rows of the chunk that `row` lies in."""
    if array.chunk_rows < 1:
        return row, row + 1
    chunk = (row + array.origin - array.chunk_origin) // array.chunk_rows
    first = chunk * array.chunk_rows + array.chunk_origin - array.origin
    return max(first, 0), min(first + array.chunk_rows, array.length)
