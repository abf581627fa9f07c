"""Describes the chunks of a source's records, and starts reads of chunks without waiting.

Storage is read in chunks: chunks of a Zarr array, inner chunks of its shards, record groups of an
ArrayRecord file. A source with such storage has parts, one for each array, or one for all its files.
A part maps records to chunks, knows the sizes of chunks, and starts reads.

Invariants: chunks of a part count from 0. A record needs at least one chunk, unless it is all padding.
Describing a layout reads no records. Starting a read does not wait.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Protocol, runtime_checkable

import numpy as np

from windrow.errors import ReadError
from windrow.sources.base import AnyArray, BatchedSource, Columns, IntArray
from windrow.sources.ragged_column import RaggedColumn, bounds_of, items_of


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Rest:
    """What else a read has that failed for some of its records, or chunks, alone.

    Args:
        found: What it would return, with anything in place of what failed.
        errors: The error of each that failed, by its number in the call.
    """

    found: Any
    errors: Mapping[int, ReadError]


def partly_read(found: Any, errors: Mapping[int, ReadError]) -> ReadError:
    """The error of a read that failed for some alone: as the first of these, with the rest."""
    first = errors[min(errors)]
    error = ReadError(
        *first.args,
        file=first.file,
        offset=first.offset,
        records=first.records,
        why=first.why,
        is_unanswered=first.is_unanswered,
    )
    error.__cause__, error.rest = first.__cause__, Rest(found, errors)
    return error


def parts_read(found: Sequence[Any]) -> ReadError | None:
    """The error of reads side by side, of what each found or raised; None if one failed as a whole."""
    errors, columns = dict[int, ReadError](), list[Any]()
    for each in found:
        is_error = isinstance(each, Exception)
        rest = getattr(each, "rest", None) if is_error else Rest(each, {})
        if rest is None:
            return None
        columns.append(rest.found)
        errors.update(rest.errors)
    return partly_read(columns, errors)


def groups_read(
    groups: Sequence[Sequence[Any]], errors: Mapping[int, BaseException], *, exact: bool = True
) -> BaseException:
    """The error of a read of groups of requests, where some groups failed: with the rest if each did alone.

    Args:
        groups: The requests, in the order of the call.
        errors: The errors of groups, ascending. One with a rest is of the requests that it names in
            its group, another of all of them.
        exact: Whether all of a request is lost if some of it cannot be read.
    """
    if not exact:
        return next(iter(errors.values()))
    ends, each = np.cumsum([len(group) for group in groups]).tolist(), dict[int, ReadError]()
    for number, error in errors.items():
        if not isinstance(error, ReadError):
            return next(iter(errors.values()))
        first = ends[number] - len(groups[number])
        rest: Rest | None = error.rest
        own = dict.fromkeys(range(ends[number] - first), error) if rest is None else rest.errors
        each.update((first + at, one) for at, one in own.items())
    return partly_read(None, each)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """The chunks of records: cells of record number `records[k]` are in chunk `chunks[k]`.

    Both are int64 `(k,)`. `records` counts the given indices and never decreases.
    """

    records: IntArray
    chunks: IntArray


class Part(abc.ABC):
    """Some of every record of a source, in storage of one layout."""

    name: str
    """Name of the array in the source; '' if the source has one part only."""

    @property
    @abc.abstractmethod
    def chunk_count(self) -> int:
        """Number of chunks."""

    @abc.abstractmethod
    def needs(self, indices: IntArray) -> Needs:
        """The chunks of the records at `indices`, in `[0, length)`."""

    @abc.abstractmethod
    def decoded_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks once they are decoded; an estimate if it is known only after reading."""

    def memory_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of decoded chunks in memory, with the objects that hold them."""
        return self.decoded_bytes(chunks)

    @abc.abstractmethod
    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in storage; an estimate if it is known only after reading."""

    @property
    @abc.abstractmethod
    def alone(self) -> bool:
        """Whether reading a single record costs no more than its bytes, so that chunks are not kept."""

    @abc.abstractmethod
    def read(self, indices: IntArray) -> Any:
        """Reads the column of the records at `indices`, in that order, in new memory. Waits.

        Raises:
            ReadError: Names the array or file, the chunk and the records that cannot be read.
        """


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A request to read rows `[first, stop)` of one chunk into `out`, `(stop - first, ...)`."""

    first: int
    stop: int
    out: AnyArray


class RowReader(Protocol):
    """Reads rows of one array for an `ArrayPart`; each format has its own."""

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        """Starts reading spans, on `pool` if it takes a thread; done when all of them are filled.

        The future has a ReadError if a span cannot be read; with a `Rest`, its errors are of spans.
        """
        ...

    def read(self, rows: IntArray) -> AnyArray:
        """Reads rows `(n, ...)` into new memory. Waits; raises ReadError."""
        ...

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in storage; an estimate if it is known only after reading."""
        ...


@runtime_checkable
class RunReader(RowReader, Protocol):
    """Reads runs of rows too, at little more cost than their bytes."""

    def read_runs(self, first: IntArray, size: int) -> AnyArray:
        """Reads rows `[first[k], first[k] + size)` for every `k`, `(n, size, ...)`, new memory.

        Waits; raises ReadError.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Scattered:
    """A request to read rows, or cells, of one chunk straight to where several outputs want them.

    Args:
        chunk: Number of the chunk.
        outputs: What `ScatterReader.output` returned, each with the chunk's number there.
        put: Copies them out of the whole chunk, for a reader that has it.
    """

    chunk: int
    outputs: list[tuple[Any, int]]
    put: Callable[[AnyArray], None]


@runtime_checkable
class ScatterReader(RowReader, Protocol):
    """Reads rows of chunks to several outputs, without a chunk in memory between."""

    def output(
        self,
        out: AnyArray,
        chunks: int,
        which: IntArray,
        sources: IntArray,
        targets: IntArray,
        lengths: IntArray | None,
    ) -> Any:
        """Describes an output: where rows of `chunks` chunks go in it.

        Rows `[sources[k], sources[k] + lengths[k])` of the chunk with number `which[k]` go to rows
        `[targets[k], ...)` of `out`; without `lengths` each is one row.
        """
        ...

    def start_scattered(self, wanted: Sequence[Span | Scattered]) -> Future[None]:
        """Starts reading, each chunk once; done when all is where it belongs.

        The future has a ReadError if a chunk cannot be read.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Box:
    """A request to read the cells of one array that begin at `first` into `out`."""

    first: tuple[int, ...]
    out: AnyArray

    def fill(self, block: AnyArray, corner: Sequence[int]) -> None:
        """Copies the cells from `block`, whose first cell is `corner` of the array."""
        inside = zip(self.first, corner, self.out.shape, strict=True)
        self.out[...] = block[tuple(slice(f - c, f - c + n) for f, c, n in inside)]


class BoxReader(Protocol):
    """Reads boxes of one array of any rank for a `BoxPart`; each format has its own."""

    def start(self, boxes: Sequence[Box], pool: Executor) -> Future[None]:
        """Starts reading boxes, on `pool` if it takes a thread; done when all of them are filled.

        Each box lies in one chunk and in the array. Consecutive boxes of one chunk are read
        together. The future has a ReadError if a box cannot be read; with a `Rest`, its errors are
        of boxes.
        """
        ...

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in storage, by number in C order; an estimate if it is known only after reading."""
        ...


@runtime_checkable
class BoxScatterReader(BoxReader, Protocol):
    """Reads boxes of chunks to several outputs, without a chunk in memory between."""

    def output(
        self, out: Sequence[AnyArray], chunks: int, which: IntArray, *columns: IntArray
    ) -> Any:
        """Describes an output: where cells of `chunks` chunks go in the fields `out`.

        Fragment `k` of the `columns` of a `BoxPart` lies in the chunk with number `which[k]`.
        """
        ...

    def start_scattered(self, wanted: Sequence[Box | Scattered]) -> Future[None]:
        """Starts reading, each chunk once; done when all is where it belongs.

        The future has a ReadError if a chunk cannot be read.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The records that lie together, which need not be consecutive.

    Records sorted by block have the places `[0, length)`.

    Args:
        bounds: int64 `(blocks + 1,)`, from 0 to the length, never falling: block `k` is the
            places `[bounds[k], bounds[k + 1])`.
        records: A function from places to records, int64 `(n,)` to int64 `(n,)`: a permutation of
            `[0, length)`. It may compute them, so that a source needs no table. None if record `i`
            has place `i`.
    """

    bounds: IntArray
    records: Callable[[IntArray], IntArray] | None = None


class WindowRows:
    """The rows of windows of one size, each row once."""

    rows: IntArray

    def __init__(self, first: IntArray, size: int) -> None:
        """Finds the rows of windows of `size` rows that begin at the rows `first`, in any order."""
        self._shape = len(first), size
        distinct, which = np.unique(first, return_inverse=True)
        # Each window contributes the rows before the next one begins; the last one contributes all.
        own = np.minimum(np.diff(distinct, append=np.iinfo(np.int64).max), size)
        self._at: IntArray | None = None
        if len(distinct) == len(first) and bool(np.all(own == size)):
            self.rows = (first[:, None] + np.arange(size)).ravel()
        else:
            begin = np.cumsum(own) - own
            self.rows = np.repeat(distinct - begin, own) + np.arange(own.sum())
            self._at = begin[which]

    def taken_from(self, found: AnyArray) -> AnyArray:
        """Cuts windows `(n, size, ...)` from the values of `rows`; may share their memory."""
        if self._at is None:
            return found.reshape(*self._shape, *found.shape[1:])
        return runs_of(found, self._shape[1])[self._at]

    def error_of(self, rest: Rest) -> ReadError:
        """The error of the windows, from what a read of `rows` has that failed for some of these."""
        count, size = self._shape
        first = np.arange(count) * size if self._at is None else self._at
        lost = np.sort(np.array([*rest.errors]))
        # For each window, the first lost row from its begin on, which may lie past its end.
        nearest = np.append(lost, np.iinfo(np.int64).max)[lost.searchsorted(first)]
        windows = np.flatnonzero(nearest < first + size).tolist()
        errors = {window: rest.errors[int(nearest[window])] for window in windows}
        return partly_read(self.taken_from(rest.found), errors)


def runs_of(rows: AnyArray, size: int) -> AnyArray:
    """All runs of `size` consecutive rows, as a read-only view that overlaps itself."""
    shape = (max(0, len(rows) - size + 1), size, *rows.shape[1:])
    strides = (rows.strides[0], *rows.strides)
    return np.lib.stride_tricks.as_strided(rows, shape, strides, writeable=False)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ArrayPart(Part):
    """A part whose records are rows, or runs of rows, of an array chunked along its first axis.

    Chunk `p` holds rows `[p * chunk_rows - shift, (p + 1) * chunk_rows - shift)`, as far as they
    are in `[0, rows)`. Record `i` is row `r = starts(i)`; where `size` is given, it is the rows
    `[r, r + size)`, and where `lengths` is given, the rows `[r, r + lengths(i))`.

    Args:
        name: Name of the array in the source.
        rows: Length of the array's first axis.
        row_shape: Shape of one row.
        dtype: The dtype delivered.
        chunk_rows: Rows per chunk, at least 1.
        reader: Reads rows.
        shift: Rows of the first chunk that lie before row 0, below `chunk_rows`.
        size: Rows of a record; None for single rows, without that axis.
        starts: The first row of each record, from their indices; None where record `i` begins at
            row `i`.
        alone: Whether reading single rows costs no more than their bytes.
        lengths: The number of rows of each record, from their indices, without `size`; such records
            are columns of the class `RaggedColumn`. None where all records have one size.
        of_records: Makes of an error that names rows one that names records; None where they are the same.
    """

    name: str
    rows: int
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int
    reader: RowReader
    shift: int = 0
    size: int | None = None
    starts: Callable[[IntArray], IntArray] | None = None
    alone: bool = False
    lengths: Callable[[IntArray], IntArray] | None = None
    of_records: Callable[[ReadError], ReadError] | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory."""
        return int(np.prod(self.row_shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return self.row_shape if self.size is None else (self.size, *self.row_shape)

    @property
    def has_single_rows(self) -> bool:
        """Whether a record is one row."""
        return self.size is None and self.lengths is None

    @property
    def is_by_row(self) -> bool:
        """Whether record `i` is row `i`."""
        return self.has_single_rows and self.starts is None

    @property
    def chunk_count(self) -> int:
        return -(-(self.rows + self.shift) // self.chunk_rows)

    def first_rows(self, indices: IntArray) -> IntArray:
        """The first row of each record."""
        return indices if self.starts is None else self.starts(indices)

    def sizes(self, indices: IntArray) -> IntArray:
        """The number of rows of each record."""
        if self.lengths is not None:
            return self.lengths(indices)
        return np.full(len(indices), 1 if self.size is None else self.size)

    def needs(self, indices: IntArray) -> Needs:
        start = self.first_rows(indices) + self.shift
        first = start // self.chunk_rows
        if self.lengths is not None:
            sizes = self.lengths(indices)
            count = np.where(sizes > 0, (start + sizes - 1) // self.chunk_rows - first + 1, 0)
        elif self.size is None or self.size <= 1:
            return Needs(np.arange(len(indices)), first)
        else:
            count = (start + self.size - 1) // self.chunk_rows - first + 1
        records = np.repeat(np.arange(len(indices)), count)
        begin = np.cumsum(count) - count
        return Needs(records, first[records] + np.arange(len(records)) - begin[records])

    def bounds(self, chunk: int) -> tuple[int, int]:
        """The rows `[first, stop)` of a chunk."""
        first = chunk * self.chunk_rows - self.shift
        return max(0, first), min(self.rows, first + self.chunk_rows)

    def decoded_bytes(self, chunks: IntArray) -> IntArray:
        first = chunks * self.chunk_rows - self.shift
        rows = np.minimum(first + self.chunk_rows, self.rows) - np.maximum(first, 0)
        found: IntArray = rows * self.row_bytes
        return found

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        return self.reader.stored_bytes(chunks)

    def in_windows(self, size: int | None, starts: Callable[[IntArray], IntArray]) -> ArrayPart:
        """The same array with `size` rows to a record, or one row without that axis."""
        # Windows may overlap. Shared chunks are decoded once only if chunks are kept.
        alone = self.alone and (size is None or isinstance(self.reader, RunReader))
        return dataclasses.replace(self, size=size, starts=starts, alone=alone)

    def read(self, indices: IntArray) -> Any:
        if self.lengths is not None:
            lengths = self.lengths(indices)
            bounds = bounds_of(lengths)
            try:
                rows = self.reader.read(items_of(self.first_rows(indices), lengths))
                return RaggedColumn(rows, bounds)
            except ReadError as error:
                failed = self._of_runs(error, bounds)
            raise failed
        if self.size is None:
            return self.reader.read(self.first_rows(indices))
        first = self.first_rows(indices)
        if isinstance(self.reader, RunReader):
            return self.reader.read_runs(first, self.size)
        windows = WindowRows(first, self.size)
        try:
            return windows.taken_from(self.reader.read(windows.rows))
        except ReadError as error:
            if error.rest is None:
                raise
            failed = windows.error_of(error.rest)
        raise failed

    def named(self, error: ReadError) -> ReadError:
        """An error of rows as an error of the records that have some of them."""
        return error if self.of_records is None else self.of_records(error)

    def _of_runs(self, error: ReadError, bounds: IntArray) -> ReadError:
        """The error of a read of rows, where record `k` has the rows `[bounds[k], bounds[k + 1])`."""
        if error.rest is None:
            return self.named(error)
        rest, errors = error.rest, dict[int, ReadError]()
        for row, each in rest.errors.items():
            record = int(bounds.searchsorted(row, side="right")) - 1
            if record not in errors:
                errors[record] = self.named(each)
        return partly_read(RaggedColumn(rest.found, bounds), errors)


class ListPart(Part):
    """A part with records of any kind, each in one chunk.

    A decoded chunk is a sequence of its records, such as a list.
    """

    @abc.abstractmethod
    def places(self, indices: IntArray) -> IntArray:
        """The position of each record at `indices` within its chunk."""

    @abc.abstractmethod
    def start(self, chunks: Sequence[int], pool: Executor) -> Future[Any]:
        """Starts reading chunks, on `pool` if it takes a thread.

        The future has a sequence of the records of each chunk, such as a list of lists.

        The future has a ReadError if a chunk cannot be read.
        """

    @property
    def record_bytes(self) -> int | None:
        """Bytes of every record, if metadata show that all have the same; else None."""
        return None

    def picked(
        self, decoded: Sequence[Sequence[Any]], which: IntArray, places: IntArray
    ) -> list[Any]:
        """The records `decoded[which[k]][places[k]]` of decoded chunks, which `start` gave."""
        both = zip(which.tolist(), places.tolist(), strict=True)
        return [decoded[number][place] for number, place in both]


class LaidOutSource(BatchedSource):
    """A source that describes how its records are laid out, so that its reads can be planned."""

    @property
    @abc.abstractmethod
    def parts(self) -> Sequence[Part]:
        """The parts, in a fixed order. Opens the source if it is not open yet."""

    @abc.abstractmethod
    def assembled(self, columns: Sequence[Any], indices: IntArray) -> Columns:
        """Builds the result of `read` for `indices` from the columns of the parts."""

    @abc.abstractmethod
    def blocks(self) -> IntArray | Blocks:
        """The blocks of records that lie together: bounds 0, ..., length, never falling.

        Bounds alone say that the records of a block are consecutive.
        """
