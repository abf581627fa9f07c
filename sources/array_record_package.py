"""Reading ArrayRecord files of a local disk through the array_record package.

Invariant: a reader is opened for a file that has the size it was found with, many records are read
per call, and at most half of the files that the process may have open are kept open.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final

import numpy as np

from windrow.errors import ReadError, SourceError
from windrow.sources.array_record_ends import asked_group, chunk_places, inspect_file
from windrow.sources.array_record_files import WHAT
from windrow.sources.array_record_format import indexed_places
from windrow.sources.array_record_library import LIBRARY, open_reader, why_broken
from windrow.sources.array_record_parts import DamagedRecordError, File, check_unchanged
from windrow.sources.base import IntArray
from windrow.sources.checks import Places
from windrow.sources.open_files import OpenFiles
from windrow.sources.process import refuse_forked

_READING_THREADS: Final = 4
# In one call of up to 64 records the package hands each to a thread of its own, for some 15 us.
# Read singly, a record costs 2 us, and 1.2 us per 1,000 chunks of its file, plus its decoding.
_SINGLY_RECORDS: Final = 64
_SINGLY_CHUNKS: Final = 8_000
_SINGLY_BYTES: Final = 8_192


class PackageReader:
    """Reads the records of files; a `RecordReader`.

    Args:
        files: The file of each range.
        options: For the package's reader.
    """

    def __init__(self, files: Sequence[File], *, options: str) -> None:
        self._files = tuple(files)
        self._readers = OpenFiles(_Opener(files, options))
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._headers: dict[str, IntArray] = {}

    def __getstate__(self) -> tuple[Any, ...]:
        return self._files, self._readers

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._files, self._readers = state
        self._start()

    def read(self, groups: Sequence[tuple[int, IntArray]]) -> list[bytes]:
        """Records of each file, several files side by side, end to end."""
        refuse_forked(LIBRARY, WHAT)
        if len(groups) == 1:
            return self._read_file(*groups[0])
        # A few runs of files, not a task per file: handing over costs more than a small read.
        size = -(-len(groups) // _READING_THREADS)
        runs = [groups[at : at + size] for at in range(0, len(groups), size)]
        futures = [self._threads().submit(self._read_run, run) for run in runs[1:]]
        try:
            records = self._read_run(runs[0])
            for future in futures:
                records += future.result()
        finally:
            for future in futures:
                future.cancel()
        return records

    def start(self, groups: Sequence[tuple[int, IntArray]], pool: Executor) -> Future[list[bytes]]:
        """The same as a task of `pool`."""
        return pool.submit(self.read, groups)

    def places(self, at: IntArray, groups: IntArray) -> Places:
        """Where record groups are stored: the headers of their files are read, once."""
        found = np.full((len(groups), 3), -1, np.int64)
        for number in set(at.tolist()):
            headers = self._walked(self._files[number])
            mine = (at == number) & (groups < len(headers))
            found[mine] = headers[groups[mine]]
        files = [self._files[number].path for number in at.tolist()]
        return Places(files, *found.T)

    def _walked(self, file: File) -> IntArray:
        """What the headers of a file's groups say, int64 `(groups, 3)`; fewer up to a damaged one."""
        found = self._headers.get(file.path)
        if found is None:
            found = self._headers[file.path] = _walked(file)
        return found

    def _threads(self) -> concurrent.futures.ThreadPoolExecutor:
        """Those that read several files side by side."""
        with self._lock:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(
                    _READING_THREADS, thread_name_prefix="windrow-array-record"
                )
            return self._pool

    def _read_run(self, groups: Sequence[tuple[int, IntArray]]) -> list[bytes]:
        return [record for at, inside in groups for record in self._read_file(at, inside)]

    def _read_file(self, at: int, inside: IntArray) -> list[bytes]:
        file, positions = self._files[at], inside.tolist()
        reader = self._readers.get(file.path)
        records: list[bytes] = []
        try:
            if len(positions) <= _SINGLY_RECORDS and _is_read_singly(file):
                for position in positions:
                    records += reader.read([position])
            else:
                records = reader.read(positions)
        except RuntimeError as error:
            raise self._damage(at, reader, inside, error) from error
        # The package answers b"" in silence for records of a file that was cut off meanwhile.
        if b"" in records:
            check_unchanged(file)
        return records

    def _damage(
        self, at: int, reader: Any, inside: IntArray, error: RuntimeError
    ) -> DamagedRecordError:
        # A group is checked as a whole, so one record tells of all of them.
        _, once = np.unique(inside // self._files[at].group, return_index=True)
        positions = inside[np.sort(once)].tolist()
        for candidate in positions:
            try:
                reader.read([candidate])
            except RuntimeError as single:
                return DamagedRecordError(at, candidate, str(single))
        return DamagedRecordError(at, positions[0], str(error))


def _is_read_singly(file: File) -> bool:
    """Whether a few records of a file are read one by one at less cost than in one call."""
    small = file.stored_bytes_each <= _SINGLY_BYTES
    return file.group == 1 and small and file.facts.chunks <= _SINGLY_CHUNKS


def _walked(file: File) -> IntArray:
    """What the headers of a file's groups say, int64 `(groups, 3)`; fewer where one is damaged."""
    try:
        at_once = indexed_places(file.path)
        if at_once is not None:
            return at_once
        found = chunk_places(file.path, file.facts.chunks)
    except OSError:
        found = []
    # A damaged header may say anything.
    most = np.iinfo(np.int64).max
    return np.array([[min(n, most) for n in one] for one in found], np.int64).reshape(-1, 3)


class _Opener:
    """Opens readers of files that were found whole."""

    def __init__(self, files: Sequence[File], options: str) -> None:
        self._files = {file.path: file for file in files}
        self._options = options

    def __call__(self, path: str) -> Any:
        check_unchanged(self._files[path])
        reader = open_reader(path, self._options)
        if not reader.ok():
            raise ReadError(
                f"{WHAT}: {path} can not be opened again: {why_broken(reader)}", file=path
            )
        return reader


def open_and_check(path: str, options: str) -> File:
    """A file of a local disk, opened with the package and found whole.

    Raises:
        ArgumentError: If the package refuses the options.
        NotFoundError: If it does not exist.
        SourceError: If it is broken, or of chunks that the package would read wrongly.
    """
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
    return asked_group(options) or (max(1, -(-records // chunks)) if chunks else 1)
