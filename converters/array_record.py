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

from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from windrow.converters.folder import OutputFolder, Part, output_file, publish
from windrow.converters.inputs import Input, Paths, find_inputs
from windrow.converters.job import Job, carry_out, finished_part, planned
from windrow.converters.manifest import InputFile, Manifest, Plan
from windrow.converters.pipeline import Progress
from windrow.converters.tfrecord import read_records
from windrow.errors import ConversionError

_FORMAT = "array_record"
_SHARD = re.compile(r"(?P<stem>.*?)(?P<shard>-\d+-of-\d+)?")
_SUFFIX = re.compile(r"\.tfrecords?")


def tfrecord_to_array_record(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    writer_options: str = "group_size:1,zstd:3",
    overwrite: bool = False,
    runner: object | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Convert TFRecord files to ArrayRecord files, one to one, by a Beam pipeline.

    Records and their order stay as they are; an empty file gives an empty file.
    `x.tfrecord-00000-of-00004` becomes `x.array_record-00000-of-00004`, `y.tfrecord.gz` becomes
    `y.array_record`. A run that was stopped goes on when it is called again with the same
    arguments; one that was finished is not done again.

    Args:
        inputs: A path, glob or URL, or a list of them; gzip if it ends in `.gz`.
        output: A local folder, new, empty, or of an earlier run.
        writer_options: Options of ArrayRecordWriter. A group size of 1 lets single records be read;
            larger groups compress better and suit reading in order.
        overwrite: Whether to remove what another conversion has left in `output`. Files that no
            conversion wrote are never touched.
        runner: A Beam runner or its name; by default one that works in this process.
        progress: Called with the number of files done and of all files.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If an input does not exist.
        ReadError: If an input is damaged; the message names file, record and offset.
        ConversionError: If `output` cannot be written, or holds another conversion.
        MissingExtraError: If the packages of `windrow[beam]` are not installed.
    """
    found = find_inputs(inputs)
    _check_options(writer_options)
    names = _output_names(found)
    plan = planned(_FORMAT, found, {"writer_options": writer_options})

    def prepare(folder: OutputFolder) -> Job:
        return Job(
            [_Task(*pair) for pair in zip(found, names, strict=True)],
            functools.partial(_convert_file, folder, writer_options),
            functools.partial(_write_manifest, folder, plan, names),
        )

    return carry_out(plan, output, prepare, overwrite=overwrite, runner=runner, progress=progress)


@dataclasses.dataclass(frozen=True, slots=True)
class _Task:
    source: Input
    name: str


def _convert_file(folder: OutputFolder, writer_options: str, task: _Task) -> Part:
    final = folder.final(task.name)

    def make() -> Part:
        with folder.temporary(task.name) as temporary:
            records = _write(task.source, temporary, writer_options)
            file = output_file(temporary, task.name, records=records)
            publish(temporary, final)
        return Part(task.name, records, (file,))

    return finished_part(folder, task.name, make, where=final)


def _write(source: Input, path: str, writer_options: str) -> int:
    """Copy the records of `source` to a new ArrayRecord file; the number of records."""
    records = 0
    try:
        writer = ArrayRecordWriter(path, writer_options)
        try:
            for record in read_records(source.url):
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


def _write_manifest(folder: OutputFolder, plan: Plan, names: list[str], parts: list[Part]) -> None:
    by_name = {part.key: part for part in parts}
    ordered = [by_name[name] for name in names]
    inputs = tuple(
        InputFile(name, size_bytes, part.records)
        for (name, size_bytes), part in zip(plan.inputs, ordered, strict=True)
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
