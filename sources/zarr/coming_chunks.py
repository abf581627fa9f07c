"""Where the chunks lie that a stream reads next, so that a cache on disk keeps what is needed soon.

Many records need one chunk, and the next one of them counts. What may lie in the cache is listed first,
by chunk, so that looking up records costs little, however many chunks the arrays have.

Invariant: nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, Final

import numpy as np

from windrow.sources.base import IntArray
from windrow.sources.chunks import Part
from windrow.sources.remote.coming_reads import NEVER, ComingRanges
from windrow.sources.zarr.cached_readers import CachedReads
from windrow.sources.zarr.missing import reader_inside
from windrow.sources.zarr.zarr_python import PythonReader

# About as many chunks of records are looked up at a time: a window may lie in many.
_CHUNKS: Final = 1 << 16


def coming_ranges(
    parts: Callable[[], Sequence[Part]],
    coming: Iterator[tuple[IntArray, IntArray]],
    urls: Container[str],
) -> Iterator[ComingRanges]:
    """Where the records of a source lie that a stream reads next: a `RangesOf`.

    Nothing is known of a source if one of its arrays is kept in the cache and it is not known where its
    chunks lie: the others would drive it out.

    Args:
        parts: A function that returns the parts of the source.
        coming: The records, and how many elements come before each of them.
        urls: URLs of the objects that matter.
    """
    every = parts()
    if not all(map(_is_known, every)):
        return
    known = [_KnownPart(part, urls) for part in every if isinstance(_reader(part), CachedReads)]
    if not any(len(one) for one in known):
        return
    for records, distances in coming:
        first, count = 0, 1
        while first < len(records):
            some, far = records[first : first + count], distances[first : first + count]
            nearest, most = int(distances[first:].min()), 1
            for one in known:
                needs = one.part.needs(some)
                most = max(most, len(needs.chunks))
                yield one.ranges(nearest, needs.chunks, far[needs.records])
            first, count = first + count, max(1, len(some) * _CHUNKS // most)


class _KnownPart:
    """The chunks of a part that may lie in the cache."""

    def __init__(self, part: Part, urls: Container[str]) -> None:
        reader: CachedReads = _reader(part)
        places = reader.cached.places_in(urls)
        self.part, self._places = part, places
        numbers = places.numbers // reader.together
        self._order = np.argsort(numbers, kind="stable")
        self._chunks, self._begin, self._counts = np.unique(
            numbers[self._order], return_index=True, return_counts=True
        )
        self._distances = np.full(len(self._chunks), NEVER)

    def __len__(self) -> int:
        return len(self._chunks)

    def ranges(self, nearest: int, chunks: IntArray, distances: IntArray) -> ComingRanges:
        """The ranges of chunks, of these, that were further away until now."""
        if len(self):
            at = np.minimum(self._chunks.searchsorted(chunks), len(self) - 1)
            nearer = (self._chunks[at] == chunks) & (distances < self._distances[at])
            np.minimum.at(self._distances, at[nearer], distances[nearer])
            at = np.unique(at[nearer])
        else:
            at = np.zeros(0, np.int64)
        counts, places = self._counts[at], self._places
        begin = self._begin[at] - (np.cumsum(counts) - counts)
        ranges = self._order[np.repeat(begin, counts) + np.arange(counts.sum())]
        files, which = np.unique(places.which[ranges], return_inverse=True)
        return ComingRanges(
            nearest,
            [places.files[k] for k in files.tolist()],
            which,
            places.begin[ranges],
            places.end[ranges],
            np.repeat(self._distances[at], counts),
        )


def _reader(part: Part) -> Any:
    return reader_inside(getattr(part, "reader", None))


def _is_known(part: Part) -> bool:
    """Whether it is known which chunks records need, or the cache does not keep these."""
    reader = _reader(part)
    if getattr(part, "lengths", None) is not None:  # offsets would be read for it
        return False
    if isinstance(reader, CachedReads):
        return reader.cached.has_places
    return not isinstance(reader, PythonReader)
