"""TFRecord to ArrayRecord, one file to one file.

Invariant: an output file holds the records of its input, in their order, and comes under its final
name only when its footer, read back, counts as many as were written.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Unpack

from windrow.converters.folder import OutputFolder, Part
from windrow.converters.inputs import Input, Paths, find_inputs, source_texts
from windrow.converters.job import RunOptions, carry_out, planned
from windrow.converters.manifest import Manifest, Plan
from windrow.converters.record_writing import (
    AT_ONCE,
    FORMAT,
    WRITER_OPTIONS,
    SkippedRecords,
    Steps,
    check_max_bad_records,
    check_writer_options,
    manifest_of,
    write_file,
)
from windrow.converters.stages import Conversion, Expected, Report, Stage
from windrow.converters.tfrecord import is_gzip, read_batches, without_gzip
from windrow.errors import ConversionError
from windrow.sources.paths import is_remote

# The function that names files by a prefix.
MATCH_SHARDS: Final = "convert_tf_to_arrayrecord_disk_match_shards"
_SHARD = re.compile(r"(?P<stem>.*?)(?P<shard>-\d+-of-\d+)?")
_SUFFIX = re.compile(r"\.tfrecords?")


def tfrecord_to_array_record(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    writer_options: str = WRITER_OPTIONS,
    max_bad_records: int = 0,
    storage_options: Mapping[str, Any] | None = None,
    **run: Unpack[RunOptions],
) -> Manifest:
    """Convert TFRecord files to ArrayRecord files, one to one.

    Records and their order stay as they are; an empty file gives an empty file.
    `x.tfrecord-00000-of-00004` becomes `x.array_record-00000-of-00004`, `y.tfrecord.gz` becomes
    `y.array_record`. A run that was stopped goes on when it is called again with the same
    arguments; one that was finished is not done again. Two files are compressed at a time with the
    extra `fast`, and one without it: `processes=4` uses more cores.

    Args:
        inputs: A path, glob, folder or URL, or a list of them; gzip if it ends in `.gz` or
            `.gzip`.
        output: A folder or URL, new, empty, or of an earlier run.
        writer_options: Options of ArrayRecordWriter. A group size of 1 lets single records be read;
            larger groups compress better and suit reading in order.
        max_bad_records: Records, of all inputs, that may have a wrong checksum: up to so many are
            left out, and listed in the manifest. Where the length of a record is damaged too, what
            follows it can not be found, and that is an error in any case.
        storage_options: Settings of the inputs' file system, as in fsspec.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If an input does not exist.
        ArgumentError: If an argument is none, or out of range.
        ReadError: If more records than allowed are damaged; the message names file, record and
            offset.
        ConversionError: If `output` cannot be written, or holds another conversion.
        MissingExtraError: If what `runner` needs is not installed.

    Example:
        >>> import tempfile
        >>> from windrow.converters import write_records
        >>> folder = tempfile.mkdtemp()
        >>> for name in ("a", "b"):
        ...     _ = write_records(f"{folder}/{name}.tfrecord", [b"one", b"two"])
        >>> manifest = tfrecord_to_array_record(f"{folder}/*.tfrecord", f"{folder}/out")
        >>> manifest.records, [file.name for file in manifest.files]
        (4, ['a.array_record', 'b.array_record'])
    """
    conversion = tfrecord_to_array_record_conversion(
        inputs,
        writer_options=writer_options,
        max_bad_records=max_bad_records,
        storage_options=storage_options,
    )
    return carry_out(conversion, output, **run)


def tfrecord_to_array_record_conversion(
    inputs: Paths,
    *,
    writer_options: str = WRITER_OPTIONS,
    max_bad_records: int = 0,
    storage_options: Mapping[str, Any] | None = None,
    prefix: str | None = None,
) -> Conversion:
    """The conversion that `tfrecord_to_array_record` carries out; arguments and errors as there.

    With `prefix`, files are called `PREFIX-00000-of-00004.arrayrecord`, whatever the inputs' names.
    """
    check_writer_options(writer_options)
    check_max_bad_records(max_bad_records)
    found = find_inputs(inputs, storage_options=storage_options, marks=(".tfrecord",))
    names = _output_names(found) if prefix is None else _numbered(prefix, len(found))
    tasks = tuple(_Task(at, *pair) for at, pair in enumerate(zip(found, names, strict=True)))
    # How many bad records are allowed is no part of the plan: what is finished stays as it is.
    settings = {"writer_options": writer_options}
    if prefix is not None:
        settings["prefix"] = prefix
    plan = planned(FORMAT, found, settings, per_file=True)
    flags = ["--to", "array_record"]
    if writer_options != WRITER_OPTIONS:
        flags += ["--writer-options", writer_options]
    if max_bad_records:
        flags += ["--max-bad-records", str(max_bad_records)]
    return Conversion(
        name="tfrecord_to_array_record" if prefix is None else MATCH_SHARDS,
        plan=plan,
        stages=(
            Stage(
                "convert",
                items=functools.partial(_tasks, tasks),
                work=functools.partial(_convert_file, writer_options, max_bad_records),
                weigh=_size_bytes,
                at_once=AT_ONCE,
            ),
        ),
        finish=functools.partial(_write_manifest, plan, tasks, max_bad_records),
        expected=Expected(
            records=None,
            input_bytes=sum(source.size_bytes for source in found),
            files=len(found),
            output_bytes=None,
        ),
        sources=source_texts(inputs),
        flags=tuple(flags) if prefix is None else None,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Task:
    at: int
    source: Input
    name: str

    @property
    def key(self) -> str:
        return f"{self.name}@{self.source.id.key}"


def _tasks(tasks: tuple[_Task, ...], folder: OutputFolder, results: list[Any]) -> tuple[_Task, ...]:
    return tasks


def _size_bytes(task: _Task) -> int:
    return task.source.size_bytes


def _convert_file(
    writer_options: str, max_bad_records: int, folder: OutputFolder, task: _Task, report: Report
) -> Part:
    steps = Steps(report, task.source.size_bytes)

    def make() -> Part:
        skipped = SkippedRecords(max_bad_records)
        batches = _batches(task, skipped, steps)
        file = write_file(
            folder,
            task.name,
            batches,
            writer_options=writer_options,
            alone=not (is_remote(task.source.url) or is_gzip(task.source.name)),
        )
        return Part(task.key, file.records, (file,), skipped.told)

    part = folder.part(task.key, make)
    steps.end(part.records)
    return part


def _batches(task: _Task, skipped: SkippedRecords, steps: Steps) -> Iterator[list[bytes]]:
    """The records of an input, some at a time; an error in the end if it has changed meanwhile."""
    source, records = task.source, 0
    for batch in read_batches(
        source.url, skip_bad=skipped.limit > 0, storage_options=source.options
    ):
        for error in batch.bad:
            first, stop = error.records or (0, 1)
            skipped.add(task.at, first, stop, error)
        yield batch.records
        records += len(batch.records)
        steps.reach(records, batch.stored_bytes)
    source.check_unchanged()


def _write_manifest(
    plan: Plan,
    tasks: tuple[_Task, ...],
    max_bad_records: int,
    folder: OutputFolder,
    parts: list[Part],
) -> None:
    by_key = {part.key: part for part in parts}
    ordered = [by_key[task.key] for task in tasks]
    records = [part.records + len(part.told.get("skipped", ())) for part in ordered]
    folder.finish(manifest_of(plan, records, ordered, max_bad_records))


def _output_names(inputs: tuple[Input, ...]) -> list[str]:
    """The name of each output file; ConversionError if two inputs would share one."""
    sources: dict[str, Input] = {}
    for source in inputs:
        name = _output_name(source.name)
        if name in sources:
            raise ConversionError(
                f"inputs: {sources[name].url} and {source.url} would both become {name}; convert"
                " them into separate folders"
            )
        sources[name] = source
    return list(sources)


def _numbered(prefix: str, files: int) -> list[str]:
    return [f"{prefix}-{at:05}-of-{files:05}.arrayrecord" for at in range(files)]


def _output_name(name: str) -> str:
    match = _SHARD.fullmatch(without_gzip(name))
    stem, shard = (match["stem"], match["shard"] or "") if match else (name, "")
    found = list(_SUFFIX.finditer(stem))
    if not found:
        return f"{stem}.array_record{shard}"
    last = found[-1]
    return f"{stem[: last.start()]}.array_record{stem[last.end() :]}{shard}"
