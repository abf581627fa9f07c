"""A chunk cache for chunks that boxes of any rank are cut out of.

Slots lie in one allocation, each with room for a whole chunk in C order, so that boxes which lie in
one chunk are gathered in one call from whatever slots they are in.

Invariant: as for every chunk cache, what `gather` returns or fills is never memory of the chunk cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.engine.chunk_cache import ChunkCache, ChunkPlace, WantedChunks, WantedRecords
from windrow.sources.boxes import BoxFragments, BoxPart, Cut, Fields
from windrow.sources.chunks import Box
from windrow.sources.ragged_column import Places

IntArray = npt.NDArray[np.int64]
AnyArray = npt.NDArray[Any]

# If boxes do not fill a whole column, taking them by an index costs one more copy than taking them
# one by one. For boxes below this size the copy costs less than the calls.
_SMALL_BYTES = 16 << 10


class BoxCache(ChunkCache):
    """Chunks of an array of any rank, and columns of boxes made of them."""

    def __init__(self, part: BoxPart, slots: int) -> None:
        self._part = part
        chunk = tuple(map(min, part.chunk_shape, part.shape))
        self._chunk = np.array(part.chunk_shape, np.int64)
        self._shift = np.array(part.shift, np.int64)
        self._memory = np.empty((slots, *chunk), part.dtype)
        self._strides = np.array(self._memory.strides, np.int64) // max(1, part.dtype.itemsize)

    def fragments(
        self, indices: IntArray, places: Places | None = None
    ) -> tuple[BoxFragments, WantedChunks]:
        found = self._part.fragments(indices)
        return found, WantedChunks.of(found.chunks, self._part.chunk_count)

    # --- reading ---------------------------------------------------------------------------------

    def start(self, places: Sequence[ChunkPlace], pool: Executor) -> Future[Any]:
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

    def may_skip(self, read_batches: int, *, last: bool) -> bool:
        # The chunk is copied after decoding, while it is in the processor's cache. A chunk that other
        # read batches may come back to is kept.
        return last

    def skips(self, number: int, wanted: WantedRecords, at: int, *, last: bool) -> bool:
        return True

    def targets(self, wanted: WantedRecords) -> Any:
        return self._part.boxes(wanted.out, wanted.fragments)

    def chosen(self, wanted: WantedRecords, at: int) -> list[Any]:
        return [wanted.targets[number] for number in wanted.of_chunk(at).tolist()]

    # --- columns ---------------------------------------------------------------------------------

    def empty(self, count: int, fragments: BoxFragments) -> Fields:
        return self._part.empty(count)

    def finished(self, out: Fields, fragments: BoxFragments) -> Fields:
        self._part.pad(out, fragments)
        return out

    def fill(self, out: Fields, fragments: BoxFragments, slots: IntArray) -> None:
        begin = self._begin(fragments)
        stops = (begin + fragments.lengths).tolist()
        views = self._part.views(out, fragments)
        for slot, view, first, stop in zip(
            slots.tolist(), views, begin.tolist(), stops, strict=True
        ):
            view[...] = self._memory[slot][tuple(map(slice, first, stop))]

    def gather(self, count: int, fragments: BoxFragments, slots: IntArray) -> Fields:
        fields: list[AnyArray] = []
        left = np.ones(len(fragments), np.bool_)
        number = 0  # of the cut
        for at, field in enumerate(self._part.fields):
            many = [
                self._whole(fragments, number + k, cut, count) for k, cut in enumerate(field.cuts)
            ]
            first = many[0]
            if len(field.cuts) == 1 and first is not None:
                fields.append(self._taken(field.shape, count, fragments.taken(first), slots[first]))
            else:
                fields.append(self._part.empty_field(at, count))
                for cut, whole in zip(field.cuts, many, strict=True):
                    if whole is not None:
                        self._put(fields[-1], cut, fragments.taken(whole), slots[whole])
            for whole in many:
                if whole is not None:
                    left[whole] = False
            number += len(field.cuts)
        out = tuple(fields)
        rest = np.flatnonzero(left)
        if len(rest):
            self.fill(out, fragments.taken(rest), slots[rest])
        return out

    def _whole(self, fragments: BoxFragments, number: int, cut: Cut, count: int) -> IntArray | None:
        """The fragments of a cut in one chunk, if one call for all of them is worthwhile."""
        if math.prod(cut.shape) * self._part.dtype.itemsize > _SMALL_BYTES:
            return None
        mine = np.flatnonzero(fragments.cuts == number)
        whole: IntArray = mine[(fragments.lengths[mine] == cut.shape).all(axis=1)]
        return whole if len(whole) and 2 * len(whole) >= count else None

    def _taken(
        self, shape: tuple[int, ...], count: int, whole: BoxFragments, slots: IntArray
    ) -> AnyArray:
        """A field, copied by one call; records that are not `whole` have arbitrary values."""
        runs, at = self._runs(shape, whole, slots)
        every = np.full(count, at[0])
        every[whole.records] = at
        return np.ascontiguousarray(runs[every])

    def _put(self, out: AnyArray, cut: Cut, whole: BoxFragments, slots: IntArray) -> None:
        """The boxes of one cut in one call."""
        runs, at = self._runs(cut.shape, whole, slots)
        stops = (t + n for t, n in zip(cut.target, cut.shape, strict=True))
        out[(slice(None), *map(slice, cut.target, stops))][whole.records] = runs[at]

    def _runs(
        self, shape: tuple[int, ...], whole: BoxFragments, slots: IntArray
    ) -> tuple[AnyArray, IntArray]:
        """A view of the boxes that begin at every cell of the chunk cache, and the places of boxes.

        The view overlaps itself. A box that reaches out of its slot has arbitrary values there.
        """
        strides = self._strides[1:]
        extent = 1 + int(((np.array(shape) - 1) * strides).sum())
        runs = np.lib.stride_tricks.as_strided(
            self._memory,
            (self._memory.size - extent + 1, *shape),
            (self._memory.itemsize, *self._memory.strides[1:]),
            writeable=False,
        )
        return runs, slots * self._strides[0] + self._begin(whole) @ strides

    def _begin(self, fragments: BoxFragments) -> IntArray:
        """Where fragments begin in their slots. A slot's first cell is its chunk's first cell."""
        begin = (fragments.first + self._shift) % self._chunk
        if self._shift.any():
            begin -= np.where(fragments.first < self._chunk - self._shift, self._shift, 0)
        return begin
