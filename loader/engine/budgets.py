"""Budgets: the bytes of chunks and records that a prefetcher may hold, and the bytes of each.

Invariant: sizes follow from a part's layout, or from a sample of chunks at even distances.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from windrow.core.machine import machine_bytes
from windrow.sources.boxes import BoxPart
from windrow.sources.chunks import ArrayPart, BoxScatterReader, LaidOutSource, Part, ScatterReader
from windrow.sources.foreign import ForeignDataSource
from windrow.sources.part_sizes import bytes_per_record, largest_bytes
from windrow.sources.remote.options import is_remote_source
from windrow.transforms.nodes import Node, sources_of, walk
from windrow.transforms.nodes.following import group_size
from windrow.transforms.options import MIB, ReadOptions

# What planning a record costs in indices. A fragment of a box costs more, since it is a view of a
# column too.
_INDEX_BYTES = 64
_BOX_BYTES, _AXIS_BYTES = 384, 64
# The most tickets of parts that are planned between two read batches.
_TICKETS, _FEW_TICKETS = 16, 4
# The share of a budget for chunks, if the store does not fit.
USUAL_KEPT = 0.25
# The length of the horizon in chunks, where chunks need no slots. An order in windows of at most
# half that length reads each chunk once.
_LEAST_CHUNKS = 8
# How many parts of boxes need as much memory as a chunk at least, if chunks are to have no slots.
_BOXES_PER_CHUNK = 4
# The largest share of a budget for chunks, if the store fits into it.
MOST_KEPT = 0.75


@dataclasses.dataclass(frozen=True, slots=True)
class CacheBudget:
    """Bytes for the chunks of one part.

    Args:
        resident_bytes: Bytes for cached chunks and for the records of planned read batches.
        in_flight_bytes: Bytes for chunks that are being read.
        kept_share: The share of `resident_bytes` that is for chunks. A quarter is enough for the
            windows of most block shuffles. An order that returns to every chunk of a store that
            does not fit gains more from the other share, which keeps only records.
    """

    resident_bytes: int
    in_flight_bytes: int
    kept_share: float = USUAL_KEPT

    @property
    def kept_bytes(self) -> int:
        """Bytes for chunks that wait in the chunk cache."""
        return int(self.resident_bytes * self.kept_share)

    @property
    def usual_bytes(self) -> int:
        """Bytes for chunks that wait in the chunk cache, if the store does not fit."""
        return int(self.resident_bytes * USUAL_KEPT)

    @property
    def horizon_bytes(self) -> int:
        """Bytes for records of planned read batches, which may be copied long before their turn."""
        return self.resident_bytes - self.kept_bytes

    def share(self, weight: float) -> CacheBudget:
        """A part of it."""
        return dataclasses.replace(
            self,
            resident_bytes=int(self.resident_bytes * weight),
            in_flight_bytes=int(self.in_flight_bytes * weight),
        )

    def for_store(self, store_bytes: int) -> CacheBudget:
        """The budget with room for a whole store, if that leaves a quarter for records."""
        share = store_bytes / self.resident_bytes
        fits = self.kept_share < share <= MOST_KEPT
        return dataclasses.replace(self, kept_share=share) if fits else self

    def for_scattering(self, store_bytes: int) -> CacheBudget:
        """The budget without room for chunks, which do not fit and go straight to read batches.

        Chunks that are being read have no memory then, so read batches get their bytes: with them
        the rows of the next windows are planned while the rows of one window are handed out.
        """
        fits = store_bytes <= self.kept_bytes + self.in_flight_bytes
        if fits:
            return self
        more = min(self.in_flight_bytes, self.resident_bytes)
        return dataclasses.replace(self, resident_bytes=self.resident_bytes + more, kept_share=0.0)

    def has_room_to_scatter(self, chunk_bytes: int) -> bool:
        """Whether the horizon is so long that no read batch needs a chunk to be read again."""
        return _LEAST_CHUNKS * chunk_bytes <= self.resident_bytes


def is_scattered(part: Part) -> bool:
    """Whether chunks of a part can go straight to all the read batches that want them."""
    if isinstance(part, BoxPart):
        # A planned box must take much less memory than the chunk that it saves to decode again.
        fragment_bytes = part.record_bytes / max(1, part.usual_chunks)
        is_small = _BOXES_PER_CHUNK * fragment_bytes <= part.chunk_bytes
        return is_small and isinstance(part.reader, BoxScatterReader)
    return isinstance(part, ArrayPart) and isinstance(part.reader, ScatterReader)


def budget_of(options: ReadOptions, *, remote: bool = False) -> CacheBudget:
    """The budgets of an iterator: as the options say, by default shares of the machine's memory.

    A remote source (`remote`) has more reads in flight, since they mostly wait.
    """
    resident, in_flight = options.resident_bytes, options.in_flight_bytes
    machine = machine_bytes()
    return CacheBudget(
        min(1024 * MIB, machine // 16) if resident is None else resident,
        (4 if remote else 1) * min(32 * MIB, machine // 256) if in_flight is None else in_flight,
    )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CacheRoom:
    """The room that a prefetcher has for one part of a source.

    Args:
        source: The source.
        part: One of its parts.
        chunk_bytes: Bytes of its largest chunk, and so of a slot.
        record_bytes: Bytes of the part in one record.
        index_bytes: Bytes to plan one fragment.
        most_in_flight: Chunks that are being read at a time at most.
        slots: The most chunks that are in the chunk cache or being read.
        keeps: Whether chunks are kept from the start, since the store is small. Otherwise, if all
            of them fit, they are kept once a chunk that was given up is wanted again.
        scatters: Whether chunks go straight to all read batches that want them, and into no slot.
            That is so if not all chunks fit and the direct way costs no more.
        places: The number of chunks whose records fit into memory together.
    """

    source: LaidOutSource
    part: Part
    chunk_bytes: int
    record_bytes: int
    index_bytes: int
    most_in_flight: int
    slots: int
    keeps: bool
    scatters: bool
    places: int

    @property
    def fits(self) -> bool:
        """Whether all chunks have a slot."""
        return self.part.chunk_count <= self.slots


def batches_per_plan(rooms: Sequence[CacheRoom]) -> int:
    """Read batches to plan from one to the next, until the horizon is full; 0 for no parts.

    A longer plan saves reads where chunks are read again, and lets requests hide each other's
    delay. If neither applies, planning should not keep the decoding threads waiting.
    """
    if not rooms:
        return 0
    few = all(room.fits and not is_remote_source(room.source) for room in rooms)
    return max(1, (_FEW_TICKETS if few else _TICKETS) // len(rooms))


def rooms(
    sources: Sequence[LaidOutSource], budget: CacheBudget
) -> tuple[list[CacheRoom], CacheBudget]:
    """The room of each part that is read through a prefetcher; and the budget they share."""
    parts = [(source, part) for source in sources for part in source.parts]
    planned = [(source, part) for source, part in parts if part.chunk_count and not part.alone]
    weights = [largest_bytes(part) for _, part in planned]
    most = max((part.chunk_count for _, part in planned), default=0)
    budget = budget.for_store(most * sum(weights))
    scatters = budget.has_room_to_scatter(sum(weights))
    scatters = scatters and all(is_scattered(part) for _, part in planned)
    if scatters:
        budget = budget.for_scattering(most * sum(weights))
    found = []
    for (source, part), weight in zip(planned, weights, strict=True):
        own = budget.share(weight / sum(weights))
        in_flight = max(2, own.in_flight_bytes // weight)
        slots = max(1, min(part.chunk_count, in_flight + own.kept_bytes // weight))
        found.append(
            CacheRoom(
                source=source,
                part=part,
                chunk_bytes=weight,
                record_bytes=bytes_per_record(part, len(source)),
                index_bytes=index_bytes_of(part),
                most_in_flight=in_flight,
                slots=slots,
                keeps=part.chunk_count <= in_flight + own.usual_bytes // weight,
                scatters=scatters and part.chunk_count > slots,
                places=max(slots, own.horizon_bytes // weight) if scatters else slots,
            )
        )
    return found, budget


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
