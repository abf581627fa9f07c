"""ArrayRecord files as input: found, counted and kept open, cut into spans, and read from end to end.

Records of one file may have 10 bytes or 100 MB. The index at the end of a file has the size of each
record group, so that no batch is much larger than it should be.

Invariants: records come in their order, and each record group is decoded once. A damaged record is
an error or is left out by number: it never gives other bytes or a shorter file. A single read is one
group, or groups that take no more than was asked for, as if all groups of a file compressed alike.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.converters.job.inputs import Input, Paths, find_inputs, manifest_beside
from windrow.converters.records.record_writing import SkippedRecords
from windrow.core.native import native
from windrow.errors import ConversionError, ReadError, WindrowError
from windrow.sources.array_record.files import ArrayRecordFile
from windrow.sources.array_record.source import ArrayRecordDataSource
from windrow.sources.signatures import ARRAY_RECORD


def cut_records(records: Sequence[int], bounds: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """The records of files, cut at `bounds`.

    Args:
        records: How many each file has.
        bounds: Where parts begin, rising, among the records of all files; and where the last ends.

    Returns:
        For each part the spans of it: number of the file, and `[start, stop)` within the file.
    """
    ends = list(itertools.accumulate(records))
    parts = []
    for start, stop in itertools.pairwise(bounds):
        spans = []
        for at in range(bisect.bisect_right(ends, start), len(ends)):
            first = ends[at] - records[at]
            if first >= stop:
                break
            begin, end = max(start - first, 0), min(stop - first, records[at])
            if begin < end:
                spans.append((at, begin, end))
        parts.append(spans)
    return parts


_MOST_OPENED: Final = 8


class OpenRecordFiles:
    """ArrayRecord files as one source, and what their groups take in memory."""

    def __init__(self, files: Sequence[Input]) -> None:
        self.options = files[0].options
        self._direct = native() is not None
        self.source = ArrayRecordDataSource(
            [file.url for file in files],
            storage_options=self.options,
            direct=True if self._direct else None,
        )
        ends = np.cumsum([file.records for file in self.source.files], dtype=np.int64)
        self._numbers = {_key(file): at for at, file in enumerate(files)}
        self._firsts = [
            int(end) - file.records for end, file in zip(ends, self.source.files, strict=True)
        ]
        self._ends: dict[int, npt.NDArray[np.float64]] = {}

    def has(self, files: Sequence[Input]) -> bool:
        """Return whether all of `files`, unchanged, are among these."""
        known = all(_key(file) in self._numbers for file in files)
        return known and self.options == files[0].options

    @property
    def count(self) -> int:
        """Number of files."""
        return len(self._firsts)

    def file(self, file: Input) -> ArrayRecordFile:
        """What is known of a file."""
        return self.source.files[self._numbers[_key(file)]]

    def first(self, file: Input) -> int:
        """The number, among the records of all files, of the first one of `file`."""
        return self._firsts[self._numbers[_key(file)]]

    def fitting(self, file: Input, start: int, stop: int, room_bytes: int) -> int:
        """Return where to stop reading records `[start, stop)` of a file: after a group, or at `stop`."""
        at = self._numbers[_key(file)]
        ends, size = self._sizes(at), self.source.files[at].group
        first = start // size
        if first + 1 >= len(ends):
            return stop
        fit = int(np.searchsorted(ends, ends[first] + room_bytes, side="right")) - 1
        return min(max(first + 1, fit) * size, stop)

    def nbytes(self, file: Input, start: int, stop: int) -> int:
        """Return the bytes in memory of the groups that hold records `[start, stop)` of a file."""
        at = self._numbers[_key(file)]
        ends, size = self._sizes(at), self.source.files[at].group
        last = min(-(-stop // size), len(ends) - 1)
        return int(ends[last] - ends[min(start // size, last)])

    def _sizes(self, at: int) -> npt.NDArray[np.float64]:
        """Return the bytes in memory of the groups of a file before each one, and last of all groups."""
        found = self._ends.get(at)
        if found is None:
            file = self.source.files[at]
            groups = -(-file.records // file.group)
            stored = self._stored(at, groups)
            found = np.zeros(groups + 1)
            np.cumsum(stored, out=found[1:])
            found *= file.decoded_bytes_each * file.records / max(1.0, float(found[-1]))
            self._ends[at] = found
        return found

    def _stored(self, at: int, groups: int) -> npt.NDArray[Any]:
        """Return the stored bytes of each group of a file; all equal if they cannot be found."""
        source, first = self.source, 0
        if self._direct:
            first = sum(-(-file.records // file.group) for file in source.files[:at])
        stored = np.ones(groups, np.int64)
        with contextlib.suppress(WindrowError):  # reading the records raises the error again
            if not self._direct:
                # The reader by byte ranges has the index; the package does not show its own.
                source = ArrayRecordDataSource(
                    source.files[at].path, storage_options=self.options, direct=True
                )
            (part,) = source.parts
            if part.chunk_count >= first + groups:
                stored = part.places_of_chunks()(np.arange(first, first + groups)).stored_bytes
        return stored


def _key(file: Input) -> tuple[Any, ...]:
    return file.url, file.size_bytes, file.version


# The files that were opened last, since a large file is read in many parts.
_opened: Final[collections.deque[OpenRecordFiles]] = collections.deque(maxlen=_MOST_OPENED)
_lock: Final = threading.Lock()


def opened(files: Sequence[Input], *, among: bool = False) -> OpenRecordFiles:
    """Return files as one source, kept open for later calls; with `among`, it may have more files.

    Raises:
        NotFoundError, SourceError, ReadError: As for `ArrayRecordDataSource`.
    """
    with _lock:
        for held in _opened:
            if held.has(files) and (among or held.count == len(files)):
                _opened.remove(held)
                _opened.append(held)
                return held
    found = OpenRecordFiles(files)
    with _lock:
        _opened.append(found)
    return found


IntArray = npt.NDArray[np.int64]

# Settings that `zarr_to_array_record` keeps in the manifest for readers of the records.
TOLD: Final = ("features", "arrays", "attributes", "group_attributes")
# Records that are read at once, decoded.
BATCH_BYTES: Final = 8 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class RecordFile:
    """An ArrayRecord file that was found whole: input number `at`, with its number of records.

    `group` records are stored as one, of about `record_bytes` each in memory.
    """

    at: int
    source: Input
    records: int
    group: int
    record_bytes: float

    def share(self, start: int, stop: int) -> int:
        """Estimate the stored bytes of records `[start, stop)`; all spans add up to its size."""
        size, records = self.source.size_bytes, max(1, self.records)
        # The bytes of an empty file belong to its only range.
        end = size if stop == self.records else size * stop // records
        return end - size * start // records


@dataclasses.dataclass(frozen=True, slots=True)
class ArrayRecordSpan:
    """Records `[start, stop)` of a file."""

    file: RecordFile
    start: int
    stop: int

    @property
    def stored_bytes(self) -> int:
        """The stored bytes of these records."""
        return self.file.share(self.start, self.stop)


def find_record_files(
    inputs: Paths, *, storage_options: Mapping[str, Any] | None
) -> tuple[RecordFile, ...]:
    """The files that `inputs` names, opened and found whole; no record is read.

    Raises:
        NotFoundError: If a file does not exist.
        SourceError: If one is not a whole ArrayRecord file.
        ReadError, ConversionError, ArgumentError: As for `find_inputs`.
    """
    found = find_inputs(inputs, storage_options=storage_options, marks=ARRAY_RECORD.marks)
    source = ArrayRecordDataSource([one.url for one in found], storage_options=storage_options)
    return tuple(
        RecordFile(at, one, file.records, file.group, file.decoded_bytes_each)
        for at, (one, file) in enumerate(zip(found, source.files, strict=True))
    )


def manifest_features(files: Sequence[RecordFile]) -> dict[str, Any]:
    """Return what the manifest of the files' folder says of their features; {} without one.

    Raises:
        ReadError: If there is one, and it is damaged.
    """
    manifest = manifest_beside([file.source for file in files])
    settings = {} if manifest is None else manifest.settings
    return {name: settings[name] for name in TOLD if name in settings}


def read_span(
    span: ArrayRecordSpan, skipped: SkippedRecords, *, batch_bytes: int = BATCH_BYTES
) -> Iterator[tuple[IntArray, list[bytes], int]]:
    """Yield the records of a span in batches of about `batch_bytes`: numbers, records, stored bytes.

    A record group that cannot be read is left out with all of its records that are in the span, as
    far as `skipped` lets them.

    Raises:
        ReadError: If a record cannot be read; the message names file and records.
        ConversionError: If the file has changed since it was found.
    """
    file = span.file
    open_file = opened([file.source])
    source = open_file.source
    if len(source) != file.records:
        raise ConversionError(
            f"{file.source.shown}: has {len(source)} records now, and had {file.records} when it was"
            " found; leave inputs alone meanwhile, and start anew with overwrite=True"
        )

    def lose(numbers: IntArray, error: ReadError) -> None:
        skipped.add(file.at, int(numbers[0]), int(numbers[-1]) + 1, error)

    begin = span.start
    while begin < span.stop:
        stop = open_file.fitting(file.source, begin, span.stop, batch_bytes)
        wanted = np.arange(begin, stop, dtype=np.int64)
        numbers, records = read_good(source, wanted, lose if skipped.limit else None)
        if records:
            yield numbers, records, file.share(int(numbers[0]), int(numbers[-1]) + 1)
        begin = stop
    file.source.check_unchanged()


def read_good(
    source: ArrayRecordDataSource,
    numbers: IntArray,
    lose: Callable[[IntArray, ReadError], None] | None,
) -> tuple[IntArray, list[bytes]]:
    """Return the records of one file that can be read, and their numbers.

    Args:
        source: The file.
        numbers: The numbers of the wanted records.
        lose: Called with the numbers of records that cannot be read, and why; None to raise it.
    """
    while len(numbers):
        try:
            return numbers, source.read(numbers)
        except ReadError as error:
            if lose is None or error.records is None:
                raise
            lost = (numbers >= error.records[0]) & (numbers < error.records[1])
            if not lost.any():
                raise  # it is about other records, and would be raised for ever
            lose(numbers[lost], error)
            numbers = numbers[~lost]
    return numbers, []


def cut(files: Sequence[RecordFile], bounds: Sequence[int]) -> list[tuple[ArrayRecordSpan, ...]]:
    """Cut the records of all files, counted through, at `bounds`; return each part's spans in order."""
    return [
        tuple(ArrayRecordSpan(files[at], start, stop) for at, start, stop in part)
        for part in cut_records([file.records for file in files], bounds)
    ]
