"""The array_record package: its reader of local files, and a decoder of chunks in memory.

The package reads local files only. To decode fetched chunks, this module writes them into a file in
memory with an index at its end. The package then verifies the hashes of each chunk's header and
data, and decodes whatever its writers write. The package is imported at its first use.

Contract:
1. A chunk keeps its bytes. A chunk with block headers inside keeps its place within a block, since
   the block headers state the distances to its begin and end. Other chunks lie anywhere in a block.
2. The bytes between chunks are never read, so they may be anything.
3. The index repeats each chunk's own header, whose hash the caller has verified: the package ends
   the process if the two differ.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from windrow.core.process import refuse_forked
from windrow.errors import ArgumentError
from windrow.sources.array_record.chunks import (
    BLOCK,
    BLOCK_HEADER,
    CHUNK_HEADER,
    FIRST_CHUNK,
    MAGIC,
    SIGNATURE,
    USABLE,
    WHAT,
    Buffer,
    Ints,
    ends,
    made_block_headers,
    made_chunks,
    varint,
)

LIBRARY: Final = "array_record"
_OPTIONS: Final = "readahead_buffer_size:0,max_parallelism:0"
# A thread keeps a file of at most this size for its next call.
_KEPT_BYTES: Final = 16 << 20
# The cost of one reading, and of each chunk in it, without decoding and copying its bytes.
_CALL_S: Final = 350e-6
_CHUNK_S: Final = 8.5e-6


def open_reader(path: str, options: str) -> Any:
    """The package's reader of a file, which may be not `ok()`.

    Raises:
        ArgumentError: If the package refuses the options.
    """
    # Imported here: many chains never read this format.
    from array_record.python import array_record_module

    try:
        with _starting_patient_threads():
            return array_record_module.ArrayRecordReader(path, options)
    except (ValueError, RuntimeError) as error:
        raise ArgumentError(f"{WHAT}: reader_options {options!r} were refused: {error}") from error


@contextlib.contextmanager
def _starting_patient_threads() -> Iterator[None]:
    """Start threads that wait for their turn and do not preempt other threads.

    The package starts 64 threads with its first reader, and wakes all of them for each read. As
    ordinary threads they preempt one another and the threads that run Python: on two idle cores,
    reading and the chain after it are then 6% to 11% slower.
    """
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield  # the user has chosen a policy for the process
        return
    _schedule_as(os.SCHED_BATCH)
    try:
        yield
    finally:
        _schedule_as(os.SCHED_OTHER)


def _schedule_as(policy: int) -> None:
    # A sandbox may forbid it; it only affects speed.
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, policy, os.sched_param(0))


def why_broken(reader: Any) -> str:
    """The reason why a reader did not open, which only a read reports."""
    try:
        reader.read([0])
    except (RuntimeError, IndexError) as error:
        return str(error)
    return "the array_record package could not open it and gives no reason"


class Framed(NamedTuple):
    """A chunk in the bytes of its file; its header and hash are verified.

    Args:
        offset: Where it begins in that file.
        raw: The file's bytes from there on, with block headers.
        data_bytes: Bytes of its data, by its header.
        records: Number of its records, by its header; all chunks except the last have the same.
        decoded_bytes: Bytes of its records, by its header.
    """

    offset: int
    raw: Buffer
    data_bytes: int
    records: int
    decoded_bytes: int


class UnreadableError(Exception):
    """The package cannot read a chunk: its number in the list, and the package's message."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(number, why)
        self.number, self.why = number, why


def read_chunks(chunks: Sequence[Framed]) -> list[list[bytes]]:
    """Decode the records of each chunk, one chunk after the other, in the calling thread.

    Raises:
        UnreadableError: If the package refuses a chunk.
        ReadError: If this process was forked from a process that had used the package.
    """
    records: list[list[bytes]] = []
    try:
        with _opened(chunks) as reader:
            count = chunks[0].records
            for number, chunk in enumerate(chunks):
                # One call for all would run in the package's own threads, where a hostile chunk
                # that requests too much memory ends the process. It also costs more.
                begin = number * count
                records.append(reader.read(begin, begin + chunk.records))
    except (RuntimeError, MemoryError) as error:
        raise UnreadableError(len(records), _message(error)) from error
    return records


def read_range(chunk: Framed, start: int, stop: int) -> list[bytes]:
    """Records `[start, stop)` of one chunk. Raises the errors of `read_chunks`."""
    try:
        with _opened([chunk]) as reader:
            records: list[bytes] = reader.read(start, stop)
            return records
    except (RuntimeError, MemoryError) as error:
        raise UnreadableError(0, _message(error)) from error


def seconds(chunks: int) -> float:
    """The estimated cost of one reading without decoding."""
    return _CALL_S + chunks * _CHUNK_S


@contextlib.contextmanager
def _opened(chunks: Sequence[Framed]) -> Iterator[Any]:
    refuse_forked(LIBRARY, WHAT)
    file = _files.get()
    file.write(chunks)
    reader = open_reader(file.path, _OPTIONS)
    try:
        if not reader.ok():
            raise RuntimeError(why_broken(reader))
        yield reader
    finally:
        # Closing a reader that failed raises its error again.
        if reader.ok():
            reader.close()
        del reader
        file.shrink()


def _message(error: RuntimeError | MemoryError) -> str:
    """The package's message, without the name of the file in memory."""
    if isinstance(error, MemoryError):
        return "it asks for more memory than there is"
    return re.split(r"[;,]? (?:reading|opening) \S*(?:/proc/self/fd/|windrow-chunks)", str(error))[
        0
    ]


class _MemoryFile:
    """A file without a name that a thread uses again and again."""

    def __init__(self) -> None:
        if sys.platform == "linux":
            self._fd = os.memfd_create("windrow-chunks", os.MFD_CLOEXEC)
            self.path = f"/proc/self/fd/{self._fd}"
        else:
            self._fd, self.path = tempfile.mkstemp(prefix="windrow-chunks-")
        self._bytes = 0
        self._owner = os.getpid()

    def write(self, chunks: Sequence[Framed]) -> None:
        laid, at = [], FIRST_CHUNK
        os.pwrite(self._fd, SIGNATURE, 0)
        for chunk in chunks:
            at, raw = _placed(chunk, at)
            _write_at(self._fd, raw, at)
            laid.append(at)
            at += max(len(raw), _span(at, chunk.records))
        size = _write_end(self._fd, at, laid, chunks)
        os.ftruncate(self._fd, size)
        self._bytes = size

    def shrink(self) -> None:
        """Free the memory of a large reading."""
        if self._bytes > _KEPT_BYTES:
            os.ftruncate(self._fd, 0)
            self._bytes = 0

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)
        # In a forked child the name still belongs to the parent.
        if not self.path.startswith("/proc/") and self._owner == os.getpid():
            with contextlib.suppress(OSError):
                os.unlink(self.path)


class _Files(threading.local):
    """The file of each thread, made at its first use."""

    def __init__(self) -> None:
        self._file: _MemoryFile | None = None
        self._owner = 0

    def get(self) -> _MemoryFile:
        # A forked child shares its parent's files; writing to them would change what it reads.
        if self._file is None or self._owner != os.getpid():
            self._file, self._owner = _MemoryFile(), os.getpid()
        return self._file


_files: Final = _Files()


def _placed(chunk: Framed, at: int) -> tuple[int, Buffer]:
    """The place for the chunk, at `at` or after it, and the bytes to write there."""
    begin = chunk.offset + (BLOCK_HEADER if chunk.offset % BLOCK == 0 else 0)
    size = CHUNK_HEADER + chunk.data_bytes
    room = max(size, chunk.records)
    if begin % BLOCK + room <= BLOCK:
        # No block header inside: it fits after the block header of any block with enough room.
        place = at if at % BLOCK > BLOCK_HEADER else at - at % BLOCK + BLOCK_HEADER + 1
        if place % BLOCK + room > BLOCK:
            place = -(-place // BLOCK) * BLOCK + BLOCK_HEADER + 1
        if place % BLOCK + room <= BLOCK:
            return place, chunk.raw[begin - chunk.offset : begin - chunk.offset + size]
    place = at + (chunk.offset - at) % BLOCK
    stop = int(ends(_int(chunk.offset), _int(chunk.data_bytes))[0])
    return place, chunk.raw[: stop - chunk.offset]


def _span(place: int, records: int) -> int:
    """The least bytes that a chunk takes: one per record, up to the next possible begin of a chunk."""
    stop = place + records
    return records + max(0, -stop % BLOCK - (BLOCK - BLOCK_HEADER - 1))


def _write_end(fd: int, at: int, laid: Sequence[int], chunks: Sequence[Framed]) -> int:
    """Write the index and the postscript after `at`, and return the size of the file."""
    records = sum(chunk.records for chunk in chunks)
    about = b"\x08\x01\x10" + varint(len(chunks)) + b"\x18" + varint(records)
    rows = [
        b"\x08%b\x10%b\x18%b" % (varint(place), varint(chunk.decoded_bytes), varint(chunk.records))
        for place, chunk in zip(laid, chunks, strict=True)
    ]
    footer_at = -(-at // BLOCK) * BLOCK
    end = b"\x08" + varint(footer_at) + b"\x10" + varint(MAGIC)
    contents = [_simple([b"\x0a" + varint(len(about)) + about, *rows]), _simple([end] * 3)]
    footer, postscript = _framed(made_chunks(contents))
    _write_at(fd, footer, footer_at)
    last = -(-(footer_at + len(footer)) // BLOCK) * BLOCK
    _write_at(fd, postscript, last)
    return last + BLOCK


def _simple(records: Sequence[bytes]) -> tuple[bytes, int, int]:
    """The data of an uncompressed chunk, the number of its records, and their bytes."""
    sizes, values = b"".join(varint(len(one)) for one in records), b"".join(records)
    return b"\0" + varint(len(sizes)) + sizes + values, len(records), len(values)


def _framed(chunks: Sequence[bytes]) -> list[bytes]:
    """The bytes of chunks that each begin a block, with their block headers."""
    parts = [[one[at : at + USABLE] for at in range(0, len(one), USABLE)] for one in chunks]
    sizes = [len(one) + BLOCK_HEADER * len(some) for one, some in zip(chunks, parts, strict=True)]
    made = iter(
        made_block_headers(
            [
                (block * BLOCK, size - block * BLOCK)
                for size, some in zip(sizes, parts, strict=True)
                for block in range(len(some))
            ]
        )
    )
    return [b"".join(next(made) + part for part in some) for some in parts]


def _write_at(fd: int, data: Buffer, at: int) -> None:
    view = memoryview(data)
    while len(view):
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done


def _int(value: int) -> Ints:
    return np.array([value], np.int64)
