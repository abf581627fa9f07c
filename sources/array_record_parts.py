"""The records of ArrayRecord files: which record group each lies in.

A record group is a chunk of a file: it is stored, checked and decoded as one. Reading is done by a
`RecordReader`: through the array_record package, or by byte ranges.

Invariant: pieces are the record groups of the files in the order of their records, of each range of
a file those it touches, and of those only the records in the range; a record that can not be read
is an error that names file, group and record, never other bytes.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
import operator
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final, Protocol

import numpy as np

from windrow.errors import NotFoundError, ReadError
from windrow.sources.array_record_chunks import BLOCK
from windrow.sources.array_record_ends import FileFacts
from windrow.sources.array_record_files import WHAT, FileRange
from windrow.sources.base import IntArray
from windrow.sources.checks import Places
from windrow.sources.pieces import ListPart, Needs
from windrow.sources.secrets import shown_url
from windrow.sources.threads import Here, then

# Of a `bytes` object beside its content, and of its place in a list.
_OBJECT_BYTES: Final = 41
# Nothing that compresses better is worth planning for, and a damaged header may say anything.
_MOST_EXPANSION: Final = 1000.0


class DamagedRecordError(Exception):
    """A record can not be read: the number of its range, its position in the file, and why."""

    def __init__(self, at: int, position: int, why: str) -> None:
        super().__init__(at, position, why)
        self.at, self.position, self.why = at, position, why


class RecordReader(Protocol):
    """Reads records of files, which are told by the number of their range."""

    def read(self, groups: Sequence[tuple[int, IntArray]]) -> list[bytes]:
        """Records at positions in each file, end to end. Waits.

        Raises:
            DamagedRecordError: If one of them can not be read for what is stored.
            ReadError: If a file can not be read, or changed.
        """
        ...

    def start(self, groups: Sequence[tuple[int, IntArray]], pool: Executor) -> Future[list[bytes]]:
        """Start to read, on `pool` if it takes a thread; what `read` gives, or its error."""
        ...

    def places(self, at: IntArray, groups: IntArray) -> Places:
        """Where record groups, numbered in the file of each range, are stored."""
        ...


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
    def shown(self) -> str:
        """Where it is, for people."""
        return shown_url(self.path)

    @property
    def stored_bytes_each(self) -> float:
        """Bytes of a record in the file, on average."""
        return self.facts.data_bytes / max(1, self.records)

    @property
    def decoded_bytes_each(self) -> float:
        """Bytes of a record in memory; else an estimate, as if all groups compress like the first."""
        if self.facts.decoded_bytes is not None:
            return self.facts.decoded_bytes / max(1, self.records) + _OBJECT_BYTES
        stored = self.facts.first_stored_bytes
        if self.padded:
            stored = math.ceil(stored / BLOCK) * BLOCK
        expansion = self.facts.first_decoded_bytes / max(1, stored)
        # Below 1 it is of headers alone, which do not count as data of other records.
        floor = 0.0 if self.padded else 1.0
        return self.stored_bytes_each * min(max(expansion, floor), _MOST_EXPANSION) + _OBJECT_BYTES


class RecordGroups(ListPart):
    """The records of ranges of files, in order; a piece is a record group.

    Args:
        ranges: Each with its `take`.
        files: The file of each range.
        reader: Reads the records.
    """

    name = ""

    def __init__(
        self, ranges: Sequence[FileRange], files: Sequence[File], *, reader: RecordReader
    ) -> None:
        self._files = tuple(files)
        self._reader = reader
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
        if not len(indices):
            return []
        groups, back = self._grouped(indices)
        try:
            return _reordered(self._reader.read(groups), back)
        except DamagedRecordError as error:
            raise self._damage(error) from error

    def start(self, pieces: Sequence[int], pool: Executor) -> Future[list[list[bytes]]]:
        at, first, stop = self._bounds(_ints(pieces))
        counts = stop - first
        ends = np.cumsum(counts)
        # Whole groups, end to end: all those of a file are one call of the reader.
        begins = first + self._shifts[at] - (ends - counts)
        groups, back = self._grouped(np.repeat(begins, counts) + np.arange(counts.sum()))
        bounds = [0, *ends.tolist()]
        if not groups:
            return Here().submit(lambda: [[] for _ in pieces])

        def cut(done: Future[list[bytes]]) -> list[list[bytes]]:
            try:
                records = _reordered(done.result(), back)
            except DamagedRecordError as error:
                raise self._damage(error) from error
            return [records[begin:end] for begin, end in itertools.pairwise(bounds)]

        return then(self._reader.start(groups, pool), cut)

    def places_of_pieces(self) -> Callable[[IntArray], Places]:
        """Tells where record groups are stored."""

        def places(pieces: IntArray) -> Places:
            at, first, _ = self._bounds(pieces)
            return self._reader.places(at, first // self._groups[at])

        return places

    def _grouped(self, indices: IntArray) -> tuple[list[tuple[int, IntArray]], IntArray | None]:
        """Positions by range; and where each record goes that is read so, None for as they come."""
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

    def _damage(self, damaged: DamagedRecordError) -> ReadError:
        at, position, why = damaged.at, damaged.position, damaged.why
        file = self._files[at]
        first = position - position % file.group
        stop = min(first + file.group, file.records)
        chunk = position // file.group
        span = f", stored with records {first} to {stop - 1}" if file.group > 1 else ""
        shift = int(self._shifts[at])
        skip, end = int(self._skips[at]), int(self._stops[at])
        return ReadError(
            f"{WHAT}: record {position} of {file.shown} (chunk {chunk}{span}), record"
            f" {position + shift} of this source, can not be read: {why}."
            " The file is damaged: copy or write it again, or leave the record out",
            file=file.shown,
            records=(max(first, skip) + shift, min(stop, end) + shift),
            why=why,
        )


def _reordered(records: list[bytes], back: IntArray | None) -> list[bytes]:
    if back is None:
        return records
    return list(operator.itemgetter(*back.tolist())(records))


def _ints(values: Any) -> IntArray:
    return np.fromiter(values, np.int64)


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
