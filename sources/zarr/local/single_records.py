"""Single records of a local Zarr array, read at little more than the cost of their bytes.

Two layouts allow this: chunks that are not encoded, whose rows are copied from mapped files, and
chunks of one record each, in shards or in files of their own; one call decodes many of these.

Invariant: a row is copied from stored bytes that were decoded and checked, or it is the fill value
if nothing is stored and the array is still there; anything else is a ReadError that names the
record. The warning in `shards` about files that change while they are mapped holds here too.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final, NoReturn, Protocol

import numpy as np

from windrow.core.process import cores
from windrow.errors import ReadError
from windrow.sources.base import IntArray
from windrow.sources.chunks import AnyArray, RunReader, Span, WindowRows
from windrow.sources.zarr.local.codecs import CHECKSUM_BYTES, ByteArray, ChunkDamageError
from windrow.sources.zarr.local.frames import (
    MOST_CHUNK_BYTES,
    ROUND_BYTES,
    CodedChunks,
    Frame,
    coded_chunks,
    joined,
    place_of,
)
from windrow.sources.zarr.local.mapped_files import FileRegion, reserved
from windrow.sources.zarr.local.metadata import PlainArray, damaged, held_records
from windrow.sources.zarr.local.shards import (
    INDEX_ENTRY_BYTES,
    MISSING,
    ShardIndex,
    StoredFiles,
)

_MOST_CELLS: Final = 16
# If one call decodes on several threads, the work must be worth starting them.
_SHARED_ROUND_BYTES: Final = 8 * 2**20
_THREAD_BYTES: Final = 256 * 2**10
_COPYING_THREAD_BYTES: Final = 512 * 2**10


def single_record_reader(
    plain: PlainArray, name: str, where: str, *, most_open: int | None = None
) -> RunReader | None:
    """A reader of single records; None if a record costs much more than its bytes.

    Its chunks are blocks of `plain.chunk_shape[0]` rows.

    Args:
        plain: The array.
        name: Name of the array in the source, for messages.
        where: Place of the array, for messages.
        most_open: Files to keep mapped, together with the files of all other arrays; None for as
            many as this process has room for.
    """
    if not plain.shape[0] or not plain.row_bytes or math.prod(plain.grid[1:]) > _MOST_CELLS:
        return None
    single = plain.chunk_shape[0] == 1
    sharded = plain.shard_shape is not None
    if single and plain.chunk_bytes <= MOST_CHUNK_BYTES and (plain.codecs or not sharded):
        chunks = coded_chunks(plain, name, where, most_open=most_open)
        return _SingleRecordReader(plain, name, where, _EncodedRows(plain, chunks))
    if not plain.codecs and (single or plain.axes[0] == 0):
        return _SingleRecordReader(plain, name, where, _RawRows(plain, name, where, most_open))
    return None


class _RowStorage(Protocol):
    """Returns the values of rows, cell by cell, as they are in decoded chunks."""

    copies: bool
    """Whether chunks are copied instead of decoded: then short rounds gain nothing."""

    def fetch(self, rows: IntArray, threads: int) -> tuple[ByteArray, bool]:
        """Bytes of `(row, cell)` in C order, in new memory, and whether something is missing.

        Raises:
            OSError: If a file cannot be read.
            ChunkDamageError: If a chunk is damaged.
        """
        ...

    def runs(self, first: IntArray, size: int) -> ByteArray | None:
        """Bytes of `size` rows from each row in `first`, in new memory; None if `fetch` must."""
        ...

    def place(self, row: int) -> tuple[str, str]:
        """The file that holds the first cell of a row, and a note for messages to follow it."""
        ...

    def sampled_bytes(self) -> int:
        """Bytes of a chunk in storage; an estimate."""
        ...


class _SingleRecordReader:
    """Rows of an array, in any order. Thread-safe."""

    def __init__(self, plain: PlainArray, name: str, where: str, stored: _RowStorage) -> None:
        self._plain, self._name, self._where, self._stored = plain, name, where, stored
        self._cells = math.prod(plain.grid[1:])
        self._axes = [axis for axis in plain.axes if axis]  # of a row, as it is stored
        moving = [axis for axis in self._axes if plain.chunk_shape[axis] > 1]
        self._whole = plain.chunk_shape[1:] == plain.shape[1:] and moving == sorted(moving)
        self._sampled_bytes: int | None = None

    def read(self, rows: IntArray) -> AnyArray:
        """Rows `(n, ...)` in new memory. Waits; raises ReadError."""
        with _turns.taken() as others:
            if others:
                # Concurrent reads have threads of their own: one for each is a quarter faster.
                return self._read(rows, 0)
            each = _COPYING_THREAD_BYTES if self._stored.copies else _THREAD_BYTES
            worth = len(rows) * self._plain.row_bytes // each
            return self._read(rows, min(worth, cores()))

    def read_runs(self, first: IntArray, size: int) -> AnyArray:
        """Runs `(n, size, ...)` of rows in new memory. Waits; raises ReadError."""
        with _turns.taken():
            found = self._stored.runs(first, size) if len(first) and size else None
        if found is None:
            windows = WindowRows(first, size)
            return windows.taken_from(self.read(windows.rows))
        rows = self._arranged(found, len(first) * size)
        return rows.reshape(len(first), size, *rows.shape[1:])

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        """Start reading spans on one thread of `pool`; done when all their memory is filled."""
        return pool.submit(self._fill, spans)

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in storage; an estimate."""
        if self._sampled_bytes is None:
            self._sampled_bytes = self._stored.sampled_bytes()
        return np.full(len(chunks), self._sampled_bytes, np.int64)

    def _fill(self, spans: Sequence[Span]) -> None:
        with _turns.taken():
            for group in _grouped(spans, max(1, ROUND_BYTES // self._plain.row_bytes)):
                first = np.array([span.first for span in group])
                count = np.array([span.stop for span in group]) - first
                rows = np.arange(count.sum()) + np.repeat(first + count - np.cumsum(count), count)
                found = self._read(rows, 0)
                at = 0
                for span, rows_of_span in zip(group, count.tolist(), strict=True):
                    span.out[...] = found[at : at + rows_of_span]
                    at += rows_of_span

    def _read(self, rows: IntArray, threads: int) -> AnyArray:
        most = _SHARED_ROUND_BYTES if threads > 1 else ROUND_BYTES
        step = len(rows) if self._stored.copies else max(1, most // self._plain.row_bytes)
        if len(rows) <= step:
            return self._round(rows, threads)
        out = self._empty(len(rows))
        for at in range(0, len(rows), step):
            out[at : at + step] = self._round(rows[at : at + step], threads)
        return out

    def _round(self, rows: IntArray, threads: int) -> AnyArray:
        if not len(rows):
            return self._empty(0)
        try:
            found, missing = self._stored.fetch(rows, threads)
        except ReadError:
            raise
        except (OSError, ChunkDamageError) as error:
            if len(rows) == 1:
                self._refuse(int(rows[0]), error)
            # One by one, so that the error names the record.
            return np.concatenate([self._round(rows[k : k + 1], 0) for k in range(len(rows))])
        if missing:
            self._plain.presence.refuse_gone(self._where)
        return self._arranged(found, len(rows))

    def _arranged(self, found: ByteArray, count: int) -> AnyArray:
        """Rows `(count, ...)` from the bytes of their cells."""
        plain = self._plain
        values: AnyArray = found.view(plain.stored_dtype)
        if self._whole:
            rows = values.reshape(count, *plain.shape[1:])
            return rows if plain.stored_dtype == plain.dtype else rows.astype(plain.dtype)
        cells = values.reshape(count, self._cells, *(plain.chunk_shape[k] for k in self._axes))
        order = [1 + self._axes.index(axis) for axis in range(1, len(plain.shape))]
        out = self._empty(count)
        for number, coords in enumerate(itertools.product(*map(range, plain.grid[1:]))):
            place = tuple(
                slice(k * size, (k + 1) * size)
                for k, size in zip(coords, plain.chunk_shape[1:], strict=True)
            )
            target = out[(slice(None), *place)]
            cell = cells[:, number].transpose(0, *order)
            # The last chunks reach over the end of the array.
            target[...] = cell[tuple(slice(n) for n in target.shape)]
        return out

    def _empty(self, count: int) -> AnyArray:
        return np.empty((count, *self._plain.shape[1:]), self._plain.dtype)

    def _refuse(self, row: int, error: Exception) -> NoReturn:
        rows = self._plain.chunk_shape[0]
        first = row // rows * rows
        records = first, min(first + rows, self._plain.shape[0])
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        file, more = self._stored.place(row)
        raise damaged(
            self._name,
            self._where,
            held_records(*records),
            f"{file}{more}: {said}",
            # If the row lies in several files, the damaged one is not known here.
            file=file if self._cells == 1 else None,
            offset=0 if self._cells == 1 and self._plain.shard_shape is None else None,
            records=records,
        ) from error


class _Turns:
    """The reads in progress in this process, by thread. No lock: a fork could leave it locked."""

    def __init__(self) -> None:
        self._reading: set[int] = set()

    @contextlib.contextmanager
    def taken(self) -> Iterator[int]:
        """Context of one read; yields the number of other reads when it begins."""
        thread = threading.get_ident()
        others = len(self._reading)
        self._reading.add(thread)
        try:
            yield others
        finally:
            self._reading.discard(thread)


_turns: Final = _Turns()


def _grouped(spans: Sequence[Span], most_rows: int) -> Iterator[list[Span]]:
    """`spans` in order, in groups of one span or at most `most_rows` rows."""
    group: list[Span] = []
    count = 0
    for span in spans:
        if group and count + span.stop - span.first > most_rows:
            yield group
            group, count = [], 0
        group.append(span)
        count += span.stop - span.first
    if group:
        yield group


def _by_chunk(first: IntArray, size: int, chunk_rows: int) -> tuple[IntArray, IntArray]:
    """Runs of `size` rows, cut at chunk bounds: first row and length of each part, in order."""
    chunks = first // chunk_rows
    count = (first + (size - 1)) // chunk_rows - chunks + 1
    total = int(count.sum())
    if total == len(first):
        return first, np.full(len(first), size, np.int64)
    which = np.repeat(np.arange(len(first)), count)
    bound = chunk_rows * (chunks[which] + np.arange(total) - (np.cumsum(count) - count)[which])
    starts = np.maximum(first[which], bound)
    return starts, np.minimum(first[which] + size, bound + chunk_rows) - starts


def _cells_of(rows: IntArray, cells: int) -> IntArray:
    """Numbers of the cells of rows that have `cells` cells each, `(rows * cells,)`."""
    return rows if cells == 1 else (rows[:, None] * cells + np.arange(cells)).ravel()


class _RawRows:
    """Rows of chunks that are not encoded, copied from mapped files."""

    copies = True

    def __init__(self, plain: PlainArray, name: str, where: str, most_open: int | None) -> None:
        self._plain = plain
        self._cells = math.prod(plain.grid[1:])
        self._bytes = plain.chunk_bytes // plain.chunk_shape[0]  # of a row in one cell
        self._fill = np.asarray(plain.fill, plain.dtype).astype(plain.stored_dtype).tobytes()
        sharded = plain.shard_shape is not None
        size_bytes = None if sharded else plain.chunk_bytes
        self._files = StoredFiles(plain, size_bytes=size_bytes, most_open=most_open)
        self._index = ShardIndex(plain, self._files, name=name, where=where) if sharded else None
        largest = math.prod(plain.shard_grid) * (plain.chunk_bytes + INDEX_ENTRY_BYTES)
        self._region = reserved(
            math.prod(self._files.grid),
            largest + CHECKSUM_BYTES if sharded else plain.chunk_bytes,
            self._bytes,
            most_files=most_open,
        )

    def fetch(self, rows: IntArray, threads: int) -> tuple[ByteArray, bool]:
        files, starts = self._located(rows)
        found = self._region and self._gathered(self._region, files, starts, threads)
        return found or self._sliced(files, starts)

    def runs(self, first: IntArray, size: int) -> ByteArray | None:
        region = self._region
        if region is None or self._cells != 1:
            return None
        starts, rows = _by_chunk(first, size, self._plain.chunk_shape[0])
        try:
            files, places = self._located(starts)
            if not self._are_mapped(region, files) or not region.ready[files].all():
                return None
        except (OSError, ChunkDamageError):
            return None  # reading row by row finds the damaged one
        return region.runs(files * region.step + places, rows * self._bytes)

    def _are_mapped(self, region: FileRegion, files: IntArray) -> bool:
        """Map the files that exist; False if one of them cannot be mapped."""
        there = region.ready[files]
        if there.all():
            return True
        for number in set(files[~there].tolist()):  # np.unique imports for 6 ms when first used
            size = MISSING if number == MISSING else self._files.size(number)
            if size != MISSING and not region.map(number, self._files.path(number), size):
                return False
        return True

    def _gathered(
        self, region: FileRegion, files: IntArray, starts: IntArray, threads: int
    ) -> tuple[ByteArray, bool] | None:
        """What `fetch` returns; None if a file that exists cannot be mapped."""
        if not self._are_mapped(region, files):
            return None
        there = region.ready[files]
        lost = len(files) - np.count_nonzero(there)
        places = files * region.step + starts
        if not lost:
            return region.rows(places, threads).reshape(-1), False
        fill = np.frombuffer(self._fill * (self._bytes // len(self._fill)), np.uint8)
        if lost == len(files):
            return np.tile(fill, len(files)), True
        # Addresses that are not mapped must not be touched: another row is read in place of each.
        out = region.rows(np.where(there, places, places[np.argmax(there)]), threads)
        out[~there] = fill
        return out.reshape(-1), True

    def _sliced(self, files: IntArray, starts: IntArray) -> tuple[ByteArray, bool]:
        """What `fetch` returns, for more files than can be mapped in one range."""
        stops = starts + self._bytes
        # Rows that are neighbours both in storage and in the request are one run.
        cut = (starts[1:] != stops[:-1]) | (files[1:] != files[:-1])
        if not cut.all():
            last = np.flatnonzero(np.append(cut, True))
            first = np.append(0, last[:-1] + 1)
            files, starts, stops = files[first], starts[first], stops[last]
        size = int((stops - starts).sum())
        runs = list(zip(files.tolist(), starts.tolist(), stops.tolist(), strict=True))
        mapped = self._files.mapped()
        try:
            # Nearly always all files are mapped; no other check costs so little.
            return joined([mapped[number][start:stop] for number, start, stop in runs], size), False
        except KeyError:
            pass
        held: dict[int, Any] = self._files.hold([k for k, _, _ in runs if k != MISSING])
        held[MISSING] = None
        parts = [self._part(held[number], start, stop) for number, start, stop in runs]
        return joined(parts, size), any(held[number] is None for number, _, _ in runs)

    def place(self, row: int) -> tuple[str, str]:
        return place_of(self._plain, self._files, row)

    def sampled_bytes(self) -> int:
        return self._cells * self._plain.chunk_bytes

    def _located(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """File and offset of each `(row, cell)`; MISSING and 0 if the shard lacks the chunk."""
        plain = self._plain
        chunks, within = np.divmod(rows, plain.chunk_shape[0])
        within *= self._bytes
        chunks = _cells_of(chunks, self._cells)
        within = within if self._cells == 1 else np.repeat(within, self._cells)
        if self._index is None:
            return chunks, within
        located = self._index.locate(chunks)
        absent = located.offsets == MISSING
        wrong = ~absent & (located.sizes != plain.chunk_bytes)
        if wrong.any():
            size = located.sizes[wrong][0]
            raise ChunkDamageError(
                f"it holds {size:,} bytes, not the {plain.chunk_bytes:,} of a chunk"
            )
        starts = located.offsets + within
        if absent.any():
            return np.where(absent, MISSING, located.shards), np.where(absent, 0, starts)
        return located.shards, starts

    def _part(self, file: Any, start: int, stop: int) -> Frame:
        if file is None:
            return self._fill * ((stop - start) // len(self._fill))
        found: Frame = file[start:stop]
        return found


class _EncodedRows:
    """Rows of encoded chunks of one row."""

    copies = False

    def __init__(self, plain: PlainArray, chunks: CodedChunks) -> None:
        self._chunks = chunks
        self._cells = math.prod(plain.grid[1:])
        self._size = plain.chunk_bytes

    def fetch(self, rows: IntArray, threads: int) -> tuple[ByteArray, bool]:
        return self._chunks.fetch(_cells_of(rows, self._cells), threads)

    def runs(self, first: IntArray, size: int) -> ByteArray | None:
        return None

    def place(self, row: int) -> tuple[str, str]:
        return self._chunks.place(row)

    def sampled_bytes(self) -> int:
        mean = self._chunks.mean_bytes()
        return self._cells * (self._size if mean is None else mean)
