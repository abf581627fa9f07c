"""ArrayRecord to ArrayRecord: other options of the writer, another number of files, another order.

Invariant: every record of the inputs comes once, bit for bit: in its order, or in that of a shuffle
that depends on the seed and the number of records alone.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Unpack

from windrow.converters.folder import OutputFolder, Part
from windrow.converters.inputs import Paths, source_texts
from windrow.converters.job import RunOptions, carry_out, planned
from windrow.converters.manifest import Manifest, Plan
from windrow.converters.record_reading import (
    RecordFile,
    Span,
    cut,
    find_record_files,
    parts_of_name,
    read_span,
    told_of,
)
from windrow.converters.record_writing import (
    AT_ONCE,
    FORMAT,
    WRITER_OPTIONS,
    SkippedRecords,
    Steps,
    check_max_bad_records,
    check_writer_options,
    manifest_of,
    shard_names,
    write_file,
)
from windrow.converters.shuffling import Shuffle
from windrow.converters.stages import Conversion, Expected, Report, Stage
from windrow.errors import ArgumentError, ConversionError

MEMORY_BYTES: Final = 512 << 20
_LEAST_MEMORY_BYTES: Final = 1 << 16
_SEEDS: Final = 2**32


def array_record_to_array_record(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    writer_options: str = WRITER_OPTIONS,
    files: int | None = None,
    shuffle_seed: int | None = None,
    memory_bytes: int = MEMORY_BYTES,
    max_bad_records: int = 0,
    storage_options: Mapping[str, Any] | None = None,
    **run: Unpack[RunOptions],
) -> Manifest:
    """Write the records of ArrayRecord files anew: in other groups, files, or another order.

    Without `files` and `shuffle_seed`, each file becomes one of its name. Else the records of all
    are dealt out evenly, in order, to `x.array_record-00000-of-00004` and so on, where `x` is what
    the names of the inputs begin with ("records" if they differ). What a manifest beside the inputs
    says of the features of the records, the output's manifest says too. A run that was stopped goes on
    when it is called again with the same arguments; one that was finished is not done again.

    Args:
        inputs: A path, glob, folder or URL, or a list of them.
        output: A folder or URL, new, empty, or of an earlier run.
        writer_options: Options of ArrayRecordWriter, such as "group_size:64,zstd:3".
        files: Number of files; by default as many as there are inputs.
        shuffle_seed: Shuffles all records, in `[0, 2**32)`: record `i` of the output is what
            `windrow.MapDataset.source(inputs).shuffle(shuffle_seed)[i]` is, whatever the other
            arguments. The records lie in the output's work folder meanwhile, not compressed: as
            much room as they take in memory, and that of the output.
        memory_bytes: The most memory that a process takes for a shuffle, its libraries included,
            which need some 250 MB of it; as long as no record is larger than a sixteenth of the rest.
        max_bad_records: Records, of all inputs, that may be damaged: up to so many are left out, and
            listed in the manifest. A damaged group costs all of its records.
        storage_options: Settings of the inputs' file system, as in fsspec.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If an input does not exist.
        SourceError: If an input is no whole ArrayRecord file.
        ReadError: If more records than allowed are damaged; the message names file and records.
        ArgumentError: If an argument is none, or out of range.
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
    conversion = array_record_to_array_record_conversion(
        inputs,
        writer_options=writer_options,
        files=files,
        shuffle_seed=shuffle_seed,
        memory_bytes=memory_bytes,
        max_bad_records=max_bad_records,
        storage_options=storage_options,
    )
    return carry_out(conversion, output, **run)


def array_record_to_array_record_conversion(
    inputs: Paths,
    *,
    writer_options: str = WRITER_OPTIONS,
    files: int | None = None,
    shuffle_seed: int | None = None,
    memory_bytes: int = MEMORY_BYTES,
    max_bad_records: int = 0,
    storage_options: Mapping[str, Any] | None = None,
) -> Conversion:
    """The conversion that `array_record_to_array_record` carries out; arguments and errors as there."""
    check_writer_options(writer_options)
    check_max_bad_records(max_bad_records)
    check_number("files", files, 1, 99_999)
    check_number("shuffle_seed", shuffle_seed, 0, _SEEDS - 1)
    check_number("memory_bytes", memory_bytes, _LEAST_MEMORY_BYTES, 1 << 62)
    found = find_record_files(inputs, storage_options=storage_options)
    given: list[tuple[str, object, object]] = [("writer_options", writer_options, WRITER_OPTIONS)]
    given += [("files", files, None), ("shuffle_seed", shuffle_seed, None)]
    # Memory and bad records are no part of the plan: the files would be the same.
    settings = {name: value for name, value, _ in given}
    given += [("memory_bytes", memory_bytes, MEMORY_BYTES), ("max_bad_records", max_bad_records, 0)]
    one_to_one = files is None and shuffle_seed is None
    sources = [file.source for file in found]
    plan = planned(FORMAT, sources, {**settings, **told_of(found)}, per_file=one_to_one)
    names = _own_names(found) if one_to_one else shard_names(_stem(found), files or len(found))
    if shuffle_seed is None:
        tasks = _tasks(found, names, one_to_one=one_to_one)
        stages: tuple[Stage, ...] = (
            Stage(
                "convert",
                items=functools.partial(_given, tasks),
                work=functools.partial(_write_task, writer_options, max_bad_records),
                weigh=_task_bytes,
                at_once=AT_ONCE,
            ),
        )
    else:
        shuffle = Shuffle(
            found, tuple(names), shuffle_seed, memory_bytes, writer_options, max_bad_records
        )
        stages = shuffle.stages()
    return Conversion(
        name="array_record_to_array_record",
        plan=plan,
        stages=stages,
        finish=functools.partial(_write_manifest, plan, found, tuple(names), max_bad_records),
        expected=Expected(
            records=sum(file.records for file in found),
            input_bytes=sum(file.source.size_bytes for file in found),
            files=len(names),
            output_bytes=int(sum(file.records * file.record_bytes for file in found)),
            lines=_lines(found, shuffle_seed),
        ),
        sources=source_texts(inputs),
        flags=("--to", "array_record", *flags_of(given)),
    )


def check_number(what: str, value: int | None, least: int, most: int) -> None:
    """Refuse what is no integer in `[least, most]`; None passes.

    Raises:
        ArgumentError: If it is none.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ArgumentError(f"{what} must be an integer from {least:,} to {most:,}, got {value!r}")


def flags_of(given: Sequence[tuple[str, object, object]]) -> Iterator[str]:
    """Options of the command line: `(name, value, default)` as those that are not the default."""
    for name, value, default in given:
        if value != default:
            yield f"--{name.replace('_', '-')}"
            yield str(value)


def _lines(found: Sequence[RecordFile], shuffle_seed: int | None) -> tuple[str, ...]:
    if shuffle_seed is None:
        return ()
    held = sum(file.records * file.record_bytes for file in found)
    return (f"the shuffle needs {held / 1e6:,.0f} MB more in the output's work folder meanwhile",)


def _own_names(found: Sequence[RecordFile]) -> list[str]:
    """The name of each file's output; ConversionError if two would share one."""
    urls: dict[str, str] = {}
    for file in found:
        stem, mark, shard = parts_of_name(file.source.name)
        name = f"{stem}{mark or '.array_record'}{shard}"
        if name in urls:
            raise ConversionError(
                f"inputs: {urls[name]} and {file.source.shown} would both become {name}; convert"
                " them into separate folders, or into one set by files=..."
            )
        urls[name] = file.source.shown
    return list(urls)


def _stem(found: Sequence[RecordFile]) -> str:
    stems = {parts_of_name(file.source.name)[0] for file in found}
    return stems.pop() if len(stems) == 1 else "records"


@dataclasses.dataclass(frozen=True, slots=True)
class _Task:
    """A file to write, of spans of the inputs."""

    name: str
    key: str
    spans: tuple[Span, ...]
    stored_bytes: int


def _tasks(
    found: Sequence[RecordFile], names: Sequence[str], *, one_to_one: bool
) -> tuple[_Task, ...]:
    if one_to_one:
        return tuple(
            _Task(
                name,
                f"{name}@{file.source.id.key}",
                (Span(file, 0, file.records),),
                file.source.size_bytes,
            )
            for file, name in zip(found, names, strict=True)
        )
    records = sum(file.records for file in found)
    bounds = [records * at // len(names) for at in range(len(names) + 1)]
    return tuple(
        _Task(name, name, spans, sum(span.stored_bytes for span in spans))
        for name, spans in zip(names, cut(found, bounds), strict=True)
    )


def _given(tasks: tuple[_Task, ...], folder: OutputFolder, results: list[Any]) -> tuple[_Task, ...]:
    return tasks


def _task_bytes(task: _Task) -> int:
    return task.stored_bytes


def _write_task(
    writer_options: str, max_bad_records: int, folder: OutputFolder, task: _Task, report: Report
) -> Part:
    steps = Steps(report, task.stored_bytes)

    def make() -> Part:
        skipped = SkippedRecords(max_bad_records)
        batches = _batches(task.spans, skipped, steps)
        file = write_file(folder, task.name, batches, writer_options=writer_options)
        return Part(task.key, file.records, (file,), skipped.told)

    part = folder.part(task.key, make)
    steps.end(part.records)
    return part


def _batches(spans: Sequence[Span], skipped: SkippedRecords, steps: Steps) -> Iterator[list[bytes]]:
    for span in spans:
        for first, records in read_span(span, skipped):
            yield records
            steps.add(len(records), span.file.share(first, first + len(records)))


def _write_manifest(
    plan: Plan,
    found: tuple[RecordFile, ...],
    names: tuple[str, ...],
    max_bad_records: int,
    folder: OutputFolder,
    parts: list[Part],
) -> None:
    by_name = {file.name: part for part in parts for file in part.files}
    ordered = [by_name[name] for name in names]
    records = [file.records for file in found]
    folder.finish(manifest_of(plan, records, ordered, max_bad_records))
