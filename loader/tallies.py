"""Tallies: what reading the sources of a chain has come to so far.

Reads are noted as they are started and records as they arrive. What takes arithmetic, the bytes of
pieces and which of them were read before, is done for many at once, by whoever notes them or asks.

Invariant: to note a read costs the same whatever the layout, and no note is kept for ever.
"""

from __future__ import annotations

import collections
import functools
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from windrow.budget import bytes_per_record
from windrow.costs import Amount, SourceCosts, known
from windrow.sources import ArrayPart, ForeignDataSource, Part
from windrow.transforms.nodes import Node, SourceNode

IntArray = npt.NDArray[np.int64]

# Notes that wait to be counted in, of pieces and of records.
_NOTES: Final = 1 << 12
_RECORDS: Final = 1 << 16
# Pieces of which a bit each says whether it was read: memory is taken as they are.
_MOST_BITS: Final = 1 << 31
_NONE: Final = Amount.exactly(0)


def sources_of(node: Node) -> list[Any]:
    """The sources of a chain, each once, in the order in which they are met from the top."""
    found: dict[int, Any] = {}
    _find_sources(node, found)
    return list(found.values())


# No closure that calls itself: that would keep the sources until garbage is collected.
def _find_sources(node: Node, found: dict[int, Any]) -> None:
    if isinstance(node, SourceNode):
        found.setdefault(id(node.source), node.source)
    for parent in node.parents:
        _find_sources(parent, found)


class _Seen:
    """Which pieces were read, of as many as there are."""

    def __init__(self, count: int) -> None:
        self._bits = np.zeros((count + 7) // 8, np.uint8) if count <= _MOST_BITS else None
        self._count = 0

    def add(self, pieces: IntArray) -> None:
        """Pieces that were read, in any order."""
        if self._bits is None:
            return
        distinct = np.unique(pieces)
        places, bits = distinct >> 3, (1 << (distinct & 7)).astype(np.uint8)
        self._count += int(np.count_nonzero(self._bits[places] & bits == 0))
        np.bitwise_or.at(self._bits, places, bits)

    def count(self, reads: int) -> Amount:
        """How many different ones there were among so many."""
        if self._bits is None:
            return Amount(min(1, reads), reads)
        return Amount.exactly(self._count)


class Shelved(Protocol):
    """What has pieces of a part in memory."""

    @property
    def shelf_bytes(self) -> int:
        """How many bytes of them."""
        ...


class PartTally:
    """What reading one part of a source has come to.

    `started`, `wanted`, `has_shelf` and `holds` are for one thread, the others for any.
    """

    def __init__(self, part: Part, records: int) -> None:
        """Nothing was read so far of a part of so many records."""
        self.part = part
        self._length = records
        self._lock = threading.Lock()
        self._pieces: collections.deque[int] = collections.deque()
        self._alone: collections.deque[IntArray] = collections.deque()
        self._waiting = 0  # records in `_alone`
        self._seen: _Seen | None = None
        self._reads = self._decoded_bytes = 0
        self._stored_bytes: int | None = 0
        self._hits = 0
        # Several streams of a run have shelves of their own, and so have those of later passes.
        self._shelves: weakref.WeakSet[Shelved] = weakref.WeakSet()
        self.held_bytes = 0  # at most

    @functools.cached_property
    def record_bytes(self) -> int:
        """Bytes of what it has of one record."""
        return bytes_per_record(self.part, self._length)

    def wanted(self, pieces: int, new: int) -> None:
        """A round wants so many pieces, of which so many are to be read for it."""
        self._hits += pieces - new

    def has_shelf(self, shelf: Shelved) -> None:
        """There is a shelf, for as long as somebody else knows it."""
        self._shelves.add(shelf)

    def holds(self, shelf: Shelved) -> None:
        """There is one piece more on a shelf."""
        held = shelf.shelf_bytes  # one shelf is the rule, and this is called for every piece
        if len(self._shelves) > 1:
            held = sum(own.shelf_bytes for own in self._shelves)
        if held > self.held_bytes:
            self.held_bytes = held

    def started(self, pieces: Sequence[int]) -> None:
        """Reads of pieces were started."""
        self._pieces.extend(pieces)
        if len(self._pieces) > _NOTES:
            self._settle()

    def was_read(self, indices: IntArray) -> None:
        """Records were read in a call of their own."""
        self._alone.append(indices)
        self._waiting += len(indices)
        if self._waiting > _RECORDS:
            self._settle()

    def _settle(self) -> None:
        """Count in what was noted."""
        with self._lock:
            self._waiting = 0
            pieces = [self._pieces.popleft() for _ in range(len(self._pieces))]
            if pieces:
                self._count(np.array(pieces, np.int64), len(pieces))
            for _ in range(len(self._alone)):
                self._count_alone(self._alone.popleft())

    def _count_alone(self, indices: IntArray) -> None:
        part = self.part
        pieces = part.needs(indices).pieces
        if not part.alone:  # each call decodes a piece once
            pieces = np.unique(pieces)
            self._count(pieces, len(pieces))
        elif isinstance(part, ArrayPart):
            self._count(pieces, len(indices), len(indices) * self.record_bytes)
        else:
            self._count(pieces, len(indices))

    def _count(self, pieces: IntArray, reads: int, decoded_bytes: int | None = None) -> None:
        """Count in reads of pieces, or of less of them where `decoded_bytes` says so."""
        if self._seen is None:
            self._seen = _Seen(self.part.piece_count)
        self._seen.add(pieces)
        whole_bytes = int(self.part.decoded_bytes(pieces).sum())
        decoded_bytes = whole_bytes if decoded_bytes is None else decoded_bytes
        self._reads += reads
        self._decoded_bytes += decoded_bytes
        if self._stored_bytes is not None:
            try:
                stored_bytes = int(self.part.stored_bytes(pieces).sum())
            except Exception:  # to be told how much there was is no reason to fail
                self._stored_bytes = None
            else:
                share = min(1.0, decoded_bytes / max(1, whole_bytes))
                self._stored_bytes += round(stored_bytes * share)

    def costs(self) -> SourceCosts:
        """What it comes to, but for the records, which are those of the source."""
        self._settle()
        with self._lock:
            stored = self._stored_bytes
            return SourceCosts(
                source=self.part.name,
                records=_NONE,
                pieces=_NONE if self._seen is None else self._seen.count(self._reads),
                reads=Amount.exactly(self._reads),
                stored_bytes=None if stored is None else Amount.exactly(stored),
                decoded_bytes=Amount.exactly(self._decoded_bytes),
                delivered_bytes=_NONE,
                hits=Amount.exactly(self._hits),
                held_bytes=Amount.exactly(self.held_bytes),
            )


class SourceTally:
    """What reading one source has come to."""

    def __init__(self, source: Any) -> None:
        """Nothing was read so far."""
        self.source = source
        self._lock = threading.Lock()
        self._parts: dict[str, PartTally] = {}
        self.records = self.delivered_bytes = 0

    def part(self, part: Part) -> PartTally:
        """The tally of one of its parts."""
        with self._lock:
            found = self._parts.get(part.name)
            if found is None:
                found = self._parts[part.name] = PartTally(part, len(self.source))
            return found

    def arrived(self, records: int, size_bytes: int) -> None:
        """Records are there."""
        with self._lock:  # += of two threads could lose one
            self.records += records
            self.delivered_bytes += size_bytes

    def costs(self) -> SourceCosts:
        """What it comes to."""
        with self._lock:
            parts, records, size_bytes = [*self._parts.values()], self.records, self.delivered_bytes
        found = [tally.costs() for tally in parts]
        stored = [part.stored_bytes for part in found if part.stored_bytes is not None]
        # Who else gives records reads them one by one; and what is in memory is not read.
        foreign = isinstance(self.source, ForeignDataSource)
        unknown = foreign or len(stored) < len(found)
        return SourceCosts(
            source=repr(self.source),
            records=Amount.exactly(records),
            pieces=sum((part.pieces for part in found), _NONE),
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


class Tallies:
    """The tallies of all sources of a chain."""

    def __init__(self, node: Node) -> None:
        """Nothing was read so far."""
        self._of = {id(source): SourceTally(source) for source in sources_of(node)}

    def of(self, source: Any) -> SourceTally:
        """The tally of a source."""
        return self._of[id(source)]

    @property
    def all(self) -> list[SourceTally]:
        """All of them, in the order of `sources_of`."""
        return list(self._of.values())

    def arrived(
        self, source: Any, records: IntArray, size_bytes: int, parts: Sequence[Part]
    ) -> None:
        """Records are there; what `parts` have of them was read in a call of its own."""
        tally = self.of(source)
        tally.arrived(len(records), size_bytes)
        for part in parts:
            tally.part(part).was_read(records)

    def arrivals(self) -> tuple[tuple[int, int], ...]:
        """The records of each source that are there, and their bytes."""
        return tuple((tally.records, tally.delivered_bytes) for tally in self.all)

    def add(self, sources: Sequence[Any], arrivals: Sequence[tuple[int, int]]) -> None:
        """What `arrivals` said elsewhere of some sources."""
        for source, (records, size_bytes) in zip(sources, arrivals, strict=True):
            self.of(source).arrived(records, size_bytes)

    def expected_bytes(self, source: Any, parts: Sequence[Part], records: int) -> int:
        """Bytes of what parts have of so many records, or the source, judged by what is known."""
        tally = self.of(source)
        if not parts:
            return tally.delivered_bytes * records // max(1, tally.records)
        return records * sum(tally.part(part).record_bytes for part in parts)
