"""The format of ArrayRecord files: the places of chunks and of their bytes.

A file is a run of chunks: 40 bytes of header, then data. A block header of 24 bytes lies at each
multiple of 65,536 bytes of the file. It may interrupt a chunk, even its header of 40 bytes, and does
not belong to the chunk's own bytes.

Invariant: nothing is read outside the given buffers, whatever they contain.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
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
