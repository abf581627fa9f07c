"""A chunk cache for chunks that boxes of any rank are cut out of.

Slots lie in one allocation, each with room for a whole chunk in C order, so that the native core gathers
the boxes of a read batch in one call. Without the core NumPy copies them one by one.

Invariant: as for every chunk cache, what `gather` returns or fills is never memory of the chunk cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from windrow.core.native import buffer_of, native
from windrow.engine.chunk_cache import ChunkPlace, ReadToMemory, WantedChunks, WantedRecords
from windrow.sources.base import AnyArray, IntArray
from windrow.sources.boxes import BoxFragments, BoxPart, Fields
from windrow.sources.chunks import Box
from windrow.sources.ragged_column import PiecePlaces


class BoxCache(ReadToMemory):
    """Chunks of an array of any rank, and columns of boxes made of them."""

    def __init__(self, part: BoxPart, slots: int, *, scatters: bool = False) -> None:
        super().__init__(part.reader, scatters=scatters)
        self._part = part
        chunk = tuple(map(min, part.chunk_shape, part.shape))
        self._chunk = np.array(part.chunk_shape, np.int64)
        self._shift = np.array(part.shift, np.int64)
        self._memory = np.empty((slots, *chunk), part.dtype)

    def fragments(
        self, indices: IntArray, places: PiecePlaces | None = None
    ) -> tuple[BoxFragments, WantedChunks]:
        found = self._part.fragments(indices)
        cells = found.lengths.prod(axis=1)
        return found, WantedChunks.of(found.chunks, self._part.chunk_count, cells)

    # --- reading ---------------------------------------------------------------------------------

    def _to_slot(self, place: ChunkPlace) -> Box:
        first, stop = self._part.bounds(place.number)
        return Box(first, self._slot(place.slot, first, stop))

    def _slot(self, slot: int, first: Sequence[int], stop: Sequence[int]) -> AnyArray:
        sizes = (s - f for f, s in zip(first, stop, strict=True))
        found: AnyArray = self._memory[slot][tuple(map(slice, sizes))]
        return found

    def targets(self, wanted: WantedRecords) -> Any:
        columns = self._part.columns(wanted.fragments)
        return self._reader.output(wanted.out, wanted.chunk_count, wanted.which, *columns)

    def _put(self, uses: Sequence[tuple[WantedRecords, Any, int]], chunk: AnyArray) -> None:
        for wanted, _, at in uses:
            fragments = wanted.fragments.taken(wanted.of_chunk(at))
            slots = np.zeros(len(fragments), np.int64)
            self._fill_in_numpy(wanted.out, fragments, [chunk], slots)

    # --- columns ---------------------------------------------------------------------------------

    def empty(self, count: int, fragments: BoxFragments) -> Fields:
        return self._part.empty(count)

    def finished(self, out: Fields, fragments: BoxFragments) -> Fields:
        self._part.pad(out, fragments)
        return out

    def fill(self, out: Fields, fragments: BoxFragments, slots: IntArray) -> None:
        core = native() if self._part.dtype.itemsize else None
        if core is None:
            self._fill_in_numpy(out, fragments, self._memory, slots)
        elif len(fragments):
            outputs = [buffer_of(field) for field in out]
            boxes = core.Boxes(outputs, *self._part.columns(fragments), np.zeros_like(slots), 1)
            memory = buffer_of(self._memory)
            boxes.gather(memory, self._part.chunk_shape, self._part.shift, slots)

    def _fill_in_numpy(
        self, out: Fields, fragments: BoxFragments, memory: Any, slots: IntArray
    ) -> None:
        """Copy fragments one by one, each out of the chunk `memory[slots[k]]`."""
        begin = self._begin(fragments)
        stops = (begin + fragments.lengths).tolist()
        views = self._part.views(out, fragments)
        for slot, view, first, stop in zip(
            slots.tolist(), views, begin.tolist(), stops, strict=True
        ):
            view[...] = memory[slot][tuple(map(slice, first, stop))]

    def _begin(self, fragments: BoxFragments) -> IntArray:
        """Where fragments begin in their slots. A slot's first cell is its chunk's first cell."""
        begin = (fragments.first + self._shift) % self._chunk
        if self._shift.any():
            begin -= np.where(fragments.first < self._chunk - self._shift, self._shift, 0)
        return begin
