"""Decodes whole chunks of ArrayRecord files into their records.

The native core does it, on all cores and without the interpreter's lock. Where it is missing, the
array_record package does, from a file in memory (`package`): some 350 us for a call and 8.5 us more
for each chunk. The package verifies the hashes; this module first checks for data that would crash
the package.

Invariant: a chunk's header is as it was written, and its records have the number and the total size
that it counts. With `verify="all"` the records are as they were written; otherwise a changed bit
within compressed data may go unnoticed. A chunk that cannot be decoded is a `ChunkError`. A header
cannot make this module allocate more memory than its chunk can decompress to. A chunk does not state
its place: a chunk in the place of another with as many records is taken for it, as by the package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from windrow.core.native import native
from windrow.core.system_errors import lacks_memory
from windrow.sources.array_record import package
from windrow.sources.array_record.chunks import (
    SIMPLE,
    TRANSPOSED,
    Buffer,
    Header,
    Ints,
    end,
    header_of,
    is_chunk_begin,
    varints,
)
from windrow.sources.array_record.highway_hash import hashes_of

Verify = Literal["all", "headers"]

PLAIN: Final = 0
ZSTD: Final = ord("z")
BROTLI: Final = ord("b")
SNAPPY: Final = ord("s")
_MOST_BYTES: Final = 1 << 31
# The most bytes that a byte of data can decompress to. A block of zstd has 128 KiB from at least 4
# bytes, a block of brotli 16 MiB from a few, and a copy of snappy 64 bytes from 3.
_EXPANSION: Final = {PLAIN: 1, ZSTD: 1 << 15, BROTLI: 1 << 24, SNAPPY: 32}
_MOST_RECORDS: Final = 1 << 26
_SPARE_BYTES: Final = 1 << 16
# Entries of an index that the package returns at a time.
_AT_ONCE: Final = 1 << 18
_WRONG_HEADER: Final = "its header hash is wrong"
_NOT_AN_INDEX: Final = "its index does not hold three numbers per chunk"


class StoredChunk(NamedTuple):
    """A chunk as stored in its file.

    Args:
        offset: Where it begins in the file.
        data: The file's bytes from there on, with block headers, at least to its end.
        records: The number of its records by the file's index.
    """

    offset: int
    data: Buffer
    records: int


class ChunkError(Exception):
    """A chunk cannot be decoded.

    Args:
        chunk: Its number in the list.
        why: The reason, as a clause that follows its name.
    """

    def __init__(self, chunk: int, why: str) -> None:
        super().__init__(chunk, why)
        self.chunk, self.why = chunk, why

    def __str__(self) -> str:
        return f"chunk {self.chunk}: {self.why}"


def decode(chunks: Sequence[StoredChunk], *, verify: Verify = "all") -> list[list[bytes]]:
    """The records of each chunk.

    Args:
        chunks: Chunks of one file or several.
        verify: "headers" skips the hashes of data where the native core decodes.

    Raises:
        ChunkError: If a chunk is damaged, cut off, or does not match the index.
        ReadError: If a chunk needs the array_record package, and this process was forked from one
            that had used it.
    """
    core = native()
    if core is None:
        return _through_package(chunks)
    for number, (offset, _, _) in enumerate(chunks):
        if offset < 0:
            raise ChunkError(number, f"no chunk can begin at byte {offset:,}")
    records: list[list[bytes]] = _asked(core.array_record_decode, list(chunks), verify == "all")
    return records


def decode_index(offset: int, raw: Buffer) -> tuple[bytes, Ints]:
    """The records of a file's footer: the one about the file, and the entries of its chunks.

    Args:
        offset: Where the footer begins in the file.
        raw: The file's bytes from there on.

    Returns:
        The first record, and for each chunk its begin, bytes in memory and records, int64
        `(chunks, 3)`.

    Raises:
        ChunkError: If the footer is damaged, or does not hold these numbers.
    """
    core = native()
    if core is None:
        return _index_through_package(offset, raw)
    found = _asked(core.array_record_index, offset, raw)
    if found is None:
        raise ChunkError(0, _NOT_AN_INDEX)
    about, entries = found
    return about, np.frombuffer(entries, np.int64).reshape(-1, 3)


def _asked(function: Callable[..., Any], *args: Any) -> Any:
    """What a function of the core returns; its errors as ours, which can be pickled with their context."""
    core: Any = native()
    try:
        return function(*args)
    except core.ChunkError as error:
        told = error.args
    if lacks_memory(told[1]):
        raise MemoryError(f"chunk {told[0]}: {told[1]}")
    raise ChunkError(*told)


def _through_package(chunks: Sequence[StoredChunk]) -> list[list[bytes]]:
    """Records of the chunks; the package always verifies their data."""
    framed = []
    for number, (offset, raw, counted) in enumerate(chunks):
        header = header_of(offset, raw)
        if why := _refused(header, offset, raw, counted):
            raise ChunkError(number, why)
        framed.append(_framed(header, offset, raw))
    by_number: dict[int, list[bytes]] = {}
    # The package assumes that all chunks of a file have the same number of records.
    for count in sorted({chunk.records for chunk in framed}):
        group = [at for at, chunk in enumerate(framed) if chunk.records == count]
        for at, some in zip(group, _read([framed[at] for at in group], group), strict=True):
            if len(some) != count or sum(map(len, some)) != framed[at].decoded_bytes:
                why = f"the package did not return the {count:,} records that it counts"
                raise ChunkError(at, why)
            by_number[at] = some
    return [by_number[at] for at in range(len(framed))]


def _read(framed: Sequence[package.Framed], numbers: Sequence[int]) -> list[list[bytes]]:
    try:
        return package.read_chunks(framed)
    except package.UnreadableError as error:
        number = error.number
        raise ChunkError(numbers[number], _why(framed[number], error)) from error


def _index_through_package(offset: int, raw: Buffer) -> tuple[bytes, Ints]:
    header = header_of(offset, raw)
    if why := _refused(header, offset, raw, header.records):
        raise ChunkError(0, why)
    chunk = _framed(header, offset, raw)
    entries = np.empty((chunk.records - 1, 3), np.int64)
    try:
        about = package.read_range(chunk, 0, 1)[0]
        for first in range(0, len(entries), _AT_ONCE):
            last = min(first + _AT_ONCE, len(entries))
            joined = b"".join(package.read_range(chunk, first + 1, last + 1))
            _parse_entries(joined, entries[first:last])
    except package.UnreadableError as error:
        raise ChunkError(0, _why(chunk, error)) from error
    return about, entries


def _parse_entries(raw: bytes, into: Ints) -> None:
    """Parse begin, bytes and records of each chunk; writers always write the three fields in order."""
    values = varints(np.frombuffer(raw, np.uint8), 6 * len(into))
    if values is None or not bool((values.reshape(-1, 6)[:, 0::2] == (0x08, 0x10, 0x18)).all()):
        raise ChunkError(0, _NOT_AN_INDEX)
    into[:] = values.reshape(-1, 6)[:, 1::2]


def _why(chunk: package.Framed, error: package.UnreadableError) -> str:
    if not _is_right(header_of(chunk.offset, chunk.raw)):
        return _WRONG_HEADER
    if "chunk data hash mismatch" in error.why:
        return "its data hash is wrong"
    if "hash" in error.why.lower() or "data corrupted" in error.why.lower():
        return f"its data hash is wrong, or the hash of a block header in it: {error.why}"
    return error.why


def _framed(header: Header, offset: int, raw: Buffer) -> package.Framed:
    return package.Framed(offset, raw, header.data_bytes, header.records, header.decoded_bytes)


def _refused(header: Header, offset: int, raw: Buffer, counted: int) -> str | None:
    """Why a chunk whose header is impossible is refused; None if the package may verify and read it."""
    if not is_chunk_begin(offset):
        return f"no chunk can begin at byte {offset:,}"
    if len(raw) < end(offset, 0) - offset:
        return f"it is cut off: {len(raw):,} of its bytes exist"
    why = _impossible(header, counted) or _too_long(header, offset, raw)
    return _WRONG_HEADER if why and not _is_right(header) else why


def _is_right(header: Header) -> bool:
    return int(hashes_of([header.body])[0]) == header.own_hash


def _impossible(header: Header, counted: int) -> str | None:
    if header.kind not in (SIMPLE, TRANSPOSED):
        return f"its header has the type {chr(header.kind)!r}; only 'r' and 't' have records"
    if header.records != counted:
        return f"it holds {header.records:,} records and the index counts {counted:,}"
    if header.data_bytes > _MOST_BYTES:
        return f"its header counts {header.data_bytes:,} bytes of data, more than {_MOST_BYTES:,}"
    if not 0 < header.records <= _MOST_RECORDS:
        return f"it counts {header.records:,} records; 1 to {_MOST_RECORDS:,} are possible"
    return None if header.data_bytes else "it has no data"


def _too_long(header: Header, offset: int, raw: Buffer) -> str | None:
    """The reason why a chunk does not hold the records that its header counts."""
    needed = end(offset, header.data_bytes) - offset
    if needed > len(raw):
        return f"it is cut off: {len(raw):,} of its {needed:,} bytes exist"
    # In transposed chunks the first byte is the compression of their parts, whose expansion is unknown.
    most = max(_EXPANSION.values())
    factor = most if header.kind == TRANSPOSED else _EXPANSION.get(header.packing, most)
    if header.decoded_bytes <= min(header.data_bytes * factor + _SPARE_BYTES, _MOST_BYTES):
        return None
    return (
        f"its header counts {header.records:,} records of {header.decoded_bytes:,} bytes together,"
        f" more than its {header.data_bytes:,} bytes can hold"
    )
