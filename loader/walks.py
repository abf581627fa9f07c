"""Walks: going through all that a source has stored, in tasks that can run side by side.

A walk is over one part of a source, or over a source without parts. It cuts what there is into
tasks; a task reads some pieces and drops them, and tells what it found. Then the walk tells which
records the bad pieces belong to.

Invariant: over all tasks of a walk each piece that a record lies in is read once, but those that a
first attempt, of several at once, could not read.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from windrow.errors import ReadError
from windrow.memory import machine_bytes
from windrow.needed import NeededPieces
from windrow.sources.base import Columns, IntArray, Source
from windrow.sources.boxes import BoxPart
from windrow.sources.checks import Checkable, Checks, Placed, Places, Repeating
from windrow.sources.foreign import ForeignDataSource
from windrow.sources.pieces import ArrayPart, Box, LaidOutSource, ListPart, Part, Span
from windrow.sources.threads import Here

# So much is decoded in one task, so that starting it costs little.
TASK_BYTES: Final = 8 * 2**20
# A call of the array_record package costs some 100 us, whatever the number of its records, and so do
# the looking up and the decoding of many small chunks.
_MOST_PIECES: Final = 1024
# So many chunks are numbered at a time.
_SLAB: Final = 2**16
_MOST_RECORDS: Final = 1024
_UNKNOWN_BYTES: Final = 2**20
# A group that says that it decodes to so much more than it takes in its file is not believed.
_MOST_EXPANSION: Final = 1000
_ALWAYS_BELIEVED_BYTES: Final = 256 * 2**20
# What is wrong with data, where a source of somebody else's says it; anything else is a fault of
# the program.
_DATA_ERRORS: Final = (OSError, ValueError, EOFError, zlib.error, struct.error)


NO_PIECE: Final = -1
"""Number of what is wrong with an array and with none of its pieces; it comes before theirs."""
_STRAY: Final = (
    "the file is no chunk of the array as its metadata has it: the shape or the shape of chunks is"
    " wrong, or the file is left over; correct the metadata, or remove the file"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Bad:
    """A piece that can not be read, by its number in the walk, and what is wrong."""

    number: int
    error: str
    file: str | None
    offset: int | None
    records: tuple[int, int] | None = None  # as the error says it


@dataclasses.dataclass(frozen=True, slots=True)
class Placing:
    """Where a bad piece belongs: records `[first, stop)`, and its place in a file if known."""

    first: int
    stop: int
    file: str | None
    offset: int | None


@dataclasses.dataclass(slots=True)
class Found:
    """What a task found, or several did."""

    pieces: int = 0
    decoded_bytes: int = 0
    missing: int = 0
    untold: int = 0
    bad: list[Bad] = dataclasses.field(default_factory=list)

    def add(self, other: Found) -> None:
        """Count in what another one found."""
        self.pieces += other.pieces
        self.decoded_bytes += other.decoded_bytes
        self.missing += other.missing
        self.untold += other.untold
        self.bad += other.bad

    def refuse(self, number: int, error: Exception) -> None:
        """Note a piece that can not be read."""
        file = offset = records = None
        said = str(error) or type(error).__name__
        if isinstance(error, ReadError):
            file, offset, said = error.file, error.offset, error.why or said
            records = error.records
        elif isinstance(error, OSError):
            file = error.filename if isinstance(error.filename, str) else None
        self.bad.append(Bad(number, said, file, offset, records))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Some pieces to read.

    Args:
        held_bytes: Memory that it takes while it runs; an estimate.
        done_bytes: What it adds to the progress.
        run: Reads them. It asks `stopped` between pieces, and may then leave the rest out.
    """

    held_bytes: int
    done_bytes: int
    run: Callable[[Callable[[], bool]], Found]


class Walk(abc.ABC):
    """One part of a source, or a source, to be gone through once."""

    name: str = ""
    """Name of the array in the source."""

    @property
    @abc.abstractmethod
    def waits(self) -> bool:
        """Whether its tasks wait for something else than this machine's cores."""

    @property
    @abc.abstractmethod
    def total_bytes(self) -> int | None:
        """The sum of its tasks' `done_bytes`, about; None where only reading tells."""

    @abc.abstractmethod
    def tasks(self) -> Iterator[Task]:
        """The tasks, in order, made as they are asked for."""

    @abc.abstractmethod
    def places(self, bad: Sequence[Bad]) -> list[Placing]:
        """Where each of `bad`, in ascending order of numbers, belongs."""


def walks_of(source: Source, *, refuse_missing: bool) -> list[Walk]:
    """What to go through for all of `source`."""
    if not isinstance(source, LaidOutSource):
        return [_RecordWalk(source)]
    walks = [_walk_of(part, len(source), refuse_missing=refuse_missing) for part in source.parts]
    if isinstance(source, Repeating) and len(source):
        still = (_walk_of(part, 1, refuse_missing=refuse_missing) for part in source.still_parts())
        walks += [_StillWalk(walk, len(source)) for walk in still]
    return walks


def _walk_of(part: Part, length: int, *, refuse_missing: bool) -> Walk:
    if isinstance(part, ListPart):
        return _GroupWalk(part, length)
    if not isinstance(part, ArrayPart | BoxPart):
        raise TypeError(f"verify: a part of type {type(part).__name__} is not known")
    if isinstance(part.reader, Checkable):
        return _ChunkWalk(part, length, part.reader.checks(), refuse_missing=refuse_missing)
    return _PieceWalk(part, length)


def most_piece_bytes() -> int:
    """The size in memory from which on a piece is refused: it would not fit."""
    most = machine_bytes()
    try:
        import resource  # not on Windows
    except ImportError:
        return most // 4
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return (most if limit == resource.RLIM_INFINITY else min(most, limit)) // 4


class _ChunkWalk(Walk):
    """An array whose reader checks chunk by chunk; pieces are blocks of chunks, or chunks."""

    def __init__(
        self, part: ArrayPart | BoxPart, length: int, checks: Checks, *, refuse_missing: bool
    ) -> None:
        self.name = part.name
        self._checks, self._refuse_missing = checks, refuse_missing
        self._pieces = NeededPieces(part, length)
        chunks = math.prod(checks.grid)
        # Chunks are numbered in C order, so those of a block of rows follow one another.
        self._across = chunks // max(1, part.piece_count)
        self._most = most_piece_bytes()

    @property
    def waits(self) -> bool:
        return self._checks.waits

    @property
    def total_bytes(self) -> int:
        return self._pieces.decoded_bytes

    def tasks(self) -> Iterator[Task]:
        size = self._checks.chunk_bytes
        count = max(1, min(_MOST_PIECES, TASK_BYTES // max(1, size)))
        # Beside what is decoded there is what is stored, or what TensorStore keeps.
        held = 2 * size * count if size <= self._most else 0
        for chunks in self._chunks():
            for begin in range(0, len(chunks), count):
                some = chunks[begin : begin + count].tolist()
                done = self._cell_bytes(some)
                yield Task(held, done, functools.partial(self._run, some, done))
        yield Task(0, 0, self._strays)

    def _chunks(self) -> Iterator[IntArray]:
        """The numbers of all chunks, ascending, some at a time."""
        step = max(1, _SLAB // max(1, self._across))
        for pieces in self._pieces:
            for begin in range(0, len(pieces), step):
                first = pieces[begin : begin + step] * self._across
                yield (first[:, None] + np.arange(self._across)).ravel()

    def _strays(self, _: Callable[[], bool]) -> Found:
        found = Found()
        try:
            files = self._checks.strays()
        except OSError as error:
            found.refuse(NO_PIECE, error)
            return found
        for file in files:
            found.refuse(NO_PIECE, ReadError(_STRAY, file=file))
        return found

    def _cell_bytes(self, chunks: list[int]) -> int:
        if _are_a_run(chunks):
            return self._checks.run_bytes(chunks[0], chunks[-1] + 1)
        return sum(map(self._checks.cell_bytes, chunks))

    def _run(self, chunks: list[int], cell_bytes: int, stopped: Callable[[], bool]) -> Found:
        found = Found()
        run = None
        # More than one chunk is several small ones, and all of a run where all are needed.
        if len(chunks) > 1 and _are_a_run(chunks):
            run = self._checks.check_run(chunks[0], chunks[-1] + 1)
        if run is not None and not (self._refuse_missing and run[0]):
            found.pieces, (found.missing, found.untold) = len(chunks), run
            found.decoded_bytes = cell_bytes
            return found
        for number in chunks:
            if stopped():
                break
            found.pieces += 1
            try:
                self._check(number, found)
            except OSError as error:
                found.refuse(number, error)
        return found

    def _check(self, number: int, found: Found) -> None:
        checks = self._checks
        if checks.chunk_bytes > self._most:
            stored = checks.is_stored(number)
            if stored is not False:
                raise ReadError(
                    f"a chunk is to have {checks.chunk_bytes:,} bytes, and this process has memory"
                    f" for {self._most:,}; if the array is meant to be so, write it in smaller"
                    " chunks, else correct its metadata",
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
                    "it is not stored, and its values read as the fill value; write it, or verify"
                    " with missing='fill' if that is meant",
                    file=checks.file(number),
                )

    def places(self, bad: Sequence[Bad]) -> list[Placing]:
        of_chunks = [each for each in bad if each.number != NO_PIECE]
        spans = self._pieces.records([each.number // self._across for each in of_chunks])
        found = [Placing(0, 0, each.file, each.offset) for each in bad[: len(bad) - len(spans)]]
        for each, (first, stop) in zip(of_chunks, spans, strict=True):
            if each.records is not None and self._pieces.straight:
                # Of a large piece it may be known which records are lost.
                low, high = max(first, each.records[0]), min(stop, each.records[1])
                first, stop = (low, high) if low < high else (first, stop)
            found.append(Placing(first, stop, each.file, each.offset))
        return found


class _PieceWalk(Walk):
    """An array of which only pieces as a whole can be read."""

    def __init__(self, part: ArrayPart | BoxPart, length: int) -> None:
        self.name = part.name
        self._part, self._pieces = part, NeededPieces(part, length)
        self._most = most_piece_bytes()

    @property
    def waits(self) -> bool:
        return True

    @property
    def total_bytes(self) -> int:
        return self._pieces.decoded_bytes

    def tasks(self) -> Iterator[Task]:
        for pieces in self._pieces:
            sizes = self._part.decoded_bytes(pieces)
            for some in _grouped(sizes):
                numbers, size = pieces[some].tolist(), int(sizes[some].sum())
                yield Task(
                    2 * int(sizes[some].max()),
                    size,
                    functools.partial(self._run, numbers),
                )

    def _run(self, numbers: list[int], stopped: Callable[[], bool]) -> Found:
        found = Found()
        for number in numbers:
            if stopped():
                break
            found.pieces += 1
            try:
                found.decoded_bytes += self._read(number)
                found.untold += 1
            except OSError as error:
                found.refuse(number, error)
        return found

    def _read(self, number: int) -> int:
        part = self._part
        size = int(part.decoded_bytes(np.array([number])).sum())
        if size > self._most:
            raise ReadError(
                f"a piece is to have {size:,} bytes, and this process has memory for {self._most:,}"
            )
        if isinstance(part, ArrayPart):
            first, stop = part.bounds(number)
            out = np.empty((stop - first, *part.row_shape), part.dtype)
            part.reader.start([Span(first, stop, out)], Here()).result()
        else:
            begin, end = part.bounds(number)
            out = np.empty([b - a for a, b in zip(begin, end, strict=True)], part.dtype)
            part.reader.start([Box(begin, out)], Here()).result()
        return size

    def places(self, bad: Sequence[Bad]) -> list[Placing]:
        spans = self._pieces.records([each.number for each in bad])
        return [
            Placing(*span, each.file, each.offset) for each, span in zip(bad, spans, strict=True)
        ]


class _StillWalk(Walk):
    """The walk over record 0 of a part, where every record has the same."""

    def __init__(self, walk: Walk, length: int) -> None:
        self.name = walk.name
        self._walk, self._length = walk, length

    @property
    def waits(self) -> bool:
        return self._walk.waits

    @property
    def total_bytes(self) -> int | None:
        return self._walk.total_bytes

    def tasks(self) -> Iterator[Task]:
        return self._walk.tasks()

    def places(self, bad: Sequence[Bad]) -> list[Placing]:
        return [
            dataclasses.replace(at, stop=self._length if at.stop else 0)
            for at in self._walk.places(bad)
        ]


class _GroupWalk(Walk):
    """A part whose pieces are lists of records."""

    def __init__(self, part: ListPart, length: int) -> None:
        self.name = part.name
        self._part, self._pieces = part, NeededPieces(part, length)
        self._places = part.places_of_pieces() if isinstance(part, Placed) else None

    @property
    def waits(self) -> bool:
        return self._places is None

    @property
    def total_bytes(self) -> int:
        return self._pieces.decoded_bytes

    def tasks(self) -> Iterator[Task]:
        most = most_piece_bytes()
        for pieces in self._pieces:
            estimates = self._part.decoded_bytes(pieces)
            places = None if self._places is None else self._places(pieces)
            sizes = estimates if places is None else np.maximum(estimates, places.decoded_bytes)
            absurd = sizes > most
            if places is not None:
                absurd = absurd | _unbelievable(places)
            for k in np.flatnonzero(absurd).tolist():
                number, said = int(pieces[k]), int(sizes[k])
                yield Task(0, 0, functools.partial(_refused, number, said))
            fine = np.flatnonzero(~absurd)
            for some in _grouped(sizes[fine]):
                numbers = pieces[fine[some]].tolist()
                held, done = (int(each[fine[some]].sum()) for each in (sizes, estimates))
                yield Task(2 * held, done, functools.partial(self._run, numbers))

    def _run(self, numbers: list[int], stopped: Callable[[], bool]) -> Found:
        found = Found()
        try:
            groups = self._part.start(numbers, Here()).result()
        except OSError as error:
            if len(numbers) == 1:
                found.pieces = 1
                found.refuse(numbers[0], error)
                return found
        else:
            found.pieces = len(numbers)
            found.decoded_bytes = bytes_of_records([record for group in groups for record in group])
            return found
        for number in numbers:
            if stopped():
                break
            found.add(self._run([number], stopped))
        return found

    def places(self, bad: Sequence[Bad]) -> list[Placing]:
        numbers = [each.number for each in bad]
        spans = self._pieces.records(numbers)
        if self._places is None:
            pairs = zip(bad, spans, strict=True)
            return [Placing(*span, each.file, each.offset) for each, span in pairs]
        places = self._places(np.array(numbers, np.int64))
        offsets = (None if at < 0 else at for at in places.offsets.tolist())
        rows = zip(spans, places.files, offsets, strict=True)
        return [Placing(*span, file, offset) for span, file, offset in rows]


class _RecordWalk(Walk):
    """A source without parts: its pieces are its records."""

    def __init__(self, source: Source) -> None:
        self._source, self._length = source, len(source)
        self._alone = isinstance(source, ForeignDataSource) and not source.batched
        self._each_bytes = _UNKNOWN_BYTES  # of a record, as far as they were seen

    @property
    def waits(self) -> bool:
        return True

    @property
    def total_bytes(self) -> None:
        return None

    def tasks(self) -> Iterator[Task]:
        begin = 0
        while begin < self._length:
            count = max(1, min(_MOST_RECORDS, TASK_BYTES // max(1, self._each_bytes)))
            stop = min(begin + count, self._length)
            held = 2 * (stop - begin) * self._each_bytes
            yield Task(held, 0, functools.partial(self._run, begin, stop))
            begin = stop

    def _run(self, begin: int, stop: int, stopped: Callable[[], bool]) -> Found:
        found = Found()
        # What is narrowed down to the bad records, by halving.
        left = [(k, k + 1) for k in range(stop - 1, begin - 1, -1)] if self._alone else []
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
            found.pieces += end - first
            found.decoded_bytes += size
        self._each_bytes = max(1, found.decoded_bytes // max(1, found.pieces))
        return found

    def places(self, bad: Sequence[Bad]) -> list[Placing]:
        return [Placing(each.number, each.number + 1, each.file, each.offset) for each in bad]


def _are_a_run(chunks: list[int]) -> bool:
    return chunks[-1] - chunks[0] == len(chunks) - 1


def _grouped(sizes: IntArray) -> Iterator[slice]:
    """Runs of at most `TASK_BYTES`, or of one piece."""
    ends = np.cumsum(sizes)
    begin = held = 0
    while begin < len(ends):
        fitting = int(np.searchsorted(ends, held + TASK_BYTES, side="right"))
        stop = min(max(begin + 1, fitting), begin + _MOST_PIECES)
        yield slice(begin, min(stop, len(ends)))
        begin, held = stop, int(ends[min(stop, len(ends)) - 1])


def _unbelievable(places: Places) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which pieces say of themselves what can not be, or may well be meant to fill the memory."""
    told = places.decoded_bytes
    large = told > _ALWAYS_BELIEVED_BYTES
    found: np.ndarray[Any, np.dtype[np.bool_]] = large & (
        told // _MOST_EXPANSION > places.stored_bytes
    )
    return found


def _refused(number: int, size: int, _: Callable[[], bool]) -> Found:
    found = Found(pieces=1)
    found.refuse(
        number,
        ReadError(
            f"it says that it decodes to {size:,} bytes, which is absurd for its size in the file"
            " or more than there is memory for; it is not read"
        ),
    )
    return found


def bytes_of_records(records: list[Any]) -> int:
    """Bytes of what can be measured in records."""
    if set(map(type, records)) == {bytes}:
        return sum(map(len, records))  # as nearly all are, and there are many
    return sum(map(bytes_of, records))


def bytes_of(columns: Columns) -> int:
    """Bytes of what can be measured in columns or records."""
    if isinstance(columns, dict):
        return sum(map(bytes_of, columns.values()))
    if isinstance(columns, list | tuple):
        return sum(map(bytes_of, columns))
    if isinstance(columns, np.ndarray | np.generic):
        return int(columns.nbytes)
    return len(columns) if isinstance(columns, bytes | bytearray | str) else 8
