"""Writing ArrayRecord files, for all conversions to them.

The native core writes them if it knows the options: it compresses and hashes some MB of records on all
cores without the GIL. Otherwise the package's ArrayRecordWriter does, in twice the time. Both write the same bytes for the same records and options, if both compress alike.

Invariant: a file counts as written only when its footer, read back, counts as many records as were
given to its writer; records that were left out as damaged are never more than was allowed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.inputs import Input
from windrow.converters.job.manifest import (
    ConversionPlan,
    InputFile,
    InputId,
    Manifest,
    OutputFile,
    Skipped,
)
from windrow.converters.job.stages import ConversionStage, Steps, part_stage
from windrow.converters.job.targets import growing, unwritable
from windrow.converters.records.record_files import Lose, RecordFormat
from windrow.core.native import native
from windrow.errors import ArgumentError, ConversionError, ReadError
from windrow.sources.base import IntArray
from windrow.sources.signatures import parts_of_name

FORMAT: Final = "array_record"
WRITER_OPTIONS: Final = "group_size:1,zstd:3"
# Items that one process works on at a time: some write, while others are read back and synced.
AT_ONCE: Final = 4
# More than two files would end together, and wait for the disk together.
_turns = threading.BoundedSemaphore(2)
# Memory of the interpreter, the libraries, two writers and two readers, without the records held.
_PROCESS_BYTES: Final = 240 << 20
# Only the footer is read back.
_READER_OPTIONS: Final = "readahead_buffer_size:0,max_parallelism:0"

# Records that are compressed together: enough to be worth the threads, and few enough for caches.
HELD_BYTES: Final = 1 << 20
# Larger groups would take several times their bytes of memory here; the package takes them once.
_MOST_GROUP: Final = 1 << 12
_PLAIN: Final = "uncompressed"
_ZSTD: Final = "zstd"
_OPTION: Final = re.compile(
    r"group_size:(?P<group>[1-9][0-9]{0,8})|zstd(:(?P<level>-?[0-9]{1,6}))?"
    r"|(?P<other>uncompressed|snappy)|window_log:(?P<window>[0-9]{1,2})"
)


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
) -> OutputFile:
    """Write the file `name` of `folder`, and give it its name.

    Args:
        folder: The folder that is being written.
        name: The file in it.
        batches: The records, some at a time; its errors are passed on.
        writer_options: Options of ArrayRecordWriter.

    Raises:
        ConversionError: If the file cannot be written.
    """
    options = options_of(writer_options) if native() is not None else None
    with folder.target.incoming(name) as path:
        with _turns:
            records = _write(path, batches, options or writer_options)
        return folder.publish(path, name, records=records)


def _write(path: str, batches: Iterable[Sequence[bytes]], options: Options | str) -> int:
    records = 0
    with _writing(path):
        make: Any = core_writer if isinstance(options, Options) else _PackageWriter
        writer = make(path, options)
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
    """ArrayRecordWriter with the methods of the core's writer, for options that the latter refuses."""

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


def stem_and_shard(name: str) -> tuple[str, str]:
    """Return the name of a file without its place in a numbered set, and that place; '' for none."""
    stem, mark, shard = parts_of_name(name)
    return stem + mark, shard


def common_stem(stems: Iterable[str]) -> str:
    """Return the stem of all inputs' names for a set of files; "records" if they differ."""
    found = set(stems)
    return found.pop() if len(found) == 1 else "records"


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


# Writing by the native core.


class Options(NamedTuple):
    """Options for writing a file.

    Args:
        group: Records in a chunk.
        codec: 'zstd', 'snappy' or 'uncompressed'.
        level: The level of zstd.
        window_log: The base-2 logarithm of the bytes that zstd looks back.
    """

    group: int
    codec: str = _ZSTD
    level: int = 3
    window_log: int = 20

    @property
    def text(self) -> str:
        """The options as ArrayRecordWriter writes them into the index."""
        packing = self.codec
        if packing == _ZSTD:
            packing = f"{packing}:{self.level},window_log:{self.window_log}"
        return (
            f"group_size:{self.group},transpose:false,pad_to_block_boundary:false,{packing}"
            ",max_parallelism:1"
        )


def options_of(writer_options: str) -> Options | None:
    """Return the options in ArrayRecordWriter's string; None for those that only it can write."""
    found: dict[str, str | None] = {}
    for text in filter(None, writer_options.split(",")):
        match = _OPTION.fullmatch(text)
        if match is None:
            return None
        name = match.lastgroup or ("level" if text.startswith(_ZSTD) else "")
        given = {"packing" if name in ("level", "other") else name: match[name]}
        if given.keys() & found:
            return None
        found |= given
    group = int(found.get("group") or 1)
    packing = found.get("packing")
    other = packing in (_PLAIN, "snappy")
    if group > _MOST_GROUP or (other and "window" in found):
        return None
    if packing is not None and other:
        return Options(group, packing)
    return Options(group, _ZSTD, int(packing or 3), int(found.get("window") or 20))


def core_writer(path: str, options: Options) -> Any:
    """Return the native core's writer of a local file, with the methods of `_PackageWriter`."""
    codec = "" if options.codec == _PLAIN else options.codec
    core: Any = native()
    return core.ArrayRecordFileWriter(
        path, options.group, codec, options.level, options.window_log, options.text, HELD_BYTES
    )


# The stage that writes files of records, and the end of the conversion.


@dataclasses.dataclass(frozen=True, slots=True)
class FileTask:
    """A file of records to write. Picklable.

    Args:
        name: The name of the file.
        key: The key of its part of the work.
        size_bytes: The bytes that progress reports for it, in all.
        of: The records, as the conversion knows them.
    """

    name: str
    key: str
    size_bytes: int
    of: Any


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
    file = write_file(folder, task.name, made, writer_options=writer_options)
    return FinishedPart(task.key, file.records, (file,), skipped.details)


def copied(
    files: RecordFormat,
    block_bytes: int,
    folder: OutputFolder,
    task: FileTask,
    skipped: SkippedRecords,
    steps: Steps,
) -> Iterator[list[bytes]]:
    """Yield the records of the task's `RecordSpan`s as they are, as `Batches`.

    Raises:
        ConversionError: At the end of a span, if its file has been written anew.
    """
    records = done_bytes = 0
    for span in task.of:
        before = done_bytes - span.share(0, span.start)
        for block in files.blocks([span], block_bytes, skipped.lose(span.at)):
            yield block.records
            records += len(block.records)
            steps.reach(records, before + block.runs[-1].read_bytes)
        span.source.check_unchanged()
        done_bytes += span.stored_bytes


def finish_files(
    plan: ConversionPlan,
    records: Sequence[int] | None,
    max_bad_records: int,
    folder: OutputFolder,
    parts: Sequence[FinishedPart],
) -> None:
    """Write the manifest of the files, one of each part.

    Args:
        plan: What was done.
        records: The number of records of each input, with those left out; None if each input
            became one file.
        max_bad_records: How many records may have been left out.
        folder: The folder that is being written.
        parts: What `writing_stage` gave.
    """
    if records is None:
        records = [part.records + len(part.details.get("skipped", ())) for part in parts]
    bad: list[list[tuple[int, str]]] = [[] for _ in records]
    left_out = skipped_details(parts, max_bad_records, [one.name for one in plan.inputs])
    for one in left_out.get("skipped", ()):
        bad[one["input"]].append((one["record"], one["error"]))
    inputs, skipped = inputs_of(plan.inputs, records, bad)
    files = tuple(file for part in parts for file in part.files)
    folder.finish(Manifest(plan.format, inputs, plan.settings, files, skipped))


# Records that are left out since they are damaged.


@dataclasses.dataclass(slots=True)
class SkippedRecords:
    """The records of one part of the work that were left out, up to the limit of all of it.

    `more` has further entries of `FinishedPart.details`.
    """

    limit: int
    found: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    more: dict[str, Any] = dataclasses.field(default_factory=dict)

    def lose(self, at: int) -> Lose | None:
        """Return what leaves out records of input number `at`; None if none may be bad."""
        return functools.partial(self._lose, at) if self.limit else None

    def _lose(self, at: int, numbers: IntArray, error: ReadError) -> None:
        if len(self.found) + len(numbers) > self.limit:
            raise ReadError(
                f"{error}; with it more than max_bad_records={self.limit} are bad",
                file=error.file,
                offset=error.offset,
                records=error.records,
                why=error.why,
            ) from error
        why = error.why or str(error)
        self.found += [{"input": at, "record": n, "error": why} for n in numbers.tolist()]

    @property
    def details(self) -> dict[str, Any]:
        """The entries of `FinishedPart.details`."""
        return {**self.more, **({"skipped": self.found} if self.found else {})}


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


def inputs_of(
    ids: Sequence[InputId],
    records: Sequence[int],
    bad: Sequence[Sequence[tuple[int, str]]],
) -> tuple[tuple[InputFile, ...], tuple[Skipped, ...]]:
    """Return the inputs of a manifest, and their records that were left out.

    Args:
        ids: The inputs.
        records: The number of records of each, with those left out.
        bad: For each, the numbers of the records that were left out, and the reasons.
    """
    inputs = tuple(
        InputFile(one.name, one.size_bytes, count - len(out), one.version, len(out))
        for one, count, out in zip(ids, records, bad, strict=True)
    )
    skipped = (Skipped(one.name, *out) for one, some in zip(ids, bad, strict=True) for out in some)
    return inputs, tuple(skipped)
