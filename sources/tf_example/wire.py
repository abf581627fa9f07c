"""Writes the wire format of Examples: tags, frames, and many varints at a time.

An int64 is stored as a varint: seven bits a byte, the lowest first. The top bit says that another
byte follows. A negative number takes ten bytes.

Invariant: protobuf reads the numbers that were written. Written bytes depend on the values alone.
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
