"""Chunks of ArrayRecord files, read by the array_record package from a file in memory.

The package reads local files alone. Chunks that were fetched from elsewhere, or that were made
here, are laid into a file of their own with an index at its end: the package then verifies the
hashes of each chunk's header and data, and decodes whatever its writers write.

Contract:
1. A chunk keeps its bytes. One with block headers within lies at the same place of a block as in
   the file it came from, since they tell how far its begin and end are; else it lies anywhere
   within a block.
2. What lies between chunks is never read, so it may be anything.
3. The index says of each chunk what its own header says, whose hash the caller has verified: the
   package ends the process where the two differ.
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

from windrow.sources.array_record_chunks import (
    BLOCK,
    BLOCK_HEADER,
    CHUNK_HEADER,
    FIRST_CHUNK,
    MAGIC,
    SIGNATURE,
    USABLE,
    Buffer,
    Ints,
    ends,
    made_block_headers,
    made_chunks,
    varint,
)
from windrow.sources.array_record_library import LIBRARY, open_reader, why_broken
from windrow.sources.process import refuse_forked

_OPTIONS: Final = "readahead_buffer_size:0,max_parallelism:0"
# A thread keeps a file of so much for its next call.
_KEPT_BYTES: Final = 16 << 20
# Of one reading, and of a chunk in it, beside decoding it and the bytes that are copied.
_CALL_S: Final = 350e-6
_CHUNK_S: Final = 8.5e-6


class Framed(NamedTuple):
    """A chunk as a file holds it, header and hash verified.

    Args:
        offset: Where it begins in that file.
        raw: The file's bytes from there on, block headers included.
        data_bytes: Bytes of its data, as its header says.
        records: Number of its records, as its header says; all but the last have equally many.
        decoded_bytes: Bytes of its records, as its header says.
    """

    offset: int
    raw: Buffer
    data_bytes: int
    records: int
    decoded_bytes: int


class UnreadableError(Exception):
    """The package can not read a chunk: its number in the list, and what it says."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(number, why)
        self.number, self.why = number, why


def read_chunks(chunks: Sequence[Framed]) -> list[list[bytes]]:
    """The records of each chunk, one chunk after the other, in the calling thread.

    Raises:
        UnreadableError: If the package refuses one.
        ReadError: If this process was forked from one that had used the package.
    """
    found: list[list[bytes]] = []
    try:
        with _opened(chunks) as reader:
            count = chunks[0].records
            for number, chunk in enumerate(chunks):
                # All in one call would be handed to the package's own threads: there, memory that
                # a hostile chunk asks for in vain ends the process. It costs more, too.
                begin = number * count
                found.append(reader.read(begin, begin + chunk.records))
    except (RuntimeError, MemoryError) as error:
        raise UnreadableError(len(found), _told(error)) from error
    return found


def read_range(chunk: Framed, start: int, stop: int) -> list[bytes]:
    """Records `[start, stop)` of one chunk; errors as of `read_chunks`."""
    try:
        with _opened([chunk]) as reader:
            records: list[bytes] = reader.read(start, stop)
            return records
    except (RuntimeError, MemoryError) as error:
        raise UnreadableError(0, _told(error)) from error


def seconds(chunks: int) -> float:
    """What one reading costs beyond decoding, estimated."""
    return _CALL_S + chunks * _CHUNK_S


@contextlib.contextmanager
def _opened(chunks: Sequence[Framed]) -> Iterator[Any]:
    refuse_forked(LIBRARY, "ArrayRecordDataSource")
    file = _files.get()
    file.write(chunks)
    reader = open_reader(file.path, _OPTIONS)
    try:
        if not reader.ok():
            raise RuntimeError(why_broken(reader))
        yield reader
    finally:
        # Closing a reader that failed raises its error once more.
        if reader.ok():
            reader.close()
        del reader
        file.shrink()


def _told(error: RuntimeError | MemoryError) -> str:
    """What the package says, without its name of the file in memory."""
    if isinstance(error, MemoryError):
        return "it asks for more memory than there is"
    return re.split(r"[;,]? (?:reading|opening) \S*(?:/proc/self/fd/|windrow-chunks)", str(error))[
        0
    ]


class _File:
    """A file without a name that a thread uses over and over."""

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
        """Give back what a large reading took."""
        if self._bytes > _KEPT_BYTES:
            os.ftruncate(self._fd, 0)
            self._bytes = 0

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)
        # In a forked child the name is still the parent's.
        if not self.path.startswith("/proc/") and self._owner == os.getpid():
            with contextlib.suppress(OSError):
                os.unlink(self.path)


class _Files(threading.local):
    """The file of each thread, made at its first use."""

    def __init__(self) -> None:
        self._file: _File | None = None
        self._owner = 0

    def get(self) -> _File:
        # A forked child shares its parent's files; writing to them would change what it reads.
        if self._file is None or self._owner != os.getpid():
            self._file, self._owner = _File(), os.getpid()
        return self._file


_files: Final = _Files()


def _placed(chunk: Framed, at: int) -> tuple[int, Buffer]:
    """Where the chunk goes, at `at` or behind, and the bytes to write there."""
    begin = chunk.offset + (BLOCK_HEADER if chunk.offset % BLOCK == 0 else 0)
    size = CHUNK_HEADER + chunk.data_bytes
    room = max(size, chunk.records)
    if begin % BLOCK + room <= BLOCK:
        # No block header within: it fits behind the one of any block that has the room.
        place = at if at % BLOCK > BLOCK_HEADER else at - at % BLOCK + BLOCK_HEADER + 1
        if place % BLOCK + room > BLOCK:
            place = -(-place // BLOCK) * BLOCK + BLOCK_HEADER + 1
        if place % BLOCK + room <= BLOCK:
            return place, chunk.raw[begin - chunk.offset : begin - chunk.offset + size]
    place = at + (chunk.offset - at) % BLOCK
    stop = int(ends(_int(chunk.offset), _int(chunk.data_bytes))[0])
    return place, chunk.raw[: stop - chunk.offset]


def _span(place: int, records: int) -> int:
    """Bytes that a chunk takes at least: one per record, up to where a chunk can begin."""
    stop = place + records
    return records + max(0, -stop % BLOCK - (BLOCK - BLOCK_HEADER - 1))


def _write_end(fd: int, at: int, laid: Sequence[int], chunks: Sequence[Framed]) -> int:
    """Write index and postscript behind `at`; the size of the whole file."""
    records = sum(chunk.records for chunk in chunks)
    about = b"\x08\x01\x10" + varint(len(chunks)) + b"\x18" + varint(records)
    rows = [
        b"\x08%b\x10%b\x18%b" % (varint(place), varint(chunk.decoded_bytes), varint(chunk.records))
        for place, chunk in zip(laid, chunks, strict=True)
    ]
    footer_at = -(-at // BLOCK) * BLOCK
    told = b"\x08" + varint(footer_at) + b"\x10" + varint(MAGIC)
    contents = [_simple([b"\x0a" + varint(len(about)) + about, *rows]), _simple([told] * 3)]
    footer, postscript = _framed(made_chunks(contents))
    _write_at(fd, footer, footer_at)
    last = -(-(footer_at + len(footer)) // BLOCK) * BLOCK
    _write_at(fd, postscript, last)
    return last + BLOCK


def _simple(records: Sequence[bytes]) -> tuple[bytes, int, int]:
    """Data of a chunk of records, not compressed; how many they are, and their bytes."""
    sizes, values = b"".join(varint(len(one)) for one in records), b"".join(records)
    return b"\0" + varint(len(sizes)) + sizes + values, len(records), len(values)


def _framed(chunks: Sequence[bytes]) -> list[bytes]:
    """The bytes of chunks of which each begins a block, with their block headers."""
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
