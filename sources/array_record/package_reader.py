"""Reads local ArrayRecord files through the array_record package: the way without the native core.

It is also the way of `direct=False` and of options of the package's reader.

Invariant: the package opens a missing or broken file silently, so a reader is opened only if the file
still has the size that was checked. The check reads the first chunk's header, the last 64 KiB and the
footer's header, and computes no hash: the package verifies them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import struct
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final, NamedTuple

import numpy as np

from windrow.core.process import refuse_forked
from windrow.errors import ArgumentError, NotFoundError, ReadError, SourceError
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
from windrow.sources.array_record.records import DamagedRecordError, started_by_records
from windrow.sources.base import IntArray
from windrow.sources.remote.paths import what_is_there
from windrow.sources.scan import Places

LIBRARY: Final = "array_record"
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

    def read(self, groups: Sequence[tuple[int, IntArray]]) -> list[bytes]:
        """Read records of each file, and return them end to end."""
        refuse_forked(LIBRARY, WHAT)
        return [record for at, inside in groups for record in self._read_file(at, inside)]

    def start(
        self, at: IntArray, first: IntArray, stop: IntArray, pool: Executor
    ) -> Future[Sequence[Sequence[bytes]]]:
        """Start reading record groups as a task of `pool`."""
        return started_by_records(lambda groups: pool.submit(self.read, groups), at, first, stop)

    def places(self, at: IntArray, groups: IntArray) -> Places:
        """The places of record groups, by the headers of their files."""
        rows = np.full((len(groups), 3), -1, np.int64)
        for number in set(at.tolist()):
            headers = chunk_places(self._files[number])
            mine = (at == number) & (groups < len(headers))
            rows[mine] = headers[groups[mine]]
        files = [self._files[number].path for number in at.tolist()]
        return Places(files, *rows.T)

    def _read_file(self, at: int, inside: IntArray) -> list[bytes]:
        file = self._files[at]
        reader = self._readers.get(file.path)
        try:
            records: list[bytes] = reader.read(inside.tolist())
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


class _PackageOpener:
    """Opens readers of files that were found whole."""

    def __init__(self, files: Sequence[ArrayRecordFile], options: str) -> None:
        self._files = {file.path: file for file in files}
        self._options = options

    def __call__(self, path: str) -> Any:
        check_unchanged(self._files[path])
        reader = _open_reader(path, self._options)
        if not reader.ok():
            raise ReadError(
                f"{WHAT}: {path} cannot be opened again: {_why_broken(reader)}",
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
    facts = _inspect_file(path)
    reader = _open_reader(path, options)
    if not reader.ok():
        # Not closed: closing a reader that failed raises its error again.
        raise SourceError(
            f"{WHAT}: {path} is damaged: {_why_broken(reader)}; write or copy it again"
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
    facts = dataclasses.replace(facts, written_with=written_with)
    return ArrayRecordFile(path, facts, records, group, padded)


def _open_reader(path: str, options: str) -> Any:
    """The package's reader of a file, which may be not `ok()`."""
    # Imported here: many chains never read this format.
    from array_record.python import array_record_module

    try:
        return array_record_module.ArrayRecordReader(path, options)
    except (ValueError, RuntimeError) as error:
        raise ArgumentError(f"{WHAT}: reader_options {options!r} were refused: {error}") from error


def _why_broken(reader: Any) -> str:
    """The reason why a reader did not open, which only a read reports."""
    try:
        reader.read([0])
    except (RuntimeError, IndexError) as error:
        return str(error)
    return "the array_record package could not open it and gives no reason"


def _group_size(options: str, records: int, chunks: int) -> int:
    """Records per chunk: by the writer's options, else by the counts."""
    return asked_group(options) or (max(1, -(-records // chunks)) if chunks else 1)


# ---- what a local file states


class _LocalChunk(NamedTuple):
    kind: bytes
    records: int
    data: Buffer
    data_bytes: int
    decoded_bytes: int


def _inspect_file(path: str) -> FileFacts:
    """The facts at the two ends of a whole file."""
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


@functools.lru_cache(maxsize=64)
def chunk_places(file: ArrayRecordFile) -> IntArray:
    """The places of the data chunks of a file, by their headers, up to a damaged one.

    Returns:
        The begin, the bytes in the file and the bytes in memory of each chunk: int64 `(chunks, 3)`.
    """
    places: list[tuple[int, ...]] = []
    # A damaged header may state anything.
    most = int(np.iinfo(np.int64).max)
    with contextlib.suppress(OSError), open(file.path, "rb") as opened:
        begin = FIRST_CHUNK
        while len(places) < file.facts.chunks and begin < file.facts.size_bytes:
            chunk = _chunk(opened.fileno(), begin, 0)
            length = CHUNK_HEADER + chunk.data_bytes
            if chunk.kind in (b"r", b"t"):
                places.append((begin, min(length, most), min(chunk.decoded_bytes, most)))
            elif chunk.kind != b"p":
                break
            # A block header lies in the chunk wherever a block begins in it.
            headers = (length + (begin + USABLE - 1) % BLOCK) // USABLE
            begin += length + headers * BLOCK_HEADER
    return np.array(places, np.int64).reshape(-1, 3)


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
