"""Needed pieces: those of a part that records lie in, and which records those are.

Invariant: pieces come in ascending order, each once; of a part with very many records all of them do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from windrow.sources.base import IntArray
from windrow.sources.pieces import ArrayPart, ListPart, Part

_SLAB: Final = 2**16
# Of more records than these, such as those of a grid with stride 1, all pieces are taken to be needed.
_MOST_SEARCHED: Final = 2**26


class NeededPieces:
    """The pieces of a part that records lie in."""

    def __init__(self, part: Part, length: int) -> None:
        self._part, self._length = part, length
        rows = isinstance(part, ArrayPart) and part.size is None and part.starts is None
        self.straight = rows or isinstance(part, ListPart)
        """Whether all pieces are needed, and the records of one need not be searched."""
        few = length <= _MOST_SEARCHED
        self._needed = self._marked() if few and not self.straight else None

    def _marked(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        needed = np.zeros(self._part.piece_count, np.bool_)
        for begin in range(0, self._length, _SLAB):
            indices = np.arange(begin, min(begin + _SLAB, self._length))
            needed[self._part.needs(indices).pieces] = True
        return needed

    def __iter__(self) -> Iterator[IntArray]:
        """Their numbers, ascending, some at a time."""
        for begin in range(0, self._part.piece_count, _SLAB):
            stop = min(begin + _SLAB, self._part.piece_count)
            if self._needed is None:
                yield np.arange(begin, stop)
            else:
                yield begin + np.flatnonzero(self._needed[begin:stop])

    @property
    def decoded_bytes(self) -> int:
        """Bytes of all of them in memory."""
        part = self._part
        if isinstance(part, ArrayPart) and self.straight:
            return part.rows * part.row_bytes
        return sum(int(part.decoded_bytes(pieces).sum()) for pieces in self)

    def records(self, pieces: Sequence[int]) -> list[tuple[int, int]]:
        """For each piece the first record in it, and one past the last; `(0, 0)` if none is."""
        part = self._part
        if isinstance(part, ArrayPart) and self.straight:
            return [part.bounds(piece) for piece in pieces]
        if self._length > _MOST_SEARCHED:
            return [(0, self._length)] * len(pieces)
        if not pieces:
            return []
        wanted, which = np.unique(np.asarray(pieces, np.int64), return_inverse=True)
        first = np.full(len(wanted), self._length, np.int64)
        stop = np.zeros(len(wanted), np.int64)
        for begin in range(0, self._length, _SLAB):
            indices = np.arange(begin, min(begin + _SLAB, self._length))
            needs = part.needs(indices)
            at = np.minimum(np.searchsorted(wanted, needs.pieces), len(wanted) - 1)
            hit = wanted[at] == needs.pieces
            np.minimum.at(first, at[hit], indices[needs.records[hit]])
            np.maximum.at(stop, at[hit], indices[needs.records[hit]] + 1)
        first = np.minimum(first, stop)
        return list(zip(first[which].tolist(), stop[which].tolist(), strict=True))
