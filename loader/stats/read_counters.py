"""Read counters: reads, bytes and cache hits of the sources of a chain so far.

Reads are noted when they start, and records when they arrive. Arithmetic (the bytes of chunks, and
which chunks were read before) is done for many notes at once, by the thread that adds a note or asks
for the costs.

Invariant: noting a read costs the same for every layout, and notes do not accumulate.
"""

from __future__ import annotations

import collections
import functools
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np

from windrow.sources.base import IntArray
from windrow.sources.chunks import ArrayPart, Part
from windrow.sources.foreign import ForeignDataSource
from windrow.sources.part_sizes import bytes_per_record
from windrow.sources.remote.options import is_remote_source
from windrow.stats.costs import Amount, SourceCosts, known
from windrow.transforms.amounts import PackCounts
from windrow.transforms.nodes import Node, sources_of

# At most this many notes of chunks and of records wait to be counted.
_NOTES: Final = 1 << 12
_RECORDS: Final = 1 << 16
# At most this many chunks have a bit that says whether they were read; pages are used as bits are set.
_MOST_BITS: Final = 1 << 31
_NONE: Final = Amount.exactly(0)


class _ChunksRead:
    """A set of the chunks that were read, as bits."""

    def __init__(self, count: int) -> None:
        self._bits = np.zeros((count + 7) // 8, np.uint8) if count <= _MOST_BITS else None
        self._count = 0

    def add(self, chunks: IntArray) -> None:
        """Add chunks that were read, in any order."""
        if self._bits is None:
            return
        distinct = np.unique(chunks)
        places, bits = distinct >> 3, (1 << (distinct & 7)).astype(np.uint8)
        self._count += int(np.count_nonzero(self._bits[places] & bits == 0))
        np.bitwise_or.at(self._bits, places, bits)

    def count(self, reads: int) -> Amount:
        """Return how many different chunks there were among `reads` reads."""
        if self._bits is None:
            return Amount(min(1, reads), reads)
        return Amount.exactly(self._count)


class Shelved(Protocol):
    """An object that has chunks of a part in memory."""

    @property
    def cache_bytes(self) -> int:
        """Bytes of these chunks."""
        ...


class PartCounters:
    """Counts the reads of one part of a source.

    Only one thread calls `started`, `wanted`, `has_cache` and `holds`; any thread calls the others.
    """

    def __init__(self, part: Part, records: int) -> None:
        """Start with no reads of a part that has `records` records."""
        self.part = part
        self._length = records
        self._lock = threading.Lock()
        self._chunks: collections.deque[int] = collections.deque()
        self._alone: collections.deque[IntArray] = collections.deque()
        self._waiting = 0  # records in `_alone`
        self._seen: _ChunksRead | None = None
        self._reads = self._decoded_bytes = 0
        self._stored_bytes: int | None = 0
        self._hits = 0
        # Each stream of a run, and each later pass, has a chunk cache of its own.
        self._caches: weakref.WeakSet[Shelved] = weakref.WeakSet()
        self.held_bytes = 0  # at most

    @functools.cached_property
    def record_bytes(self) -> int:
        """Bytes that the part has of one record."""
        return bytes_per_record(self.part, self._length)

    def wanted(self, chunks: int, new: int) -> None:
        """Note that a read batch needs `chunks` chunks and reads `new` of them."""
        self._hits += chunks - new

    def has_cache(self, cache: Shelved) -> None:
        """Count a chunk cache for as long as it exists."""
        self._caches.add(cache)

    def holds(self, cache: Shelved) -> None:
        """Note that a chunk cache has one more chunk."""
        held = cache.cache_bytes  # usually there is one, and this is called for every chunk
        if len(self._caches) > 1:
            held = sum(own.cache_bytes for own in self._caches)
        if held > self.held_bytes:
            self.held_bytes = held

    def started(self, chunks: Sequence[int]) -> None:
        """Note that reads of chunks were started."""
        self._chunks.extend(chunks)
        if len(self._chunks) > _NOTES:
            self._settle()

    def was_read(self, indices: IntArray) -> None:
        """Note that records were read in a call of their own."""
        self._alone.append(indices)
        self._waiting += len(indices)
        if self._waiting > _RECORDS:
            self._settle()

    def _settle(self) -> None:
        """Count all notes."""
        with self._lock:
            self._waiting = 0
            chunks = [self._chunks.popleft() for _ in range(len(self._chunks))]
            if chunks:
                self._count(np.array(chunks, np.int64), len(chunks))
            for _ in range(len(self._alone)):
                self._count_alone(self._alone.popleft())

    def _count_alone(self, indices: IntArray) -> None:
        part = self.part
        chunks = part.needs(indices).chunks
        if not part.alone:  # each call decodes a chunk once
            chunks = np.unique(chunks)
            self._count(chunks, len(chunks))
        elif isinstance(part, ArrayPart):
            self._count(chunks, len(indices), len(indices) * self.record_bytes)
        else:
            self._count(chunks, len(indices))

    def _count(self, chunks: IntArray, reads: int, decoded_bytes: int | None = None) -> None:
        """Count reads of chunks, or of parts of them if `decoded_bytes` is given."""
        if self._seen is None:
            self._seen = _ChunksRead(self.part.chunk_count)
        self._seen.add(chunks)
        whole_bytes = int(self.part.decoded_bytes(chunks).sum())
        decoded_bytes = whole_bytes if decoded_bytes is None else decoded_bytes
        self._reads += reads
        self._decoded_bytes += decoded_bytes
        if self._stored_bytes is not None:
            try:
                stored_bytes = int(self.part.stored_bytes(chunks).sum())
            except Exception:  # statistics must not make a read fail
                self._stored_bytes = None
            else:
                share = min(1.0, decoded_bytes / max(1, whole_bytes))
                self._stored_bytes += round(stored_bytes * share)

    def costs(self) -> SourceCosts:
        """Return the costs without the records, which are counted for the whole source."""
        self._settle()
        with self._lock:
            stored = self._stored_bytes
            return SourceCosts(
                source=self.part.name,
                records=_NONE,
                chunks=_NONE if self._seen is None else self._seen.count(self._reads),
                reads=Amount.exactly(self._reads),
                stored_bytes=None if stored is None else Amount.exactly(stored),
                decoded_bytes=Amount.exactly(self._decoded_bytes),
                delivered_bytes=_NONE,
                hits=Amount.exactly(self._hits),
                held_bytes=Amount.exactly(self.held_bytes),
            )


class SourceCounters:
    """Counts the reads of one source."""

    def __init__(self, source: Any) -> None:
        """Start with no reads."""
        self.source = source
        self._lock = threading.Lock()
        self._parts: dict[str, PartCounters] = {}
        self.records = self.delivered_bytes = 0

    def part(self, part: Part) -> PartCounters:
        """Return the counters of one of its parts."""
        with self._lock:
            found = self._parts.get(part.name)
            if found is None:
                found = self._parts[part.name] = PartCounters(part, len(self.source))
            return found

    def arrived(self, records: int, size_bytes: int) -> None:
        """Note that records have arrived."""
        with self._lock:  # += of two threads could lose one
            self.records += records
            self.delivered_bytes += size_bytes

    def costs(self) -> SourceCosts:
        """Return the costs so far."""
        with self._lock:
            parts, records, size_bytes = [*self._parts.values()], self.records, self.delivered_bytes
        found = [counters.costs() for counters in parts]
        stored = [part.stored_bytes for part in found if part.stored_bytes is not None]
        # Foreign sources read their records one by one; sources in memory read nothing.
        foreign = isinstance(self.source, ForeignDataSource)
        unknown = foreign or len(stored) < len(found)
        return SourceCosts(
            source=repr(self.source),
            records=Amount.exactly(records),
            chunks=sum((part.chunks for part in found), _NONE),
            held_bytes=sum((part.held_bytes for part in found), _NONE),
            reads=sum((part.reads for part in found), Amount.exactly(records if foreign else 0)),
            stored_bytes=None if unknown else sum(stored, _NONE),
            decoded_bytes=sum(
                (known(part.decoded_bytes) for part in found),
                Amount.exactly(size_bytes if foreign else 0),
            ),
            delivered_bytes=Amount.exactly(size_bytes),
            hits=sum((part.hits for part in found), _NONE),
        )


class ReadCounters:
    """The counters of all sources of a chain."""

    def __init__(self, node: Node) -> None:
        """Start with no reads."""
        self._of = {id(source): SourceCounters(source) for source in sources_of(node)}
        self.packing: PackCounts | None = None

    def packed(self, counts: PackCounts) -> None:
        """Note that a window was planned from lengths. Only one thread calls this."""
        self.packing = counts if self.packing is None else self.packing + counts

    def requests(self) -> dict[str, float] | None:
        """Figures of the network requests of all sources so far; None if no source is remote."""
        found = {
            id(stats): stats
            for one in self.all
            if is_remote_source(one.source)
            and (stats := getattr(one.source, "remote_stats", None)) is not None
        }
        if not found:
            return None
        from windrow.sources.remote.request_counts import request_figures

        return request_figures(list(found.values()))

    def of(self, source: Any) -> SourceCounters:
        """Return the counters of a source."""
        return self._of[id(source)]

    @property
    def all(self) -> list[SourceCounters]:
        """The counters of all sources, in the order of `Node.sources`."""
        return list(self._of.values())

    def arrived(
        self, source: Any, records: IntArray, size_bytes: int, parts: Sequence[Part]
    ) -> None:
        """Note that records have arrived; the values in `parts` were read in a call of their own."""
        counters = self.of(source)
        counters.arrived(len(records), size_bytes)
        for part in parts:
            counters.part(part).was_read(records)

    def arrivals(self) -> tuple[tuple[int, int], ...]:
        """Return the number of records of each source that have arrived, and their bytes."""
        return tuple((counters.records, counters.delivered_bytes) for counters in self.all)

    def add(self, sources: Sequence[Any], arrivals: Sequence[tuple[int, int]]) -> None:
        """Add what `arrivals` returned in another process for some sources."""
        for source, (records, size_bytes) in zip(sources, arrivals, strict=True):
            self.of(source).arrived(records, size_bytes)

    def expected_bytes(self, source: Any, parts: Sequence[Part], records: int) -> int:
        """Estimate the bytes of `records` records in parts, or in the source if it has none."""
        counters = self.of(source)
        if not parts:
            return counters.delivered_bytes * records // max(1, counters.records)
        return records * sum(counters.part(part).record_bytes for part in parts)
