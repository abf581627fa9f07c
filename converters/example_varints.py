"""Varints, many at a time: how an Example stores int64.

Seven bits a byte, the lowest first; the top bit says that another byte follows. A negative number
takes ten bytes.

Invariant: what is read as a varint here, protobuf reads as the same number.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_MORE: Final = 0x80
_BITS: Final = 0x7F
_MAX_BYTES: Final = 10

Int64s = npt.NDArray[np.int64]


def read_varints(
    block: npt.NDArray[np.uint8],
) -> tuple[Int64s, Int64s, npt.NDArray[np.bool_]]:
    """The varints in each row of `block`, uint8 `(rows, bytes)`.

    Returns:
        The numbers of all rows, one after another; how many are in each row; and whether the row is
        varints and nothing else. Of a row that is not, the numbers mean nothing.

    Example:
        >>> block = np.array([[5, 7], [0x96, 1], [0, 0x80]], np.uint8)
        >>> read_varints(block)
        (array([  5,   7, 150,   0,   0]), array([2, 1, 2]), array([ True,  True, False]))
    """
    rows, width = block.shape
    good = np.ones(rows, np.bool_)
    if width == 0:
        return np.empty(0, np.int64), np.zeros(rows, np.int64), good
    block = block.copy()  # contiguous, and to be written to
    last = block[:, -1]
    good &= last < _MORE
    # A row that does not end must not run on into the next.
    last[~good] = 0
    flat = block.ravel()
    ends = np.flatnonzero(flat < _MORE)
    if len(ends) == len(flat):
        return flat.astype(np.int64), np.full(rows, width), good
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts + 1
    row_of = ends // width
    # The tenth byte has one bit left to give. Of what has more, let protobuf say what it is.
    good[row_of[(sizes > _MAX_BYTES) | ((sizes == _MAX_BYTES) & (flat[ends] > 1))]] = False
    values = np.zeros(len(ends), np.uint64)
    for place in range(min(int(sizes.max()), _MAX_BYTES)):
        has = np.flatnonzero(sizes > place)
        bits = (flat[starts[has] + place] & _BITS).astype(np.uint64)
        values[has] |= bits << np.uint64(7 * place)
    return values.view(np.int64), np.bincount(row_of, minlength=rows), good


def write_varints(values: Int64s) -> tuple[npt.NDArray[np.uint8], Int64s]:
    """The varints of `values`, one after another, and the bytes that each has.

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
