"""Memory for the decoded chunks of one part, and gathering records out of it.

A chunk cache has slots, each with room for one chunk. The slots of an array lie in one allocation,
so one call gathers the records of a batch from any number of chunks. The memory is reserved as a
whole, and the system provides the memory of a slot when the slot is first used.

The native core finds the chunks of the records of a read batch in one call, and keeps the interpreter's
lock meanwhile. Where there is no core, NumPy does so in many calls, which release it.

Invariants: what `gather` returns or fills is never memory of the chunk cache. The core and NumPy make
the same tables.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Protocol

import numpy as np

from windrow.core import buffer_pool
from windrow.core.native import native
from windrow.errors import ReadError
from windrow.sources.base import AnyArray, IntArray
from windrow.sources.chunks import (
    ArrayPart,
    ListPart,
    Rest,
    Scattered,
    ScatterReader,
    Span,
    runs_of,
)
from windrow.sources.ragged_column import (
    PiecePlaces,
    PlacedColumn,
    RaggedColumn,
    bounds_of,
    copy_runs,
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Fragments:
    """Parts of records, each in one chunk, with the places to copy them from and to.

    Fragment `k` is rows `[sources[k], sources[k] + lengths[k])` of its chunk and goes to rows
    `[targets[k], ...)` of record `records[k]`; without `targets` it is one row, the whole record.
    With `bounds`, the bounds of a `RaggedColumn`, or with `places`, the places of a `PlacedColumn`,
    `targets` are rows of its `values`.
    """

    records: IntArray
    sources: IntArray
    targets: IntArray | None = None
    lengths: IntArray | None = None
    bounds: IntArray | None = None
    places: PiecePlaces | None = None

    def __len__(self) -> int:
        return len(self.records)

    @property
    def runs(self) -> tuple[IntArray, IntArray]:
        """Their targets and lengths, in a column that is made of runs of rows."""
        if self.targets is None or self.lengths is None:
            raise TypeError("chunk cache: fragments that are whole records have no runs")
        return self.targets, self.lengths

    def taken(self, at: IntArray) -> Fragments:
        """The fragments at `at`."""
        if self.targets is None or self.lengths is None:
            return Fragments(self.records[at], self.sources[at])
        return dataclasses.replace(
            self,
            records=self.records[at],
            sources=self.sources[at],
            targets=self.targets[at],
            lengths=self.lengths[at],
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class WantedChunks:
    """The chunks that a read batch wants.

    Args:
        numbers: Their numbers, each once, ascending.
        which: For each fragment, which of these chunks it lies in, int64.
        rows: How many rows are wanted of each; of boxes how many cells.
    """

    numbers: list[int]
    which: IntArray
    rows: list[int]

    @classmethod
    def of(
        cls, chunks: IntArray, chunk_count: int, lengths: IntArray | None = None
    ) -> WantedChunks:
        """The chunks of fragments, of a part with `chunk_count` chunks.

        Args:
            chunks: The chunk of each fragment.
            chunk_count: The number of chunks of the part.
            lengths: The rows of each fragment; None for one each.
        """
        if chunk_count > 4 * len(chunks):
            distinct, which = np.unique(chunks, return_inverse=True)
        else:
            wanted = np.zeros(chunk_count, np.bool_)  # a sort costs five times as much
            wanted[chunks] = True
            distinct, which = np.flatnonzero(wanted), (np.cumsum(wanted) - 1)[chunks]
        rows = np.bincount(which, lengths, minlength=len(distinct))
        return cls(distinct.tolist(), which, rows.astype(np.int64).tolist())


def fragments_of(
    part: ArrayPart, indices: IntArray, places: PiecePlaces | None = None
) -> tuple[Fragments, WantedChunks]:
    """The fragments of the records at `indices`, and the chunks that they lie in.

    With `places` of parts of the records, of a part whose records differ in length, the fragments of
    these.
    """
    core = native()
    if core is None:
        return in_numpy(part, indices, places)
    first = np.ascontiguousarray(part.first_rows(indices) + part.shift, np.int64)
    bounds = None
    if part.lengths is None:
        planned = core.plan_rows(first, part.size, part.chunk_rows)
    else:
        if places is None:
            sizes = np.ascontiguousarray(part.lengths(indices), np.int64)
            bounds = bounds_of(sizes)
            targets = bounds[:-1]
        else:
            first, sizes, targets = first + places.starts, places.lengths, places.targets
        planned = core.plan_runs(first, sizes, targets, part.chunk_rows)
    if planned is None:
        return in_numpy(part, indices, places)
    numbers, rows, columns = planned
    which, sources, *runs = (np.frombuffer(column, np.int64) for column in columns)
    wanted = WantedChunks(numbers, which, rows)
    if not runs:
        return Fragments(np.arange(len(first)), sources), wanted
    return Fragments(runs[0], sources, runs[1], runs[2], bounds, places), wanted


def in_numpy(
    part: ArrayPart, indices: IntArray, places: PiecePlaces | None = None
) -> tuple[Fragments, WantedChunks]:
    """What `fragments_of` returns where there is no core, or numbers are absurd."""
    found, chunks = _with_chunks(part, indices, places)
    return found, WantedChunks.of(chunks, part.chunk_count, found.lengths)


def _with_chunks(
    part: ArrayPart, indices: IntArray, places: PiecePlaces | None
) -> tuple[Fragments, IntArray]:
    """The fragments of records, and the chunk of each."""
    needs = part.needs(indices)
    records, chunks = needs.records, needs.chunks
    first = part.first_rows(indices) + part.shift
    begin = chunks * part.chunk_rows
    if part.has_single_rows:
        return Fragments(records, first - begin), chunks
    sizes = part.sizes(indices)
    first, stop = first[records], (first + sizes)[records]
    low = np.maximum(first, begin)
    lengths = np.minimum(stop, begin + part.chunk_rows) - low
    if part.lengths is None:
        return Fragments(records, low - begin, low - first, lengths), chunks
    if places is None:
        bounds = bounds_of(sizes)
        targets = low - first + bounds[records]
        return Fragments(records, low - begin, targets, lengths, bounds), chunks
    first = first + places.starts[records]
    low, stop = np.maximum(low, first), np.minimum(low + lengths, first + places.lengths[records])
    some = np.flatnonzero(low < stop)
    targets = low - first + places.targets[records]
    found = Fragments(records, low - begin, targets, stop - low, places=places)
    return found.taken(some), chunks[some]


@dataclasses.dataclass(slots=True, eq=False)
class ChunkPlace:
    """Where a chunk goes: into a slot or, with `out`, straight to the columns that want it."""

    number: int
    slot: int = -1
    out: list[Any] | None = None  # these, what `targets` returned for each, and its number there


class WantedRecords(Protocol):
    """The records of a part that one read batch wants."""

    out: Any
    """The column of the read batch; None until it is made."""

    targets: Any
    """What `ChunkCache.targets` returned for it, if some chunk goes straight there."""

    fragments: Any

    which: IntArray
    """For each fragment, the number of its chunk among the chunks that the read batch wants."""

    @property
    def chunk_count(self) -> int:
        """Number of chunks that the read batch wants."""
        ...

    def of_chunk(self, at: int) -> IntArray:
        """The fragments that lie in chunk `at` of those that the read batch wants."""
        ...


def rest_of(future: Future[Any]) -> Rest:
    """The result of a read, or what it has of it if it failed for some chunks alone."""
    try:
        return Rest(future.result(), {})
    except ReadError as error:
        if error.rest is None:
            raise
        rest: Rest = error.rest
        return rest


class ChunkCache(abc.ABC):
    """Slots for chunks of one part. All fragments of a chunk cache are of one kind."""

    @abc.abstractmethod
    def fragments(
        self, indices: IntArray, places: PiecePlaces | None = None
    ) -> tuple[Any, WantedChunks]:
        """The fragments of the records at `indices`, and the chunks that they lie in.

        With `places`, of parts of the records; only records that differ in length can have some.
        """

    @abc.abstractmethod
    def start(self, places: Sequence[ChunkPlace], pool: Executor) -> Future[Any]:
        """Start reading chunks to their destinations."""

    @abc.abstractmethod
    def arrived(self, slots: Sequence[int], future: Future[Any]) -> Mapping[int, Exception]:
        """Take over the result of a read; returns the errors of chunks that failed alone, by number.

        Raises the error of a read that failed as a whole.
        """

    def targets(self, wanted: WantedRecords) -> Any:
        """Where fragments go in the column of a read batch, whose chunks need no slot."""
        raise TypeError(f"{type(self).__name__}: every chunk needs a slot")

    @abc.abstractmethod
    def empty(self, count: int, fragments: Any) -> Any:
        """A column of `count` records to fill with their fragments."""

    @abc.abstractmethod
    def fill(self, out: Any, fragments: Any, slots: IntArray) -> None:
        """Copy fragments, each out of a slot, to their targets in `out`."""

    @abc.abstractmethod
    def gather(self, count: int, fragments: Any, slots: IntArray) -> Any:
        """A new column of `count` records, made of all their fragments."""

    @abc.abstractmethod
    def finished(self, out: Any, fragments: Any) -> Any:
        """Return the column `out` once all its `fragments` are there."""


class ArrayCache(ChunkCache):
    """Chunks of an array, as rows of one large array."""

    def __init__(self, part: ArrayPart, slots: int) -> None:
        self._part, self._slots = part, slots

    @functools.cached_property
    def _rows(self) -> AnyArray:
        part = self._part
        return buffer_pool.returned((self._slots * part.chunk_rows, *part.row_shape), part.dtype)

    @functools.cached_property
    def _runs(self) -> AnyArray:
        return runs_of(self._rows, self._part.size or 1)

    def fragments(
        self, indices: IntArray, places: PiecePlaces | None = None
    ) -> tuple[Fragments, WantedChunks]:
        return fragments_of(self._part, indices, places)

    def start(self, places: Sequence[ChunkPlace], pool: Executor) -> Future[Any]:
        return self._part.reader.start(list(map(self._span, places)), pool)

    def _span(self, place: ChunkPlace) -> Span:
        first, stop = self._part.bounds(place.number)
        before = first + self._part.shift - place.number * self._part.chunk_rows
        at = place.slot * self._part.chunk_rows + before
        return Span(first, stop, self._rows[at : at + stop - first])

    def arrived(self, slots: Sequence[int], future: Future[Any]) -> Mapping[int, Exception]:
        return rest_of(future).errors

    def finished(self, out: Any, fragments: Fragments) -> Any:
        return out

    def empty(self, count: int, fragments: Fragments) -> Any:
        part = self._part
        if fragments.places is not None:
            cells = buffer_pool.empty((fragments.places.cells, *part.row_shape), part.dtype)
            return PlacedColumn(cells, fragments.places)
        if fragments.bounds is None:
            return buffer_pool.empty((count, *part.record_shape), part.dtype)
        values = buffer_pool.empty((int(fragments.bounds[-1]), *part.row_shape), part.dtype)
        return RaggedColumn(values, fragments.bounds)

    def fill(self, out: Any, fragments: Fragments, slots: IntArray) -> None:
        at = slots * self._part.chunk_rows + fragments.sources
        if isinstance(out, (RaggedColumn, PlacedColumn)):
            copy_runs(self._rows, at, out.values, *fragments.runs)
            return
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

    def gather(self, count: int, fragments: Fragments, slots: IntArray) -> Any:
        if fragments.bounds is not None or fragments.places is not None:
            out = self.empty(count, fragments)
            self.fill(out, fragments, slots)
            return out
        if fragments.targets is None:
            at = slots * self._part.chunk_rows + fragments.sources
            out = self.empty(count, fragments)
            # In the default mode NumPy would first copy into a buffer of its own.
            np.take(self._rows, at, axis=0, out=out, mode="clip")
            return out
        whole = np.flatnonzero(fragments.lengths == self._part.size)
        if 2 * len(whole) < count or not count:
            out = self.empty(count, fragments)
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


class ScatteringCache(ChunkCache):
    """Chunks whose reader copies what is wanted straight to the columns of read batches.

    It is copied while the decoded chunk is in the processor's cache.
    """

    _reader: Any
    """Has `start_scattered`."""

    def start(self, places: Sequence[ChunkPlace], pool: Executor) -> Future[Any]:
        future: Future[Any] = self._reader.start_scattered(list(map(self._wanted, places)))
        return future

    def _wanted(self, place: ChunkPlace) -> Any:
        if place.out is None:
            return self._to_slot(place)
        uses = place.out
        outputs = [(output, at) for _, output, at in uses]
        return Scattered(place.number, outputs, functools.partial(self._put, uses))

    @abc.abstractmethod
    def _to_slot(self, place: ChunkPlace) -> Any:
        """The request to read a whole chunk into its slot."""

    @abc.abstractmethod
    def _put(self, uses: Sequence[tuple[WantedRecords, Any, int]], chunk: AnyArray) -> None:
        """Copy what is wanted of one chunk to its targets."""


class ScatteredCache(ScatteringCache, ArrayCache):
    """Chunks of an array whose reader copies rows straight to the columns of read batches."""

    def __init__(self, part: ArrayPart, reader: ScatterReader, slots: int) -> None:
        super().__init__(part, slots)
        self._reader = reader

    def targets(self, wanted: WantedRecords) -> Any:
        fragments: Fragments = wanted.fragments
        out, targets = wanted.out, fragments.records
        if isinstance(out, (RaggedColumn, PlacedColumn)):
            out, (targets, _) = out.values, fragments.runs
        elif fragments.targets is not None and self._part.size is not None:
            out = out.reshape(len(out) * self._part.size, *self._part.row_shape)
            targets = targets * self._part.size + fragments.targets
        return self._reader.output(
            out, wanted.chunk_count, wanted.which, fragments.sources, targets, fragments.lengths
        )

    def _to_slot(self, place: ChunkPlace) -> Span:
        return self._span(place)

    def _put(self, uses: Sequence[tuple[WantedRecords, Any, int]], chunk: AnyArray) -> None:
        for wanted, _, at in uses:
            fragments = wanted.fragments.taken(wanted.of_chunk(at))
            if isinstance(wanted.out, (RaggedColumn, PlacedColumn)):
                copy_runs(chunk, fragments.sources, wanted.out.values, *fragments.runs)
                continue
            for k in range(len(fragments)):
                record, source = fragments.records[k], fragments.sources[k]
                if fragments.targets is None:
                    wanted.out[record] = chunk[source]
                else:
                    target, length = fragments.targets[k], fragments.lengths[k]
                    wanted.out[record, target : target + length] = chunk[source : source + length]


class ListCache(ChunkCache):
    """Chunks that are sequences of records of any kind."""

    def __init__(self, part: ListPart) -> None:
        self._part = part
        self._chunks: list[Sequence[Any]] = []  # by slot, up to the highest one in use

    def fragments(
        self, indices: IntArray, places: PiecePlaces | None = None
    ) -> tuple[Fragments, WantedChunks]:
        needs = self._part.needs(indices)
        chunks = WantedChunks.of(needs.chunks, self._part.chunk_count)
        return Fragments(needs.records, self._part.places(indices)), chunks

    def start(self, places: Sequence[ChunkPlace], pool: Executor) -> Future[Any]:
        for place in places:  # what lay there is not held while the next one is read
            self._chunks[place.slot : place.slot + 1] = [()] * (place.slot < len(self._chunks))
        return self._part.start([place.number for place in places], pool)

    def arrived(self, slots: Sequence[int], future: Future[Any]) -> Mapping[int, Exception]:
        chunks, rest = self._chunks, rest_of(future)
        for slot, chunk in zip(slots, rest.found, strict=True):
            chunks.extend([()] * (slot + 1 - len(chunks)))
            chunks[slot] = chunk
        return rest.errors

    def finished(self, out: list[Any], fragments: Fragments) -> list[Any]:
        return out

    def empty(self, count: int, fragments: Fragments) -> list[Any]:
        return [None] * count

    def fill(self, out: list[Any], fragments: Fragments, slots: IntArray) -> None:
        found = self._part.picked(self._chunks, slots, fragments.sources)
        for record, value in zip(fragments.records.tolist(), found, strict=True):
            out[record] = value

    def gather(self, count: int, fragments: Fragments, slots: IntArray) -> list[Any]:
        return self._part.picked(self._chunks, slots, fragments.sources)
