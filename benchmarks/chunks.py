"""Single records of an ArrayRecord file as a peer reads them by hand: where they lie, what is in them.

Only for files of this folder: `group_size:1`, zstd. No hash is looked at.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import zstandard

_BLOCK_BYTES = 1 << 16
_BLOCK_HEADER_BYTES = 24
_HEADER_BYTES = 40
_FIRST = 64  # behind the signature
_ZSTD = 0x7A


def places(path: str, records: int) -> npt.NDArray[np.int64]:
    """First bytes of the chunks of the records, one after another, and the end of the last one."""
    data = Path(path).read_bytes()
    found = [_FIRST]
    for _ in range(records):
        begin = found[-1]
        header = plain(data[begin : begin + _HEADER_BYTES + 2 * _BLOCK_HEADER_BYTES], begin)
        found.append(_end(begin, _HEADER_BYTES + int.from_bytes(header[8:16], "little")))
    return np.array(found)


def plain(stored: bytes, begin: int) -> bytes:
    """What is stored from `begin` on, without the headers of blocks that lie in it."""
    parts, at, end = [], begin, begin + len(stored)
    while at < end:
        if at % _BLOCK_BYTES == 0:
            at += _BLOCK_HEADER_BYTES
        stop = min(end, (at // _BLOCK_BYTES + 1) * _BLOCK_BYTES)
        parts.append(stored[at - begin : stop - begin])
        at = stop
    return parts[0] if len(parts) == 1 else b"".join(parts)


def record(stored: bytes, begin: int, decoder: zstandard.ZstdDecompressor) -> bytes:
    """The record of the chunk that is stored from `begin` on."""
    chunk = plain(stored, begin)
    data = chunk[_HEADER_BYTES : _HEADER_BYTES + int.from_bytes(chunk[8:16], "little")]
    if data[0] != _ZSTD:
        raise ValueError("benchmark: a record is not compressed by zstd")
    length, at = _number(data, 1)  # of the record sizes: there is one
    size_bytes, at = _number(data, at + length)
    return decoder.decompress(data[at:], max_output_size=size_bytes)


def _end(begin: int, size_bytes: int) -> int:
    """Where a chunk ends: each block that it goes on in has a header."""
    per_block = _BLOCK_BYTES - _BLOCK_HEADER_BYTES
    before = (begin + per_block - 1) % _BLOCK_BYTES
    return begin + size_bytes + (size_bytes + before) // per_block * _BLOCK_HEADER_BYTES


def _number(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, 7 bits in a byte, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
