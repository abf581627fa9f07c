"""The records that a stream reads next, for sources that evict what is needed last.

The order of a chain with random access is a function, so it is known to its end. Near elements are
looked up one by one. Farther ones are a sample, in ever larger steps: their distance need not be
known better than that.

Invariant: nothing is read. Any thread may ask while the stream runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from windrow.engine.record_trace import trace
from windrow.sources.base import IntArray
from windrow.sources.remote.coming_reads import KeepsOnDisk
from windrow.transforms.nodes import Node, sources_of

# The records of at least this many elements are looked up for a distance that doubles each time.
_ELEMENTS: Final = 64
_TIMES: Final = 24


class ComingRecords:
    """The records of one source that a stream reads next; a `ComingReads`."""

    def __init__(self, node: Node, source: Any) -> None:
        """Begin at element 0 of a chain with random access."""
        self._node, self._source = node, source
        self.first = 0
        """The element that is read now."""

    def sampled(self, count: int) -> Iterator[tuple[IntArray, IntArray]]:
        """As `ComingReads.sampled`."""
        first, length = self.first, self._node.length
        try:
            rows = trace(self._node, np.array([first]), uneven=True).counts
            count = max(_ELEMENTS, count // max(1, int(rows.sum())))
            draw, start, stop = np.random.default_rng(0), first, first + count
            for _ in range(_TIMES):
                # One of each step at random: an order may have a period.
                step = max(1, (stop - start) // count)
                elements = np.arange(start, stop, step)
                elements += draw.integers(0, step, len(elements))
                elements = elements[elements < length]
                if not len(elements):
                    return
                yield from self._records(elements, first)
                start, stop = stop, 2 * stop - first
        except Exception:  # of a selection map; the stream raises it when it comes there
            return

    def _records(self, elements: IntArray, first: int) -> Iterator[tuple[IntArray, IntArray]]:
        traced = trace(self._node, elements, uneven=True)
        ends = np.cumsum(traced.counts)
        for taken in traced.taken:
            if taken.leaf is self._source and len(taken.records):
                at = np.searchsorted(ends, taken.rows, side="right")
                yield taken.records, elements[at] - first


def coming_records(node: Node) -> Sequence[ComingRecords]:
    """The records that a stream of a chain reads next, for each source that wants to know them."""
    if node.has_gaps:
        return ()
    found = []
    for source in {id(each): each for each in sources_of(node)}.values():
        if isinstance(source, KeepsOnDisk):
            found.append(ComingRecords(node, source))
            source.foresee(found[-1])
    return found
