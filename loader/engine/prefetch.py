"""The prefetcher of a stream: the prefetchers of all parts of its sources, under one budget.

Not thread-safe: one thread plans, starts and gathers; the reads themselves run on other threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from windrow.core.threads import DaemonPool
from windrow.engine.budgets import Budget, PartRoom, rooms
from windrow.engine.chunk_cache import ArrayCache, ChunkCache, ListCache
from windrow.engine.chunk_prefetch import ChunkPrefetcher
from windrow.sources.boxes import BoxPart
from windrow.sources.chunks import (
    ArrayPart,
    LaidOutSource,
    ListPart,
    Part,
)
from windrow.sources.remote.options import is_remote_source
from windrow.stats.read_counters import ReadCounters

# Read batches that are planned for each one that is made, until the plan is long enough: many at once
# would delay the next batch. They are few where a long plan saves no reads, since all chunks fit.
_TICKETS, _FEW_TICKETS = 15, 4
# Makes the memory for chunks of a part.
NewCache: TypeAlias = Callable[[PartRoom], ChunkCache]


def cache_of(room: PartRoom) -> ChunkCache:
    """Memory for the chunks of a part, as many as fit into the budget."""
    match room.part:
        case ArrayPart() as part:
            return ArrayCache(part, room.slots, scatters=room.scatters)
        case BoxPart() as part:
            from windrow.engine.box_cache import BoxCache  # few chains read boxes

            return BoxCache(part, room.slots, scatters=room.scatters)
        case ListPart() as part:
            return ListCache(part)
        case part:
            raise TypeError(f"prefetcher: no chunk cache is known for {type(part).__name__}")


class Prefetcher:
    """The prefetchers of all parts of all sources of one stream."""

    def __init__(
        self,
        sources: Sequence[LaidOutSource],
        budget: Budget,
        pool: DaemonPool,
        read_counters: ReadCounters,
        new_cache: NewCache | None = None,
    ) -> None:
        planned, self.plan_bytes = rooms(sources, budget)
        self._ahead: dict[tuple[int, str], ChunkPrefetcher] = {}
        for room in planned:
            counters = read_counters.of(room.source).part(room.part)
            self._ahead[id(room.source), room.part.name] = ChunkPrefetcher(
                counters, room, pool, (new_cache or cache_of)(room)
            )
        self.parts: Sequence[ChunkPrefetcher] = tuple(self._ahead.values())
        """The prefetchers of the parts that are read through here."""
        self._planned = {id(room.source) for room in planned}
        fits = all(room.fits and not is_remote_source(room.source) for room in planned)
        tickets = _FEW_TICKETS if fits else _TICKETS
        self.batches_per_plan = max(1, tickets // max(1, len(planned)))

    @property
    def wants_more(self) -> bool:
        """Whether a longer plan saves reads and has room."""
        planned_bytes = sum(ahead.planned_bytes for ahead in self.parts)
        return planned_bytes < self.plan_bytes and any(ahead.wants_more for ahead in self.parts)

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

    def start(self, number: int) -> None:
        """Start the reads that it is time for when read batch `number` is made next."""
        for ahead in self.parts:
            ahead.start(number)
