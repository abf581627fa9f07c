"""TFRecord to ArrayRecord, one file to one file.

Invariant: an output file holds the records of its input, in their order, and comes under its final
name only when its footer, read back, counts as many as were written.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import tempfile
from collections.abc import Mapping
from typing import Any, Final, Unpack

from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from windrow.converters.folder import OutputFolder, Part
from windrow.converters.inputs import Input, Paths, find_inputs, source_texts
from windrow.converters.job import RunOptions, carry_out, planned
from windrow.converters.manifest import InputFile, Manifest, Plan
from windrow.converters.stages import Conversion, Expected, Report, Stage
from windrow.converters.tfrecord import read_records
from windrow.errors import ConversionError

WRITER_OPTIONS: Final = "group_size:1,zstd:3"
_FORMAT = "array_record"
_SHARD = re.compile(r"(?P<stem>.*?)(?P<shard>-\d+-of-\d+)?")
_SUFFIX = re.compile(r"\.tfrecords?")


def tfrecord_to_array_record(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    writer_options: str = WRITER_OPTIONS,
    storage_options: Mapping[str, Any] | None = None,
    **run: Unpack[RunOptions],
) -> Manifest:
    """Convert TFRecord files to ArrayRecord files, one to one.

    Records and their order stay as they are; an empty file gives an empty file.
    `x.tfrecord-00000-of-00004` becomes `x.array_record-00000-of-00004`, `y.tfrecord.gz` becomes
    `y.array_record`. A run that was stopped goes on when it is called again with the same
    arguments; one that was finished is not done again.

    Args:
        inputs: A path, glob, folder or URL, or a list of them; gzip if it ends in `.gz`.
        output: A folder or URL, new, empty, or of an earlier run.
        writer_options: Options of ArrayRecordWriter. A group size of 1 lets single records be read;
            larger groups compress better and suit reading in order.
        storage_options: Settings of the inputs' file system, as in fsspec.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If an input does not exist.
        ReadError: If an input is damaged; the message names file, record and offset.
        ConversionError: If `output` cannot be written, or holds another conversion.
        MissingExtraError: If what `runner` needs is not installed.
    """
    conversion = tfrecord_to_array_record_conversion(
        inputs, writer_options=writer_options, storage_options=storage_options
    )
    return carry_out(conversion, output, **run)


def tfrecord_to_array_record_conversion(
    inputs: Paths,
    *,
    writer_options: str = WRITER_OPTIONS,
    storage_options: Mapping[str, Any] | None = None,
) -> Conversion:
    """The conversion that `tfrecord_to_array_record` carries out; arguments and errors as there."""
    found = find_inputs(inputs, storage_options=storage_options, marks=(".tfrecord",))
    _check_options(writer_options)
    names = _output_names(found)
    plan = planned(_FORMAT, found, {"writer_options": writer_options}, per_file=True)
    tasks = [_Task(*pair) for pair in zip(found, names, strict=True)]
    flags = ["--to", "array_record"]
    if writer_options != WRITER_OPTIONS:
        flags += ["--writer-options", writer_options]
    return Conversion(
        name="tfrecord_to_array_record",
        plan=plan,
        stages=(
            Stage(
                "convert",
                items=functools.partial(_tasks, tasks),
                work=functools.partial(_convert_file, writer_options),
                weigh=_size_bytes,
            ),
        ),
        finish=functools.partial(_write_manifest, plan, names),
        expected=Expected(
            records=None,
            input_bytes=sum(source.size_bytes for source in found),
            files=len(found),
            output_bytes=None,
        ),
        sources=source_texts(inputs),
        flags=tuple(flags),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Task:
    source: Input
    name: str


def _tasks(tasks: list[_Task], folder: OutputFolder, results: list[Any]) -> list[_Task]:
    return tasks


def _size_bytes(task: _Task) -> int:
    return task.source.size_bytes


def _convert_file(writer_options: str, folder: OutputFolder, task: _Task, report: Report) -> Part:
    key = f"{task.name}@{task.source.id.key}"

    def make() -> Part:
        with folder.incoming(task.name) as path:
            records = _write(task.source, path, writer_options)
            task.source.check_unchanged()
            return Part(key, records, (folder.publish(path, task.name, records=records),))

    part = folder.part(key, make)
    report(part.records, task.source.size_bytes)
    return part


def _write(source: Input, path: str, writer_options: str) -> int:
    """Copy the records of `source` to a new ArrayRecord file; the number of records."""
    records = 0
    try:
        writer = ArrayRecordWriter(path, writer_options)
        try:
            for record in read_records(source.url, storage_options=source.options):
                writer.write(record)
                records += 1
        finally:
            writer.close()
        written = ArrayRecordReader(path).num_records()
    except RuntimeError as error:  # a full disk, among others; the text names it
        raise ConversionError(
            f"{path}: cannot be written: {error}; make room or choose another folder, and run it"
            " again: what is finished is kept"
        ) from error
    if written != records:
        raise ConversionError(
            f"{path}: {records} records of {source.url} were written, {written} can be read back;"
            " check the disk and run it again"
        )
    return records


def _write_manifest(plan: Plan, names: list[str], folder: OutputFolder, parts: list[Part]) -> None:
    by_name = {part.files[0].name: part for part in parts}
    ordered = [by_name[name] for name in names]
    inputs = tuple(
        InputFile(found.name, found.size_bytes, part.records, found.version)
        for found, part in zip(plan.inputs, ordered, strict=True)
    )
    files = tuple(file for part in ordered for file in part.files)
    folder.finish(Manifest(plan.format, inputs, plan.settings, files))


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


def _output_name(name: str) -> str:
    match = _SHARD.fullmatch(name.removesuffix(".gz"))
    stem, shard = (match["stem"], match["shard"] or "") if match else (name, "")
    found = list(_SUFFIX.finditer(stem))
    if not found:
        return f"{stem}.array_record{shard}"
    last = found[-1]
    return f"{stem[: last.start()]}.array_record{stem[last.end() :]}{shard}"


def _check_options(writer_options: str) -> None:
    """Let the writer itself judge its options, before anything is begun."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            ArrayRecordWriter(os.path.join(folder, "trial"), writer_options).close()
        except ValueError as error:
            raise ConversionError(f"writer_options={writer_options!r}: {error}") from error
