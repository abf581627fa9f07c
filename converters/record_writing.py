"""Writing ArrayRecord files: what all conversions to them have in common.

They are written by `batch_writer` where hashes are native code (the extra `fast`) and it knows the
options; by the package's ArrayRecordWriter elsewhere, for twice the time.

Invariant: a file counts as written only when its footer, read back, counts as many records as were
given to its writer; records that were left out as damaged are never more than was allowed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import zstandard
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from windrow.converters.batch_writer import BatchWriter, Options, options_of
from windrow.converters.folder import OutputFolder, Part
from windrow.converters.manifest import InputFile, Manifest, OutputFile, Plan, Skipped
from windrow.converters.stages import Report
from windrow.converters.writeback import growing
from windrow.errors import ArgumentError, ConversionError, ReadError
from windrow.sources.highway_hash import NATIVE_BYTES, is_native

FORMAT: Final = "array_record"
WRITER_OPTIONS: Final = "group_size:1,zstd:3"
# Items that one process works on at a time: some write, while others are read back and synced.
AT_ONCE: Final = 4
# More than two would all come to their ends together, and wait for the disk together. The package's
# writer compresses while it holds the GIL: there two are for records that are waited for, or read
# without the GIL; otherwise one is faster by a tenth, since the two are in each other's way.
_turns = threading.BoundedSemaphore(2)
_alone = threading.Lock()
# What the interpreter, the libraries, and two writers and readers take beside records that are held.
_PROCESS_BYTES: Final = 240 << 20
# Only the footer is read back.
_READER_OPTIONS: Final = "readahead_buffer_size:0,max_parallelism:0"


def records_bytes(memory_bytes: int) -> int:
    """What records that are held may take of the memory of a process.

    Below some 320 MB, 420 with native code, it is a quarter: then the process takes more than it was
    given.
    """
    own = _PROCESS_BYTES + (NATIVE_BYTES if is_native() else 0)
    return max(memory_bytes - own, memory_bytes // 4)


def check_writer_options(writer_options: str) -> None:
    """Let the writer itself judge its options, before anything is begun.

    Raises:
        ArgumentError: If they are no text, or it refuses them.
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
            raise _unwritable(folder, error) from error


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
        batches: The records, some at a time; what it raises is passed on.
        writer_options: Options of ArrayRecordWriter.
        alone: Whether batches are read while the GIL is held. If the package's writer holds it too,
            no other such file is written meanwhile; others are still read back and synced.

    Raises:
        ConversionError: If the file cannot be written.
    """
    options = options_of(writer_options) if is_native() else None
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
    """ArrayRecordWriter, with the methods of `BatchWriter`: for options that this does not take."""

    def __init__(self, path: str, writer_options: str) -> None:
        self._writer = ArrayRecordWriter(path, writer_options)

    def write(self, records: Sequence[bytes]) -> None:
        write = self._writer.write
        for record in records:
            write(record)

    def close(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the error before is the one to tell
            self._writer.close()


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
    """Have what a writer raises be the error for a full disk, among others."""
    try:
        yield
    except (RuntimeError, OSError, zstandard.ZstdError) as error:
        raise _unwritable(path, error) from error


def _unwritable(path: str, error: Exception) -> ConversionError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    return ConversionError(
        f"{path}: cannot be written: {why}; make room or choose another folder, and run it again:"
        " what is finished is kept"
    )


def shard_names(stem: str, files: int) -> list[str]:
    """The names of a set of files: `x.array_record-00000-of-00004` of the stem `x`."""
    return [f"{stem}.array_record-{at:05}-of-{files:05}" for at in range(files)]


class Steps:
    """Tells how far an item is: bytes that only grow, and in the end exactly as many as it has."""

    def __init__(self, report: Report, total_bytes: int) -> None:
        self._report, self._total_bytes = report, total_bytes
        self._records = self._done_bytes = 0

    def reach(self, records: int, done_bytes: int) -> None:
        """So many records and bytes are done, of all of the item."""
        done_bytes = max(self._done_bytes, min(done_bytes, self._total_bytes))
        more = records - self._records, done_bytes - self._done_bytes
        self._records, self._done_bytes = records, done_bytes
        self._report(*more)

    def add(self, records: int, done_bytes: int) -> None:
        """So many more records and bytes are done."""
        self.reach(self._records + records, self._done_bytes + done_bytes)

    def end(self, records: int) -> None:
        """All is done, of so many records; now, or by an earlier run."""
        self.reach(records, self._total_bytes)


# Records that are left out since they are damaged.


def check_max_bad_records(limit: int) -> None:
    """Refuse what is no number of records.

    Raises:
        ArgumentError: If it is none.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise ArgumentError(f"max_bad_records must be an integer of at least 0, got {limit!r}")


@dataclasses.dataclass(slots=True)
class SkippedRecords:
    """The records of one part of the work that were left out, up to the limit of all of it."""

    limit: int
    found: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def add(self, at: int, first: int, stop: int, error: ReadError) -> None:
        """Leave out records `[first, stop)` of input number `at`, which `error` tells of.

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
    def told(self) -> dict[str, Any]:
        """What `Part.told` is to have of them."""
        return {"skipped": self.found} if self.found else {}


def skipped_told(parts: Iterable[Part], limit: int, names: Sequence[str]) -> dict[str, Any]:
    """What `told` of several parts has of records left out, as that of one.

    Args:
        parts: All of them.
        limit: How many records may have been left out.
        names: Of the inputs.

    Raises:
        ReadError: If they are more than the limit.
    """
    found = [one for part in parts for one in part.told.get("skipped", ())]
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


def manifest_of(plan: Plan, records: Sequence[int], parts: Sequence[Part], limit: int) -> Manifest:
    """The manifest of files with all records of the inputs.

    Args:
        plan: What was done.
        records: Of each input, those left out too.
        parts: In the order of the files.
        limit: How many records may have been left out.

    Raises:
        ReadError: If more were.
    """
    names = [one.name for one in plan.inputs]
    found = skipped_told(parts, limit, names).get("skipped", ())
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
