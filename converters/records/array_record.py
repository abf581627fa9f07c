"""TFRecord to ArrayRecord, one file to one file.

Unlike `array_record.beam.pipelines`:

- Records keep their order, and file `k` has the records of input `k`. Inputs without records give
  files.
- A failed pipeline resumes, and leaves no files that look finished.
- The output's folder belongs to this conversion alone: it has a manifest, and refuses other files.
- The output may be a URL.
- The program's own arguments are not parsed.

Invariant: an output file holds the records of its input, in their order, and comes under its final
name only when its footer, read back, counts as many as were written.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from typing import Any, Final, Unpack

from windrow.converters.job.declared import declared
from windrow.converters.job.inputs import Paths, find_inputs, source_texts
from windrow.converters.job.job import RunOptions, planned
from windrow.converters.job.stages import Conversion, Expected, check_integer, known
from windrow.converters.records.record_files import ALL_RECORDS, RecordSpan, files_of
from windrow.converters.records.record_writing import (
    FORMAT,
    WRITER_OPTIONS,
    FileTask,
    check_writer_options,
    copied,
    distinct_names,
    finish_files,
    stem_and_shard,
    writing_stage,
)
from windrow.converters.records.tfrecord import without_gzip
from windrow.sources.signatures import TFRECORD

# The function that names files by a prefix.
MATCH_SHARDS: Final = "convert_tf_to_arrayrecord_disk_match_shards"
_SUFFIX = re.compile(r"\.tfrecords?")


@declared
def tfrecord_to_array_record(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    writer_options: str = WRITER_OPTIONS,
    max_bad_records: int = 0,
    **run: Unpack[RunOptions],
) -> Conversion:
    """Convert TFRecord files to ArrayRecord files, one to one.

    Records and their order stay as they are; an empty file gives an empty file.
    `x.tfrecord-00000-of-00004` becomes `x.array_record-00000-of-00004`, `y.tfrecord.gz` becomes
    `y.array_record`. A run that was stopped resumes when it is called again with the same
    arguments; one that was finished is not done again. Two files are compressed at a time:
    `processes=4` uses more cores.

    Args:
        inputs: A path, glob, folder or URL, or a list of them; gzip if it ends in `.gz` or
            `.gzip`.
        output: A folder or URL, new, empty, or of an earlier run.
        writer_options: Options of ArrayRecordWriter. A group size of 1 lets single records be read;
            larger groups compress better and suit reading in order.
        max_bad_records: The most records, of all inputs, that may have a wrong checksum. They are
            left out, and listed in the manifest. If the length of a record is damaged too, the
            records after it cannot be found, and that is always an error.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If an input does not exist.
        ArgumentError: If an argument is of the wrong kind, or out of range.
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
    return file_to_file(inputs, writer_options, max_bad_records, run.get("storage_options"))


def file_to_file(
    inputs: Paths,
    writer_options: str = WRITER_OPTIONS,
    max_bad_records: int = 0,
    storage_options: Mapping[str, Any] | None = None,
    *,
    prefix: str | None = None,
) -> Conversion:
    """Plan the conversion of each input to one file, as for `tfrecord_to_array_record`.

    With `prefix`, files are called `PREFIX-00000-of-00004.arrayrecord`, whatever the inputs' names.
    """
    check_writer_options(writer_options)
    check_integer("max_bad_records", max_bad_records, 0)
    found = find_inputs(inputs, storage_options=storage_options, marks=TFRECORD.marks)
    # How many bad records are allowed is not part of the plan: what is finished stays as it is.
    settings = {"writer_options": writer_options}
    if prefix is None:
        names = distinct_names([_output_name(source.name) for source in found], found)
    else:
        names = _numbered(prefix, len(found))
        settings["prefix"] = prefix
    tasks = []
    for at, (source, name) in enumerate(zip(found, names, strict=True)):
        span = RecordSpan(source, 0, ALL_RECORDS, ALL_RECORDS, at=at)
        tasks.append(FileTask(name, f"{name}@{source.id.key}", source.size_bytes, (span,)))
    plan = planned(FORMAT, found, settings, per_file=True)
    stage = writing_stage(
        "convert",
        known(tasks),
        # Each block is written as soon as it is read.
        functools.partial(copied, files_of("tfrecord"), 1),
        writer_options=writer_options,
        max_bad_records=max_bad_records,
    )
    return Conversion(
        name="tfrecord_to_array_record" if prefix is None else MATCH_SHARDS,
        plan=plan,
        stages=(stage,),
        finish=functools.partial(finish_files, plan, None, max_bad_records),
        expected=Expected(
            records=None,
            input_bytes=sum(source.size_bytes for source in found),
            files=len(found),
            output_bytes=None,
        ),
        sources=() if prefix is None else source_texts(inputs),
    )


def _numbered(prefix: str, files: int) -> list[str]:
    return [f"{prefix}-{at:05}-of-{files:05}.arrayrecord" for at in range(files)]


def _output_name(name: str) -> str:
    stem, shard = stem_and_shard(without_gzip(name))
    found = list(_SUFFIX.finditer(stem))
    if not found:
        return f"{stem}.array_record{shard}"
    last = found[-1]
    return f"{stem[: last.start()]}.array_record{stem[last.end() :]}{shard}"
