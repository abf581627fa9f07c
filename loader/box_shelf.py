"""A shelf for chunks that boxes of any rank are cut out of.

Slots lie in one allocation, each with room for a whole chunk in C order, so that boxes which lie in
one chunk are gathered in one call from whatever slots they are in.

Invariant: as for every shelf, what `gather` returns or fills is never memory of the shelf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.shelves import Place, Shelf
from windrow.sources import BoxPart
from windrow.sources.boxes import BoxFragments, Fields
from windrow.sources.pieces import Box

IntArray = npt.NDArray[np.int64]
AnyArray = npt.NDArray[Any]

# Taking boxes by an index costs a copy more than taking them one by one, where they do not make up
# all of a column; below this that is less than the calls.
_SMALL_BYTES = 16 << 10


class BoxShelf(Shelf):
    """Pieces of an array of any rank, and columns of boxes made of them."""

    def __init__(self, part: BoxPart, slots: int) -> None:
        self._part = part
        chunk = tuple(map(min, part.chunk_shape, part.shape))
        self._chunk = np.array(part.chunk_shape, np.int64)
        self._shift = np.array(part.shift, np.int64)
        self._memory = np.empty((slots, *chunk), part.dtype)
        self._strides = np.array(self._memory.strides, np.int64) // max(1, part.dtype.itemsize)
        self._cuts = [(field, cut) for field in part.fields for cut in field.cuts]
        self._sizes = np.array([cut.shape for _, cut in self._cuts], np.int64)
        self._only = [len(field.cuts) == 1 for field in part.fields]

    def fragments(self, indices: IntArray) -> tuple[BoxFragments, IntArray]:
        found = self._part.fragments(indices)
        return found, found.pieces

    # --- reading ---------------------------------------------------------------------------------

    def start(self, places: Sequence[Place], pool: Executor) -> Future[Any]:
        boxes: list[Box] = []
        for place in places:
            if place.out is None:
                first, stop = self._part.bounds(place.number)
                boxes.append(Box(first, self._slot(place.slot, first, stop)))
            else:
                boxes += place.out
        return self._part.reader.start(boxes, pool)

    def _slot(self, slot: int, first: Sequence[int], stop: Sequence[int]) -> AnyArray:
        sizes = (s - f for f, s in zip(first, stop, strict=True))
        found: AnyArray = self._memory[slot][tuple(map(slice, sizes))]
        return found

    def arrived(self, slots: Sequence[int], future: Future[Any]) -> None:
        future.result()

    def straight(self, number: int, wanted: Sequence[BoxFragments], *, last: bool) -> bool:
        # Copied where it is decoded, while that is in the processor's cache. What other rounds may
        # come back to is kept.
        return last

    def targets(self, out: Fields, fragments: BoxFragments) -> list[Box]:
        return self._part.boxes(out, fragments)

    # --- columns ---------------------------------------------------------------------------------

    def empty(self, count: int) -> Fields:
        return self._part.empty(count)

    def finished(self, out: Fields, fragments: BoxFragments) -> Fields:
        self._part.pad(out, fragments)
        return out

    def fill(self, out: Fields, fragments: BoxFragments, slots: IntArray) -> None:
        begin = self._begin(fragments)
        views = self._part.views(out, fragments)
        stops = (begin + fragments.lengths).tolist()
        for slot, view, first, stop in zip(
            slots.tolist(), views, begin.tolist(), stops, strict=True
        ):
            view[...] = self._memory[slot][tuple(map(slice, first, stop))]

    def _begin(self, fragments: BoxFragments) -> IntArray:
        """Where fragments begin in their slots, of which the first cell is a piece's first."""
        begin = (fragments.first + self._shift) % self._chunk
        if self._shift.any():
            begin -= np.where(fragments.first < self._chunk - self._shift, self._shift, 0)
        return begin

    def gather(self, count: int, fragments: BoxFragments, slots: IntArray) -> Fields:
        if len(self._cuts) > len(self._only) or not len(fragments):
            out = self.empty(count)
            self.fill(out, fragments, slots)
            return out
        found: list[AnyArray] = []
        left = np.ones(len(fragments), np.bool_)
        for number, (field, cut) in enumerate(self._cuts):
            size = math.prod(field.shape) * self._part.dtype.itemsize
            mine = np.flatnonzero(fragments.cuts == number)
            whole = mine[(fragments.lengths[mine] == self._sizes[number]).all(axis=1)]
            if size > _SMALL_BYTES or 2 * len(whole) < count:
                found.append(self._part.empty_field(number, count))
                continue
            found.append(self._taken(cut.shape, count, fragments.taken(whole), slots[whole]))
            left[whole] = False
        rest = np.flatnonzero(left)
        out = tuple(found)
        if len(rest):
            self.fill(out, fragments.taken(rest), slots[rest])
        return out

    def _taken(
        self, shape: tuple[int, ...], count: int, whole: BoxFragments, slots: IntArray
    ) -> AnyArray:
        """A column in one call, which copies once; of records that are not `whole`, anything."""
        strides = self._memory.strides[1:]
        extent = 1 + sum((n - 1) * int(s) for n, s in zip(shape, self._strides[1:], strict=True))
        runs = np.lib.stride_tricks.as_strided(
            self._memory,
            (self._memory.size - extent + 1, *shape),
            (self._memory.itemsize, *strides),
            writeable=False,
        )
        begin = self._begin(whole)
        at = slots * self._strides[0] + begin @ self._strides[1:]
        every = np.full(count, at[0])
        every[whole.records] = at
        return np.ascontiguousarray(runs[every])
