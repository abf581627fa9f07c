"""Reads and writes the wire format of Examples: tags, frames, and many varints at a time.

An int64 is stored as a varint: seven bits a byte, the lowest first. The top bit says that another
byte follows. A negative number takes ten bytes.

Invariant: protobuf reads the same numbers as this module. Written bytes depend on the values alone.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

# Tags of the fields that frame a value, and tags of the lists in a Feature, one for each kind.
FIRST_FIELD: Final = 0x0A
SECOND_FIELD: Final = 0x12
BYTES_LIST: Final = 0x0A
FLOAT_LIST: Final = 0x12
INT64_LIST: Final = 0x1A

_MORE: Final = 0x80
_BITS: Final = 0x7F
_MAX_BYTES: Final = 10

Int64s: TypeAlias = npt.NDArray[np.int64]

_NO_ROWS: Final[Int64s] = np.empty(0, np.int64)


def read_varints(
    block: npt.NDArray[np.uint8],
) -> tuple[Int64s, Int64s, Int64s]:
    """Reads the varints in each row of `block`, uint8 `(rows, bytes)`.

    Returns:
        The numbers of all rows, one after another; their count in each row; and the rows that hold
        anything other than varints. The numbers of such rows mean nothing.

    Example:
        >>> block = np.array([[5, 7], [0x96, 1], [0, 0x80]], np.uint8)
        >>> read_varints(block)
        (array([  5,   7, 150,   0,   0]), array([2, 1, 2]), array([2]))
    """
    rows, width = block.shape
    if block.max(initial=0) < _MORE:
        return block.astype(np.int64).reshape(-1), np.full(rows, width), _NO_ROWS
    block = block.copy()  # contiguous, and to be written to
    # A row that does not end must not run on into the next.
    endless = np.flatnonzero(block[:, -1] >= _MORE)
    block[endless, -1] = 0
    flat = block.reshape(-1)
    ends = np.flatnonzero(flat < _MORE)
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts + 1
    row_of = ends // width
    # The tenth byte has one bit left. Rows with more bits are left to protobuf.
    odd = (sizes > _MAX_BYTES) | ((sizes == _MAX_BYTES) & (flat[ends] > 1))
    values = np.zeros(len(ends), np.uint64)
    for place in range(min(int(sizes.max()), _MAX_BYTES)):
        has = np.flatnonzero(sizes > place)
        bits = (flat[starts[has] + place] & _BITS).astype(np.uint64)
        values[has] |= bits << np.uint64(7 * place)
    counts = np.bincount(row_of, minlength=rows)
    return values.view(np.int64), counts, np.concatenate([endless, row_of[odd]])


def write_varints(values: Int64s) -> tuple[npt.NDArray[np.uint8], Int64s]:
    """Writes `values` as varints, one after another; also returns the bytes of each.

    Example:
        >>> write_varints(np.array([5, 150]))
        (array([  5, 150,   1], dtype=uint8), array([1, 2]))
    """
    bits = values.view(np.uint64)
    sizes = np.ones(len(bits), np.int64)
    for place in range(1, _MAX_BYTES):
        longer = bits >= np.uint64(1 << 7 * place)
        if not longer.any():
            break
        sizes += longer
    out = np.empty(int(sizes.sum()), np.uint8)
    starts = np.cumsum(sizes) - sizes
    for place in range(int(sizes.max(initial=0))):
        has = np.flatnonzero(sizes > place)
        more = np.where(sizes[has] > place + 1, np.uint8(_MORE), np.uint8(0))
        out[starts[has] + place] = ((bits[has] >> np.uint64(7 * place)) & _BITS) | more
    return out, sizes


def varint(number: int) -> bytes:
    r"""Writes an int64 as a varint.

    Example:
        >>> varint(300), len(varint(-1))
        (b'\xac\x02', 10)
    """
    number &= 2**64 - 1
    out = []
    while number > _BITS:
        out.append(number & _BITS | _MORE)
        number >>= 7
    return bytes([*out, number])


def field_head(tag: int, size_bytes: int) -> bytes:
    """The head of a field: its tag, and the number of bytes that follow."""
    return bytes([tag]) + varint(size_bytes)


def framed(tag: int, data: bytes) -> bytes:
    """A field that holds `data`."""
    return field_head(tag, len(data)) + data


def entry_head(name: str, kind: int, size_bytes: int) -> bytes:
    """The head of a feature's list of `kind`, as an entry in an Example's map."""
    head = field_head(kind, size_bytes)
    head = field_head(SECOND_FIELD, len(head) + size_bytes) + head
    head = framed(FIRST_FIELD, name.encode()) + head
    return field_head(FIRST_FIELD, len(head) + size_bytes) + head
