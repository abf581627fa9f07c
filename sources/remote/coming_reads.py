"""What a stream reads next, and who wants to know: a cache on disk keeps what is needed soon."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from windrow.sources.remote.remote_file import RemoteFile

IntArray = npt.NDArray[np.int64]
FileRanges: TypeAlias = tuple[RemoteFile, IntArray, IntArray, IntArray]
"""A file, which of some records lie in it, and the begin and the end of the bytes of each of these."""
RangesOf: TypeAlias = Callable[[IntArray], Iterator[FileRanges]]
"""The bytes of records, by their indices."""
_NEVER: Final = np.iinfo(np.int64).max


class ComingReads(Protocol):
    """The records of a source that a stream reads next, the near ones first. Any thread may ask.

    Far ones are a sample: the farther, the fewer.
    """

    def __iter__(self) -> Iterator[tuple[IntArray, IntArray]]:
        """Indices of records, and how many elements of the stream come before each of them."""
        ...

    def __hash__(self) -> int: ...


@runtime_checkable
class KeepsOnDisk(Protocol):
    """A source that may keep what it reads in a bounded folder."""

    def foresee(self, coming: ComingReads) -> None:
        """Keep what a stream reads soon rather than what it reads later, as long as `coming` exists."""
        ...


class SegmentUses:
    """The distances of the next uses of the stored segments of one file."""

    def __init__(self, segments: Iterable[tuple[int, int, str]]) -> None:
        """Take the first byte, the size and the name of each; none is used yet."""
        bases, sizes, self._names = zip(*sorted(segments), strict=True)
        self._places = _places(np.array(bases), np.array(sizes))
        self._distances = np.full(len(self._names), _NEVER)

    def note(self, bases: IntArray, sizes: IntArray, distances: IntArray) -> None:
        """Note a use of each of some segments, which need not be stored."""
        wanted = _places(bases, sizes)
        at = np.minimum(self._places.searchsorted(wanted), len(self._places) - 1)
        hits = np.flatnonzero(self._places[at] == wanted)
        np.minimum.at(self._distances, at[hits], distances[hits])

    @property
    def farthest(self) -> int:
        """The largest distance; larger than any if a segment is not used."""
        return int(self._distances.max())

    def found(self) -> Iterator[tuple[str, int]]:
        """The names of the segments that are used, and the distances."""
        for at in np.flatnonzero(self._distances < _NEVER).tolist():
            yield self._names[at], int(self._distances[at])


def segment_uses(names: Iterable[str]) -> dict[str, SegmentUses]:
    """No uses yet of the stored segments of these names, by the keys of their files."""
    by_file = collections.defaultdict[str, list[tuple[int, int, str]]](list)
    for name in names:
        key, base, size = name.rsplit("-", 2)
        by_file[key].append((int(base), int(size), name))
    return {key: SegmentUses(segments) for key, segments in by_file.items()}


def _places(bases: IntArray, sizes: IntArray) -> npt.NDArray[Any]:
    """One number for the first byte and the size of a segment; they sort in this order."""
    return bases + 1j * sizes
