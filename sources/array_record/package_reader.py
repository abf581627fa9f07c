"""Reads local ArrayRecord files through the array_record package.

The package opens a missing or broken file silently, so this module first checks the ends of a file.

Invariant: a reader is opened only if the file still has the size that was checked. Many records are
read per call. The check reads the first chunk's header, the last 64 KiB and the footer's header, and
computes no hash: the package verifies them.
"""

from __future__ import annotations

import concurrent.futures
import os
import struct
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final, NamedTuple

import numpy as np

from windrow.core.process import refuse_forked
from windrow.errors import NotFoundError, ReadError, SourceError
from windrow.sources.array_record.chunks import (
    BLOCK,
    BLOCK_HEADER,
    CHUNK_HEADER,
    FIRST_CHUNK,
    USABLE,
    WHAT,
    Buffer,
    contiguous,
    leading_varint,
)
from windrow.sources.array_record.file_lru import OpenFileCache
from windrow.sources.array_record.files import ArrayRecordFile, FileFacts, check_unchanged
from windrow.sources.array_record.index import (
    POSTSCRIPT_BYTES,
    asked_group,
    cut_off,
    footer_place,
    why_no_index,
)
from windrow.sources.array_record.package import LIBRARY, open_reader, why_broken
from windrow.sources.array_record.records import DamagedRecordError, started_by_records
from windrow.sources.base import IntArray
from windrow.sources.remote.paths import what_is_there
from windrow.sources.scan import Places

_READING_THREADS: Final = 4
# In one call of up to 64 records the package passes each record to its own thread, for some 15 us.
# Read singly, a record costs 2 us, and 1.2 us per 1,000 chunks of its file, plus its decoding.
_SINGLY_RECORDS: Final = 64
_SINGLY_CHUNKS: Final = 8_000
_SINGLY_BYTES: Final = 8_192
_NO_INDEX: Final = "the index at its end is missing"
_HEADER: Final = struct.Struct("<QQQcI3xQ")  # the counts of these files fit 32 bits


class PackageReader:
    """Reads the records of files; a `RecordReader`.

    Args:
        files: The file of each range.
        options: Options of the package's reader.
    """

    def __init__(self, files: Sequence[ArrayRecordFile], *, options: str) -> None:
        self._files = tuple(files)
        self._readers = OpenFileCache(_PackageOpener(files, options))
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
        """Read records of each file, several files concurrently, and return them end to end."""
        refuse_forked(LIBRARY, WHAT)
        if len(groups) == 1:
            return self._read_file(*groups[0])
        # A few runs of files, not a task per file: a task costs more than a small read.
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

    def start(
        self, at: IntArray, first: IntArray, stop: IntArray, pool: Executor
    ) -> Future[Sequence[Sequence[bytes]]]:
        """Start reading record groups as a task of `pool`."""
        return started_by_records(lambda groups: pool.submit(self.read, groups), at, first, stop)

    def places(self, at: IntArray, groups: IntArray) -> Places:
        """The places of record groups, by the headers of their files, which are read once."""
        rows = np.full((len(groups), 3), -1, np.int64)
        for number in set(at.tolist()):
            headers = self._places_in(self._files[number])
            mine = (at == number) & (groups < len(headers))
            rows[mine] = headers[groups[mine]]
        files = [self._files[number].path for number in at.tolist()]
        return Places(files, *rows.T)

    def _places_in(self, file: ArrayRecordFile) -> IntArray:
        """The cached `_chunk_places` of a file."""
        places = self._headers.get(file.path)
        if places is None:
            places = self._headers[file.path] = _chunk_places(file)
        return places

    def _threads(self) -> concurrent.futures.ThreadPoolExecutor:
        """The threads that read several files concurrently."""
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
        # The package silently returns b"" for records of a file that was cut off meanwhile.
        if b"" in records:
            check_unchanged(file)
        return records

    def _damage(
        self, at: int, reader: Any, inside: IntArray, error: RuntimeError
    ) -> DamagedRecordError:
        # The package checks a group as a whole, so one record of it is enough.
        _, once = np.unique(inside // self._files[at].group, return_index=True)
        positions = inside[np.sort(once)].tolist()
        for candidate in positions:
            try:
                reader.read([candidate])
            except RuntimeError as single:
                return DamagedRecordError(at, candidate, str(single))
        return DamagedRecordError(at, positions[0], str(error))


def _is_read_singly(file: ArrayRecordFile) -> bool:
    """Whether it costs less to read a few records of a file one by one than in one call."""
    small = file.stored_bytes_each <= _SINGLY_BYTES
    return file.group == 1 and small and file.facts.chunks <= _SINGLY_CHUNKS


def _chunk_places(file: ArrayRecordFile) -> IntArray:
    """Begin, stored and decoded bytes of a file's groups, int64 `(groups, 3)`, up to a damaged one."""
    try:
        headers = chunk_places(file.path, file.facts.chunks)
    except OSError:
        headers = []
    # A damaged header may state anything.
    most = np.iinfo(np.int64).max
    return np.array([[min(n, most) for n in one] for one in headers], np.int64).reshape(-1, 3)


class _PackageOpener:
    """Opens readers of files that were found whole."""

    def __init__(self, files: Sequence[ArrayRecordFile], options: str) -> None:
        self._files = {file.path: file for file in files}
        self._options = options

    def __call__(self, path: str) -> Any:
        check_unchanged(self._files[path])
        reader = open_reader(path, self._options)
        if not reader.ok():
            raise ReadError(
                f"{WHAT}: {path} cannot be opened again: {why_broken(reader)}",
                file=path,
                is_unanswered=True,
            )
        return reader


def open_and_check(path: str, options: str) -> ArrayRecordFile:
    """Open a local file with the package, and check that it is whole.

    Raises:
        ArgumentError: If the package refuses the options.
        NotFoundError: If it does not exist.
        SourceError: If it is broken, or has chunks that the package would read wrongly.
    """
    facts = inspect_file(path)
    reader = open_reader(path, options)
    if not reader.ok():
        # Not closed: closing a reader that failed raises its error again.
        raise SourceError(
            f"{WHAT}: {path} is damaged: {why_broken(reader)}; write or copy it again"
        )
    records = int(reader.num_records())
    written_with = str(reader.writer_options_string())
    group = _group_size(written_with, records, facts.chunks)
    reader.close()
    # The package looks for record i in chunk i // group. With chunks of other sizes it would
    # silently return wrong records.
    if -(-records // group) != facts.chunks:
        raise SourceError(
            f"{WHAT}: {path} holds {records:,} records in {facts.chunks:,} chunks, which are not"
            f" all of {group:,} records; the array_record package would return wrong records."
            " Write the file again with the array_record package"
        )
    padded = "pad_to_block_boundary:true" in written_with
    return ArrayRecordFile(path, facts, records, group, padded)


def _group_size(options: str, records: int, chunks: int) -> int:
    """Records per chunk: by the writer's options, else by the counts."""
    return asked_group(options) or (max(1, -(-records // chunks)) if chunks else 1)


# ---- what the ends of a local file state


class _LocalChunk(NamedTuple):
    kind: bytes
    records: int
    data: Buffer
    data_bytes: int
    decoded_bytes: int


def inspect_file(path: str) -> FileFacts:
    """Check that `path` is a whole ArrayRecord file, by its two ends.

    Raises:
        NotFoundError: If it does not exist.
        SourceError: If it is empty, cut off, or not an ArrayRecord file.
    """
    try:
        with open(path, "rb") as file:
            return _inspect(path, file.fileno())
    except FileNotFoundError as error:
        raise NotFoundError(f"{WHAT}: {path} does not exist; {what_is_there(path)}") from error
    except OSError as error:
        raise SourceError(f"{WHAT}: {path} cannot be read: {error.strerror or error}") from error


def _inspect(path: str, fd: int) -> FileFacts:
    size = os.fstat(fd).st_size
    if why := why_no_index(path, os.pread(fd, FIRST_CHUNK, 0), size):
        raise SourceError(f"{WHAT}: {path} {why}")
    last = _chunk(fd, size - BLOCK, POSTSCRIPT_BYTES)
    is_postscript = (last.kind, last.records) == (b"r", 3)
    footer = footer_place(_first_record(last.data)) if is_postscript else None
    if footer is None or not 0 < footer < size - BLOCK:
        raise SourceError(f"{WHAT}: {path} {cut_off(_NO_INDEX, known=True)}")
    index = _chunk(fd, footer, 0)
    if index.kind != b"r" or index.records < 1:
        why = cut_off(f"there is no footer at byte {footer:,}", known=True)
        raise SourceError(f"{WHAT}: {path} {why}")
    first = _chunk(fd, FIRST_CHUNK, 0)
    has_data = index.records > 1 and first.kind in (b"r", b"t")
    return FileFacts(
        size_bytes=size,
        chunks=index.records - 1,
        data_bytes=footer - FIRST_CHUNK,
        first_stored_bytes=CHUNK_HEADER + first.data_bytes if has_data else 0,
        first_decoded_bytes=first.decoded_bytes if has_data else 0,
    )


def chunk_places(path: str, chunks: int) -> list[tuple[int, int, int]]:
    """The places of the data chunks of a file, by their headers, one after the other.

    Args:
        path: The file.
        chunks: Number of its data chunks.

    Returns:
        The begin, the bytes in the file and the bytes in memory of each chunk, up to the first
        damaged header.

    Raises:
        OSError: If the file cannot be read.
    """
    places: list[tuple[int, int, int]] = []
    with open(path, "rb") as file:
        size, begin = os.fstat(file.fileno()).st_size, FIRST_CHUNK
        while len(places) < chunks and begin < size:
            chunk = _chunk(file.fileno(), begin, 0)
            length = CHUNK_HEADER + chunk.data_bytes
            if chunk.kind in (b"r", b"t"):
                places.append((begin, length, chunk.decoded_bytes))
            elif chunk.kind != b"p":
                break
            # A block header lies in the chunk wherever a block begins in it.
            headers = (length + (begin + USABLE - 1) % BLOCK) // USABLE
            begin += length + headers * BLOCK_HEADER
    return places


def _first_record(data: Buffer) -> bytes:
    """The first record of an uncompressed chunk; empty if it is not one."""
    sizes = leading_varint(data, 1)
    first = None if sizes is None else leading_varint(data, sizes[1])
    if sizes is None or first is None or data[0]:
        return b""
    begin = sum(sizes)
    return bytes(data[begin : begin + first[0]])


def _chunk(fd: int, begin: int, data_bytes: int) -> _LocalChunk:
    """The header of the chunk at `begin`, and at most `data_bytes` of its data."""
    wanted = CHUNK_HEADER + data_bytes
    raw = contiguous(begin, os.pread(fd, wanted + 2 * BLOCK_HEADER, begin), 0, wanted)
    if len(raw) < CHUNK_HEADER:
        return _LocalChunk(b"", 0, b"", 0, 0)
    _, stored, _, kind, records, decoded = _HEADER.unpack_from(raw)
    return _LocalChunk(kind, records, raw[CHUNK_HEADER : CHUNK_HEADER + stored], stored, decoded)
