"""TFRecord and ArrayRecord files as runs of records: counted, and read by ranges, in blocks.

A record is known by its file and its number in it, from 0, whether it is damaged or not. Where
damaged ones are to be left out, counting reads all records, and the ranges that are read later say
which of them to pass over.

Invariant: a block holds the records of its spans, all but those passed over, in their order; what
can not be read is an error that names file and record.
"""

from __future__ import annotations

import abc
import bisect
import collections
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.converters.inputs import Input
from windrow.converters.record_groups import opened
from windrow.converters.spans import cut_records
from windrow.converters.tfrecord import read_batches, scan
from windrow.errors import ConversionError, ReadError
from windrow.sources import ArrayRecordDataSource

# The offset of one record in so many is remembered, to begin reading near any row.
STRIDE_RECORDS: Final = 256
# ArrayRecord files whose ends are looked at together.
_FILES_AT_ONCE: Final = 64
_SAMPLE_BYTES: Final = 32 << 20
# Of a TFRecord beside its data.
_FRAME_BYTES: Final = 16

IntArray = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]


def _untold(records: int, done_bytes: int) -> None:
    """Progress that nobody looks at."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bad:
    """A record that is left out: its number in its file, and why."""

    number: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class Counted:
    """A file whose records are counted.

    Args:
        source: The file.
        records: Its records, with the bad ones.
        offsets: In TFRecord, where record `k * STRIDE_RECORDS` is.
        record_bytes: Of a record in memory, on average or as far as the file tells.
        group: Records that are stored, and decoded, together.
        bad: The records to be left out, by number; none where none were looked for.
    """

    source: Input
    records: int
    offsets: tuple[int, ...] = ()
    record_bytes: int = 0
    group: int = 1
    bad: tuple[Bad, ...] = ()

    @property
    def good(self) -> int:
        """The number of records that become rows."""
        return self.records - len(self.bad)

    def to_json(self) -> dict[str, Any]:
        """All but the file."""
        return {
            "records": self.records,
            "offsets": list(self.offsets),
            "record_bytes": self.record_bytes,
            "group": self.group,
            "bad": [[bad.number, bad.why] for bad in self.bad],
        }

    @classmethod
    def from_json(cls, source: Input, value: dict[str, Any]) -> Counted:
        """What `to_json` gave `value` of."""
        bad = tuple(Bad(number, why) for number, why in value["bad"])
        return cls(source, **{**value, "offsets": tuple(value["offsets"]), "bad": bad})


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Records `[start, stop)` of one file, without those numbered in `skipped`.

    `start_byte` is where, in TFRecord, record `start_record` is.
    """

    source: Input
    start: int
    stop: int
    skipped: tuple[int, ...] = ()
    start_byte: int = 0
    start_record: int = 0
    record_bytes: int = 0
    group: int = 1

    @property
    def rows(self) -> int:
        """Rows that it gives."""
        return self.stop - self.start - len(self.skipped)

    def numbers(self, start: int, stop: int) -> IntArray:
        """The records of `[start, stop)` that are not passed over."""
        found = np.arange(start, stop)
        return found[~np.isin(found, self.skipped)] if self.skipped else found


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Rows `[start, stop)` of all, and the spans of records that give them, in order."""

    start: int
    stop: int
    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return self.stop - self.start


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """Records of one file in a block: their numbers.

    `start_byte` is where, in TFRecord, record `start_record` begins, to tell where others do.
    """

    source: Input
    numbers: IntArray
    start_byte: int | None = None
    start_record: int = 0


@dataclasses.dataclass(slots=True)
class Block:
    """Some records, end to end, and where they come from."""

    records: list[bytes] = dataclasses.field(default_factory=list)
    runs: list[Run] = dataclasses.field(default_factory=list)

    def place(self, row: int) -> tuple[Input, int, int | None]:
        """File and number of a record, and the byte at which it begins in TFRecord."""
        for run in self.runs:
            if row < len(run.numbers):
                number = int(run.numbers[row])
                return run.source, number, _offset(run, number)
            row -= len(run.numbers)
        raise IndexError(row)


def _offset(run: Run, number: int) -> int | None:
    if run.start_byte is None:
        return None
    frames = scan(
        run.source.url,
        start_byte=run.start_byte,
        start_record=run.start_record,
        check_data=False,
        storage_options=run.source.options,
    )
    offset, _ = next(itertools.islice(frames, number - run.start_record, None))
    return offset


def cut(files: Sequence[Counted], *, rows_per_piece: int) -> list[Piece]:
    """The rows of all files in pieces of `rows_per_piece`, the last one shorter."""
    rows = [file.good for file in files]
    bounds = [*range(0, sum(rows), rows_per_piece), sum(rows)]
    return [
        Piece(*piece, tuple(_span(files[at], begin, end) for at, begin, end in found))
        for piece, found in zip(itertools.pairwise(bounds), cut_records(rows, bounds), strict=True)
    ]


def _span(file: Counted, begin: int, end: int) -> Span:
    """The span of the good records `[begin, end)` of a file."""
    numbers = [bad.number for bad in file.bad]
    # How many good records come before each bad one.
    before = [number - k for k, number in enumerate(numbers)]
    start = begin + bisect.bisect_right(before, begin)
    stop = end - 1 + bisect.bisect_right(before, end - 1) + 1
    known = start // STRIDE_RECORDS if file.offsets else 0
    return Span(
        file.source,
        start,
        stop,
        tuple(numbers[bisect.bisect_left(numbers, start) : bisect.bisect_left(numbers, stop)]),
        start_byte=file.offsets[known] if file.offsets else 0,
        start_record=known * STRIDE_RECORDS,
        record_bytes=file.record_bytes,
        group=file.group,
    )


class RecordFiles(abc.ABC):
    """How files of one format are counted and read. Picklable."""

    @abc.abstractmethod
    def batches(self, files: Sequence[Input]) -> list[tuple[Input, ...]]:
        """Files that are to be counted together."""

    @abc.abstractmethod
    def count(self, files: Sequence[Input], told: Progress = _untold) -> list[Counted]:
        """The files' records, as their frames or footers count them; none is looked at.

        Args:
            files: One of `batches`.
            told: Called with the records and the stored bytes that are done.
        """

    @abc.abstractmethod
    def first(self, files: Sequence[Input], records: int, *, skip_bad: bool) -> Block:
        """The first records of all files, about so many, without damaged ones if these are skipped."""

    @abc.abstractmethod
    def read_all(self, file: Counted, bad: list[Bad], *, block_bytes: int) -> Iterator[Block]:
        """All records of a file but those that are damaged, which go into `bad`."""

    @abc.abstractmethod
    def read(self, spans: Sequence[Span], *, block_bytes: int) -> Iterator[Block]:
        """The records of spans, in blocks of about so many bytes.

        Raises:
            ReadError: If a record is damaged.
            ConversionError: If a file has fewer records than it had.
        """


class TFRecordFiles(RecordFiles):
    """TFRecord files. Counting reads their frames."""

    def batches(self, files: Sequence[Input]) -> list[tuple[Input, ...]]:
        return [(file,) for file in files]

    def count(self, files: Sequence[Input], told: Progress = _untold) -> list[Counted]:
        (file,) = files
        offsets: list[int] = []
        records = data_bytes = 0
        for batch in read_batches(file.url, check_data=False, storage_options=file.options):
            sizes = np.fromiter(map(len, batch.records), np.int64, len(batch.records))
            begins = batch.start_byte + np.cumsum(sizes + _FRAME_BYTES) - (sizes + _FRAME_BYTES)
            offsets += begins[-batch.start_record % STRIDE_RECORDS :: STRIDE_RECORDS].tolist()
            records += len(sizes)
            data_bytes += int(sizes.sum())
            told(records, batch.stored_bytes)
        return [Counted(file, records, tuple(offsets), -(-data_bytes // max(1, records)))]

    def first(self, files: Sequence[Input], records: int, *, skip_bad: bool) -> Block:
        block = Block()
        for file in files:
            for run, found in _runs(Span(file, 0, records), [] if skip_bad else None, whole=False):
                block.runs.append(run)
                block.records += found
                if len(block.records) >= records or sum(map(len, block.records)) > _SAMPLE_BYTES:
                    return block
        return block

    def read_all(self, file: Counted, bad: list[Bad], *, block_bytes: int) -> Iterator[Block]:
        if file.records:
            yield from _blocks([_span(file, 0, file.records)], bad, block_bytes)

    def read(self, spans: Sequence[Span], *, block_bytes: int) -> Iterator[Block]:
        yield from _blocks(spans, None, block_bytes)


def _blocks(spans: Sequence[Span], bad: list[Bad] | None, block_bytes: int) -> Iterator[Block]:
    block, size = Block(), 0
    for span in spans:
        for run, records in _runs(span, bad):
            block.runs.append(run)
            block.records += records
            size += sum(map(len, records))
            if size >= block_bytes:
                yield block
                block, size = Block(), 0
    if block.records:
        yield block


def _runs(
    span: Span, bad: list[Bad] | None, *, whole: bool = True
) -> Iterator[tuple[Run, list[bytes]]]:
    """The records of a span, some at a time; damaged ones go into `bad`, if it is given.

    `whole` says that an end of the file before that of the span is an error.
    """
    number = span.start_record
    for batch in read_batches(
        span.source.url,
        start_byte=span.start_byte,
        start_record=span.start_record,
        # What is read beside the span may be damaged: only the span's own records are judged.
        skip_bad=True,
        storage_options=span.source.options,
    ):
        lost = [error.records[0] for error in batch.bad if error.records]
        number = batch.start_record + len(batch.records) + len(lost)
        numbers = np.setdiff1d(np.arange(batch.start_record, number), lost, assume_unique=True)
        if bad is not None:
            bad += [
                Bad(first, f"at byte {error.offset}: {error.why}")
                for first, error in zip(lost, batch.bad, strict=True)
            ]
        for first, error in zip(lost, batch.bad, strict=True):
            if bad is None and span.start <= first < span.stop and first not in span.skipped:
                raise error
        wanted = (numbers >= span.start) & (numbers < span.stop)
        if span.skipped:
            wanted &= ~np.isin(numbers, span.skipped)
        records = batch.records
        if not wanted.all():
            records = list(itertools.compress(records, wanted.tolist()))
            numbers = numbers[wanted]
        if records:
            yield Run(span.source, numbers, batch.start_byte, batch.start_record), records
        if number >= span.stop:
            return
    if whole:
        raise fewer(span, number)


@contextlib.contextmanager
def telling_of_changes(files: Sequence[Input]) -> Iterator[None]:
    """What can not be read in files that were written anew is no damage of theirs.

    Raises:
        ConversionError: If what is done in the context raises a ReadError, and a file has changed.
    """
    try:
        yield
    except ReadError:
        for file in files:
            file.check_unchanged()
        raise


def fewer(span: Span, records: int) -> ConversionError:
    """The error for a file that has fewer records than were counted in it."""
    return ConversionError(
        f"{span.source.shown}: has {records} records now, and had {span.stop} or more when they were"
        " counted; leave the inputs alone while they are converted, and start anew with"
        " overwrite=True"
    )


class ArrayRecordFiles(RecordFiles):
    """ArrayRecord files. Counting reads their footers."""

    def batches(self, files: Sequence[Input]) -> list[tuple[Input, ...]]:
        starts = range(0, len(files), _FILES_AT_ONCE)
        return [tuple(files[start : start + _FILES_AT_ONCE]) for start in starts]

    def count(self, files: Sequence[Input], told: Progress = _untold) -> list[Counted]:
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

    def first(self, files: Sequence[Input], records: int, *, skip_bad: bool) -> Block:
        block = Block()
        for file in files:
            (counted,) = self.count([file])
            stop = min(records - len(block.records), counted.records)
            if not stop:
                continue
            spans = [_span(counted, 0, stop)]
            for more in self._read(spans, [] if skip_bad else None, _SAMPLE_BYTES):
                block.runs += more.runs
                block.records += more.records
                if len(block.records) >= records or sum(map(len, block.records)) > _SAMPLE_BYTES:
                    return block
        return block

    def read_all(self, file: Counted, bad: list[Bad], *, block_bytes: int) -> Iterator[Block]:
        if file.records:
            yield from self._read([_span(file, 0, file.records)], bad, block_bytes)

    def read(self, spans: Sequence[Span], *, block_bytes: int) -> Iterator[Block]:
        yield from self._read(spans, None, block_bytes)

    def _read(
        self, spans: Sequence[Span], bad: list[Bad] | None, block_bytes: int
    ) -> Iterator[Block]:
        files = list({span.source.url: span.source for span in spans}.values())
        if not files:
            return
        # Bad records are told by their number in the one file that they are of.
        open_files = opened(files, among=bad is None)
        source = open_files.source
        todo = collections.deque((span, span.start) for span in spans if span.rows)
        while todo:
            block = Block()
            wanted: list[IntArray] = []
            size = 0
            while todo and size < block_bytes:
                span, start = todo.popleft()
                stop = open_files.fitting(span.source, start, span.stop, block_bytes - size)
                numbers = span.numbers(start, stop)
                more = open_files.nbytes(span.source, start, stop)
                if wanted and size + more > block_bytes:
                    todo.appendleft((span, start))
                    break
                size += more
                if len(numbers):
                    block.runs.append(Run(span.source, numbers))
                    wanted.append(numbers + open_files.first(span.source))
                if stop < span.stop:
                    todo.appendleft((span, stop))
            if not wanted:
                continue
            indices = np.concatenate(wanted)
            if bad is None:
                block.records = source.read(indices)
            else:
                block = _good_block(source, files[0], indices, bad)
            yield block


def _good_block(
    source: ArrayRecordDataSource, file: Input, indices: IntArray, bad: list[Bad]
) -> Block:
    """The records of one file that can be read; the others go into `bad`."""
    while len(indices):
        try:
            records = source.read(indices)
        except ReadError as error:
            if error.records is None:
                raise
            lost = (indices >= error.records[0]) & (indices < error.records[1])
            bad += [Bad(number, str(error.why)) for number in indices[lost].tolist()]
            if not lost.any():
                raise
            indices = indices[~lost]
        else:
            return Block(records, [Run(file, indices)])
    return Block()


@functools.cache
def files_of(name: str) -> RecordFiles:
    """What reads the format `name`: "tfrecord" or "array_record"."""
    return {"tfrecord": TFRecordFiles, "array_record": ArrayRecordFiles}[name]()
