"""ArrayRecord files as one source of bytes.

Opening checks every file (`array_record_files`), so that a broken one is an error here and now and
not at step 40,000. Where records lie, and reading them: `array_record_parts`.

Invariant: records are those of the files, and of ranges of files, in the order they were given.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from windrow.errors import ArgumentError, SourceError
from windrow.sources.array_record_files import WHAT, FileRange, find_ranges, inspect_file
from windrow.sources.array_record_package import LIBRARY, PackageReader, open_reader, why_broken
from windrow.sources.array_record_parts import File, RecordGroups
from windrow.sources.base import IntArray, checked_indices
from windrow.sources.paths import LOCAL, listing
from windrow.sources.pieces import LaidOutSource
from windrow.sources.process import refuse_forked

_OPENING_THREADS: Final = 16
# The package's advice for random access; the readahead buffer alone is 16 MB per reader.
_OPTIONS: Final = {"readahead_buffer_size": "0", "max_parallelism": "0"}


class ArrayRecordDataSource(LaidOutSource):
    """The records of ArrayRecord files, as bytes, in the order of the files."""

    def __init__(
        self,
        paths: Any,
        *,
        split: str | None = None,
        reader_options: Mapping[str, str] | None = None,
    ) -> None:
        """Find and check the files; no record is read.

        Args:
            paths: A path, a glob, a folder of `*.array_record` files, a folder that tfds wrote,
                or a list of these; `file://` URLs, `path[10:20]` for records 10 to 19 of a file,
                and tfds' FileInstructions too.
            split: Which split of a tfds folder.
            reader_options: Options of the array_record package's reader.

        Raises:
            ArgumentError: If an argument is of the wrong kind.
            NotFoundError: If nothing is found, or a shard is missing.
            SourceError: If a file is broken or none of ArrayRecord, or a split must be chosen.
            ConversionError: If the conversion that writes the folder has not finished.
            ReadError: If this process was forked from one that had used array_record.
        """
        refuse_forked(LIBRARY, WHAT)
        found = find_ranges(paths, split=split, far=LOCAL)
        options = _option_text(reader_options)
        names = sorted({part.path for part in found})
        workers = min(_OPENING_THREADS, len(names))
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            files = list(pool.map(lambda path: _open_and_check(path, options), names))
        by_path = {file.path: file for file in files}
        self._ranges = tuple(_bounded(part, by_path[part.path].records) for part in found)
        self._files = tuple(by_path[part.path] for part in found)
        reader = PackageReader(self._files, options=options)
        self._records = RecordGroups(self._ranges, self._files, reader=reader)
        self._length = len(self._records)

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        names = [os.path.basename(part.path) for part in self._ranges]
        folder = os.path.dirname(self._ranges[0].path)
        return f"{WHAT}({len(self):,} records of {listing(names[:1])}{_more(names)} in {folder})"

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their records."""
        return [part.path for part in self._ranges]

    @property
    def fingerprint(self) -> str:
        """Counts of records, and a hash of every file's counts, size and group size."""
        lines = "\n".join(
            f"{part.skip} {part.take} {file.records} {file.facts.size_bytes}"
            f" {file.facts.chunks} {file.group}"
            for part, file in zip(self._ranges, self._files, strict=True)
        )
        digest = hashlib.sha256(lines.encode()).hexdigest()[:16]
        return f"array_record({len(self)} records, {len(self._ranges)} files, sha256:{digest})"

    @property
    def spec(self) -> type[bytes]:
        """Bytes."""
        return bytes

    @property
    def parts(self) -> tuple[RecordGroups]:
        """One part: all the files, in record groups."""
        return (self._records,)

    def assembled(self, columns: Sequence[Any], indices: IntArray) -> list[bytes]:
        """The records, as the part's column has them."""
        records: list[bytes] = columns[0]
        return records

    def blocks(self) -> IntArray:
        """Bounds of the record groups: 0, ..., length."""
        return self._records.blocks()

    def read(self, indices: IntArray) -> list[bytes]:
        """The records at `indices`, in that order.

        Raises:
            ReadError: If a record is damaged or its file changed; the message names both. Or if
                this process was forked from one that had used array_record.
        """
        return self._records.read(checked_indices(indices, len(self), WHAT))


def _option_text(options: Mapping[str, str] | None) -> str:
    if options is not None and not isinstance(options, Mapping):
        raise ArgumentError(
            f"{WHAT}: reader_options must be a dict such as"
            f" {{'index_storage_option': 'offloaded'}}, got {options!r}"
        )
    return ",".join(f"{key}:{value}" for key, value in {**_OPTIONS, **(options or {})}.items())


def _open_and_check(path: str, options: str) -> File:
    facts = inspect_file(path)
    reader = open_reader(path, options)
    if not reader.ok():
        # Not closed: closing a reader that failed raises its error once more.
        raise SourceError(
            f"{WHAT}: {path} is damaged: {why_broken(reader)}; write or copy it again"
        )
    records = int(reader.num_records())
    written_with = str(reader.writer_options_string())
    group = _group_size(written_with, records, facts.chunks)
    reader.close()
    # The package finds record i in chunk i // group. Where the chunks are of other sizes it would
    # hand out the wrong records without a word.
    if -(-records // group) != facts.chunks:
        raise SourceError(
            f"{WHAT}: {path} holds {records:,} records in {facts.chunks:,} chunks, which are not"
            f" all of {group:,} records; the array_record package would return wrong records."
            " Write the file again with the array_record package"
        )
    padded = "pad_to_block_boundary:true" in written_with
    return File(path, facts, records, group, padded)


def _group_size(options: str, records: int, chunks: int) -> int:
    """Records per chunk: from the writer's options, else as the counts allow."""
    if match := re.search(r"\bgroup_size:(\d+)", options):
        return max(1, int(match[1]))
    return max(1, -(-records // chunks)) if chunks else 1


def _bounded(part: FileRange, records: int) -> FileRange:
    take = records - part.skip if part.take is None else part.take
    if part.in_file is not None and part.in_file != records:
        raise SourceError(
            f"{WHAT}: the instruction for {part.path} counts {part.in_file:,} records, and the"
            f" file holds {records:,}; the file is of another version: download it again"
        )
    if take < 0 or part.skip < 0 or part.skip + take > records:
        raise SourceError(
            f"{WHAT}: records {part.skip} to {part.skip + take} of {part.path} were asked for,"
            f" and it holds {records:,}; choose 0 <= first <= last <= {records}"
        )
    return dataclasses.replace(part, take=take)


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1:,} more files" if len(names) > 1 else ""
