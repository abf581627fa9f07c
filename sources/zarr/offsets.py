"""Where rows of different lengths begin, read in chunks as records are asked for.

Row `i` is `values[offsets[i] : offsets[i + 1]]`. Offsets take 8 bytes per record, so a process reads the
chunks that hold the records it needs, and keeps them. The first read has the last chunk too: its last
offset is the number of values, so that offsets of other values are refused at once.

Blocks of records need one number for each block of values: the first record that begins in it or after
it. Conversions write these numbers next to the offsets, as an index. It serves only values of the layout
for which it was written, and only the blocks that were there then: what has been appended is found from
offsets. Without an index all offsets are read.

Invariant: offsets begin with 0, never fall and end with the number of values. Each chunk is checked,
with the chunks next to it and with the index, before an offset of it is given out.
"""

from __future__ import annotations

import bisect
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from windrow.core.threads import InlineExecutor
from windrow.errors import ReadError
from windrow.sources.base import IntArray
from windrow.sources.chunks import ArrayPart, Span
from windrow.sources.zarr.names import BLOCK_VALUES

if TYPE_CHECKING:
    from windrow.sources.zarr.open_array import OpenArray

# A block of records is some chunks: the rows that begin in a chunk and end in the next one need both.
_BLOCK_BYTES: Final = 1 << 20
_LEAST_IN_BLOCK, _MOST_IN_BLOCK = 4, 64
# A read over a network is waited for, so it takes the chunks around those that are needed.
_REMOTE_BYTES: Final = 1 << 18


def values_per_block(chunk_rows: int, row_bytes: int) -> int:
    """The number of values of a block of some consecutive chunks.

    Args:
        chunk_rows: Values of a chunk.
        row_bytes: Bytes of a value.
    """
    chunks = _BLOCK_BYTES // max(1, chunk_rows * row_bytes)
    return chunk_rows * min(max(chunks, _LEAST_IN_BLOCK), _MOST_IN_BLOCK)


def block_edges(part: ArrayPart) -> IntArray:
    """The first value of each block of values."""
    step = values_per_block(part.chunk_rows, part.row_bytes)
    return np.arange(0, part.rows + part.shift, step) - part.shift


class Offsets:
    """Where rows begin among the values. Thread-safe."""

    def __init__(self, offsets: OpenArray, values: OpenArray, index: OpenArray | None) -> None:
        """Reads nothing.

        Args:
            offsets: The array of offsets.
            values: The array of values.
            index: The array of the first record of each block, if there is one.
        """
        self.array, self.index = offsets, index
        self._values = values
        self._lock = threading.Lock()
        # The system gives memory to the pages that are written, so to chunks that are read.
        self._table: IntArray = np.empty(0, np.int64)
        self._is_read = np.zeros(offsets.part.chunk_count, np.bool_)
        self._is_whole = False
        self._first_records: IntArray | None = None

    @property
    def part(self) -> ArrayPart:
        """The offsets as stored."""
        return self.array.part

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.part.rows - 1

    def all(self) -> IntArray:
        """The offsets, int64 `(rows + 1,)`. Do not write to it.

        Raises:
            ReadError: If they cannot be read, fall, or do not end with the number of values; or if
                the index does not fit them.
        """
        return self._between(0, self.part.rows)

    def starts(self, records: IntArray) -> IntArray:
        """The first value of each record. Raises as `all`."""
        self._need(records)
        return self._table[records]

    def lengths(self, records: IntArray) -> IntArray:
        """The number of values of each record. Raises as `all`."""
        self._need(records)
        found: IntArray = self._table[records + 1] - self._table[records]
        return found

    def offset(self, row: int) -> int:
        """One offset. Raises as `all`."""
        return int(self._between(row, row + 1)[0])

    def records_of(self, first: int, stop: int) -> tuple[int, int]:
        """The bounds of the records that have some of the values `[first, stop)`. Raises as `all`."""
        rows = range(self.part.rows)
        start = bisect.bisect_right(rows, first, key=self.offset) - 1
        return start, bisect.bisect_left(rows, stop, key=self.offset)

    def block_starts(self) -> IntArray:
        """The first record that begins in each block of values or after it. Raises as `all`."""
        edges = block_edges(self._values.part)
        known = self._indexed()[: len(edges)]
        if len(known) == len(edges):
            return known
        first = int(known[-1]) if len(known) else 0
        rest = self._between(first, self.part.rows)
        return np.concatenate([known, first + np.searchsorted(rest, edges[len(known) :])])

    # --- reading ---------------------------------------------------------------------------------

    def _chunks(self, rows: Any) -> Any:
        return (rows + self.part.shift) // self.part.chunk_rows

    def _need(self, records: IntArray) -> None:
        """Reads the chunks of the offsets at which records begin and end."""
        if self._is_whole:
            return
        chunks = self._chunks(records), self._chunks(records + 1)
        if not all(self._is_read[some].all() for some in chunks):
            self._load(np.union1d(*chunks))

    def _between(self, first: int, stop: int) -> IntArray:
        if not self._is_whole:
            self._load(np.arange(self._chunks(first), self._chunks(stop - 1) + 1))
        return self._table[first:stop]

    def _load(self, chunks: IntArray) -> None:
        """Reads some rising chunks, except what is read already, in one call of the reader."""
        with self._lock:
            part = self.part
            missing = chunks[~self._is_read[chunks]]
            if not len(missing):
                return
            if self.array.is_remote_source:
                missing = self._around(missing)
            if not len(self._table):
                self._table = np.empty(part.rows, np.int64)
            if not self._is_read.any():
                missing = np.union1d(missing, part.chunk_count - 1)
            stored = self._table
            if part.dtype != stored.dtype:
                stored = np.empty(part.rows, part.dtype)
            _fill(part, missing, stored)
            for run in np.split(missing, np.flatnonzero(np.diff(missing) != 1) + 1):
                first, stop = part.bounds(int(run[0]))[0], part.bounds(int(run[-1]))[1]
                if stored is not self._table:
                    self._table[first:stop] = stored[first:stop]
                self._check(first, stop)
            # Only now: what is refused is refused again when it is asked for again.
            self._is_read[missing] = True
            self._is_whole = bool(self._is_read.all())

    def _around(self, chunks: IntArray) -> IntArray:
        """The chunks that are not read yet in the neighbourhoods of some rising chunks."""
        size = max(1, _REMOTE_BYTES // (self.part.chunk_rows * self.part.row_bytes))
        found = (np.unique(chunks // size)[:, None] * size + np.arange(size)).ravel()
        found = found[found < self.part.chunk_count]
        around: IntArray = found[~self._is_read[found]]
        return around

    def _check(self, first: int, stop: int) -> None:
        """Checks the offsets `[first, stop)` of whole chunks, and where they meet those that are read."""
        if first == 0 and self._table[0] != 0:
            raise self._damaged(f"they begin with {self._table[0]:,}, and must begin with 0")
        if first and self._is_read[self._chunks(first - 1)]:
            first -= 1
        if stop < self.part.rows and self._is_read[self._chunks(stop)]:
            stop += 1
        found, values = self._table[first:stop], self._values.part.rows
        falls = np.flatnonzero(found[1:] < found[:-1])
        if len(falls):
            at = int(falls[0])
            raise self._damaged(
                f"offset {first + at + 1:,} is {found[at + 1]:,}, and less than {found[at]:,} before it"
            )
        if found[0] < 0:
            raise self._damaged(f"offset {first:,} is {found[0]:,}, and must be at least 0")
        if stop == self.part.rows and found[-1] != values:
            raise self._damaged(f"the last one is {found[-1]:,}, and there are {values:,} values")
        if found[-1] > values:
            raise self._damaged(
                f"offset {stop - 1:,} is {found[-1]:,}, and there are {values:,} values"
            )
        if self._first_records is not None:
            self._check_index(first, stop, self._first_records)

    def _damaged(self, why: str) -> ReadError:
        found = self.array.found
        return ReadError(
            f"{found.what}: the offsets in {found.where} do not fit the values in"
            f" {self._values.found.where}: {why}. Write both again, or convert again"
        )

    # --- the index -------------------------------------------------------------------------------

    def _indexed(self) -> IntArray:
        """The first record of each block that the index has; none without an index."""
        with self._lock:
            if self._first_records is None:
                found = self._read_index()
                places = np.flatnonzero(self._is_read)
                for run in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
                    if len(run):
                        bounds = self.part.bounds(int(run[0]))[0], self.part.bounds(int(run[-1]))[1]
                        self._check_index(*bounds, found)
                self._first_records = found
            return self._first_records

    def _read_index(self) -> IntArray:
        values, index = self._values.part, self.index
        step = values_per_block(values.chunk_rows, values.row_bytes)
        # An index of other blocks was copied along with values that got other chunks.
        if index is None or values.shift or index.attributes.get(BLOCK_VALUES) != step:
            return np.empty(0, np.int64)
        part = index.part
        if part.row_shape or part.dtype.kind not in "iu":
            shown = f"{part.dtype} {[part.rows, *part.row_shape]}"
            raise self._misleading(f"it must be integers in one dimension, and is {shown}")
        stored = np.empty(part.rows, part.dtype)
        _fill(part, np.arange(part.chunk_count), stored)
        found: IntArray = stored.astype(np.int64, copy=False)
        rises = not (found[1:] < found[:-1]).any()
        if len(found) and (found[0] != 0 or found[-1] > self.rows or not rises):
            raise self._misleading(f"it must rise from 0, and to {self.rows:,} at most")
        return found

    def _check_index(self, first: int, stop: int, index: IntArray) -> None:
        """Checks the index of the blocks that begin after offset `first`, up to offset `stop - 1`."""
        step = values_per_block(self._values.part.chunk_rows, self._values.part.row_bytes)
        found = self._table[first:stop]
        blocks = np.arange(found[0] // step + 1, min(found[-1] // step + 1, len(index)))
        records = first + np.searchsorted(found, blocks * step)
        wrong = np.flatnonzero(index[blocks] != records)
        if len(wrong):
            at = int(wrong[0])
            block = int(blocks[at])
            raise self._misleading(
                f"block {block:,} begins with record {records[at]:,}, and it has {index[block]:,}"
            )

    def _misleading(self, why: str) -> ReadError:
        found = (self.index or self.array).found
        return ReadError(
            f"{found.what}: the index of blocks in {found.where} does not fit the offsets in"
            f" {self.array.found.where}: {why}. Delete the index and consolidate the"
            " metadata of its group again, or convert again"
        )


def _fill(part: ArrayPart, chunks: IntArray, out: Any) -> None:
    """Reads chunks to their places in `out`, which has all rows."""
    bounds = map(part.bounds, chunks.tolist())
    spans = [Span(first, stop, out[first:stop]) for first, stop in bounds]
    part.reader.start(spans, InlineExecutor()).result()
