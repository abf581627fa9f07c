"""Chunks of plain local arrays, decoded straight into the reader's memory.

Invariants: a read fills all of the requested memory or raises `ReadError`. A chunk that is not
stored reads as the fill value only while the array's metadata are still there. Each thread reuses
its scratch memory, so that a read needs new pages only for its result.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.core import buffer_pool
from windrow.core.process import cores
from windrow.core.threads import shared_pool
from windrow.errors import ReadError
from windrow.sources.base import IntArray, run_of
from windrow.sources.chunks import RowReader, RunReader, Span
from windrow.sources.scan import Checks
from windrow.sources.zarr.local.codecs import (
    ByteArray,
    ChunkDamageError,
    ChunkDecoder,
    Stored,
    most_stored_bytes,
    refuse_bools,
    scratch,
)
from windrow.sources.zarr.local.frames import (
    MOST_CHUNK_BYTES,
    SmallChunks,
    coded_chunks,
    small_chunks,
)
from windrow.sources.zarr.local.metadata import PlainArray, damaged, held_records, plain_array
from windrow.sources.zarr.local.presence import orphan_chunks
from windrow.sources.zarr.local.shards import MISSING, ShardIndex, StoredFiles

AnyArray = npt.NDArray[Any]
Index = tuple[slice, ...]
RowIndex: TypeAlias = slice | IntArray

# With less than this, one thread is done before a second one has begun.
_WORTH_THREADS_BYTES: Final = 2**20


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _RowChunk:
    """One of the chunks that hold the same rows; its fields are about the axes after the first."""

    at: tuple[int, ...]  # its place in the grid
    inside: Index  # the values of the decoded chunk that lie in the array
    target: Index  # where they belong in a row


class ChunkStore:
    """The stored chunks of a plain array, by their coordinates in its grid. Thread-safe."""

    def __init__(
        self, plain: PlainArray, *, cells: bool = False, most_open: int | None = None
    ) -> None:
        """Open nothing yet.

        Args:
            plain: The array.
            cells: Whether messages name the cells of shards instead of their records.
            most_open: As for `StoredFiles`.
        """
        self.plain = plain
        self._decoder = ChunkDecoder(plain.codecs, plain.chunk_bytes)
        self._base = os.path.join(plain.folder, "")
        self._ratio: float | None = None
        back = np.argsort(plain.axes)
        self._back = tuple(int(axis) for axis in back)
        self._shards: tuple[StoredFiles, ShardIndex] | None = None
        if plain.shard_shape is not None:
            files = StoredFiles(plain, most_open=most_open)
            index = ShardIndex(plain, files, name=plain.name, where=plain.folder, cells=cells)
            self._shards = files, index

    def values(self, memory: ByteArray) -> AnyArray:
        """A decoded chunk as its values, in the order of the array's axes."""
        plain = self.plain
        return memory.view(plain.stored_dtype).reshape(plain.stored_shape).transpose(self._back)

    def check(self, missed: bool) -> None:
        """Check that the array is still there; `missed` says that some chunk was not stored.

        Raises:
            ReadError: If it is gone.
        """
        # Mapped shards can still be read after the array was replaced.
        if missed or self._shards is not None:
            self.plain.presence.refuse_gone(self.plain.folder)

    def ratio(self) -> float:
        """Stored bytes per decoded byte, estimated from the first stored object."""
        if self._ratio is None:
            self._ratio = self._measured_ratio()
        return self._ratio

    def _measured_ratio(self) -> float:
        plain = self.plain
        try:
            size = os.stat(self._base + plain.key([0] * len(plain.shape))).st_size
        except OSError:
            return 1.0
        return size / max(1, plain.chunk_bytes * math.prod(plain.shard_grid))

    def file(self, coords: tuple[int, ...]) -> str:
        """Path of the stored object that a chunk belongs in."""
        sizes = zip(coords, self.plain.shard_grid, strict=True)
        return self._base + self.plain.key([k // n for k, n in sizes])

    def count_missing(self, first: int, stop: int) -> int:
        """How many of the chunks `[first, stop)`, in C order, are not stored.

        Raises:
            OSError: If the status of a file cannot be read.
            ReadError: If the index of a shard is damaged.
        """
        numbers = np.arange(first, stop)
        if self._shards is not None:
            return int(np.count_nonzero(self._shards[1].locate(numbers).offsets == MISSING))
        coords = zip(*(c.tolist() for c in np.unravel_index(numbers, self.plain.grid)), strict=True)
        return sum(not self.is_stored(at) for at in coords)

    def is_stored(self, coords: tuple[int, ...]) -> bool:
        """Whether a chunk is stored, without reading it.

        Raises:
            OSError: If the status of its file cannot be read.
            ReadError: If the index of its shard is damaged.
        """
        if self._shards is not None:
            return int(self._shards[1].locate(self._number(coords)).offsets[0]) != MISSING
        try:
            os.stat(self.file(coords))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def decode(self, coords: tuple[int, ...], out: ByteArray, wanted: slice | None = None) -> bool:
        """Decode a chunk into `out`; False, and nothing done, if it is not stored.

        Args:
            coords: Coordinates of the chunk.
            out: Memory of `chunk_bytes` bytes.
            wanted: The bytes of `out` that must be filled; None for all. For chunks that are not
                encoded, only these are read.

        Raises:
            ChunkDamageError: If it is damaged.
            OSError: If its file cannot be read.
            ReadError: If the index of its shard is damaged.
        """
        part = wanted if wanted is not None and not self.plain.codecs else slice(0, len(out))
        stored = self._decode_any(coords, out, part)
        if stored and self.plain.dtype == np.bool_:
            refuse_bools(out[part])
        return stored

    def _decode_any(self, coords: tuple[int, ...], out: ByteArray, part: slice) -> bool:
        if self._shards is not None:
            data = self._inner(coords, *self._shards)
            if data is None:
                return False
            if not self.plain.codecs:
                out[part] = np.frombuffer(data[part], np.uint8)
                return True
        else:
            try:
                file = os.open(self._base + self.plain.key(coords), os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                return False
            try:
                size = os.fstat(file).st_size
                self._refuse_size(size)
                if not self.plain.codecs:
                    _read_into(file, out[part], part.start)
                    return True  # straight into the caller's memory
                if self._decoder.takes_bytes:
                    data = _read_bytes(file, size)
                else:
                    memory = scratch("stored", size)
                    _read_into(file, memory)
                    data = memory.data
            finally:
                os.close(file)
        self._decoder.decode(data, out)
        return True

    def _inner(
        self, coords: tuple[int, ...], files: StoredFiles, index: ShardIndex
    ) -> Stored | None:
        at = index.locate(self._number(coords))
        offset, size, shard = int(at.offsets[0]), int(at.sizes[0]), int(at.shards[0])
        if offset == MISSING:
            return None
        self._refuse_size(size)
        held = files.hold([shard])[shard]
        if held is None:
            return None
        data = held[offset : offset + size]
        return bytes(data) if self._decoder.takes_bytes else data

    def _number(self, coords: tuple[int, ...]) -> IntArray:
        number = 0
        for k, count in zip(coords, self.plain.grid, strict=True):
            number = number * count + k
        return np.array([number], np.int64)

    def _refuse_size(self, size: int) -> None:
        wanted = self._decoder.stored_bytes
        if wanted is not None and size != wanted:
            raise ChunkDamageError(f"it has {size:,} bytes, and a chunk must have {wanted:,}")
        if size > most_stored_bytes(self._decoder.decoded_bytes):
            raise ChunkDamageError(f"it has {size:,} bytes, far more than a chunk can have")

    def damaged(
        self,
        coords: tuple[int, ...],
        held: str,
        error: ChunkDamageError | OSError,
        *,
        records: tuple[int, int] | None = None,
    ) -> ReadError:
        """The error for a chunk that cannot be read; see `metadata.damaged`."""
        plain = self.plain
        file, offset, more = self.file(coords), 0, ""
        if self._shards is not None:
            more = f", chunk {list(coords)}"
            offset = int(self._shards[1].locate(self._number(coords)).offsets[0])
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        return damaged(
            plain.name,
            plain.folder,
            held,
            f"{file}{more}: {why}",
            file=file,
            offset=offset,
            records=records,
        )


class DirectReader:
    """Reads rows of a plain array; a `RowReader` whose chunks are the chunks of the first axis."""

    def __init__(self, plain: PlainArray) -> None:
        """Open nothing yet."""
        self._plain = plain
        self._rows = plain.chunk_shape[0]
        self._chunks = ChunkStore(plain)
        self._across = math.prod(plain.grid[1:])
        self._whole_rows = plain.is_native_order and plain.chunk_shape[1:] == plain.shape[1:]
        self._only = next(self._row_chunks(), None) if self._across == 1 else None
        self._small = small_chunks(plain)

    def checks(self) -> Checks:
        """The chunks of the array."""
        return PlainChecks(self._plain)

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        """Fill the spans in one task on `pool`; the future has a ReadError if that fails."""
        return pool.submit(self._fill, list(spans))

    def read(self, rows: IntArray) -> AnyArray:
        """Rows `(n, ...)` in new memory, each chunk decoded once.

        Raises:
            ReadError: If a chunk cannot be read; the message names array, file and records. Or if
                the array is gone.
        """
        plain = self._plain
        answer = buffer_pool.empty((len(rows), *plain.shape[1:]), plain.dtype)
        if not answer.size:
            return answer
        if self._small is not None:
            try:
                self._read_small(self._small, rows, answer)
                return answer
            except (ChunkDamageError, OSError):
                pass  # read one by one, so that the error names the chunk
        takes = list(self._takes(rows))
        missed = [False] * len(takes)

        def work(k: int) -> None:
            missed[k] = self._take(*takes[k], answer)

        few = len(takes) * self._across * plain.chunk_bytes <= _WORTH_THREADS_BYTES
        run_on_threads(work, len(takes), threads=1 if few else cores())
        self._chunks.check(any(missed))
        return answer

    def _read_small(self, small: SmallChunks, rows: IntArray, answer: AnyArray) -> None:
        rounds = small.rounds(rows)
        missed = [False] * len(rounds)

        def work(k: int) -> None:
            answer[rounds[k]], missed[k] = small.take(rows[rounds[k]])

        few = len(rounds) * small.at_once * self._plain.chunk_bytes <= _WORTH_THREADS_BYTES
        run_on_threads(work, len(rounds), threads=1 if few else cores())
        self._chunks.check(any(missed))

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in storage, estimated from the first stored object."""
        whole = self._plain.chunk_bytes * self._across
        return np.full(len(chunks), math.ceil(whole * self._chunks.ratio()), np.int64)

    def _fill(self, spans: list[Span]) -> None:
        missed = False
        if self._small is not None:
            try:
                missed = self._small.fill(spans)
                spans = []
            except (ChunkDamageError, OSError):
                pass  # read one by one, so that the error names the chunk
        for span in spans:
            chunk = span.first // self._rows
            begin = chunk * self._rows
            take = slice(span.first - begin, span.stop - begin)
            missed |= self._take(chunk, take, slice(0, span.stop - span.first), span.out)
        self._chunks.check(missed)

    def _takes(self, rows: IntArray) -> Iterator[tuple[int, RowIndex, RowIndex]]:
        """The arguments of `_take` for each chunk, in ascending order of chunks."""
        size = self._rows
        run = run_of(rows)
        if run is not None:
            for chunk in range(run.start // size, -(-run.stop // size)):
                begin = chunk * size
                first, stop = max(run.start, begin), min(run.stop, begin + size)
                to = slice(first - run.start, stop - run.start)
                yield chunk, slice(first - begin, stop - begin), to
            return
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        chunks = ascending // size
        cuts = np.flatnonzero(np.diff(chunks)) + 1
        takes = ascending - chunks * size
        for a, b in itertools.pairwise([0, *cuts.tolist(), len(rows)]):
            if b - a == 1:
                row, at = int(takes[a]), int(order[a])
                yield int(chunks[a]), slice(row, row + 1), slice(at, at + 1)
            else:
                yield int(chunks[a]), takes[a:b], order[a:b]

    def _take(self, chunk: int, take: RowIndex, to: RowIndex, out: AnyArray) -> bool:
        """Copy rows `take` of row block `chunk` to `out[to]`; return whether a chunk is missing."""
        plain = self._plain
        coords: tuple[int, ...] = ()
        missed = False
        try:
            for part in (self._only,) if self._only is not None else self._row_chunks():
                coords = (chunk, *part.at)
                target = self._direct_target(to, out)
                if target is not None:
                    if not self._chunks.decode(coords, target):
                        out[to] = plain.fill
                        missed = True
                    continue
                memory = scratch("chunk", plain.chunk_bytes)
                if self._chunks.decode(coords, memory):
                    block = self._chunks.values(memory)
                    out[(to, *part.target)] = block[(slice(None), *part.inside)][take]
                else:
                    out[(to, *part.target)] = plain.fill
                    missed = True
        except (ChunkDamageError, OSError) as error:
            first = coords[0] * self._rows
            records = first, min(first + self._rows, plain.shape[0])
            held = held_records(*records)
            raise self._chunks.damaged(coords, held, error, records=records) from error
        return missed

    def _direct_target(self, to: RowIndex, out: AnyArray) -> ByteArray | None:
        """The bytes of `out[to]`, if they are exactly one decoded chunk; else None."""
        if not self._whole_rows or not isinstance(to, slice) or to.stop - to.start != self._rows:
            return None
        target = out[to]
        if not target.flags.c_contiguous or target.dtype != self._plain.dtype:
            return None
        return target.reshape(-1).view(np.uint8)

    def _row_chunks(self) -> Iterator[_RowChunk]:
        plain = self._plain
        shape, chunk = plain.shape[1:], plain.chunk_shape[1:]
        for at in np.ndindex(*plain.grid[1:]):
            sizes = [min(c, n - k * c) for k, c, n in zip(at, chunk, shape, strict=True)]
            yield _RowChunk(
                at=tuple(int(k) for k in at),
                inside=tuple(slice(0, size) for size in sizes),
                target=tuple(
                    slice(k * c, k * c + size) for k, c, size in zip(at, chunk, sizes, strict=True)
                ),
            )


class PlainChecks(Checks):
    """The chunks of a plain array."""

    def __init__(self, plain: PlainArray, reader: RowReader | None = None) -> None:
        """Open nothing yet; `reader`, if given, reads many of the array's rows at once."""
        shape = plain.shape
        super().__init__(shape, plain.chunk_shape, (0,) * len(shape), plain.dtype.itemsize)
        self._plain = plain
        self._chunks = ChunkStore(plain)
        self._reader = reader if math.prod(plain.grid[1:]) == 1 else None
        small = plain.codecs and plain.chunk_bytes <= MOST_CHUNK_BYTES
        self._coded = coded_chunks(plain, plain.name, plain.folder) if small else None

    @property
    def waits(self) -> bool:
        return False

    def check_run(self, first: int, stop: int) -> tuple[int, int] | None:
        if self._coded is not None:
            try:
                missing = self._coded.check(np.arange(first, stop))
                self._chunks.check(missing > 0)
                return missing, 0
            except (ChunkDamageError, OSError):
                return None  # check one by one, so that the error names the chunk
        if self._reader is None:
            return None
        size = self._plain.chunk_shape[0]
        try:
            self._reader.read(np.arange(first * size, min(stop * size, self._plain.shape[0])))
            return self._chunks.count_missing(first, stop), 0
        except OSError:
            return None

    def check(self, number: int) -> bool:
        coords = self.coords(number)
        memory = scratch("chunk", self._plain.chunk_bytes)
        return self._tried(coords, lambda: self._chunks.decode(coords, memory))

    def is_stored(self, number: int) -> bool:
        coords = self.coords(number)
        return self._tried(coords, lambda: self._chunks.is_stored(coords))

    def file(self, number: int) -> str:
        return self._chunks.file(self.coords(number))

    def orphans(self) -> list[str]:
        # An array may grow while it is read.
        now = plain_array(self._plain.folder, self._plain.name)
        if isinstance(now, str) or len(now.shape) != len(self._plain.shape):
            return []
        objects = now.shard_shape or now.chunk_shape
        grid = [-(-n // c) for n, c in zip(now.shape, objects, strict=True)]
        return orphan_chunks(now.folder, now.prefix, now.separator, grid)

    def _tried(self, coords: tuple[int, ...], attempt: Callable[[], bool]) -> bool:
        try:
            stored = attempt()
        except ReadError:
            raise
        except (ChunkDamageError, OSError) as error:
            size, rows = self._plain.chunk_shape[0], self._plain.shape[0]
            records = coords[0] * size, min((coords[0] + 1) * size, rows)
            held = held_records(*records)
            raise self._chunks.damaged(coords, held, error, records=records) from error
        self._chunks.check(not stored)
        return stored


class CheckedReader:
    """Wraps a reader of a plain array, and checks its rows as `DirectReader` checks its own."""

    def __init__(self, reader: RunReader, plain: PlainArray) -> None:
        """Check what `reader`, which reads single records of `plain`, returns."""
        self._reader, self._plain = reader, plain

    def checks(self) -> Checks:
        """The chunks of the array."""
        return PlainChecks(self._plain, self)

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        """Start reading spans; done when all their memory is filled and checked.

        The future has a ReadError if one of them cannot be read.
        """
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # it cannot be cancelled any more
        wanted = list(spans)

        def end(read: Future[None]) -> None:
            try:
                read.result()
                for span in wanted:
                    self._refuse_bools(span.out, np.arange(span.first, span.stop))
                self._plain.presence.refuse_gone(self._plain.folder)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._reader.start(wanted, pool).add_done_callback(end)
        return done

    def read(self, rows: IntArray) -> AnyArray:
        """Rows `(n, ...)` in new memory. Waits; raises ReadError."""
        found = self._reader.read(rows)
        self._refuse_bools(found, rows)
        self._refuse_gone(rows)
        return found

    def read_runs(self, first: IntArray, size: int) -> AnyArray:
        """Runs `(n, size, ...)` of rows in new memory. Waits; raises ReadError."""
        found = self._reader.read_runs(first, size)
        if self._plain.dtype == np.bool_:
            self._refuse_bools(found, (first[:, None] + np.arange(size)).ravel())
        self._refuse_gone(first)
        return found

    def _refuse_gone(self, rows: IntArray) -> None:
        if len(rows):
            # Mapped files can still be read after the array was replaced.
            self._plain.presence.refuse_gone(self._plain.folder)

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in storage; may be an estimate."""
        return self._reader.stored_bytes(chunks)

    def _refuse_bools(self, found: AnyArray, rows: IntArray) -> None:
        plain = self._plain
        if plain.dtype != np.bool_:
            return
        try:
            refuse_bools(found.view(np.uint8))
        except ChunkDamageError as error:
            wrong = (found.view(np.uint8) > 1).reshape(len(rows), -1).any(axis=1)
            first = int(rows[int(np.argmax(wrong))]) // plain.chunk_shape[0] * plain.chunk_shape[0]
            records = first, min(first + plain.chunk_shape[0], plain.shape[0])
            held = held_records(*records)
            raise damaged(plain.name, plain.folder, held, str(error), records=records) from error


def _read_into(file: int, out: ByteArray, begin: int = 0) -> None:
    """Fill `out` with the bytes of a file that start at byte `begin`."""
    if begin:
        os.lseek(file, begin, os.SEEK_SET)
    at = 0
    while at < len(out):
        got = os.readv(file, [out[at:].data])
        if not got:
            raise ChunkDamageError(f"it ends at byte {begin + at:,} of {begin + len(out):,}")
        at += got


def _read_bytes(file: int, size: int) -> bytes:
    found = os.read(file, size)
    while len(found) < size:
        more = os.read(file, size - len(found))
        if not more:
            raise ChunkDamageError(f"it ends at byte {len(found):,} of {size:,}")
        found += more
    return found


def run_on_threads(work: Callable[[int], None], count: int, *, threads: int) -> None:
    """Call `work(k)` for each `k` below `count`, on `threads` threads including this one.

    If calls fail, it raises the error of the smallest `k`; later calls may be left out.
    """
    turns = iter(range(count))
    failures: list[tuple[int, BaseException]] = []

    def run() -> None:
        for k in turns:
            if failures:
                return
            try:
                work(k)
            except BaseException as error:
                failures.append((k, error))

    helpers = min(threads, count) - 1
    futures = [shared_pool().submit(run) for _ in range(helpers)]
    run()
    for future in futures:
        if not future.cancel():
            future.result()
    if failures:
        raise min(failures, key=lambda failure: failure[0])[1]
