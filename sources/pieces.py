"""Pieces: where the records of a source lie, and reading that storage without waiting.

Storage is read in pieces: chunks of a Zarr array, inner chunks of its shards, record groups of an
ArrayRecord file. A source with such storage is made of parts, one for each array (or for all its
files), and each part tells which pieces given records need, what they weigh, and starts reads.

Invariants: pieces of a part count from 0; a record needs at least one piece, unless it is all
padding; to tell a layout reads no records, and to start a read waits for none.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from windrow.sources.base import BatchedSource, Columns, IntArray

AnyArray = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """Which pieces records lie in: some of record number `records[k]` lies in piece `pieces[k]`.

    Both are int64 `(k,)`. `records` counts the indices that were asked about and never decreases.
    """

    records: IntArray
    pieces: IntArray


class Part(abc.ABC):
    """Some of every record of a source, in storage of one layout."""

    name: str
    """Name of the array in the source; '' where there is one part only."""

    @property
    @abc.abstractmethod
    def piece_count(self) -> int:
        """Number of pieces."""

    @abc.abstractmethod
    def needs(self, indices: IntArray) -> Needs:
        """The pieces that the records at `indices`, in `[0, length)`, lie in."""

    @abc.abstractmethod
    def decoded_bytes(self, pieces: IntArray) -> IntArray:
        """Bytes of pieces in memory; an estimate where only reading tells."""

    @abc.abstractmethod
    def stored_bytes(self, pieces: IntArray) -> IntArray:
        """Bytes of pieces in storage; an estimate where only reading tells."""

    @property
    @abc.abstractmethod
    def alone(self) -> bool:
        """Whether single records cost no more than their bytes: pieces are then not kept."""

    @abc.abstractmethod
    def read(self, indices: IntArray) -> Any:
        """The column of the records at `indices`, in that order, in new memory. Waits.

        Raises:
            ReadError: Names the array or file, the piece and the records that can not be read.
        """


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Rows `[first, stop)` of one piece, wanted in `out` of shape `(stop - first, ...)`."""

    first: int
    stop: int
    out: AnyArray


class RowReader(Protocol):
    """Reads rows of one array: what an `ArrayPart` needs to know of a format."""

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        """Start reading spans, on `pool` if it takes a thread; done when all of them are filled.

        The future has a ReadError if one of them can not be read.
        """
        ...

    def read(self, rows: IntArray) -> AnyArray:
        """Rows `(n, ...)` in new memory. Waits; raises ReadError."""
        ...

    def stored_bytes(self, pieces: IntArray) -> IntArray:
        """Bytes of pieces in storage; an estimate where only reading tells."""
        ...


@runtime_checkable
class RunReader(RowReader, Protocol):
    """Reads runs of rows too, for little more than their bytes."""

    def read_runs(self, first: IntArray, size: int) -> AnyArray:
        """Rows `[first[k], first[k] + size)` of every `k`, `(n, size, ...)` in new memory.

        Waits; raises ReadError.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Cells of one array from `first` on along each axis, wanted in `out` of their shape."""

    first: tuple[int, ...]
    out: AnyArray

    def fill(self, block: AnyArray, corner: Sequence[int]) -> None:
        """Copy the cells out of `block`, whose first cell is `corner` of the array."""
        inside = zip(self.first, corner, self.out.shape, strict=True)
        self.out[...] = block[tuple(slice(f - c, f - c + n) for f, c, n in inside)]


class BoxReader(Protocol):
    """Reads boxes of one array of any rank: what a part made of boxes needs to know of a format."""

    def start(self, boxes: Sequence[Box], pool: Executor) -> Future[None]:
        """Start reading boxes, on `pool` if it takes a thread; done when all of them are filled.

        Each lies in one chunk and in the array; those of one chunk that follow one another are
        read together. The future has a ReadError if one of them can not be read.
        """
        ...

    def stored_bytes(self, pieces: IntArray) -> IntArray:
        """Bytes of chunks in storage, by number in C order; an estimate where only reading tells."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Which records lie together, where these need not be consecutive.

    Records that are sorted by block stand at the places `[0, length)`.

    Args:
        bounds: int64 `(blocks + 1,)`, from 0 to the length, never falling: block `k` is the
            places `[bounds[k], bounds[k + 1])`.
        records: Which record stands at each of some places, int64 `(n,)` to int64 `(n,)`: a
            permutation of `[0, length)`. It may compute, so that no source needs a table. None
            where record `i` stands at place `i`.
    """

    bounds: IntArray
    records: Callable[[IntArray], IntArray] | None = None


class WindowRows:
    """The rows that windows of one size lie in, each once."""

    rows: IntArray

    def __init__(self, first: IntArray, size: int) -> None:
        """Windows of `size` rows that begin at the rows `first`, in any order."""
        self._shape = len(first), size
        distinct, which = np.unique(first, return_inverse=True)
        # Of each window, the rows before the next one begins; of the last one, all.
        own = np.minimum(np.diff(distinct, append=np.iinfo(np.int64).max), size)
        self._at: IntArray | None = None
        if len(distinct) == len(first) and bool(np.all(own == size)):
            self.rows = (first[:, None] + np.arange(size)).ravel()
        else:
            begin = np.cumsum(own) - own
            self.rows = np.repeat(distinct - begin, own) + np.arange(own.sum())
            self._at = begin[which]

    def taken_from(self, found: AnyArray) -> AnyArray:
        """Windows `(n, size, ...)`, from what was read of `rows`; it may be the same memory."""
        if self._at is None:
            return found.reshape(*self._shape, *found.shape[1:])
        return runs_of(found, self._shape[1])[self._at]


def runs_of(rows: AnyArray, size: int) -> AnyArray:
    """Every run of `size` consecutive rows, as a view that overlaps itself; not to be written."""
    shape = (max(0, len(rows) - size + 1), size, *rows.shape[1:])
    strides = (rows.strides[0], *rows.strides)
    return np.lib.stride_tricks.as_strided(rows, shape, strides, writeable=False)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ArrayPart(Part):
    """Records that are rows, or runs of consecutive rows, of an array whose pieces are row blocks.

    Piece `p` holds rows `[p * piece_rows - shift, (p + 1) * piece_rows - shift)`, as far as they
    are in `[0, rows)`. Record `i` is row `r = starts(i)`; where `size` is given, it is the rows
    `[r, r + size)`.

    Args:
        name: Name of the array in the source.
        rows: Length of the array's first axis.
        row_shape: Shape of one row.
        dtype: As delivered.
        piece_rows: Rows per piece, at least 1.
        reader: Reads rows.
        shift: Rows of the first piece that lie before row 0, below `piece_rows`.
        size: Rows of a record; None for single rows, without that axis.
        starts: The first row of each record, from their indices; None where record `i` begins at
            row `i`.
        alone: Whether picking single rows costs no more than their bytes.
    """

    name: str
    rows: int
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    piece_rows: int
    reader: RowReader
    shift: int = 0
    size: int | None = None
    starts: Callable[[IntArray], IntArray] | None = None
    alone: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory."""
        return int(np.prod(self.row_shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return self.row_shape if self.size is None else (self.size, *self.row_shape)

    @property
    def piece_count(self) -> int:
        return -(-(self.rows + self.shift) // self.piece_rows)

    def first_rows(self, indices: IntArray) -> IntArray:
        """The first row of each record."""
        return indices if self.starts is None else self.starts(indices)

    def needs(self, indices: IntArray) -> Needs:
        start = self.first_rows(indices) + self.shift
        first = start // self.piece_rows
        if self.size is None or self.size <= 1:
            return Needs(np.arange(len(indices)), first)
        count = (start + self.size - 1) // self.piece_rows - first + 1
        records = np.repeat(np.arange(len(indices)), count)
        begin = np.cumsum(count) - count
        return Needs(records, first[records] + np.arange(len(records)) - begin[records])

    def bounds(self, piece: int) -> tuple[int, int]:
        """The rows `[first, stop)` of a piece."""
        first = piece * self.piece_rows - self.shift
        return max(0, first), min(self.rows, first + self.piece_rows)

    def decoded_bytes(self, pieces: IntArray) -> IntArray:
        first = pieces * self.piece_rows - self.shift
        rows = np.minimum(first + self.piece_rows, self.rows) - np.maximum(first, 0)
        found: IntArray = rows * self.row_bytes
        return found

    def stored_bytes(self, pieces: IntArray) -> IntArray:
        return self.reader.stored_bytes(pieces)

    def in_windows(self, size: int | None, starts: Callable[[IntArray], IntArray]) -> ArrayPart:
        """The same array with `size` rows to a record, or one row without that axis."""
        # Windows may overlap, and what they share is then decoded once only where pieces are kept.
        alone = self.alone and (size is None or isinstance(self.reader, RunReader))
        return dataclasses.replace(self, size=size, starts=starts, alone=alone)

    def read(self, indices: IntArray) -> AnyArray:
        if self.size is None:
            return self.reader.read(self.first_rows(indices))
        first = self.first_rows(indices)
        if isinstance(self.reader, RunReader):
            return self.reader.read_runs(first, self.size)
        windows = WindowRows(first, self.size)
        return windows.taken_from(self.reader.read(windows.rows))


class ListPart(Part):
    """Records of any kind, each in one piece: a piece decoded is the list of its records."""

    @abc.abstractmethod
    def places(self, indices: IntArray) -> IntArray:
        """Which record of its piece each of `indices` is."""

    @abc.abstractmethod
    def start(self, pieces: Sequence[int], pool: Executor) -> Future[list[list[Any]]]:
        """Start reading pieces, on `pool` if it takes a thread; the records of each.

        The future has a ReadError if one of them can not be read.
        """


class LaidOutSource(BatchedSource):
    """A source that tells how its records are laid out, so that reads of it are planned."""

    @property
    @abc.abstractmethod
    def parts(self) -> Sequence[Part]:
        """The parts, in a fixed order. Opens the source if it is not open yet."""

    @abc.abstractmethod
    def assembled(self, columns: Sequence[Any], indices: IntArray) -> Columns:
        """What `read` returns for `indices`, from the columns of the parts for them."""

    @abc.abstractmethod
    def blocks(self) -> IntArray | Blocks:
        """The blocks that part the records by locality: bounds 0, ..., length, never falling.

        Bounds alone say that the records of a block are consecutive.
        """
