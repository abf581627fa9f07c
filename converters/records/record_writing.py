"""Writing ArrayRecord files, for all conversions to them.

`batch_writer` writes them if it knows the options and there is the native core. Otherwise the
package's ArrayRecordWriter does, in twice the time.

Invariant: a file counts as written only when its footer, read back, counts as many records as were
given to its writer; records that were left out as damaged are never more than was allowed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.inputs import Input
from windrow.converters.job.manifest import ConversionPlan, InputFile, Manifest, OutputFile, Skipped
from windrow.converters.job.stages import ConversionStage, Steps, part_stage
from windrow.converters.job.targets import growing, unwritable
from windrow.converters.records.batch_writer import BatchWriter, Options, options_of
from windrow.core.native import native
from windrow.errors import ArgumentError, ConversionError, ReadError

FORMAT: Final = "array_record"
WRITER_OPTIONS: Final = "group_size:1,zstd:3"
# Items that one process works on at a time: some write, while others are read back and synced.
AT_ONCE: Final = 4
# More than two files would end together, and wait for the disk together. The package's writer
# compresses while it holds the GIL. Two files at a time help it if reading waits, or releases the
# GIL. Otherwise one at a time is a tenth faster, since two compete for the GIL.
_turns = threading.BoundedSemaphore(2)
_alone = threading.Lock()
# Memory of the interpreter, the libraries, two writers and two readers, without the records held.
_PROCESS_BYTES: Final = 240 << 20
# Only the footer is read back.
_READER_OPTIONS: Final = "readahead_buffer_size:0,max_parallelism:0"


def records_bytes(memory_bytes: int) -> int:
    """Return the memory that a process has for the records it holds.

    Below some 320 MB it is a quarter. Then the process takes more than `memory_bytes`.
    """
    return max(memory_bytes - _PROCESS_BYTES, memory_bytes // 4)


def check_writer_options(writer_options: str) -> None:
    """Let the writer itself judge its options, before anything is begun.

    Raises:
        ArgumentError: If they are not a string, or it refuses them.
        ConversionError: If nothing can be written here.
    """
    if not isinstance(writer_options, str):
        raise ArgumentError(
            f"writer_options is a str such as {WRITER_OPTIONS!r}, got {writer_options!r}"
        )
    with tempfile.TemporaryDirectory() as folder:
        try:
            ArrayRecordWriter(os.path.join(folder, "trial"), writer_options).close()
        except ValueError as error:
            raise ArgumentError(f"writer_options={writer_options!r}: {error}") from error
        except RuntimeError as error:
            raise unwritable(folder, error) from error


def write_file(
    folder: OutputFolder,
    name: str,
    batches: Iterable[Sequence[bytes]],
    *,
    writer_options: str,
    alone: bool = False,
) -> OutputFile:
    """Write the file `name` of `folder`, and give it its name.

    Args:
        folder: The folder that is being written.
        name: The file in it.
        batches: The records, some at a time; its errors are passed on.
        writer_options: Options of ArrayRecordWriter.
        alone: Whether batches are read while the GIL is held. If the package's writer holds it too,
            no other such file is written meanwhile; others are still read back and synced.

    Raises:
        ConversionError: If the file cannot be written.
    """
    options = options_of(writer_options) if native() is not None else None
    with folder.incoming(name) as path:
        with _alone if alone and options is None else _turns:
            records = _write(path, batches, options or writer_options)
        return folder.publish(path, name, records=records)


def _write(path: str, batches: Iterable[Sequence[bytes]], options: Options | str) -> int:
    records = 0
    writer: BatchWriter | _PackageWriter
    with _writing(path):
        if isinstance(options, Options):
            writer = BatchWriter(path, options)
        else:
            writer = _PackageWriter(path, options)
    try:
        with growing(path) as grew:
            for batch in batches:
                with _writing(path):
                    writer.write(batch)
                records += len(batch)
                grew()
    except BaseException:
        writer.abandon()
        raise
    with _writing(path):
        writer.close()
        reader = ArrayRecordReader(path, _READER_OPTIONS)
        written = reader.num_records() if reader.ok() else None
        reader.close()
    if written != records:
        raise ConversionError(
            f"{path}: {records} records were written, {written} can be read back; check the disk and"
            " run it again"
        )
    return records


class _PackageWriter:
    """ArrayRecordWriter with the methods of `BatchWriter`, for options that the latter refuses."""

    def __init__(self, path: str, writer_options: str) -> None:
        self._writer = ArrayRecordWriter(path, writer_options)

    def write(self, records: Sequence[bytes]) -> None:
        write = self._writer.write
        for record in records:
            write(record)

    def close(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the earlier error is the one to report
            self._writer.close()


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
    """Raise the errors of a writer, such as for a full disk, as ours."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise unwritable(path, error) from error


def shard_names(stem: str, files: int) -> list[str]:
    """The names of a set of files: `x.array_record-00000-of-00004` of the stem `x`."""
    return [f"{stem}.array_record-{at:05}-of-{files:05}" for at in range(files)]


def distinct_names(names: Iterable[str], inputs: Sequence[Input], or_else: str = "") -> list[str]:
    """Return the names of the files that inputs become, one each.

    Raises:
        ConversionError: If two would share one; the message says what may be done instead.
    """
    owners: dict[str, str] = {}
    for name, source in zip(names, inputs, strict=True):
        if name in owners:
            raise ConversionError(
                f"inputs: {owners[name]} and {source.shown} would both become {name}; convert them"
                f" into separate folders{or_else}"
            )
        owners[name] = source.shown
    return list(owners)


# The stage that writes files of records, and the end of the conversion.


@dataclasses.dataclass(frozen=True, slots=True)
class FileTask:
    """A file of records to write; conversions add the inputs of its records. Picklable.

    Args:
        name: The name of the file.
        key: The key of its part of the work.
        size_bytes: The bytes that progress reports for it, in all.
        alone: As for `write_file`.
        details: Entries of `FinishedPart.details` in addition to the records that were left out.
    """

    name: str
    key: str
    size_bytes: int
    alone: bool = dataclasses.field(default=False, kw_only=True)
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict, kw_only=True)


# Yields the records of a task, some at a time. It notes records that it leaves out, and its
# progress.
Batches = Callable[[OutputFolder, Any, "SkippedRecords", Steps], Iterable[Sequence[bytes]]]


def writing_stage(
    name: str,
    items: Callable[[OutputFolder, list[Any]], Sequence[FileTask]],
    batches: Batches,
    *,
    writer_options: str,
    max_bad_records: int = 0,
    at_once: int | None = None,
) -> ConversionStage:
    """Return the stage that writes a file for each `FileTask`; its results are the finished parts."""
    make = functools.partial(_written, batches, writer_options, max_bad_records)
    return part_stage(name, items, make, at_once=at_once or AT_ONCE)


def _written(
    batches: Batches,
    writer_options: str,
    max_bad_records: int,
    folder: OutputFolder,
    task: FileTask,
    steps: Steps,
) -> FinishedPart:
    skipped = SkippedRecords(max_bad_records)
    made = batches(folder, task, skipped, steps)
    file = write_file(folder, task.name, made, writer_options=writer_options, alone=task.alone)
    return FinishedPart(task.key, file.records, (file,), {**task.details, **skipped.details})


def finish_files(
    plan: ConversionPlan,
    names: Sequence[str],
    records: Sequence[int] | None,
    max_bad_records: int,
    folder: OutputFolder,
    parts: Sequence[FinishedPart],
) -> None:
    """Write the manifest of the files `names`, one of each part.

    Args:
        plan: What was done.
        names: The inputs' names, in the order of their records.
        records: The number of records of each input, with those left out; None if each input
            became one file.
        max_bad_records: How many records may have been left out.
        folder: The folder that is being written.
        parts: What `writing_stage` gave, in any order.
    """
    by_name = {file.name: part for part in parts for file in part.files}
    ordered = [by_name[name] for name in names]
    if records is None:
        records = [part.records + len(part.details.get("skipped", ())) for part in ordered]
    folder.finish(manifest_of(plan, records, ordered, max_bad_records))


# Records that are left out since they are damaged.


@dataclasses.dataclass(slots=True)
class SkippedRecords:
    """The records of one part of the work that were left out, up to the limit of all of it."""

    limit: int
    found: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def add(self, at: int, first: int, stop: int, error: ReadError) -> None:
        """Leave out records `[first, stop)` of input number `at`, which `error` describes.

        Raises:
            ReadError: If these are more than the limit allows.
        """
        if len(self.found) + stop - first > self.limit:
            if not self.limit:
                raise error
            raise ReadError(
                f"{error}; with it more than max_bad_records={self.limit} are bad",
                file=error.file,
                offset=error.offset,
                records=error.records,
                why=error.why,
            ) from error
        why = error.why or str(error)
        self.found += [{"input": at, "record": n, "error": why} for n in range(first, stop)]

    @property
    def details(self) -> dict[str, Any]:
        """The entry of `FinishedPart.details` for these records."""
        return {"skipped": self.found} if self.found else {}


def skipped_details(
    parts: Iterable[FinishedPart], limit: int, names: Sequence[str]
) -> dict[str, Any]:
    """Join the entries of `details` for left-out records of several parts.

    Args:
        parts: All of them.
        limit: How many records may have been left out.
        names: The names of the inputs.

    Raises:
        ReadError: If they are more than the limit.
    """
    found = [one for part in parts for one in part.details.get("skipped", ())]
    found.sort(key=lambda one: (one["input"], one["record"]))
    if len(found) > limit:
        one = found[limit]
        name, number = names[one["input"]], one["record"]
        raise ReadError(
            f"{name}: record {number}: {one['error']}; {len(found)} records of the inputs are bad,"
            f" and max_bad_records={limit}: raise it, and run it again, or mend the inputs",
            file=name,
            records=(number, number + 1),
            why=one["error"],
        )
    return {"skipped": found} if found else {}


def manifest_of(
    plan: ConversionPlan, records: Sequence[int], parts: Sequence[FinishedPart], limit: int
) -> Manifest:
    """Return the manifest of files that hold all records of the inputs.

    Args:
        plan: What was done.
        records: The number of records of each input, with those left out.
        parts: In the order of the files.
        limit: How many records may have been left out.

    Raises:
        ReadError: If more were.
    """
    names = [one.name for one in plan.inputs]
    found = skipped_details(parts, limit, names).get("skipped", ())
    left_out = Counter(one["input"] for one in found)
    inputs = tuple(
        InputFile(one.name, one.size_bytes, count - left_out[at], one.version, left_out[at])
        for at, (one, count) in enumerate(zip(plan.inputs, records, strict=True))
    )
    skipped = tuple(
        Skipped(plan.inputs[one["input"]].name, one["record"], one["error"]) for one in found
    )
    files = tuple(file for part in parts for file in part.files)
    return Manifest(plan.format, inputs, plan.settings, files, skipped)
