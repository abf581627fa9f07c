"""Which chunks of an array the records of a read batch lie in, and where in them.

The native core makes this table in one call, and NumPy where there is no core. NumPy releases the
interpreter's lock in each of its many calls: a training loop of pure Python then runs for a few
milliseconds before the thread that plans has the lock again.

Invariant: the core and NumPy make the same tables.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from windrow.core.native import native
from windrow.sources.chunks import ArrayPart
from windrow.sources.ragged_column import bounds_of

IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Fragments:
    """Parts of records, each in one chunk, with the places to copy them from and to.

    Fragment `k` is rows `[sources[k], sources[k] + lengths[k])` of its chunk and goes to rows
    `[targets[k], ...)` of record `records[k]`; without `targets` it is one row, the whole record.
    With `bounds`, the bounds of a `RaggedColumn`, `targets` are rows of its `values`.
    """

    records: IntArray
    sources: IntArray
    targets: IntArray | None = None
    lengths: IntArray | None = None
    bounds: IntArray | None = None

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
        return Fragments(
            self.records[at], self.sources[at], self.targets[at], self.lengths[at], self.bounds
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class WantedChunks:
    """The chunks that a read batch wants.

    Args:
        numbers: Their numbers, each once, ascending.
        which: For each fragment, which of these chunks it lies in, int64.
        rows: How many rows are wanted of each; None for a part whose chunks are not of rows.
    """

    numbers: list[int]
    which: IntArray
    rows: list[int] | None = None

    @classmethod
    def of(cls, chunks: IntArray, chunk_count: int) -> WantedChunks:
        """The chunks of fragments, of a part with `chunk_count` chunks."""
        if chunk_count > 4 * len(chunks):
            distinct, which = np.unique(chunks, return_inverse=True)
        else:
            wanted = np.zeros(chunk_count, np.bool_)  # a sort costs five times as much
            wanted[chunks] = True
            distinct, which = np.flatnonzero(wanted), (np.cumsum(wanted) - 1)[chunks]
        return cls(distinct.tolist(), which)


def fragments_of(part: ArrayPart, indices: IntArray) -> tuple[Fragments, WantedChunks]:
    """The fragments of the records at `indices`, and the chunks that they lie in."""
    core = native() if part.lengths is None else None
    if core is None:
        return in_numpy(part, indices)
    first = np.ascontiguousarray(part.first_rows(indices) + part.shift, np.int64)
    planned = core.plan_rows(first, part.size, part.chunk_rows)
    if planned is None:
        return in_numpy(part, indices)
    numbers, rows, columns = planned
    which, sources, *runs = (np.frombuffer(column, np.int64) for column in columns)
    records, targets, lengths = runs or (np.arange(len(first)), None, None)
    return Fragments(records, sources, targets, lengths), WantedChunks(numbers, which, rows)


def in_numpy(part: ArrayPart, indices: IntArray) -> tuple[Fragments, WantedChunks]:
    """What `fragments_of` returns where there is no core, or records have lengths of their own."""
    found, chunks = _with_chunks(part, indices)
    wanted = WantedChunks.of(chunks, part.chunk_count)
    rows = np.bincount(wanted.which, found.lengths, minlength=len(wanted.numbers))
    return found, dataclasses.replace(wanted, rows=rows.astype(np.int64).tolist())


def _with_chunks(part: ArrayPart, indices: IntArray) -> tuple[Fragments, IntArray]:
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
    bounds = bounds_of(sizes)
    targets = low - first + bounds[records]
    return Fragments(records, low - begin, targets, lengths, bounds), chunks
