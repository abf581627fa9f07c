"""ArrayRecord to ArrayRecord: other options of the writer, another number of files, another order.

Another order is a global shuffle in two passes and bounded memory. The first pass reads the inputs
from end to end. When its memory is full, it sorts the records by their places in the output and
writes them as a run, in buckets of places. The second pass writes the files one by one: it reads the
parts of each bucket from all runs, and puts their records in order.

    run:     where each bucket begins, and the end (int64), then the buckets
    bucket:  number of records n; n places; n lengths (all int64); the records, end to end

Invariants: every record of the inputs comes once, bit for bit, in its own order or in the order of a
shuffle. Place `i` of a shuffle gets record `shuffled(i)` of all inputs' records, counted through.
That is the order of `MapDataset.shuffle`, which depends only on the seed and the number of records.
Memory, files and parallelism only change the runs in between.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Unpack

import numpy as np
import numpy.typing as npt

from windrow.converters.job.declared import declared
from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.inputs import Paths, find_inputs
from windrow.converters.job.job import RunOptions, memory_of, planned
from windrow.converters.job.manifest import OutputFile
from windrow.converters.job.stages import (
    Conversion,
    ConversionStage,
    Expected,
    Steps,
    known,
    part_stage,
)
from windrow.converters.records.record_files import (
    BATCH_BYTES,
    Counted,
    RecordSpan,
    RowRange,
    cut,
    files_of,
    manifest_features,
)
from windrow.converters.records.record_writing import (
    FORMAT,
    WRITER_OPTIONS,
    FileTask,
    SkippedRecords,
    check_writer_options,
    common_stem,
    copied,
    distinct_names,
    finish_files,
    records_bytes,
    shard_names,
    skipped_details,
    writing_stage,
)
from windrow.errors import ConversionError
from windrow.sources.signatures import ARRAY_RECORD, parts_of_name
from windrow.transforms.orders import shuffled

LEAST_MEMORY_BYTES: Final = 1 << 16
MOST_MEMORY_BYTES: Final = 1 << 62


@declared
def array_record_to_array_record(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    writer_options: str = WRITER_OPTIONS,
    files: int | None = None,
    shuffle_seed: int | None = None,
    max_bad_records: int = 0,
    **run: Unpack[RunOptions],
) -> Conversion:
    """Write the records of ArrayRecord files anew: in other groups, files, or another order.

    Without `files` and `shuffle_seed`, each file becomes one file of its name. Otherwise the
    records of all files are divided evenly, in order, among `x.array_record-00000-of-00004` and so
    on, where `x` is the common stem of the inputs' names ("records" if they differ). If the inputs'
    folder has a manifest that describes the features of the records, the output's manifest does so
    too. A run that was stopped resumes when it is called again with the same arguments; one that
    was finished is not done again.

    Args:
        inputs: A path, glob, folder or URL, or a list of them.
        output: A folder or URL, new, empty, or of an earlier run.
        writer_options: Options of ArrayRecordWriter, such as "group_size:64,zstd:3".
        files: Number of files; by default as many as there are inputs.
        shuffle_seed: Shuffles all records, in `[0, 2**32)`: record `i` of the output is what
            `windrow.MapDataset.source(inputs).shuffle(shuffle_seed)[i]` is, whatever the other
            arguments. During the run, the output's work folder holds the records without
            compression: the disk needs room for them as they are in memory, and for the output.
            Libraries need some 250 MB of `memory_bytes`. It holds if no record is larger than a
            sixteenth of the rest.
        max_bad_records: The most records, of all inputs, that may be damaged. They are left out, and
            listed in the manifest. A damaged group costs all of its records.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If an input does not exist.
        SourceError: If an input is not a whole ArrayRecord file.
        ReadError: If more records than allowed are damaged; the message names file and records.
        ArgumentError: If an argument is of the wrong kind, or out of range.
        ConversionError: If `output` cannot be written, or holds another conversion.
        MissingExtraError: If what `runner` needs is not installed.

    Example:
        >>> import tempfile
        >>> from windrow.converters import tfrecord_to_array_record, write_records
        >>> folder = tempfile.mkdtemp()
        >>> _ = write_records(f"{folder}/a.tfrecord", [bytes([i]) for i in range(100)])
        >>> _ = tfrecord_to_array_record(f"{folder}/a.tfrecord", f"{folder}/one")
        >>> manifest = array_record_to_array_record(
        ...     f"{folder}/one", f"{folder}/four", files=4, shuffle_seed=7
        ... )
        >>> [file.records for file in manifest.files]
        [25, 25, 25, 25]
    """
    check_writer_options(writer_options)
    memory_bytes = memory_of(run, LEAST_MEMORY_BYTES, MOST_MEMORY_BYTES)
    options = run.get("storage_options")
    sources = find_inputs(inputs, storage_options=options, marks=ARRAY_RECORD.marks)
    reader = files_of("array_record")
    found = tuple(reader.count(sources))
    # Memory and bad records do not belong to the plan: the files would be the same.
    settings = {"writer_options": writer_options, "files": files, "shuffle_seed": shuffle_seed}
    one_to_one = files is None and shuffle_seed is None
    plan = planned(FORMAT, sources, {**settings, **manifest_features(found)}, per_file=one_to_one)
    if one_to_one:
        names = _own_names(found)
    else:
        stem = common_stem(parts_of_name(source.name)[0] for source in sources)
        names = shard_names(stem, files or len(found))
    if shuffle_seed is None:
        tasks = _tasks(found, names, one_to_one=one_to_one)
        copying = writing_stage(
            "convert",
            known(tasks),
            functools.partial(copied, reader, BATCH_BYTES),
            writer_options=writer_options,
            max_bad_records=max_bad_records,
        )
        stages: tuple[ConversionStage, ...] = (copying,)
    else:
        stages = Shuffle(
            found, tuple(names), shuffle_seed, memory_bytes, writer_options, max_bad_records
        ).stages()
    records = [file.records for file in found]
    return Conversion(
        name="array_record_to_array_record",
        plan=plan,
        stages=stages,
        finish=functools.partial(finish_files, plan, records, max_bad_records),
        expected=_expected(found, names, shuffle_seed),
    )


def _expected(found: Sequence[Counted], names: Sequence[str], shuffle_seed: int | None) -> Expected:
    held = sum(file.records * file.record_bytes for file in found)
    line = f"the shuffle needs {held / 1e6:,.0f} MB more in the output's work folder meanwhile"
    return Expected(
        records=sum(file.records for file in found),
        input_bytes=sum(file.source.size_bytes for file in found),
        files=len(names),
        output_bytes=int(held),
        lines=() if shuffle_seed is None else (line,),
    )


def _own_names(found: Sequence[Counted]) -> list[str]:
    """Return the name of the one file that each input becomes."""
    sources = [file.source for file in found]
    return distinct_names(map(_own_name, found), sources, ", or into one set by files=...")


def _own_name(file: Counted) -> str:
    stem, mark, shard = parts_of_name(file.source.name)
    return f"{stem}{mark or '.array_record'}{shard}"


def _tasks(
    found: Sequence[Counted], names: Sequence[str], *, one_to_one: bool
) -> tuple[FileTask, ...]:
    if one_to_one:
        whole = [
            RecordSpan(file.source, 0, file.records, file.records, at=at)
            for at, file in enumerate(found)
        ]
        return tuple(
            FileTask(name, f"{name}@{one.source.id.key}", one.stored_bytes, (one,))
            for name, one in zip(names, whole, strict=True)
        )
    records = sum(file.records for file in found)
    bounds = [records * at // len(names) for at in range(len(names) + 1)]
    return tuple(
        FileTask(name, name, part.stored_bytes, part.spans)
        for name, part in zip(names, cut(found, bounds), strict=True)
    )


# The shuffle.


Places = npt.NDArray[np.int64]

# Items that one process works on at a time: each has its part of the memory.
_AT_ONCE: Final = 2
# Memory of a record in addition to its bytes: the object, its place in a list, its numbers.
_RECORD_BYTES: Final = 96
# Each item of the first pass goes through the whole order once, so small items would be slow.
_ITEM_BYTES: Final = 2 << 30
# Places that are made at a time.
_PLACES_AT_ONCE: Final = 1 << 20
_RECORDS_AT_ONCE: Final = 1 << 12
_NUMBER_BYTES: Final = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Shuffle:
    """A shuffle of the records of `found` into files of the names `names`. Picklable."""

    found: tuple[Counted, ...]
    names: tuple[str, ...]
    seed: int
    memory_bytes: int
    writer_options: str
    max_bad_records: int

    def stages(self) -> tuple[ConversionStage, ...]:
        """The two passes; the results of the second are the parts of the files."""
        return (
            part_stage("scatter", self._items, self._scatter, at_once=_AT_ONCE),
            writing_stage(
                "gather",
                self._files,
                _ordered,
                writer_options=self.writer_options,
                at_once=_AT_ONCE,
            ),
        )

    @property
    def records(self) -> int:
        """The number of records of all inputs."""
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

    def _items(self, folder: OutputFolder, results: list[Any]) -> list[_ShuffleItem]:
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
            # Runs with another memory limit have other buckets.
            _ShuffleItem(f"scatter-{part.start}-{part.stop}-{self.memory_bytes}", part)
            for part in cut(self.found, bounds)
        ]

    def _scatter(self, folder: OutputFolder, item: _ShuffleItem, steps: Steps) -> FinishedPart:
        skipped = SkippedRecords(self.max_bad_records)
        runs: list[OutputFile] = []
        records = 0
        for places, held in self._full(item, skipped, steps):
            name = folder.data_name(f"{item.key}-{len(runs)}")
            runs.append(self._write_run(folder, name, places, held))
            records += len(held)
        return FinishedPart(item.key, records, tuple(runs), skipped.details)

    def _full(
        self, item: _ShuffleItem, skipped: SkippedRecords, steps: Steps
    ) -> Iterator[tuple[Places, list[bytes]]]:
        """Yield the records of an item with their places, as many at a time as memory holds."""
        places = places_of(item.part.start, item.part.stop, self.records, self.seed)
        most_bytes = self._share_bytes // 2
        batch_bytes = min(BATCH_BYTES, self._share_bytes // 8)
        held: list[bytes] = []
        held_places: list[Places] = []
        held_bytes = begin = records = done_bytes = 0
        reader = files_of("array_record")
        for span in item.part.spans:
            before = done_bytes - span.share(0, span.start)
            for block in reader.blocks([span], batch_bytes, skipped.lose(span.at)):
                numbers = np.concatenate([run.numbers for run in block.runs])
                held += block.records
                records += len(block.records)
                held_places.append(places[begin + numbers - span.start])
                held_bytes += sum(map(len, block.records)) + _RECORD_BYTES * len(block.records)
                steps.reach(records, before + block.runs[-1].read_bytes)
                if held_bytes >= most_bytes:
                    yield np.concatenate(held_places), held
                    held, held_places, held_bytes = [], [], 0
            span.source.check_unchanged()
            begin += span.stop - span.start
            done_bytes += span.stored_bytes
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
        # Bucket starts, after the table; each bucket begins with its count.
        table = sizes[cuts] + _NUMBER_BYTES * (len(cuts) + np.arange(len(cuts)))
        with folder.left(name) as file:
            file.write(table.astype("<i8").tobytes())
            for begin, end in itertools.pairwise(cuts.tolist()):
                count = np.array([end - begin], np.int64)
                numbers = np.concatenate([count, places[begin:end], lengths[begin:end]])
                file.write(numbers.astype("<i8").tobytes())
                file.write(b"".join([held[at] for at in order[begin:end].tolist()]))
            return file.finished(records=len(held))

    # The second pass.

    def _files(self, folder: OutputFolder, results: list[FinishedPart]) -> list[FileTask]:
        runs = [file for part in results for file in part.files]
        total = sum(run.size_bytes for run in runs)
        names = tuple(run.name for run in runs)
        inputs = [file.source.shown for file in self.found]
        details = skipped_details(results, self.max_bad_records, inputs)
        bounds = self.bounds()
        files, bucket = [], 0
        for at, (name, places) in enumerate(zip(self.names, bounds, strict=True)):
            size = total * (at + 1) // len(bounds) - total * at // len(bounds)
            # Only the first file lists what was left out.
            buckets = _Buckets(bucket, tuple(places), names, {} if at else details)
            files.append(FileTask(name, name, size, buckets))
            bucket += len(places) - 1
        return files


@dataclasses.dataclass(frozen=True, slots=True)
class _ShuffleItem:
    """Records of all inputs that are read together."""

    key: str
    part: RowRange

    @property
    def size_bytes(self) -> int:
        """The stored bytes of these records."""
        return self.part.stored_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class _Buckets:
    """The buckets of a file, from number `bucket` on, whose places are between `bounds`.

    `details` are entries of `FinishedPart.details`.
    """

    bucket: int
    bounds: tuple[int, ...]
    runs: tuple[str, ...]
    details: Mapping[str, Any]


def _held_bytes(file: Counted, records: int) -> int:
    return int(records * (file.record_bytes + _RECORD_BYTES))


def _starts(bounds: Sequence[Sequence[int]]) -> list[int]:
    return [start for places in bounds for start in places[:-1]]


def places_of(start: int, stop: int, records: int, seed: int) -> Places:
    """Return the places that records `[start, stop)` of `records` get in the shuffle of that seed.

    The order maps places to records, so the function searches the whole order for these records.
    """
    found = np.empty(stop - start, np.int64)
    for first in range(0, records if stop > start else 0, _PLACES_AT_ONCE):
        places = np.arange(first, min(first + _PLACES_AT_ONCE, records), dtype=np.int64)
        taken = shuffled(places, records, seed)
        mine = np.flatnonzero((taken >= start) & (taken < stop))
        found[taken[mine] - start] = places[mine]
    return found


def _ordered(
    folder: OutputFolder, task: FileTask, skipped: SkippedRecords, steps: Steps
) -> Iterator[list[bytes]]:
    """Yield the records of a file in their order, some at a time."""
    file: _Buckets = task.of
    skipped.more.update(file.details)
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
class _ShuffleBucket:
    """The part of a bucket in one run: `places`, and where the record of each begins and ends."""

    data: bytes
    places: Places
    begins: Places
    ends: Places


def _table(folder: OutputFolder, run: str, file: _Buckets) -> list[int]:
    first, count = file.bucket * _NUMBER_BYTES, len(file.bounds)
    found = folder.read_data(run, first, first + count * _NUMBER_BYTES)
    table: list[int] = np.frombuffer(found, "<i8").tolist()
    return table


def _bucket(folder: OutputFolder, run: str, start: int, stop: int) -> _ShuffleBucket:
    data = folder.read_data(run, start, stop)
    count = int.from_bytes(data[:_NUMBER_BYTES], "little", signed=True)
    head = _NUMBER_BYTES * (1 + 2 * count)
    if count >= 0 and head <= len(data):
        places, lengths = np.frombuffer(data, "<i8", 2 * count, _NUMBER_BYTES).reshape(2, count)
        ends = head + np.cumsum(lengths)
        if (ends[-1] if count else head) == len(data):
            return _ShuffleBucket(data, places.astype(np.int64), ends - lengths, ends)
    raise ConversionError(
        f"{folder.target.shown(run)}: is damaged, and what the shuffle has read so far with it; check"
        " the disk, and run it again: what is lost is read again"
    )


def _merged(
    runs: Sequence[str], buckets: Sequence[_ShuffleBucket], first: int, stop: int
) -> Iterator[list[bytes]]:
    """Yield the records of a bucket from all runs, in the order of their places `[first, stop)`."""
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
