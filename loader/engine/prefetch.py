"""The prefetcher of a stream: the prefetchers of all parts of its sources, under one budget.

Not thread-safe: one thread plans, starts and gathers; the reads themselves run on other threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from windrow.core.threads import DaemonPool
from windrow.engine.budgets import CacheBudget, CacheRoom, batches_per_plan, rooms
from windrow.engine.chunk_cache import ArrayCache, ChunkCache, ListCache, ScatteredCache
from windrow.engine.chunk_prefetch import ChunkPrefetcher
from windrow.sources.boxes import BoxPart
from windrow.sources.chunks import (
    ArrayPart,
    BoxScatterReader,
    LaidOutSource,
    ListPart,
    Part,
    ScatterReader,
    reads_without_lock,
)
from windrow.stats.read_counters import ReadCounters

# The bytes of indices that are outside the budgets. Indices of a store that fits as a whole take no
# more than these, since its chunks are read once, however long the plan is. Several streams share
# them, also for their records.
FREE_BYTES = 16 << 20
# Makes the memory for chunks of a part.
NewCache: TypeAlias = Callable[[CacheRoom], ChunkCache]


def cache_of(room: CacheRoom) -> ChunkCache:
    """Memory for the chunks of a part, as many as fit into the budget."""
    match room.part:
        case ArrayPart(reader=ScatterReader() as reader) as part if room.scatters:
            return ScatteredCache(part, reader, room.slots)
        case ArrayPart() as part:
            return ArrayCache(part, room.slots)
        case BoxPart() as part:
            from windrow.engine import box_cache  # few chains read boxes

            if room.scatters and isinstance(part.reader, BoxScatterReader):
                return box_cache.ScatteredBoxCache(part, part.reader, room.slots)
            return box_cache.BoxCache(part, room.slots)
        case ListPart() as part:
            return ListCache(part)
        case part:
            raise TypeError(f"prefetcher: no chunk cache is known for {type(part).__name__}")


class Prefetcher:
    """The prefetchers of all parts of all sources of one stream."""

    def __init__(
        self,
        sources: Sequence[LaidOutSource],
        budget: CacheBudget,
        pool: DaemonPool,
        read_counters: ReadCounters,
        new_cache: NewCache | None = None,
        *,
        streams: int = 1,
    ) -> None:
        planned, budget = rooms(sources, budget)
        self._ahead: dict[tuple[int, str], ChunkPrefetcher] = {}
        for room in planned:
            counters = read_counters.of(room.source).part(room.part)
            self._ahead[id(room.source), room.part.name] = ChunkPrefetcher(
                counters, room, pool, (new_cache or cache_of)(room)
            )
        self.parts: Sequence[ChunkPrefetcher] = tuple(self._ahead.values())
        """The prefetchers of the parts that are read through here."""
        self._planned = {id(room.source) for room in planned}
        self.scatters = all(room.scatters for room in planned)
        # Whether a read batch costs much and each of its chunks little.
        self.prefers_long = all(room.scatters or reads_without_lock(room.part) for room in planned)
        self._fits = all(room.fits for room in planned)
        self._streams = streams
        self.batches_per_plan = batches_per_plan(planned)
        self.horizon_bytes = budget.horizon_bytes

    @property
    def is_full(self) -> bool:
        """Whether as many bytes of records are planned as the budget has room for."""
        return self.fill >= 1

    @property
    def fill(self) -> float:
        """The share of that room that is taken."""
        records = sum(ahead.planned_bytes for ahead in self.parts)
        indices = sum(ahead.index_bytes for ahead in self.parts)
        fill = (records + max(0, indices - FREE_BYTES)) / max(1, self.horizon_bytes)
        if not self._fits:
            return fill
        free = indices if self._streams == 1 else self._streams * (indices + records)
        return max(fill, free / FREE_BYTES)

    def bytes_by(self) -> dict[str, int]:
        """Bytes that are held, by kind."""
        chunks = sum(ahead.cache_bytes for ahead in self.parts)
        return {"chunks": chunks, "planned": sum(ahead.given_bytes for ahead in self.parts)}

    def plans(self, source: Any) -> bool:
        """Whether some part of a source is read through here."""
        return id(source) in self._planned

    def __len__(self) -> int:
        """The number of parts that these prefetchers read."""
        return len(self._ahead)

    def of(self, source: Any, part: Part) -> ChunkPrefetcher | None:
        """The prefetcher of a part; None where its records are read alone."""
        return self._ahead.get((id(source), part.name))

    def end(self) -> None:
        """Note that every read batch is planned."""
        for ahead in self.parts:
            ahead.end()

    def drop(self, number: int) -> None:
        """Note that read batch `number` failed, and is made in another way."""
        for ahead in self.parts:
            ahead.drop(number)

    def begin(self) -> None:
        """Start the reads that the next read batch waits for."""
        for ahead in self.parts:
            ahead.begin()

    def pace(self, number: int) -> int:
        """Plan the reads between read batch `number`, which is next, and the one after it."""
        is_full = self.is_full
        return max(ahead.pace(number, is_full=is_full) for ahead in self.parts)

    def step(self, number: int, steps: int) -> None:
        """Start the reads that are due by step `number` of `steps`."""
        for ahead in self.parts:
            ahead.step(number, steps)
