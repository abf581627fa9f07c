"""Chunks of ArrayRecord files: the places of their bytes, and their headers, many at once.

A file is a run of chunks: 40 bytes of header, then data. A block header of 24 bytes lies at each
multiple of 65,536 bytes of the file. It may interrupt a chunk, even its header of 40 bytes, and does
not belong to the chunk's own bytes.

Invariant: nothing is read outside the given buffers, whatever they contain.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.sources.array_record.highway_hash import Lanes, hashes, hashes_of

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Buffer = bytes | bytearray | memoryview

# The reader's name in errors.
WHAT: Final = "ArrayRecordDataSource"
BLOCK: Final = 65536
BLOCK_HEADER: Final = 24
USABLE: Final = BLOCK - BLOCK_HEADER
CHUNK_HEADER: Final = 40
# Bytes that hold a chunk's header, with the block header before it and one within it.
HEAD_SPAN: Final = CHUNK_HEADER + 2 * BLOCK_HEADER
# The first chunk of a file, which holds no records. The next chunk begins behind it.
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


class Headers(NamedTuple):
    """The headers of chunks. If `right` is false, the other values mean nothing.

    Args:
        right: Whether the header's own hash is right, bool `(chunks,)`.
        kind: Type byte, uint8.
        data_bytes: Bytes of data, without block headers, int64; -1 where absurd.
        data_hash: uint64.
        records: int64; never negative.
        decoded_bytes: Bytes of all its records, int64; -1 where absurd.
    """

    right: npt.NDArray[np.bool_]
    kind: Bytes
    data_bytes: Ints
    data_hash: Lanes
    records: Ints
    decoded_bytes: Ints


def is_chunk_begin(offsets: Ints) -> npt.NDArray[np.bool_]:
    """Whether a chunk can begin there: at a block header or behind it, not within it."""
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
    """Positions in the file behind the last data byte of chunks, with block headers."""
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


def heads(offsets: Ints, raws: Sequence[Buffer], width: int = CHUNK_HEADER) -> Bytes:
    """The first `width` bytes of each chunk, without block headers: uint8 `(chunks, width)`.

    Args:
        offsets: Where each chunk begins in its file, int64.
        raws: For each chunk the file's bytes from there on. Zeros replace missing bytes.
        width: At most 65,512.
    """
    span = width + 2 * BLOCK_HEADER
    joined = b"".join([raw[:span] for raw in raws])
    if len(joined) != span * len(raws):
        joined = b"".join([bytes(raw[:span]).ljust(span, b"\0") for raw in raws])
    return _without_block_headers(
        np.frombuffer(joined, np.uint8).reshape(len(raws), span), offsets, width
    )


def heads_within(raw: Bytes, start: int, offsets: Ints, width: int = CHUNK_HEADER) -> Bytes:
    """As `heads`, for chunks that all lie in `raw`, which holds the file from `start` on.

    `raw` must hold `width` + 48 bytes from the begin of the last chunk on.
    """
    span = width + 2 * BLOCK_HEADER
    # One item per byte, so that a chunk may begin anywhere.
    every: Any = np.ndarray((len(raw) - span + 1,), f"V{span}", raw, strides=(1,))
    rows = every[offsets - start].view(np.uint8).reshape(-1, span)
    return _without_block_headers(rows, offsets, width)


def _without_block_headers(rows: Bytes, offsets: Ints, width: int) -> Bytes:
    """The first `width` bytes of chunks, from `width` + 48 bytes of the file."""
    inside = offsets % BLOCK
    cut = np.flatnonzero((inside == 0) | (inside > BLOCK - width))
    if not len(cut):
        return rows[:, :width]
    joined = rows[:, :width].copy()
    at = places(offsets[cut, None], np.arange(width)[None]) - offsets[cut, None]
    joined[cut] = np.take_along_axis(rows[cut], at, axis=1)
    return joined


def parse_headers(rows: Bytes) -> Headers:
    """The headers in the first 40 bytes of chunks, and whether their hashes are right.

    Args:
        rows: uint8 `(chunks, 40 or more)`.
    """
    lanes = np.ascontiguousarray(rows[:, :CHUNK_HEADER]).view("<u8")
    starts = np.arange(len(lanes), dtype=np.int64) * CHUNK_HEADER + 8
    own = hashes(lanes.view(np.uint8).reshape(-1), starts, starts + CHUNK_HEADER - 8)
    counted = lanes[:, 3]
    return Headers(
        right=own == lanes[:, 0],
        kind=counted.astype(np.uint8),
        data_bytes=_size(lanes[:, 1]),
        data_hash=lanes[:, 2],
        records=(counted >> np.uint64(8)).astype(np.int64),
        decoded_bytes=_size(lanes[:, 4]),
    )


def _size(lanes: Lanes) -> Ints:
    # No file is that large, and sums of sizes must not overflow.
    return np.where(lanes < np.uint64(1 << 56), lanes, np.uint64(2**64 - 1)).astype(np.int64)


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
