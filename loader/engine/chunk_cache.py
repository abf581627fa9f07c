"""Memory for the decoded chunks of one part, and gathering records out of it.

A chunk cache has slots, each with room for one chunk. The slots of an array lie in one allocation,
so one call gathers the records of a batch from any number of chunks. The memory is reserved as a
whole, and the system provides the memory of a slot when the slot is first used.

Invariant: what `gather` returns or fills is never memory of the chunk cache.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.core import buffer_pool
from windrow.sources.chunks import ArrayPart, ListPart, Span, runs_of

IntArray = npt.NDArray[np.int64]
AnyArray = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Fragments:
    """Parts of records, each in one chunk: what is to be copied where.

    Fragment `k` is rows `[sources[k], sources[k] + lengths[k])` of its chunk and goes to rows
    `[targets[k], ...)` of record `records[k]`; without `targets` it is one row, the whole record.
    """

    records: IntArray
    sources: IntArray
    targets: IntArray | None = None
    lengths: IntArray | None = None

    def __len__(self) -> int:
        return len(self.records)

    def taken(self, at: IntArray) -> Fragments:
        """The fragments at `at`."""
        if self.targets is None or self.lengths is None:
            return Fragments(self.records[at], self.sources[at])
        return Fragments(self.records[at], self.sources[at], self.targets[at], self.lengths[at])


@dataclasses.dataclass(slots=True, eq=False)
class ChunkPlace:
    """Where a chunk goes: into a slot, or, given `out`, straight to where it is wanted."""

    number: int
    slot: int = -1
    out: list[Any] | None = None  # what `ChunkCache.chosen` gave for it


class ChunkCache(abc.ABC):
    """Slots for chunks of one part. All fragments of a chunk cache are of one kind."""

    @abc.abstractmethod
    def fragments(self, indices: IntArray) -> tuple[Any, IntArray]:
        """What the records at `indices` take from their chunks; and for each the chunk."""

    @abc.abstractmethod
    def start(self, places: Sequence[ChunkPlace], pool: Executor) -> Future[Any]:
        """Start reading chunks to where they go."""

    @abc.abstractmethod
    def arrived(self, slots: Sequence[int], future: Future[Any]) -> None:
        """Take over what a read gave; raises its error."""

    @abc.abstractmethod
    def may_skip(self, read_batches: int, *, last: bool) -> bool:
        """Whether a chunk may go straight to where read batches want it, without a slot.

        Args:
            read_batches: How many want it.
            last: Whether it is likely that no later read batch wants it.
        """

    @abc.abstractmethod
    def skips(self, number: int, fragments: Any, mine: IntArray) -> bool:
        """Whether chunk `number`, which may, does so; `mine` are its fragments in a read batch."""

    @abc.abstractmethod
    def targets(self, out: Any, fragments: Any) -> Any:
        """Where all fragments belong in `out`, to be chosen from."""

    @abc.abstractmethod
    def chosen(self, targets: Any, fragments: Any, mine: IntArray) -> list[Any]:
        """The `targets` of the fragments `mine` of one chunk, which skips its slot."""

    @abc.abstractmethod
    def empty(self, count: int) -> Any:
        """A column of `count` records to fill."""

    @abc.abstractmethod
    def fill(self, out: Any, fragments: Any, slots: IntArray) -> None:
        """Copy fragments, each out of a slot, to where they belong in `out`."""

    @abc.abstractmethod
    def gather(self, count: int, fragments: Any, slots: IntArray) -> Any:
        """A new column of `count` records made of fragments that are all there is of them."""

    @abc.abstractmethod
    def finished(self, out: Any, fragments: Any) -> Any:
        """Return the column `out` once all its `fragments` are there."""


class ArrayCache(ChunkCache):
    """Chunks of an array, as rows of one large array."""

    def __init__(self, part: ArrayPart, slots: int) -> None:
        self._part = part
        self._rows = np.empty((slots * part.chunk_rows, *part.row_shape), part.dtype)
        self._runs = runs_of(self._rows, part.size or 1)

    def fragments(self, indices: IntArray) -> tuple[Fragments, IntArray]:
        part, needs = self._part, self._part.needs(indices)
        records, chunks = needs.records, needs.chunks
        first = part.first_rows(indices) + part.shift
        begin = chunks * part.chunk_rows
        if part.size is None:
            return Fragments(records, first - begin), chunks
        first = first[records]
        low = np.maximum(first, begin)
        high = np.minimum(first + part.size, begin + part.chunk_rows)
        return Fragments(records, low - begin, low - first, high - low), chunks

    def start(self, places: Sequence[ChunkPlace], pool: Executor) -> Future[Any]:
        return self._part.reader.start(list(map(self._span, places)), pool)

    def _span(self, place: ChunkPlace) -> Span:
        first, stop = self._part.bounds(place.number)
        if place.out is not None:
            return Span(first, stop, place.out[0])
        before = first + self._part.shift - place.number * self._part.chunk_rows
        at = place.slot * self._part.chunk_rows + before
        return Span(first, stop, self._rows[at : at + stop - first])

    def arrived(self, slots: Sequence[int], future: Future[Any]) -> None:
        future.result()

    def may_skip(self, read_batches: int, *, last: bool) -> bool:
        return read_batches == 1 and self._part.size is None

    def skips(self, number: int, fragments: Fragments, mine: IntArray) -> bool:
        # Where it is wanted whole and in order.
        first, stop = self._part.bounds(number)
        if len(mine) != stop - first:
            return False
        # Records ascend here, each once. This check dominates for small chunks, so no np.diff.
        if fragments.records[mine[-1]] - fragments.records[mine[0]] != len(mine) - 1:
            return False
        sources = fragments.sources[mine]
        return bool((sources[1:] - sources[:-1] == 1).all())

    def targets(self, out: AnyArray, fragments: Fragments) -> AnyArray:
        return out

    def chosen(self, targets: AnyArray, fragments: Fragments, mine: IntArray) -> list[AnyArray]:
        first = int(fragments.records[mine[0]])
        return [targets[first : first + len(mine)]]

    def finished(self, out: AnyArray, fragments: Fragments) -> AnyArray:
        return out

    def empty(self, count: int) -> AnyArray:
        return buffer_pool.empty((count, *self._part.record_shape), self._part.dtype)

    def fill(self, out: AnyArray, fragments: Fragments, slots: IntArray) -> None:
        at = slots * self._part.chunk_rows + fragments.sources
        if fragments.targets is None or fragments.lengths is None:
            out[fragments.records] = self._rows[at]
            return
        whole = fragments.lengths == self._part.size
        if whole.all():
            out[fragments.records] = self._runs[at]
            return
        out[fragments.records[whole]] = self._runs[at[whole]]
        cut = np.flatnonzero(~whole)
        places = zip(
            fragments.records[cut].tolist(),
            fragments.targets[cut].tolist(),
            fragments.lengths[cut].tolist(),
            at[cut].tolist(),
            strict=True,
        )
        for record, target, length, row in places:
            out[record, target : target + length] = self._rows[row : row + length]

    def gather(self, count: int, fragments: Fragments, slots: IntArray) -> AnyArray:
        if fragments.targets is None:
            at = slots * self._part.chunk_rows + fragments.sources
            out = self.empty(count)
            # In the default mode NumPy would take to memory of its own first, then copy.
            np.take(self._rows, at, axis=0, out=out, mode="clip")
            return out
        whole = np.flatnonzero(fragments.lengths == self._part.size)
        if 2 * len(whole) < count or not count:
            out = self.empty(count)
            self.fill(out, fragments, slots)
            return out
        # One call copies all records once. For a record in several chunks it copies arbitrary
        # values, and the fragments of the record overwrite them.
        at = slots * self._part.chunk_rows + fragments.sources
        first = np.full(count, at[whole[0]])
        first[fragments.records[whole]] = at[whole]
        found: AnyArray = self._runs[first]
        if len(whole) < len(fragments):
            cut = np.flatnonzero(fragments.lengths != self._part.size)
            self.fill(found, fragments.taken(cut), slots[cut])
        return found


class ListCache(ChunkCache):
    """Chunks that are lists of records of any kind."""

    def __init__(self, part: ListPart) -> None:
        self._part = part
        self._chunks: dict[int, list[Any]] = {}

    def fragments(self, indices: IntArray) -> tuple[Fragments, IntArray]:
        needs = self._part.needs(indices)
        return Fragments(needs.records, self._part.places(indices)), needs.chunks

    def start(self, places: Sequence[ChunkPlace], pool: Executor) -> Future[Any]:
        return self._part.start([place.number for place in places], pool)

    def arrived(self, slots: Sequence[int], future: Future[Any]) -> None:
        self._chunks.update(zip(slots, future.result(), strict=True))

    def may_skip(self, read_batches: int, *, last: bool) -> bool:
        return False

    def skips(self, number: int, fragments: Fragments, mine: IntArray) -> bool:
        return False

    def targets(self, out: list[Any], fragments: Fragments) -> list[Any]:
        return out

    def chosen(self, targets: list[Any], fragments: Fragments, mine: IntArray) -> list[Any]:
        raise TypeError("chunks of lists have a slot")

    def finished(self, out: list[Any], fragments: Fragments) -> list[Any]:
        return out

    def empty(self, count: int) -> list[Any]:
        return [None] * count

    def fill(self, out: list[Any], fragments: Fragments, slots: IntArray) -> None:
        chunks = self._chunks
        for record, slot, source in zip(
            fragments.records.tolist(), slots.tolist(), fragments.sources.tolist(), strict=True
        ):
            out[record] = chunks[slot][source]

    def gather(self, count: int, fragments: Fragments, slots: IntArray) -> list[Any]:
        chunks = self._chunks
        places = zip(slots.tolist(), fragments.sources.tolist(), strict=True)
        return [chunks[slot][source] for slot, source in places]
