"""TFRecord and ArrayRecord files as runs of records: counted, and read by ranges, in blocks.

A record is identified by its file and its number in the file, which counts damaged records too. If
damaged records may be left out, counting reads all records, and later ranges list the records to
skip.

Invariant: a block holds the records of its spans, except skipped ones, in their order; a record that
cannot be read is an error that names file and record.
"""

from __future__ import annotations

import abc
import bisect
import collections
import contextlib
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np

from windrow.converters.job.inputs import Input, manifest_beside
from windrow.converters.job.stages import Report, dropped
from windrow.converters.records.record_reading import opened, read_good
from windrow.converters.records.tfrecord import FRAME_BYTES, read_batches
from windrow.errors import ConversionError, ReadError
from windrow.sources.base import IntArray

# The offset of every 256th record is remembered, to begin reading near any row.
STRIDE_RECORDS: Final = 256
# Files whose ends are read together.
_FILES_AT_ONCE: Final = 64
_SAMPLE_BYTES: Final = 32 << 20
# Settings that `zarr_to_array_record` keeps in the manifest for readers of the records.
TOLD: Final = ("features", "arrays", "attributes", "group_attributes")
# Bytes of decoded records that are read at once.
BATCH_BYTES: Final = 8 << 20

# The end of a span of all records of a file that is not counted.
ALL_RECORDS: Final = 1 << 62

# Called with the numbers of damaged records, to leave them out, and with their error.
Lose: TypeAlias = Callable[[IntArray, ReadError], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Bad:
    """A record that is left out: its number in its file, and the reason."""

    number: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class Counted:
    """A file whose records are counted.

    Args:
        source: The file.
        records: The number of its records, with the bad ones.
        offsets: In TFRecord, the offset of record `k * STRIDE_RECORDS`.
        record_bytes: Bytes of a record in memory, on average or as far as the file shows.
        group: Records that are stored, and decoded, together.
        bad: The records to be left out, by number; empty if damaged ones were not searched for.
        cuts: The records, rising from 0, at which reading can begin without reading those before;
            None for any of them.
    """

    source: Input
    records: int
    offsets: tuple[int, ...] = ()
    record_bytes: int = 0
    group: int = 1
    bad: tuple[Bad, ...] = ()
    cuts: tuple[int, ...] | None = None

    @property
    def good(self) -> int:
        """The number of records that become rows."""
        return self.records - len(self.bad)

    def to_json(self) -> dict[str, Any]:
        """All fields but the file, as JSON values."""
        found = {name: getattr(self, name) for name in self.__slots__ if name != "source"}
        return {**found, "bad": [dataclasses.astuple(bad) for bad in self.bad]}

    @classmethod
    def from_json(cls, source: Input, value: dict[str, Any]) -> Counted:
        """Return the object for which `to_json` gave `value`."""
        bad = tuple(Bad(*one) for one in value["bad"])
        cuts = None if value["cuts"] is None else tuple(value["cuts"])
        more = {"offsets": tuple(value["offsets"]), "bad": bad, "cuts": cuts}
        return cls(source, **{**value, **more})


@dataclasses.dataclass(frozen=True, slots=True)
class RecordSpan:
    """Records `[start, stop)` of one file, without those numbered in `skipped`.

    The file has `of` records, and is number `at` of all. `start_byte` is where, in TFRecord, record `start_record` is.
    """

    source: Input
    start: int
    stop: int
    of: int
    skipped: tuple[int, ...] = ()
    start_byte: int = 0
    start_record: int = 0
    at: int = 0

    @property
    def rows(self) -> int:
        """The number of rows that it gives."""
        return self.stop - self.start - len(self.skipped)

    @property
    def stored_bytes(self) -> int:
        """An estimate of the stored bytes of these records."""
        return self.share(self.start, self.stop)

    def share(self, start: int, stop: int) -> int:
        """Estimate the stored bytes of records `[start, stop)`; all of a file add up to its size."""
        size = self.source.size_bytes
        end = size if stop == self.of else size * stop // self.of
        return end - size * start // max(1, self.of)

    def numbers(self, start: int, stop: int) -> IntArray:
        """Return the numbers `[start, stop)` without the records that are skipped."""
        found = np.arange(start, stop)
        return found[~np.isin(found, self.skipped)] if self.skipped else found


@dataclasses.dataclass(frozen=True, slots=True)
class RowRange:
    """Rows `[start, stop)` of the output, and the spans of records that give them, in order."""

    start: int
    stop: int
    spans: tuple[RecordSpan, ...]

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return self.stop - self.start

    @property
    def stored_bytes(self) -> int:
        """An estimate of the stored bytes of its records."""
        return sum(span.stored_bytes for span in self.spans)

    @property
    def sources(self) -> list[Input]:
        """The files of its records."""
        return list({span.source.url: span.source for span in self.spans}.values())

    @property
    def digest(self) -> str:
        """A short name for its records: other ones have another, and so do files written anew."""
        spans = [(s.source.id.key, s.start, s.stop, s.skipped) for s in self.spans]
        return hashlib.sha256(repr(spans).encode()).hexdigest()[:12]


@dataclasses.dataclass(frozen=True, slots=True)
class RecordRun:
    """The numbers of the records of one file in a block, and where that has been read to, as it is stored.

    In TFRecord, record `start_record` begins at `start_byte`; other offsets are found from there. In
    JSON Lines, `offsets` has the byte at which each record begins.
    """

    source: Input
    numbers: IntArray
    read_bytes: int = 0
    start_byte: int | None = None
    start_record: int = 0
    offsets: IntArray | None = None


@dataclasses.dataclass(slots=True)
class RecordBlock:
    """Consecutive records, and the runs of the files that they come from.

    The records are bytes, or the rows of a table as the reader of the format has them.
    """

    records: Any = dataclasses.field(default_factory=list)
    runs: list[RecordRun] = dataclasses.field(default_factory=list)

    def place(self, row: int) -> tuple[Input, int, int | None]:
        """Return file and number of a record, and the byte at which it begins, where that is known."""
        for run in self.runs:
            if row < len(run.numbers):
                number = int(run.numbers[row])
                if run.offsets is not None:
                    return run.source, number, int(run.offsets[row])
                return run.source, number, _offset(run, number)
            row -= len(run.numbers)
        raise IndexError(row)


def _offset(run: RecordRun, number: int) -> int | None:
    if run.start_byte is None:
        return None
    for batch in read_batches(
        run.source.url,
        start_byte=run.start_byte,
        start_record=run.start_record,
        check_data=False,
        storage_options=run.source.options,
    ):
        if number < batch.start_record + len(batch.records):
            return batch.offset(number - batch.start_record)
    return None


def cut_records(records: Sequence[int], bounds: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """The records of files, cut at `bounds`.

    Args:
        records: The number of records of each file.
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


def cut(files: Sequence[Counted], bounds: Sequence[int]) -> list[RowRange]:
    """Cut the rows of all files, counted through, at `bounds`, which begin with 0 and never fall."""
    rows = [file.good for file in files]
    return [
        RowRange(*row_range, tuple(_span(files[at], begin, end, at) for at, begin, end in found))
        for row_range, found in zip(
            itertools.pairwise(bounds), cut_records(rows, bounds), strict=True
        )
    ]


def _span(file: Counted, begin: int, end: int, at: int = 0) -> RecordSpan:
    """The span of the good records `[begin, end)` of file number `at`."""
    numbers = [bad.number for bad in file.bad]
    # The number of good records before each bad one.
    before = [number - k for k, number in enumerate(numbers)]
    start = begin + bisect.bisect_right(before, begin)
    stop = end - 1 + bisect.bisect_right(before, end - 1) + 1
    known = start // STRIDE_RECORDS if file.offsets else 0
    return RecordSpan(
        file.source,
        start,
        stop,
        file.records,
        tuple(numbers[bisect.bisect_left(numbers, start) : bisect.bisect_left(numbers, stop)]),
        start_byte=file.offsets[known] if file.offsets else 0,
        start_record=known * STRIDE_RECORDS,
        at=at,
    )


class RecordFormat(abc.ABC):
    """Counts and reads files of one format. Picklable."""

    counts_at_once: ClassVar[bool] = False
    """Whether counting reads the ends of files alone, so that a dry run may do it."""

    sample_bytes: ClassVar[int] = _SAMPLE_BYTES
    """About the most bytes of the first records that are read together."""

    samples_each: ClassVar[bool] = False
    """Whether as many first records are read of each file as are wanted of all."""

    def batches(self, files: Sequence[Input]) -> list[tuple[Input, ...]]:
        """Return files that are to be counted together."""
        size = _FILES_AT_ONCE if self.counts_at_once else 1
        return [tuple(files[start : start + size]) for start in range(0, len(files), size)]

    @abc.abstractmethod
    def count(self, files: Sequence[Input], progress: Report = dropped) -> list[Counted]:
        """Count the files' records by their frames or footers; the records are not examined.

        Args:
            files: One of `batches`.
            progress: Called with the records and the stored bytes that are done.
        """

    @abc.abstractmethod
    def blocks(
        self, spans: Sequence[RecordSpan], block_bytes: int, lose: Lose | None = None
    ) -> Iterator[RecordBlock]:
        """Yield the records of spans, in blocks of about `block_bytes` bytes.

        Damaged records are left out by `lose`, if it is given; the spans are of one file then.

        Raises:
            ReadError: If a record is damaged, and `lose` is not given.
            ConversionError: If a file has fewer records than it had.
        """

    def beginning(self, file: Input, records: int, lose: Lose | None) -> Iterator[RecordBlock]:
        """Yield the first records of a file."""
        (counted,) = self.count([file])
        stop = min(records, counted.records)
        return self.blocks([_span(counted, 0, stop)] if stop else [], self.sample_bytes, lose)

    def first(self, files: Sequence[Input], records: int, *, skip_bad: bool) -> RecordBlock:
        """Return about `records` first records of all files, without damaged ones if `skip_bad`."""
        block, lose = RecordBlock(), passed_over if skip_bad else None
        for file in files:
            wanted = records if self.samples_each else records - len(block.records)
            for more in self.beginning(file, wanted, lose):
                block.runs += more.runs
                block.records += more.records
                if len(block.records) >= records or sum(map(len, block.records)) > _SAMPLE_BYTES:
                    return block
        return block

    def reason(self, error: ReadError) -> str:
        """Return why a record of a known file and number is bad."""
        return str(error.why)


class StreamFormat(RecordFormat):
    """Files that are read from a byte on, some records at a time. Counting reads them to their ends."""

    @abc.abstractmethod
    def runs(
        self, span: RecordSpan, lose: Lose | None, *, whole: bool = True
    ) -> Iterator[tuple[RecordRun, list[bytes]]]:
        """Yield the records of a span, some at a time; damaged ones are left out by `lose`.

        If `whole`, it is an error if the file ends before the span.
        """

    def reason(self, error: ReadError) -> str:
        return f"at byte {error.offset}: {error.why}"

    def beginning(self, file: Input, records: int, lose: Lose | None) -> Iterator[RecordBlock]:
        span = RecordSpan(file, 0, records, records)
        for run, found in self.runs(span, lose, whole=False):
            yield RecordBlock(found, [run])

    def blocks(
        self, spans: Sequence[RecordSpan], block_bytes: int, lose: Lose | None = None
    ) -> Iterator[RecordBlock]:
        block, size = RecordBlock(), 0
        for span in spans:
            for run, records in self.runs(span, lose):
                block.runs.append(run)
                block.records += records
                size += sum(map(len, records))
                if size >= block_bytes:
                    yield block
                    block, size = RecordBlock(), 0
        if block.records:
            yield block


class TFRecordFiles(StreamFormat):
    """TFRecord files. Counting reads their frames."""

    samples_each = True

    def count(self, files: Sequence[Input], progress: Report = dropped) -> list[Counted]:
        (file,) = files
        offsets: list[int] = []
        records = data_bytes = 0
        for batch in read_batches(file.url, check_data=False, storage_options=file.options):
            sizes = np.fromiter(map(len, batch.records), np.int64, len(batch.records))
            begins = batch.start_byte + np.cumsum(sizes + FRAME_BYTES) - (sizes + FRAME_BYTES)
            offsets += begins[-batch.start_record % STRIDE_RECORDS :: STRIDE_RECORDS].tolist()
            records += len(sizes)
            data_bytes += int(sizes.sum())
            progress(records, batch.stored_bytes)
        return [Counted(file, records, tuple(offsets), -(-data_bytes // max(1, records)))]

    def runs(
        self, span: RecordSpan, lose: Lose | None, *, whole: bool = True
    ) -> Iterator[tuple[RecordRun, list[bytes]]]:
        number = span.start_record
        for batch in read_batches(
            span.source.url,
            start_byte=span.start_byte,
            start_record=span.start_record,
            # Records read outside the span may be damaged: only the span's own records are judged.
            skip_bad=True,
            storage_options=span.source.options,
        ):
            lost = [error.records[0] for error in batch.bad if error.records]
            number = batch.start_record + len(batch.records) + len(lost)
            numbers = np.setdiff1d(np.arange(batch.start_record, number), lost, assume_unique=True)
            for first, error in zip(lost, batch.bad, strict=True):
                if span.start <= first < span.stop and first not in span.skipped:
                    if lose is None:
                        raise error
                    lose(np.arange(first, first + 1), error)
            wanted = (numbers >= span.start) & (numbers < span.stop)
            if span.skipped:
                wanted &= ~np.isin(numbers, span.skipped)
            records = batch.records
            if not wanted.all():
                records = list(itertools.compress(records, wanted.tolist()))
                numbers = numbers[wanted]
            if records:
                place = batch.start_byte, batch.start_record
                yield RecordRun(span.source, numbers, batch.stored_bytes, *place), records
            if number >= span.stop:
                return
        if whole and span.stop < ALL_RECORDS:
            raise fewer(span, number)


@contextlib.contextmanager
def reporting_changes(files: Sequence[Input]) -> Iterator[None]:
    """Report a change, not damage, if files were written anew and cannot be read.

    Raises:
        ConversionError: If what is done in the context raises a ReadError, and a file has changed.
    """
    try:
        yield
    except ReadError:
        for file in files:
            file.check_unchanged()
        raise


def fewer(span: RecordSpan, records: int) -> ConversionError:
    """Return the error for a file that has fewer records than were counted in it."""
    return ConversionError(
        f"{span.source.shown}: has {records} records now, and had {span.stop} or more when they were"
        " counted; leave the inputs alone while they are converted, and start anew with"
        " overwrite=True"
    )


class ArrayRecordFiles(RecordFormat):
    """ArrayRecord files. Counting reads their footers."""

    counts_at_once = True

    def count(self, files: Sequence[Input], progress: Report = dropped) -> list[Counted]:
        open_files = opened(files, among=True)
        known = [(file, open_files.file(file)) for file in files]
        return [
            Counted(
                file,
                found.records,
                record_bytes=int(found.decoded_bytes_each),
                group=found.group,
            )
            for file, found in known
        ]

    def blocks(
        self, spans: Sequence[RecordSpan], block_bytes: int, lose: Lose | None = None
    ) -> Iterator[RecordBlock]:
        files = list({span.source.url: span.source for span in spans}.values())
        if not files:
            return
        # A bad record is identified by its number in its own file.
        open_files = opened(files, among=lose is None)
        source = open_files.source
        todo = collections.deque((span, span.start) for span in spans if span.rows)
        while todo:
            block = RecordBlock()
            wanted: list[IntArray] = []
            size = 0
            while todo and size < block_bytes:
                span, start = todo.popleft()
                if open_files.file(span.source).records != span.of:
                    raise fewer(span, open_files.file(span.source).records)
                stop = open_files.fitting(span.source, start, span.stop, block_bytes - size)
                numbers = span.numbers(start, stop)
                more = open_files.nbytes(span.source, start, stop)
                if wanted and size + more > block_bytes:
                    todo.appendleft((span, start))
                    break
                size += more
                if len(numbers):
                    block.runs.append(RecordRun(span.source, numbers, span.share(0, stop)))
                    wanted.append(numbers + open_files.first(span.source))
                if stop < span.stop:
                    todo.appendleft((span, stop))
            if not wanted:
                continue
            numbers, block.records = read_good(source, np.concatenate(wanted), lose)
            if lose is not None:
                block.runs = [dataclasses.replace(block.runs[-1], numbers=numbers)]
            yield block


def manifest_features(files: Sequence[Counted]) -> dict[str, Any]:
    """Return the features in the manifest of the files' folder; {} without a manifest.

    Raises:
        ReadError: If there is one, and it is damaged.
    """
    manifest = manifest_beside([file.source for file in files])
    settings = {} if manifest is None else manifest.settings
    return {name: settings[name] for name in TOLD if name in settings}


def passed_over(numbers: IntArray, error: ReadError) -> None:
    """Leave damaged records out: a `Lose`."""


@functools.cache
def files_of(name: str) -> RecordFormat:
    """Return the reader of the format `name`: "tfrecord" or "array_record"."""
    return {"tfrecord": TFRecordFiles, "array_record": ArrayRecordFiles}[name]()
