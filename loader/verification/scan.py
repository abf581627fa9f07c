"""Scans: read all stored data of a source once, in tasks that can run side by side.

A scan covers one part of a source, or a source without parts. It cuts the stored chunks into tasks. A
task reads some chunks, drops them and returns what it found. Then the scan finds the records that the
bad chunks belong to.

Invariant: the tasks of a scan read each chunk that a record lies in once. Only after a read of several
chunks has failed are its chunks read again, one by one.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from windrow.core.machine import machine_bytes
from windrow.core.threads import InlineExecutor
from windrow.errors import ReadError
from windrow.sources.base import Columns, IntArray, Source
from windrow.sources.boxes import BoxPart
from windrow.sources.chunks import ArrayPart, LaidOutSource, ListPart, Part
from windrow.sources.foreign import ForeignDataSource
from windrow.sources.scan import Checkable, Checks, ChunkLocator, GroupChecker, Places, Repeating
from windrow.verification.report import BadChunk

# Decoded bytes per task: enough to make the cost of starting it small.
TASK_BYTES: Final = 8 * 2**20
# A call of the array_record package costs some 100 us, whatever the number of its records. Finding and
# decoding many small chunks costs as much.
_MOST_CHUNKS: Final = 1024
# Chunks, or records, that are numbered at a time.
_SLAB: Final = 2**16
# With more records than this, as in a grid with stride 1, all chunks count as needed.
_MOST_SEARCHED: Final = 2**26
_MOST_RECORDS: Final = 1024
_UNKNOWN_BYTES: Final = 2**20
# A group that claims to decode to more than this many times its size in the file is not believed.
_MOST_EXPANSION: Final = 1000
_ALWAYS_BELIEVED_BYTES: Final = 256 * 2**20
# Errors with which a user's own source reports bad data; any other error is a bug of the program.
_DATA_ERRORS: Final = (OSError, ValueError, EOFError, zlib.error, struct.error)


NO_CHUNK: Final = -1
"""Number for damage of an array outside its chunks; it sorts before the numbers of chunks."""
_STRAY: Final = (
    "the file is not a chunk of the array that the metadata describe: the shape or the chunk shape is"
    " wrong, or the file is left over; correct the metadata, or remove the file"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Damage:
    """A chunk that cannot be read: its number in the scan and what is wrong."""

    number: int
    error: str
    file: str | None
    offset: int | None
    records: tuple[int, int] | None = None  # as the error reports them


@dataclasses.dataclass(slots=True)
class ScanResult:
    """What one or more tasks found."""

    chunks: int = 0
    decoded_bytes: int = 0
    missing: int = 0
    untold: int = 0
    bad: list[Damage] = dataclasses.field(default_factory=list)

    def add(self, other: ScanResult) -> None:
        """Add the findings of `other`."""
        self.chunks += other.chunks
        self.decoded_bytes += other.decoded_bytes
        self.missing += other.missing
        self.untold += other.untold
        self.bad += other.bad

    def refuse(self, number: int, error: Exception) -> None:
        """Note a chunk that cannot be read."""
        file = offset = records = None
        said = str(error) or type(error).__name__
        if isinstance(error, ReadError):
            file, offset, said = error.file, error.offset, error.why or said
            records = error.records
        elif isinstance(error, OSError):
            file = error.filename if isinstance(error.filename, str) else None
        self.bad.append(Damage(number, said, file, offset, records))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ScanTask:
    """Some chunks to read.

    Args:
        held_bytes: Estimated memory that it takes while it runs.
        done_bytes: Bytes that it adds to the progress.
        run: Reads the chunks. It calls `stopped` between chunks, and may leave out the rest if that
            returns True.
    """

    held_bytes: int
    done_bytes: int
    run: Callable[[Callable[[], bool]], ScanResult]


class Scan(abc.ABC):
    """Reads one part of a source, or a source without parts, once."""

    name: str = ""
    """Name of the array in the source."""
    waits: bool = True
    """Whether the tasks wait for anything other than this machine's cores."""
    repeats: int | None = None
    """Number of records that share the one scanned value; None if records differ."""

    @functools.cached_property
    def result(self) -> ScanResult:
        """What the tasks have found so far."""
        return ScanResult()

    @property
    @abc.abstractmethod
    def total_bytes(self) -> int | None:
        """About the sum of the tasks' `done_bytes`; None if only reading shows it."""

    @abc.abstractmethod
    def tasks(self) -> Iterator[ScanTask]:
        """Yield the tasks in order."""

    def spans(self, bad: Sequence[Damage]) -> list[tuple[int, int]]:
        """Return the records `[first, stop)` of each of `bad`, which is in ascending order of numbers."""
        return [(each.number, each.number + 1) for each in bad]

    def located(self, bad: Sequence[Damage]) -> Sequence[Damage]:
        """Return `bad` with files and offsets, where these are known."""
        return bad

    def bad_chunks(self) -> Iterator[BadChunk]:
        """Yield the bad chunks, in ascending order of numbers."""
        bad = self.located(sorted(self.result.bad, key=lambda each: each.number))
        for each, (first, stop) in zip(bad, self.spans(bad), strict=True):
            stop = self.repeats if stop and self.repeats else stop
            yield BadChunk(self.name, each.number, each.file, each.offset, first, stop, each.error)


def scans_of(source: Source, *, refuse_missing: bool) -> list[Scan]:
    """Return the scans that together read all of `source`."""
    if not isinstance(source, LaidOutSource) or not all(map(_can_be_scanned, source.parts)):
        return [_RecordScan(source)]
    scans = [_scan_of(part, len(source), refuse_missing=refuse_missing) for part in source.parts]
    if isinstance(source, Repeating) and len(source):
        for part in source.still_parts():
            scan = _scan_of(part, 1, refuse_missing=refuse_missing)
            scan.repeats = len(source)
            scans.append(scan)
    return scans


def _can_be_scanned(part: Part) -> bool:
    if isinstance(part, ArrayPart | BoxPart):
        return isinstance(part.reader, Checkable)
    return isinstance(part, ListPart)


def _scan_of(part: Any, length: int, *, refuse_missing: bool) -> Scan:
    if isinstance(part, ListPart):
        return _GroupScan(part, length)
    return _ChunkScan(part, length, part.reader.checks(), refuse_missing=refuse_missing)


class NeededChunks:
    """The chunks of a part that records lie in.

    Invariant: they come in ascending order, each once. If a part has very many records, all its chunks
    come.
    """

    def __init__(self, part: Part, length: int) -> None:
        self._part, self._length = part, length
        rows = isinstance(part, ArrayPart) and part.is_by_row
        self.straight = rows or isinstance(part, ListPart)
        """Whether all chunks are needed, and the records of a chunk are known without a search."""
        # Records of any lengths take up the whole array.
        whole = self.straight or (isinstance(part, ArrayPart) and part.lengths is not None)
        few = length <= _MOST_SEARCHED
        self._needed = self._marked() if few and not whole else None

    def _marked(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        needed = np.zeros(self._part.chunk_count, np.bool_)
        for begin in range(0, self._length, _SLAB):
            indices = np.arange(begin, min(begin + _SLAB, self._length))
            needed[self._part.needs(indices).chunks] = True
        return needed

    def __iter__(self) -> Iterator[IntArray]:
        """Yield their numbers, ascending, some at a time."""
        for begin in range(0, self._part.chunk_count, _SLAB):
            stop = min(begin + _SLAB, self._part.chunk_count)
            if self._needed is None:
                yield np.arange(begin, stop)
            else:
                yield begin + np.flatnonzero(self._needed[begin:stop])

    @property
    def decoded_bytes(self) -> int:
        """Bytes in memory of all these chunks."""
        part = self._part
        if isinstance(part, ArrayPart) and self.straight:
            return part.rows * part.row_bytes
        return sum(int(part.memory_bytes(chunks).sum()) for chunks in self)

    def records(self, chunks: Sequence[int]) -> list[tuple[int, int]]:
        """Return the first record in each chunk and one past the last; `(0, 0)` if it has no record."""
        part = self._part
        if isinstance(part, ArrayPart) and self.straight:
            return [part.bounds(chunk) for chunk in chunks]
        if not chunks:
            return []
        if self._length <= _MOST_SEARCHED:
            # Damaged offsets of rows are reported by the scan that reads them.
            with contextlib.suppress(ReadError):
                return self._searched(chunks)
        return [(0, self._length)] * len(chunks)

    def _searched(self, chunks: Sequence[int]) -> list[tuple[int, int]]:
        part = self._part
        wanted, which = np.unique(np.asarray(chunks, np.int64), return_inverse=True)
        first = np.full(len(wanted), self._length, np.int64)
        stop = np.zeros(len(wanted), np.int64)
        for begin in range(0, self._length, _SLAB):
            indices = np.arange(begin, min(begin + _SLAB, self._length))
            needs = part.needs(indices)
            at = np.minimum(np.searchsorted(wanted, needs.chunks), len(wanted) - 1)
            hit = wanted[at] == needs.chunks
            np.minimum.at(first, at[hit], indices[needs.records[hit]])
            np.maximum.at(stop, at[hit], indices[needs.records[hit]] + 1)
        first = np.minimum(first, stop)
        return list(zip(first[which].tolist(), stop[which].tolist(), strict=True))


def most_chunk_bytes() -> int:
    """Return the largest size in memory that a chunk may have; larger ones are refused."""
    most = machine_bytes()
    try:
        import resource  # not on Windows
    except ImportError:
        return most // 4
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return (most if limit == resource.RLIM_INFINITY else min(most, limit)) // 4


class _ChunkScan(Scan):
    """Scans an array whose reader checks chunk by chunk; a chunk of the part may be a block of these."""

    def __init__(
        self, part: ArrayPart | BoxPart, length: int, checks: Checks, *, refuse_missing: bool
    ) -> None:
        self.name = part.name
        self._checks, self._refuse_missing = checks, refuse_missing
        self._needed = NeededChunks(part, length)
        chunks = math.prod(checks.grid)
        # Chunks are numbered in C order, so the chunks of a block of rows follow one another.
        self._across = chunks // max(1, part.chunk_count)
        self._most = most_chunk_bytes()
        self.waits = checks.waits

    @property
    def total_bytes(self) -> int:
        return self._needed.decoded_bytes

    def tasks(self) -> Iterator[ScanTask]:
        size = self._checks.chunk_bytes
        count = max(1, min(_MOST_CHUNKS, TASK_BYTES // max(1, size)))
        # Memory holds the decoded chunk and the stored one, or what TensorStore keeps.
        held = 2 * size * count if size <= self._most else 0
        for chunks in self._chunks():
            for begin in range(0, len(chunks), count):
                some = chunks[begin : begin + count].tolist()
                done = self._cell_bytes(some)
                yield ScanTask(held, done, functools.partial(self._run, some, done))
        yield ScanTask(0, 0, self._orphans)

    def _chunks(self) -> Iterator[IntArray]:
        """Yield the numbers of all chunks, ascending, some at a time."""
        step = max(1, _SLAB // max(1, self._across))
        for chunks in self._needed:
            for begin in range(0, len(chunks), step):
                first = chunks[begin : begin + step] * self._across
                yield (first[:, None] + np.arange(self._across)).ravel()

    def _orphans(self, _: Callable[[], bool]) -> ScanResult:
        found = ScanResult()
        try:
            files = self._checks.orphans()
        except OSError as error:
            found.refuse(NO_CHUNK, error)
            return found
        for file in files:
            found.refuse(NO_CHUNK, ReadError(_STRAY, file=file))
        if self._refuse_missing and self._checks.misplaced:
            found.refuse(NO_CHUNK, ReadError(self._checks.misplaced))
        return found

    def _cell_bytes(self, chunks: list[int]) -> int:
        if _are_a_run(chunks):
            return self._checks.run_bytes(chunks[0], chunks[-1] + 1)
        return sum(map(self._checks.cell_bytes, chunks))

    def _run(self, chunks: list[int], cell_bytes: int, stopped: Callable[[], bool]) -> ScanResult:
        found = ScanResult()
        run = None
        # Several chunks in one task are small; they are a run if all of them are needed.
        if len(chunks) > 1 and _are_a_run(chunks):
            run = self._checks.check_run(chunks[0], chunks[-1] + 1)
        if run is not None and not (self._refuse_missing and run[0]):
            found.chunks, (found.missing, found.untold) = len(chunks), run
            found.decoded_bytes = cell_bytes
            return found
        for number in chunks:
            if stopped():
                break
            found.chunks += 1
            try:
                self._check(number, found)
            except OSError as error:
                found.refuse(number, error)
        return found

    def _check(self, number: int, found: ScanResult) -> None:
        checks = self._checks
        if checks.chunk_bytes > self._most:
            stored = checks.is_stored(number)
            if stored is not False:
                raise ReadError(
                    f"a chunk is to have {checks.chunk_bytes:,} bytes, and this process has memory"
                    f" for {self._most:,}; correct the metadata of the array or, if they are right,"
                    " write it in smaller chunks",
                    file=checks.file(number),
                )
        else:
            stored = checks.check(number)
            found.decoded_bytes += checks.cell_bytes(number)
        if stored is None:
            found.untold += 1
        elif not stored:
            found.missing += 1
            if self._refuse_missing:
                raise ReadError(
                    "it is not stored, and its values read as the fill value; write it or, if this is"
                    " intended, verify with missing='fill'",
                    file=checks.file(number),
                )

    def spans(self, bad: Sequence[Damage]) -> list[tuple[int, int]]:
        of_chunks = [each for each in bad if each.number != NO_CHUNK]
        spans = self._needed.records([each.number // self._across for each in of_chunks])
        found = [(0, 0)] * (len(bad) - len(spans))
        for each, (first, stop) in zip(of_chunks, spans, strict=True):
            if each.records is not None and self._needed.straight:
                # The error may name the lost records of a large chunk.
                low, high = max(first, each.records[0]), min(stop, each.records[1])
                first, stop = (low, high) if low < high else (first, stop)
            found.append((first, stop))
        return found


class _GroupScan(Scan):
    """Scans a part whose chunks are lists of records."""

    def __init__(self, part: ListPart, length: int) -> None:
        self.name = part.name
        self._part, self._needed = part, NeededChunks(part, length)
        self._places = part.places_of_chunks() if isinstance(part, ChunkLocator) else None
        self._check = part.checker() if isinstance(part, GroupChecker) else None
        self.waits = self._places is None

    @property
    def total_bytes(self) -> int:
        return self._needed.decoded_bytes

    def tasks(self) -> Iterator[ScanTask]:
        most = most_chunk_bytes()
        for chunks in self._needed:
            estimates = self._part.memory_bytes(chunks)
            places = None if self._places is None else self._places(chunks)
            sizes = estimates if places is None else np.maximum(estimates, places.decoded_bytes)
            absurd = sizes > most
            if places is not None:
                absurd = absurd | _unbelievable(places)
            for k in np.flatnonzero(absurd).tolist():
                number, said = int(chunks[k]), int(sizes[k])
                yield ScanTask(0, 0, functools.partial(_refused, number, said))
            fine = np.flatnonzero(~absurd)
            for some in _grouped(sizes[fine]):
                numbers = chunks[fine[some]].tolist()
                held, done = (int(each[fine[some]].sum()) for each in (sizes, estimates))
                yield ScanTask(2 * held, done, functools.partial(self._run, numbers))

    def _run(self, numbers: list[int], stopped: Callable[[], bool]) -> ScanResult:
        found = ScanResult()
        try:
            size = self._decoded(numbers)
        except (OSError, MemoryError) as error:
            if len(numbers) == 1:
                found.chunks = 1
                found.refuse(numbers[0], error)
                return found
        else:
            found.chunks = len(numbers)
            found.decoded_bytes = size
            return found
        for number in numbers:
            if stopped():
                break
            found.add(self._run([number], stopped))
        return found

    def _decoded(self, numbers: list[int]) -> int:
        """Decode chunks, and return the bytes of their records."""
        if self._check is not None:
            return self._check(numbers)
        groups = self._part.start(numbers, InlineExecutor()).result()
        return bytes_of([record for group in groups for record in group])

    def spans(self, bad: Sequence[Damage]) -> list[tuple[int, int]]:
        return self._needed.records([each.number for each in bad])

    def located(self, bad: Sequence[Damage]) -> Sequence[Damage]:
        if self._places is None or not bad:
            return bad
        places = self._places(np.array([each.number for each in bad], np.int64))
        return [
            dataclasses.replace(each, file=file, offset=None if offset < 0 else offset)
            for each, file, offset in zip(bad, places.files, places.offsets.tolist(), strict=True)
        ]


class _RecordScan(Scan):
    """Scans a source without parts; its chunks are its records."""

    def __init__(self, source: Source) -> None:
        self._source, self._length = source, len(source)
        self._one_by_one = isinstance(source, ForeignDataSource) and not source.batched
        self._each_bytes = _UNKNOWN_BYTES  # mean size of the records read so far

    @property
    def total_bytes(self) -> None:
        return None

    def tasks(self) -> Iterator[ScanTask]:
        begin = 0
        while begin < self._length:
            count = max(1, min(_MOST_RECORDS, TASK_BYTES // max(1, self._each_bytes)))
            stop = min(begin + count, self._length)
            held = 2 * (stop - begin) * self._each_bytes
            yield ScanTask(held, 0, functools.partial(self._run, begin, stop))
            begin = stop

    def _run(self, begin: int, stop: int, stopped: Callable[[], bool]) -> ScanResult:
        found = ScanResult()
        # A range that cannot be read is halved until the bad records are found.
        left = [(k, k + 1) for k in range(stop - 1, begin - 1, -1)] if self._one_by_one else []
        left = left or [(begin, stop)]
        while left and not stopped():
            first, end = left.pop()
            try:
                size = bytes_of(self._source.read(np.arange(first, end)))
            except _DATA_ERRORS as error:
                if end - first > 1:
                    middle = (first + end) // 2
                    left += [(middle, end), (first, middle)]
                    continue
                found.refuse(first, error)
                size = 0
            found.chunks += end - first
            found.decoded_bytes += size
        self._each_bytes = max(1, found.decoded_bytes // max(1, found.chunks))
        return found


def _are_a_run(chunks: list[int]) -> bool:
    return chunks[-1] - chunks[0] == len(chunks) - 1


def _grouped(sizes: IntArray) -> Iterator[slice]:
    """Yield runs of chunks, each of at most `TASK_BYTES` or one chunk."""
    ends = np.cumsum(sizes)
    begin = held = 0
    while begin < len(ends):
        fitting = int(np.searchsorted(ends, held + TASK_BYTES, side="right"))
        stop = min(max(begin + 1, fitting), begin + _MOST_CHUNKS)
        yield slice(begin, min(stop, len(ends)))
        begin, held = stop, int(ends[min(stop, len(ends)) - 1])


def _unbelievable(places: Places) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which chunks declare a size that is impossible, or meant to exhaust the memory."""
    declared = places.decoded_bytes
    large = declared > _ALWAYS_BELIEVED_BYTES
    found: np.ndarray[Any, np.dtype[np.bool_]] = large & (
        declared // _MOST_EXPANSION > places.stored_bytes
    )
    return found


def _refused(number: int, size: int, _: Callable[[], bool]) -> ScanResult:
    found = ScanResult(chunks=1)
    found.refuse(
        number,
        ReadError(
            f"it claims to decode to {size:,} bytes, which is absurd for its size in the file or more"
            " than the memory can hold; it is not read"
        ),
    )
    return found


def bytes_of(columns: Columns) -> int:
    """Count the bytes of columns or records, as far as they can be measured."""
    if isinstance(columns, dict):
        return sum(map(bytes_of, columns.values()))
    if isinstance(columns, list | tuple):
        # Nearly all records are bytes, and there are many.
        each: Callable[[Any], int] = len if set(map(type, columns)) == {bytes} else bytes_of
        return sum(map(each, columns))
    if isinstance(columns, np.ndarray | np.generic):
        return int(columns.nbytes)
    return len(columns) if isinstance(columns, bytes | bytearray | str) else 8
