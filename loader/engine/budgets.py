"""Budgets: the bytes that an iterator may hold, and what its prefetchers have of them.

Elements that wait for the loop, and each of two read batches, get a 16th, up to what makes them fast.
The rest is for chunks and for the records of planned read batches.

Invariant: sizes follow from a part's layout, or from a sample of chunks at even distances.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from windrow.core.machine import MIB, machine_bytes
from windrow.sources.boxes import BoxPart
from windrow.sources.chunks import (
    ArrayPart,
    BoxScatterReader,
    LaidOutSource,
    Part,
    ScatterReader,
)
from windrow.sources.foreign import ForeignDataSource
from windrow.sources.part_sizes import bytes_per_record, largest_bytes
from windrow.sources.remote.options import is_remote_source
from windrow.transforms.nodes import Node, sources_of, walk
from windrow.transforms.nodes.following import group_size
from windrow.transforms.options import ReadOptions

# What planning a record costs in indices. A fragment of a box has some for each axis.
_INDEX_BYTES = 64
_BOX_BYTES, _AXIS_BYTES = 80, 48
# Chunks that planned records have room for, if chunks are to have no slots: with fewer, read batches
# shorter than a chunk would each read it.
_LEAST_CHUNKS = 8
# How many parts of boxes need as much memory as a chunk at least, if chunks are to have no slots.
_BOXES_PER_CHUNK = 4
_BATCHES = 2  # read batches that are in progress at a time
# Remote reads begin this many times as early, since they mostly wait.
_REMOTE_LEAD = 4
_SMALL = 4  # times the lead: a plan in order holds as much
_SMALL_CHUNK = 64 << 10  # bytes of a chunk whose read costs more than fresh memory for it
MOST_KEPT = 0.75
"""The largest share of the memory for chunks that a store may have to be kept whole."""
_KEPT = 0.25  # the share for the chunks of another store, if they need slots


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """The bytes that an iterator, or one of its streams, may hold."""

    memory_bytes: int

    @property
    def queue_bytes(self) -> int:
        """Bytes of elements that wait for the loop: a 16th, at most 32 MiB."""
        return max(1, min(self.memory_bytes // 16, 32 * MIB))

    @property
    def batch_bytes(self) -> int:
        """Bytes that a read batch should have: a 16th, at most 8 MiB."""
        return max(1, min(self.memory_bytes // 16, 8 * MIB))

    @property
    def lead_bytes(self) -> int:
        """Bytes of the records whose reads start before they are due: an eighth, at most 16 MiB."""
        return max(1, min(self.memory_bytes // 8, 16 * MIB))

    @property
    def chunk_bytes(self) -> int:
        """Bytes of chunks and of the records of planned read batches: the rest."""
        return max(1, self.memory_bytes - self.queue_bytes - _BATCHES * self.batch_bytes)

    def share(self, streams: int) -> Budget:
        """The part of one of several streams."""
        return Budget(max(1, self.memory_bytes // streams))


def budget_of(options: ReadOptions) -> Budget:
    """The budget that options give: by default a share of the machine's memory."""
    given = options.memory_bytes
    return Budget(min(1024 * MIB, machine_bytes() // 16) if given is None else given)


def memory_for(store_bytes: int, streams: int) -> int:
    """The `memory_bytes` with which all chunks of a store are kept."""
    # Batches have 3/16, and no more than 48 MiB.
    most = store_bytes * 4 / 3
    return math.ceil(streams * min(most * 16 / 13, most + 48 * MIB)) + 1


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PartRoom:
    """The room that a prefetcher has for one part of a source.

    Args:
        source: The source.
        part: One of its parts.
        chunk_bytes: Bytes of its largest chunk, and so of a slot.
        record_bytes: Bytes of the part in one record.
        index_bytes: Bytes to plan one fragment.
        slots: The most chunks that are in memory or being read; 0 if all go straight to read batches.
        keeps: Whether all chunks are kept from the start, since the store is small or chunks are.
        scatters: Whether chunks can go straight to all read batches that want them.
        lead: The number of records whose reads begin before their read batches are due.
    """

    source: LaidOutSource
    part: Part
    chunk_bytes: int
    record_bytes: int
    index_bytes: int
    slots: int
    keeps: bool
    scatters: bool
    lead: int

    @property
    def fits(self) -> bool:
        """Whether all chunks have a slot."""
        return self.part.chunk_count <= self.slots

    def rows_of(self, chunk: int) -> int:
        """The rows of a chunk that an epoch of all records wants; of boxes the cells, of lists the records.

        Where records overlap, they want each row more than once: as often as on average.
        """
        each = len(self.source) / self.part.chunk_count
        match self.part:
            case ArrayPart() as part:
                first, stop = part.bounds(chunk)
                return max(stop - first, int(each * (part.size or 1)))
            case BoxPart() as part:
                cells = math.prod(b - a for a, b in zip(*part.bounds(chunk), strict=True))
                return max(cells, int(each * part.record_bytes / part.dtype.itemsize))
            case _:
                return int(each)


def rooms(sources: Sequence[LaidOutSource], budget: Budget) -> tuple[list[PartRoom], int]:
    """The room of each part that is read through a prefetcher, and the bytes for planned records."""
    parts = [(source, part) for source in sources for part in source.parts]
    planned = [(source, part) for source, part in parts if part.chunk_count and not part.alone]
    sizes = [largest_bytes(part) for _, part in planned]
    store_bytes = sum(
        size * part.chunk_count for size, (_, part) in zip(sizes, planned, strict=True)
    )
    whole = budget.chunk_bytes
    has_room = _LEAST_CHUNKS * sum(sizes) <= whole
    if store_bytes <= MOST_KEPT * whole:
        kept = store_bytes
    elif has_room and all(is_scattered(part) for _, part in planned):
        kept = 0
    else:
        kept = max(1, int(whole * _KEPT))
    each = sum(
        bytes_per_record(part, len(source)) + index_bytes_of(part) for source, part in planned
    )
    remote = any(is_remote_source(source) for source, _ in planned)
    lead = budget.lead_bytes * (_REMOTE_LEAD if remote else 1) // max(1, each)
    small = _SMALL * budget.lead_bytes
    found = []
    for (source, part), size in zip(planned, sizes, strict=True):
        slots = kept // sum(sizes) if kept < store_bytes else part.chunk_count
        found.append(
            PartRoom(
                source=source,
                part=part,
                chunk_bytes=size,
                record_bytes=bytes_per_record(part, len(source)),
                index_bytes=index_bytes_of(part),
                slots=min(part.chunk_count, max(2, slots)) if kept else 0,
                keeps=store_bytes == kept and (store_bytes <= small or size <= _SMALL_CHUNK),
                scatters=has_room and _can_scatter(part),
                lead=lead,
            )
        )
    return found, max(1, whole - kept)


def is_scattered(part: Part) -> bool:
    """Whether it saves memory that chunks go straight to all the read batches that want them."""
    if isinstance(part, BoxPart):
        # A planned box must take much less memory than the chunk that it saves to decode again.
        fragment_bytes = part.record_bytes / max(1, part.usual_chunks)
        return _BOXES_PER_CHUNK * fragment_bytes <= part.chunk_bytes and _can_scatter(part)
    return _can_scatter(part)


def _can_scatter(part: Part) -> bool:
    if isinstance(part, BoxPart):
        return isinstance(part.reader, BoxScatterReader)
    return isinstance(part, ArrayPart) and isinstance(part.reader, ScatterReader)


def index_bytes_of(part: Part) -> int:
    """Bytes to plan one fragment."""
    if isinstance(part, BoxPart):
        return _BOX_BYTES + _AXIS_BYTES * len(part.shape)
    return _INDEX_BYTES


def default_options(node: Node) -> ReadOptions:
    """The read options of a chain that gives none: no threads for a chain that reads nothing."""
    return ReadOptions() if sources_of(node) else ReadOptions(num_threads=0)


def reads_records_alone(node: Node, elements: int) -> bool:
    """Whether making `elements` elements reads several records one by one, so that threads help."""
    several = elements > 1 or any(group_size(each) is not None for each in walk(node))
    return several and any(
        isinstance(source, ForeignDataSource) and not source.batched for source in sources_of(node)
    )
