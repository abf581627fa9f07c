"""The records of ArrayRecord files, by the record group that holds each of them.

A record group is a chunk of a file: it is stored, checked and decoded as one. A `RecordReader` reads
it, through the array_record package or by byte ranges.

Invariant: the chunks are the record groups that the ranges of files touch, in the order of their
records, and each chunk has only the records within its range. A record that cannot be read is an
error that names the file, the group and the record; other bytes are never returned for it.
"""

from __future__ import annotations

import bisect
import copy
import itertools
import operator
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from windrow.core.threads import InlineExecutor, then
from windrow.errors import ReadError
from windrow.sources.array_record.chunks import WHAT
from windrow.sources.array_record.files import ArrayRecordFile, FileRange
from windrow.sources.base import IntArray
from windrow.sources.chunks import ListPart, Needs, partly_read
from windrow.sources.scan import Places

# The overhead of a `bytes` object, with its place in a list.
_OBJECT_BYTES: Final = 41


class DamagedRecordError(Exception):
    """A record cannot be read: the number of its range, its position in the file, and the reason.

    `offset` is the byte at which its chunk begins, if the file's index was read. `rest` is what else was
    read, with anything in place of what is damaged, and the error of each of these by number.
    """

    rest: tuple[list[Any], dict[int, DamagedRecordError]] | None = None

    def __init__(self, at: int, position: int, why: str, offset: int | None = None) -> None:
        super().__init__(at, position, why, offset)
        self.at, self.position, self.why, self.offset = at, position, why, offset


def partly_damaged(found: list[Any], errors: dict[int, DamagedRecordError]) -> DamagedRecordError:
    """The first of some errors, with the others and what was read."""
    error = copy.copy(errors[min(errors)])
    error.__cause__ = errors[min(errors)].__cause__
    error.rest = found, errors
    return error


class RecordReader(Protocol):
    """Reads records of files; a file is given by the number of its range."""

    def read(self, groups: Sequence[tuple[int, IntArray]]) -> list[bytes]:
        """Wait for the records at positions in each file, and return them end to end.

        Raises:
            DamagedRecordError: If the stored bytes of a record are damaged.
            ReadError: If a file cannot be read, or has changed.
        """
        ...

    def start(
        self, at: IntArray, first: IntArray, stop: IntArray, pool: Executor
    ) -> Future[Sequence[Sequence[bytes]]]:
        """Start reading record groups, on `pool` if it takes a thread.

        Args:
            at: For each group its file.
            first: Positions in the files: records `[first, stop)` of each group are wanted.
            stop: See `first`.
            pool: Threads.

        Returns:
            A future of the records of each group; it has the errors of `read`.
        """
        ...

    def places(self, at: IntArray, groups: IntArray) -> Places:
        """The places of record groups, which are numbered within the file of each range."""
        ...


@runtime_checkable
class CheckingReader(Protocol):
    """A `RecordReader` that checks record groups without giving out their records."""

    def check(self, at: IntArray, first: IntArray, stop: IntArray) -> int:
        """Decode the group of records `[first, stop)` of each file; return the bytes of all of them.

        Errors are as for `RecordReader.read`.
        """
        ...


@runtime_checkable
class GroupReader(Protocol):
    """A `RecordReader` whose groups are not lists."""

    def picked(
        self, decoded: Sequence[Sequence[bytes]], which: IntArray, places: IntArray
    ) -> list[bytes]:
        """The records `places[k]` of groups `decoded[which[k]]`."""
        ...


class RecordGroups(ListPart):
    """The records of ranges of files, in order; a chunk is a record group.

    Args:
        ranges: Each with its `take`.
        files: The file of each range.
        reader: Reads the records.
    """

    name = ""

    def __init__(
        self, ranges: Sequence[FileRange], files: Sequence[ArrayRecordFile], *, reader: RecordReader
    ) -> None:
        self._files = tuple(files)
        self._reader = reader
        takes = _ints(part.take or 0 for part in ranges)
        self._skips = _ints(part.skip for part in ranges)
        self._stops = self._skips + takes
        self._groups = _ints(file.group for file in files)
        # A record's position in its file, plus the shift of its range, is its index.
        self._ends = np.cumsum(takes)
        # Also as plain ints: bisect on a list is faster for single records.
        self._ends_list = self._ends.tolist()
        self._shifts = self._ends - takes - self._skips
        self._first_groups = self._skips // self._groups
        counts = np.where(takes > 0, -(-self._stops // self._groups) - self._first_groups, 0)
        self._chunk_ends = np.cumsum(counts)
        self._first_chunks = self._chunk_ends - counts
        self._alone = bool(np.all(self._groups[takes > 0] == 1))
        self._decoded = np.asarray([file.decoded_bytes_each for file in files])
        sizes = {
            file.facts.record_bytes for file, take in zip(files, takes, strict=True) if take > 0
        }
        self._record_bytes = sizes.pop() if len(sizes) == 1 else None
        self._stored = np.asarray([file.stored_bytes_each for file in files])
        self._records_in_file = _ints(file.records for file in files)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def chunk_count(self) -> int:
        return int(self._chunk_ends[-1])

    @property
    def alone(self) -> bool:
        return self._alone

    def needs(self, indices: IntArray) -> Needs:
        at, inside = self._located(indices)
        groups = inside // self._groups[at]
        chunks = groups - self._first_groups[at] + self._first_chunks[at]
        return Needs(np.arange(len(indices)), chunks)

    def places(self, indices: IntArray) -> IntArray:
        at, inside = self._located(indices)
        size = self._groups[at]
        first: IntArray = np.maximum(inside // size * size, self._skips[at])
        return inside - first

    @property
    def record_bytes(self) -> int | None:
        return self._record_bytes

    def decoded_bytes(self, chunks: IntArray) -> IntArray:
        if self._record_bytes is not None:
            return self._sizes(chunks, np.full(len(self._decoded), float(self._record_bytes)))
        return self._sizes(chunks, self._decoded)

    def memory_bytes(self, chunks: IntArray) -> IntArray:
        return self._sizes(chunks, self._decoded + _OBJECT_BYTES)

    def _sizes(self, chunks: IntArray, each: npt.NDArray[np.float64]) -> IntArray:
        at, first, stop = self._bounds(chunks)
        total: IntArray = np.ceil((stop - first) * each[at]).astype(np.int64)
        return total

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        at, first, _ = self._bounds(chunks)
        size = self._groups[at]
        # The whole group is read, even if the range has only some of its records.
        begin = first // size * size
        records = np.minimum(begin + size, self._records_in_file[at]) - begin
        total: IntArray = np.ceil(records * self._stored[at]).astype(np.int64)
        return total

    def blocks(self) -> IntArray:
        """Bounds of the chunks as indices of records: 0, ..., length."""
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
        if not len(indices):
            return []
        groups, back = self._grouped(indices)
        try:
            return _reordered(self._reader.read(groups), back)
        except DamagedRecordError as error:
            raise self._partly(error, back) from error

    def start(self, chunks: Sequence[int], pool: Executor) -> Future[Sequence[Sequence[bytes]]]:
        if not len(chunks):
            return InlineExecutor().submit(list)
        return then(self._reader.start(*self._bounds(_ints(chunks)), pool), self._checked)

    def _checked(self, done: Future[Sequence[Sequence[bytes]]]) -> Sequence[Sequence[bytes]]:
        try:
            return done.result()
        except DamagedRecordError as error:
            raise self._partly(error, None) from error

    def picked(
        self, decoded: Sequence[Sequence[bytes]], which: IntArray, places: IntArray
    ) -> list[bytes]:
        if isinstance(self._reader, GroupReader):
            return self._reader.picked(decoded, which, places)
        return super().picked(decoded, which, places)

    def checker(self) -> Callable[[Sequence[int]], int] | None:
        """A function that decodes record groups, drops them, and returns the bytes of their records.

        Groups of one record are read as quickly as they are checked.
        """
        reader = self._reader
        if not isinstance(reader, CheckingReader) or int(self._groups.max(initial=1)) == 1:
            return None

        def check(chunks: Sequence[int]) -> int:
            try:
                return reader.check(*self._bounds(_ints(chunks)))
            except DamagedRecordError as error:
                raise self._damage(error) from error

        return check

    def places_of_chunks(self) -> Callable[[IntArray], Places]:
        """A function that returns where record groups are stored."""

        def places(chunks: IntArray) -> Places:
            at, first, _ = self._bounds(chunks)
            return self._reader.places(at, first // self._groups[at])

        return places

    def _grouped(self, indices: IntArray) -> tuple[list[tuple[int, IntArray]], IntArray | None]:
        """Positions by range, and the order that restores the caller's; None if it is the same."""
        if not len(indices):
            return [], None
        if len(indices) == 1 or len(self._files) == 1:
            one = bisect.bisect_right(self._ends_list, int(indices[0]))
            return [(one, indices - self._shifts[one])], None
        at, inside = self._located(indices)
        order = np.argsort(at, kind="stable")
        cuts = np.flatnonzero(np.diff(at[order])) + 1
        groups = list(
            zip(at[order[np.r_[0, cuts]]].tolist(), np.split(inside[order], cuts), strict=True)
        )
        if bool(np.all(np.diff(order) > 0)):
            return groups, None
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return groups, back

    def _located(self, indices: IntArray) -> tuple[IntArray, IntArray]:
        """The range of each record, and its position in the file."""
        if len(self._files) == 1:
            return np.zeros(len(indices), np.int64), indices - self._shifts[0]
        at = np.searchsorted(self._ends, indices, side="right")
        return at, indices - self._shifts[at]

    def _bounds(self, chunks: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """The range of each chunk, and the positions `[first, stop)` of its records in the file."""
        if len(self._files) == 1:
            at = np.zeros(len(chunks), np.int64)
        else:
            at = np.searchsorted(self._chunk_ends, chunks, side="right")
        size = self._groups[at]
        begin = (chunks - self._first_chunks[at] + self._first_groups[at]) * size
        stop: IntArray = np.minimum(begin + size, self._stops[at])
        return at, np.maximum(begin, self._skips[at]), stop

    def _partly(self, damaged: DamagedRecordError, back: IntArray | None) -> ReadError:
        if damaged.rest is None:
            return self._damage(damaged)
        (found, each), damaged.rest = damaged.rest, None
        errors = {number: self._damage(error) for number, error in each.items()}
        if back is not None:
            places = {number: place for place, number in enumerate(back.tolist())}
            errors = {places[number]: error for number, error in errors.items()}
        return partly_read(_reordered(found, back), errors)

    def _damage(self, damaged: DamagedRecordError) -> ReadError:
        at, position, why = damaged.at, damaged.position, damaged.why
        file = self._files[at]
        first = position - position % file.group
        stop = min(first + file.group, file.records)
        chunk = position // file.group
        shown = file.shown
        span = f", stored with records {first} to {stop - 1}" if file.group > 1 else ""
        shift = int(self._shifts[at])
        skip, end = int(self._skips[at]), int(self._stops[at])
        return ReadError(
            f"{WHAT}: record {position} of {shown} (chunk {chunk}{span}), record"
            f" {position + shift} of this source, cannot be read: {why}."
            " The file is damaged: copy or write it again, or leave the record out",
            file=shown,
            offset=damaged.offset,
            records=(max(first, skip) + shift, min(stop, end) + shift),
            why=why,
        )


def started_by_records(
    start: Callable[[list[tuple[int, IntArray]]], Future[list[bytes]]],
    at: IntArray,
    first: IntArray,
    stop: IntArray,
) -> Future[Sequence[Sequence[bytes]]]:
    """Start reading record groups with a function that reads records; as `RecordReader.start`."""
    counts = stop - first
    ends = np.cumsum(counts)
    # Whole groups, end to end: neighbouring groups of a file are one part of the call.
    positions = np.repeat(first - (ends - counts), counts) + np.arange(counts.sum())
    cuts = np.flatnonzero(np.diff(at)) + 1
    files = at[np.r_[0, cuts]].tolist()
    parts = np.split(positions, ends[cuts - 1])
    bounds = list(itertools.pairwise([0, *ends.tolist()]))

    def cut(done: Future[list[bytes]]) -> list[list[bytes]]:
        try:
            records, damaged = done.result(), dict[int, DamagedRecordError]()
        except DamagedRecordError as error:
            if error.rest is None:
                raise
            (records, damaged), error.rest = error.rest, None
        found = [records[begin:end] for begin, end in bounds]
        if not damaged:
            return found
        owners = ends.searchsorted(list(damaged), side="right").tolist()
        raise partly_damaged(found, dict(zip(owners, damaged.values(), strict=True)))

    return then(start(list(zip(files, parts, strict=True))), cut)


def _reordered(records: list[bytes], back: IntArray | None) -> list[bytes]:
    if back is None:
        return records
    return list(operator.itemgetter(*back.tolist())(records))


def _ints(values: Any) -> IntArray:
    return np.fromiter(values, np.int64)
