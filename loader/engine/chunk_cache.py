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
    Span,
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

    def gather(self, count: int, fragments: Any, slots: IntArray) -> Any:
        """A new column of `count` records, made of all their fragments."""
        out = self.empty(count, fragments)
        self.fill(out, fragments, slots)
        return out

    @abc.abstractmethod
    def finished(self, out: Any, fragments: Any) -> Any:
        """Return the column `out` once all its `fragments` are there."""


class ReadToMemory(ChunkCache):
    """Chunks that a reader decodes into slots, or whose rows it copies straight to columns."""

    def __init__(self, reader: Any, *, scatters: bool) -> None:
        """Start without chunks; with `scatters` the reader has `start_scattered`."""
        self._reader, self._scatters = reader, scatters

    def start(self, places: Sequence[ChunkPlace], pool: Executor) -> Future[Any]:
        wanted = list(map(self._wanted, places))
        future: Future[Any] = (
            self._reader.start_scattered(wanted)
            if self._scatters
            else self._reader.start(wanted, pool)
        )
        return future

    def _wanted(self, place: ChunkPlace) -> Any:
        if place.out is None:
            return self._to_slot(place)
        uses = place.out
        outputs = [(output, at) for _, output, at in uses]
        return Scattered(place.number, outputs, functools.partial(self._put, uses))

    def arrived(self, slots: Sequence[int], future: Future[Any]) -> Mapping[int, Exception]:
        return rest_of(future).errors

    @abc.abstractmethod
    def _to_slot(self, place: ChunkPlace) -> Any:
        """The request to read a whole chunk into its slot."""

    @abc.abstractmethod
    def _put(self, uses: Sequence[tuple[WantedRecords, Any, int]], chunk: AnyArray) -> None:
        """Copy what is wanted of one chunk to its targets."""


class ArrayCache(ReadToMemory):
    """Chunks of an array, as rows of one large array."""

    def __init__(self, part: ArrayPart, slots: int, *, scatters: bool = False) -> None:
        super().__init__(part.reader, scatters=scatters)
        self._part, self._slots = part, slots

    @functools.cached_property
    def _rows(self) -> AnyArray:
        part = self._part
        return buffer_pool.returned((self._slots * part.chunk_rows, *part.row_shape), part.dtype)

    def fragments(
        self, indices: IntArray, places: PiecePlaces | None = None
    ) -> tuple[Fragments, WantedChunks]:
        return fragments_of(self._part, indices, places)

    def _to_slot(self, place: ChunkPlace) -> Span:
        first, stop = self._part.bounds(place.number)
        before = first + self._part.shift - place.number * self._part.chunk_rows
        at = place.slot * self._part.chunk_rows + before
        return Span(first, stop, self._rows[at : at + stop - first])

    def targets(self, wanted: WantedRecords) -> Any:
        values, targets, lengths = self._flat(wanted.out, wanted.fragments)
        sources = wanted.fragments.sources
        return self._reader.output(
            values, wanted.chunk_count, wanted.which, sources, targets, lengths
        )

    def _put(self, uses: Sequence[tuple[WantedRecords, Any, int]], chunk: AnyArray) -> None:
        for wanted, _, at in uses:
            fragments = wanted.fragments.taken(wanted.of_chunk(at))
            self._copy(chunk, fragments.sources, wanted.out, fragments)

    def _copy(self, rows: AnyArray, at: IntArray, out: Any, fragments: Fragments) -> None:
        """Copy fragments, which begin at the rows `at`, to their targets in a column."""
        values, targets, lengths = self._flat(out, fragments)
        if lengths is None:
            values[targets] = rows[at]
        else:
            copy_runs(rows, at, values, targets, lengths)

    def _flat(self, out: Any, fragments: Fragments) -> tuple[AnyArray, IntArray, IntArray | None]:
        """The rows of a column, and the places and lengths of fragments in them."""
        part = self._part
        if isinstance(out, (RaggedColumn, PlacedColumn)):
            return out.values, *fragments.runs
        if part.size is None:
            return out, fragments.records, None
        targets, lengths = fragments.runs
        rows = out.reshape(len(out) * part.size, *part.row_shape)
        return rows, fragments.records * part.size + targets, lengths

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
        self._copy(self._rows, slots * self._part.chunk_rows + fragments.sources, out, fragments)

    def gather(self, count: int, fragments: Fragments, slots: IntArray) -> Any:
        if fragments.targets is not None:
            return super().gather(count, fragments, slots)
        out = self.empty(count, fragments)
        at = slots * self._part.chunk_rows + fragments.sources
        # In the default mode NumPy would first copy into a buffer of its own.
        np.take(self._rows, at, axis=0, out=out, mode="clip")
        return out


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
