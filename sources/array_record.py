"""ArrayRecord files as one source of bytes.

Reading goes through the array_record package, many records per call. Opening checks every file
(`array_record_files`), so that a broken one is an error here and now and not at step 40,000.

Invariant: record `i` is record `i - start` of the part whose `[start, stop)` holds `i`; a record
that can not be read is an error that names file and record, never other bytes.
"""

from __future__ import annotations

import bisect
import collections
import concurrent.futures
import dataclasses
import hashlib
import itertools
import operator
import os
import re
import threading
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from windrow.errors import ArgumentError, NotFoundError, ReadError, SourceError
from windrow.sources.array_record_files import FileFacts, Part, find_parts, inspect_file
from windrow.sources.base import BatchedSource, IntArray, checked_indices
from windrow.sources.paths import listing
from windrow.sources.process import refuse_forked

_WHAT: Final = "ArrayRecordDataSource"
_LIBRARY: Final = "array_record"
_OPENING_THREADS: Final = 16
_READING_THREADS: Final = 4
# The package's advice for random access; the readahead buffer alone is 16 MB per reader.
_OPTIONS: Final = {"readahead_buffer_size": "0", "max_parallelism": "0"}
_MOST_OPEN_FILES: Final = 4096


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _File:
    path: str
    facts: FileFacts
    records: int
    group: int


class ArrayRecordDataSource(BatchedSource):
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
        refuse_forked(_LIBRARY, _WHAT)
        parts = find_parts(paths, split=split)
        self._options = _option_text(reader_options)
        names = sorted({part.path for part in parts})
        workers = min(_OPENING_THREADS, len(names))
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            files = list(pool.map(lambda path: _open_and_check(path, self._options), names))
        by_path = {file.path: file for file in files}
        self._parts = tuple(_bounded(part, by_path[part.path].records) for part in parts)
        self._files = tuple(by_path[part.path] for part in parts)
        # Plain ints beside the array: bisect on a list is faster for single records.
        self._ends = list(itertools.accumulate(part.take or 0 for part in self._parts))
        self._ends_array = np.asarray(self._ends, np.int64)
        self._starts_array = np.asarray(
            [
                end - (part.take or 0) - part.skip
                for end, part in zip(self._ends, self._parts, strict=True)
            ],
            np.int64,
        )
        self._readers = _Readers(self._options)

    def __len__(self) -> int:
        return self._ends[-1]

    def __repr__(self) -> str:
        names = [os.path.basename(part.path) for part in self._parts]
        folder = os.path.dirname(self._parts[0].path)
        return f"{_WHAT}({len(self):,} records of {listing(names[:1])}{_more(names)} in {folder})"

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their records."""
        return [part.path for part in self._parts]

    @property
    def fingerprint(self) -> str:
        """Counts of records, and a hash of every file's counts, size and group size."""
        lines = "\n".join(
            f"{part.skip} {part.take} {file.records} {file.facts.size_bytes}"
            f" {file.facts.chunks} {file.group}"
            for part, file in zip(self._parts, self._files, strict=True)
        )
        digest = hashlib.sha256(lines.encode()).hexdigest()[:16]
        return f"array_record({len(self)} records, {len(self._parts)} files, sha256:{digest})"

    def read(self, indices: IntArray) -> list[bytes]:
        """The records at `indices`, in that order.

        Raises:
            ReadError: If a record is damaged or its file changed; the message names both. Or if
                this process was forked from one that had used array_record.
        """
        refuse_forked(_LIBRARY, _WHAT)
        wanted = checked_indices(indices, len(self), _WHAT)
        if not len(wanted):
            return []
        if len(self._parts) == 1 or len(wanted) == 1:
            at = bisect.bisect_right(self._ends, int(wanted[0]))
            return self._read_part(at, wanted - self._starts_array[at])
        part_of = np.searchsorted(self._ends_array, wanted, side="right")
        order = np.argsort(part_of, kind="stable")
        part_of = part_of[order]
        inside = wanted[order] - self._starts_array[part_of]
        cuts = np.flatnonzero(np.diff(part_of)) + 1
        groups = list(zip(part_of[np.r_[0, cuts]].tolist(), np.split(inside, cuts), strict=True))
        records = self._read_groups(groups)
        if bool(np.all(np.diff(order) > 0)):
            return records
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return list(operator.itemgetter(*back.tolist())(records))

    def _read_groups(self, groups: list[tuple[int, IntArray]]) -> list[bytes]:
        """Records of each group, several files side by side, end to end."""
        if len(groups) == 1:
            return self._read_part(*groups[0])
        # A few runs of files, not a task per file: handing over costs more than a small read.
        size = -(-len(groups) // _READING_THREADS)
        runs = [groups[at : at + size] for at in range(0, len(groups), size)]
        futures = [self._readers.pool().submit(self._read_run, run) for run in runs[1:]]
        try:
            records = self._read_run(runs[0])
            for future in futures:
                records += future.result()
        finally:
            for future in futures:
                future.cancel()
        return records

    def _read_run(self, groups: list[tuple[int, IntArray]]) -> list[bytes]:
        return [record for at, inside in groups for record in self._read_part(at, inside)]

    def _read_part(self, at: int, inside: IntArray) -> list[bytes]:
        file, positions = self._files[at], inside.tolist()
        reader = self._readers.get(file)
        try:
            records: list[bytes] = reader.read(positions)
        except RuntimeError as error:
            raise self._damage(at, reader, positions, error) from error
        # The package answers b"" in silence for records of a file that was cut off meanwhile.
        if b"" in records:
            _check_unchanged(file)
        return records

    def _damage(self, at: int, reader: Any, positions: list[int], error: RuntimeError) -> ReadError:
        file = self._files[at]
        position, why = positions[0], str(error)
        for candidate in positions:
            try:
                reader.read([candidate])
            except RuntimeError as single:
                position, why = candidate, str(single)
                break
        first = position - position % file.group
        span = f" (stored with records {first} to {min(first + file.group, file.records) - 1})"
        return ReadError(
            f"{_WHAT}: record {position} of {file.path}{span if file.group > 1 else ''}, record"
            f" {position + int(self._starts_array[at])} of this source, can not be read: {why}."
            " The file is damaged: copy or write it again, or leave the record out"
        )


class _Readers:
    """Open readers by path, the least recently used closed first. Pickles as nothing open."""

    def __init__(self, options: str) -> None:
        self._options = options
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._open: collections.OrderedDict[str, Any] = collections.OrderedDict()
        self._most = _most_open_files()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, str]:
        return {"options": self._options}

    def __setstate__(self, state: dict[str, str]) -> None:
        self._options = state["options"]
        self._start()

    def pool(self) -> concurrent.futures.ThreadPoolExecutor:
        """The threads that read several files side by side."""
        with self._lock:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(
                    _READING_THREADS, thread_name_prefix="windrow-array-record"
                )
            return self._pool

    def get(self, file: _File) -> Any:
        """An open reader of `file`."""
        with self._lock:
            reader = self._open.get(file.path)
            if reader is not None:
                self._open.move_to_end(file.path)
                return reader
        _check_unchanged(file)
        reader = _reader(file.path, self._options)
        if not reader.ok():
            raise ReadError(f"{_WHAT}: {file.path} can not be opened again: {_why(reader)}")
        with self._lock:
            reader = self._open.setdefault(file.path, reader)
            # Dropped, not closed: another thread may be reading with it, and the last one to let
            # go of it closes it.
            while len(self._open) > self._most:
                self._open.popitem(last=False)
        return reader


def _most_open_files() -> int:
    try:
        import resource  # not on Windows
    except ImportError:
        return 256
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_OPEN_FILES
    return max(8, min(_MOST_OPEN_FILES, soft // 2))


def _option_text(options: Mapping[str, str] | None) -> str:
    if options is not None and not isinstance(options, Mapping):
        raise ArgumentError(
            f"{_WHAT}: reader_options must be a dict such as"
            f" {{'index_storage_option': 'offloaded'}}, got {options!r}"
        )
    return ",".join(f"{key}:{value}" for key, value in {**_OPTIONS, **(options or {})}.items())


def _reader(path: str, options: str) -> Any:
    # Imported where it is used: many chains never read this format.
    from array_record.python import array_record_module

    try:
        return array_record_module.ArrayRecordReader(path, options)
    except (ValueError, RuntimeError) as error:
        raise ArgumentError(f"{_WHAT}: reader_options {options!r} were refused: {error}") from error


def _why(reader: Any) -> str:
    """What is wrong with a reader that did not open; only a read tells."""
    try:
        reader.read([0])
    except (RuntimeError, IndexError) as error:
        return str(error)
    return "the array_record package could not open it and gives no reason"


def _open_and_check(path: str, options: str) -> _File:
    facts = inspect_file(path)
    reader = _reader(path, options)
    if not reader.ok():
        # Not closed: closing a reader that failed raises its error once more.
        raise SourceError(f"{_WHAT}: {path} is damaged: {_why(reader)}; write or copy it again")
    records = int(reader.num_records())
    group = _group_size(str(reader.writer_options_string()), records, facts.chunks)
    reader.close()
    # The package finds record i in chunk i // group. Where the chunks are of other sizes it would
    # hand out the wrong records without a word.
    if -(-records // group) != facts.chunks:
        raise SourceError(
            f"{_WHAT}: {path} holds {records:,} records in {facts.chunks:,} chunks, which are not"
            f" all of {group:,} records; the array_record package would return wrong records."
            " Write the file again with the array_record package"
        )
    return _File(path, facts, records, group)


def _group_size(options: str, records: int, chunks: int) -> int:
    """Records per chunk: from the writer's options, else as the counts allow."""
    if match := re.search(r"\bgroup_size:(\d+)", options):
        return max(1, int(match[1]))
    return max(1, -(-records // chunks)) if chunks else 1


def _bounded(part: Part, records: int) -> Part:
    take = records - part.skip if part.take is None else part.take
    if part.in_file is not None and part.in_file != records:
        raise SourceError(
            f"{_WHAT}: the instruction for {part.path} counts {part.in_file:,} records, and the"
            f" file holds {records:,}; the file is of another version: download it again"
        )
    if take < 0 or part.skip < 0 or part.skip + take > records:
        raise SourceError(
            f"{_WHAT}: records {part.skip} to {part.skip + take} of {part.path} were asked for,"
            f" and it holds {records:,}; choose 0 <= first <= last <= {records}"
        )
    return dataclasses.replace(part, take=take)


def _check_unchanged(file: _File) -> None:
    try:
        size = os.stat(file.path).st_size
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{_WHAT}: {file.path} is gone since the source was made; restore it, or make the"
            " source again"
        ) from error
    if size != file.facts.size_bytes:
        raise ReadError(
            f"{_WHAT}: {file.path} changed since the source was made: {size:,} bytes, then"
            f" {file.facts.size_bytes:,}; restore it, or make the source again"
        )


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1:,} more files" if len(names) > 1 else ""
