"""The records of ArrayRecord files: which record group each lies in, and reading them.

A record group is a chunk of a file: it is stored, checked and decoded as one. Reading goes through
the array_record package, many records per call.

Invariant: pieces are the record groups of the files in the order of their records, of each range of
a file those it touches, and of those only the records in the range; a record that can not be read
is an error that names file, group and record, never other bytes.
"""

from __future__ import annotations

import bisect
import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import math
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final

import numpy as np

from windrow.errors import ArgumentError, NotFoundError, ReadError
from windrow.sources.array_record_files import WHAT, FileFacts, FileRange, chunk_places
from windrow.sources.base import IntArray
from windrow.sources.checks import Places
from windrow.sources.pieces import ListPart, Needs
from windrow.sources.process import refuse_forked

LIBRARY: Final = "array_record"
_READING_THREADS: Final = 4
_MOST_OPEN_FILES: Final = 4096
_BLOCK: Final = 65536
# In one call of up to 64 records the package hands each to a thread of its own, for some 15 us.
# Read singly, a record costs 2 us, and 1.2 us per 1,000 chunks of its file, plus its decoding.
_SINGLY_RECORDS: Final = 64
_SINGLY_CHUNKS: Final = 8_000
_SINGLY_BYTES: Final = 8_192
# Of a `bytes` object beside its content, and of its place in a list.
_OBJECT_BYTES: Final = 41
# Nothing that compresses better is worth planning for, and a damaged header may say anything.
_MOST_EXPANSION: Final = 1000.0


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class File:
    """A file that was opened and found whole.

    Args:
        path: Where it is.
        facts: What its ends say.
        records: Number of its records.
        group: Records in each of its groups but the last, which may be shorter.
        padded: Whether each chunk is padded to the end of a block.
    """

    path: str
    facts: FileFacts
    records: int
    group: int
    padded: bool

    @property
    def singly(self) -> bool:
        """Whether a few of its records are read one by one at less cost than in one call."""
        small = self.stored_bytes_each <= _SINGLY_BYTES
        return self.group == 1 and small and self.facts.chunks <= _SINGLY_CHUNKS

    @property
    def stored_bytes_each(self) -> float:
        """Bytes of a record in the file, on average."""
        return self.facts.data_bytes / max(1, self.records)

    @property
    def decoded_bytes_each(self) -> float:
        """Bytes of a record in memory: an estimate, as if all groups compress like the first."""
        stored = self.facts.first_stored_bytes
        if self.padded:
            stored = math.ceil(stored / _BLOCK) * _BLOCK
        expansion = self.facts.first_decoded_bytes / max(1, stored)
        # Below 1 it is of headers alone, which do not count as data of other records.
        floor = 0.0 if self.padded else 1.0
        return self.stored_bytes_each * min(max(expansion, floor), _MOST_EXPANSION) + _OBJECT_BYTES


class RecordGroups(ListPart):
    """The records of ranges of files, in order; a piece is a record group.

    Args:
        ranges: Each with its `take`.
        files: The file of each range.
        options: For the package's reader.
    """

    name = ""

    def __init__(self, ranges: Sequence[FileRange], files: Sequence[File], *, options: str) -> None:
        self._files = tuple(files)
        self._readers = _Readers(options)
        takes = _ints(part.take or 0 for part in ranges)
        self._skips = _ints(part.skip for part in ranges)
        self._stops = self._skips + takes
        self._groups = _ints(file.group for file in files)
        # A record's position in its file, plus the shift of its range, is its index.
        self._ends = np.cumsum(takes)
        # Plain ints beside the array: bisect on a list is faster for single records.
        self._ends_list = self._ends.tolist()
        self._shifts = self._ends - takes - self._skips
        self._first_groups = self._skips // self._groups
        counts = np.where(takes > 0, -(-self._stops // self._groups) - self._first_groups, 0)
        self._piece_ends = np.cumsum(counts)
        self._first_pieces = self._piece_ends - counts
        self._alone = bool(np.all(self._groups[takes > 0] == 1))
        self._decoded = np.asarray([file.decoded_bytes_each for file in files])
        self._stored = np.asarray([file.stored_bytes_each for file in files])
        self._records_in_file = _ints(file.records for file in files)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def piece_count(self) -> int:
        return int(self._piece_ends[-1])

    @property
    def alone(self) -> bool:
        return self._alone

    def needs(self, indices: IntArray) -> Needs:
        at, inside = self._located(indices)
        groups = inside // self._groups[at]
        pieces = groups - self._first_groups[at] + self._first_pieces[at]
        return Needs(np.arange(len(indices)), pieces)

    def places(self, indices: IntArray) -> IntArray:
        at, inside = self._located(indices)
        size = self._groups[at]
        first: IntArray = np.maximum(inside // size * size, self._skips[at])
        return inside - first

    def decoded_bytes(self, pieces: IntArray) -> IntArray:
        at, first, stop = self._bounds(pieces)
        found: IntArray = np.ceil((stop - first) * self._decoded[at]).astype(np.int64)
        return found

    def stored_bytes(self, pieces: IntArray) -> IntArray:
        at, first, _ = self._bounds(pieces)
        size = self._groups[at]
        # The group is read as a whole, whatever the range wants of it.
        begin = first // size * size
        records = np.minimum(begin + size, self._records_in_file[at]) - begin
        found: IntArray = np.ceil(records * self._stored[at]).astype(np.int64)
        return found

    def blocks(self) -> IntArray:
        """Bounds of the pieces as indices of records: 0, ..., length."""
        starts = []
        for at in range(len(self._files)):
            skip, stop, size = (int(a[at]) for a in (self._skips, self._stops, self._groups))
            if stop > skip:
                inside = np.arange(skip // size * size, stop, size, dtype=np.int64)
                inside[0] = skip
                inside += self._shifts[at]
                starts.append(inside)
        return np.concatenate([*starts, _ints([len(self)])])

    def read(self, indices: IntArray) -> list[bytes]:
        refuse_forked(LIBRARY, WHAT)
        if not len(indices):
            return []
        if len(indices) == 1 or len(self._files) == 1:
            one = bisect.bisect_right(self._ends_list, int(indices[0]))
            return self._read_file(one, indices - self._shifts[one])
        at, inside = self._located(indices)
        order = np.argsort(at, kind="stable")
        cuts = np.flatnonzero(np.diff(at[order])) + 1
        groups = list(
            zip(at[order[np.r_[0, cuts]]].tolist(), np.split(inside[order], cuts), strict=True)
        )
        records = self._read_files(groups)
        if bool(np.all(np.diff(order) > 0)):
            return records
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return list(operator.itemgetter(*back.tolist())(records))

    def start(self, pieces: Sequence[int], pool: Executor) -> Future[list[list[bytes]]]:
        return pool.submit(self._read_pieces, _ints(pieces))

    def places_of_pieces(self) -> Callable[[IntArray], Places]:
        """Tells where record groups are stored: reads the headers of their files, once."""
        walked: dict[str, IntArray] = {}

        def places(pieces: IntArray) -> Places:
            at, first, _ = self._bounds(pieces)
            groups = first // self._groups[at]
            found = np.full((len(pieces), 3), -1, np.int64)
            for number in set(at.tolist()):
                file = self._files[number]
                if file.path not in walked:
                    walked[file.path] = _walked(file)
                headers = walked[file.path]
                mine = (at == number) & (groups < len(headers))
                found[mine] = headers[groups[mine]]
            files = [self._files[number].path for number in at.tolist()]
            return Places(files, *found.T)

        return places

    def _read_pieces(self, pieces: IntArray) -> list[list[bytes]]:
        at, first, stop = self._bounds(pieces)
        counts = stop - first
        ends = np.cumsum(counts)
        # Whole groups, end to end: all those of a file are one call of the package.
        begins = first + self._shifts[at] - (ends - counts)
        records = self.read(np.repeat(begins, counts) + np.arange(counts.sum()))
        bounds = [0, *ends.tolist()]
        return [records[begin:end] for begin, end in itertools.pairwise(bounds)]

    def _located(self, indices: IntArray) -> tuple[IntArray, IntArray]:
        """The range that each record is in, and its position in the file."""
        if len(self._files) == 1:
            return np.zeros(len(indices), np.int64), indices - self._shifts[0]
        at = np.searchsorted(self._ends, indices, side="right")
        return at, indices - self._shifts[at]

    def _bounds(self, pieces: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """The range that each piece is in, and the positions `[first, stop)` it has in the file."""
        at = np.searchsorted(self._piece_ends, pieces, side="right")
        size = self._groups[at]
        begin = (pieces - self._first_pieces[at] + self._first_groups[at]) * size
        stop: IntArray = np.minimum(begin + size, self._stops[at])
        return at, np.maximum(begin, self._skips[at]), stop

    def _read_files(self, groups: list[tuple[int, IntArray]]) -> list[bytes]:
        """Records of each file, several files side by side, end to end."""
        if len(groups) == 1:
            return self._read_file(*groups[0])
        # A few runs of files, not a task per file: handing over costs more than a small read.
        size = -(-len(groups) // _READING_THREADS)
        runs = [groups[at : at + size] for at in range(0, len(groups), size)]
        futures = [self._readers.pool().submit(self._read_run, run) for run in runs[1:]]
        try:
            records = self._read_run(runs[0])
            for future in futures:
                records += future.result()
        finally:
            for future in futures:
                future.cancel()
        return records

    def _read_run(self, groups: list[tuple[int, IntArray]]) -> list[bytes]:
        return [record for at, inside in groups for record in self._read_file(at, inside)]

    def _read_file(self, at: int, inside: IntArray) -> list[bytes]:
        file, positions = self._files[at], inside.tolist()
        reader = self._readers.get(file)
        records: list[bytes] = []
        try:
            if len(positions) <= _SINGLY_RECORDS and file.singly:
                for position in positions:
                    records += reader.read([position])
            else:
                records = reader.read(positions)
        except RuntimeError as error:
            raise self._damage(at, reader, inside, error) from error
        # The package answers b"" in silence for records of a file that was cut off meanwhile.
        if b"" in records:
            check_unchanged(file)
        return records

    def _damage(self, at: int, reader: Any, inside: IntArray, error: RuntimeError) -> ReadError:
        file = self._files[at]
        # A group is checked as a whole, so one record tells of all of them.
        _, once = np.unique(inside // file.group, return_index=True)
        positions = inside[np.sort(once)].tolist()
        position, why = positions[0], str(error)
        for candidate in positions:
            try:
                reader.read([candidate])
            except RuntimeError as single:
                position, why = candidate, str(single)
                break
        first = position - position % file.group
        stop = min(first + file.group, file.records)
        span = f" (stored with records {first} to {stop - 1})"
        shift = int(self._shifts[at])
        skip, end = int(self._skips[at]), int(self._stops[at])
        return ReadError(
            f"{WHAT}: record {position} of {file.path}{span if file.group > 1 else ''}, record"
            f" {position + shift} of this source, can not be read: {why}."
            " The file is damaged: copy or write it again, or leave the record out",
            file=file.path,
            records=(max(first, skip) + shift, min(stop, end) + shift),
            why=why,
        )


def _walked(file: File) -> IntArray:
    """What the headers of a file's groups say, int64 `(groups, 3)`; fewer where one is damaged."""
    try:
        found = chunk_places(file.path, file.facts.chunks)
    except OSError:
        found = []
    # A damaged header may say anything.
    most = np.iinfo(np.int64).max
    return np.array([[min(n, most) for n in one] for one in found], np.int64).reshape(-1, 3)


def _ints(values: Any) -> IntArray:
    return np.fromiter(values, np.int64)


class _Readers:
    """Open readers by path, the least recently used closed first. Pickles as nothing open."""

    def __init__(self, options: str) -> None:
        self._options = options
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._open: collections.OrderedDict[str, Any] = collections.OrderedDict()
        self._most = _most_open_files()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, str]:
        return {"options": self._options}

    def __setstate__(self, state: dict[str, str]) -> None:
        self._options = state["options"]
        self._start()

    def pool(self) -> concurrent.futures.ThreadPoolExecutor:
        """The threads that read several files side by side."""
        with self._lock:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(
                    _READING_THREADS, thread_name_prefix="windrow-array-record"
                )
            return self._pool

    def get(self, file: File) -> Any:
        """An open reader of `file`."""
        with self._lock:
            reader = self._open.get(file.path)
            if reader is not None:
                self._open.move_to_end(file.path)
                return reader
        check_unchanged(file)
        reader = open_reader(file.path, self._options)
        if not reader.ok():
            raise ReadError(
                f"{WHAT}: {file.path} can not be opened again: {why_broken(reader)}",
                file=file.path,
            )
        with self._lock:
            reader = self._open.setdefault(file.path, reader)
            # Dropped, not closed: another thread may be reading with it, and the last one to let
            # go of it closes it.
            while len(self._open) > self._most:
                self._open.popitem(last=False)
        return reader


def _most_open_files() -> int:
    try:
        import resource  # not on Windows
    except ImportError:
        return 256
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_OPEN_FILES
    return max(8, min(_MOST_OPEN_FILES, soft // 2))


def open_reader(path: str, options: str) -> Any:
    """The package's reader of a file; it may be one that is not `ok()`.

    Raises:
        ArgumentError: If the package refuses the options.
    """
    # Imported where it is used: many chains never read this format.
    from array_record.python import array_record_module

    try:
        with _starting_patient_threads():
            return array_record_module.ArrayRecordReader(path, options)
    except (ValueError, RuntimeError) as error:
        raise ArgumentError(f"{WHAT}: reader_options {options!r} were refused: {error}") from error


@contextlib.contextmanager
def _starting_patient_threads() -> Iterator[None]:
    """Have threads that are started here wait for their turn, and push no other off its core.

    The package starts 64 threads with its first reader, and wakes all of them for each read. As
    ordinary threads they interrupt one another and those that run Python: on two cores with
    nothing else to do, reading and the chain behind it are then 6% to 11% slower.
    """
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield  # with a policy of its own the process knows better
        return
    _schedule_as(os.SCHED_BATCH)
    try:
        yield
    finally:
        _schedule_as(os.SCHED_OTHER)


def _schedule_as(policy: int) -> None:
    # A sandbox may forbid it; it is a matter of speed alone.
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, policy, os.sched_param(0))


def why_broken(reader: Any) -> str:
    """What is wrong with a reader that did not open; only a read tells."""
    try:
        reader.read([0])
    except (RuntimeError, IndexError) as error:
        return str(error)
    return "the array_record package could not open it and gives no reason"


def check_unchanged(file: File) -> None:
    """Refuse a file that is gone, or of another size than when it was opened.

    Raises:
        NotFoundError: If it is gone.
        ReadError: If its size changed.
    """
    try:
        size = os.stat(file.path).st_size
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{WHAT}: {file.path} is gone since the source was made; restore it, or make the"
            " source again"
        ) from error
    if size != file.facts.size_bytes:
        raise ReadError(
            f"{WHAT}: {file.path} changed since the source was made: {size:,} bytes, then"
            f" {file.facts.size_bytes:,}; restore it, or make the source again",
            file=file.path,
        )
