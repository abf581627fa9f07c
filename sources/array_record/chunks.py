"""Chunks of ArrayRecord files: the places of their bytes, and their headers.

A file is a run of chunks: 40 bytes of header, then data. A block header of 24 bytes lies at each
multiple of 65,536 bytes of the file. It may interrupt a chunk, even its header of 40 bytes, and does
not belong to the chunk's own bytes.

Invariant: nothing is read outside the given buffers, whatever they contain.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.sources.array_record.highway_hash import hashes_of

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Buffer = bytes | bytearray | memoryview

# The reader's name in errors.
WHAT: Final = "ArrayRecordDataSource"
BLOCK: Final = 65536
BLOCK_HEADER: Final = 24
USABLE: Final = BLOCK - BLOCK_HEADER
CHUNK_HEADER: Final = 40
# The first chunk of a file, which holds no records. The next chunk begins after it.
SIGNATURE: Final = bytes.fromhex(
    "83af70d10d884a3f00000000000000004000000000000000"
    "91bac23c9287e1a90000000000000000e19f13c0e9b1c3727300000000000000"
    "0000000000000000"
)
FIRST_CHUNK: Final = len(SIGNATURE)
# The number in the postscript of every ArrayRecord file.
MAGIC: Final = 0x71930E704FDAE05E
SIMPLE: Final = ord("r")
TRANSPOSED: Final = ord("t")
_HEADER: Final = struct.Struct("<5Q")


class Header(NamedTuple):
    """The header of a chunk, whose hash is not verified; absurd numbers are possible.

    Args:
        own_hash: The hash that it states of itself.
        body: Its other bytes.
        kind: Type byte.
        data_bytes: Bytes of data, without block headers.
        records: Number of records.
        decoded_bytes: Bytes of all its records.
        packing: The first byte of its data, 0 without data.
    """

    own_hash: int
    body: bytes
    kind: int
    data_bytes: int
    records: int
    decoded_bytes: int
    packing: int


def header_of(offset: int, raw: Buffer) -> Header:
    """The header of the chunk that begins at `offset`; zeros replace missing bytes.

    Args:
        offset: Where the chunk begins in the file.
        raw: The file's bytes from there on.
    """
    head = bytes(contiguous(offset, raw, 0, CHUNK_HEADER + 1)).ljust(CHUNK_HEADER + 1, b"\0")
    own_hash, data_bytes, _, counted, decoded_bytes = _HEADER.unpack_from(head)
    return Header(
        own_hash=own_hash,
        body=head[8:CHUNK_HEADER],
        kind=counted & 0xFF,
        data_bytes=data_bytes,
        records=counted >> 8,
        decoded_bytes=decoded_bytes,
        packing=head[CHUNK_HEADER],
    )


def is_chunk_begin(offset: int) -> bool:
    """Whether a chunk can begin there: at a block header or after it, not within it."""
    return bool(are_chunk_begins(np.array([offset], np.int64))[0])


def are_chunk_begins(offsets: Ints) -> npt.NDArray[np.bool_]:
    """Whether a chunk can begin at each offset."""
    inside = offsets % BLOCK
    allowed: npt.NDArray[np.bool_] = (offsets >= 0) & ((inside == 0) | (inside > BLOCK_HEADER))
    return allowed


def places(offset: Ints, at: Ints) -> Ints:
    """Positions in the file of the bytes `at` of chunks that begin at `offset`."""
    begin = np.where(offset % BLOCK == 0, offset + BLOCK_HEADER, offset)
    room = BLOCK - begin % BLOCK
    skipped = np.where(at < room, 0, BLOCK_HEADER * (1 + (at - room) // USABLE))
    positions: Ints = begin + at + skipped
    return positions


def ends(offset: Ints, data_bytes: Ints) -> Ints:
    """Positions in the file after the last data byte of chunks, with block headers."""
    return places(offset, CHUNK_HEADER + data_bytes - 1) + 1


def end(offset: int, data_bytes: int) -> int:
    """Position in the file after the last data byte of one chunk, with block headers."""
    size = CHUNK_HEADER + data_bytes
    begin = offset + (BLOCK_HEADER if offset % BLOCK == 0 else 0)
    room = BLOCK - begin % BLOCK
    headers = 0 if size <= room else 1 + (size - 1 - room) // USABLE
    return begin + size + headers * BLOCK_HEADER


def contiguous(offset: int, raw: Buffer, start: int, stop: int) -> Buffer:
    """Bytes `[start, stop)` of the chunk that begins at `offset`, without block headers.

    Args:
        offset: Where the chunk begins in the file.
        raw: The file's bytes from there on.
        start: First byte of the chunk; 40 is its first data byte.
        stop: The end of the bytes in the chunk.

    Returns:
        A view or slice of `raw` if no block header lies within, else a copy; shorter if `raw` is.
    """
    if offset % BLOCK == 0:
        begin, room = BLOCK_HEADER, USABLE
    else:
        begin, room = 0, BLOCK - offset % BLOCK
    if stop <= room:
        return raw[begin + start : begin + stop]
    parts = []
    while start < stop:
        if start < room:
            upto, skip = min(room, stop), 0
        else:
            blocks = (start - room) // USABLE
            upto, skip = min(stop, room + (blocks + 1) * USABLE), BLOCK_HEADER * (1 + blocks)
        parts.append(raw[begin + skip + start : begin + skip + upto])
        start = upto
    return b"".join(parts)


def made_chunks(contents: Sequence[tuple[bytes, int, int]]) -> list[bytes]:
    """Make simple chunks, without block headers, from the data, records and decoded bytes of each."""
    bodies = [
        struct.pack("<QQQQ", len(data), data_hash, SIMPLE | records << 8, decoded)
        for (data, records, decoded), data_hash in zip(
            contents, hashes_of([one[0] for one in contents]).tolist(), strict=True
        )
    ]
    heads_ = (struct.pack("<Q", own) + body for own, body in _with_hashes(bodies))
    return [head + one[0] for head, one in zip(heads_, contents, strict=True)]


def made_block_headers(distances: Sequence[tuple[int, int]]) -> list[bytes]:
    """Make block headers, each from the distances to the begin and the end of its chunk."""
    bodies = [struct.pack("<QQ", before, after) for before, after in distances]
    return [struct.pack("<Q", own) + body for own, body in _with_hashes(bodies)]


def _with_hashes(bodies: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    # All at once: ten hashes take 50 us, as long as one.
    return zip(hashes_of(bodies).tolist(), bodies, strict=True)


def varint(value: int) -> bytes:
    """`value` in groups of seven bits, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varints(data: Bytes, count: int = -1) -> Ints | None:
    """The varints that make up `data`, int64; None if their number is not `count`.

    Args:
        data: uint8.
        count: The expected number; a negative `count` accepts any number.

    Returns:
        Also None if a varint has more than nine bytes, which no count or offset here has.
    """
    last = np.flatnonzero(data < 0x80)
    if not len(data):
        return np.empty(0, np.int64) if count <= 0 else None
    if (0 <= count != len(last)) or data[-1] >= 0x80:
        return None
    if len(last) == len(data):
        return data.astype(np.int64)
    first = np.empty_like(last)
    first[0], first[1:] = 0, last[:-1] + 1
    lengths = last - first
    if int(lengths.max()) > 8:
        return None
    values = (data[first] & 0x7F).astype(np.int64)
    for at in range(1, int(lengths.max()) + 1):
        more = np.flatnonzero(lengths >= at)
        values[more] |= (data[first[more] + at] & 0x7F).astype(np.int64) << 7 * at
    return values


def leading_varint(data: Buffer, at: int) -> tuple[int, int] | None:
    """The varint at `at` and its end; None if it is cut off or has more than nine bytes."""
    value = shift = 0
    for position in range(at, min(at + 9, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    return None
