"""A global shuffle of the records of files, in two passes and bounded memory.

The first pass reads the inputs from end to end. What it holds when its memory is full it sorts by
the places where the records go, and writes as a run, in buckets of places. The second pass writes
the files one by one: of each bucket it reads the parts that all runs have, and puts them in order.

    run:     where each bucket begins, and the end (int64), then the buckets
    bucket:  number of records n; n places; n lengths (all int64); the records, end to end

Invariant: place `i` gets record `shuffled(i)` of the inputs counted through: the order of
`MapDataset.shuffle`, which depends on the seed and the number of records alone. Memory, files and
parallelism decide only which runs there are meanwhile.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.converters.folder import OutputFolder, Part, output_file
from windrow.converters.manifest import OutputFile
from windrow.converters.record_reading import BATCH_BYTES, RecordFile, Span, cut, read_span
from windrow.converters.record_writing import (
    SkippedRecords,
    Steps,
    records_bytes,
    skipped_told,
    write_file,
)
from windrow.converters.stages import Report, Stage
from windrow.errors import ConversionError
from windrow.transforms.orders import shuffled

Places = npt.NDArray[np.int64]

# Items that one process works on at a time: each has its part of the memory.
_AT_ONCE: Final = 2
# Of a record beside its bytes: the object, its place in a list, its numbers.
_RECORD_BYTES: Final = 96
# Each item of the first pass goes through the whole order once, so that items may not be small.
_ITEM_BYTES: Final = 2 << 30
# Places are made so many at a time.
_PLACES_AT_ONCE: Final = 1 << 20
_RECORDS_AT_ONCE: Final = 1 << 12
_NUMBER_BYTES: Final = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Shuffle:
    """A shuffle of the records of `found` into files of the names `names`. Picklable."""

    found: tuple[RecordFile, ...]
    names: tuple[str, ...]
    seed: int
    memory_bytes: int
    writer_options: str
    max_bad_records: int

    def stages(self) -> tuple[Stage, ...]:
        """The two passes; the results of the second are the parts of the files, in any order."""
        return (
            Stage("scatter", self._items, self._scatter, _item_bytes, at_once=_AT_ONCE),
            Stage("gather", self._files, self._gather, _file_bytes, at_once=_AT_ONCE),
        )

    @property
    def records(self) -> int:
        """Of all inputs."""
        return sum(file.records for file in self.found)

    @property
    def _share_bytes(self) -> int:
        return records_bytes(self.memory_bytes) // _AT_ONCE

    def bounds(self) -> list[list[int]]:
        """The places at which the buckets of each file begin, and where the last one ends."""
        held = sum(_held_bytes(file, file.records) for file in self.found)
        # Half a share: records differ in length.
        buckets = max(1, -(-2 * held // (self._share_bytes * len(self.names))))
        files, records = len(self.names), self.records
        starts = [records * at // files for at in range(files + 1)]
        return [
            [start + (stop - start) * at // buckets for at in range(buckets + 1)]
            for start, stop in itertools.pairwise(starts)
        ]

    # The first pass.

    def _items(self, folder: OutputFolder, results: list[Any]) -> list[_Item]:
        most_records = max(1, self._share_bytes // 32)
        bounds, held, first = [0], 0, 0
        for file in self.found:
            size = max(1, _held_bytes(file, 1))
            step = max(1, min(most_records, _ITEM_BYTES // size) // file.group) * file.group
            for start in range(0, file.records, step):
                stop = min(start + step, file.records)
                more = (stop - start) * size
                far = first + stop - bounds[-1] > most_records or held + more > _ITEM_BYTES
                if far and first + start > bounds[-1]:
                    bounds.append(first + start)
                    held = 0
                held += more
            first += file.records
        bounds.append(first)
        return [
            _Item(start, stop, spans)
            for (start, stop), spans in zip(
                itertools.pairwise(bounds), cut(self.found, bounds), strict=True
            )
        ]

    def _scatter(self, folder: OutputFolder, item: _Item, report: Report) -> Part:
        # Runs of another memory have other buckets.
        key = f"scatter-{item.start}-{item.stop}-{self.memory_bytes}"
        steps = Steps(report, _item_bytes(item))

        def make() -> Part:
            skipped = SkippedRecords(self.max_bad_records)
            runs: list[OutputFile] = []
            records = 0
            for places, held in self._full(item, skipped, steps):
                name = folder.data_name(f"{key}-{len(runs)}")
                runs.append(self._write_run(folder, name, places, held))
                records += len(held)
            return Part(key, records, tuple(runs), skipped.told)

        part = folder.part(key, make)
        steps.end(part.records)
        return part

    def _full(
        self, item: _Item, skipped: SkippedRecords, steps: Steps
    ) -> Iterator[tuple[Places, list[bytes]]]:
        """The records of an item with their places, as many at a time as memory holds."""
        places = places_of(item.start, item.stop, self.records, self.seed)
        most_bytes = self._share_bytes // 2
        batch_bytes = min(BATCH_BYTES, self._share_bytes // 8)
        held: list[bytes] = []
        held_places: list[Places] = []
        held_bytes, begin = 0, 0
        for span in item.spans:
            for first, records in read_span(span, skipped, batch_bytes=batch_bytes):
                at = begin + first - span.start
                held += records
                held_places.append(places[at : at + len(records)])
                held_bytes += sum(map(len, records)) + _RECORD_BYTES * len(records)
                steps.add(len(records), span.file.share(first, first + len(records)))
                if held_bytes >= most_bytes:
                    yield np.concatenate(held_places), held
                    held, held_places, held_bytes = [], [], 0
            begin += span.stop - span.start
        if held:
            yield np.concatenate(held_places), held

    def _write_run(
        self, folder: OutputFolder, name: str, places: Places, held: list[bytes]
    ) -> OutputFile:
        order = np.argsort(places)
        places = places[order]
        lengths = np.fromiter(map(len, held), np.int64, len(held))[order]
        starts = _starts(self.bounds())
        cuts = np.searchsorted(places, np.append(starts, self.records))
        sizes = np.zeros(len(held) + 1, np.int64)
        np.cumsum(lengths + 2 * _NUMBER_BYTES, out=sizes[1:])
        # Behind the table, and each bucket with its count.
        table = sizes[cuts] + _NUMBER_BYTES * (len(cuts) + np.arange(len(cuts)))
        with folder.incoming(name) as path:
            with open(path, "wb") as file:
                file.write(table.astype("<i8").tobytes())
                for begin, end in itertools.pairwise(cuts.tolist()):
                    count = np.array([end - begin], np.int64)
                    numbers = np.concatenate([count, places[begin:end], lengths[begin:end]])
                    file.write(numbers.astype("<i8").tobytes())
                    file.writelines(held[at] for at in order[begin:end].tolist())
            run = output_file(path, name, records=len(held))
            folder.target.put(path, name)
            return run

    # The second pass.

    def _files(self, folder: OutputFolder, results: list[Part]) -> list[_File]:
        runs = sorted((file for part in results for file in part.files), key=lambda run: run.name)
        total = sum(run.size_bytes for run in runs)
        names = tuple(run.name for run in runs)
        inputs = [file.source.shown for file in self.found]
        told = skipped_told(results, self.max_bad_records, inputs)
        bounds = self.bounds()
        files, bucket = [], 0
        for at, (name, places) in enumerate(zip(self.names, bounds, strict=True)):
            size = total * (at + 1) // len(bounds) - total * at // len(bounds)
            # What was left out is told once.
            files.append(_File(name, bucket, tuple(places), names, size, {} if at else told))
            bucket += len(places) - 1
        return files

    def _gather(self, folder: OutputFolder, file: _File, report: Report) -> Part:
        steps = Steps(report, file.size_bytes)

        def make() -> Part:
            batches = _ordered(folder, file, steps)
            written = write_file(folder, file.name, batches, writer_options=self.writer_options)
            return Part(file.name, written.records, (written,), file.told)

        part = folder.part(file.name, make)
        steps.end(part.records)
        return part


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    """Records `[start, stop)` of all, and where they lie."""

    start: int
    stop: int
    spans: tuple[Span, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _File:
    """A file to write: buckets from number `bucket` on, whose places are between `bounds`."""

    name: str
    bucket: int
    bounds: tuple[int, ...]
    runs: tuple[str, ...]
    size_bytes: int
    told: dict[str, Any]


def _item_bytes(item: _Item) -> int:
    return sum(span.stored_bytes for span in item.spans)


def _file_bytes(file: _File) -> int:
    return file.size_bytes


def _held_bytes(file: RecordFile, records: int) -> int:
    return int(records * (file.record_bytes + _RECORD_BYTES))


def _starts(bounds: Sequence[Sequence[int]]) -> list[int]:
    return [start for places in bounds for start in places[:-1]]


def places_of(start: int, stop: int, records: int, seed: int) -> Places:
    """The places that records `[start, stop)` of `records` get in the shuffle of that seed.

    The order tells which record each place gets, and is gone through for the places of these.
    """
    found = np.empty(stop - start, np.int64)
    for first in range(0, records if stop > start else 0, _PLACES_AT_ONCE):
        places = np.arange(first, min(first + _PLACES_AT_ONCE, records), dtype=np.int64)
        taken = shuffled(places, records, seed)
        mine = np.flatnonzero((taken >= start) & (taken < stop))
        found[taken[mine] - start] = places[mine]
    return found


def _ordered(folder: OutputFolder, file: _File, steps: Steps) -> Iterator[list[bytes]]:
    """The records of a file in their order, some at a time."""
    tables = [_table(folder, run, file) for run in file.runs]
    for at, (first, stop) in enumerate(itertools.pairwise(file.bounds)):
        buckets = [
            _bucket(folder, run, table[at], table[at + 1])
            for run, table in zip(file.runs, tables, strict=True)
        ]
        yield from _merged(file.runs, buckets, first, stop)
        records = sum(len(bucket.places) for bucket in buckets)
        steps.add(records, sum(table[at + 1] - table[at] for table in tables))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Bucket:
    """What a run has of a bucket: `places`, and where the record of each begins and ends."""

    data: bytes
    places: Places
    begins: Places
    ends: Places


def _table(folder: OutputFolder, run: str, file: _File) -> list[int]:
    first, count = file.bucket * _NUMBER_BYTES, len(file.bounds)
    found = folder.target.read(run, first, first + count * _NUMBER_BYTES)
    if found is None or len(found) != count * _NUMBER_BYTES:
        raise _damaged(folder, run)
    table: list[int] = np.frombuffer(found, "<i8").tolist()
    return table


def _bucket(folder: OutputFolder, run: str, start: int, stop: int) -> _Bucket:
    data = folder.target.read(run, start, stop)
    if data is None or len(data) != stop - start or len(data) < _NUMBER_BYTES:
        raise _damaged(folder, run)
    count = int(np.frombuffer(data, "<i8", 1)[0])
    head = _NUMBER_BYTES * (1 + 2 * count)
    if not 0 <= count <= len(data) or head > len(data):
        raise _damaged(folder, run)
    places, lengths = np.frombuffer(data, "<i8", 2 * count, _NUMBER_BYTES).reshape(2, count)
    ends = head + np.cumsum(lengths)
    if (ends[-1] if count else head) != len(data):
        raise _damaged(folder, run)
    return _Bucket(data, places.astype(np.int64), ends - lengths, ends)


def _merged(
    runs: Sequence[str], buckets: Sequence[_Bucket], first: int, stop: int
) -> Iterator[list[bytes]]:
    """The records of a bucket, of all runs, in the order of their places `[first, stop)`."""
    if not buckets:
        return
    places = np.concatenate([bucket.places for bucket in buckets])
    which = np.repeat(np.arange(len(buckets)), [len(bucket.places) for bucket in buckets])
    begins = np.concatenate([bucket.begins for bucket in buckets])
    ends = np.concatenate([bucket.ends for bucket in buckets])
    order = np.argsort(places)
    in_order = places[order]
    inside = not len(places) or (in_order[0] >= first and in_order[-1] < stop)
    if not inside or bool(np.any(np.diff(in_order) <= 0)):
        raise ConversionError(
            f"the files of the shuffle, such as {runs[0]}, do not fit together: start anew with"
            " overwrite=True"
        )
    data = [bucket.data for bucket in buckets]
    for at in range(0, len(order), _RECORDS_AT_ONCE):
        some = order[at : at + _RECORDS_AT_ONCE]
        three = zip(which[some].tolist(), begins[some].tolist(), ends[some].tolist(), strict=True)
        yield [data[run][begin:end] for run, begin, end in three]


def _damaged(folder: OutputFolder, run: str) -> ConversionError:
    return ConversionError(
        f"{folder.target.shown(run)}: is gone or damaged, and what the shuffle has read so far with"
        " it; check the disk, and run it again: what is lost is read again"
    )
